"""Profiles where an algorithm's time goes: matrix products, the optimizer, sampling, the environment, Python.

    OMP_NUM_THREADS=1 python benchmarks/scripts/shares.py iql sac       # default: every algorithm that these data suit
    OMP_NUM_THREADS=1 python benchmarks/scripts/shares.py --compiled iql

Each algorithm has a short run on Hopper or CartPole. Its training loop is run under PyTorch's profiler after a warm-up.
In a compiled update, the optimizer is fused with the other operators that are not matrix products. Python is the rest:
the loop, the calls of operators, and the profiler's overhead. So the shares show where the time goes, not how fast a
run is. The training of models in mopo, combo and mbrcsl before the loop is not counted. `products alone` is the speed
of the loop if everything except matrix products took no time; it is the limit at this machine's speed of products, and
is given if products take at least a hundredth of the time.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

import zoo
from zoo.data.buffers import ReplayBuffer
from zoo.data.dataset import Dataset
from zoo.runs.run import Run
from zoo.runs.stepper import EnvStepper
from zoo.settings.registry import algorithms

PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "_linear_pointwise")
OPTIMIZER = ("_fused_adam", "_foreach")
COMPILED = ("CompiledFxGraph", "_cpp_fused")
SAMPLING, ENVIRONMENT = "sampling", "environment"
GROUPS = ("products", "optimizer", "other operators", "compiled loops", SAMPLING, ENVIRONMENT, "Python")
WARM, PROFILED = 60, 60  # iterations of the loop

STAGED = {"dynamics_epochs": 1, "dynamics_hidden": [200] * 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {"train_every": 1},
    "ppo": {"num_steps": 30, "minibatches": 1},  # two rollouts are profiled, in minibatches of 30
    "mopo": STAGED, "combo": STAGED,
    "mbrcsl": STAGED | {
        "behavior_epochs": 1, "diffusion_steps": 3, "rollouts": 20, "rollout_batch": 50, "min_return": 10.0,
    },
}  # fmt: skip


def labelled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wraps a function, so that it is a named range in the profile."""

    def call(*arguments: Any, **named: Any) -> Any:
        with record_function(name):
            return function(*arguments, **named)

    return call


def group(event: FunctionEvent) -> str:
    """The group that an operator's own time belongs to."""
    name = event.name.removeprefix("aten::").removeprefix("mkldnn::")
    if name in PRODUCTS:
        return "products"
    if any(part in event.name for part in COMPILED):
        return "compiled loops"
    return "optimizer" if name.startswith(OPTIMIZER) else "other operators"


def seconds_by_group(events: list[FunctionEvent], wall: float) -> dict[str, float]:
    """The seconds in a profile, by `GROUPS`."""
    spent = dict.fromkeys(GROUPS, 0.0)
    for event in events:
        above: FunctionEvent | None = event
        while above and (above := above.cpu_parent) and above.name not in (SAMPLING, ENVIRONMENT):
            pass
        if event.name in (SAMPLING, ENVIRONMENT):
            spent[event.name] += event.cpu_time_total / 1e6
        elif not above and not event.name.startswith(("ProfilerStep", "Torch-Compiled", "TorchDynamo")):
            spent[group(event)] += event.self_cpu_time_total / 1e6
    spent["Python"] = wall - sum(spent.values())
    return spent


def shares(algo: str, compiled: bool) -> tuple[float, dict[str, float]]:
    """Iterations of the loop per second, and the seconds of each group."""
    chosen = algorithms()[algo]
    env = "hopper" if "continuous" in chosen.action_spaces else "series/hopper" if algo == "stream_td" else "cartpole"
    early = {"learning_starts": 30} if hasattr(chosen.module.Config, "learning_starts") else {}
    passes = Run._passes
    found: dict[str, Any] = {}

    def profiled(run: Run, end: int) -> Iterator[int]:
        profiler = profile(activities=[ProfilerActivity.CPU])
        for number, step in enumerate(passes(run, end)):
            if number == WARM:
                profiler.start()
                begun = time.perf_counter()
            if number == WARM + PROFILED:
                found["wall"] = time.perf_counter() - begun
                profiler.stop()
                found["events"] = profiler.events()
            yield step

    steps = WARM + PROFILED + 30
    with tempfile.TemporaryDirectory() as folder:
        Run._passes = profiled  # type: ignore[method-assign, assignment]
        try:
            zoo.train(
                algo, env=env, steps=steps, eval_every=steps, log_every=steps, eval_episodes=1, logger="none",
                compile=compiled, run_dir=f"{folder}/run", algo_config=early | SETTINGS.get(algo, {}),
                **({} if env == "series/hopper" else {"env.backend": "gymnasium"}),
            )  # fmt: skip
        finally:
            Run._passes = passes  # type: ignore[method-assign]
    return PROFILED / found["wall"], seconds_by_group(found["events"], found["wall"])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("algorithms", nargs="*", metavar="ALGO", help=f"any of {', '.join(algorithms())}; default: all")
    parser.add_argument("--compiled", action="store_true", help="compile the update")
    args = parser.parse_args()
    if unknown := set(args.algorithms) - set(algorithms()):
        parser.error(f"unknown algorithm {', '.join(sorted(unknown))}; known: {', '.join(algorithms())}")
    EnvStepper.step = labelled(EnvStepper.step, ENVIRONMENT)  # type: ignore[method-assign]
    for owner, name in ((Dataset, "sample"), (ReplayBuffer, "sample"), (ReplayBuffer, "sample_n_step")):
        setattr(owner, name, labelled(getattr(owner, name), SAMPLING))
    rows: list[list[str]] = [["algorithm", "passes/s", "products alone, passes/s", *GROUPS]]
    for algo in args.algorithms or algorithms():
        try:
            speed, spent = shares(algo, args.compiled)
        except zoo.UsageError as error:  # it needs other data or another environment
            print(f"{algo} is left out: {error}")
            continue
        total = sum(spent.values())
        limit = f"{speed * total / spent['products']:,.1f}" if spent["products"] > 0.01 * total else ""
        rows.append([algo, f"{speed:.1f}", limit, *(f"{100 * spent[name] / total:.1f} %" for name in GROUPS)])
    print()
    for row in rows:
        print("| " + " | ".join(row) + " |")
        if row is rows[0]:
            print("|---" * len(row) + "|")


if __name__ == "__main__":
    main()
