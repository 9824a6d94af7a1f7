"""Policies that sample actions by diffusion: noise is turned into an action step by step, which can represent
distributions of any shape.

Ho et al. 2020 (DDPM, arXiv 2006.11239); the cosine schedule is that of Nichol and Dhariwal 2021 (arXiv 2102.09672).
Internally, actions are in units of half their range, from -1 to 1.
"""

import copy
import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.nn import MLP, BoundedPolicy, Linear, Mish, Normalizer, with_derivative
from zoo.nn.optim import Adam

MAX_BETA = 0.999  # bound on the last beta of the cosine schedule
MAX_AVERAGE = 0.9999  # the averaged weights keep at most this share of themselves in an update
FREQUENCIES = 16  # number of frequencies in the sine and cosine embedding of a step
STEP_WIDTH = 16  # width of Diffusion-QL's embedding of a step


def cosine_schedule(steps: int) -> Tensor:
    """The noise variances `beta` `[steps]` (Nichol and Dhariwal, eq. 17)."""
    time = torch.arange(steps + 1, dtype=torch.float64) / steps
    signal = torch.cos((time + 0.008) / 1.008 * math.pi / 2).square()
    return (1 - signal[1:] / signal[:-1]).clamp(max=MAX_BETA).float()


def vp_schedule(steps: int) -> Tensor:
    """The noise variances `beta` `[steps]` of a variance-preserving SDE, whose rate grows from 0.1 to 10.

    Song et al. 2021 (arXiv 2011.13456); with few steps in Wang et al. 2022 (arXiv 2208.06193), whose rates these are.
    """
    time = torch.arange(1, steps + 1, dtype=torch.float64)
    return (1 - torch.exp(-0.1 / steps - 0.5 * (10 - 0.1) * (2 * time - 1) / steps**2)).float()


class TimeEmbedding(nn.Module):
    """Embeds times `[...]` as `[..., width]`: their sines and cosines, then a network of two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = MLP(width, width, [2 * width], Mish)
        self.frequencies = nn.Buffer(torch.logspace(0, -4, width // 2), persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        phase = time[..., None] * self.frequencies
        out: Tensor = self.net(torch.cat([phase.sin(), phase.cos()], -1))
        return out

    def with_derivative(self, time: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings `[..., width]`, and their derivatives with respect to time."""
        phase = time[..., None] * self.frequencies
        sin, cos = phase.sin(), phase.cos()
        along = torch.cat([self.frequencies * cos, -self.frequencies * sin], -1)
        return with_derivative(self.net, torch.cat([sin, cos], -1), along)


class Diffusion(BoundedPolicy):
    """Noise is added to actions step by step, and removed from them.

    Args:
        low, high: bounds of the actions.
        beta: variances of the noise, `[steps]`.
    """

    def __init__(self, low: Sequence[float], high: Sequence[float], beta: Tensor) -> None:
        super().__init__(low, high)
        self.steps = len(beta)
        self.beta = nn.Buffer(beta, persistent=False)
        # alpha bar, the share of the variance that comes from the action
        self.signal = nn.Buffer((1 - beta).cumprod(0), persistent=False)

    def noised(self, x: Tensor, step: Tensor, noise: Tensor) -> Tensor:
        """Actions `[B, A]` after that many steps `[B]`, counted from 0, of added noise (DDPM, eq. 4)."""
        signal = self.signal[step][:, None]
        return signal.sqrt() * x + (1 - signal).sqrt() * noise

    def clean(self, x: Tensor, noise: Tensor, i: int) -> Tensor:
        """The actions, clipped to the bounds, to which `i + 1` steps added `noise` to give `x` `[..., A]`."""
        signal = self.signal[i]
        return ((x - (1 - signal).sqrt() * noise) / signal.sqrt()).clamp(-1, 1)

    def back(self, x: Tensor, clean: Tensor, i: int, noise: Tensor) -> Tensor:
        """Takes `x` `[..., A]` back by its step `i`, from 1, using `clean` and standard normal `noise` (DDPM eq. 7)."""
        signal, before, beta = self.signal[i], self.signal[i - 1], self.beta[i]
        mean = (before.sqrt() * beta * clean + (1 - beta).sqrt() * (1 - before) * x) / (1 - signal)
        return mean + ((1 - before) / (1 - signal) * beta).sqrt() * noise


