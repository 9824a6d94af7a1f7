"""The exported part of an agent, one step of its policy; and its comparison with the agent itself."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.agent import Agent, Policy
from zoo.errors import RunError
from zoo.nn import Normalizer
from zoo.streaming.normalizer import StreamNormalizer

EPISODES, STEPS = 25, 40  # compared: 1,000 observations, in episodes longer than most memories
TOLERANCE = 1e-5  # largest difference of an action, in units of half its range if that is more than 1
CALLS, WARM = 1_000, 100  # timed calls with one observation each, and calls before them

Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""An exported policy: the arrays of its inputs -> those of its outputs."""


class PolicyStep(nn.Module):
    """One step of a policy, including normalization and scaling, as a function of tensors only.

    Without a memory: `obs -> action`; with one: `obs, reward, *memory -> action, *memory`, see `Agent.step`.

    Attributes:
        inputs, outputs: the names of inputs and outputs.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent
        self.memory = list(agent.memory())
        self.inputs = ["obs", "reward", *self.memory] if self.memory else ["obs"]
        self.outputs = ["action", *(f"next_{name}" for name in self.memory)]

    def forward(self, obs: Tensor, *others: Tensor) -> Any:
        if not self.memory:
            return self.agent.step(obs, torch.zeros(obs.shape[0]), {})[0]  # len(obs) would fix the batch size
        reward, *memory = others
        action, after = self.agent.step(obs, reward, dict(zip(self.memory, memory, strict=True)))
        return (action, *(after[name] for name in self.memory))


def first_inputs(agent: Agent, obs: np.ndarray) -> list[np.ndarray]:
    """The inputs for the first step of episodes that begin with observations `[B, ...]`."""
    memory = [x.cpu().numpy() for x in agent.memory().values()]
    each = [np.broadcast_to(x, (len(obs), *x.shape)).copy() for x in memory]
    return [obs, np.zeros(len(obs), np.float32), *each] if memory else [obs]


def observations(agent: Agent, rng: np.random.Generator, count: int) -> np.ndarray:
    """Random observations `[count, ...]`, distributed like those that the agent normalizes; frames are random bytes."""
    spec, normalizer = agent.spec, getattr(agent, "normalizer", None)
    if spec.obs_dtype == "uint8":
        return rng.integers(0, 256, (count, *spec.obs_shape), dtype=np.uint8)
    drawn = torch.from_numpy(rng.standard_normal((count, *spec.obs_shape)))
    if isinstance(normalizer, StreamNormalizer):
        drawn = normalizer.obs_moments.mean + normalizer.obs_moments.std() * drawn
    elif isinstance(normalizer, Normalizer):
        drawn = normalizer.mean + normalizer.std * drawn
    return drawn.float().numpy()


def check(agent: Agent, run: Run, name: str) -> float:
    """Passes 1,000 observations to the agent and to its export; returns the largest difference between their actions.

    Raises:
        RunError: the difference exceeds `TOLERANCE`; or more than one discrete action differs: two may have the same
            value but for rounding.
    """
    rng, policy = np.random.default_rng(0), Policy(agent)
    policy.begin(EPISODES)
    high, low = np.array(agent.spec.action_high), np.array(agent.spec.action_low)
    unit = np.maximum(1, (high - low) / 2)
    inputs, worst, others = first_inputs(agent, observations(agent, rng, EPISODES)), 0.0, 0
    for _ in range(STEPS):
        expected = policy.act(inputs[0])
        action, *memory = run(inputs)
        if agent.spec.num_actions is None:
            worst = float(np.maximum(worst, (np.abs(action - expected) / unit).max()))  # keeps NaN
        else:
            others += int((action != expected).sum())
        reward = rng.standard_normal(EPISODES).astype(np.float32)
        policy.observe(inputs[0], expected, reward)
        obs = observations(agent, rng, EPISODES)
        inputs = [obs, reward, *memory] if memory else [obs]
    if not worst <= TOLERANCE or others > 1:
        how = f"{others} of {EPISODES * STEPS}" if others else f"by up to {worst:.1e}"
        raise RunError(f"{name} plays other actions than PyTorch, {how}: nothing is written.")
    return worst


def latency(step: Callable[[], Any]) -> float:
    """The median time of a call, in microseconds."""
    taken = []
    for _ in range(WARM + CALLS):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[WARM:]) * 1e6


def latencies(agent: Agent, run: Run) -> tuple[float, float]:
    """The time of one step for one observation, in microseconds: with `Policy`, and with an export. On one thread."""
    torch.set_num_threads(1)
    obs = observations(agent, np.random.default_rng(0), 1)
    policy, inputs = Policy(agent), first_inputs(agent, obs)

    def step() -> None:
        action = policy.act(obs)
        if agent.memory():
            policy.observe(obs, action, np.zeros(1, np.float32))

    policy.begin()
    return latency(step), latency(lambda: run(inputs))
