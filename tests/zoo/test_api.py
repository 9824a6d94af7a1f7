"""`zoo.train`, `zoo.resume`, `zoo.load`, `zoo.evaluate`, `zoo.make_envs`: where they differ from the command line."""

import copy
import gc
import pickle
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import zoo as package
from zoo.data.buffers import ReplayBuffer
from zoo.errors import UsageError
from zoo.runs.tracking import FORMAT
from zoo.settings import registry

SMALL = {"steps": 64, "eval_every": 64, "eval_episodes": 1, "logger": "none"}
SAC = {"hidden": [8], "batch_size": 8, "learning_starts": 16, "buffer_size": 200}


class Own(gymnasium.Env):
    """Episodes of eight steps. Its spaces can be changed, and it can fail when it is closed."""

    size, bound, fails = 2, 1.0, False

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (self.size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-self.bound, self.bound, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.size, np.float32), {}

    def step(self, action):
        return np.zeros(self.size, np.float32), float(action[0]), False, False, {}

    def close(self):
        if self.fails:
            raise RuntimeError("close failed")


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Registers a user's environment. Returns a folder for a run in it."""
    gymnasium.register("Own-v0", entry_point=Own, max_episode_steps=8)
    yield tmp_path / "run"
    del gymnasium.registry["Own-v0"]


def train(run_dir: Path, **settings):
    return package.train("sac", env="Own-v0", run_dir=run_dir, algo_config=SAC, **(SMALL | settings))


def test_a_file_of_ones_own_is_trained_resumed_and_loaded(own: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text((registry.folder("algos") / "sac.py").read_text())
    run = package.train(file=file, env="Own-v0", run_dir=own, algo_config=SAC, **SMALL)
    assert run.record["algorithm"]["file"] == str(file)
    assert package.load(run.dir, file).act(np.zeros(2)).shape == (1,)
    with pytest.raises(UsageError, match="file=") as caught:
        package.load(run.dir)
    assert f"Train it longer: python {file} resume={run.dir} steps=N; " in str(caught.value)
    assert package.make_envs(run.dir, file=file).num_envs == 1


def test_a_file_of_ones_own_may_import_a_module_beside_it(own: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "beside_mine.py").write_text("BOUND = 3\n")
    (tmp_path / "mine.py").write_text(
        (registry.folder("algos") / "sac.py").read_text().replace("import copy\n", "import copy\nimport beside_mine\n")
    )
    algorithm = registry.Algorithm(tmp_path / "mine.py")
    assert algorithm.module.beside_mine.BOUND == 3
    assert sys.path[-1] == str(tmp_path)
    run = package.train(file=algorithm.path, env="Own-v0", run_dir=own, algo_config=SAC, **SMALL)
    assert package.load(run.dir, file=algorithm.path).act(np.zeros(2)).shape == (1,)


@pytest.mark.parametrize(("change", "says"), [({"size": 3}, r"obs_shape \(3,\), not \(2,\)"), ({"bound": 5.0}, "low")])
def test_an_environment_that_has_changed_is_refused(own: Path, monkeypatch, zoo, change, says) -> None:
    train(own)
    for name, value in change.items():
        monkeypatch.setattr(Own, name, value)
    unfinished = torch.load(own / "checkpoint.pt", weights_only=True)
    record = own / "run.json"
    record.write_text(record.read_text().replace('"steps": 64', '"steps": 128').replace('"finished"', '"interrupted"'))
    assert unfinished["step"] == 64
    message = f"env=Own-v0 is not what the agent was trained in: its .*{says}"
    for use in (package.resume, package.make_envs):
        with pytest.raises(UsageError, match=message):
            use(own)
    result = zoo("eval", own)
    assert result.code == 2
    assert "env=Own-v0 is not what the agent was trained in" in result.err


def test_an_environment_that_cannot_be_closed_does_not_undo_the_run(own: Path, monkeypatch) -> None:
    monkeypatch.setattr(Own, "fails", True)
    run = train(own)
    assert run.record["status"] == "finished"
    assert '"status": "finished"' in (own / "run.json").read_text()


def test_a_run_that_is_kept_keeps_no_replay_buffer(own: Path) -> None:
    kept = train(own)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, ReplayBuffer)]
    assert kept.evaluations[-1][0] == 64


