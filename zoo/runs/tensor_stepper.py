"""Environments on the run's device, seen from a training loop: nothing in a step leaves the device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batch import Transition
from zoo.envs import make
from zoo.envs.warp import WarpEnvs
from zoo.errors import RunError
from zoo.runs.evaluation import seeds
from zoo.runs.stepper import EnvStepper
from zoo.settings.config import RunConfig
from zoo.spec import Spec


class TensorStepper:
    """What `EnvStepper` is, for environments that take and give tensors.

    Attributes:
        obs: `[N, D]` the observations to act on, float32.
        spec: shapes and bounds of one environment.
        num_envs: N.
        resumed: whether it continues in the middle of the episodes of a run that was stopped.
        on_episode: is called by `report` with the mean return and length of the episodes that have ended, their returns
            of the environment's own rewards.
        reward_scale, reward_shift: a transition's reward is the environment's times the one, plus the other.
    """

    def __init__(
        self, envs: WarpEnvs, seed: int, on_episode: Callable[[float, float], None], reward_scale: float = 1.0,
        reward_shift: float = 0.0,
    ) -> None:  # fmt: skip
        self.envs, self.on_episode = envs, on_episode
        self.reward_scale, self.reward_shift = reward_scale, reward_shift
        self.num_envs = envs.num_envs
        self.spec = Spec.of(envs.single_observation_space, envs.single_action_space)
        self.obs = envs.reset(seed)
        self._return = torch.zeros(self.num_envs, dtype=torch.float64, device=self.obs.device)  # of running episodes
        self._length = torch.zeros_like(self._return)
        self._last = torch.zeros_like(self._return, dtype=torch.bool)
        self._ended = self._return.new_zeros(3)  # number, returns and lengths of those that ended since the last report
        self._finite = torch.ones((), dtype=torch.bool, device=self.obs.device)  # everything since the last report is
        self.resumed = False

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]`."""
        return self.envs.random_action()

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` moves on: past an episode's end, to the first of the next."""
        obs = self.obs
        self.obs, reward, terminated, truncated, next_obs = self.envs.step(action)
        self._finite &= reward.isfinite().all() & next_obs.isfinite().all()
        self._return += reward
        self._length += 1
        self._last = ended = terminated | truncated
        one = torch.ones_like(self._return)
        self._ended += torch.stack([one, self._return, self._length]).where(ended, 0).sum(1)
        self._return.masked_fill_(ended, 0)
        self._length.masked_fill_(ended, 0)
        reward = self.reward_scale * reward + self.reward_shift
        return Transition(obs, action, reward, next_obs, terminated, truncated)

    @property
    def ended(self) -> np.ndarray:
        """`[N]` whether the last step was each episode's last. Waits for the device."""
        return self._last.cpu().numpy()

    def report(self) -> None:
        """Reads the episodes that have ended since the last time, and waits for the device to do so.

        Raises:
            RunError: something that the environments gave since then is NaN or infinite.
        """
        count, returns, lengths = self._ended.tolist()
        if not self._finite:
            raise RunError(
                "the run diverged: its policy or MuJoCo Warp gave a number that is NaN or infinite. A smaller learning "
                "rate often helps. From the last checkpoint on, if there is one: zoo run resume=DIR"
            )
        if count:
            self.on_episode(returns / count, lengths / count)
        self._ended.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Where the environments are in their episodes."""
        return {"envs": self.envs.state_dict(), "obs": self.obs, "returns": self._return, "lengths": self._length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the environments in the middle of their episodes."""
        self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"].to(self.obs.device)
        self._return.copy_(state["returns"])
        self._length.copy_(state["lengths"])
        self.resumed = True


Stepper = EnvStepper | TensorStepper


def begin(config: RunConfig, done: int, device: torch.device, on_episode: Callable[[float, float], None]) -> Stepper:
    """The training environments of a run that has done so many steps, at the start of episodes.

    Raises:
        UsageError: the package that simulates them is not installed.
    """
    # where a resumed run cannot put the simulators back, it continues with new episodes, from other seeds
    drawn = seeds("training", config.seed, done, count=config.num_envs)
    rewards = (config.reward_scale, config.reward_shift)
    if config.env.backend == "warp":
        return TensorStepper(WarpEnvs(config.env, config.num_envs, device), drawn[0], on_episode, *rewards)
    envs = make(config.env, config.num_envs, config.threads, training=True)
    return EnvStepper(envs, drawn, device, on_episode, *rewards)
