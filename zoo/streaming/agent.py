"""The base of agents that learn from a stream."""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.data.batch import Transition
from zoo.errors import UsageError
from zoo.nn import epsilon_soft
from zoo.spec import Spec
from zoo.streaming.normalizer import StreamNormalizer

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.runs.tensor_stepper import Stepper


class Sample(NamedTuple):
    """The outcome of the last action."""

    reward: Tensor  # []
    next_obs: Tensor  # [...]
    terminated: Tensor  # [] bool; stops bootstrapping

    @classmethod
    def of(cls, transition: Transition) -> "Sample":
        """The sample of a transition of one environment."""
        return cls(transition.reward[0], transition.next_obs[0], transition.terminated[0])


class StreamAgent(Agent):
    """An agent that learns from one sample at a time and stores only the current input and action.

    Attributes:
        normalizer: normalizes observations and rewards.
        x: `[*normalizer.shape]` the networks' current input.
        action: `[A]` or `[]` the next action.
    """

    def __init__(self, spec: Spec, config: Any) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = StreamNormalizer(
            spec.obs_shape, config.discount, config.time_feature, config.normalize_obs, config.scale_reward
        )
        self.x = nn.Buffer(torch.zeros(self.normalizer.shape))
        action = torch.zeros(spec.action_dim) if spec.num_actions is None else torch.zeros((), dtype=torch.int64)
        self.action = nn.Buffer(action)
        self._elapsed = torch.zeros(0)  # [B] steps taken in the episodes of an evaluation, since `begin`

    def epsilon(self, final: float, steps: float) -> Tensor:
        """The exploration rate: it decreases linearly from 1 to `final` over `steps` actions, including this one."""
        return 1 + ((self.normalizer.return_moments.count[0] + 1) / steps).clamp(max=1) * (final - 1)

    def normalized(self, obs: Tensor) -> Tensor:
        """Observations `[B, ...]` of evaluation episodes as input to the networks: `[B, *normalizer.shape]`."""
        if len(self._elapsed) != len(obs):
            self.begin(len(obs))
        x: Tensor = self.normalizer(obs, self._elapsed)
        return x

    def begin(self, num_envs: int) -> None:
        self._elapsed = torch.zeros(num_envs, device=self.x.device)

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        self._elapsed = self._elapsed + 1

    def best(self, x: Tensor) -> Tensor:
        """The best actions at normalized observations `[B, *normalizer.shape]`."""
        raise NotImplementedError

    def memory(self) -> dict[str, Tensor]:
        return {"elapsed": self.x.new_zeros(())} if self.normalizer.time_feature else {}

    @torch.no_grad()
    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        elapsed = memory.get("elapsed", torch.zeros_like(reward))
        return self.best(self.normalizer(obs, elapsed)), {name: steps + 1 for name, steps in memory.items()}

    def in_rewards(self, value: Tensor) -> Tensor:
        """Values in units of the rewards; the networks learn scaled values."""
        return value * self.normalizer.return_moments.std().float() if self.config.scale_reward else value


def epsilon_greedy(q: Tensor, epsilon: Tensor | float) -> Tensor:
    """The actions `[...]` with the highest values `[..., num_actions]`, or with probability `epsilon` random ones."""
    return epsilon_soft(q.argmax(-1), q.shape[-1], epsilon)


def stream(run: "Run", config: Any) -> tuple["Stepper", int]:
    """The single environment of a streaming algorithm, and the time limit of its episodes (1 if there is none).

    `config.time_feature` is switched off for images and, with a note, if there is no time limit.

    Raises:
        UsageError: there is more than one environment.
    """
    envs = run.envs()
    if envs.num_envs > 1:
        raise UsageError(f"num_envs={envs.num_envs}: streaming algorithms learn from one environment. Try: num_envs=1")
    limit = run.time_limit()
    if config.time_feature and (envs.spec.is_image or limit is None):
        if not envs.spec.is_image:
            run.report(
                f"{run.config.env.id} has no step limit: algo.time_feature is left out. env.max_episode_steps sets one."
            )
        config.time_feature = run.record["config"]["algo"]["time_feature"] = False
    return envs, limit or 1
