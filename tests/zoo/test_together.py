"""`seeds=`: several runs as one program, each with the same results as alone."""

import csv
import functools
import json
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from zoo.agent import Agent, Metrics
from zoo.data.arrays import Arrays
from zoo.data.batch import Batch
from zoo.errors import RunError, UsageError
from zoo.nn.optim import Adam
from zoo.runs import dataset, together
from zoo.runs.cuda_graph import leaves
from zoo.runs.device import OwnRandomNumbers
from zoo.runs.run import Run
from zoo.runs.stacked import Row, Stack, StackedUpdate, largest_product, tensors_of
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.registry import algorithms
from zoo.settings.seeds import seed_by_seed

SMALL = ("steps=60", "eval_every=30", "log_every=20", "env.backend=gymnasium", "compile=false")
STAGED = (
    "algo.dynamics_epochs=20", "algo.dynamics_hidden=[32,32,32,32]", "algo.dynamics_lr=0.001", "algo.members=2",
    "algo.elites=1", "algo.rollout_batch=8",
)  # fmt: skip
OF = {
    "bcq": ("env=cartpole",),
    "combo": STAGED,
    "cql": ("algo.actor_lr=0.0003",),  # learning rates that move weights by more than the tolerance below
    "discrete_cql": ("env=cartpole",),
    "dqn": ("env=cartpole", "algo.learning_starts=20"),
    "dt": ("algo.context=4", "algo.batch_size=8", "algo.width=8", "algo.layers=1", "algo.warmup=5"),
    "h2o": ("algo.learning_starts=20",),
    "mbrcsl": (
        *STAGED, "algo.behavior_hidden=[8]", "algo.behavior_epochs=2", "algo.diffusion_steps=2", "algo.rollouts=30",
        "algo.min_return=-2000",
    ),
    "mopo": STAGED,
    "ppo": ("algo.num_steps=20", "algo.minibatches=2", "algo.epochs=2"),
    # rounding decides the maximum of two almost equal numbers, and the sign of a gradient near 0
    "qrl": ("algo.latent_dim=16", "steps=20", "eval_every=10"),
    "rcsl": ("algo.lr=0.001",),
    "rlpd": ("algo.learning_starts=20", "algo.utd_ratio=2"),
    "sac": ("algo.learning_starts=20",),
    "stream_q": ("env=cartpole",),
    "stream_sarsa": ("env=cartpole",),
    "stream_td": ("env=series/hopper",),
    "td3": ("algo.learning_starts=20",),
    "dsac_t": ("algo.learning_starts=20",),
}  # fmt: skip


def evaluations(run_dir: Path) -> list[float]:
    """Steps and returns of all episodes in one list."""
    with (run_dir / "evaluations.csv").open(newline="") as file:
        rows = [[float(row["step"]), *map(float, row["returns"].split())] for row in csv.DictReader(file)]
    return [value for row in rows for value in row]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    """The agent's weights without its optimizers, whose float32 moments differ by more after many updates."""
    state = torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    return {name: x for name, x in state.items() if isinstance(x, torch.Tensor) and "optimizer" not in name}


