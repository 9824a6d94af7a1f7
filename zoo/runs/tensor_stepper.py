"""Environments on the run's device, as a training loop sees them: nothing leaves the device during a step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.batch import Transition
from zoo.envs import make
from zoo.envs.warp import WarpEnvs
from zoo.errors import RunError
from zoo.runs.evaluation import seeds
from zoo.runs.stepper import EnvStepper, OnEpisode
from zoo.settings.config import RunConfig
from zoo.spec import Spec


class TensorStepper:
    """The counterpart of `EnvStepper` for environments that take and return tensors.

    Attributes:
        obs: `[N, D]` the observations to act on, float32.
        spec: the shapes and bounds of one environment.
        num_envs: N.
        resumed: whether this continues within the episodes of a run that was stopped.
        on_episode: called by `report` with the mean return and length of the episodes that have ended; returns are of
            the environment's own rewards.
        reward_scale, reward_shift: a transition's reward is the environment's times the former, plus the latter.
    """

    def __init__(
        self, envs: WarpEnvs, seed: int, on_episode: OnEpisode, reward_scale: float = 1.0,
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
        self._ended = self._return.new_zeros(3)  # number, returns and lengths of those ended since the last report
        self._finite = torch.ones((), dtype=torch.bool, device=self.obs.device)  # since the last report, all is finite
        self.resumed = False

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]`."""
        return self.envs.random_action()

    def step(self, action: Tensor) -> Transition:
        """One step of every environment. `obs` advances: past an episode's end, to the first of the next."""
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
        """Reads the episodes that have ended since the last call, for which it waits for the device.

        Raises:
            RunError: since the last call, the environments returned NaN or infinity.
        """
        count, returns, lengths = self._ended.tolist()
        if not self._finite:
            raise RunError(
                "the run diverged: its policy or MuJoCo Warp gave a number that is NaN or infinite. A smaller learning "
                "rate often helps. From the last checkpoint on, if there is one: zoo run resume=DIR"
            )
        if count:
            self.on_episode(returns / count, lengths / count, {})
        self._ended.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Where the environments are within their episodes."""
        return {"envs": self.envs.state_dict(), "obs": self.obs, "returns": self._return, "lengths": self._length}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the environments within their episodes."""
        self.envs.load_state_dict(state["envs"])
        self.obs = state["obs"].to(self.obs.device)
        self._return.copy_(state["returns"])
        self._length.copy_(state["lengths"])
        self.resumed = True


Stepper = EnvStepper | TensorStepper


def begin(config: RunConfig, done: int, device: torch.device, on_episode: OnEpisode) -> Stepper:
    """The training environments of a run that has done that many steps, at the start of episodes.

    Raises:
        UsageError: the package that simulates them is not installed.
    """
    # a resumed run that cannot restore the simulators continues with new episodes, from other seeds
    drawn = seeds("training", config.seed, done, count=config.num_envs)
    rewards = (config.reward_scale, config.reward_shift)
    if config.env.backend == "warp":
        return TensorStepper(WarpEnvs(config.env, config.num_envs, device), drawn[0], on_episode, *rewards)
    envs = make(config.env, config.num_envs, config.threads, training=True)
    return EnvStepper(envs, drawn, device, on_episode, *rewards)
