"""Policies that Stable-Baselines3 saved, for `zoo eval`, `zoo play` and `zoo data make`. Its package is not needed.

A ZIP file holds `policy.pth`, a state dict, which is read as data alone; and `data`, JSON, some of whose entries are
pickles in Base64. Those are left alone: what is needed of them stands beside them as text.
"""

import io
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.envs import spec_of
from zoo.errors import RunError, UsageError
from zoo.nn import (
    MLP,
    Categorical,
    DeterministicPolicy,
    FrameEncoder,
    Gaussian,
    Normalizer,
    TanhGaussian,
)
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig
from zoo.spec import Spec
from zoo.streaming import epsilon_greedy

# the module of a policy's class -> the algorithm here that has such a policy
MODULES = {
    "stable_baselines3.sac.policies": "sac",
    "stable_baselines3.td3.policies": "td3",
    "stable_baselines3.common.policies": "ppo",
    "stable_baselines3.dqn.policies": "dqn",
}
ACTIVATIONS = ("ReLU", "Tanh", "ELU", "LeakyReLU", "SiLU", "GELU")
EPSILON = 0.05  # share of random actions of DQN where it explores, unless the file says another

Layer = tuple[Tensor, Tensor]  # weight [outputs, inputs, ...] and bias [outputs]


def load(path: Path, env: str) -> tuple[RunConfig, "Loaded"]:
    """A policy for an environment, and the settings by which it is evaluated there.

    Raises:
        UsageError: there is no such file or environment, it is of another environment, or of a kind that is not known.
        RunError: the file is damaged.
    """
    data, state = _read(path)
    algorithm = MODULES.get(str(_entry(data, "policy_class").get("__module__")))
    if algorithm is None:
        raise UsageError(f"{path} has a policy that is none of Stable-Baselines3's SAC, TD3, DDPG, PPO, A2C and DQN.")
    config, _, _ = compose([f"algo={algorithm}", f"env={env}"])
    spec = spec_of(config.env)
    try:
        _check_spaces(path, config.env.name, spec, data)
        return config, Loaded(spec, algorithm, data, state)
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path} has other networks or spaces than Stable-Baselines3's own policies for {algorithm}: {error}"
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The entries of `data`, and the state dict of the policy."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file.")
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
            state = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True)
        if not (isinstance(data, dict) and isinstance(state, dict)):
            raise ValueError("it does not hold what it should")
        return data, state
    except KeyError as error:
        raise UsageError(f"{path} is not a ZIP file of Stable-Baselines3: it has no data or no policy.pth.") from error
    except Exception as error:  # torch and zipfile raise many kinds on damaged files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{path} is not a readable ZIP file of Stable-Baselines3: {reason}") from error