def losses_of(run_dir: Path) -> list[float]:
    """The losses of a dynamics model in its first passes."""
    with (run_dir / "dynamics.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)][:6]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_each_of_several_seeds_is_what_it_is_alone(
    zoo, tmp_path, monkeypatch, pendulum_file, cartpole_file, reach_file, name
):
    monkeypatch.setattr(together, "LARGEST", math.inf)  # even though it is slow on a CPU
    known = set(algorithms()[name].module.Config.__dataclass_fields__)
    quick = [f"algo.{key}={value}" for key, value in {"hidden": "[16]", "batch_size": 32}.items() if key in known]
    discrete = "continuous" not in algorithms()[name].action_spaces
    config = RunConfig(algo=algorithms()[name].module.Config())
    needed = algorithms()[name].takes_data(config)
    data = [f"dataset={cartpole_file if discrete else pendulum_file}"] if needed else []
    data += [f"algo.expert=1ep:{pendulum_file}"] if "expert" in known else []
    goals = ["env=Reach-v0", f"dataset={reach_file}"] if algorithms()[name].takes_goals else []
    settings = (f"algo={name}", "env=pendulum", *data, *goals, "eval_episodes=2", "logger=none", *quick, *SMALL)
    settings += OF.get(name, ())
    settings = tuple({argument.partition("=")[0]: argument for argument in settings}.values())  # the last one counts
    result = zoo("run", *settings, "seeds=1,3", f"run_dir={tmp_path / 'together'}")
    assert result.code == 0, result.err
    assert "one after another" not in result.out
    alone = tmp_path / "alone"
    assert zoo("run", *settings, "seed=3", f"run_dir={alone}").code == 0
    beside = tmp_path / "together" / "seed3"
    if STAGED[0] in settings:  # later, rounding differences grow and decide which pass was best
        assert losses_of(beside) == pytest.approx(losses_of(alone), rel=0.01)
    else:
        assert evaluations(beside) == pytest.approx(evaluations(alone), rel=0.01)
        expected = weights_of(alone)
        for key, found in weights_of(beside).items():
            torch.testing.assert_close(
                found, expected[key], rtol=3e-3, atol=3e-3, msg=lambda text, key=key: f"{key}: {text}"
            )
    assert sorted(path.name for path in beside.iterdir()) == sorted(path.name for path in alone.iterdir())
    assert json.loads((beside / "run.json").read_text())["seeds"] == [1, 3]


SETTINGS = (
    "algo=iql",
    "algo.hidden=[16]",
    "algo.batch_size=32",
    "env=hopper",
    "eval_episodes=2",
    "logger=none",
    *SMALL,
)
LARGE = ("algo=iql", "env=hopper", "eval_episodes=2", "logger=none", *SMALL, "steps=4", "eval_every=4")


def test_a_setting_may_name_each_seeds_own_run():
    runs = seed_by_seed([*SETTINGS, "init_from=first-${seed}", "seeds=3,4"])
    assert [(config.seed, config.init_from, settings["init_from"]) for config, _, settings in runs] == [
        (3, "first-3", "first-3"), (4, "first-4", "first-4"),
    ]  # fmt: skip


def test_a_seed_that_fails_leaves_the_others_learning(zoo, tmp_path):
    (tmp_path / "runs" / "seed2").mkdir(parents=True)
    (tmp_path / "runs" / "seed2" / "here.txt").touch()
    result = zoo("run", *SETTINGS, "seeds=1-3", "run_dir=runs")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "runs/seed2 exists and is not an empty folder" in result.err
    assert "2 seeds: return" in result.out
    for seed in (1, 3):
        assert 60 in evaluations(tmp_path / "runs" / f"seed{seed}")


def test_a_seed_that_ends_early_keeps_its_weights_and_the_others_learn_as_with_it(zoo, tmp_path, monkeypatch):
    assert zoo("run", *SETTINGS, "seeds=1-3", "run_dir=whole").code == 0
    evaluate, ended = Run._evaluate, []

    def ends_in_the_middle(run):
        if run.config.seed == 2:
            ended.append((run._agent, {name: x.clone() for name, x in run._agent.named_parameters()}))
            raise RunError("no more of this seed")
        evaluate(run)

    monkeypatch.setattr(Run, "_evaluate", ends_in_the_middle)
    result = zoo("run", *SETTINGS, "seeds=1-3", "run_dir=runs")
    assert (result.code, result.err) == (1, "zoo: no more of this seed\n")
    ((agent, weights),) = ended
    assert all(torch.equal(x, weights[name]) for name, x in agent.named_parameters())
    for seed in (1, 3):
        found, expected = (tmp_path / folder / f"seed{seed}" for folder in ("runs", "whole"))
        assert evaluations(found) == evaluations(expected)
        assert all(torch.equal(x, weights_of(expected)[name]) for name, x in weights_of(found).items())


def test_seeds_that_remain_when_one_has_failed_learn_as_one_program(zoo, tmp_path, monkeypatch):
    """One seed fails before the first update."""
    taken = counted_programs(monkeypatch)
    (tmp_path / "runs" / "seed1").mkdir(parents=True)
    (tmp_path / "runs" / "seed1" / "here.txt").touch()
    assert zoo("run", *SETTINGS, "seeds=1-3", "run_dir=runs").code == 2
    assert len(taken) == 60
    assert zoo("run", *SETTINGS, "seed=3", "run_dir=alone").code == 0
    assert evaluations(tmp_path / "runs" / "seed3") == pytest.approx(evaluations(tmp_path / "alone"), rel=0.01)


