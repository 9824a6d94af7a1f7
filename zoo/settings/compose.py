"""Turns overrides such as `algo=iql env=hopper algo.beta=1` into a checked `RunConfig`, or into a one-line error."""

import dataclasses
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from zoo.data.corruption import KINDS as CORRUPTIONS
from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import SAMPLERS, SamplerConfig
from zoo.envs import EnvConfig, exists, known
from zoo.errors import UsageError, nearest
from zoo.settings.config import RunConfig
from zoo.settings.fit import check_fit
from zoo.settings.overrides import as_overrides, parse, value_of
from zoo.settings.presets import preset, short
from zoo.settings.registry import Algorithm, algorithm, algorithms, environments

SETTINGS: dict[str, type] = {"env": EnvConfig, "sampler": SamplerConfig, "corruption": CorruptionConfig}
GROUPS = ("algo", *SETTINGS)  # keys whose values select settings of their own
ELSEWHERE = {  # settings -> what other libraries call them, if value and unit are the same
    "steps": ("total_timesteps", "max_timesteps"),
    "num_envs": ("n_envs",),
    "eval_every": ("eval_freq",),
    "eval_episodes": ("n_eval_episodes", "n_episodes"),
    "discount": ("gamma",),
    "hidden": ("net_arch", "hidden_dim", "hidden_dims"),
    "lr": ("learning_rate",),
    "actor_lr": ("learning_rate", "policy_lr", "actor_learning_rate"),
    "critic_lr": ("learning_rate", "q_lr", "qf_lr", "critic_learning_rate"),
    "lr_decay": ("anneal_lr",),
    "num_steps": ("n_steps",),
    "n_step": ("n_steps",),
    "utd_ratio": ("gradient_steps",),
    "clip": ("clip_range", "clip_coef"),
    "entropy_coef": ("ent_coef",),
    "epsilon": ("exploration_final_eps", "end_e"),
    "alpha": ("ent_coef", "cql_alpha", "conservative_weight"),
    "expectile": ("iql_tau",),
    "beta": ("temperature", "weight_temp"),
    "temperature": ("awac_lambda",),
    "actor_penalty": ("actor_bc_coef",),
    "critic_penalty": ("critic_bc_coef",),
}
FALLS = ("epsilon", "Random actions begin at a probability of 1 and fall to algo.epsilon.")
DIFFERENT = {  # other libraries' names -> the setting here that differs in unit or form, and how
    "batch_size": (
        "minibatches",
        "Here the number of minibatches is set: algo.minibatches = num_envs * algo.num_steps / batch_size, "
        "so algo.minibatches=32 for a batch_size of 64 in rollouts of 2048.",
    ),
    "vf_coef": ("value_coef", "algo.value_coef is CleanRL's vf_coef, and twice Stable-Baselines3's."),
    "start_e": FALLS,
    "exploration_initial_eps": FALLS,
    "activation_fn": ("hidden", "Activations are changed in an algorithm file of your own: MLP(activation=)."),
    "env_kwargs": ("env", 'Write: env.kwargs.NAME=VALUE; in zoo.train, **{"env.kwargs": {"NAME": VALUE}}'),
    "seeds": ("seed", "It is for `zoo run` alone. In zoo.train: seed=0, one seed a call."),
}


