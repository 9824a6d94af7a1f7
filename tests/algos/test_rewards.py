"""`reward_scale` and `reward_shift`: training rewards are rescaled, reported returns are not."""

import json

import h5py
import numpy as np
import pandas as pd
import pytest

import zoo
from zoo.algos.iql import IQL
from zoo.algos.sac import SAC
from zoo.runs.stepper import EnvStepper

SMALL = {"env": "pendulum", "eval_episodes": 1, "eval_every": 10_000, "logger": "none", "log_every": 200}


@pytest.fixture
def rewards_given(monkeypatch):
    """A list of every reward from the training environments."""
    given, begin = [], EnvStepper.__init__

    def recorded(stepper, envs, *others):
        step = envs.step

        def recording(actions):
            result = step(actions)
            given.extend(result[1].tolist())
            return result

        envs.step = recording
        begin(stepper, envs, *others)

    monkeypatch.setattr(EnvStepper, "__init__", recorded)
    return given


@pytest.fixture
def batches(monkeypatch):
    """`batches(agent_class)`: a list to which every batch of the agent's updates is added."""

    def of(agent_class):
        seen, update = [], agent_class.update
        monkeypatch.setattr(agent_class, "update", lambda agent, batch: (seen.append(batch), update(agent, batch))[1])
        return seen

    return of


def test_the_datasets_rewards_and_those_of_online_steps_are_rescaled_alike(
    pendulum_file, tmp_path, batches, rewards_given
):
    seen = batches(IQL)
    zoo.train(
        "iql", **SMALL, dataset=pendulum_file, steps=3, online_steps=50, online_fraction=0.5, run_dir=tmp_path / "run",
        reward_scale=10, reward_shift=-5, algo_config={"hidden": [8], "batch_size": 16, "normalize_reward": False},
    )  # fmt: skip
    with h5py.File(pendulum_file) as file:
        stored = file["rewards"][()]
    assert len(seen) == 53
    for batch in seen[:3]:
        np.testing.assert_allclose(batch.reward, 10 * stored[batch.index] - 5, rtol=1e-5)
    played = np.array(rewards_given)
    for batch in seen[3:]:
        np.testing.assert_allclose(batch.reward[8:], 10 * played[batch.index[8:] - len(stored)] - 5, rtol=1e-5)


def test_returns_that_are_reported_are_of_the_environments_rewards(tmp_path, batches, rewards_given):
    seen = batches(SAC)
    run = zoo.train(
        "sac", **SMALL, steps=200, run_dir=tmp_path / "run", reward_scale=0.5, reward_shift=3,
        algo_config={"hidden": [8], "batch_size": 16, "learning_starts": 150},
    )  # fmt: skip
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert rows.episode_return.iloc[-1] == pytest.approx(sum(rewards_given), rel=1e-5)
    assert run.evaluations[-1][1].returns[0] < 0  # as all of Pendulum's
    rescaled = 0.5 * np.array(rewards_given) + 3
    np.testing.assert_allclose(seen[-1].reward, rescaled[seen[-1].index], rtol=1e-5)


def test_a_range_of_returns_is_that_of_the_rescaled_rewards(pendulum_file, tmp_path, batches):
    """So normalized rewards have a range of 1000, however they were scaled before."""
    seen = batches(IQL)
    for run, scale in (("one", 1), ("ten", 10)):
        zoo.train(
            "iql", **SMALL, dataset=pendulum_file, steps=1, run_dir=tmp_path / run, reward_scale=scale,
            algo_config={"hidden": [8], "normalize_reward": True},
        )  # fmt: skip
    np.testing.assert_allclose(seen[0].reward, seen[1].reward, rtol=1e-5)


@pytest.mark.parametrize(("shift", "noted"), [(-1, True), (1, False)])
def test_a_shift_of_rewards_that_have_its_sign_already_is_reported(shift, noted, pendulum_file, tmp_path):
    zoo.train(
        "iql", **SMALL, dataset=pendulum_file, steps=1, run_dir=tmp_path / "run", reward_shift=shift,
        algo_config={"hidden": [8], "batch_size": 16},
    )  # fmt: skip
    with h5py.File(pendulum_file) as file:
        low = file["rewards"][()].min()
    notes = " ".join(json.loads((tmp_path / "run" / "run.json").read_text()).get("notes", []))
    assert (f"reward_shift=-1 moves rewards that lie in [{low:g}, " in notes) == noted