def test_a_seed_that_stopped_a_step_behind_is_waited_for(zoo, tmp_path, monkeypatch):
    """TD3+BC updates its actor at every second step, so otherwise they would never have the same update again."""
    settings = ("algo=td3_bc", "algo.hidden=[16]", "algo.batch_size=32", "env=hopper", "eval_episodes=2")
    settings += (*SMALL, "logger=none")
    log, logged = Run.log, []

    def interrupted(run, metrics):
        log(run, metrics)
        logged.append(run.config.seed)
        if logged.count(2) == 20 and run.config.seed == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", interrupted)
        assert zoo("run", *settings, "seeds=1,2", "run_dir=runs").code == 130
    steps = [torch.load(tmp_path / f"runs/seed{seed}/checkpoint.pt", weights_only=True)["step"] for seed in (1, 2)]
    assert steps == [21, 20]
    taken = counted_programs(monkeypatch)
    assert zoo("run", "resume=runs").code == 0
    assert len(taken) == 60 - 21
    assert zoo("run", *settings, "seed=2", "run_dir=alone").code == 0
    assert evaluations(tmp_path / "runs" / "seed2") == pytest.approx(evaluations(tmp_path / "alone"), rel=0.01)


def counted_programs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list to which an entry is added whenever several agents are updated as one."""
    taken, update = [], StackedUpdate.__call__

    def counted(program, noise, given):
        taken.append(len(given))
        return update(program, noise, given)

    monkeypatch.setattr(StackedUpdate, "__call__", counted)
    return taken


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [("runs/seed1", "runs/seed2"), ("runs",)], ids=["each alone", "together"])
def test_interrupted_seeds_go_on_to_where_they_would_have_come(zoo, start, tmp_path, resumed):
    """The program rounds differently from each run alone."""
    settings = (
        *SETTINGS[:-5],
        "steps=400",
        "eval_every=200",
        "checkpoint_every=20",
        "env.backend=gymnasium",
        "compile=false",
    )
    assert zoo("run", *settings, "seeds=1,2", "run_dir=whole").code == 0
    result = zoo("run", "resume=whole")
    assert result.code == 2
    assert "resume=whole: all of its runs have finished. See one: zoo eval whole/seed1" in result.err
    process = start("run", *settings, "seeds=1,2", f"run_dir={tmp_path / 'runs'}")
    process.wait_for(tmp_path / "runs" / "seed2" / "checkpoint.pt")
    process.kill(signal.SIGINT)
    ended = process.wait()
    assert ended.code == 130
    assert ended.err.endswith(f"the checkpoints of 2 seeds are written. Continue: zoo run resume={tmp_path / 'runs'}\n")
    for run_dir in resumed:
        assert zoo("run", f"resume={run_dir}").code == 0
    for seed in (1, 2):
        found, expected = (evaluations(tmp_path / folder / f"seed{seed}") for folder in ("runs", "whole"))
        assert found == pytest.approx(expected, rel=0 if resumed == ("runs",) else 1e-3)


def test_seeds_that_had_not_begun_are_named(zoo):
    assert zoo("run", *LARGE, "seeds=4,7,9", "run_dir=of").code == 0
    shutil.rmtree("of/seed9")
    rest = "The command that they began with begins the rest: seeds=9-9"
    assert f"resume=of: all of its runs have finished. {rest}" in zoo("run", "resume=of").err
    path = Path("of/seed7/run.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "interrupted"}))
    result = zoo("run", "resume=of")
    assert (result.code, result.err) == (0, "")
    assert f"of: not all of its runs had begun. {rest}" in result.out
    assert zoo("run", *LARGE, "seeds=9-9", "run_dir=of").code == 0
    assert "all of its runs have finished. See one: zoo eval of/seed4" in zoo("run", "resume=of").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("seeds=8", "seed=1"), "seeds=8 and seed=1 are both given"),
        (("seeds=0",), "seeds=0 names none"),
        (("seeds=3-1",), "seeds=3-1 names none"),
        (("seeds=1,1",), "seeds=1,1 names a seed twice"),
        (("seeds=20240101",), "seeds=20240101 asks for 20,240,101 runs; at most 1,000 go side by side. For one run: "),
        (("seeds=0-5000",), "seeds=0-5000 asks for 5,001 runs; at most 1,000 go side by side."),
        (("seeds=5000000000,1",), "seed=5000000000 must lie between 0 and"),
        (("seeds=many",), "seeds=many is not how many seeds, nor which"),
        (("seeds=2", "resume=DIR"), "continues with its own seed"),
        (("seeds=2", "run_dir=[a]"), "run_dir=[a] must name 2 folders, one for each seed, or one that they all lie in"),
        (("seeds=2", "run_dir=[a,a]"), "run_dir=[a,a] must name 2 folders"),
        (("seeds=2", "run_dir=[a,b,c]"), "run_dir=[a,b,c] must name 2 folders"),
        (("seeds=2", "run_dir=[]"), "[] names no folder"),
        (("-m", "seeds=2"), "-m is for runs one after another"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(zoo, tmp_path, arguments, message):
    result = zoo("run", "algo=iql", "env=hopper", *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_each_seed_has_the_folder_that_is_named_for_it_and_those_go_on_by_their_names(zoo, tmp_path):
    folders = [tmp_path / "a", tmp_path / "it's [b], 2"]
    quoted = str(folders[1]).replace("'", "\\'")
    named = f"[{folders[0]},'{quoted}']"
    assert zoo("run", *LARGE, "seeds=4,7", f"run_dir={named}").code == 0
    records = [json.loads((folder / "run.json").read_text()) for folder in folders]
    assert [record["config"]["seed"] for record in records] == [4, 7]
    for folder, record in zip(folders, records, strict=True):  # as if they had been stopped
        (folder / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    resumed = zoo("run", f"resume={named}")
    assert resumed.code == 0, resumed.err
    assert "2 seeds: return" in resumed.out
    assert zoo("run", f"resume='{quoted}'").err.startswith("zoo: resume=" + str(folders[1]) + ": this run has finished")


def test_runs_that_differ_in_more_than_their_seeds_are_not_resumed_together(zoo):
    for folder, more in (("a", "seed=1"), ("b", "log_every=30")):
        assert zoo("run", *SETTINGS, more, f"run_dir={folder}").code == 0
    result = zoo("run", "resume=[a,b]")
    assert result.code == 2
    assert "resume=[a,b]: these runs differ in more than their seeds" in result.err
    assert zoo("run", "resume=[]").err == "zoo: [] names no folder. Give one, or several: [DIR,DIR]\n"


@pytest.mark.slow
def test_an_update_that_looks_at_numbers_cannot_be_one_program(zoo, tmp_path):
    file = tmp_path / "greedy.py"
    source = algorithms()["bc"].path.read_text()
    file.write_text(
        source.replace("        return {", "        if loss > 0:\n            loss = loss + 0\n        return {")
    )
    assert file.read_text() != source
    command = [sys.executable, str(file), *(x for x in SETTINGS if not x.startswith("algo=")), "seeds=2"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 2
    assert "cannot be one program" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


class Counts(Agent):
    """An agent that counts its updates in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.updates, self.weight = 0, torch.nn.Parameter(torch.zeros(()))

    def update(self, batch: torch.Tensor) -> Metrics:
        self.updates += 1
        return {"loss": self.weight.detach() * batch}


