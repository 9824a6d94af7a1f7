"""`zoo copy`: an algorithm as one file that stands alone.

`source` finds what an algorithm's file reaches, `program` collects it, `fold` evaluates what its settings determine,
`simplify` removes what is then superfluous, step by step, and `write` puts the rest in reading order. `plain` holds
the copies' replacements for the zoo's own runs, networks and buffers.
"""

import ast
import dataclasses
from pathlib import Path

import gymnasium

from zoo.agent import Predictor
from zoo.copying.program import Program
from zoo.copying.settings import defaults, known
from zoo.copying.simplify import simplify
from zoo.copying.write import file_text
from zoo.data.catalog import parse_mixture
from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import SamplerConfig
from zoo.envs import EnvConfig, spec_of
from zoo.errors import UsageError
from zoo.settings.compose import compose
from zoo.settings.fit import check_spaces
from zoo.settings.registry import algorithm

TASKS = {"continuous": "hopper", "discrete": "CartPole-v1"}  # defaults if no environment is named
NEEDED = {name: ["online_steps=50000"] for name in ("dsrl", "expo", "reinflow")}  # offline these only clone the data
OF_RUNS = (
    *(f"env.{field.name}" for field in dataclasses.fields(EnvConfig)), "seeds", "logger", "compile", "init_from",
    "resume", "keep_agents", "matmul_precision", "checkpoint_every", "log_every",
    "info_keywords",
)  # fmt: skip


def copied(name: str, settings: list[str]) -> str:
    """The text of an algorithm's copy with the given settings, `key=value` as for `zoo run`.

    Raises:
        UsageError: there is no such algorithm or setting, or a copy cannot have it.
    """
    given = {setting.partition("=")[0] for setting in settings}
    if "algo" in given:
        raise UsageError(f"the algorithm is {name}. Leave algo out.")
    if own := sorted(key for key in given if key in OF_RUNS or key.startswith("env.kwargs.")):
        raise UsageError(f"{own[0]} is a setting of `zoo run` that copies do not have. Leave it out.")
    if "env" not in given:
        settings = [*settings, f"env={TASKS[algorithm(name).action_spaces[0]]}"]
    config, chosen, _ = compose([f"algo={name}", *settings])
    if name in NEEDED and not config.online_steps:
        raise UsageError(
            f"{name} without online steps only clones the data. Type: zoo copy {name} FILE {NEEDED[name][0]}"
        )
    if hasattr(config.algo, "expert") and config.sampler.name != SamplerConfig.name:
        raise UsageError(f"sampler= cannot be copied with {name}: a copy would draw from the expert's data by it too.")
    if config.corruption.name != CorruptionConfig.name:
        raise UsageError("corruption= cannot be copied: a copy learns from the file that it is given.")
    for key, text in {"dataset": config.dataset, "algo.expert": getattr(config.algo, "expert", "")}.items():
        portions = parse_mixture(text) if key in given else []
        if any(Path(portion.name).suffix not in (".hdf5", ".h5") for portion in portions) or len(portions) > 1:
            raise UsageError(f"{key}={text}: a copy learns from an HDF5 file. Name one, or leave it out.")
        if portions and portions[0].amount and (key == "dataset" or portions[0].episodes is None):
            raise UsageError(f"{key}={text}: a copy learns from all of a file. Leave out {portions[0].amount}")
    if config.base is not None:
        raise UsageError("base= cannot be copied: a copy learns by itself. Leave it out.")
    if (config.reward_scale, config.reward_shift) != (1, 0):
        raise UsageError("reward_scale= and reward_shift= cannot be copied: change the rewards of the copy's file.")
    spec = spec_of(dataclasses.replace(config.env, backend="gymnasium"))
    if spec.is_image:
        raise UsageError(
            f"env={config.env.id} shows images: copies are for environments whose observations are vectors. "
            f"Change a copy of algos/{chosen.name}.py instead, which imports the zoo."
        )
    known_env = gymnasium.registry.get(config.env.id.rpartition(":")[2])
    elsewhere = known_env is None or str(known_env.entry_point).startswith(("zoo.", "gymnasium_robotics."))
    if elsewhere or not isinstance(gymnasium.make(config.env.id).observation_space, gymnasium.spaces.Box):
        raise UsageError(
            f"env={config.env.id} is not made by gymnasium.make alone, which is all that copies have. Name another, "
            "such as env=hopper; the copy takes any by --env."
        )
    if "env" in given and issubclass(chosen.agent_class, Predictor) and spec.num_actions != 1:
        raise UsageError(f"{name} predicts and does not act: name an environment with one action, env=...")
    if "env" in given or not chosen.takes_goals:  # an environment with goals is passed to the copy with --env
        check_spaces(chosen, spec, config, f"env={config.env.id} has others")
        chosen.agent_class(spec, config.algo)  # refuses incompatible settings
    program = Program(chosen.path, chosen.agent_class.__name__, known(config, chosen, spec, given))
    simplify(program)
    defaults(program, chosen, config, given)
    docstring = ast.get_docstring(ast.parse(chosen.path.read_text()), clean=False) or ""
    return file_text(program, docstring)