def compose(arguments: Sequence[str], file: Path | None = None) -> tuple[RunConfig, Algorithm, dict[str, Any]]:
    """The settings of one run, as typed objects and as plain containers, and its algorithm.

    Args:
        arguments: overrides, `key=value`.
        file: an algorithm file to run in place of one of the zoo's.

    Raises:
        UsageError: an unknown key or value, a value of the wrong type, a value out of range.
    """
    overrides = parse(arguments)
    for override in overrides:
        if override.is_sweep_override():
            key, _, values = str(override.input_line).partition("=")
            if _is_list(key, overrides):
                raise UsageError(f"{override.input_line}: {key} takes a list. Write: {key}=[{values}]")
            raise UsageError(f"{override.input_line} asks for several runs. Add -m: zoo run -m {' '.join(arguments)}")
        if override.is_delete() or override.is_add():
            raise UsageError(
                f"{override.input_line}: write {str(override.input_line).lstrip('+~')}; "
                "keys cannot be added or removed."
            )
    given = {override.get_key_element(): override for override in overrides}
    if "env.id" in given:
        raise UsageError(f"{given['env.id'].input_line}: name the environment itself, env={value_of(given['env.id'])}")
    if file and "algo" in given:
        raise UsageError(f"{given['algo'].input_line}: the algorithm is {file.name}. Leave algo out.")
    found = Algorithm(file) if file else algorithms().get(value_of(given["algo"]) if "algo" in given else "")
    _check_keys(given, RunConfig, "", found.module.Config if found else None)
    if "resume" in given and given["resume"].value() is not None:
        raise UsageError(
            "resume continues a run with the settings it began with and is given alone: zoo run resume=DIR"
        )
    chosen = found or algorithm(_choice(given, "algo", "an algorithm of `zoo list`, such as algo=iql"))
    env = _choice(given, "env", "an environment of `zoo list` or a Gymnasium id, such as env=hopper")
    typed = given
    if "preset" in given and given["preset"].value() is not None:
        given = of_preset(given, chosen.name, env) | given
    config_class = chosen.module.Config
    _check_keys(given, config_class, "algo.", config_class)
    for group, group_class in SETTINGS.items():
        _check_keys(given, group_class, f"{group}.")
    _check_chosen(typed)
    _check_switches(given, RunConfig, "")
    _check_switches(given, config_class, "algo.")

    try:
        composed = OmegaConf.structured(RunConfig)
        composed.algo = config_class
        composed.env = _environment(env)
        for group in ("sampler", "corruption"):
            if group in given:
                composed[group].name = value_of(given[group])
        owners = {"algo": config_class, **SETTINGS}
        for key, override in given.items():
            if key not in GROUPS:
                group, _, name = key.rpartition(".")
                OmegaConf.update(composed, key, _value(override, owners.get(group, dict if group else RunConfig), name))
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UsageError(_explain(error, given)) from error
    except ValueError as error:  # from a dataclass's own checks
        raise UsageError(f"{error}.") from error
    assert isinstance(config, RunConfig)
    if config.info_keywords and config.env.backend == "auto":
        config.env.backend = "gymnasium"  # whose info arrives
    own = given.keys() & {"env.random_score", "env.expert_score"}
    if len(own) < 2:
        config.env.drop_scores()
    if own and "env.score_source" not in given:
        config.env.score_source = None
    check_fit(config, chosen)
    settings = dataclasses.asdict(config)
    settings["algo"] = {"name": chosen.name, **settings["algo"]}
    return config, chosen, settings


def of_preset(given: dict[str, Override], algo: str, env: str) -> dict[str, Override]:
    """The settings that a preset has for the task."""
    dataset = value_of(given["dataset"]) if "dataset" in given else RunConfig.dataset
    corrupted = given.get("corruption") or given.get("corruption.name")
    corruption = value_of(corrupted) if corrupted else CorruptionConfig.name
    files = environments()
    if env in files:
        named = {env, str(OmegaConf.load(files[env]).id)}
    else:
        named = {env, *(name for name, path in files.items() if OmegaConf.load(path).id == env)}
    task = {"env": named, "dataset": {short(dataset)}, "corruption": {corruption}}
    settings = preset(value_of(given["preset"]), algo, task)
    return {override.get_key_element(): override for override in parse(as_overrides(settings))}


def _value(override: Override, owner: type, name: str) -> Any:
    """The value of an override; for string settings, a number exactly as it was typed: run_dir=2026_01."""
    value = override.value()
    text = typing.get_type_hints(owner).get(name) in (str, str | None)
    return str(override.input_line).partition("=")[2] if text and isinstance(value, int | float) else value


def _choice(given: dict[str, Override], key: str, examples: str) -> str:
    if key not in given:
        raise UsageError(f"{key} is missing. Give {examples}.")
    return value_of(given[key])


def _check_keys(given: dict[str, Override], config_class: type, prefix: str, of_algorithm: type | None = None) -> None:
    """Refuses a key that is no field of the class, and points out if it is one of the algorithm's."""
    known = [prefix + field.name for field in dataclasses.fields(config_class)]
    for key in given:
        group = key.partition(".")[0]
        name = group if not prefix and group in GROUPS else re.sub(r"^env\.kwargs\..*", "env.kwargs", key)
        if key.startswith(prefix) and name not in known:
            if of_algorithm and hasattr(of_algorithm(), key):
                raise UsageError(f"{key} is a setting of the algorithm. Write: algo.{given[key].input_line}")
            here = _called_here(key.removeprefix(prefix).partition(".")[0], of_algorithm)
            raise UsageError(f"{key} does not exist. {here or nearest(key, known)}")


def _called_here(name: str, of_algorithm: type | None) -> str:
    """What another library's name is called here, as a sentence; empty if nothing is."""
    known = [field.name for field in dataclasses.fields(RunConfig)]
    known += [f"algo.{field.name}" for field in dataclasses.fields(of_algorithm)] if of_algorithm else []
    names = {key.removeprefix("algo."): key for key in known}
    if (name == "ent_coef") != ("alpha_lr" in names):
        names.pop("alpha", None)  # a temperature if it can be learned, else a weight
    if "max_weight" not in names:
        names.pop("beta", None)  # another quantity than an inverse temperature
    setting, sentence = DIFFERENT.get(name, ("", ""))
    here = [key for setting, key in names.items() if name in ELSEWHERE.get(setting, ())]
    return f"Here it is called {' or '.join(here)}." if here else sentence if setting in names else ""


