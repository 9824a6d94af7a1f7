"""Offline algorithms that continue to learn in the environment: `online_steps=`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from zoo.agent import Metrics
from zoo.data.batch import Batch, Transition, either, gather, mixed
from zoo.data.buffers import ReplayBuffer, replay_buffer
from zoo.data.monte_carlo import MonteCarloReturns
from zoo.nn import Normalizer

if TYPE_CHECKING:
    from zoo.data.dataset import Dataset
    from zoo.runs.run import Run

VALUED, VALUED_EVERY = 256, 100  # number of dataset transitions valued online, and steps between valuations


class Learner(Protocol):
    """An agent that learns from transitions."""

    normalizer: Normalizer

    @property
    def update(self) -> Callable[..., Metrics]: ...
    def act(self, obs: Tensor, explore: bool = False) -> Tensor: ...
    def critic_values(self, obs: Tensor, action: Tensor) -> Tensor | None: ...


def learn_online(
    run: "Run", agent: Learner, data: "Dataset", batch_size: int, returns: MonteCarloReturns | None = None,
    update: Callable[[Batch, int], Metrics] | None = None,
) -> None:  # fmt: skip
    """Acts with exploration, and learns after each step from the dataset and the collected transitions.

    A batch is sampled from both in proportion to their sizes, as if they were one buffer (Nair et al. 2020, arXiv
    2006.09359, section IV-D), and the dataset's part by its sampler. With `online_fraction`, that share of it comes
    from the collected transitions, however few they are: a half in Ball et al. 2023 (RLPD, arXiv 2302.02948) and in
    Cal-QL (arXiv 2303.05479), and all in Zhou et al. 2024 (WSRL, arXiv 2412.07762), which retains nothing of the
    dataset. Collected transitions are normalized and scaled as the dataset was.

    Args:
        returns: receives the collected transitions, an episode at a time once it has ended.
        update: takes a batch and the number of earlier updates; without it, `agent.update` takes the batch.
    """
    config = run.config
    if not config.online_steps:
        return
    if config.online_fraction == 1 and not config.online_starts:
        run.report(
            "online_fraction=1 without online_starts: within 200 such steps AWAC's return on Hopper fell from 1,084 to "
            "431; online_starts=5000 collects before it learns (WSRL)"
        )
    envs = run.envs()
    n = envs.num_envs
    capacity, first = (-(-steps // n) * n for steps in (config.online_steps, config.online_starts))  # of whole steps
    buffer = replay_buffer(capacity, envs.spec, run.device, n, config.env.is_atari)
    run.track(online_buffer=buffer)
    if returns:
        returns.take_in(buffer)
    for step in run.online_steps():
        obs, action, reward, next_obs, *ends = envs.step(agent.act(envs.obs, explore=True))
        reward = reward * data.reward_scale
        ended = envs.ended if returns or config.env.is_atari else None  # waits for environments on a GPU
        buffer.add(Transition(agent.normalizer(obs), action, reward, agent.normalizer(next_obs), *ends), ended)
        if returns and ended is not None and ended.any():
            returns.take_in(buffer, ended)
        taken = step - config.steps
        if taken >= first:
            done = (taken - first) * config.online_updates
            for count in range(done, done + n * config.online_updates):
                batch = sample(data, buffer, batch_size, config.online_fraction)
                run.log(update(batch, count) if update else agent.update(batch))
            if taken % VALUED_EVERY < n:
                run.log(data_value(agent, data))


def sample(data: "Dataset", buffer: ReplayBuffer, batch_size: int, online_fraction: float | None) -> Batch:
    """A batch drawn by the dataset's sampler and from the buffer, whose indices follow those of the dataset."""
    if online_fraction is not None:
        online = round(online_fraction * batch_size)
        return mixed(data.sample(batch_size - online), after(data, buffer.sample(online)))
    collected = torch.rand(batch_size, device=data.device) < buffer.size / (buffer.size + len(data))
    return either(collected, after(data, buffer.sample(batch_size)), data.sample(batch_size))


def after(data: "Dataset", batch: Batch) -> Batch:
    """A buffer's batch, with indices that follow those of the dataset."""
    return batch._replace(index=len(data) + batch.index)


@torch.no_grad()
def data_value(agent: Learner, data: "Dataset") -> Metrics:
    """The critics' mean value of transitions spread evenly over the dataset: shows the effect of learning online."""
    some = gather(data, torch.arange(VALUED, device=data.device) * (len(data) - 1) // (VALUED - 1))
    values = agent.critic_values(some.obs, some.action)
    return {} if values is None else {"data_value": values.mean()}
