"""A truncated episode bootstraps from its true last observation, a terminated one does not: online and offline."""

import gymnasium
import h5py
import numpy as np
import pytest
import torch

from zoo.algos.iql import IQL
from zoo.algos.iql import Config as IQLConfig
from zoo.algos.sac import SAC
from zoo.algos.sac import Config as SACConfig
from zoo.data.batch import gather
from zoo.data.buffers import ReplayBuffer
from zoo.data.dataset import Dataset
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig, make
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec

CPU = torch.device("cpu")


class Stairs(gymnasium.Env):
    """Observes `[number of the episode, step in it]`. Every other episode terminates after its third step.

    The others are truncated by Gymnasium's time limit after their fifth step. The reward is the step.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action):
        self.count += 1
        terminated = self.count == 3 and self.episode % 2 == 0
        return np.array([self.episode, self.count], np.float32), float(self.count), terminated, False, {}


@pytest.fixture
def stairs():
    gymnasium.register("Stairs-v0", Stairs, max_episode_steps=5)
    yield EnvConfig(id="Stairs-v0")
    del gymnasium.registry["Stairs-v0"]


def stairs_by_hand(steps: int) -> list[tuple[float, ...]]:
    """Episode, step, next step, reward, terminated and truncated of each transition of one environment."""
    rows: list[tuple[float, ...]] = []
    episode = step = 0
    while len(rows) < steps:
        terminated = episode % 2 == 0 and step == 2
        truncated = step == 4
        rows.append((episode, step, step + 1, step + 1, terminated, truncated))
        episode, step = (episode + 1, 0) if terminated or truncated else (episode, step + 1)
    return rows


def test_rollout_and_buffer_keep_every_last_observation_and_no_reset_step(stairs):
    stepper = EnvStepper(make(stairs, 2), 0, CPU, lambda *_: None)
    buffer = ReplayBuffer(100, stepper.spec, CPU)
    for _ in range(20):
        buffer.add(stepper.step(stepper.random_action()))
    for env in (0, 1):
        for i, (episode, step, next_step, reward, terminated, truncated) in enumerate(stairs_by_hand(20)):
            at = 2 * i + env
            assert buffer.obs[at].tolist() == [episode, step]
            assert buffer.next_obs[at].tolist() == [episode, next_step]
            assert buffer.reward[at] == reward
            assert (buffer.terminated[at], buffer.truncated[at]) == (terminated, truncated)


def test_sac_bootstraps_at_a_truncation_from_the_last_observation_and_not_at_a_termination(stairs, network):
    stepper = EnvStepper(make(stairs, 1), 0, CPU, lambda *_: None)
    torch.manual_seed(0)
    agent = SAC(stepper.spec, SACConfig(hidden=[16]))
    buffer = ReplayBuffer(100, stepper.spec, CPU)
    for _ in range(20):
        buffer.add(stepper.step(stepper.random_action()))
    rows = np.array(stairs_by_hand(20))
    next_obs = rows[:, [0, 2]]
    batch = gather(buffer, torch.arange(20))

    torch.manual_seed(1)
    noise = torch.randn(20, 1).numpy()
    mean, log_std = np.split(network(agent.actor.net, next_obs), 2, axis=1)
    before = mean + np.exp(log_std) * noise
    log_prob = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - np.tanh(before) ** 2)
    next_q = network(agent.target_critic, np.concatenate([next_obs, np.tanh(before)], 1))[..., 0].min(0)
    soft_value = next_q - log_prob[:, 0]  # the temperature begins at 1
    q = network(agent.critic, np.concatenate([batch.obs, batch.action], 1))[..., 0]

    def loss(bootstraps: np.ndarray) -> float:
        target = rows[:, 3] + 0.99 * bootstraps * soft_value
        return float(0.5 * ((q - target) ** 2).mean(1).sum())

    terminated, truncated = rows[:, 4], rows[:, 5]
    torch.manual_seed(1)
    actual = agent.update(batch)["critic_loss"].item()
    assert actual == pytest.approx(loss(1 - terminated), rel=1e-4)
    assert actual != pytest.approx(loss(1 - np.maximum(terminated, truncated)), rel=1e-2)  # the usual mistake
    assert actual != pytest.approx(loss(np.ones(20)), rel=1e-2)


@pytest.mark.parametrize("with_next_obs", [True, False])
def test_iql_bootstraps_at_a_truncation_from_the_last_observation_and_not_at_a_termination(
    stairs, tmp_path, network, with_next_obs
):
    rows = np.array(stairs_by_hand(24))  # ends with an episode
    assert rows[-1, 4:].any()
    actions = np.random.default_rng(0).uniform(-1, 1, (24, 1))
    with h5py.File(tmp_path / "stairs.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = rows[:, :2], actions, rows[:, 3]
        file["terminals"], file["timeouts"] = rows[:, 4].astype(bool), rows[:, 5].astype(bool)
        if with_next_obs:
            file["next_observations"] = rows[:, [0, 2]]
    kept = (
        np.arange(24) if with_next_obs else np.flatnonzero(rows[:, 5] == 0)
    )  # the file does not have their last observation
    rows, actions = rows[kept], actions[kept]

    arrays, _ = load_arrays(stairs, str(tmp_path / "stairs.hdf5"))
    spec = Spec((2,), (-1.0,), (1.0,))
    data = Dataset(arrays, spec, CPU)
    torch.manual_seed(0)
    agent = IQL(spec, IQLConfig(hidden=[16]))
    with torch.no_grad():
        agent.value[-1].bias.add_(3)  # values far enough from zero to show a difference
    next_value = network(agent.value, rows[:, [0, 2]])[:, 0]
    q = network(agent.critic, np.concatenate([rows[:, :2], actions], 1))[..., 0]

    def loss(bootstraps: np.ndarray) -> float:
        return float(((q - rows[:, 3] - 0.99 * bootstraps * next_value) ** 2).mean())

    actual = agent.update(gather(data, torch.arange(len(rows))))["critic_loss"].item()
    assert actual == pytest.approx(loss(1 - rows[:, 4]), rel=1e-4)
    ends = np.array([i + 1 == len(rows) or rows[i + 1, 0] != rows[i, 0] for i in range(len(rows))])
    assert actual != pytest.approx(loss(~ends), rel=1e-2)  # the usual mistake
    assert actual != pytest.approx(loss(np.ones(len(rows))), rel=1e-2)
