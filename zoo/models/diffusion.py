"""A policy that samples actions by diffusion: noise is turned into an action step by step, for
distributions of any shape.

Ho et al. 2020 (DDPM, arXiv 2006.11239); the cosine schedule is that of Nichol and Dhariwal 2021 (arXiv 2102.09672).
"""

import copy
import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.nn import Linear, Normalizer
from zoo.nn.optim import Adam

MAX_BETA = 0.999  # of the cosine schedule's last step
MAX_AVERAGE = 0.9999  # the averaged weights keep at most this share of themselves at an update
FREQUENCIES = 16  # of the sines and cosines that tell a step


def cosine_schedule(steps: int) -> Tensor:
    """The noise's variances `beta` `[steps]` (Nichol and Dhariwal, eq. 17)."""
    time = torch.arange(steps + 1, dtype=torch.float64) / steps
    signal = torch.cos((time + 0.008) / 1.008 * math.pi / 2).square()
    return (1 - signal[1:] / signal[:-1]).clamp(max=MAX_BETA).float()


class FilmBlock(nn.Module):
    """A residual block of two layers, with a condition that scales and shifts (Perez et al. 2018, arXiv 1709.07871)."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Sequential(Linear(inputs, outputs), nn.LayerNorm(outputs), nn.Mish())
        self.film = Linear(condition, 2 * outputs)
        self.second = nn.Sequential(Linear(outputs, outputs), nn.LayerNorm(outputs), nn.Mish())
        self.around = Linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).chunk(2, -1)
        out: Tensor = self.second(scale * self.first(x) + shift) + self.around(x)
        return out


class NoiseNet(nn.Module):
    """Predicts the noise in `x` `[B, A]`, at steps `[B]` and observations `[B, obs_dim]`."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: list[int]) -> None:
        super().__init__()
        condition = 2 * FREQUENCIES + obs_dim
        widths = [action_dim, *hidden]
        self.blocks = nn.ModuleList(
            FilmBlock(inputs, outputs, condition) for inputs, outputs in itertools.pairwise(widths)
        )
        self.last = Linear(widths[-1], action_dim)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.logspace(0, -4, FREQUENCIES))

    def forward(self, x: Tensor, step: Tensor, obs: Tensor) -> Tensor:
        phase = step[:, None] * self.frequencies
        condition = torch.cat([phase.sin(), phase.cos(), obs], -1)
        for block in self.blocks:
            x = block(x, condition)
        noise: Tensor = self.last(x)
        return noise


class DiffusionPolicy(nn.Module):
    """Learns the distribution of a dataset's actions at each observation, and samples from it.

    The weights that draw are an average over the updates, of which ever more of the past is kept: `(1 + n) / (10 + n)`.

    Args:
        obs_dim: of one observation.
        low, high: bounds of the actions.
        hidden: widths of the blocks.
        steps: from noise to action.
        lr: Adam's learning rate; it falls to 0 over `decay_steps` by a cosine.
    """

    def __init__(
        self, obs_dim: int, low: tuple[float, ...], high: tuple[float, ...], hidden: list[int], steps: int, lr: float,
        decay_steps: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.action_dim, self.steps = len(low), steps
        self.normalizer = Normalizer((obs_dim,))
        self.net = NoiseNet(obs_dim, len(low), hidden)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = Adam(self.net.parameters(), lr, decay_steps)
        beta = cosine_schedule(steps)
        for name, value in {
            "center": (torch.tensor(high) + torch.tensor(low)) / 2,
            "scale": (torch.tensor(high) - torch.tensor(low)) / 2,
            "beta": beta,
            "signal": (1 - beta).cumprod(0),  # alpha bar, the share of the variance that is the action's
            "updates": torch.zeros(()),
        }.items():
            self.register_buffer(name, value, persistent=name == "updates")
        self.center: Tensor
        self.scale: Tensor
        self.beta: Tensor
        self.signal: Tensor
        self.updates: Tensor

    def noised(self, x: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        """Scaled actions `[B, A]` after that many steps `[B]`, from 0, of noise (DDPM, eq. 4)."""
        signal = self.signal[step][:, None]
        return signal.sqrt() * x + (1 - signal).sqrt() * noise

    def loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """The error of the predicted noise, at steps sampled uniformly (DDPM, eq. 14)."""
        x, noise = (action - self.center) / self.scale, torch.randn_like(action)
        step = torch.randint(self.steps, (len(obs),), device=obs.device)
        return F.mse_loss(self.net(self.noised(x, step, noise), step, self.normalizer(obs)), noise)

    def update(self, obs: Tensor, action: Tensor) -> Metrics:
        """One step of Adam, and of the moving average of the weights."""
        loss = self.loss(obs, action)
        self.optimizer.minimize(loss)
        with torch.no_grad():
            kept = ((1 + self.updates) / (10 + self.updates)).clamp(max=MAX_AVERAGE)
            self.updates.add_(1)
            for average, weight in zip(self.average.parameters(), self.net.parameters(), strict=True):
                average.lerp_(weight, 1 - kept)
        return {"loss": loss.detach()}

    @torch.no_grad()
    def sample(self, obs: Tensor) -> Tensor:
        """Samples an action for each observation, `[B, A]` (DDPM, algorithm 2).

        The action that a step foresees is clipped to the bounds.
        """
        condition = self.normalizer(obs)
        x = torch.randn(len(obs), self.action_dim, device=obs.device)
        for i in reversed(range(self.steps)):
            noise = self.average(x, torch.full((len(obs),), i, device=obs.device), condition)
            signal, before, beta = self.signal[i], self.signal[i - 1], self.beta[i]
            clean = ((x - (1 - signal).sqrt() * noise) / signal.sqrt()).clamp(-1, 1)
            if i == 0:
                break
            mean = (before.sqrt() * beta * clean + (1 - beta).sqrt() * (1 - before) * x) / (1 - signal)  # eq. 7
            x = mean + ((1 - before) / (1 - signal) * beta).sqrt() * torch.randn_like(x)
        action: Tensor = self.center + self.scale * clean
        return action
