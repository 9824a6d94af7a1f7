"""Offline algorithms that go on in the environment: `online_steps=`."""

from typing import Protocol

from torch import Tensor

from zoo.agent import Metrics
from zoo.buffers import Batch, ReplayBuffer, Transition, mixed
from zoo.datasets import Dataset
from zoo.nn import Normalizer
from zoo.run import Run


class Learner(Protocol):
    """An agent that learns from transitions."""

    normalizer: Normalizer

    def act(self, obs: Tensor, explore: bool = False) -> Tensor: ...
    def update(self, batch: Batch) -> Metrics: ...


def learn_online(run: Run, agent: Learner, data: Dataset, batch_size: int) -> None:
    """Acts, exploring, and after each step learns from a batch of which half is the dataset's and half its own.

    Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data" (RLPD, arXiv 2302.02948), section 4.1.
    What is collected is normalized and scaled as the dataset was.
    """
    if not run.config.online_steps:
        return
    envs = run.envs()
    buffer = run.track(ReplayBuffer(max(run.config.online_steps, envs.num_envs), envs.spec, run.device))
    half = batch_size // 2
    for _ in run.online_steps():
        obs, action, reward, next_obs, *ended = envs.step(agent.act(envs.obs, explore=True))
        reward = reward * data.reward_scale
        buffer.add(Transition(agent.normalizer(obs), action, reward, agent.normalizer(next_obs), *ended))
        for _ in range(envs.num_envs):  # one update an environment step
            metrics = agent.update(mixed(data.sample(batch_size - half), buffer.sample(half)))
        run.log(metrics)
