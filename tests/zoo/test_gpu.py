"""On a GPU algorithms compute what they compute on the CPU, and runs resume bit for bit.

Each test also runs on the CPU, against itself, so that it is checked on machines without a GPU.
"""

import copy
import dataclasses
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import batch_for, make, specs
from examples_on_device import CONTINUOUS, DISCRETE, FRAMES, transition
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import zoo as package
from zoo.agent import Predictor
from zoo.algos import iql, sac
from zoo.data.ahead import SampledAhead
from zoo.data.buffers import replay_buffer
from zoo.data.dataset import Dataset
from zoo.runs.run import Run
from zoo.settings.config import RunConfig
from zoo.settings.registry import Algorithm, algorithms

CPU = torch.device("cpu")
GPU = pytest.param(
    torch.device("cuda"),
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")],
    id="cuda",
)

each_device = pytest.mark.parametrize("device", [pytest.param(CPU, id="cpu"), GPU])
each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=list(algorithms()))


class CommonRandomNumbers(TorchDispatchMode):
    """Draws the random numbers of every device on the CPU, so that a seed gives the same numbers everywhere."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or "attention" in func.name():
            return func(*args, **kwargs)
        on = [x.device for x in args if isinstance(x, Tensor)]
        device = torch.device(kwargs.get("device") or (on[0] if on else CPU))
        moved = {name: CPU if name == "device" else value for name, value in kwargs.items()}
        drawn = func(*to(args, CPU), **moved)
        return args[0].copy_(drawn) if func.overloadpacket.__name__.endswith("_") else to(drawn, device)


def to(values: Any, device: torch.device) -> Any:
    """Moves tensors, or tuples of tensors, to a device."""
    return tree_map_only(Tensor, lambda x: x.to(device), values)


@each_device
@each_algorithm
def test_updates_are_the_cpus(algorithm, device):
    for spec in specs(algorithm):
        exact = {"dropout": 0.0} if hasattr(algorithm.module.Config(), "dropout") else {}  # fused, with its own numbers
        on_cpu = make(algorithm, spec, **exact)
        agent = copy.deepcopy(on_cpu).to(device)
        for seed in range(3):
            batch = batch_for(on_cpu, seed)
            with CommonRandomNumbers():
                torch.manual_seed(seed)
                expected = on_cpu.update(batch)
                torch.manual_seed(seed)
                metrics = agent.update(to(batch, device))
            assert {value.device.type for value in metrics.values()} == {device.type}
            torch.testing.assert_close(to(metrics, CPU), expected, rtol=1e-4, atol=1e-5)


@each_device
@each_algorithm
def test_many_updates_stay_finite(algorithm, device):
    for spec in specs(algorithm):
        agent = make(algorithm, spec).to(device)
        batches = [to(batch_for(agent, seed), device) for seed in range(5)]
        for number in range(300 if device.type == "cuda" else 10):
            metrics = agent.update(batches[number % len(batches)])
        assert all(bool(value.isfinite().all()) for value in metrics.values())
        assert all(bool(parameter.isfinite().all()) for parameter in agent.parameters())


@each_device
@each_algorithm
def test_actions_are_the_cpus(algorithm, device):
    for spec in specs(algorithm):
        on_cpu = make(algorithm, spec)
        agent, obs = copy.deepcopy(on_cpu).to(device), torch.randn(5, *spec.obs_shape)
        for explore in (False, True):
            torch.manual_seed(0)
            agent.begin(5)
            on_cpu.begin(5)
            for _ in range(3):
                with CommonRandomNumbers():
                    torch.manual_seed(1)
                    expected = on_cpu.act(obs, explore)
                    torch.manual_seed(1)
                    action = agent.act(obs.to(device), explore)
                assert action.device.type == device.type
                torch.testing.assert_close(action.cpu(), expected, rtol=1e-4, atol=1e-5)
                on_cpu.observe(obs, expected, torch.ones(5))
                agent.observe(obs.to(device), action, torch.ones(5, device=device))


@each_device
@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE, FRAMES], ids=["continuous", "discrete", "frames"])
def test_a_buffer_gives_what_the_cpus_gives(spec, device):
    on_cpu, buffer = (replay_buffer(9, spec, where, 2, stacked=spec is FRAMES) for where in (CPU, device))
    empty = transition(spec, CPU)
    for i in range(12):  # they become full and wrap around
        step = empty._replace(obs=empty.obs + i, next_obs=empty.next_obs + i + 1, reward=empty.reward + i)
        step = step._replace(terminated=torch.tensor([i % 4 == 3, False]))
        on_cpu.add(step, step.terminated.numpy())
        buffer.add(to(step, device), step.terminated.numpy())
    batches = []
    for one in (on_cpu, buffer):
        with CommonRandomNumbers():
            torch.manual_seed(0)
            batches.append((one.sample(50), one.sample_n_step(50, 3, 0.9), one.rows(4, 12), one.cut()))
    assert {x.device.type for x in batches[1][0]} == {device.type}
    torch.testing.assert_close(to(batches[1], CPU), batches[0], rtol=1e-6, atol=0)


@each_device
@pytest.mark.parametrize("agent", [iql.IQL, sac.SAC], ids=["iql", "sac"])
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(zoo, pendulum_file, tmp_path, monkeypatch, agent, device):
    interrupted_and_resumed(zoo, pendulum_file, tmp_path, monkeypatch, agent, device, "compile=false")


@pytest.mark.parametrize("sampler", ["uniform", "return"])
def test_so_does_a_run_whose_batches_are_sampled_ahead(zoo, pendulum_file, tmp_path, monkeypatch, sampler):
    """On a GPU, batches are sampled ahead."""
    dataset = Run.dataset

    def sampled_ahead(run: Run) -> Dataset:
        data = dataset(run)
        data.sample = SampledAhead(data)  # type: ignore[method-assign]
        return data

    monkeypatch.setattr(Run, "dataset", sampled_ahead)
    interrupted_and_resumed(zoo, pendulum_file, tmp_path, monkeypatch, iql.IQL, CPU, "compile=false", sampler)


@pytest.mark.slow
@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("agent", [iql.IQL, sac.SAC], ids=["iql", "sac"])
def test_so_does_a_compiled_run(zoo, pendulum_file, tmp_path, monkeypatch, agent, device):
    """A CUDA graph's random numbers continue from the checkpoint, and its kernels are the same as before recording."""
    interrupted_and_resumed(zoo, pendulum_file, tmp_path, monkeypatch, agent, device, "compile=true")