def _entry(data: dict[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return value if isinstance(value, dict) else {}


def _numbers(text: Any) -> np.ndarray:
    """What NumPy prints of a flat array, `[-1.  2.5]`."""
    return np.array([float(word) for word in re.findall(r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|inf)", str(text))])


def _check_spaces(path: Path, env: str, spec: Spec, data: dict[str, Any]) -> None:
    """Raises UsageError where the policy was made for other observations or actions than the environment's."""
    observed, acted = _entry(data, "observation_space"), _entry(data, "action_space")
    shape = [int(observed["n"])] if "n" in observed else observed.get("_shape")  # whole numbers become one-hot vectors
    if shape != list(spec.obs_shape):
        there, here = f"observes {shape}", f"has observations {list(spec.obs_shape)}"
        raise UsageError(f"{path} {there}; {env} {here}. Give the environment that it was made for.")
    there = f"{acted['n']} discrete actions" if "n" in acted else "other actions"
    if spec.num_actions is not None:
        here, fits = f"{spec.num_actions} discrete ones", str(acted.get("n")) == str(spec.num_actions)
    else:
        own, bounds = (spec.action_low, spec.action_high), [_numbers(acted.get(name, "")) for name in ("low", "high")]
        here = f"actions between {list(own[0])} and {list(own[1])}"
        if "low" in acted:
            there = f"actions between {acted['low']} and {acted['high']}"
        fits = all(len(x) == len(y) and np.allclose(x, y) for x, y in zip(own, bounds, strict=True))
    if not fits:
        raise UsageError(f"{path} gives {there}; {env} takes {here}. Give the environment that it was made for.")


def _layers(state: dict[str, Tensor], prefix: str) -> list[Layer]:
    """The layers whose names begin so, in order."""
    names = [name.removesuffix("weight") for name in state if name.startswith(prefix) and name.endswith(".weight")]
    return [(state[f"{name}weight"], state[f"{name}bias"]) for name in names]


def _set(module: nn.Module, values: Sequence[Layer]) -> None:
    own = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    if [layer.weight.shape for layer in own] != [weight.shape for weight, _ in values]:
        raise ValueError(f"layers of {[list(weight.shape) for weight, _ in values]}")
    with torch.no_grad():
        for layer, (weight, bias) in zip(own, values, strict=True):
            layer.weight.copy_(weight)
            assert layer.bias is not None
            layer.bias.copy_(bias)


def _activation(algorithm: str, data: dict[str, Any]) -> type[nn.Module]:
    given = _entry(data, "policy_kwargs").get("activation_fn")
    if given is None:
        return nn.Tanh if algorithm == "ppo" else nn.ReLU
    name = re.sub(r".*\.(\w+)'>", r"\1", str(given))
    if name not in ACTIVATIONS:
        raise ValueError(f"the activation {name}")
    activation: type[nn.Module] = getattr(nn, name)
    return activation


# classes of features extractors that are rebuilt here; one of one's own need not have weights that would give it away
LAYERS = "stable_baselines3.common.torch_layers"
EXTRACTORS = (f"{LAYERS}.FlattenExtractor", f"{LAYERS}.NatureCNN", "zoo.export.normalized.NormalizedFeatures")


class Loaded(Agent):
    """A policy of Stable-Baselines3, which plays and does not learn.

    Args:
        spec: the environment's.
        algorithm: sac, td3, ppo or dqn.
        data, state: of its file.

    Raises:
        KeyError, IndexError, RuntimeError, ValueError: the layers are not such a policy's.
    """

    def __init__(self, spec: Spec, algorithm: str, data: dict[str, Any], state: dict[str, Tensor]) -> None:
        super().__init__()
        self.spec, self.algorithm = spec, algorithm
        self.epsilon = float(data.get("exploration_final_eps", EPSILON))
        scaled = _entry(data, "policy_kwargs").get("normalize_images", True) is True
        if data.get("use_sde") or (spec.obs_dtype == "uint8" and not scaled):
            raise ValueError("use_sde, or images that are not scaled")
        made = str(_entry(data, "policy_kwargs").get("features_extractor_class", ""))
        if made and re.sub(r"<class '(.*)'>", r"\1", made) not in EXTRACTORS:
            raise ValueError("a features extractor")
        owner = {"sac": "actor.", "td3": "actor.", "ppo": "pi_", "dqn": "q_net."}[algorithm]
        prefix = f"{owner}features_extractor."
        if not any(name.startswith(prefix) for name in state):
            prefix = "features_extractor."
        self.features: nn.Module = nn.Flatten()
        inputs = spec.obs_dim
        if f"{prefix}mean" in state:
            self.features = _Clipped(state[f"{prefix}mean"], state[f"{prefix}std"], float(state[f"{prefix}clip"]))
        elif spec.is_image:
            self.features = FrameEncoder(spec.obs_shape)
            _set(self.features, _layers(state, prefix))
            inputs = self.features.features
        elif any(name.startswith(prefix) for name in state):
            raise ValueError("a features extractor")
        activation = _activation(algorithm, data)
        bounds = spec.action_low, spec.action_high
        self.policy: nn.Module
        if algorithm == "sac":
            body, *heads = (_layers(state, f"actor.{part}") for part in ("latent_pi.", "mu.", "log_std."))
            values = [*body, tuple(torch.cat(pair) for pair in zip(*(head[0] for head in heads), strict=True))]
            self.policy = TanhGaussian(inputs, *bounds, [])
            self.net = self.policy.net = _mlp(inputs, values, activation)
        elif algorithm == "td3":
            noise = _numbers(_entry(data, "action_noise").get("_sigma", "0"))  # in units of half the range, as here
            self.policy = DeterministicPolicy(inputs, *bounds, [], exploration_noise=float(noise.max(initial=0)))
            self.net = self.policy.net = _mlp(inputs, _layers(state, "actor.mu."), activation)
        elif algorithm == "dqn":
            self.policy = Categorical(spec)
            self.net = _mlp(inputs, _layers(state, "q_net.q_net."), activation)
        else:
            *body, (weight, bias) = _layers(state, "mlp_extractor.policy_net.") + _layers(state, "action_net.")
            self.policy = Categorical(spec) if spec.num_actions else Gaussian(spec)
            if isinstance(self.policy, Gaussian):
                scale, center = self.policy.scale, self.policy.center
                weight, bias = weight / scale[:, None], (bias - center) / scale
                assert self.policy.log_std is not None
                self.policy.log_std.data.copy_(state["log_std"] - scale.log())
            self.net = _mlp(inputs, [*body, (weight, bias)], activation)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        x = self.features(obs)
        if isinstance(self.policy, TanhGaussian):
            return self.policy.act(x, explore)
        if isinstance(self.policy, DeterministicPolicy):
            return self.policy.sample(x) if explore else self.policy.mode(x)
        assert isinstance(self.policy, Gaussian | Categorical)
        out = self.net(x)
        if not explore:
            return self.policy.mode(out)
        if self.algorithm == "ppo":
            return self.policy.clip(self.policy.sample(out))
        return epsilon_greedy(out, self.epsilon)


class _Clipped(Normalizer):
    """Normalized observations as `zoo export` writes them."""

    def __init__(self, mean: Tensor, std: Tensor, clip: float) -> None:
        super().__init__(mean.shape)
        self.mean.copy_(mean)
        self.std.copy_(std)
        self.clip = clip

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(1)).clamp(-self.clip, self.clip)


def _mlp(inputs: int, values: Sequence[Any], activation: type[nn.Module]) -> MLP:
    """A network with these layers."""
    widths = [len(bias) for _, bias in values]
    net = MLP(inputs, widths[-1], widths[:-1], activation)
    _set(net, values)
    return net