def _check_chosen(typed: dict[str, Override]) -> None:
    """Refuses settings of a sampler or a corruption if none is chosen: the defaults have no settings."""
    for group, (_, *kinds) in (("sampler", SAMPLERS), ("corruption", CORRUPTIONS)):
        setting = next((key for key in typed if key.startswith(f"{group}.")), None)
        if setting and {group, f"{group}.name"}.isdisjoint(typed):
            raise UsageError(
                f"{typed[setting].input_line} does nothing without a {group}. Add {group}=NAME: {', '.join(kinds)}."
            )


def _check_switches(given: dict[str, Override], config_class: type, prefix: str) -> None:
    """Refuses numbers for switches, because OmegaConf would read any number as true or false."""
    for name, kind in typing.get_type_hints(config_class).items():
        override = given.get(prefix + name)
        if kind in (bool, bool | None) and override is not None and type(override.value()) in (int, float):
            raise UsageError(
                f"{override.input_line} is of the wrong type: {override.get_key_element()} takes true or false."
            )


def environment_config(env: str) -> EnvConfig:
    """An environment of the zoo or of Gymnasium with its default settings.

    Raises:
        UsageError: there is none of that name; the message lists the nearest ones.
    """
    config = OmegaConf.to_object(_environment(env))
    assert isinstance(config, EnvConfig)
    return config


def _environment(env: str) -> DictConfig:
    """The settings of an environment, unless some are given. Raises UsageError if there is none of that name."""
    config: DictConfig = OmegaConf.structured(EnvConfig)
    if env in environments():
        config.merge_with(OmegaConf.load(environments()[env]))
    else:
        _check_id(env)
        config.id = env
    return config


def _is_list(key: str, overrides: Sequence[Override]) -> bool:
    """Whether one of the given settings is a list."""
    found = algorithms().get(next((value_of(one) for one in overrides if one.get_key_element() == "algo"), ""))
    fields = dataclasses.fields(found.module.Config) if found else ()
    lists = {f"algo.{field.name}" for field in fields if str(field.type).startswith("list")}
    return key in {*lists, "info_keywords"}


def _check_id(env: str) -> None:
    if game := re.fullmatch(r"(\w+)(NoFrameskip|Deterministic)-v\d", env):  # names that ale_py still registers
        raise UsageError(f"env={env} is an older name of an Atari game. Write: env=ALE/{game[1]}-v5")
    try:
        found = exists(env)
    except ValueError as error:  # the package that would know it is not installed
        raise UsageError(str(error)) from error
    if not found:
        module, _, name = env.rpartition(":")
        if module:
            raise UsageError(
                f"env={env} does not exist. One of your own needs its module: ZOO_IMPORT={module} zoo ... env={name}"
            )
        task, _, data = env.partition("-")
        if task in environments() and not re.fullmatch(r"v\d+", data):  # D4RL's notation: hopper-medium-v2
            raise UsageError(f"env={env} does not exist. The dataset is a setting of its own: env={task} dataset=FILE")
        near = nearest(env, [*environments(), *known()], environments())
        raise UsageError(
            f"env={env} does not exist. {near} One of your own needs its module: ZOO_IMPORT=MODULE zoo ..."
        )


def _explain(error: Exception, given: dict[str, Override]) -> str:
    """OmegaConf's error, reduced to the key, the value and what is wrong with it."""
    text = str(error)
    found = re.search(r"full_key: ([\w.]+)", text) or re.search(r"'([\w.]+)'", text)
    reason = text.splitlines()[0].rstrip(".")
    if found and found[1] in given:
        wanted = re.search(r"(?:converted to|a valid) (\w+)", reason)
        type_name = {"Integer": "a whole number, such as 1000", "Float": "a number", "bool": "true or false"}.get(
            wanted[1] if wanted else ""
        )
        if "not Optional" in reason:
            return f"{given[found[1]].input_line}: {found[1]} cannot be null."
        if "not a ListConfig" in reason:
            of_names = found[1] == "info_keywords"
            type_name = f"a list, such as [{value_of(given[found[1]]) if of_names else '256,256'}]"
        return (
            f"{given[found[1]].input_line} is of the wrong type: {found[1]} takes {type_name}."
            if type_name
            else f"{given[found[1]].input_line}: {reason}."
        )
    return f"{reason}."
