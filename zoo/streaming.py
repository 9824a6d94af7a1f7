"""What learning from a stream needs, one sample at a time and nothing stored: networks, optimizers, running statistics.

Elsayed, Vasan, Mahmood 2024, "Streaming Deep Reinforcement Learning Finally Works" (arXiv 2410.14606). The arithmetic
of one sample is so small that what surrounds it decides the speed: a network's weights are one vector, and so are the
traces of its gradients, and `compile=true` makes a few loops of a whole update.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.data.batch import Transition
from zoo.errors import UsageError
from zoo.nn import check_frames, optim
from zoo.rollout import Rollout
from zoo.run import Run
from zoo.spec import Spec


class Sample(NamedTuple):
    """What came of the last action."""

    reward: Tensor  # []
    next_obs: Tensor  # [...]
    terminated: Tensor  # [] bool; stops bootstrapping

    @classmethod
    def of(cls, transition: Transition) -> "Sample":
        """The only one of a transition of one environment."""
        return cls(transition.reward[0], transition.next_obs[0], transition.terminated[0])


class StreamNetwork(nn.Module):
    """`[..., *shape] -> [..., outputs]`: layers with LayerNorm before LeakyReLU, all of their weights in one vector.

    Each output of a layer begins with `sparsity` of its weights at 0, the others uniform in +-1/sqrt(inputs), its bias
    at 0. LayerNorm, without parameters of its own, is over all outputs of a layer. Frames pass the convolutions of the
    authors' code before the hidden layers: `[C, 84, 84]` Atari's, grids MinAtar's.

    Raises:
        UsageError: no convolutions are known for the frames, or two layers in a row would begin with zeros alone: then
            no gradient ever reaches a weight.
    """

    def __init__(
        self, shape: Sequence[int], outputs: int, hidden: Sequence[int], sparsity: float = 0.9, layer_norm: bool = True
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.strides: list[int] = []
        self.shapes: list[tuple[int, ...]] = []  # of the layers' weights, the convolutions first
        if len(shape) == 3:
            channels, *size = shape
            check_frames(shape)
            atari = [(32, 8, 5), (64, 4, 3), (64, 3, 2)]
            for width, kernel, stride in atari if size == [84, 84] else [(16, 3, 1)]:
                self.shapes.append((width, channels, kernel, kernel))
                self.strides.append(stride)
                channels, size = width, [(side - kernel) // stride + 1 for side in size]
            shape = (channels, *size)
        widths = [math.prod(shape), *hidden, outputs]
        self.shapes += [(outputs, inputs) for inputs, outputs in itertools.pairwise(widths)]
        connected = [zeros(layer, sparsity) < math.prod(layer[1:]) for layer in self.shapes]
        if not all(one or other for one, other in itertools.pairwise(connected)):
            raise UsageError(
                f"algo.hidden={list(hidden)}: with algo.sparsity={sparsity} two layers in a row would begin with zeros "
                "alone, and never learn. Give wider ones, such as algo.hidden=[32,32], or a lower algo.sparsity."
            )
        parts: list[Tensor] = []
        for layer in self.shapes:
            parts += [sparse(layer, sparsity).flatten(), torch.zeros(layer[0])]
        self.sizes = [len(part) for part in parts]
        self.weights = nn.Parameter(torch.cat(parts))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(self.weights, self.sizes)
        for i, (layer, weight, bias) in enumerate(zip(self.shapes, parts[::2], parts[1::2], strict=True)):
            if len(layer) == 4:
                x = F.conv2d(x, weight.view(layer), bias, self.strides[i])
            else:
                x = x.flatten(-3) if i and i == len(self.strides) else x
                x = (weight.view(layer) * x.unsqueeze(-2)).sum(-1) + bias  # unlike a library's product, fuses
            if i < len(self.shapes) - 1:
                x = F.layer_norm(x, x.shape[1 - len(layer) :]) if self.layer_norm else x
                x = F.leaky_relu(x)
        return x


def zeros(shape: tuple[int, ...], sparsity: float) -> int:
    """How many of the weights into each output begin at 0."""
    return math.ceil(sparsity * math.prod(shape[1:]))


def sparse(shape: tuple[int, ...], sparsity: float) -> Tensor:
    """Weights `[outputs, ...]`, of which `sparsity` are 0 for each output, rounded up; the others LeCun's uniform."""
    inputs = math.prod(shape[1:])
    weight = torch.empty(shape[0], inputs).uniform_(-1, 1) / math.sqrt(inputs)
    places = torch.rand_like(weight).argsort(1)[:, : zeros(shape, sparsity)]
    return weight.scatter_(1, places, 0.0).view(shape)


