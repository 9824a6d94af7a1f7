"""Starts a run from what another one has learned: `init_from=DIR`."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.errors import UsageError
from zoo.nn import Normalizer
from zoo.nn.heads import TwoHot
from zoo.nn.optim import Adam
from zoo.returns import ReturnToGo
from zoo.runs.load import digest, load_agent_for
from zoo.runs.record import resume_command
from zoo.runs.residual import Corrected
from zoo.settings.config import RunConfig
from zoo.settings.registry import Algorithm, algorithms

# settings that determine the structure of an agent, and endings of the names of others that do
SHAPING = {"diffusion_steps", "dueling", "layers", "max_episode_steps", "noise", "policy", "width"}
SHAPING_ENDS = (
    "_dim", "hidden", "layer_norm", "members", "normalize_obs", "num_bins", "num_critics", "time_feature", "value_head",
)  # fmt: skip

Parts = dict[str, nn.Module | nn.Parameter]


def start_from(agent: Agent, config: RunConfig, algorithm: Algorithm, begun: dict[str, Any]) -> dict[str, Any]:
    """Copies what the agent of a finished run has learned into a new agent, in place.

    Agents are made of parts: networks, temperatures, heads, optimizers. Every part of the new agent but its optimizers
    must exist in the other agent, under the same name and with the same structure; so CQL can start SAC. The moments of
    an optimizer are taken over if the other agent has one for the same parameters, as in Zhou et al. 2024 (WSRL, arXiv
    2412.07762), but not if its learning rate decays: then it starts afresh. So does everything that a module names in
    `PER_RUN`, such as a target return, or how far the training of a dynamics model has come.

    Args:
        agent: the agent as it was built.
        config: the new run's settings, whose `init_from` is the folder of a finished run.
        algorithm: the new run's algorithm.
        begun: the new run's `run.json`.

    Returns:
        The entry for `run.json`.

    Raises:
        UsageError: the run cannot start this one.
    """
    folder, named = Path(config.init_from or ""), f"init_from={config.init_from}"
    try:
        other_config, other, record = load_agent_for(algorithm, folder)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from error
    if record["status"] != "finished":
        raise UsageError(f"{named} has not finished. Let it: {resume_command(folder)}")
    if isinstance(other, Corrected):
        other = other.agent
    if corrected(config, begun) != corrected(other_config, record):
        settings = f"base={other_config.base} base_mode={other_config.base_mode} base_scale={other_config.base_scale}"
        does = f"has learned to correct another policy: so must this one, {settings}"
        raise UsageError(f"{named} {does if other_config.base else 'corrects no other policy. Leave out base'}.")
    if other.spec != agent.spec:
        raise UsageError(
            f"{named} has learned on {other_config.env.name}, where observations or actions have other shapes or "
            f"bounds than on {config.env.name}. Give a run on {config.env.name}."
        )
    theirs, name = parts(other), record["algorithm"]["name"]
    missing = unlike(learned(agent), theirs)
    if missing and name == algorithm.name:
        raise UsageError(
            f"{named}: its {', '.join(missing)} is of another kind than this run's. Build this one alike: "
            f"{shaping(other, other_config.algo, config.algo)}"
        )
    if missing:
        able = ", ".join(file.name for file in algorithms().values() if could_start(file, agent))
        lacks = f"{name} has no {', '.join(missing)} such as {algorithm.name}'s"
        raise UsageError(f"{named}: {lacks}. Those that could start it: {able}")
    for part, ours in learned(agent).items():
        if layers(ours) != layers(theirs[part]):
            raise UsageError(
                f"{named}: its {part} has other layers than this run's. Build this one alike: "
                f"{shaping(other, other_config.algo, config.algo)}"
            )
    check_inputs(named, agent, other)
    check_rewards(named, agent, rewards(config, begun), rewards(other_config, record))
    check_scales(named, agent, other, config)
    found = {**theirs, **optimizers(other), **dict(other.named_buffers(recurse=False))}
    goes_on = {part: one for part, one in optimizers(agent).items() if can_go_on(one, found.get(part))}
    taken: dict[str, nn.Module | Tensor] = {**learned(agent), **goes_on, **other_tensors(agent, found)}
    with torch.no_grad():
        for part, own in taken.items():
            for value, other_value in zip(tensors(own), tensors(found[part]), strict=True):
                value.copy_(other_value)
    print(f"{named}: begins with {', '.join(taken)} of {name}", flush=True)
    if support(agent):
        print(f"{named}: and so with {support(agent)}", flush=True)
    return {"run": record["id"], "algorithm": name, "checkpoint": digest(folder), "parts": list(taken)}


def corrected(config: RunConfig, record: dict[str, Any]) -> Any:
    """Which policy a run's actions correct, and how; None if they correct none."""
    return config.base and (record.get("base"), config.base_mode, config.base_scale)


def parts(agent: Agent) -> Parts:
    """The parts of an agent, by name."""
    return {**dict(agent.named_children()), **dict(agent.named_parameters(recurse=False))}


def learned(agent: Agent) -> Parts:
    """The parts that must come from the other run: not empty ones, nor those that normalize by a dataset.

    Nor what no optimizer moves: SAC's temperature, if it was chosen.
    """
    chosen = [tensor for optimizer in optimizers(agent).values() if optimizer.lr == 0 for tensor in optimizer.moved]
    return {
        name: part
        for name, part in parts(agent).items()
        if not isinstance(part, Adam) and type(part) is not Normalizer and list(tensors(part))
        if not any(part is one for one in chosen)
    }


