"""Networks the algorithms share: MLPs, ensembles evaluated as one batched network, and policies over bounded actions.

Every network takes observations `[B, obs_dim]` and speaks the environment's own action units: a policy maps its output
onto `[low, high]` itself, so that buffers, datasets and critics never see rescaled actions.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.errors import UsageError

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
LOG_2 = math.log(2)


class MLP(nn.Sequential):
    """`[B, inputs] -> [B, outputs]` through layers of the given widths, PyTorch's default initialization.

    With `layer_norm` each activation is normalized (Ba et al. 2016, arXiv 1607.06450).
    """

    def __init__(
        self, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), activation: type[nn.Module] = nn.ReLU,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), activation()]
            if layer_norm:
                layers.append(nn.LayerNorm(width))
            inputs = width
        super().__init__(*layers, nn.Linear(inputs, outputs))


def check_frames(shape: Sequence[int]) -> None:
    """Raises UsageError where no network is known for frames `[C, H, W]`."""
    _, *size = shape
    if size != [84, 84] and not (min(size) >= 3 and max(size) <= 16):
        raise UsageError(
            f"no network is known for frames of {list(shape)}: there are some for [channels, 84, 84] and for grids of "
            "3 to 16 cells a side."
        )


class FrameEncoder(nn.Sequential):
    """Frames `[B, C, H, W]`, uint8 or floats, -> features `[B, features]`.

    84x84: the network of Mnih et al. 2015 (Nature 518), on bytes scaled to [0, 1]; floats are scaled already. Grids of
    up to 16 cells a side, as MinAtar's and MiniGrid's: that of Young and Tian 2019 (arXiv 1903.03176), on the numbers
    as they are.

    Raises:
        UsageError: any other size.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        check_frames(shape)
        channels, *size = shape
        if size == [84, 84]:
            self.features, self.scale = 512, 1 / 255
            self.layout = torch.channels_last  # a third faster on a CPU
            layers = [
                nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, self.features), nn.ReLU(),
            ]  # fmt: skip
        else:
            self.features, self.scale = 128, 1.0
            self.layout = torch.contiguous_format
            inside = 16 * (size[0] - 2) * (size[1] - 2)
            layers = [
                nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(inside, self.features), nn.ReLU(),
            ]  # fmt: skip
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        scaled = x.to(torch.float32, memory_format=self.layout, copy=True)
        if x.dtype == torch.uint8:
            scaled.mul_(self.scale)
        features: Tensor = super().forward(scaled)  # type: ignore[no-untyped-call]
        return features


def encoder(shape: Sequence[int]) -> tuple[nn.Module, int]:
    """What stands before the layers that an algorithm is about, and its number of outputs: nothing for a vector."""
    if len(shape) == 3:
        frames = FrameEncoder(shape)
        return frames, frames.features
    return nn.Flatten(), math.prod(shape)


def orthogonal_(network: nn.Module, last_gain: float = math.sqrt(2)) -> nn.Module:
    """Orthogonal weights of gain sqrt(2), the last layer's its own, and zero biases, in place."""
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d | EnsembleLinear)]
    for layer in layers:
        gain = last_gain if layer is layers[-1] else math.sqrt(2)
        for weight in layer.weight if isinstance(layer, EnsembleLinear) else [layer.weight]:
            nn.init.orthogonal_(weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return network


def near_zero_(network: nn.Sequential) -> nn.Sequential:
    """Glorot's uniform weights times 0.01 and zero biases for the last layer, in place: outputs begin close to 0."""
    last = network[-1]
    assert isinstance(last, nn.Linear)
    nn.init.xavier_uniform_(last.weight, gain=0.01)
    nn.init.zeros_(last.bias)
    return network


def small_last_(network: nn.Sequential, bound: float) -> nn.Sequential:
    """The last layer uniform in +-bound, the other layers' biases 0.1, in place.

    An et al. 2021, arXiv 2110.01548 (EDAC), whose code that is; ReBRAC's has it too.
    """
    layers = [layer for layer in network if isinstance(layer, nn.Linear | EnsembleLinear)]
    for layer in layers[:-1]:
        nn.init.constant_(layer.bias, 0.1)
    nn.init.uniform_(layers[-1].weight, -bound, bound)
    nn.init.uniform_(layers[-1].bias, -bound, bound)
    return network


def edac_critic_(critic: nn.Sequential) -> nn.Sequential:
    """Critics as EDAC's code begins them, and RIQL's, in place: `small_last_` and weights in +-1/sqrt(outputs).

    Their layers take a weight's outputs for its inputs, so that the first one begins four times as small as it would.
    """
    for layer in critic:
        if isinstance(layer, EnsembleLinear):
            bound = layer.weight.shape[-1] ** -0.5
            nn.init.uniform_(layer.weight, -bound, bound)
    return small_last_(critic, 3e-3)


class EnsembleLinear(nn.Module):
    """`members` linear layers in one batched product: `[members, B, inputs]` or `[B, inputs] -> [members, B, outputs]`.

    Each member is initialized as `nn.Linear` is.
    """

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)  # what nn.Linear's kaiming_uniform_(a=sqrt(5)) comes to
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.shape[-1] == 1:  # the matrix product of a single column is slower, far slower when compiled
            return (x * self.weight.mT).sum(-1, keepdim=True) + self.bias
        return torch.baddbmm(self.bias, x.expand(len(self.weight), *x.shape[-2:]), self.weight)