def test_it_goes_on_on_another_device_only_where_that_is_asked_for(own: Path, zoo) -> None:
    train(own, device="cpu")
    record = own / "run.json"
    changed = record.read_text().replace('"device": "cpu"', '"device": "cuda:7"').replace('"finished"', '"interrupted"')
    record.write_text(changed)
    with pytest.raises(UsageError, match="device=cuda:7"):
        package.resume(own)
    record.write_text(changed)
    assert "device=cuda:7" in zoo("run", f"resume={own}").err
    resumed = package.resume(own, device="cpu").record
    assert resumed["status"] == "finished"
    assert "continues with device=cpu" in resumed["notes"]
    record.write_text(changed)
    assert zoo("run", f"resume={own}", "device=cpu").code == 0


def test_a_checkpoint_of_a_newer_version_asks_for_an_update(own: Path, zoo) -> None:
    train(own)
    state = torch.load(own / "checkpoint.pt", weights_only=True)
    torch.save(state | {"format": FORMAT + 1}, own / "checkpoint.pt")
    result = zoo("eval", own)
    assert result.code == 1
    assert "was written by a newer version of the zoo. Update this one" in result.err


def test_of_two_threads_one_trains(own: Path, monkeypatch) -> None:
    inside, go_on, ended = threading.Event(), threading.Event(), []
    reset = Own.reset

    def waits(self, *, seed=None, options=None):
        inside.set()
        go_on.wait(30)
        return reset(self, seed=seed, options=options)

    monkeypatch.setattr(Own, "reset", waits)
    other = threading.Thread(target=lambda: ended.append(train(own)))
    other.start()
    assert inside.wait(30)
    with pytest.raises(UsageError, match="another thread of this process trains"):
        train(own.parent / "second")
    go_on.set()
    other.join()
    assert ended[0].record["status"] == "finished"


def test_whole_numbers_are_observed_as_the_policy_takes_them(tmp_path: Path) -> None:
    run = package.train(
        "ppo", env="FrozenLake-v1", run_dir=tmp_path / "run", num_envs=2, **(SMALL | {"steps": 128, "eval_every": 128}),
        algo_config={"num_steps": 32, "minibatches": 1, "epochs": 1, "hidden": [8]},
    )  # fmt: skip
    policy, envs = package.load(run.dir), package.make_envs(run.dir, num_envs=3)
    obs, _ = envs.reset(seed=0)
    assert (obs.shape, obs.sum(1).tolist()) == ((3, 16), [1.0] * 3)
    assert envs.step(policy.act(obs))[0].shape == (3, 16)
    with gymnasium.make("FrozenLake-v1") as env:
        env.reset(seed=0)
        env.step(policy.act(np.eye(16)[0]))  # a number that can be a dictionary key


def test_evaluating_plays_the_episodes_of_the_runs_own_evaluations(own: Path) -> None:
    run = train(own, eval_episodes=3)
    before = torch.get_rng_state()
    _, last = run.evaluations[-1]
    np.testing.assert_array_equal(package.evaluate(own).returns, last.returns)
    assert torch.equal(torch.get_rng_state(), before)
    assert package.evaluate(own, episodes=5, seed=1).lengths.tolist() == [8] * 5
    sampled = package.evaluate(own, deterministic=False).returns
    assert not np.array_equal(sampled, last.returns)
    assert not np.array_equal(sampled, package.evaluate(own, deterministic=True).returns)
    gymnasium.register("Shorter-v0", entry_point=Own, max_episode_steps=5)
    try:
        assert package.evaluate(own, env="Shorter-v0").lengths.tolist() == [5] * 3
    finally:
        del gymnasium.registry["Shorter-v0"]
    with pytest.raises(UsageError, match="env=Shorter-v0 does not exist"):
        package.evaluate(own, env="Shorter-v0")
    with pytest.raises(UsageError, match="keep_agents=true"):
        package.evaluate(own, step="best")
    with pytest.raises(UsageError, match="episodes=0 must be at least 1"):
        package.evaluate(own, episodes=0)
    with pytest.raises(UsageError, match="num_envs=0 must be at least 1"):
        package.make_envs(own, num_envs=0)
    with pytest.raises(UsageError, match="seed=-1 must be at least 0"):
        package.evaluate(own, seed=-1)


