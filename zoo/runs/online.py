"""Offline algorithms that go on in the environment: `online_steps=`."""

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from zoo.agent import Metrics
from zoo.data.batch import Batch, Transition, either, mixed
from zoo.data.buffers import ReplayBuffer
from zoo.nn import Normalizer

if TYPE_CHECKING:
    from zoo.data.dataset import Dataset
    from zoo.runs.run import Run


class Learner(Protocol):
    """An agent that learns from transitions."""

    normalizer: Normalizer

    def act(self, obs: Tensor, explore: bool = False) -> Tensor: ...
    def update(self, batch: Batch) -> Metrics: ...


def learn_online(run: "Run", agent: Learner, data: "Dataset", batch_size: int) -> None:
    """Acts, exploring, and learns after each step from the dataset and what has been collected.

    A batch is sampled from both together, every transition with the same probability, as if they were one buffer (Nair
    et al. 2020, arXiv 2006.09359, section IV-D). With `online_fraction` that share of it is of what has been collected,
    however little that is: a half in Ball et al. 2023 (RLPD, arXiv 2302.02948) and in Cal-QL (arXiv 2303.05479).
    What is collected is normalized and scaled as the dataset was.
    """
    if not run.config.online_steps:
        return
    envs = run.envs()
    buffer = ReplayBuffer(max(run.config.online_steps, envs.num_envs), envs.spec, run.device)
    run.track(online_buffer=buffer)
    for step in run.online_steps():
        obs, action, reward, next_obs, *ended = envs.step(agent.act(envs.obs, explore=True))
        reward = reward * data.reward_scale
        buffer.add(Transition(agent.normalizer(obs), action, reward, agent.normalizer(next_obs), *ended))
        if step - run.config.steps >= run.config.online_starts:
            for _ in range(envs.num_envs):  # one update an environment step
                metrics = agent.update(sample(data, buffer, batch_size, run.config.online_fraction))
            run.log(metrics)


def sample(data: "Dataset", buffer: ReplayBuffer, batch_size: int, online_fraction: float | None) -> Batch:
    """A batch of the dataset, sampled by its sampler, and of the buffer."""
    if online_fraction is not None:
        online = round(online_fraction * batch_size)
        return mixed(data.sample(batch_size - online), buffer.sample(online))
    collected = torch.rand(batch_size, device=data.device) < buffer.size / (buffer.size + len(data))
    return either(collected, buffer.sample(batch_size), data.sample(batch_size))