class EnsembleLayerNorm(nn.Module):
    """Layer normalization of `[members, B, width]`, each member with its own weights."""

    def __init__(self, members: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, width))
        self.bias = nn.Parameter(torch.zeros(members, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class EnsembleMLP(nn.Sequential):
    """`members` independent MLPs as one batched network: `[B, inputs] -> [members, B, outputs]`."""

    def __init__(
        self, members: int, inputs: int, outputs: int, hidden: Sequence[int] = (256, 256), layer_norm: bool = False,
        activation: type[nn.ReLU | nn.SiLU] = nn.ReLU,
    ) -> None:  # fmt: skip
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [EnsembleLinear(members, inputs, width), activation(inplace=True)]
            if layer_norm:
                layers.append(EnsembleLayerNorm(members, width))
            inputs = width
        super().__init__(*layers, EnsembleLinear(members, inputs, outputs))


class EnsembleCritic(EnsembleMLP):
    """`members` critics for a value head: `[B, obs_dim]` and `[B, action_dim] -> [members, B, outputs]`."""

    def __init__(
        self, members: int, obs_dim: int, action_dim: int, hidden: Sequence[int] = (256, 256), outputs: int = 1,
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(members, obs_dim + action_dim, outputs, hidden, layer_norm)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:  # type: ignore[override]
        """What each member says of each action."""
        return super().forward(torch.cat([obs, action], -1))  # type: ignore[no-any-return, no-untyped-call]

    def of_many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Of several actions an observation, `[B, obs_dim]` and `[n, B, action_dim] -> [members, n, B, outputs]`.

        What the first layer makes of an observation is computed once.
        """
        first, *rest = self
        assert isinstance(first, EnsembleLinear)
        of_obs, of_action = first.weight[:, : obs.shape[-1]], first.weight[:, obs.shape[-1] :]
        members, (n, count, _) = len(of_obs), actions.shape
        of_each = torch.baddbmm(first.bias, obs.expand(members, -1, -1), of_obs)[:, None]  # [members, 1, B, width]
        x = (of_each + (actions.flatten(0, 1) @ of_action).view(members, n, count, -1)).flatten(1, 2)
        for layer in rest:
            x = layer(x)
        return x.view(members, n, count, -1)


class Normalizer(nn.Module):
    """`(x - mean) / std`, at first the identity.

    The statistics are buffers, saved with the agent: a loaded one acts on raw observations.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.zeros(tuple(shape)))
        self.register_buffer("std", torch.ones(tuple(shape)))

    def fit(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Takes the statistics of `[N, ...]`, by weights `[N]`; 1e-3 is added to the standard deviation, as in CORL."""
        self.to(x.device)  # the data's: the agent follows when its run tracks it
        if weights is None:
            mean, std = x.mean(0), x.std(0, correction=0)
        else:
            share = weights.double() / weights.double().sum()
            mean = torch.tensordot(share, x.double(), 1)
            std = torch.tensordot(share, (x.double() - mean).square(), 1).sqrt()
        self.mean.copy_(mean)
        self.std.copy_(std + 1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class RunningNormalizer(Normalizer):
    """A `Normalizer` whose statistics are those of all that was seen so far, and whose output is clipped to +-10."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__(shape)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Counts `[N, ...]` in (Chan et al. 1979: the merged moments of two samples)."""
        total = self.count + len(x)
        shift = x.mean(0) - self.mean
        squares = self.std.square() * self.count + x.var(0, correction=0) * len(x)
        squares += shift.square() * self.count * len(x) / total
        self.mean += shift * len(x) / total
        self.std.copy_((squares / total + 1e-8).sqrt())
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(-10, 10)


class BoundedPolicy(nn.Module):
    """What every policy over continuous actions knows: their bounds `[low, high]`."""

    def __init__(self, low: Sequence[float], high: Sequence[float]) -> None:
        super().__init__()
        self.center: Tensor
        self.scale: Tensor
        low_, high_ = torch.tensor(low), torch.tensor(high)
        self.register_buffer("center", (high_ + low_) / 2)
        self.register_buffer("scale", (high_ - low_) / 2)

    def squash(self, x: Tensor) -> Tensor:
        """`[B, A]` real numbers -> actions within the bounds, by tanh."""
        return self.center + self.scale * torch.tanh(x)

    def clip(self, action: Tensor) -> Tensor:
        """Actions `[B, A]` brought within the bounds."""
        return torch.clamp(action, self.center - self.scale, self.center + self.scale)

    def perturb(self, action: Tensor, noise: Tensor) -> Tensor:
        """Actions `[B, A]` with noise in units of half the range, clipped to the bounds."""
        return self.clip(action + self.scale * noise)


class TanhGaussian(BoundedPolicy):
    """A Gaussian whose samples tanh squashes onto the action bounds.

    Haarnoja et al. 2018, arXiv 1801.01290, appendix C. Mean and log standard deviation are the two halves of one
    network's output; the latter is clamped to `log_std_bounds`.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int] = (256, 256),
        log_std_bounds: tuple[float, float] = (-20.0, 2.0),
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.net = MLP(obs_dim, 2 * len(low), hidden)
        self.log_std_bounds = log_std_bounds

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log standard deviation before the squashing, each `[B, A]`."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        return mean, log_std.clamp(*self.log_std_bounds)

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """A reparameterized action `[B, A]` and its log density `[B]` (eq. 21)."""
        mean, log_std = self(obs)
        return self.draw(mean, log_std, torch.randn_like(mean))

    def draw(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions `[..., B, A]` and log densities `[..., B]` of standard normal `noise`, for what `forward` gave."""
        x = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - HALF_LOG_2PI
        # log(1 - tanh(x)^2) written so that it does not underflow for large |x|
        log_det = 2 * (LOG_2 - x - F.softplus(-2 * x)) + self.scale.log()
        return self.squash(x), (log_prob - log_det).sum(-1)

    def target_entropy(self, given: float | None = None) -> float:
        """What to hold the entropy at, nats: of actions in [-1, 1] as given or else -dim(A), in their true units."""
        return float(self.scale.log().sum()) + (-len(self.scale) if given is None else given)

    def mode(self, obs: Tensor) -> Tensor:
        """The squashed mean `[B, A]`: the deterministic action."""
        return self.squash(self(obs)[0])


class GaussianPolicy(BoundedPolicy):
    """A Gaussian around a tanh mean, with one learned log standard deviation an action dimension.

    The policy of IQL's authors (github ikostrikov/implicit_q_learning): only the mean is squashed, samples are clipped.
    The standard deviation is in units of half the action's range.
    """

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int] = (256, 256),
        log_std_bounds: tuple[float, float] = (-5.0, 2.0),
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.net = MLP(obs_dim, len(low), hidden)
        self.log_std = nn.Parameter(torch.zeros(len(low)))
        self.log_std_bounds = log_std_bounds

    def mean(self, obs: Tensor) -> Tensor:
        """The mean `[B, A]`."""
        return self.squash(self.net(obs))

    def mode(self, obs: Tensor) -> Tensor:
        """The deterministic action `[B, A]`: the mean."""
        return self.mean(obs)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """Log density `[B]` of actions `[B, A]`."""
        log_std = self.log_std.clamp(*self.log_std_bounds)
        deviation = (action - self.mean(obs)) / self.scale * torch.exp(-log_std)
        return (-0.5 * deviation.square() - log_std - self.scale.log() - HALF_LOG_2PI).sum(-1)

    def sample(self, obs: Tensor) -> Tensor:
        """An action `[B, A]`, clipped to the bounds."""
        mean = self.mean(obs)
        return self.perturb(mean, self.log_std.clamp(*self.log_std_bounds).exp() * torch.randn_like(mean))


class DeterministicPolicy(BoundedPolicy):
    """One action an observation: an MLP under tanh."""

    def __init__(
        self, obs_dim: int, low: Sequence[float], high: Sequence[float], hidden: Sequence[int] = (256, 256),
        layer_norm: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(low, high)
        self.net = MLP(obs_dim, len(low), hidden, layer_norm=layer_norm)

    def mode(self, obs: Tensor) -> Tensor:
        """The action `[B, A]`."""
        return self.squash(self.net(obs))


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Moves every parameter of `target` a fraction `tau` of the way to `source`'s."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)
