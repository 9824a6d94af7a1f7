"""Copies of algorithms: without an importable zoo, each learns the same as the zoo's own run."""

import ast
import csv
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import h5py
import libcst as cst
import numpy as np
import pytest
import torch

from zoo.cli import main
from zoo.commands.copy import standalone
from zoo.copying.attributes import constant_attributes
from zoo.copying.calls import call_sites
from zoo.copying.fold import fold
from zoo.copying.merge import merge
from zoo.copying.names import local_names
from zoo.copying.program import Program
from zoo.copying.settings import known
from zoo.copying.write import formatted, plain, without_clauses, without_sentences
from zoo.envs import spec_of
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.settings.registry import algorithm, algorithms

SMALL = {  # settings for short runs, if an algorithm has them
    "batch_size": 32, "hidden": [32, 32], "learning_starts": 100, "num_steps": 64, "minibatches": 4, "epochs": 2,
    "num_critics": 3, "dynamics_epochs": 40, "dynamics_hidden": [64, 64, 64, 64], "rollout_batch": 50,
    "behavior_epochs": 1, "behavior_hidden": [16, 16], "rollouts": 3, "min_return": -1.0, "width": 16, "context": 5,
    "utd_ratio": 2, "latent_dim": 16, "warmup": 5,
}  # fmt: skip
ONLINE = {  # settings of those whose copies need online steps
    "dsrl": ("online_steps=20",), "expo": ("online_steps=20",),
    "reinflow": ("online_steps=180", "online_starts=64", "algo.num_steps=64", "algo.minibatches=4"),
}  # fmt: skip
ENVIRONMENT = """
import gymnasium, numpy as np

class OneAction(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-2, 2, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = float(self.np_random.uniform(0, 6))
        return self.observe(), {}

    def step(self, action):
        self.time += 0.3
        return self.observe(), float(np.sin(self.time)), bool(self.time > 40), False, {}

    def observe(self):
        return np.array([np.sin(self.time), np.cos(self.time)], np.float32)

gymnasium.register("OneAction-v0", OneAction, max_episode_steps=100)

class Reach(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    observation_space.goal_dim = 2
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.goal = self.np_random.uniform(-1, 1, (2, 2))
        return self.observe(), {}

    def step(self, action):
        self.state += 0.1 * action
        distance = float(np.abs(self.state - self.goal).max())
        return self.observe(), -distance, distance < 0.1, False, {}

    def observe(self):
        return np.concatenate([self.state, self.goal]).astype(np.float32)

gymnasium.register("Reach-v0", Reach, max_episode_steps=30)
"""
OURS = """
import sys, one_action, zoo.nn.layers, zoo.nn.linear
from zoo.cli import main
zoo.nn.layers.is_large = zoo.nn.linear.is_large = lambda *_: False  # products by PyTorch alone, as a copy has them
zoo.nn.layers.FEW = 2**62  # activations likewise
sys.exit(main(["run", *sys.argv[1:]]))
"""
COPY = """
import runpy, sys, one_action
sys.modules |= dict.fromkeys(("zoo", "hydra", "omegaconf", "minari", "tensorboard", "rich", "greenlet"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random episodes in D4RL's layout, and environments with one action and with goals.

    `data.hdf5` is for InvertedPendulum, `discrete.hdf5` for CartPole, `states.hdf5` for the environment with goals.
    """
    folder = tmp_path_factory.mktemp("copies")
    (folder / "one_action.py").write_text(ENVIRONMENT)
    random_episodes("InvertedPendulum-v5", folder / "data.hdf5")
    random_episodes("CartPole-v1", folder / "discrete.hdf5")
    random_walks(folder / "states.hdf5")
    return folder


def random_episodes(env_id: str, path: Path) -> None:
    env = gymnasium.make(env_id, max_episode_steps=20)
    env.action_space.seed(0)
    rows = []
    obs, _ = env.reset(seed=0)
    while len(rows) < 600 or not (rows[-1][4] or rows[-1][5]):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward * (1 + abs(obs[0])), next_obs, terminated, truncated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    with h5py.File(path, "w") as file:
        for name, column in zip(names, zip(*rows, strict=True), strict=True):
            array = np.array(column)
            file[name] = array.astype(np.float32) if array.dtype == np.float64 else array