class TraceOptimizer(nn.Module):
    """Moves the weights of one network along the trace z of past gradients, `z <- decay z + gradient`.

    Args:
        network: whose weights it moves.
        lr: step size.
        decay: of the trace, gamma lambda.
        kappa: of ObGD's bound.
    """

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__()
        self.moved: list[nn.Parameter] = [network.weights]  # in a list, they stay parameters of their network only
        self.lr, self.decay, self.kappa = lr, decay, kappa
        self.trace: Tensor
        self.register_buffer("trace", torch.zeros_like(network.weights))

    def reset(self) -> None:
        """Credit ends here."""
        self.trace.zero_()

    def step(self, output: Tensor, delta: Tensor) -> Tensor:
        """Moves the weights; `output` is what grows where the error `delta` is positive. Returns the step size `[]`."""
        (gradient,) = torch.autograd.grad(output, self.moved)
        with torch.no_grad():
            self.trace.mul_(self.decay).add_(gradient)
            return self.move(self.moved[0], delta)

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        """One step of the weights, in place."""
        raise NotImplementedError


class SGD(TraceOptimizer):
    """`w <- w + lr delta z`: classic TD(lambda) and its kin (Sutton 1988)."""

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        weights.addcmul_(self.trace, self.lr * delta)
        return torch.full_like(delta, self.lr)


class Adam(TraceOptimizer):
    """The zoo's Adam, up delta z."""

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__(network, lr, decay, kappa)
        self.adam = optim.Adam(self.moved, lr)

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        with torch.enable_grad():
            self.adam.minimize(-torch.dot(delta * self.trace, weights))
        return self.lr / (1 - optim.BETA1**self.adam.step)


class ObGD(TraceOptimizer):
    """Overshooting-bounded gradient descent: a step as large as `lr`, but never so large that it could overshoot.

    w <- w + lr / max(M, 1) delta z,  M = lr kappa max(|delta|, 1) ||z||_1
    """

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        return self.bounded(weights, delta, self.trace)

    def bounded(self, weights: Tensor, delta: Tensor, direction: Tensor) -> Tensor:
        """One step along a direction, in place."""
        bound = self.lr * self.kappa * delta.abs().clamp(min=1) * direction.abs().sum()
        size = self.lr / bound.clamp(min=1)
        weights.addcmul_(direction, size * delta)
        return size


class AdaptiveObGD(ObGD):
    """ObGD along z over the root mean square, weight by weight, of the delta z so far."""

    BETA, EPS = 0.999, 1e-8

    def __init__(self, network: StreamNetwork, lr: float, decay: float, kappa: float = 1.0) -> None:
        super().__init__(network, lr, decay, kappa)
        self.count: Tensor
        self.square: Tensor
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("square", torch.zeros_like(network.weights))

    def move(self, weights: Tensor, delta: Tensor) -> Tensor:
        self.count.add_(1)
        self.square.lerp_((delta * self.trace).square(), 1 - self.BETA)
        mean_square = self.square / (1 - self.BETA**self.count)
        return self.bounded(weights, delta, self.trace / (mean_square + self.EPS).sqrt())


