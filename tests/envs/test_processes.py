"""`env.backend=async`: the same transitions as in one process, and processes that end with the run."""

import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium
import numpy as np
import pytest

from zoo.envs import EnvConfig, make
from zoo.envs.processes import ProcessVectorEnv
from zoo.errors import RunError
from zoo.runs.evaluation import seeds


def _transcript(envs, steps):
    """All that `steps` steps return, the last observations of episodes included."""
    seen = [envs.reset(seed=seeds("training", 0, count=envs.num_envs))[0]]
    envs.action_space.seed(0)
    for _ in range(steps):
        *arrays, info = envs.step(envs.action_space.sample())
        seen += arrays
        if "final_obs" in info:
            seen += [info["_final_obs"], *info["final_obs"][info["_final_obs"]]]
            success = info["final_info"].get("success")
            seen += [] if success is None else [success]
    envs.close()
    return seen


def _assert_same_steps(env_id):
    here, there = (_transcript(make(EnvConfig(env_id, backend=name), 3), 40) for name in ("gymnasium", "async"))
    assert len(here) > 1 + 4 * 40, "no episode ended"
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CartPole-v1", "Hopper-v5"])
def test_steps_in_processes_are_those_in_one_process(env_id):
    _assert_same_steps(env_id)


def test_observations_that_change_in_place_arrive_whole(in_place):
    _assert_same_steps(in_place)


def test_successes_arrive(succeeding):
    _assert_same_steps(succeeding)


def test_dynamics_are_changed_in_processes_too():
    changed, unchanged = (
        _transcript(make(EnvConfig("Hopper-v5", backend="async", gravity=gravity), 2), 3) for gravity in (2.0, 1.0)
    )
    np.testing.assert_array_equal(changed[0], unchanged[0])
    assert not np.array_equal(changed[1], unchanged[1])


def test_atari_games_are_refused():
    with pytest.raises(ValueError, match=r"env.backend=async: Atari games .* Type: env.backend=gymnasium"):
        make(EnvConfig("ALE/Pong-v5", backend="async"), 1)


def test_a_picture_is_drawn_in_this_process():
    envs = make(EnvConfig("CartPole-v1", backend="async"), 1, drawn=True)
    envs.reset(seed=0)
    assert envs.render()[0].ndim == 3
    assert not isinstance(envs, ProcessVectorEnv)


def test_processes_outlive_a_signal_to_the_runs_group_but_not_their_environments(counting):
    envs = make(EnvConfig(counting, backend="async"), 2)
    envs.reset(seed=0)
    for process in envs.processes:
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
        os.kill(process.pid, signal.SIGINT)
    envs.step(envs.action_space.sample())
    envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def test_a_killed_process_ends_the_run_with_one_line_and_leaves_no_other(counting):
    envs = make(EnvConfig(counting, backend="async"), 3)
    envs.reset(seed=0)
    envs.processes[1].kill()
    envs.processes[1].join()
    with pytest.raises(RunError, match=r"process of an environment ended: .* Without processes: env.backend=gymnasium"):
        envs.step(envs.action_space.sample())
    envs.close()
    for process in envs.processes:
        process.join(10)
        assert not process.is_alive()


def test_an_error_of_an_environment_is_raised_here(counting, monkeypatch):
    def fail(self, action):
        raise ArithmeticError("the gripper is jammed")

    monkeypatch.setattr(gymnasium.spec(counting).entry_point, "step", fail)
    envs = make(EnvConfig(counting, backend="async"), 2)
    envs.reset(seed=0)
    with pytest.raises(ArithmeticError, match="the gripper is jammed"):
        envs.step(envs.action_space.sample())
    envs.close()


class Unplugged(gymnasium.Env):
    """Its simulator cannot be reached, in the constructor or in a step."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, at_once):
        if at_once:
            raise ConnectionRefusedError("no simulator answers")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        raise ConnectionRefusedError("no simulator answers")


@pytest.fixture
def unplugged():
    gymnasium.register("Unplugged-v0", Unplugged, max_episode_steps=5)
    yield "Unplugged-v0"
    del gymnasium.registry["Unplugged-v0"]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_lost_connection_of_an_environments_own_is_no_killed_process(unplugged, at_once):
    def first_step():
        envs = make(EnvConfig(unplugged, backend="async", kwargs={"at_once": at_once}), 2)
        try:
            envs.reset(seed=0)
            envs.step(envs.action_space.sample())
        finally:
            envs.close()

    with pytest.raises((ConnectionRefusedError, ValueError), match="no simulator answers"):
        first_step()


def test_each_process_has_random_numbers_of_its_own_outside_the_environments_generator(unplugged):
    envs = make(EnvConfig(unplugged, backend="async", kwargs={"at_once": False}), 4)
    obs, _ = envs.reset(seed=0)
    envs.close()
    assert len(np.unique(obs)) == 4


def test_a_step_that_was_broken_off_is_not_waited_for_at_the_end(counting):
    """As after a second Ctrl-C: some of the answers have been read."""
    envs = make(EnvConfig(counting, backend="async"), 2)
    envs.reset(seed=0)
    envs.step_async(envs.action_space.sample())
    envs.parent_pipes[0].recv()
    closing = threading.Thread(target=envs.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert not any(process.is_alive() for process in envs.processes)


SCRIPT = """
import multiprocessing
import own
from zoo.cli import main

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    main("run algo=sac env=Own-v0 env.backend=async num_envs=2 eval_episodes=2 steps=60 eval_every=30 compile=false "
         "algo.learning_starts=50 algo.hidden=[8] algo.batch_size=8 logger=none run_dir=run".split())
"""
MODULE = """
import gymnasium


class Own(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return action, 1.0, False, False, {}


gymnasium.register("Own-v0", Own, max_episode_steps=5)
"""


@pytest.mark.slow
def test_processes_that_begin_anew_know_an_environment_of_the_users_own(tmp_path):
    """The start method of macOS and Windows."""
    (tmp_path / "own.py").write_text(MODULE)
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=120)
    rows = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["30", "5.0"], ["60", "5.0"]]


def test_processes_die_with_a_killed_run():
    """The last process holds no pipe of the others, so each sees the end of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            envs = make(EnvConfig("CartPole-v1", backend="async"), 3)
            os.write(write, " ".join(str(process.pid) for process in envs.processes).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    pids = [int(pid) for pid in os.read(read, 100).split()]
    assert len(pids) == 3
    until = time.monotonic() + 10
    while any(map(_runs, pids)):
        assert time.monotonic() < until
        time.sleep(0.05)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
