"""The code that may read the device: at the start of a run, or between many updates; see `strict_device`."""

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
import torch
from examples import make
from examples_on_device import CONTINUOUS, FRAMES, dataset, dynamics, transition
from strict_device import DEVICE, StrictDeviceError, moved, on_device, strict

from zoo.data.batch import Transition
from zoo.data.buffers import FrameBuffer
from zoo.data.samplers import SamplerConfig, Weighted
from zoo.models.dynamics import TERMINATIONS, model_rollouts
from zoo.models.imagined import Imagined, Kept
from zoo.nn.heads import TwoHot
from zoo.returns import ReturnToGo
from zoo.settings.registry import algorithm

READERS: dict[str, tuple[str, Callable[[], None]]] = {}  # by qualified name: why it may read, and a call


def may_read(name: str, why: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Adds a function to the list. The decorated test calls it under `strict`."""

    def listed(call: Callable[[], None]) -> Callable[[], None]:
        READERS[name] = (why, call)
        return call

    return listed


# --- Before the first update ------------------------------------------------------------------------------------------


@may_read("Dataset.normalize_reward", "the rewards' scale is reported, and kept for online steps")
def normalize_reward():
    data = dataset()
    with strict():
        data.normalize_reward()


@may_read("Dataset.value_bounds", "the support of categorical heads is checked and reported")
def value_bounds():
    data = dataset()
    with strict():
        data.value_bounds(0.99)


@may_read("Dataset.timesteps", "episodes have different lengths")
def timesteps():
    data = dataset()
    with strict():
        data.timesteps()


@may_read("top_weights", "that all episodes return the same is refused")
def best_episodes():
    data = dataset()
    with strict():
        data.use(SamplerConfig("top"))


@may_read("Dataset.top_episodes", "how many transitions are left depends on the episodes")
def top_episodes():
    data = dataset()
    with strict(), mock.patch("zoo.data.dataset.top_weights", lambda returns, _: torch.ones_like(returns)):
        data.top_episodes(0.5)


@may_read("Weighted.__init__", "the table of the alias method is made on the CPU")
def alias_table():
    data = dataset()
    with strict():
        Weighted(data.episode_starts, data.episode_lengths, torch.ones_like(data.episode_returns))


@may_read("initial_values", "the regression that takes any data is the CPU's")
def initial_values():
    data = dataset()
    with strict():
        data.use(SamplerConfig("advantage"))


@may_read("tempered", "weights that cannot be sampled by are refused")
def tempered():
    data = dataset()
    with strict():
        data.use(SamplerConfig("return"))


@may_read("ReturnToGo.set_target", "the target is checked and reported")
def set_target():
    goal, returns = moved(ReturnToGo()), dataset().episode_returns
    with strict():
        goal.set_target(None, returns)


@may_read("EnsembleDynamics.finish", "the members are judged, and the error is reported")
def finish():
    model = dynamics()
    with strict():
        model.finish()


# --- Between many updates ---------------------------------------------------------------------------------------------


@may_read("EnsembleDynamics.epoch", "a model that diverges is noticed: once an epoch, whose losses are logged then")
def epoch():
    model = dynamics()
    with strict():
        model.epoch()


@may_read("EnsembleDynamics.converged", "whether another epoch follows")
def converged():
    model = dynamics()
    with strict():
        _ = model.converged


@may_read("model_rollouts", "an episode that ended goes no further: once an imagined step, for thousands of updates")
def imagine():
    agent, obs = moved(make(algorithm("mopo"), CONTINUOUS)), on_device(torch.randn(8, 3))
    with strict():
        list(model_rollouts(agent, obs, 2, TERMINATIONS["Hopper"]))


@may_read("Kept.add", "imagined episodes that are kept go to the CPU: once a round of rollouts")
def keep():
    obs, action, reward, next_obs, terminated, _ = (x[:, None] for x in transition(CONTINUOUS))
    steps = Imagined(obs, action, reward, next_obs, terminated, ~terminated)
    with strict():
        Kept(0.0, (0.0, 1.0)).add(steps)


@may_read("PPO.prepare", "only where an episode was cut is its successor's value computed: once a rollout")
def prepare():
    agent, rollout = moved(make(algorithm("ppo"), CONTINUOUS)), Transition(*(x[None] for x in transition(CONTINUOUS)))
    with strict():
        agent.prepare(rollout)


@may_read("TwoHot.update_support", "it follows the returns: once an environment step, which the action is read for")
def update_support():
    head, reward = moved(TwoHot(None, None, 11, discount=0.99)), on_device(torch.ones(1, 2))
    with strict():
        head.update_support(reward, reward > 2)


@may_read("FrameBuffer.add", "where it is not told which episodes ended; training loops tell it")
def add_frames():
    buffer, step = FrameBuffer(9, FRAMES, DEVICE, num_envs=2), transition(FRAMES)
    with strict():
        buffer.add(step)


@may_read("FrameBuffer.rows", "a frame that several transitions have is written to a file once: once a checkpoint")
def rows():
    buffer = FrameBuffer(9, FRAMES, DEVICE, num_envs=2)
    buffer.add(transition(FRAMES), np.zeros(2, dtype=bool))
    with strict():
        buffer.rows(0, 2)


@pytest.mark.parametrize("name", READERS)
def test_what_may_read_the_device_does(name):
    """Otherwise it would not need to be on the list, so this keeps the list correct."""
    _, call = READERS[name]
    with pytest.raises(StrictDeviceError, match=rf", in {name}: "):
        call()