OPTIMIZERS: dict[str, type[TraceOptimizer]] = {
    "obgd": ObGD,
    "adaptive_obgd": AdaptiveObGD,
    "sgd": SGD,
    "adam": Adam,
}


def optimizer(config: Any, network: StreamNetwork, kappa: float) -> TraceOptimizer:
    """The optimizer that an algorithm's `Config` asks for."""
    return OPTIMIZERS[config.optimizer](network, config.lr, config.discount * config.trace_lambda, kappa)


def check(config: Any, *kappas: str) -> None:
    """What every streaming algorithm's `Config` must hold. Raises ValueError."""
    if config.optimizer not in OPTIMIZERS:
        raise ValueError(f"algo.optimizer={config.optimizer} does not exist; there are {', '.join(OPTIMIZERS)}")
    for name in ("discount", "trace_lambda", "sparsity"):
        if not 0 <= getattr(config, name) <= 1:
            raise ValueError(f"algo.{name}={getattr(config, name)} must lie between 0 and 1")
    for name in kappas:
        if getattr(config, name) < 1:
            raise ValueError(
                f"algo.{name}={getattr(config, name)} must be at least 1, or a step could overshoot; the paper takes 2 "
                "for values, 3 for policies"
            )


class RunningMoments(nn.Module):
    """Mean and variance of all samples so far (Welford 1962), in double precision for long streams' sake.

    Each is kept with a leading dimension of one: PyTorch's compiler takes double precision numbers without any for
    constants and loses what is written to them.
    """

    def __init__(self, shape: Sequence[int] = ()) -> None:
        super().__init__()
        self.count: Tensor
        self.means: Tensor
        self.squares: Tensor
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(1, *shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(1, *shape, dtype=torch.float64))  # of deviations, their sum

    def update(self, x: Tensor) -> None:
        """Counts one sample in."""
        self.count.add_(1)
        deviation = x - self.means
        self.means.add_(deviation / self.count[0])
        self.squares.addcmul_(deviation, x - self.means)

    @property
    def mean(self) -> Tensor:
        """`[*shape]`."""
        return self.means[0]

    def std(self) -> Tensor:
        """`[*shape]`, unbiased; 1 until there are two samples."""
        variance = torch.where(self.count[0] < 2, 1.0, self.squares[0] / (self.count[0] - 1).clamp(min=1))
        std: Tensor = (variance + 1e-8).sqrt()
        return std