def random_walks(path: Path) -> None:
    """Thirty episodes of twenty steps, of states without goals."""
    rng = np.random.default_rng(0)
    action = rng.uniform(-1, 1, (30, 20, 2)).astype(np.float32)
    states = np.concatenate([rng.uniform(-1, 1, (30, 1, 2)), 0.1 * action], 1).cumsum(1, dtype=np.float32)
    timeouts = np.zeros((30, 20), bool)
    timeouts[:, -1] = True
    columns = {"observations": states[:, :-1], "actions": action, "rewards": np.zeros((30, 20), np.float32)}
    columns |= {"next_observations": states[:, 1:], "terminals": np.zeros_like(timeouts), "timeouts": timeouts}
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column.reshape(600, *column.shape[2:])


def copied(name: str, folder: Path, *settings: str) -> Path:
    file = folder / f"{name}-{len(settings)}.py"
    assert main(["copy", name, str(file), "--force", *settings]) == 0
    return file


def run(folder: Path, program: str, *arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rows(path: Path) -> list[list[float]]:
    """The step of each evaluation, its mean return, their spread, its mean length, and the value error."""
    with (path / "evaluations.csv").open() as file:
        columns = ("step", "return_mean", "return_std", "length_mean", "value_error")
        return [[float(row[name]) for name in columns if name in row] for row in csv.DictReader(file)]


def learns_the_same(name: str, folder: Path, file: Path, *settings: str) -> None:
    """Runs the zoo and a copy with small settings. Compares evaluations, and weights up to their last bits."""
    chosen = algorithm(name)
    discrete = "continuous" not in chosen.action_spaces
    env = "OneAction-v0" if name == "stream_td" else "CartPole-v1" if discrete else "InvertedPendulum-v5"
    env = "Reach-v0" if chosen.takes_goals else env
    file_of_data = "states.hdf5" if chosen.takes_goals else "discrete.hdf5" if discrete else "data.hdf5"
    fields = {field.name for field in dataclasses.fields(chosen.module.Config)}
    small = SMALL | {"expert": f"2ep:{folder / 'data.hdf5'}"}
    own = {key: value for key, value in small.items() if key in fields}
    online = chosen.setting == "online"
    common = {"steps": 256 if online else 20, "eval_every": 128 if online else 10, "eval_episodes": 2, "seed": 3}
    needed = chosen.takes_data(RunConfig(algo=chosen.module.Config()))
    data = {"dataset": str(folder / file_of_data)} if needed else {}
    where = file.with_suffix("")
    ours = {"env": env, "env.backend": "gymnasium", "compile": "false", "logger": "none", "run_dir": f"{where}-zoo"}
    keys = {**ours, **common, **data, **{f"algo.{key}": value for key, value in own.items()}}
    run(
        folder,
        OURS,
        f"algo={name}",
        *(f"{key}={str(value).replace(' ', '')}" for key, value in keys.items()),
        *settings,
    )
    flags = {"env": env, "run_dir": f"{where}-copy", **common, **data, **own}
    text = file.read_text()
    flags = {key: value for key, value in flags.items() if f"    {key}: " in text}  # the others are fixed in the copy
    words = {key: value if isinstance(value, list) else [value] for key, value in flags.items()}
    run(
        folder,
        COPY,
        str(file),
        *(part for key, values in words.items() for part in (f"--{key.replace('_', '-')}", *map(str, values))),
    )
    expected, found = rows(Path(f"{where}-zoo")), rows(Path(f"{where}-copy"))
    online_steps = sum(int(one.partition("=")[2]) for one in settings if one.startswith("online_steps="))
    assert len(expected) == 2 + online_steps // 10
    np.testing.assert_array_equal(found, expected)
    trained = torch.load(Path(f"{where}-zoo") / "checkpoint.pt", weights_only=True)["tracked"]["agent"]
    learned = torch.load(Path(f"{where}-copy") / "agent.pt", weights_only=True)
    assert learned.keys() <= trained.keys()
    for key, value in learned.items():
        torch.testing.assert_close(value, trained[key], rtol=0, atol=1e-6, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms())
def test_a_copy_learns_what_the_zoo_learns(name: str, folder: Path) -> None:
    settings = ONLINE.get(name, ())
    file = copied(name, folder, *settings)
    learns_the_same(name, folder, file, *settings)
    cache = folder.parent / "mypy"
    for command in (
        ["ruff", "check", "--isolated", "--line-length", "120"],
        ["ruff", "format", "--isolated", "--line-length", "120", "--check"],
        ["mypy", "--ignore-missing-imports", "--cache-dir", cache],
    ):
        done = subprocess.run([sys.executable, "-m", *command, file], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    text = file.read_text()
    assert "elif layer_norm" not in text
    fields = re.findall(r"^    index: Tensor", text, re.MULTILINE)
    assert not fields or re.search(r"\.index\b", text)
    tree = ast.parse(text)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        assert {inner.name for inner in function.body if isinstance(inner, ast.FunctionDef)} <= named
    lines = len(text.splitlines())
    print(f"{name}: {lines} lines")
    assert lines < {"iql": 450, "sac": 400, "ppo": 500}.get(name, 1200)


def test_a_module_in_the_working_directory_does_not_format_a_copy(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "ruff.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert formatted("x  =  1\n") == "x = 1\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"Give wider ones: algo.hidden=[32,32]."', '"Give wider ones: --hidden 32 32."'),
        ('f"algo.bounds=[{math.floor(low)},{math.ceil(high)}]"', 'f"--bounds {math.floor(low)} {math.ceil(high)}"'),
        ("# to stitch: [0,0.5,0.5]", "# to stitch: 0 0.5 0.5"),
        ("by sampling: `eval_deterministic=false`.", "by sampling: `--no-eval-deterministic`."),
        ("`zoo run algo=sac algo.tau=0.1`, or `algo.tau=0.2`", "`zoo run algo=sac algo.tau=0.1`, or `--tau 0.2`"),
        ("`zoo run`, `algo.tau=1`, `zoo run algo.tau=1`", "`zoo run`, `--tau 1`, `zoo run algo.tau=1`"),
        ("The docstring of `zoo.streaming`.", "The docstring of rl-zoo's `zoo.streaming`."),
        ("x = [a, b]", "x = [a, b]"),
        ('ValueError(f"sampler.alpha={self.alpha} must be', 'SystemExit(f"--sampler-alpha {self.alpha} must be'),
        ("    x = 1\n\n    # --- Steps ---\n\n    y = 2", "    x = 1\n\n    y = 2"),
        ('f"{n} actions. "\n    "Try: env=series/hopper"', 'f"{n} actions."'),
        ("x  # [B, A] or [B]", "x  # [B, A]"),
        ("gymnasium.spaces.Discrete  # [N, A] float32, or [N] int64", "gymnasium.spaces.Discrete  # [N] int64"),
        ("with continuous or discrete actions", "with continuous actions"),
        ("transitions, sampled with replacement by the sampler.", "transitions, sampled uniformly with replacement."),
        ("# gradient updates offline, environment steps online", "# gradient updates"),
        ("def envs(  # gradient updates offline, environment steps online", "def envs(  # environment steps"),
    ],
)  # fmt: skip
def test_what_a_file_says_is_typed_as_the_file_takes_it(text: str, expected: str) -> None:
    assert plain(text) == expected


def program(text: str) -> Program:
    """A program of these definitions alone."""
    made = Program.__new__(Program)
    made.known, made.decided, made._settled = {}, set(), set()
    made.definitions = {node.name.value: node for node in cst.parse_module(text).body}  # type: ignore[union-attr]
    return made


def test_a_method_of_numpy_or_a_setting_is_not_a_mention_of_a_method_of_that_name() -> None:
    methods = "class Data:\n    def add(self, x): ...\n    def fit(self, x): ...\n"
    train = "def train(data, config):\n    np.add.reduceat(x)\n    if config.fit:\n        data.fit(1)\n"
    assert not call_sites(program(methods + train))[1]
    assert call_sites(program(methods + train + "    data.add\n"))[1] == {("Data", "add")}


@pytest.mark.parametrize(
    ("update", "reader", "kept"),
    [
        ("self.x, self.scale = self.x * f, self.scale * f", "pass", False),
        ("self.x, self.scale = self.x * f, self.next(self.scale)", "pass", True),
        ("self.x, self.scale = self.x * f, self.scale * f", "data.scale", True),
    ],
)
def test_an_attribute_that_only_its_own_update_reads_is_removed(update: str, reader: str, kept: bool) -> None:
    data = "class Data:\n    def __init__(self, x):\n        self.x, self.scale = x, y\n"
    times = f"    def times(self, f):\n        {update}\n"
    made = program(f"{data}{times}def train(data):\n    data.x\n    {reader}\n")
    constant_attributes(made)
    assert ("self.scale" in made.source()) == kept
    assert "self.x" in made.source()


def test_the_spec_of_an_environment_is_not_that_of_an_agent() -> None:
    agent = "class Agent:\n    def __init__(self, spec):\n        self.spec, self.net = spec, 1\n"
    run = "class Run:\n    def limit(self):\n        return self.eval_envs.envs[0].spec\n"
    made = program(agent + run)
    constant_attributes(made)
    assert "self.spec" not in made.source()


def test_a_base_class_is_merged_though_a_docstring_has_its_name() -> None:
    heir = 'class DiffusionPolicy(Diffusion):\n    """As in Diffusion-QL."""\n    def act(self): ...\n'
    made = program("class Diffusion(nn.Module):\n    def noise(self): ...\n" + heir)
    merge(made)
    assert list(made.definitions) == ["DiffusionPolicy"]
    assert "class DiffusionPolicy(nn.Module)" in made.source()


def test_a_name_that_is_only_returned_is_left_out() -> None:
    made = program("def f(x):\n    y: Tensor = x.sqrt()\n    return y\n")
    local_names(made)
    assert made.source() == "def f(x):\n    return x.sqrt()\n"


def test_streaming_algorithms_have_one_environment() -> None:
    config, chosen, _ = compose(["algo=stream_q", "env=CartPole-v1"])
    facts = known(config, chosen, spec_of(config.env), set())
    assert fold(cst.parse_module("n = config.num_envs"), facts, lambda name: None).code == "n = 1"


def test_what_a_file_says_of_online_settings_that_it_lacks_is_left_out() -> None:
    docstring = "Title.\n\nFirst it learns, et al. 2023. Then\n`online_steps=10` go on: `online_fraction=0.5`. Last.\n"
    assert without_sentences(docstring, {"online_steps", "online_fraction"}) == docstring
    assert without_sentences(docstring, {"online_steps"}) == "Title.\n\nFirst it learns, et al. 2023. Last.\n"
    comment = "  # falls to 0; by a cosine, unless there are online_steps"
    assert without_clauses(comment, {"online_steps"}) == comment
    assert without_clauses(comment, set()) == "  # falls to 0; by a cosine"


def test_the_number_of_a_chosen_sampler_is_a_setting() -> None:
    text = standalone("bc", ["sampler=top", "sampler.fraction=0.5"])
    assert re.search(r"^    sampler_fraction: float = 0.5  # ", text, re.MULTILINE)
    assert "SamplerConfig(fraction=config.sampler_fraction)" in text.replace("self.config", "config")
    assert "sampler_alpha" not in text


@pytest.mark.slow
def test_chosen_settings(folder: Path) -> None:
    """The chosen settings decide what is in the file, and both learn the same."""
    settings = ("sampler=top", "sampler.fraction=0.5", "algo.policy=deterministic", "algo.value_head=huber")
    settings += ("algo.expectile=0.8", "env=inverted_pendulum")
    file = copied("iql", folder, *settings)
    text = file.read_text()
    assert "class DeterministicPolicy" in text
    assert "GaussianPolicy" not in text
    assert "expectile: float = 0.8" in text
    assert "value_head:" not in text
    learns_the_same("iql", folder, file, *settings[:-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head"), [("iql", "hl_gauss"), ("dqn", "c51"), ("td3", "two_hot"), ("ppo", "hl_gauss")]
)
def test_value_heads_that_are_distributions(folder: Path, name: str, head: str) -> None:
    setting = f"algo.value_head={head}"
    file = copied(name, folder, setting)
    assert "PER_RUN" not in file.read_text()
    learns_the_same(name, folder, file, setting)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("stream_q", "algo.optimizer=adam"),
        ("stream_ac", "algo.optimizer=adaptive_obgd"),
        ("reinflow", "algo.noise=fixed"),
    ],
)
def test_choices_that_are_not_the_default(folder: Path, name: str, setting: str) -> None:
    settings = (setting, *ONLINE.get(name, ()))
    learns_the_same(name, folder, copied(name, folder, *settings), *settings)


