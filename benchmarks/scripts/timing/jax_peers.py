"""Updates of unifloral, JAX-CORL and OGBench, in JAX, from checkouts. This imports nothing from the zoo.

Their files are run unchanged; imports that only their scripts need (d4rl, gym, wandb) are stubs. In unifloral and
JAX-CORL, batches are sampled in the compiled function, from data in the device's memory. Their updates are run in the
faster of two ways: all of them in one compiled `lax.scan`, as in unifloral's script, or one call of a compiled step for
each, as in JAX-CORL's. On a CPU, XLA is equally fast in both with small networks, but takes up to nine times as long in
a scan with ten critics.
"""

import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

OBS_DIM, ACTION_DIM, TRANSITIONS = 11, 3, 200_000

Run = Callable[[int], None]


def load(path: Path) -> Any:
    """Loads a script as a module, without running its main part."""
    jax.devices()  # before the script sets flags for a GPU
    for name in ("d4rl", "gym", "wandb"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["gym"].Env = object  # type: ignore[attr-defined]
    module = types.ModuleType(path.stem)
    sys.modules[path.stem] = module
    exec(compile(path.read_text(), path, "exec"), module.__dict__)
    return module


def random_fields() -> dict[str, Any]:
    """Transitions without ends of episodes, with unifloral's names."""
    rng, size = np.random.default_rng(0), TRANSITIONS
    obs, next_obs = rng.standard_normal((2, size, OBS_DIM), dtype=np.float32)
    action = rng.uniform(-1, 1, (size, ACTION_DIM)).astype(np.float32)
    reward, done = rng.standard_normal(size, dtype=np.float32), np.zeros(size, np.float32)
    fields = {"obs": obs, "action": action, "reward": reward, "next_obs": next_obs, "done": done}
    return {name: jnp.asarray(field) for name, field in fields.items()}


def fastest(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, updates: int) -> Run:
    """A function to time, made from a step of `updates` updates, in the faster of the two ways on this machine."""
    state = jax.tree.map(lambda x: jnp.asarray(x, jnp.asarray(x).dtype), state)  # Python numbers would compile twice
    one = jax.jit(step)
    many = jax.jit(lambda carry, steps: jax.lax.scan(step, carry, None, steps), static_argnums=1)

    def in_calls(count: int) -> None:
        nonlocal state
        for _ in range(count // updates):
            state, losses = one(state, None)
        jax.block_until_ready((state, losses))

    def in_scan(count: int) -> None:
        nonlocal state
        state, losses = many(state, count // updates)
        jax.block_until_ready((state, losses))

    def seconds(run: Run, count: int) -> float:
        begun = time.perf_counter()
        run(count)
        return time.perf_counter() - begun

    in_calls(updates)
    count = 4 if seconds(in_calls, updates) > 0.1 else 40
    in_scan(count)
    taken = {run: min(seconds(run, count) for _ in range(3)) for run in (in_calls, in_scan)}
    return min(taken, key=lambda run: taken[run])


def unifloral(algo: str, folder: str) -> Run:
    """unifloral's training step, with its settings except the batch size; two critic updates for TD3+BC and ReBRAC."""
    module = load(Path(folder) / "algorithms" / f"{algo}.py")
    args, fields = module.Args(batch_size=256), random_fields()
    fields["next_action"] = fields["action"]  # for rebrac
    data = module.Transition(*(fields[name] for name in module.Transition._fields))
    moments = data.obs.mean(0), data.obs.std(0)
    rng, obs, action = jax.random.PRNGKey(0), jnp.zeros(OBS_DIM), jnp.zeros(ACTION_DIM)
    nets: dict[str, tuple[Any, list[Any]]] = {}
    if algo == "iql":
        nets["actor"] = module.TanhGaussianActor(ACTION_DIM, *moments), [obs]
        nets["dual_q"] = module.DualQNetwork(*moments), [obs, action]
        nets["value"] = module.StateValueFunction(*moments), [obs]
    elif algo in ("td3_bc", "rebrac"):
        own = [(args.actor_ln, args.norm_obs), (args.critic_ln, args.norm_obs)] if algo == "rebrac" else [(), ()]
        nets["actor"] = module.DeterministicTanhActor(ACTION_DIM, *moments, *own[0]), [obs]
        nets["dual_q"] = module.DualQNetwork(*moments, *own[1]), [obs, action]
    else:
        nets["actor"] = module.TanhGaussianActor(ACTION_DIM), [obs]
        nets["vec_q"] = module.VectorQ(args.num_critics), [obs, action]
        nets["alpha"] = module.EntropyCoef(), []
    states = {}
    for name in module.AgentTrainState._fields:
        net, inputs = nets[name.removesuffix("_target")]
        states[name] = module.create_train_state(args, rng, net, inputs)
    applies = [net.apply for net, _ in nets.values()]
    step = module.make_train_step(args, *applies, data)
    return fastest(step, (rng, module.AgentTrainState(**states)), updates=2 if algo in ("td3_bc", "rebrac") else 1)


def jax_corl(algo: str, folder: str) -> Run:
    """JAX-CORL's updates, two at a time, with its settings except widths and IQL's layer normalization."""
    file, learner, create = {
        "iql": ("iql", "IQL", "create_iql_train_state"),
        "td3_bc": ("td3bc", "TD3BC", "create_td3bc_train_state"),
        "cql": ("cql", "CQL", "create_cql_train_state"),
    }[algo]
    module = load(Path(folder) / "algos" / f"{file}.py")
    config, fields = module.config, list(random_fields().values())
    config.n_jitted_updates = 2
    if algo == "iql":
        config.layer_norm = False
        fields.append(fields[-1])  # ends of episodes, which the update does not use
    if algo == "cql":
        config.hidden_dims, config.action_dim, config.target_entropy = (256, 256, 256), ACTION_DIM, -float(ACTION_DIM)
    data = module.Transition(*fields)
    rng = jax.random.PRNGKey(0)
    state = getattr(module, create)(rng, data.observations[0], data.actions[0], config)

    def step(carry: Any, _: None) -> tuple[Any, Any]:
        rng, state = carry
        rng, key = jax.random.split(rng)
        state, losses = getattr(module, learner)().update_n_times(state, data, key, config)
        return (rng, state), losses

    return fastest(step, (rng, state), updates=2)


def ogbench(algo: str, folder: str, hidden: int, depth: int) -> Run:
    """An OGBench agent's updates on batches of its dataset class, sampled in NumPy, one call each, as in its script."""
    sys.path.insert(0, str(Path(folder) / "impls"))
    from agents import agents  # type: ignore[import-not-found]
    from utils import datasets  # type: ignore[import-not-found]

    module = sys.modules[f"agents.{algo}"]
    config, layers = module.get_config(), (hidden,) * depth
    sizes = {name: layers for name in ("actor_hidden_dims", "value_hidden_dims") if name in config}
    config.update({"batch_size": 256, **sizes})
    rng, episodes, steps, state_dim, action_dim = np.random.default_rng(0), 200, 1_001, 29, 8
    states = rng.standard_normal((episodes * steps, state_dim), dtype=np.float32)
    actions = rng.uniform(-1, 1, (episodes * steps, action_dim)).astype(np.float32)
    last = np.arange(1, episodes * steps + 1) % steps == 0
    whole = datasets.Dataset.create(
        observations=states, actions=actions, terminals=last.astype(np.float32), valids=(~last).astype(np.float32)
    )
    data = getattr(datasets, config["dataset_class"])(whole, config)
    batch = data.sample(256)
    agent = agents[algo].create(0, batch["observations"], batch["actions"], config)

    def run(count: int) -> None:
        nonlocal agent
        for _ in range(count):
            agent, info = agent.update(data.sample(256))
        jax.block_until_ready(info)

    return run
