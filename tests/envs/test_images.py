"""Images from any environment: channels first, as bytes or scaled numbers. Ambiguous shapes are refused."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

import zoo
from zoo.envs import EnvConfig, make, make_one
from zoo.errors import UsageError
from zoo.runs.stepper import EnvStepper


class Pictures(gymnasium.Env):
    """Observes samples of a space. An episode has five steps, and the action 1 has reward 1."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, space):
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), float(action), self.count == 5, False, {}


@pytest.fixture
def pictures():
    """`pictures(space)`: the id of an environment with this observation space."""

    def register(space):
        gymnasium.register("Pictures-v0", Pictures, kwargs={"space": space})
        return "Pictures-v0"

    yield register
    gymnasium.registry.pop("Pictures-v0", None)


def bytes_of(*shape):
    return Box(0, 255, shape, np.uint8)


@pytest.mark.parametrize(
    "shape", [(84, 84, 4), (84, 84, 3), (84, 84, 1), (10, 10, 4), (7, 7, 20), (5, 9, 3), (6, 5, 4)]
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, bool])
def test_channels_that_come_last_are_put_first(pictures, shape, dtype):
    env_id = pictures(Box(0, 255 if dtype == np.uint8 else 1, shape, dtype))
    envs, raw = make(EnvConfig(env_id), 2), gymnasium.make(env_id)
    height, width, channels = shape
    assert envs.single_observation_space.shape == (channels, height, width)
    assert envs.single_observation_space.dtype == dtype
    obs, expected = envs.reset(seed=3)[0], raw.reset(seed=3)[0]
    for _ in range(5):
        for channel in range(channels):
            np.testing.assert_array_equal(obs[0, channel], expected[:, :, channel])
        obs, _, _, _, info = envs.step(np.zeros(2, int))
        expected = raw.step(0)[0]
    np.testing.assert_array_equal(info["final_obs"][0][0], expected[:, :, 0])


@pytest.mark.parametrize("shape", [(4, 84, 84), (1, 84, 84), (4, 10, 10), (20, 7, 7), (3, 5, 9), (7,), (5, 4), (3, 3)])
def test_channels_that_come_first_and_vectors_are_left_as_they_are(pictures, shape):
    env_id = pictures(bytes_of(*shape))
    np.testing.assert_array_equal(make_one(env_id).reset(seed=0)[0], gymnasium.make(env_id).reset(seed=0)[0])
    assert make_one(env_id).observation_space.shape == shape


def test_a_grey_image_gets_its_one_channel(pictures):
    env_id = pictures(bytes_of(84, 84))
    assert make_one(env_id).observation_space.shape == (1, 84, 84)
    np.testing.assert_array_equal(make_one(env_id).reset(seed=0)[0][0], gymnasium.make(env_id).reset(seed=0)[0])


REFUSED = {
    "as many channels as cells": (
        bytes_of(10, 10, 10),
        "[10, 10, 10]: which dimension holds",
    ),
    "none the smallest": (bytes_of(7, 5, 9), "[7, 5, 9]: which dimension holds the channels is not clear"),
    "a stack of colour images": (bytes_of(4, 84, 84, 3), "uint8 [4, 84, 84, 3]: an image has 3 dimensions"),
    "floats up to 255": (Box(0, 255, (4, 84, 84), np.float32), "float32 images with values up to 255"),
    "whole numbers up to 255": (Box(0, 255, (84, 84, 4), np.int64), "int64 images with values up to 255"),
    "bytes up to 1": (Box(0, 1, (4, 84, 84), np.uint8), "uint8 images with values up to 1"),
    "no network": (bytes_of(30, 30, 3), "no network is known for frames of [3, 30, 30]"),
}


@pytest.mark.parametrize(("space", "says"), REFUSED.values(), ids=list(REFUSED))
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_images_that_would_be_misread_are_refused_in_one_line(pictures, tmp_path, space, says, algo):
    with pytest.raises(UsageError) as error:
        zoo.train(algo, env=pictures(space), steps=2_048, eval_episodes=1, logger="none", run_dir=tmp_path / "run")
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 1, (4, 84, 84), np.float32), bytes_of(84, 84, 3), bytes_of(96, 72, 3), bytes_of(10, 10, 4),
        Box(-np.inf, np.inf, (3, 84, 84), np.float32),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_learns_from_images_of_any_layout(pictures, tmp_path, space, algo):
    settings = {
        "dqn": {"learning_starts": 20, "batch_size": 4, "buffer_size": 40},
        "ppo": {"num_steps": 16, "minibatches": 2, "epochs": 1},
    }[algo]
    env_id = pictures(space)
    run = zoo.train(
        algo, env=env_id, steps=32, eval_episodes=2, logger="none", run_dir=tmp_path / "run", algo_config=settings
    )
    ((_, episodes),) = run.evaluations
    assert episodes.lengths.tolist() == [5, 5]
    obs, _ = make_one(env_id).reset(seed=0)
    assert zoo.load(run.dir).act(obs).shape == ()


def test_a_replay_of_colour_images_gives_back_what_was_seen(pictures, monkeypatch, tmp_path):
    """Colour images are not stacks of frames: their channels are not those of the previous image."""
    seen, replayed = [], []
    step = EnvStepper.step

    def watched(self, action):
        transition = step(self, action)
        seen.append((transition.obs[0].clone(), transition.next_obs[0].clone()))
        return transition

    def update(self, batch):
        replayed.extend(zip(batch.obs.clone(), batch.next_obs.clone(), strict=True))
        return {}

    monkeypatch.setattr(EnvStepper, "step", watched)
    monkeypatch.setattr("zoo.algos.dqn.DQN.update", update)
    zoo.train(
        "dqn", env=pictures(bytes_of(84, 84, 3)), steps=40, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config={"learning_starts": 30, "batch_size": 4, "buffer_size": 50},
    )  # fmt: skip
    assert len(replayed) >= 16
    for obs, next_obs in replayed:
        assert any(torch.equal(obs, a) and torch.equal(next_obs, b) for a, b in seen)


def test_images_of_envpool_have_their_channels_first_too():
    envpool = pytest.importorskip("envpool")
    raw = envpool.make_gymnasium("CarRacing-v3", num_envs=2, seed=[3, 4])
    envs = make(EnvConfig("CarRacing-v3", backend="envpool", max_episode_steps=3), 2)
    assert envs.single_observation_space == bytes_of(3, 96, 96)
    obs, expected = envs.reset(seed=3)[0], raw.reset()[0]
    for _ in range(3):
        np.testing.assert_array_equal(obs, expected.transpose(0, 3, 1, 2))
        action = envs.action_space.sample()
        obs, _, _, truncated, info = envs.step(action)
        expected = raw.step(action)[0]
    assert truncated.all()
    np.testing.assert_array_equal(info["final_obs"][1], expected[1].transpose(2, 0, 1))
    assert obs.shape == (2, 3, 96, 96)
