"""Evaluations: which actions they use, how they are recorded, and that training does not depend on their number."""

import csv
import json
import re
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import zoo as package
from zoo.algos.bc import BC, Config
from zoo.errors import RunError, UsageError
from zoo.runs.evaluation import IDLE_STEPS, Episodes, evaluate, judged, summary
from zoo.runs.stepper import last_info
from zoo.settings.compose import compose
from zoo.spec import Spec

CARTPOLE = ("env=cartpole", "env.backend=gymnasium", "logger=none", "eval_episodes=3", "seed=2")
SHORT = {
    "dqn": ("algo=dqn", "steps=400", "algo.learning_starts=50", "algo.hidden=[16]", "algo.batch_size=16"),
    "ppo": ("algo=ppo", "steps=384", "algo.num_steps=64", "algo.minibatches=2", "algo.epochs=2", "algo.hidden=[16]"),
}


def weights(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["tracked"]["agent"]


def evaluations(folder):
    with (folder / "evaluations.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("deterministic", ["true", "false"])
@pytest.mark.parametrize("algo", SHORT)
def test_a_run_learns_the_same_however_often_it_is_evaluated(zoo, tmp_path, algo, deterministic):
    for every in (50, 1_000):
        how = (f"eval_every={every}", f"eval_deterministic={deterministic}", f"run_dir={every}")
        result = zoo("run", *CARTPOLE, *SHORT[algo], *how)
        assert result.code == 0, result.err
    often, once = weights(tmp_path / "50"), weights(tmp_path / "1000")
    assert len(evaluations(tmp_path / "50")) > len(evaluations(tmp_path / "1000")) == 1
    for name, value in often.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, once[name]), name
    assert evaluations(tmp_path / "50")[-1] == evaluations(tmp_path / "1000")[-1]


@pytest.mark.parametrize("algo", SHORT)
def test_eval_plays_what_the_runs_last_evaluation_was(zoo, tmp_path, algo):
    assert zoo("run", *CARTPOLE, *SHORT[algo], "eval_deterministic=false", "run_dir=run").code == 0
    played = [zoo("eval", "run", *options) for options in ((), (), ("--explore",), ("--deterministic",))]
    returns = [re.findall(r"episode .* return +(\S+)", result.out) for result in played]
    assert [float(value) for value in returns[0]] == [
        float(value) for value in evaluations(tmp_path / "run")[-1]["returns"].split()
    ]
    assert returns[0] == returns[1] == returns[2] != returns[3]


def test_atari_and_minigrid_are_evaluated_by_chance_by_default():
    pytest.importorskip("envpool")
    evaluated = {
        env: compose(["algo=dqn", f"env={env}"])[0].eval_deterministic
        for env in ("pong", "ALE/Boxing-v5", "MiniGrid-Empty-5x5-v0", "cartpole", "lunarlander")
    }
    assert evaluated == {
        "pong": False, "ALE/Boxing-v5": False, "MiniGrid-Empty-5x5-v0": False, "cartpole": True, "lunarlander": True
    }  # fmt: skip
    assert compose(["algo=dqn", "env=pong", "eval_deterministic=true"])[0].eval_deterministic is True
    assert compose(["algo=dqn", "env=cartpole", "eval_deterministic=false"])[0].eval_deterministic is False


def test_a_runs_record_says_how_it_was_evaluated(zoo, tmp_path):
    for asked, recorded in (((), True), (("eval_deterministic=false",), False)):
        assert zoo("run", *CARTPOLE, *SHORT["dqn"], *asked, f"run_dir={recorded}").code == 0
        config = json.loads((tmp_path / str(recorded) / "run.json").read_text())["config"]
        assert config == yaml.safe_load((tmp_path / str(recorded) / "config.yaml").read_text())
        assert config["eval_deterministic"] is recorded
        assert config["algo"]["eval_epsilon"] == 0.05


def test_a_number_is_not_taken_for_a_switch(zoo):
    result = zoo("run", "algo=dqn", "env=cartpole", "eval_deterministic=0")
    assert result.code == 2
    assert "eval_deterministic takes true or false" in result.err


def test_an_evaluation_says_which_share_of_its_games_were_idle():
    config = compose(["algo=dqn", "env=pong"])[0]
    row = summary(Episodes(np.zeros(4), np.ones(4), idle=np.array([True, False, False, False])), config)
    assert row["idle"] == 0.25
    assert judged(row).endswith("  idle 25%")
    row = summary(Episodes(np.zeros(4), np.ones(4), idle=np.zeros(4, bool)), config)
    assert row["idle"] == 0
    assert "idle" not in judged(row)  # the correct one


class Fuelled(gymnasium.Env):
    """Episodes of 3, 4, 5, 3, ... steps, by the order of their resets; `fuel` is ten times the steps so far."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    resets = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.last = 0, 3 + self.resets % 3
        self.resets += 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == self.last, False, {"fuel": 10 * self.steps, "state": {}}


@pytest.fixture
def fuelled():
    gymnasium.register("Fuelled-v0", Fuelled, max_episode_steps=9)
    yield "env=Fuelled-v0"
    del gymnasium.registry["Fuelled-v0"]


def test_means_of_numbers_in_info_are_logged(zoo, tmp_path, fuelled):
    ppo = ("run", "algo=ppo", "algo.num_steps=12", "algo.minibatches=2", "steps=12", "eval_every=12", "log_every=12")
    settings = ("eval_episodes=2", "logger=none", "compile=false", "run_dir=run")
    result = zoo(*ppo, fuelled, *settings, "info_keywords=[fuel]")
    assert result.code == 0, result.err
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (float(row["episode_length"]), float(row["info_fuel"])) == (4.0, 40.0)  # of 3, 4 and 5 steps
    (row,) = evaluations(tmp_path / "run")
    assert float(row["info_fuel"]) == 10 * float(row["length_mean"]) == 30.0
    assert "  fuel 30" in zoo("eval", "run").out
    assert package.evaluate("run").infos["fuel"].tolist() == [30.0, 30.0]


def test_a_number_that_one_environment_lacks_is_not_taken_for_0():
    info = {"final_info": {"fuel": np.array([0.0, 7.0]), "_fuel": np.array([False, True])}}
    assert [last_info(info, i) for i in range(2)] == [{}, {"fuel": 7.0}]


def test_numbers_in_info_come_from_gymnasium():
    assert compose(["algo=sac", "env=hopper", "info_keywords=[x_position]"])[0].env.backend == "gymnasium"
    for backend in ("envpool", "warp"):
        with pytest.raises(UsageError, match=f"env.backend={backend} passes none on. Type: env.backend=gymnasium"):
            compose(["algo=sac", "env=hopper", "info_keywords=[x_position]", f"env.backend={backend}"])
    with pytest.raises(UsageError, match=r"info_keywords takes a list. Write: info_keywords=\[a,b\]"):
        compose(["algo=sac", "env=hopper", "info_keywords=a,b"])


@pytest.mark.parametrize("name", ["oil", "state"])
def test_what_is_no_number_in_info_is_refused_with_what_there_is(zoo, tmp_path, fuelled, name):
    ppo = ("run", "algo=ppo", "algo.num_steps=12", "algo.minibatches=2", "steps=12", "logger=none", "run_dir=run")
    result = zoo(*ppo, fuelled, f"info_keywords=[{name}]")
    assert result.code == 1
    assert result.err == (f"zoo: info_keywords: {name} is no number in info at an episode's end, which has fuel.\n")


def test_where_there_are_several_tasks_the_successes_of_each_are_counted():
    config, _, _ = compose(["algo=td3", "env=hopper"])
    successes, tasks = np.array([True, False, True, True, False, True]), np.array([1, 2, 3, 1, 2, 3])
    row = summary(Episodes(np.zeros(6), np.ones(6), successes, tasks=tasks), config)
    assert row["success"] == pytest.approx(4 / 6)
    assert [row[f"success_task{number}"] for number in (1, 2, 3)] == [1, 0, 1]
    assert "success_task1" not in summary(Episodes(np.zeros(6), np.ones(6), successes), config)


class Scripted(gymnasium.Env):
    """Returns the given observations and `info`, at the start and later. The last step has reward 1."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, start=0.0, later=0.0, info=None, length=3):
        self.start, self.later, self.info, self.length = start, later, info or {}, length

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.full(2, self.start), self.info

    def step(self, action):
        self.steps += 1
        return np.full(2, self.later), float(self.steps == self.length), False, self.steps == self.length, self.info


def played(**script):
    envs = SyncVectorEnv([partial(Scripted, **script)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    return evaluate(BC(Spec.of(envs.single_observation_space, envs.single_action_space), Config()), envs, 0)


@pytest.mark.parametrize("script", [{"start": np.nan}, {"later": np.inf}, {"start": 1e300}, {"later": 1e300}])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from the conversion to float32
def test_an_observation_that_is_not_finite_ends_an_evaluation_in_one_line(script):
    with pytest.raises(RunError, match="in an evaluation the environment gave an observation or a reward that is NaN"):
        played(**script)


@pytest.mark.parametrize("value", [np.array([True, False, True]), {"name": "reach"}, [1, 2], "reach"])
@pytest.mark.parametrize("name", ["success", "task"])
def test_what_an_environment_says_by_the_same_name_in_another_form_is_not_taken_for_it(name, value):
    episodes = played(info={name: value})
    assert episodes.successes is None
    assert episodes.tasks is None


def test_lives_of_other_environments_than_atari_end_no_episode():
    episodes = played(info={"lives": 3}, length=IDLE_STEPS + 10)
    assert episodes.returns.tolist() == [1, 1]
    assert episodes.idle is None


@pytest.mark.parametrize("name", ["success", "is_success"])
@pytest.mark.parametrize("kind", [bool, np.bool_, int, float, np.float64])
def test_a_success_may_be_said_as_any_number(kind, name):
    class Reaching(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Box(-1, 1, (1,))

        def __init__(self, reaches):
            self.reaches = reaches

        def reset(self, *, seed=None, options=None):
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.steps += 1
            return np.zeros(2, np.float32), 0.0, False, self.steps == 3, {name: kind(self.steps == self.reaches)}

    envs = SyncVectorEnv([partial(Reaching, reaches) for reaches in (0, 1, 3)], autoreset_mode=AutoresetMode.SAME_STEP)
    agent = BC(Spec.of(envs.single_observation_space, envs.single_action_space), Config())
    assert evaluate(agent, envs, 0).successes.tolist() == [False, True, True]
