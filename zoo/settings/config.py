"""The settings of `zoo run`: the top-level keys. An algorithm's own are the `Config` of its file, under `algo`."""

import math
from dataclasses import dataclass, field
from typing import Any

from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import SamplerConfig
from zoo.envs import EnvConfig

# a policy that always takes its best action may do nothing there for ever; RL Baselines3 Zoo samples there too
EVALUATED_BY_CHANCE = ("ALE/", "MiniGrid-")
MOST_THREADS = 1_024


@dataclass
class RunConfig:
    """One run."""

    algo: Any = "???"  # an algorithm of `zoo list`; its own keys are algo.<key>
    env: EnvConfig = field(default_factory=EnvConfig)  # an environment of `zoo list`, or any Gymnasium id
    dataset: str = "demo"  # data to learn from: a name, a Minari id, a file, a mixture such as random+10%expert
    reward_scale: float = 1.0  # the agent learns from reward_scale * r + reward_shift; evaluations report r
    reward_shift: float = 0.0  # added to every reward; AntMaze: -1, which favours short paths
    sampler: SamplerConfig = field(default_factory=SamplerConfig)  # batch sampling: uniform, return, advantage, top
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)  # corruption of the data, e.g. random-obs
    preset: str | None = None  # settings from configs/presets, such as paper; settings that are given override them
    init_from: str | None = None  # folder of a finished run, whose networks and optimizers this run starts from
    steps: int = 1_000_000  # gradient updates offline, environment steps online; 0: online_steps alone
    online_steps: int = 0  # offline to online: environment steps after the updates
    online_starts: int = 0  # online steps before the first online update
    online_updates: int = 1  # updates an online step
    online_fraction: float | None = None  # online share of a batch; 1: no dataset; null: uniform over data and buffer
    seed: int = 0  # of parameters, batches, environments and evaluation
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto takes a GPU where there is one
    threads: int = 1  # CPU threads; several runs side by side use the cores better than one run with several threads
    base: str | None = None  # online: the folder of a finished run whose actions are corrected (residual learning)
    base_mode: str = "residual"  # residual: the run corrects the base's actions; noise: it chooses the base's noise
    base_scale: float = 0.1  # largest correction, in units of half the action's range; base_mode=noise: largest noise
    num_envs: int = 1  # training environments stepped in parallel
    eval_every: int = 10_000  # steps between evaluations
    eval_episodes: int = 10  # episodes of an evaluation, one in each of as many environments
    eval_deterministic: bool | None = None  # take the best action, or sample; null: sample in Atari and MiniGrid
    info_keywords: list[str] = field(default_factory=list)  # numbers in info at episodes' ends: their means are logged
    log_every: int = 1_000  # steps between rows of metrics.csv
    checkpoint_every: int = 10_000  # steps between checkpoints
    keep_agents: bool = False  # keep the agent of every evaluation as agents/<step>.pt
    compile: Any = "auto"  # torch.compile the update: true, false, auto (runs of 20,000 steps or more), graph (CUDA)
    matmul_precision: str = "highest"  # of float32 products: highest; high (TF32 on a GPU); medium (bfloat16 on a CPU)
    logger: str = "tensorboard"  # tensorboard, wandb, trackio, several: tensorboard+wandb, or none; CSV always
    run_dir: str | None = None  # where everything is written; null makes one in runs/<env>/, named after the run
    resume: str | None = None  # folder of a run to continue from its last checkpoint; device= and steps= may be new

    def __post_init__(self) -> None:
        counts = ("steps", "threads", "num_envs", "eval_every", "eval_episodes", "log_every", "checkpoint_every")
        only_online = self.steps == 0 < self.online_steps
        for name in (*counts, "online_updates"):
            if getattr(self, name) < 1 and not (name == "steps" and only_online):
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.threads > MOST_THREADS:
            raise ValueError(f"threads={self.threads} must be at most {MOST_THREADS:,}")
        for name in ("online_steps", "online_starts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be 0 or more")
        if self.online_fraction is not None and not 0 <= self.online_fraction <= 1:
            raise ValueError(f"online_fraction={self.online_fraction} must lie between 0 and 1")
        if not 0 < self.reward_scale < math.inf or not math.isfinite(self.reward_shift):
            rescaled = f"reward_scale={self.reward_scale} and reward_shift={self.reward_shift}"
            raise ValueError(f"{rescaled} must be finite, the scale above 0")
        if self.base_mode not in ("residual", "noise"):
            raise ValueError(f"base_mode={self.base_mode} does not exist; there are residual, noise")
        if not 0 < self.base_scale < math.inf:
            raise ValueError(f"base_scale={self.base_scale} must be above 0, and finite")
        if not isinstance(self.compile, bool) and self.compile not in ("auto", "graph"):
            raise ValueError(f"compile={self.compile} does not exist; there are auto, true, false, graph")
        if self.matmul_precision not in ("highest", "high", "medium"):
            raise ValueError(
                f"matmul_precision={self.matmul_precision} does not exist; there are highest, high, medium"
            )
        if self.eval_deterministic is None:
            self.eval_deterministic = not self.env.id.startswith(EVALUATED_BY_CHANCE)
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed={self.seed} must lie between 0 and {2**32 - 1}")


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"algo": {"beta": 1}}` -> `{"algo.beta": 1}`."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        leaves |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return leaves