@pytest.mark.slow
def test_without_updates_before_it_goes_online_it_is_evaluated_first(folder: Path) -> None:
    file = copied("awac", folder, "online_steps=16")
    small = ("--eval-every", "8", "--eval-episodes", "1", "--batch-size", "8", "--hidden", "8", "--steps", "0")
    data = ("--dataset", str(folder / "data.hdf5"), "--env", "InvertedPendulum-v5")
    run(folder, COPY, str(file), *data, *small, "--run-dir", "at-once")
    assert [row[0] for row in rows(folder / "at-once")] == [0, 8, 16]


@pytest.mark.slow
def test_columns_and_discrete_actions_as_floats_are_read_as_the_zoo_reads_them(folder: Path) -> None:
    with h5py.File(folder / "discrete.hdf5") as plain, h5py.File(folder / "columns.hdf5", "w") as columns:
        for key, array in plain.items():
            values = array[()].astype(np.float32) if key == "actions" else array[()]
            columns[key] = values[:, None] if key in ("rewards", "terminals", "timeouts") else values
    file = copied("bcq", folder)
    small = ("--steps", "4", "--eval-every", "4", "--eval-episodes", "1", "--batch-size", "8", "--hidden", "8")
    for name in ("discrete", "columns"):
        run(folder, COPY, str(file), *small, "--dataset", f"{name}.hdf5", "--run-dir", f"of-{name}")
    of_plain, of_columns = (
        torch.load(folder / f"of-{name}" / "agent.pt", weights_only=True) for name in ("discrete", "columns")
    )
    for key, value in of_plain.items():
        assert torch.equal(of_columns[key], value), key


