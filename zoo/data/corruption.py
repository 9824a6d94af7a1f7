"""Datasets tampered with: `corruption=`. Some transitions get wrong observations, actions, rewards or successors.

Yang et al. 2023, "Towards Robust Offline Reinforcement Learning under Diverse Data Corruption" (arXiv 2310.12955),
section 3 and appendix D, as in the authors' code (github YangRui2015/RIQL, attack.py). `random-` adds noise; the
`adversarial-` kinds move what they corrupt to where the critics of a trained EDAC agent think the least of it. The
authors' agents have 10 critics on every task, where EDAC's own settings have 50 on Hopper and take as much longer.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zoo import checkpoint
from zoo.data.arrays import Arrays
from zoo.errors import UsageError

REWARD_RANGE = 30.0  # random rewards are uniform in +- scale times this
PARTS = ("obs", "action", "reward", "dynamics")
KINDS = ("none", *(f"{how}-{part}" for how in ("random", "adversarial") for part in (*PARTS, "mixed")))


@dataclass
class CorruptionConfig:
    """What is done to the dataset, once, when it is loaded."""

    name: str = "none"  # random- or adversarial-, and obs, action, reward, dynamics or mixed, which is all four
    rate: float = 0.3  # share of the transitions that are corrupted
    scale: float = 1.0  # how far, in standard deviations of each dimension; rewards: times 30, adversarial: times -1
    critic: str | None = (
        None  # of adversarial-: folder of a finished run of edac on the same dataset; the paper's: 10 critics
    )

    def __post_init__(self) -> None:
        if self.name not in KINDS:
            raise ValueError(f"corruption={self.name} does not exist. There are: {', '.join(KINDS)}")
        if not 0 <= self.rate <= 1:
            raise ValueError(f"corruption.rate={self.rate} must lie between 0 and 1; the paper takes 0.3")
        if not self.scale > 0:
            raise ValueError(f"corruption.scale={self.scale} must be above 0; the paper takes 1")


def corrupt(
    arrays: Arrays, config: CorruptionConfig, seed: int, device: torch.device | None = None
) -> tuple[Arrays, int]:
    """The dataset with part of it corrupted, and how many transitions are not what they were.

    Which transitions, and how, depends on the seed and, adversarial, on the critics. Of `mixed` each part has
    transitions of its own.

    Args:
        arrays: the dataset.
        config: what is done to it.
        seed: of the run.
        device: where critics are asked, the CPU by default.

    Raises:
        UsageError: adversarial corruption without a critic, with a run that has none, or that learned from other data.
    """
    how, _, asked = config.name.partition("-")
    rng = np.random.default_rng(seed)
    adversary = Adversary(config, arrays, device) if how == "adversarial" and asked != "reward" else None
    changed = np.zeros(len(arrays.reward), dtype=bool)
    for part in PARTS if asked == "mixed" else (asked,):
        chosen = rng.random(len(changed)) < config.rate
        name = "next_obs" if part == "dynamics" else part
        field = getattr(arrays, name).copy()
        noise = rng.uniform(-config.scale, config.scale, field[chosen].shape).astype(np.float32)
        if part == "reward":
            field[chosen] = REWARD_RANGE * noise if how == "random" else -config.scale * field[chosen]
        else:
            spread = field.std(0)
            if adversary:
                noise = adversary.worst(part, Arrays(*(x[chosen] for x in arrays)), noise, spread)
            field[chosen] += noise * spread
        arrays = arrays._replace(**{name: field})
        changed |= chosen
    return arrays, int(changed.sum())


class Adversary:
    """Finds the noise that an agent's critics think the least of.

    It descends their mean value by the sign of its gradient, 100 steps of 0.01 of the scale, from random noise. (The
    authors begin Adam anew at every step, which is that.) What it found is kept in the agent's folder, under a digest
    of all that it follows from.
    """

    STEPS, STEP_SIZE, BATCH = 100, 0.01, 4_096

    def __init__(self, config: CorruptionConfig, arrays: Arrays, device: torch.device | None) -> None:
        from zoo.api import load_agent

        if config.critic is None:
            raise UsageError(
                f"corruption={config.name} needs critics of the same dataset. Train them, zoo run algo=edac "
                "algo.num_critics=10 with this env and dataset, and give the run's folder: corruption.critic=DIR"
            )
        self.config, self.folder = config, Path(config.critic)
        _, self.agent, record = load_agent(self.folder)
        if (record.get("dataset") or {}).get("fingerprint") != arrays.fingerprint():
            raise UsageError(
                f"corruption.critic={config.critic} has not learned from this dataset. Train one, zoo run algo=edac "
                "algo.num_critics=10 with this env and dataset, and give the run's folder."
            )
        if not all(hasattr(self.agent, name) for name in ("critic", "actor", "normalizer")):
            raise UsageError(
                f"corruption.critic={config.critic} is a run without critics of actions; take one of edac."
            )
        self.device = device or torch.device("cpu")
        self.agent.to(self.device).requires_grad_(False)
        self.weights = hashlib.sha256((self.folder / "checkpoint.pt").read_bytes()).digest()

    def worst(self, part: str, at: Arrays, noise: np.ndarray, spread: np.ndarray) -> np.ndarray:
        """Noise for the transitions `at`, `[n, ...]`, in units of `spread`, found from `noise` on."""
        digest = hashlib.sha256(self.weights + repr(self.config.scale).encode())
        for array in (at.obs, at.action, at.next_obs, noise):
            digest.update(np.ascontiguousarray(array).tobytes())
        path = self.folder / "adversarial" / f"{part}-{digest.hexdigest()[:16]}.npy"
        if path.exists():
            found: np.ndarray = np.load(path, allow_pickle=False)
            return found
        for start in range(0, len(noise), self.BATCH):
            piece = slice(start, start + self.BATCH)
            given = (at.obs[piece], at.action[piece], at.next_obs[piece], noise[piece], spread)
            noise[piece] = self._descend(part, *(torch.from_numpy(x).to(self.device) for x in given)).cpu().numpy()
        path.parent.mkdir(exist_ok=True)
        with checkpoint.replacing(path) as file:
            np.save(file, noise)
        return noise

    def _descend(self, part: str, obs: Tensor, action: Tensor, next_obs: Tensor, noise: Tensor, unit: Tensor) -> Tensor:
        agent: Any = self.agent
        value = agent.head.value if hasattr(agent, "head") else torch.squeeze
        scale = self.config.scale
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
