"""What the chosen settings decide about an algorithm's code."""

import dataclasses
from typing import Any

from zoo.nn.heads import SCALAR
from zoo.settings.config import RunConfig
from zoo.settings.registry import Algorithm


def known(config: RunConfig, algorithm: Algorithm, given: set[str]) -> dict[str, Any]:
    """The source of an expression -> its value, for all that the settings decide.

    A choice among names is decided, such as `value_head`, and so is every switch and None that was given. Numbers stay
    settings of the copy, but for two that leave out a part where they are 0: `online_steps`, and the share of a
    dataset in an online algorithm's batches.

    Args:
        given: the keys that were named on the command line.
    """
    fields = {field.name: getattr(config.algo, field.name) for field in dataclasses.fields(config.algo)}
    decided = {
        name: value
        for name, value in fields.items()
        if isinstance(value, str) or (f"algo.{name}" in given and isinstance(value, bool | None))
    }
    if fields.get("value_head") in SCALAR:
        decided |= {"v_min": None, "v_max": None}
    if fields.get(algorithm.data) == 0:
        decided[algorithm.data] = 0
    if config.online_steps == 0:
        decided["online_steps"] = 0
    spaces = algorithm.action_spaces
    facts: dict[str, Any] = {
        "fields": set(fields),
        "config.name": config.sampler.name,
        "isinstance(agent, Predictor)": issubclass(algorithm.agent_class, _predictor()),
        "torch.compiler.is_compiling()": False,
        "envs.resumed": False,
    }
    if spaces == ("continuous",):
        facts |= {"isinstance(space, gymnasium.spaces.Discrete)": False} | of_spec("num_actions", None)
    if not algorithm.takes_frames:
        facts |= of_spec("is_image", False)
    for name, value in decided.items():
        facts |= {f"{owner}config.{name}": value for owner in ("", "self.", "run.", "self.config.")}
    return facts


def of_spec(name: str, value: Any) -> dict[str, Any]:
    """An attribute of a spec, as it is written in the zoo."""
    return {f"{owner}spec.{name}": value for owner in ("", "self.", "envs.", "data.", "run.")}


def _predictor() -> type:
    from zoo.agent import Predictor

    return Predictor
