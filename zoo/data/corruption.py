"""Corrupted datasets: `corruption=`. Some transitions get wrong observations, actions, rewards or successors.

Yang et al. 2023, "Towards Robust Offline Reinforcement Learning under Diverse Data Corruption" (arXiv 2310.12955),
section 3 and appendix D, as in the authors' code (github YangRui2015/RIQL, attack.py). The `random-` kinds add noise;
the `adversarial-` kinds move data to where the critics of a trained EDAC agent assign the lowest value. The authors'
agents have 10 critics on every task; EDAC's own settings have 50 on Hopper, which takes as much longer.
"""

import contextlib
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo.data.arrays import Arrays, without_successor
from zoo.errors import UsageError, nearest
from zoo.files import replacing_path

REWARD_RANGE = 30.0  # random rewards are uniform within +- scale times this
PARTS = ("obs", "action", "reward", "dynamics")
KINDS = ("none", *(f"{how}-{part}" for how in ("random", "adversarial") for part in (*PARTS, "mixed")))


@dataclass
class CorruptionConfig:
    """How the dataset is corrupted when it is loaded."""

    name: str = "none"  # random- or adversarial-, and obs, action, reward, dynamics or mixed, which is all four
    rate: float = 0.3  # share of the transitions that are corrupted
    scale: float = 1.0  # how far, in standard deviations of each dimension; rewards: times 30, adversarial: times -1
    critic: str | None = None  # adversarial-, except -reward: folder of a finished run with critics on this dataset

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise ValueError(f"corruption={self.name} does not exist. {nearest(self.name, KINDS).rstrip('.')}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"corruption.rate={self.rate} must lie between 0 and 1; the paper takes 0.3")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"corruption.scale={self.scale} must be above 0 and finite; the paper takes 1")

    @property
    def needs_critic(self) -> bool:
        """Whether a trained agent's critics decide what the corrupted transitions become."""
        return self.name.startswith("adversarial-") and self.name != "adversarial-reward"


def corrupt(
    arrays: Arrays,
    config: CorruptionConfig,
    seed: int,
    device: torch.device | None = None,
    adversary: "Adversary | None" = None,
) -> tuple[Arrays, int]:
    """The dataset with some transitions corrupted, and the number of changed transitions.

    The choice of transitions, and their changes, depend on the seed and, for adversarial kinds, on the critics. In
    `mixed`, each part corrupts transitions of its own. Terminal transitions with unknown successors
    (`without_successor`) stay recognizable as such.

    Args:
        arrays: the dataset.
        config: the kind of corruption and its settings.
        seed: the run's seed.
        device: where the critics are evaluated, the CPU by default.
        adversary: a trained agent, if `config.needs_critic`.

    Raises:
        UsageError: the data to be corrupted are integers.
    """
    how, _, asked = config.name.partition("-")
    unknown = without_successor(arrays)
    rng = np.random.default_rng(seed)
    changed = np.zeros(len(arrays.reward), dtype=bool)
    for part in PARTS if asked == "mixed" else (asked,):
        chosen = rng.random(len(changed)) < config.rate
        name = "next_obs" if part == "dynamics" else part
        field = getattr(arrays, name).copy()
        if field.dtype.kind != "f":
            raise UsageError(
                f"corruption={config.name}: {part} is integers here, which noise cannot be added to. "
                "Try: corruption=random-reward"
            )
        noise = rng.uniform(-config.scale, config.scale, field[chosen].shape).astype(np.float32)
        if part == "reward":
            field[chosen] = REWARD_RANGE * noise if how == "random" else -config.scale * field[chosen]
        else:
            spread = field.std(0, dtype=np.float64).astype(np.float32)  # in float32 a large mean would swamp it
            if adversary:
                at = Arrays(*(x[chosen] for x in arrays))
                noise = adversary.worst(part, at, noise, spread, config.scale, device or torch.device("cpu"))
            field[chosen] += noise * spread
        arrays = arrays._replace(**{name: field})
        changed |= chosen
    if unknown.any():
        next_obs = arrays.next_obs.copy()
        next_obs[unknown] = arrays.obs[unknown]
        arrays = arrays._replace(next_obs=next_obs)
    return arrays, int(changed.sum())


class Adversary:
    """A trained agent, and the noise to which its critics assign the lowest value.

    The search descends the critics' mean value by the sign of its gradient, in 100 steps of 0.01 of the scale,
    starting from random noise. (The authors create a new Adam at every step, which amounts to that. They multiply the
    starting noise by the standard deviation twice; here it is uniform within the scale in all dimensions. At moved
    successors the actor takes its most probable action; in their code it samples one, which fails as published, since
    the actor returns a pair.) The noise
    found is cached in the agent's folder, under a digest of everything that it depends on.

    Args:
        agent: an agent with `critic`, `actor` and `normalizer`.
        fingerprint: that of the dataset from which it learned.
        folder: the folder of its run.
        digest: the digest of its checkpoint, in hexadecimal.
    """

    STEPS, STEP_SIZE, BATCH = 100, 0.01, 4_096

    def __init__(self, agent: Any, fingerprint: str | None, folder: Path, digest: str) -> None:
        self.agent = agent.requires_grad_(False)
        self.fingerprint, self.folder, self.digest = fingerprint, folder, digest

    def worst(
        self, part: str, at: Arrays, noise: np.ndarray, spread: np.ndarray, scale: float, device: torch.device
    ) -> np.ndarray:
        """Noise for the transitions `at`, `[n, ...]`, in units of `spread` within +-scale, starting from `noise`."""
        digest = hashlib.sha256((self.digest + repr(scale)).encode())
        for array in (at.obs, at.action, at.next_obs, noise):
            digest.update(np.ascontiguousarray(array).tobytes())
        path = self.folder / "adversarial" / f"{part}-{digest.hexdigest()[:16]}.npy"
        with contextlib.suppress(OSError, EOFError, ValueError):  # it is not there or damaged: computed anew
            found: np.ndarray = np.load(path, allow_pickle=False)
            if (found.shape, found.dtype) == (noise.shape, noise.dtype):
                return found
        print(f"moving {len(noise):,} transitions' {part} against the critics: minutes, and kept for later", flush=True)
        self.agent.to(device)
        for start in range(0, len(noise), self.BATCH):
            piece = slice(start, start + self.BATCH)
            given = (at.obs[piece], at.action[piece], at.next_obs[piece], noise[piece], spread)
            noise[piece] = self._descend(part, scale, *(torch.from_numpy(x).to(device) for x in given)).cpu().numpy()
        path.parent.mkdir(exist_ok=True)
        with replacing_path(path) as partial:  # another run may be writing the same file
            np.save(partial, noise)
        return noise

    def _descend(
        self, part: str, scale: float, obs: Tensor, action: Tensor, next_obs: Tensor, noise: Tensor, unit: Tensor
    ) -> Tensor:
        agent = self.agent
        value = agent.head.value if hasattr(agent, "head") else torch.squeeze
        for _ in range(self.STEPS):
            noise.requires_grad_()
            if part == "obs":
                out = agent.critic(agent.normalizer(obs + noise * unit), action)
            elif part == "action":
                out = agent.critic(agent.normalizer(obs), action + noise * unit)
            else:
                moved = agent.normalizer(next_obs + noise * unit)
                out = agent.critic(moved, agent.actor.mode(moved))
            (gradient,) = torch.autograd.grad(value(out).mean(), noise)
            noise = (noise.detach() - self.STEP_SIZE * scale * gradient.sign()).clamp(-scale, scale)
        return noise