def other_tensors(agent: Agent, found: Mapping[str, nn.Module | Tensor]) -> dict[str, Tensor]:
    """The agent's own buffers that exist in the other agent too, such as whether its policy has begun to learn."""
    return {
        name: own
        for name, own in agent.named_buffers(recurse=False)
        if name in found and layers(found[name]) == layers(own) and name not in agent.PER_RUN
    }


def optimizers(agent: Agent) -> dict[str, Adam]:
    """The optimizers of an agent and of its parts, by name."""
    return {name: module for name, module in agent.named_modules() if isinstance(module, Adam)}


def tensors(part: nn.Module | Tensor) -> list[Tensor]:
    """What a part has learned: neither a run's own (`PER_RUN`, `zoo.returns.ReturnsSoFar`) nor optimizers in it."""
    if isinstance(part, Tensor):
        return [part]
    left_out = {
        f"{name}.{buffer}".removeprefix(".")
        for name, module in part.named_modules()
        for buffer in (module._buffers if name and isinstance(module, Adam) else getattr(module, "PER_RUN", ()))
    }
    state = part.state_dict(keep_vars=True)
    return [value for name, value in state.items() if isinstance(value, Tensor) and name not in left_out]


def unlike(needed: Parts, found: Parts) -> list[str]:
    """The needed parts that are missing among those found, or are of another class there."""
    return [name for name, part in needed.items() if type(part) is not type(found.get(name))]


def layers(part: nn.Module | Tensor) -> Any:
    """The structure of a part: equal for two parts that are built alike."""
    kinds = [] if isinstance(part, Tensor) else [type(module) for module in part.modules()]
    return kinds, [value.shape for value in tensors(part)]


def can_go_on(ours: Adam, theirs: nn.Module | Tensor | None) -> bool:
    """Whether an optimizer can continue from another's moments."""
    return isinstance(theirs, Adam) and ours.decay_steps is None and layers(ours) == layers(theirs)


def could_start(file: Algorithm, agent: Agent) -> bool:
    """Whether an algorithm's agents have every part that another agent needs."""
    if agent.spec.action_space not in file.action_spaces or file.takes_goals != (agent.spec.goal_dim > 0):
        return False
    return not unlike(learned(agent), parts(file.agent_class(agent.spec, file.module.Config())))


def shaping(other: Agent, theirs: Any, ours: Any) -> str:
    """The settings that determine another run's networks and that this run has too: those that differ, or all."""
    names = [name for name in vars(theirs) if name in SHAPING or name.endswith(SHAPING_ENDS)]
    names = [name for name in names if hasattr(ours, name)]
    differing = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    settings = [f"algo.{name}={str(getattr(theirs, name)).replace(' ', '')}" for name in differing or names]
    return " ".join([*settings, *([support(other)] if hasattr(ours, "v_max") and support(other) else [])])


def support(agent: Agent) -> str:
    """The settings of the support of an agent's categorical value head; empty without one."""
    head = getattr(agent, "head", None)
    return f"algo.v_min={head.v_min:g} algo.v_max={head.v_max:g}" if isinstance(head, TwoHot) else ""


def check_inputs(named: str, agent: Agent, other: Agent) -> None:
    """Checks that networks see the same observations in both runs. Raises UsageError if they do not."""
    known = zip(normalization(agent), normalization(other), strict=True)
    alike = all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6) for ours, theirs in known)
    if not alike and "normalizer" not in learned(agent):  # a learned normalizer is taken over too
        raise UsageError(
            f"{named} has learned from observations that were normalized otherwise: by other data, or here not at "
            "all. Give a run with algo.normalize_obs=false, and leave it off here."
        )


def check_rewards(named: str, agent: Agent, ours: dict[str, float], theirs: dict[str, float]) -> None:
    """Checks that values are of the same rewards in both runs. Raises UsageError if they are not."""
    alike = all(math.isclose(ours.get(name, 0.0), value, rel_tol=1e-4) for name, value in theirs.items())
    learns_values = hasattr(agent, "critic") or type(agent).expected_return is not Agent.expected_return
    if learns_values and not alike:
        settings = " ".join(f"{name}={value}" for name, value in theirs.items()).lower()
        raise UsageError(f"{named} has learned from other rewards, those of {settings}: so must this one.")


def rewards(config: RunConfig, record: dict[str, Any]) -> dict[str, float]:
    """The settings that reproduce a run's rewards, also in place of normalizing by its own dataset."""
    factor = (record.get("dataset") or {}).get("reward_scale", 1.0)
    settings = {"reward_scale": config.reward_scale * factor, "reward_shift": config.reward_shift * factor}
    names = [name for name in ("normalize_reward", "clip_reward") if hasattr(config.algo, name)]
    return settings | {f"algo.{name}": factor == 1 and getattr(config.algo, name) for name in names}


def check_scales(named: str, agent: Agent, other: Agent, config: RunConfig) -> None:
    """Checks that values and returns-to-go have the same scale in both runs. Raises UsageError if they do not."""
    if getattr(config.algo, "v_max", None) is not None and support(agent) != support(other):
        raise UsageError(
            f"{named} has learned with another value support. Leave algo.v_min and algo.v_max out, or give its own: "
            f"{support(other)}"
        )
    goal, scale = getattr(other, "goal", None), getattr(config.algo, "return_scale", None)
    if isinstance(goal, ReturnToGo) and scale not in (None, float(goal.scale)):
        raise UsageError(
            f"{named} has learned with another algo.return_scale. Leave it out, or give its own: "
            f"algo.return_scale={goal.scale:g}"
        )


def normalization(agent: Agent) -> tuple[Tensor, Tensor]:
    """The mean and standard deviation by which an agent normalizes observations."""
    found = getattr(agent, "normalizer", None)
    found = found if isinstance(found, Normalizer) else Normalizer(agent.spec.obs_shape)
    return found.mean.cpu(), found.std.cpu()
