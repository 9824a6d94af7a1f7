"""The settings of an environment."""

import importlib.resources
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OWN_CLOCK = ("ALE/", "dmc/", "MiniGrid-")  # these end their episodes themselves
GIVEN_OTHERWISE = ("id", "max_episode_steps", "render_mode", "disable_env_checker")  # of gymnasium.make, not of a task
DYNAMICS = ("gravity", "friction", "action_noise")
CHANGED_IN = ("both", "training", "evaluation")
SPARSE_ANT_MAZE = r"AntMaze_(?!.*Dense)\w+-v\d+"

# Random and expert returns with their source, by pattern of the id. gymnasium-robotics' Adroit pen and Point Mazes are
# not D4RL's (episodes of another length, goals that move), and its kitchen has other tasks.
D4RL = "D4RL reference scores (github Farama-Foundation/D4RL d4rl/infos.py)"
SCORES = {
    SPARSE_ANT_MAZE: (0.0, 1.0, D4RL),
    r"AdroitHandDoor-v\d+": (-56.512833, 2880.5693087298737, D4RL),
    r"AdroitHandHammer-v\d+": (-274.856578, 12794.134825156867, D4RL),
    r"AdroitHandRelocate-v\d+": (-6.425911, 4233.877797728884, D4RL),
    r"ogbench/(?!.*singletask).*": (
        0.0,
        1.0,
        "a return is whether the goal was reached; the score is the percentage, as OGBench gives it",
    ),
}


@dataclass
class EnvConfig:
    """An entry of `configs/env`, or any id that Gymnasium or a family of `zoo list` has."""

    id: str = "???"  # Gymnasium id
    name: str = ""  # short name, for datasets and run folders; empty: from the id
    backend: str = "auto"  # envpool, gymnasium, async, warp; auto: EnvPool where it has the environment, or gymnasium
    max_episode_steps: int | None = None  # steps after which an episode is truncated; null: the environment's own
    kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of its constructor: env.kwargs.is_slippery=false
    sticky: float = 0.0  # Atari: probability that a frame repeats the last action; Gymnasium's v5 games have 0.25
    gravity: float = 1.0  # MuJoCo: factor on the task's gravity
    friction: float = 1.0  # MuJoCo: factor on the friction of every geometry
    action_noise: float = 0.0  # MuJoCo: standard deviation of noise on actions, in units of half their range
    changed_in: str = "both"  # where gravity, friction and action_noise apply: both, training or evaluation
    random_score: float | None = None  # mean return of uniformly random actions; normalized score 0
    expert_score: float | None = None  # mean return of the reference expert; normalized score 100
    score_source: str | None = None  # where the two reference scores come from

    def __post_init__(self) -> None:
        if self.name in (".", "..") or not re.fullmatch(r"[\w.:+-]*", self.name):  # it names folders
            raise ValueError(f"env.name={self.name} must be letters, digits and -_.+: only, such as env.name=my-maze")
        if self.id != "???":
            within = self.id.removeprefix("ALE/").removeprefix("ogbench/")
            self.name = self.name or within.rsplit("-v", 1)[0].replace("/", "-").lower()
            if (self.random_score, self.expert_score, self.score_source) == (None, None, None):
                for pattern, scores in SCORES.items():
                    if re.fullmatch(pattern, self.id):
                        self.random_score, self.expert_score, self.score_source = scores
        if not 0 <= self.sticky <= 1:
            raise ValueError(f"env.sticky={self.sticky} must lie between 0 and 1")
        if self.sticky and not self.is_atari:
            raise ValueError(
                f"env.sticky={self.sticky}: {self.id} has no sticky actions, only Atari games have. Leave it out"
            )
        if self.changes and self.is_atari:
            raise ValueError(not_mujoco(self))
        for name in self.kwargs:
            if name in GIVEN_OTHERWISE or self.id.startswith(("ALE/", "dmc/")):
                raise ValueError(f"env.kwargs.{name}: {self.id} takes no such argument. Leave it out")
        for name in DYNAMICS:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"env.{name}={getattr(self, name)} must be a number that is not below 0")
        if self.changed_in not in CHANGED_IN:
            raise ValueError(f"env.changed_in={self.changed_in} does not exist; there are {', '.join(CHANGED_IN)}")
        if self.random_score is not None and self.random_score == self.expert_score:
            raise ValueError(f"env.expert_score={self.expert_score} must differ from env.random_score")
        if self.max_episode_steps is not None:
            if self.max_episode_steps < 1:
                raise ValueError(f"env.max_episode_steps={self.max_episode_steps} must be at least 1")
            if self.id.startswith(OWN_CLOCK):
                raise ValueError(
                    f"env.max_episode_steps={self.max_episode_steps}: {self.id} keeps a time of its own. Leave it out"
                )

    def drop_scores(self) -> None:
        """Drops the reference returns if evaluations have episodes of another length, other arguments or dynamics."""
        if self.max_episode_steps is not None or self.kwargs or (self.changes and self.changed_in != "training"):
            self.random_score = self.expert_score = None

    @property
    def argument(self) -> str:
        """Its value for `env=`: the short name if `configs/env` has it, else the id."""
        entry = importlib.resources.files("zoo.configs") / "env" / f"{self.name}.yaml"
        return self.name if entry.is_file() else self.id

    @property
    def changes(self) -> dict[str, float]:
        """The settings that change the environment's dynamics."""
        return {name: getattr(self, name) for name in DYNAMICS if getattr(self, name) != getattr(EnvConfig, name)}

    @property
    def only_in_gymnasium(self) -> list[str]:
        """The names of the given settings that no other backend than Gymnasium's has."""
        return [*self.changes, *(f"kwargs.{name}" for name in self.kwargs)]

    @property
    def is_atari(self) -> bool:
        """Whether this is one of the games of `zoo.envs.atari`."""
        return self.id.startswith("ALE/")

    def normalize(self, returns: Any) -> Any:
        """Normalized score `100 (R - random) / (expert - random)`, or None without reference scores.

        Fu et al. 2020, arXiv 2004.07219, section 4. An Ant Maze keeps paying while the ant stays at its goal, where an
        episode of D4RL's ends: returns count as 1 at most, so that the score is the percentage of successes.
        """
        if self.random_score is None or self.expert_score is None:
            return None
        if re.fullmatch(SPARSE_ANT_MAZE, self.id):
            returns = np.minimum(returns, self.expert_score)
        return 100 * (returns - self.random_score) / (self.expert_score - self.random_score)


def not_mujoco(config: EnvConfig) -> str:
    """Why the environment's dynamics cannot be changed."""
    names = ", ".join(f"env.{name}={value}" for name, value in config.changes.items())
    why = "is simulated within EnvPool" if config.id.startswith("dmc/") else "is no task of MuJoCo's"
    return f"{names}: {config.id} {why}, and cannot be changed. Leave it out"
