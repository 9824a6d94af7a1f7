"""What the chosen settings determine in an algorithm's code."""

import ast
import dataclasses
from typing import Any

import libcst as cst

from zoo.agent import Predictor
from zoo.copying.fold import SOME, literal
from zoo.copying.program import Program
from zoo.copying.source import code
from zoo.nn.heads import SCALAR
from zoo.settings.config import RunConfig
from zoo.settings.registry import Algorithm
from zoo.spec import Spec


def known(config: RunConfig, algorithm: Algorithm, spec: Spec, given: set[str]) -> dict[str, Any]:
    """The source of an expression -> its value, for everything that the settings determine.

    Choices among names, such as `value_head`, are determined, and so are all given switches and Nones. Numbers stay
    settings of the copy, except for two that remove a part if they are 0: `online_steps`, and the share of a dataset in
    the batches of an online algorithm.

    Args:
        spec: the environment's; the copy is for environments of its kind: vectors, and continuous or discrete actions.
        given: the keys given on the command line.
    """
    fields = {field.name: getattr(config.algo, field.name) for field in dataclasses.fields(config.algo)}
    decided: dict[str, Any] = {
        name: value
        for name, value in fields.items()
        if isinstance(value, str) or (f"algo.{name}" in given and isinstance(value, bool | None))
    }
    if fields.get("value_head") in SCALAR:
        decided |= {"v_min": None, "v_max": None}
    if fields.get(algorithm.data) == 0:
        decided[algorithm.data] = 0
    decided["init_from"] = None  # a copy does not have it
    if not lacks_environment(algorithm, given):
        decided["env"] = SOME
    if config.online_steps == 0:
        decided["online_steps"] = 0
    if algorithm.family == "streaming":  # one environment is all that these take
        decided["num_envs"] = 1
    facts: dict[str, Any] = {
        "fields": set(fields),
        "config.name": config.sampler.name,
        "sampler.name": config.sampler.name,
        "self.config.sampler": config.sampler.name,
        "self.name not in SAMPLERS": False,
        "isinstance(agent, Predictor)": issubclass(algorithm.agent_class, Predictor),
        "torch.compiler.is_compiling()": False,
        "envs.resumed": False,
        "data.missing_ends": "",
        "taken % VALUED_EVERY < n": False,  # a copy has no such metric
    }
    facts |= of_spec("goal_dim", SOME if algorithm.takes_goals else 0)
    facts |= of_spec("is_image", False) | of_spec("num_actions", SOME if spec.num_actions else None)
    facts |= {
        "len(shape) == 3": False,
        "len(obs_shape) == 3": False,
        "len(spec.obs_shape) == 1": True,
        "x.dtype == torch.uint8": False,
        "self.frames": False,
        "config.env.is_atari": False,
        "env_kwargs": False,
    }
    facts[f"isinstance(space, gymnasium.spaces.{'Box' if spec.num_actions else 'Discrete'})"] = False
    for name, value in decided.items():
        facts |= {f"{owner}config.{name}": value for owner in ("", "self.", "run.", "self.config.")}
    return facts


def of_spec(name: str, value: Any) -> dict[str, Any]:
    """An attribute of a spec, as the zoo's code writes it."""
    return {f"{owner}spec.{name}": value for owner in ("", "self.", "envs.", "data.", "run.")}


def lacks_environment(algorithm: Algorithm, given: set[str]) -> bool:
    """Whether a copy has no default environment: none that Gymnasium makes has goals, or a single action."""
    return "env" not in given and (algorithm.takes_goals or issubclass(algorithm.agent_class, Predictor))


def defaults(program: Program, algorithm: Algorithm, config: RunConfig, given: set[str]) -> None:
    """Makes the chosen values the defaults of the copy's settings."""
    run = {**vars(config), "env": config.env.id}
    if config.device == "auto":  # the copy's own default: a GPU where there is one
        del run["device"]
    run |= {f"sampler_{name}": value for name, value in vars(config.sampler).items()}
    run["run_dir"] = config.run_dir or "run"
    if lacks_environment(algorithm, given):
        run["env"] = ""
    if "dataset" not in given:
        del run["dataset"]
    own = vars(config.algo) if "algo.expert" in given else {**vars(config.algo), "expert": ""}
    for name, values in (("Config", {**run, **own}), ("SamplerConfig", vars(config.sampler))):
        if name in program.definitions:
            program.definitions[name] = program.definitions[name].visit(_Defaults(values))


class _Defaults(cst.CSTTransformer):
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        name, default = code(updated_node.target), updated_node.value
        if name not in self.values or default is None:
            return updated_node
        value = self.values[name]
        text = f"field(default_factory=lambda: {value})" if isinstance(value, list) else code(literal(value))
        # a number keeps its notation: 1_000_000, 3e-4
        same = text == code(default) if isinstance(value, list) else ast.literal_eval(code(default)) == value
        return updated_node if same else updated_node.with_changes(value=cst.parse_expression(text))