def test_an_update_that_changes_a_python_attribute_cannot_be_one_program():
    agents = [Counts(), Counts()]
    with pytest.raises(UsageError, match=r"changes Counts.updates, .* with seeds=.*nn.Buffer"):
        StackedUpdate(Stack(agents), agents[0].update, ((torch.ones(()),), {}), None)


def test_what_seeds_train_is_in_the_agent():
    def train(join) -> None:
        agent, outside = Counts(), Counts()
        agent.inner = Counts()
        join(agent.update)
        join(agent.inner.update)
        join(outside.update)

    side_by_side = together.Together([0, 1], torch.device("cpu"))
    join = functools.partial(side_by_side.join, compiles=False)
    for error in side_by_side.run([functools.partial(train, join)] * 2):
        assert isinstance(error, UsageError)
        assert "Counts.update must be a method of the tracked agent or of a module in it" in str(error)
    assert [len(updates) for updates in side_by_side._updates] == [2, 2]


def test_large_networks_learn_one_after_another_on_a_cpu_and_nothing_is_traced_to_see_that(zoo, monkeypatch):
    monkeypatch.setattr(together, "StackedUpdate", None)
    result = zoo("run", *LARGE, "seeds=2")
    assert result.code == 0
    assert result.out.count("one after another") == 1


