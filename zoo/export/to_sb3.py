"""Writes agents of sac, td3, ppo and dqn as ZIP files of Stable-Baselines3.

The weights are the same numbers, except where conventions differ:

- Critics of Stable-Baselines3 take actions in [-1, 1], the zoo's in the environment's units: the first layer absorbs
  that difference. PPO's policy here gives actions in units of half their range: the last layer absorbs that.
- PPO's observations are normalized and clipped by a features extractor (`NormalizedFeatures`) whose class is stored in
  the file, so that `PPO.load` alone gives the same actions. VecNormalize would be a second file that must not be lost,
  and a first layer that absorbs normalization could not clip. As pickled code it needs the same minor Python version.
- PPO's value is in normalized rewards; its last layer absorbs that.

Critics and their targets are exported with the actor; optimizers and replay buffers are not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor, nn

from zoo.errors import UsageError, optional
from zoo.export.policy import Run
from zoo.nn import EnsembleLinear, FrameEncoder, RunningNormalizer
from zoo.runs.residual import Corrected
from zoo.spec import GRID

ALGORITHMS = ("sac", "td3", "ppo", "dqn")
CLIP = 10.0  # that of RunningNormalizer

Layer = tuple[Tensor, Tensor]  # weight [outputs, inputs, ...] and bias [outputs]


def check(algorithm: str, agent: Any) -> None:
    """Raises UsageError if Stable-Baselines3 has no such agent, or its package is not installed."""
    if algorithm not in ALGORITHMS:
        raise UsageError(f"Stable-Baselines3 has no {algorithm}: --format sb3 takes runs of {', '.join(ALGORITHMS)}.")
    if isinstance(agent, Corrected):
        raise UsageError("Stable-Baselines3 has no residual policies. Take --format onnx or torchscript.")
    if agent.head.outputs > 1:
        raise UsageError(
            f"Stable-Baselines3 has no critics over bins: algo.value_head={agent.config.value_head}. "
            "Take --format onnx or torchscript."
        )
    if algorithm == "dqn" and agent.config.dueling:
        raise UsageError("Stable-Baselines3's DQN is not dueling. Take --format onnx or torchscript.")
    if agent.spec.is_image and min(agent.spec.obs_shape[1:]) <= GRID:
        raise UsageError(
            f"Stable-Baselines3 has no network for images of {list(agent.spec.obs_shape)}. "
            "Take --format onnx or torchscript."
        )
    optional("stable_baselines3", "--format sb3", "sb3")


def write(algorithm: str, agent: Any, spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]], path: Path) -> Run:
    """Writes a ZIP file and opens it with Stable-Baselines3.

    Args:
        algorithm: one of `ALGORITHMS`.
        agent: an agent of that algorithm, which `check` accepts.
        spaces: the observation and action space of one environment.
        path: the path of the file.
    """
    import cloudpickle
    import stable_baselines3

    from zoo.export import normalized

    kind = getattr(stable_baselines3, algorithm.upper())
    config, settings = agent.config, {}
    if algorithm != "ppo":
        settings = {"buffer_size": 1, "batch_size": config.batch_size, "tau": config.tau}
    if algorithm == "dqn":
        settings["target_update_interval"] = config.target_every
    hidden = [] if agent.spec.is_image else list(config.hidden)
    policy: dict[str, Any] = {"net_arch": hidden}
    if agent.spec.is_image and agent.spec.obs_dtype != "uint8":
        policy["normalize_images"] = False
    normalizer = getattr(agent, "normalizer", None)
    if algorithm == "ppo" and isinstance(normalizer, RunningNormalizer):
        cloudpickle.register_pickle_by_value(normalized)
        policy["features_extractor_class"] = normalized.NormalizedFeatures
        policy["features_extractor_kwargs"] = {
            "mean": normalizer.mean.flatten().tolist(), "std": normalizer.std.flatten().tolist(), "clip": CLIP,
        }  # fmt: skip
    if algorithm in ("sac", "td3"):
        policy["n_critics"] = len(agent.critic[0].weight)
    with torch.random.fork_rng([]):
        model = kind(
            "CnnPolicy" if agent.spec.is_image else "MlpPolicy", _Spaces(*spaces), gamma=config.discount,
            policy_kwargs=policy, device="cpu", **settings,
        )  # fmt: skip
    if "buffer_size" in settings:
        model.buffer_size = config.buffer_size  # the model here was made without a buffer of that size
    with torch.no_grad():
        {"sac": _fill_sac, "td3": _fill_td3, "ppo": _fill_ppo, "dqn": _fill_dqn}[algorithm](agent, model)
    model.save(path)
    return open_with_sb3(kind, path)


def open_with_sb3(kind: Any, path: Path) -> Run:
    """A ZIP file as a function of arrays, using Stable-Baselines3's own `load` and `predict`."""
    model = kind.load(path, device="cpu", custom_objects={"buffer_size": 1})  # it only predicts
    return lambda inputs: [model.predict(inputs[0], deterministic=True)[0]]