def test_what_is_given_in_the_form_of_the_command_line_or_of_others_is_refused_with_the_form_here(own: Path) -> None:
    with pytest.raises(UsageError, match=r"seeds does not exist. It is for `zoo run` alone. In zoo.train: seed=0"):
        train(own, seeds=[0, 1])
    with pytest.raises(UsageError, match=r'in zoo.train, \*\*\{"env.kwargs": \{"NAME": VALUE\}\}'):
        train(own, env_kwargs={"size": 3})
    with pytest.raises(TypeError, match="positional arguments"):
        package.train("ppo", "pendulum")


def test_help_texts_are_the_fields_comments_whatever_letters_come_before(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'class Config:\n    name: str = "ü"  # Größe\n    é: list[int] = field(\n        default_factory=lambda: [\n'
        '            1,  # "ä"\n            2,\n        ]\n    )  # zwei\n    last: int | None = None\n'
    )
    assert registry.settings(tmp_path / "mine.py", "Config") == [
        registry.Setting("name", '"ü"', "Größe"),
        registry.Setting("é", '[\n            1,  # "ä"\n            2,\n        ]', "zwei"),
        registry.Setting("last", "null", ""),
    ]


def test_what_the_package_offers_is_listed_for_completion() -> None:
    assert {"train", "resume", "load", "evaluate", "make_envs"} <= set(dir(package))


def test_policies_are_copied_and_pickled_and_judge_one_action(own: Path) -> None:
    policy = package.load(train(own).dir)
    for other in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        np.testing.assert_array_equal(other.act(np.zeros((4, 2))), policy.act(np.zeros((4, 2))))
    one = policy.expected_return(np.zeros(2), np.full(1, 0.5))
    assert one.shape == ()
    np.testing.assert_allclose(one, policy.expected_return(np.zeros((1, 2)), np.full((1, 1), 0.5))[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("declared", "instead", "says"),
    [
        ('ACTION_SPACES = ("continuous",)', 'ACTION_SPACES = ("continuous")', "ACTION_SPACES is a tuple. Write: "),
        ('ACTION_SPACES = ("continuous",)', 'ACTION_SPACES = ("continous",)', "there are continuous, discrete"),
        ('SETTING = "online"', 'SETTING = "Online"', "SETTING = 'Online' does not exist; there are online, offline"),
        ('DATA = "offline_fraction"', 'DATA = "yes"', "DATA = 'yes' does not exist; there are none, required, "),
        ('SETTING = "online"', "from zoo.algos.sac import SETTING", "must assign SETTING itself in one line"),
        ('SETTING = "online"', "SETTING = str('online')", "must assign SETTING itself in one line"),
        ('ACTION_SPACES = ("continuous",)', "ACTION_SPACES: tuple = []", "ACTION_SPACES = [] does not exist"),
        ('ACTION_SPACES = ("continuous",)', 'ACTION_SPACES = ["continuous"]', "does not exist; there are continuous"),
        ("class SAC(Agent):", "class SAC(Agent:", "is not Python"),
    ],
)  # fmt: skip
def test_what_a_file_declares_is_checked(own: Path, tmp_path: Path, declared: str, instead: str, says: str) -> None:
    source = (registry.folder("algos") / "sac.py").read_text()
    assert declared in source
    (tmp_path / "mine.py").write_text(source.replace(declared, instead))
    with pytest.raises(UsageError) as caught:
        package.train(file=tmp_path / "mine.py", env="Own-v0", run_dir=own, algo_config=SAC, **SMALL)
    assert str(caught.value).startswith(str(tmp_path / "mine.py"))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_file_declares_may_be_annotated(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        'SETTING: str = "online"\nACTION_SPACES: tuple[str, ...] = ("discrete",)\nFRAMES: bool = True\nGOALS: bool\n'
    )
    algorithm = registry.Algorithm(tmp_path / "mine.py")
    assert (algorithm.setting, algorithm.action_spaces) == ("online", ("discrete",))
    assert algorithm.takes_frames("discrete")
    assert not algorithm.takes_goals


def test_files_whose_names_begin_with_an_underscore_are_no_algorithms(tmp_path: Path, monkeypatch) -> None:
    for name in ("__init__", "_helpers", "mine"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setattr(registry, "folder", lambda _: tmp_path)
    assert list(registry.algorithms()) == ["mine"]


def test_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(ImportError, match="Linux or macOS is needed"):
        package.train  # noqa: B018