def test_the_largest_product_of_an_update_is_that_of_its_layers_and_taking_it_changes_nothing():
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(3, 50), torch.nn.Linear(50, 20))
            self.optimizer = Adam(self.parameters(), 0.1)

        def update(self, x: torch.Tensor, times: int = 1) -> dict[str, torch.Tensor]:
            loss = (self.layers(x.repeat(times, 1)) * torch.rand(())).square().mean()
            self.optimizer.minimize(loss)
            return {"loss": loss}

    net, x = Net(), torch.ones(7, 3)
    state, rng = {name: tensor.clone() for name, tensor in net.state_dict().items()}, torch.get_rng_state()
    assert largest_product(net.update, ((x,), {})) == 7 * 50 * 20
    assert largest_product(net.update, ((x,), {"times": 4})) == 4 * 7 * 50 * 20
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


def test_the_tensors_of_stacked_modules_are_views_until_released():
    modules = [torch.nn.Linear(2, 3) for _ in range(2)]
    before = [tensors_of(module)["weight"].clone() for module in modules]
    stack = Stack(modules)
    weight = stack.tensors[stack.names.index("weight")]
    assert torch.equal(weight, torch.stack(before))
    weight.zero_()
    assert all(not module.weight.any() for module in modules)
    stack.release(0)
    weight.fill_(1.0)
    assert not modules[0].weight.any()
    assert modules[1].weight.all()


def test_datasets_are_in_memory_once_where_they_are_the_same(zoo, monkeypatch, pendulum_file):
    """Each run normalizes its dataset itself, and the rewards differ."""
    kept, share = [], together.Together.share
    monkeypatch.setattr(together.Together, "share", lambda self, data: kept.append(data) or share(self, data))
    arguments = ("algo=iql", "env=pendulum", f"dataset={pendulum_file}", "algo.normalize_obs=true", *LARGE[2:])
    assert zoo("run", *arguments, "corruption=random-reward", "seeds=3").code == 0
    first, *others = kept
    assert len(others) == 2
    for other in others:
        same = {name for name in Arrays._fields if getattr(other, name).data_ptr() == getattr(first, name).data_ptr()}
        assert same == set(Arrays._fields) - {"reward"}
        assert not torch.equal(other.reward, first.reward)
    assert abs(first.obs.mean()) < 1e-3


def test_a_dataset_is_read_once_for_all_seeds(zoo, monkeypatch, pendulum_file):
    read, load = [], dataset.load_arrays
    monkeypatch.setattr(dataset, "load_arrays", lambda env, *given: read.append(given) or load(env, *given))
    arguments = ("algo=iql", "env=pendulum", f"dataset={pendulum_file}", *LARGE[2:])
    for ran in (1, 2):
        assert zoo("run", *arguments, "seeds=3", f"run_dir=runs{ran}").code == 0
        assert len(read) == ran  # and are not kept for the next command
    records = [json.loads(Path(f"runs1/seed{seed}/run.json").read_text())["dataset"] for seed in range(3)]
    assert records[0] == records[1] == records[2]


@pytest.mark.parametrize(
    ("given", "folders"),
    [
        ("runs", ["runs/seed2", "runs/seed5"]),
        ("[a,b]", ["a", "b"]),
        ("[2026_01,'1e5']", ["2026_01", "1e5"]),
        ("", ["seed2", "seed5"]),
        ("null", ["null", "null"]),
    ],
)
def test_the_settings_of_each_seed_are_those_of_a_run_alone(given, folders):
    arguments = ["algo=iql", "env=hopper", "algo.tau=0.1", "preset=paper", "dataset=medium"]
    found = seed_by_seed([*arguments, "seeds=2,5", f"run_dir={given}"])
    alone = [[f"seed={seed}", f"run_dir={folder}"] for seed, folder in zip((2, 5), folders, strict=True)]
    assert found == [compose([*arguments, *own]) for own in alone]