@pytest.mark.slow
def test_settings_that_may_be_none_and_the_best_of_episodes(folder: Path) -> None:
    for name, chosen, flags in (
        ("cql", (), ("--subset", "2", "--num-critics", "3")),
        ("cql", (), ("--subset", "none")),
        ("bc", ("sampler=return",), ("--top-fraction", "0.5")),
    ):
        file = copied(name, folder, *chosen)
        small = ("--steps", "2", "--eval-every", "2", "--eval-episodes", "1", "--batch-size", "8", "--hidden", "8")
        data = ("--dataset", str(folder / "data.hdf5"), "--env", "InvertedPendulum-v5")
        run(folder, COPY, str(file), *data, *small, *flags, "--run-dir", f"{file}-{'-'.join(flags)}")


@pytest.mark.slow
def test_goes_on_online(folder: Path) -> None:
    settings = ("online_steps=40", "online_starts=10")
    learns_the_same("awac", folder, copied("awac", folder, *settings), *settings)


@pytest.mark.slow
def test_update_shows_what_has_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copied("bc", folder)
    text = file.read_text()
    assert main(["copy", "--update", str(file)]) == 0
    assert "nothing has changed" in capsys.readouterr().out
    old = text.replace("batch_size: int = 256", "batch_size: int = 64").replace("content ", "content 0")
    file.write_text(old[: old.index("content 0") + 20] + old[old.index("content 0") + 21 :])
    assert main(["copy", "--update", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "-    batch_size: int = 64" in shown
    assert "+    batch_size: int = 256" in shown
    assert main(["copy", "--update", str(file), "--force"]) == 0
    assert file.read_text() == text


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "mine.py"
    taken.write_text("mine")
    binary, cut = tmp_path / "agent.pt", tmp_path / "cut.py"
    binary.write_bytes(b"\xff\xfe\x80")
    cut.write_text(standalone("bc", []).replace("`zoo copy bc", "`zoo copy bc 'lost", 1))
    for arguments, message in (
        (["iql"], "give an algorithm and a file"),
        (["iql", str(taken)], "mine.py exists. Take another name, or replace it with --force."),
        (["iql", "env=hopper"], "The file comes first"),
        (["tqc.py", "new.py"], "tqc.py is a file. zoo copy takes the zoo's algorithms by name: zoo copy iql my_iql.py"),
        (["tqc.py"], "tqc.py is a file."),
        (["iqll", "new.py"], "iql"),
        (["iql", "new.py", "compile=true"], "copies do not have"),
        (["iql", "new.py", "corruption=random-obs"], "cannot be copied"),
        (["ppo", "new.py", "env=minatar/breakout"], "vectors"),
        (["stream_td", "new.py", "env=series/hopper"], "env=series/hopper is not made by gymnasium.make alone"),
        (["stream_td", "new.py", "env=cartpole"], "stream_td predicts and does not act"),
        (["sac", "new.py", "env=cartpole"], "sac needs continuous actions"),
        (["iql", "new.py", "algo.value_head=foo"], "algo.value_head=foo does not exist"),
        (["sac", "new.py", "env=PointMaze_UMaze-v3"], "env=PointMaze_UMaze-v3 is not made by gymnasium.make alone"),
        (["ppo", "new.py", "env=Taxi-v4"], "env=Taxi-v4 is not made by gymnasium.make alone"),
        (["iql", f"{tmp_path / 'none'}/"], "none/ is not a folder. Make it first: mkdir -p "),
        (["iql", str(tmp_path / "no" / "new.py")], f"the folder {tmp_path / 'no'} does not exist."),
        (["iql", "new.py", "log_every=5"], "copies do not have"),
        (["iql", "new.py", "info_keywords=[a]"], "info_keywords is a setting of `zoo run` that copies do not have"),
        (["iql", "new.py", "env.kwargs.a=1"], "env.kwargs.a is a setting of `zoo run` that copies do not have"),
        (["iql", "new.py", "env.changed_in=training"], "copies do not have"),
        (["dsrl", "new.py"], "only clones the data. Type: zoo copy dsrl FILE online_steps=50000"),
        (["iql", "new.py", "algo=sac"], "the algorithm is iql. Leave algo out."),
        (["iql", "new.py", "dataset=a.hdf5+b.hdf5"], "dataset=a.hdf5+b.hdf5: a copy learns from an HDF5 file"),
        (["iql", "new.py", "dataset=10%a.hdf5"], "Leave out 10%"),
        (["recoil", "new.py", "sampler=top"], "sampler= cannot be copied with recoil"),
        (["recoil", "new.py", "algo.expert=medium"], "algo.expert=medium: a copy learns from an HDF5 file"),
        (["iql", "new.py", "env=hopper", "dataset=demo"], "dataset=demo: a copy learns from an HDF5 file"),
        (["--update", str(taken)], "is not a copy"),
        (["--update", str(binary)], "is not a copy"),
        (["--update", str(cut)], "is not a copy"),
        (["--update", str(tmp_path / "none.py")], "cannot be read"),
    ):
        assert main(["copy", *arguments]) != 0, arguments
        error = capsys.readouterr().err
        assert message in error, arguments
        assert error.count("\n") == 1, error
    assert taken.read_text() == "mine"
    assert not Path("new.py").exists()


def test_the_algorithm_may_be_given_as_a_setting(tmp_path: Path) -> None:
    assert main(["copy", "algo=bc", str(tmp_path)]) == 0
    text = (tmp_path / "bc.py").read_text()
    assert text.split('"""')[2].startswith("\n\n# Copied by `zoo copy bc` from")
    assert "ampler" not in text  # it samples uniformly


@pytest.mark.slow
def test_help_explains_settings_and_shows_a_default_with_a_percent_sign(folder: Path) -> None:
    shutil.copy(folder / "data.hdf5", folder / "50%s.hdf5")
    file = copied("bc", folder, "env=InvertedPendulum-v5", f"dataset={folder / '50%s.hdf5'}")
    wide = os.environ | {"COLUMNS": "999"}
    shown = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, env=wide)
    assert shown.returncode == 0, shown.stderr
    options = " ".join(shown.stdout.split())
    assert f"an HDF5 file in D4RL's layout (default {folder / '50%s.hdf5'})" in options
    assert "--batch-size BATCH_SIZE transitions per update (default 256)" in options
    file = copied("ppo", folder, "algo.hidden=[64,64,64,64]")  # a default of several lines
    shown = subprocess.run([sys.executable, file, "--help"], capture_output=True, text=True, env=wide, check=True)
    assert "widths of the tanh layers of actor and critic each (default [64, 64, 64, 64])" in " ".join(
        shown.stdout.split()
    )


@pytest.mark.slow
def test_data_that_do_not_fit_are_refused_in_one_line(folder: Path) -> None:
    file = copied("td3_bc", folder, "env=InvertedPendulum-v5")
    other = "have another shape than the environment's"
    for name, field, change, says in (
        ("ends", "timeouts", np.zeros_like, "it does not say where its episodes end. Mark these rows in its timeouts"),
        ("actions", "actions", lambda x: x.repeat(2, 1), f"its actions {other}"),
        ("wide", "observations", lambda x: x.repeat(2, 1), f"its observations {other}"),
    ):
        with h5py.File(folder / "data.hdf5") as data, h5py.File(folder / f"{name}.hdf5", "w") as changed:
            for key in data:
                changed[key] = change(data[key][()]) if key.endswith(field) else data[key][()]
        command = [sys.executable, file, "--dataset", folder / f"{name}.hdf5", "--run-dir", name, "--steps", "10"]
        result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert (result.returncode, result.stderr.strip()) == (1, f"--dataset: {says}")


@pytest.mark.slow
def test_environments_and_devices_that_are_not_there_are_refused_in_one_line(folder: Path) -> None:
    file = copied("bc", folder, "env=InvertedPendulum-v5")
    for given, says in ((("--env", "Hoper-v5"), "Did you mean: `Hopper`?"), (("--device", "gpu"), "gpu")):
        result = subprocess.run([sys.executable, file, *given], capture_output=True, text=True, cwd=folder)
        assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
        assert result.stderr.startswith("--env, --device or --threads: ")
        assert result.stderr.strip().endswith(says)


@pytest.mark.slow
def test_a_module_may_be_named_that_registers_the_environment(folder: Path) -> None:
    file = copied("stream_td", folder)
    command = [sys.executable, file, "--env", "one_action:OneAction-v0", "--steps", "50", "--run-dir", "of-module"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": "."})
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_run_that_diverges_fails(folder: Path) -> None:
    file = copied("bc", folder, "env=InvertedPendulum-v5", f"dataset={folder / 'data.hdf5'}")
    settings = ("--steps", "40", "--eval-every", "20", "--eval-episodes", "1", "--lr", "1e30", "--run-dir", "diverged")
    result = subprocess.run([sys.executable, file, *settings], capture_output=True, text=True, cwd=folder)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "The run diverged before step 20.")
    assert not (folder / "diverged" / "agent.pt").exists()
    assert (folder / "diverged" / "evaluations.csv").exists()


@pytest.mark.slow
def test_metrics_that_come_after_the_first_evaluation_have_their_columns(folder: Path) -> None:
    file = copied("sac", folder, "env=pendulum")
    small = ("--steps", "256", "--eval-every", "64", "--eval-episodes", "1", "--batch-size", "8", "--hidden", "8")
    run(folder, COPY, str(file), *small, "--learning-starts", "100", "--run-dir", "late")
    with (folder / "late" / "evaluations.csv").open(newline="") as written:
        header, *rows = csv.reader(written)
    assert header[:4] == ["step", "return_mean", "return_std", "length_mean"]
    assert "q" in header
    assert [len(row) for row in rows] == [len(header)] * 4
    assert rows[0][header.index("q")] == ""
    assert all(rows[i][header.index("q")] for i in (1, 2, 3))


@pytest.mark.slow
def test_a_copy_without_its_dataset(folder: Path) -> None:
    file = copied("bc", folder)
    whole = (folder / "data.hdf5").read_bytes()
    (folder / "cut.hdf5").write_bytes(whole[: len(whole) // 2])
    (folder / "nan.hdf5").write_bytes(whole)
    with h5py.File(folder / "nan.hdf5", "r+") as file_of_nan:
        file_of_nan["rewards"][3] = np.nan
    for flags, message in (
        (["--dataset", "cut.hdf5"], "--dataset cut.hdf5 cannot be read"),
        (["--env", "Hopper-v5", "--dataset", "data.hdf5"], "another shape than the environment's"),
        ([], "--dataset FILE: give a file that exists"),
        (["--dataset", "nan.hdf5"], "nan.hdf5: its fields are empty, of different sizes, or hold NaN"),
        (["--dataset", "none.hdf5"], "--dataset none.hdf5: give a file that exists"),
        (["--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["--env", "CartPole-v1"], "which this algorithm cannot take"),
    ):
        done = subprocess.run([sys.executable, file, *flags], cwd=folder, capture_output=True, text=True)
        assert done.returncode != 0
        assert message in done.stderr
        assert "Traceback" not in done.stderr