class Senses(nn.Module):
    """What a streaming agent perceives: observations and rewards in units of their own history, and the time.

    An observation is brought to mean 0 and standard deviation 1 over all that were seen, itself included. A reward is
    divided by the standard deviation of the discounted sums of rewards. The time is the elapsed share of an episode,
    less 0.5; frames go without, a convolution has no place for it.

    Args:
        obs_shape: of one observation.
        discount: of the sums of rewards.
        timed: or leave the time out.
        normalize_obs: or leave observations as they are.
        scale_reward: or leave rewards as they are.
    """

    def __init__(
        self, obs_shape: Sequence[int], discount: float, timed: bool = True, normalize_obs: bool = True,
        scale_reward: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.discount, self.normalize_obs, self.scale_reward = discount, normalize_obs, scale_reward
        self.frames = len(obs_shape) == 3
        self.timed = timed and not self.frames
        self.shape = tuple(obs_shape) if self.frames else (math.prod(obs_shape) + self.timed,)
        self.obs_moments, self.return_moments = RunningMoments(obs_shape), RunningMoments()
        self.time_limit: Tensor
        self.elapsed: Tensor
        self.rewards: Tensor
        self.register_buffer("time_limit", torch.ones(()))  # steps after which an episode ends
        self.register_buffer("elapsed", torch.zeros(()))  # steps in the episode
        self.register_buffer("rewards", torch.zeros(1, dtype=torch.float64))  # discounted sum since it began

    def begin(self, obs: Tensor) -> Tensor:
        """The first observation of an episode -> what is perceived of it, `[*shape]`."""
        self.elapsed.zero_()
        self.rewards.zero_()
        self.obs_moments.update(obs)
        return self.forward(obs, self.elapsed)

    def perceive(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """One step on: the reward and what is perceived of the next observation, `[*shape]`."""
        self.elapsed.add_(1)
        self.rewards.mul_(self.discount).add_(sample.reward)
        self.return_moments.update(self.rewards[0])
        self.obs_moments.update(sample.next_obs)
        reward = (sample.reward / self.return_moments.std()).float() if self.scale_reward else sample.reward
        return reward, self.forward(sample.next_obs, self.elapsed)

    def forward(self, obs: Tensor, elapsed: Tensor) -> Tensor:
        """Observations `[..., *obs_shape]` as they are perceived so many steps `[...]` into their episodes."""
        x = ((obs - self.obs_moments.mean) / self.obs_moments.std()).float() if self.normalize_obs else obs.float()
        if self.frames:
            return x
        x = x.flatten(elapsed.ndim)
        return torch.cat([x, (elapsed / self.time_limit - 0.5)[..., None]], -1) if self.timed else x


class StreamAgent(Agent):
    """An agent in the middle of its stream: it remembers what it perceives and what it does about it, no more.

    Attributes:
        x: `[*senses.shape]` what is perceived now.
        action: `[A]` or `[]` what is done next.
    """

    def __init__(self, spec: Spec, config: Any) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.senses = Senses(
            spec.obs_shape, config.discount, config.time_feature, config.normalize_obs, config.scale_reward
        )
        self.x: Tensor
        self.action: Tensor
        self.register_buffer("x", torch.zeros(self.senses.shape))
        action = torch.zeros(spec.action_dim) if spec.num_actions is None else torch.zeros((), dtype=torch.int64)
        self.register_buffer("action", action)
        self._elapsed = torch.zeros(0)  # [B] of the episodes that are played, not learned from

    def epsilon(self, final: float, steps: float) -> Tensor:
        """A share that falls from 1 to `final` over so many actions, this one included."""
        return 1 + ((self.senses.return_moments.count[0] + 1) / steps).clamp(max=1) * (final - 1)

    def perceived(self, obs: Tensor) -> Tensor:
        """What is perceived of observations `[B, ...]` of the episodes that are played: `[B, *senses.shape]`."""
        if len(self._elapsed) != len(obs):
            self.begin(len(obs))
        x: Tensor = self.senses(obs, self._elapsed.to(obs.device))
        return x

    def begin(self, num_envs: int) -> None:
        self._elapsed = torch.zeros(num_envs)

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        self._elapsed = self._elapsed + 1


def epsilon_greedy(q: Tensor, epsilon: Tensor | float) -> Tensor:
    """The best of the values `[..., num_actions]`, but with probability `epsilon` a random one: `[...]`."""
    greedy = q.argmax(-1)
    random = torch.randint(q.shape[-1], greedy.shape, device=q.device)
    return torch.where(torch.rand(greedy.shape, device=q.device) < epsilon, random, greedy)


def stream(run: Run, config: Any) -> tuple[Rollout, int]:
    """The one environment that a stream comes from, and the steps of its episodes, 1 where there is no limit.

    Frames go without the time. Without a limit it cannot be told: it is left out, and that is said.

    Raises:
        UsageError: there are several environments.
    """
    envs = run.envs()
    if envs.num_envs > 1:
        raise UsageError(f"num_envs={envs.num_envs}: {run.algorithm.name} learns from one stream. Try: num_envs=1")
    limit = run.time_limit()
    frames = len(envs.spec.obs_shape) == 3
    if config.time_feature and (frames or limit is None):
        if not frames:
            run.report(
                f"{run.config.env.id} has no step limit: algo.time_feature is left out. env.max_episode_steps sets one."
            )
        config.time_feature = run.record["config"]["algo"]["time_feature"] = False
    return envs, limit or 1