def test_runs_side_by_side_have_random_numbers_of_their_own():
    """Each run also draws random numbers between its updates, and one run makes no update."""

    class Guess(Agent):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def update(self) -> dict[str, torch.Tensor]:
            return {"drawn": torch.rand(()) + self.weight.detach()}

    def train(seed: int, updates: int, join) -> list[float]:
        torch.manual_seed(seed)
        update = join(Guess().update)
        return [float(value) for _ in range(updates) for value in (update()["drawn"], torch.randn(()))]

    cases = [(5, 3), (6, 3), (7, 0)]
    expected = [train(*case, join=lambda update: update) for case in cases]
    side_by_side = together.Together([seed for seed, _ in cases], torch.device("cpu"))
    join = functools.partial(side_by_side.join, compiles=False)
    found = side_by_side.run([functools.partial(train, *case, join=join) for case in cases])
    assert found == expected


def test_what_is_drawn_between_the_turns_of_runs_moves_none_of_them_on(monkeypatch):
    """As on a GPU, with a stand-in for its generator, which points to a state that others may share."""

    class Generator:
        def __init__(self, state: list[int]) -> None:
            self.state = state

        def clone_state(self) -> "Generator":
            return Generator(list(self.state))

        def graphsafe_get_state(self) -> "Generator":
            return Generator(self.state)

        def graphsafe_set_state(self, other: "Generator") -> None:
            self.state = other.state

        def draw(self) -> int:
            self.state[0] += 1
            return self.state[0]

    generator = Generator([10])
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", [generator])
    runs = [OwnRandomNumbers(torch.device("cuda")) for _ in range(2)]
    drawn: list[list[int]] = [[], [], []]
    for turn in range(4):
        for run, numbers in zip(runs, drawn, strict=False):
            with run:
                numbers += [generator.draw() for _ in range(turn)]
            drawn[2].append(generator.draw())
    assert drawn == [[11, 12, 13, 14, 15, 16]] * 2 + [[*range(11, 19)]]


# --- What is done for every agent at every update ---


def test_dropout_that_is_one_operation_is_drawn_for_each_agent():
    """On a GPU, dropout is a single operation."""

    class Dropped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))

        def update(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            left, kept = torch.native_dropout(self.weight * x, 0.25, True)
            return {"left": left, "gradient": torch.autograd.grad(left.sum(), self.weight)[0], "kept": kept}

    agents, x = [Dropped() for _ in range(2)], torch.arange(1.0, 401)
    program = StackedUpdate(Stack(agents), agents[0].update, ((x,), {}), None)
    torch.manual_seed(0)
    noise = [program.noise() for _ in agents]
    rows = program(noise, [[x], [2 * x]])
    for row, given in zip(rows, (x, 2 * x), strict=True):
        torch.testing.assert_close(row["left"], given * row["kept"] / 0.75)
        torch.testing.assert_close(row["gradient"], row["left"].sum())
        assert 250 < row["kept"].sum() < 350
    assert not torch.equal(rows[0]["kept"], rows[1]["kept"])


def test_leaves_are_what_pytorch_finds():
    batch = Batch(*(torch.zeros(2) for _ in Batch._fields))
    for values in (((batch,), {}), ((batch, True, None), {"delayed": False, "more": [torch.ones(1), (2, {})]})):
        expected, _ = tree_flatten(values)
        found = leaves(values)
        assert len(found) == len(expected)
        assert all(x is y for x, y in zip(found, expected, strict=True))


def test_an_agents_metrics_are_a_row_of_all():
    row = Row({"loss": torch.tensor([1.0, 2.0]), "q": torch.tensor([3.0, 4.0])}, 1)
    assert {name: value.item() for name, value in row.items()} == {"loss": 2, "q": 4}
    kept = {"loss": torch.tensor(9.0), "other": torch.tensor(5.0)}
    kept |= row  # as an algorithm keeps those of the previous update
    assert {name: value.item() for name, value in kept.items()} == {"loss": 2, "other": 5, "q": 4}
    assert (row | {"q": torch.tensor(7.0)})["q"] == 7
    assert ({"q": torch.tensor(7.0)} | row)["q"] == 4
    with pytest.raises(KeyError):
        row["nothing"]