class _Spaces(gymnasium.Env[Any, Any]):
    """An environment of which only the spaces matter: Stable-Baselines3 makes agents from environments."""

    def __init__(self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def layers(module: nn.Module, member: int | None = None) -> list[Layer]:
    """The linear and convolutional layers of a network, in order; or those of one member of an ensemble."""
    if member is not None:
        ensemble = [layer for layer in module.modules() if isinstance(layer, EnsembleLinear)]
        return [(layer.weight[member], layer.bias[member, 0]) for layer in ensemble]
    simple = [layer for layer in module.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    return [(layer.weight, layer.bias) for layer in simple if layer.bias is not None]


def _fill(module: nn.Module, values: list[Layer]) -> None:
    """Sets the layers of a Stable-Baselines3 network."""
    for (weight, bias), (new_weight, new_bias) in zip(layers(module), values, strict=True):
        weight.copy_(new_weight)
        bias.copy_(new_bias)


def _for_unit_actions(critic: list[Layer], policy: Any) -> list[Layer]:
    """Converts a critic of actions in the environment's units to one of actions in [-1, 1]."""
    (weight, bias), *rest = critic
    of_obs, of_action = torch.tensor_split(weight, [weight.shape[1] - len(policy.scale)], 1)
    return [(torch.cat([of_obs, of_action * policy.scale], 1), bias + of_action @ policy.center), *rest]


def _members(critic: Any, policy: Any) -> Iterator[list[Layer]]:
    for member in range(len(critic[0].weight)):
        yield _for_unit_actions(layers(critic, member), policy)


def _fill_critics(agent: Any, model: Any) -> None:
    for ours, theirs in ((agent.critic, model.critic), (agent.target_critic, model.critic_target)):
        for q_network, values in zip(theirs.q_networks, _members(ours, agent.actor), strict=True):
            _fill(q_network, values)


def _fill_sac(agent: Any, model: Any) -> None:
    *body, (weight, bias) = layers(agent.actor.net)
    halves = zip(weight.chunk(2), bias.chunk(2), strict=True)
    _fill(model.actor.latent_pi, body)
    for layer, half in zip((model.actor.mu, model.actor.log_std), halves, strict=True):
        _fill(layer, [half])
    _fill_critics(agent, model)
    model.log_ent_coef.copy_(agent.log_alpha)


def _fill_td3(agent: Any, model: Any) -> None:
    _fill(model.actor.mu, layers(agent.actor.net))
    _fill(model.actor_target.mu, layers(agent.target_actor.net))
    _fill_critics(agent, model)


def _fill_ppo(agent: Any, model: Any) -> None:
    policy = model.policy
    if isinstance(agent.encoder, FrameEncoder):
        _fill(policy.features_extractor, layers(agent.encoder))
    *body, (weight, bias) = layers(agent.actor)
    if agent.spec.num_actions is None:
        scale, center = agent.policy.scale, agent.policy.center
        weight, bias = weight * scale[:, None], bias * scale + center
        policy.log_std.copy_(agent.policy.log_std + scale.log())
    _fill(policy.mlp_extractor.policy_net, body)
    _fill(policy.action_net, [(weight, bias)])
    *body, (weight, bias) = layers(agent.value)
    unit = agent.reward_unit()
    _fill(policy.mlp_extractor.value_net, body)
    _fill(policy.value_net, [(weight * unit, bias * unit)])


def _fill_dqn(agent: Any, model: Any) -> None:
    for ours, theirs in ((agent.network, model.q_net), (agent.target_network, model.q_net_target)):
        _fill(theirs, layers(ours))
