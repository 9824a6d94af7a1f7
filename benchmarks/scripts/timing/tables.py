"""The sections of `speed.py`: which subjects are compared, and how they differ."""

import importlib.util
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from zoo.benchmarks.scripts.timing.rounds import Subject, Table

JAX_DIFFERENCE = (
    "The libraries in JAX also sample their batches in the compiled function. They take their updates in one call each "
    "or in one compiled loop, whichever is faster here. The zoo and the other libraries in PyTorch return to Python "
    "after each update."
)
AT_ONCE = 8  # agents
TITLES = {"iql": "IQL", "sac": "SAC", "stream_ac": "Stream AC"}


def installed(name: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(name) is not None


def zoo(file: str, function: str, name: str = "zoo", **arguments: Any) -> dict[str, Subject]:
    """A subject of the zoo, with and without compilation."""
    return {
        name: Subject(file, function, arguments),
        f"{name}, compile=true": Subject(file, function, arguments | {"compiled": True}),
    }


def checkouts(args: Namespace, algo: str) -> dict[str, Subject]:
    """The libraries used from a checkout, if the checkout is given and the library has the algorithm."""
    found: dict[str, Subject] = {}
    if args.corl and algo != "rebrac":
        found["CORL"] = Subject("peers.py", "corl", {"algo": algo, "folder": args.corl})
    if args.unifloral:
        given = {"algo": algo, "folder": args.unifloral}
        name = "unifloral (ten critics)" if algo == "cql" else "unifloral"
        found[name] = Subject("jax_peers.py", "unifloral", given, args.jax_python)
    if args.jax_corl and algo in ("iql", "td3_bc", "cql"):
        given = {"algo": algo, "folder": args.jax_corl}
        found["JAX-CORL"] = Subject("jax_peers.py", "jax_corl", given, args.jax_python)
    return found


def stable(args: Namespace, function: str, **arguments: Any) -> dict[str, Subject]:
    """Stable-Baselines3 and SBX."""
    return {
        "Stable-Baselines3": Subject("stable.py", function, arguments | {"library": "stable_baselines3"}),
        "SBX": Subject("stable.py", function, arguments | {"library": "sbx"}, args.jax_python),
    }


def iql(args: Namespace) -> Iterator[Table]:
    subjects = zoo("offline.py", "updates", algo="iql")
    subjects["eager style"] = Subject("eager.py", "iql")
    subjects |= checkouts(args, "iql")
    subjects["d3rlpy"] = Subject("peers.py", "d3rlpy", {"algo": "IQL"})
    subjects["TorchRL"] = Subject("peers.py", "torchrl", {"algo": "iql"})
    note = (
        "All have two hidden layers of 256. `eager style` is IQL as single-file implementations commonly write it, in "
        f"CORL's manner. unifloral normalizes observations within every network. {JAX_DIFFERENCE}"
    )
    if args.jax_corl:
        note += " JAX-CORL's actor has no tanh, and its value function is without the default layer normalization."
    yield Table("IQL, updates", 60, subjects, note=note)


def td3_bc(args: Namespace) -> Iterator[Table]:
    subjects = zoo("offline.py", "updates", algo="td3_bc") | checkouts(args, "td3_bc")
    subjects["d3rlpy"] = Subject("peers.py", "d3rlpy", {"algo": "TD3PlusBC"})
    note = (
        "An update is one of the critics; at every second one, the actor learns and the target networks move. All have "
        f"two hidden layers of 256. unifloral normalizes observations within every network. {JAX_DIFFERENCE}"
    )
    if args.jax_corl:
        note += " JAX-CORL's critics have layer normalization."
    yield Table("TD3+BC, updates", 60, subjects, note=note)


def cql(args: Namespace) -> Iterator[Table]:
    subjects = zoo("offline.py", "updates", algo="cql")
    subjects |= zoo("offline.py", "updates", "zoo, bfloat16", algo="cql", precision="medium")
    subjects |= checkouts(args, "cql")
    subjects["d3rlpy"] = Subject("peers.py", "d3rlpy", {"algo": "CQL"})
    note = (
        "Three hidden layers of 256, two critics, and 31 values per state: 10 actions from each of three distributions "
        "and the action in the data. `bfloat16` is `matmul_precision=medium`, which rounds the factors of float32 "
        "products. unifloral's CQL is another algorithm, with ten critics and 4 values per state, so its figures stand "
        "on their own. "
        f"{JAX_DIFFERENCE}"
    )
    yield Table("CQL, updates", 6, subjects, note=note)


def rebrac(args: Namespace) -> Iterator[Table]:
    subjects = zoo("offline.py", "updates", algo="rebrac") | checkouts(args, "rebrac")
    note = (
        "An update is one of the critics; at every second one, the actor learns and the target networks move. Three "
        "hidden layers of 256, with layer normalization in the critics, and batches of 256 instead of the paper's "
        f"1,024. {JAX_DIFFERENCE}"
    )
    yield Table("ReBRAC, updates", 40, subjects, note=note)


def policies(args: Namespace) -> Iterator[Table]:
    layers = {"hidden": 256, "depth": 3}
    compared = {f"zoo, {algo}": {"algo": algo} | layers for algo in ("dql", "fql", "ofql", "iql", "rebrac")}
    compared["zoo, fql of 4 layers of 512"] = {"algo": "fql"}
    note = (
        "Three hidden layers of 256, except in the row with FQL's own layers; batches of 256. DQL denoises in 5 steps, "
        "and FQL's flow takes 10. An update of ReBRAC is one of the critics; at every second one, the actor learns and "
        "the target networks move."
    )
    subjects = {name: Subject("offline.py", "updates", arguments) for name, arguments in compared.items()}
    for algo in ("dql", "fql", "ofql"):
        compiled = {"algo": algo, "compiled": True} | layers
        subjects[f"zoo, {algo}, compile=true"] = Subject("offline.py", "updates", compiled)
    yield Table("Diffusion, flow and other policies, updates", 20, subjects, note=note)
    note = "For one observation at a time, without exploration. DQL takes the best of 50 candidates."
    subjects = {name: Subject("offline.py", "acting", arguments) for name, arguments in compared.items()}
    yield Table("The same policies, actions", 200, subjects, note=note)


def goals(args: Namespace) -> Iterator[Table]:
    shape: dict[str, Any] = {"hidden": 256, "depth": 3}
    note = (
        "Ant Maze's shapes, three hidden layers of 256, and batches of 256 with their goals, which OGBench samples in "
        "NumPy. Each of OGBench's updates is one call, as in its script."
    )
    for algo in ("gcbc", "gcivl", "gciql", "crl", "qrl", "hiql", "ota"):
        subjects = zoo("goals.py", "updates", algo=algo, **shape)
        if args.ogbench and algo != "ota":
            given = {"algo": algo, "folder": args.ogbench} | shape
            subjects["OGBench"] = Subject("jax_peers.py", "ogbench", given, args.jax_python)
        yield Table(f"{algo.upper()}, updates", 30, subjects, note=note)


def edac(args: Namespace) -> Iterator[Table]:
    subjects = zoo("offline.py", "updates", algo="edac") | checkouts(args, "edac")
    note = f"Ten critics, three hidden layers of 256. {JAX_DIFFERENCE}"
    yield Table("EDAC, updates", 6, subjects, note=note)


def sac(args: Namespace) -> Iterator[Table]:
    subjects = zoo("online.py", "off_policy", algo="sac") | stable(args, "off_policy", algo="SAC")
    note = "Gymnasium's Hopper, stepped in the same process; two hidden layers of 256, batches of 256."
    yield Table("SAC on Hopper-v5, environment steps with an update each", 60, subjects, note=note)
    subjects = zoo("offline.py", "updates", algo="sac")
    subjects["d3rlpy"] = Subject("peers.py", "d3rlpy", {"algo": "SAC"})
    subjects["TorchRL"] = Subject("peers.py", "torchrl", {"algo": "sac"})
    note = "Without an environment, on random transitions. TorchRL computes all gradients from a single forward pass."
    yield Table("SAC, updates alone", 60, subjects, note=note)


def dsac_t(args: Namespace) -> Iterator[Table]:
    layers: dict[str, Any] = {"hidden": 256, "depth": 3}
    subjects = zoo("offline.py", "updates", algo="dsac_t", **layers)
    if args.dsac_t:
        subjects["DSAC-T's authors'"] = Subject("peers.py", "dsac_t", {"folder": args.dsac_t})
    subjects["zoo, sac"] = Subject("offline.py", "updates", {"algo": "sac"} | layers)
    note = (
        "On random transitions, with three hidden layers of 256. DSAC-T's actor and target networks move at every "
        "second update."
    )
    yield Table("DSAC-T, updates", 30, subjects, note=note)


def td3(args: Namespace) -> Iterator[Table]:
    subjects = zoo("online.py", "off_policy", algo="td3") | stable(args, "off_policy", algo="TD3")
    note = "The same as in SAC's first table, but the actor learns at every second step."
    yield Table("TD3 on Hopper-v5, environment steps with an update each", 60, subjects, note=note)


def ppo(args: Namespace) -> Iterator[Table]:
    subjects = zoo("online.py", "on_policy")
    subjects |= zoo("online.py", "on_policy", "zoo, EnvPool", backend="envpool") if installed("envpool") else {}
    subjects["eager style"] = Subject("eager.py", "on_policy")
    subjects |= stable(args, "on_policy")
    note = (
        "Rollouts of 2,048 steps, with 320 gradient steps on minibatches of 64 after each; two tanh layers of 64. "
        "`eager style` is PPO in CleanRL's manner. It steps Gymnasium's Hopper, as do the others unless EnvPool is "
        "named. Stable-Baselines3 and SBX do not clip the values."
    )
    yield Table("PPO on one Hopper-v5, environment steps", 1, subjects, 2_048, note)


def atari(args: Namespace) -> Iterator[Table]:
    if not installed("envpool") and not installed("ale_py"):
        return
    backend, steps = ("envpool", "EnvPool") if installed("envpool") else ("gymnasium", "ale-py")
    differ = f"The zoo's Pong is stepped by {steps}, that of the others by ale-py with Stable-Baselines3's wrappers."
    subjects = zoo("online.py", "pong_dqn", backend=backend) | stable(args, "pong_dqn")
    without = {"library": "sbx", "scan": False}
    subjects["SBX without its scan"] = Subject("stable.py", "pong_dqn", without, args.jax_python)
    note = (
        f"{differ} An update on a batch of 32 at every fourth step, and a replay buffer of 20,000. SBX takes its "
        "update in a scan, in which XLA's convolutions are slow on a CPU. The same step without the scan shows what "
        "its update costs."
    )
    yield Table("DQN on Pong, environment steps", 50, subjects, 4, note)
    subjects = zoo("online.py", "pong_on_policy", backend=backend) | stable(args, "pong_on_policy")
    yield Table("PPO on 8 Pong, environment steps", 1, subjects, 1_024, differ)


def streaming(args: Namespace) -> Iterator[Table]:
    env = "HalfCheetah-v5"
    subjects = zoo("online.py", "streaming", env=env)
    if args.streaming:
        given = {"env": env, "folder": args.streaming}
        subjects["stream-x's authors'"] = Subject("peers.py", "streaming", given)
    yield Table(f"Stream AC on {env}, environment steps", 500, subjects, note="One update per step.")


def samplers(args: Namespace) -> Iterator[Table]:
    for title, function in (("Batches of 256 of 1,000,000", "batches"), ("Their indices alone", "indices")):
        subjects = {
            name if name == "uniform" else f"zoo, {name}": Subject("offline.py", function, {"sampler": name})
            for name in ("uniform", "return", "advantage", "top")
        }
        yield Table(title, 2_000, subjects)


def dynamics(args: Namespace) -> Iterator[Table]:
    subjects, note = zoo("offline.py", "dynamics"), "Seven models with four layers of 200."
    if args.mbrcsl:
        subjects["MBRCSL's authors'"] = Subject("peers.py", "mbrcsl", {"folder": args.mbrcsl})
        note += (
            " Before the authors' code is timed, ten of its updates and ten of the zoo's, from the same weights on the "
            "same batches, are checked to have the same losses, to a relative 1e-5."
        )
    yield Table("Dynamics ensemble, updates", 20, subjects, note=note)


def vector(args: Namespace) -> Iterator[Table]:
    if not installed("envpool"):
        return
    made: dict[str, Any] = {"num_envs": 16, "backend": "envpool"}
    subjects = {"zoo": Subject("online.py", "alone", made)}
    yield Table("16 EnvPool Hopper-v5 alone, environment steps", 2_000, subjects, 16)
    note = "Rollouts of 2,048 steps per environment."
    subjects = zoo("online.py", "on_policy", **made)
    yield Table("PPO on 16 EnvPool Hopper-v5, environment steps", 1, subjects, 2_048 * 16, note)


def seeds(args: Namespace) -> Iterator[Table]:
    for algo, hidden in (("iql", 256), ("iql", 64), ("sac", 64), ("stream_ac", None)):
        width = f", two hidden layers of {hidden}" if hidden else ""
        subjects = {}
        for name, together in (("one after another", False), (f"zoo, {AT_ONCE} at once", True)):
            given = {"algo": algo, "hidden": hidden, "count": AT_ONCE, "together": together, "compiled": True}
            subjects[name] = Subject("seeds.py", "agents", given)
        title = f"{TITLES[algo]} of {AT_ONCE} seeds{width}, updates"
        yield Table(title, 10, subjects, AT_ONCE, "Both are compiled.")


def bfloat16(_: Namespace) -> Iterator[Table]:
    for algo, title in (("iql", "IQL"), ("td3_bc", "TD3+BC"), ("sac", "SAC")):
        given = {"algo": algo, "compiled": True}
        subjects = {
            "float32": Subject("offline.py", "updates", given),
            "zoo, bfloat16": Subject("offline.py", "updates", given | {"precision": "medium"}),
        }
        note = "Both are compiled. `bfloat16` is `matmul_precision=medium`; CQL's table has its own row for it."
        yield Table(f"{title} by precision, updates", 60, subjects, note=note)