class FilmBlock(nn.Module):
    """A residual block of two layers, scaled and shifted by a condition (FiLM, Perez et al. 2018, arXiv 1709.07871)."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Sequential(Linear(inputs, outputs), nn.LayerNorm(outputs), Mish())
        self.film = Linear(condition, 2 * outputs)
        self.second = nn.Sequential(Linear(outputs, outputs), nn.LayerNorm(outputs), Mish())
        self.around = Linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition).chunk(2, -1)
        out: Tensor = self.second(scale * self.first(x) + shift) + self.around(x)
        return out


class NoiseNet(nn.Module):
    """Predicts the noise in `x` `[B, A]`, given steps `[B]` and observations `[B, obs_dim]`."""

    def __init__(self, obs_dim: int, action_dim: int, hidden: list[int]) -> None:
        super().__init__()
        condition = 2 * FREQUENCIES + obs_dim
        widths = [action_dim, *hidden]
        self.blocks = nn.ModuleList(
            FilmBlock(inputs, outputs, condition) for inputs, outputs in itertools.pairwise(widths)
        )
        self.last = Linear(widths[-1], action_dim)
        self.frequencies = nn.Buffer(torch.logspace(0, -4, FREQUENCIES))

    def forward(self, x: Tensor, step: Tensor, obs: Tensor) -> Tensor:
        phase = step[:, None] * self.frequencies
        condition = torch.cat([phase.sin(), phase.cos(), obs], -1)
        for block in self.blocks:
            x = block(x, condition)
        noise: Tensor = self.last(x)
        return noise


class DiffusionPolicy(Diffusion):
    """Learns the distribution of a dataset's actions given the observation, and samples from it.

    Sampling uses an average of the weights over the updates that keeps ever more of the past: `(1 + n) / (10 + n)`.

    Args:
        obs_dim: the size of an observation.
        low, high: bounds of the actions.
        hidden: widths of the blocks.
        steps: number of steps from noise to action.
        lr: Adam's learning rate; it follows a cosine to 0 over `decay_steps`.
    """

    def __init__(
        self, obs_dim: int, low: tuple[float, ...], high: tuple[float, ...], hidden: list[int], steps: int, lr: float,
        decay_steps: int,
    ) -> None:  # fmt: skip
        super().__init__(low, high, cosine_schedule(steps))
        self.action_dim = len(low)
        self.normalizer = Normalizer((obs_dim,))
        self.net = NoiseNet(obs_dim, len(low), hidden)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.optimizer = Adam(self.net.parameters(), lr, decay_steps)
        self.updates = nn.Buffer(torch.zeros(()))

    def loss(self, obs: Tensor, action: Tensor) -> Tensor:
        """The error of the predicted noise, at uniformly sampled steps (DDPM, eq. 14)."""
        x, noise = self.to_unit(action), torch.randn_like(action)
        step = torch.randint(self.steps, (len(obs),), device=obs.device)
        return F.mse_loss(self.net(self.noised(x, step, noise), step, self.normalizer(obs)), noise)

    def update(self, obs: Tensor, action: Tensor) -> Metrics:
        """One step of Adam and of the moving average of the weights."""
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

        At each step the predicted final action is clipped to the bounds.
        """
        condition = self.normalizer(obs)
        x = torch.randn(len(obs), self.action_dim, device=obs.device)
        for i in reversed(range(self.steps)):
            noise = self.average(x, torch.full((len(obs),), i, device=obs.device), condition)
            clean = self.clean(x, noise, i)
            if i > 0:
                x = self.back(x, clean, i, torch.randn_like(x))
        return self.from_unit(clean)


class DenoisingPolicy(Diffusion):
    """The policy of Diffusion-QL (Wang et al. 2022, arXiv 2208.06193): an MLP that predicts the noise.

    Args:
        obs_dim: the size of an observation.
        low, high: bounds of the actions.
        hidden: widths of the hidden layers.
        steps: number of steps from noise to action.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int], steps: int
    ) -> None:
        super().__init__(low, high, vp_schedule(steps))
        self.embedding = TimeEmbedding(STEP_WIDTH)
        self.net = MLP(len(low) + STEP_WIDTH + obs_dim, len(low), hidden, Mish)

    def forward(self, obs: Tensor, x: Tensor, step: Tensor) -> Tensor:
        """The noise `[..., A]` in `x` `[..., A]` after that many steps, counted from 0, `[...]` or `[1]`."""
        embedded = self.embedding(step).expand(*x.shape[:-1], -1)
        noise: Tensor = self.net(torch.cat([x, embedded, obs], -1))
        return noise

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The actions `[..., A]` that the chain generates from noise `[steps, ..., A]`, one for each of its steps.

        Gradients flow through all of the steps.
        """
        x = noise[-1]
        for i in reversed(range(self.steps)):
            clean = self.clean(x, self(obs, x, torch.full((1,), i, device=x.device)), i)
            if i > 0:
                x = self.back(x, clean, i, noise[i - 1])
        return self.from_unit(clean)