def interrupted_and_resumed(
    zoo: Any, pendulum_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: Any, device: torch.device,
    compiles: str, sampler: str = "return",
) -> None:  # fmt: skip
    """A run that is interrupted at an update and resumed, and one that is not."""
    settings = [
        "env=pendulum", "steps=80", "eval_every=40", "checkpoint_every=20", "log_every=20", "eval_episodes=2",
        "logger=none", "seed=1", f"device={device}", "algo.hidden=[16]", "algo.batch_size=32",
        "env.backend=gymnasium", f"algo={agent.__name__.lower()}", compiles,
    ]  # fmt: skip
    offline = agent is iql.IQL
    settings += [f"dataset={pendulum_file}", f"sampler={sampler}"] if offline else ["algo.learning_starts=20"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert zoo("run", *settings, f"run_dir={whole}").code == 0
    log, updates = Run.log, []

    def interrupted(self, metrics):  # after each update, in which a compiled one runs no Python
        updates.append(metrics)
        if len(updates) == 30:
            signal.raise_signal(signal.SIGINT)
        log(self, metrics)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", interrupted)
        assert zoo("run", *settings, f"run_dir={stopped}").code == 130
    assert len(updates) == 30
    assert zoo("run", f"resume={stopped}").code == 0
    assert (stopped / "evaluations.csv").read_bytes() == (whole / "evaluations.csv").read_bytes()
    one, other = (weights(folder) for folder in (whole, stopped))
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.slow
@each_device
@pytest.mark.parametrize("name", ["iql", "td3_bc", "sac"])
def test_a_run_beside_others_is_what_it_is_alone(zoo, pendulum_file, tmp_path, name, device):
    """Also its random numbers: those of its update, and the indices of batches that are sampled ahead."""
    settings = [
        f"algo={name}", "env=pendulum", "steps=150", "eval_every=75", "log_every=50", "eval_episodes=2", "logger=none",
        f"device={device}", "algo.hidden=[16]", "algo.batch_size=32", "env.backend=gymnasium",
        "compile=graph" if device.type == "cuda" else "compile=false",
    ]  # fmt: skip
    settings.append("algo.learning_starts=20" if name == "sac" else f"dataset={pendulum_file}")
    assert zoo("run", *settings, "seeds=1,3", f"run_dir={tmp_path / 'together'}").code == 0
    assert zoo("run", *settings, "seed=3", f"run_dir={tmp_path / 'alone'}").code == 0
    found, expected = weights(tmp_path / "together" / "seed3"), weights(tmp_path / "alone")
    assert found.keys() == expected.keys()
    for key in expected:
        if "optimizer" not in key:  # rounding changes moments of gradients first
            torch.testing.assert_close(found[key], expected[key], rtol=3e-3, atol=3e-3)


SMALL = {  # settings for runs of a few seconds, if an algorithm has them
    "hidden": [32], "batch_size": 32, "learning_starts": 20, "num_steps": 10, "minibatches": 2, "context": 3,
    "width": 8, "dynamics_hidden": [32] * 4, "dynamics_epochs": 20, "rollout_batch": 10, "rollout_length": 2,
    "rollout_every": 10, "rollouts": 2, "rollout_rounds": 1, "min_return": -1e6, "behavior_hidden": [8],
    "behavior_epochs": 1, "diffusion_steps": 2,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("device", [GPU])  # on a CPU, test_together.py runs them with more checks
@each_algorithm
def test_every_training_loop_runs(algorithm, device, pendulum_file, cartpole_file, reach_file, tmp_path):
    fields = {field.name for field in dataclasses.fields(algorithm.module.Config)}
    small = SMALL | {"expert": f"2ep:{pendulum_file}"}
    run = package.train(
        algorithm.name, steps=40, eval_every=20, eval_episodes=1, logger="none", device=str(device),
        run_dir=tmp_path / "run", algo_config={name: value for name, value in small.items() if name in fields},
        **environment(algorithm, pendulum_file, cartpole_file, reach_file),
    )  # fmt: skip
    assert [step for step, _ in run.evaluations] == [20, 40]
    assert {parameter.device.type for parameter in package.load(run.dir).agent.parameters()} == {"cpu"}


def environment(algorithm: Algorithm, pendulum: Path, cartpole: Path, reach: Path) -> dict[str, Any]:
    """The settings of an environment for an algorithm, with a dataset if it needs one."""
    if issubclass(algorithm.agent_class, Predictor):
        return {"env": "series/hopper"}
    env, data = ("pendulum", pendulum) if "continuous" in algorithm.action_spaces else ("cartpole", cartpole)
    if algorithm.takes_goals:
        env, data = "Reach-v0", reach
    needed = algorithm.takes_data(RunConfig(algo=algorithm.module.Config()))
    dataset = {"dataset": str(data)} if needed else {}
    return {"env": env, "env.backend": "gymnasium"} | dataset


def weights(run_dir: Path) -> dict[str, Tensor]:
    """The agent's tensors in a run's checkpoint."""
    state = torch.load(run_dir / "checkpoint.pt", map_location=CPU, weights_only=True)["tracked"]["agent"]
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
