"""Checks that the settings of a run are compatible."""

from zoo.agent import Predictor
from zoo.checks import before_last, check_share
from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import USED_BY, SamplerConfig
from zoo.envs import EnvConfig, series
from zoo.errors import UsageError
from zoo.settings.config import RunConfig
from zoo.settings.registry import Algorithm, algorithms
from zoo.spec import Spec

LEAST_HALF, MOST_HALF = 0.1, 10.0  # half a range of actions that networks learn from without trouble


def check_fit(config: RunConfig, chosen: Algorithm) -> None:
    """Refuses settings that would be ignored, and runs that would end before they learn."""
    online, name = chosen.setting == "online", chosen.name
    acts = online or config.online_steps > 0
    if hasattr(config.algo, "check_run"):
        config.algo.check_run(config)
    if config.info_keywords and config.env.backend in ("envpool", "warp"):
        raise UsageError(f"info_keywords: env.backend={config.env.backend} passes none on. Type: env.backend=gymnasium")
    for key, value, default in (
        ("dataset", config.dataset, RunConfig.dataset),
        ("sampler", config.sampler.name, SamplerConfig.name),
        ("corruption", config.corruption.name, CorruptionConfig.name),
    ):
        if value != default and not chosen.takes_data(config):
            share = "" if chosen.data == "none" else f", or give algo.{chosen.data}=0.5"
            raise UsageError(f"{key}={value}: {name} learns online, without a dataset. Leave it out{share}.")
    if chosen.data not in ("none", "required") and chosen.takes_data(config):
        try:
            check_share(chosen.data, getattr(config.algo, chosen.data), config.algo.batch_size)
        except ValueError as error:
            raise UsageError(f"{error}, or learn without a dataset: algo.{chosen.data}=0") from error
    rescaled = (config.reward_scale, config.reward_shift) != (RunConfig.reward_scale, RunConfig.reward_shift)
    if rescaled and chosen.takes_goals:
        raise UsageError(f"reward_scale and reward_shift: {name} learns goals, without rewards. Leave them out.")
    if rescaled and (hasattr(config.algo, "target_return") or config.env.id.startswith(series.PREFIX)):
        what = "is conditioned on returns" if hasattr(config.algo, "target_return") else "predicts a series"
        raise UsageError(f"reward_scale and reward_shift: {name} {what} as the environment gives them. Leave them out.")
    if config.online_steps and chosen.setting != "offline to online":
        able = ", ".join(other for other, file in algorithms().items() if file.setting == "offline to online")
        raise UsageError(f"online_steps={config.online_steps}: {name} cannot continue online. Those that can: {able}")
    last = before_last(config.online_steps, config.num_envs)
    if config.online_starts and config.online_starts > last:
        raise UsageError(
            f"online_starts={config.online_starts}: {name} would never learn online. "
            + (
                f"It must be at most {last} for online_steps={config.online_steps}."
                if last > 0
                else "Add: online_steps=N"
            )
        )
    if config.online_fraction is not None and not config.online_steps:
        raise UsageError(
            f"online_fraction={config.online_fraction} needs a run that continues online. Add: online_steps=N"
        )
    batch_size = getattr(config.algo, "batch_size", None)
    if config.online_fraction and batch_size and not round(config.online_fraction * batch_size):
        raise UsageError(
            f"online_fraction={config.online_fraction}: of a batch of {batch_size} that is no transition. Give more."
        )
    if config.online_updates != RunConfig.online_updates and not config.online_steps:
        alike = [other for other, file in algorithms().items() if hasattr(file.module.Config, "utd_ratio")]
        instead = f"As algo.utd_ratio it is a setting of {', '.join(alike)}" if online else "Add: online_steps=N"
        raise UsageError(f"online_updates={config.online_updates} is for a run that continues online. {instead}")
    if not config.base and (config.base_mode, config.base_scale) != (RunConfig.base_mode, RunConfig.base_scale):
        raise UsageError("base_mode and base_scale say how a run's actions change those of a base. Add: base=RUN_DIR")
    if config.env.changes and config.env.changed_in == "training" and not acts:
        raise UsageError(f"env.changed_in=training: {name} learns offline. Leave it out, or take evaluation.")
    if config.num_envs != RunConfig.num_envs and not acts:
        raise UsageError(
            f"num_envs={config.num_envs}: {name} learns offline. For evaluation: eval_episodes={config.num_envs}"
        )


def without_effect(config: RunConfig) -> list[str]:
    """One line for each chosen setting that has no effect because of other settings.

    These are not errors: runs with several samplers may share one command. A preset sets some where they do apply.
    """
    if config.preset is not None:
        return []
    sampler, corruption, env = config.sampler, config.corruption, config.env
    by_sampler, by_corruption = f"sampler={sampler.name}", f"corruption={corruption.name}"
    clean = corruption.name == CorruptionConfig.name
    used_by = {name: sampler.name in samplers for name, samplers in USED_BY.items()}
    return [
        f"{key}={value} does nothing with {other}"
        for key, value, default, used, other in (
            ("sampler.alpha", sampler.alpha, SamplerConfig.alpha, used_by["alpha"], by_sampler),
            ("sampler.fraction", sampler.fraction, SamplerConfig.fraction, used_by["fraction"], by_sampler),
            ("corruption.rate", corruption.rate, CorruptionConfig.rate, not clean, by_corruption),
            ("corruption.scale", corruption.scale, CorruptionConfig.scale, not clean, by_corruption),
            ("corruption.critic", corruption.critic, None, corruption.needs_critic, by_corruption),
            ("env.changed_in", env.changed_in, EnvConfig.changed_in, env.changes, "the environment as it is"),
        )
        if value != default and not used
    ]


def far_from_unit(spec: Spec) -> list[str]:
    """A line about actions whose range is far from [-1, 1], if there are any: networks take actions as they are."""
    half = [(high - low) / 2 for low, high in zip(spec.action_low, spec.action_high, strict=True)]
    if all(LEAST_HALF <= one <= MOST_HALF for one in half):
        return []
    lowest, highest = min(spec.action_low), max(spec.action_high)
    return [
        f"actions range from {lowest:g} to {highest:g}: networks learn best from numbers near 1. Let the environment "
        "take actions from -1 to 1, as with gymnasium.wrappers.RescaleAction"
    ]


def check_spaces(chosen: Algorithm, spec: Spec, config: RunConfig, has: str) -> None:
    """Raises UsageError if an algorithm does not support an environment's actions, observations or goals.

    Args:
        chosen: the algorithm.
        spec: the environment's shapes and bounds.
        config: the run's settings.
        has: names the environment and its action space, for the message.
    """
    if spec.action_space not in chosen.action_spaces:
        if issubclass(chosen.agent_class, Predictor):
            raise UsageError(f"{chosen.name} predicts and does not act; {has}. Try: env=series/hopper")
        able = [
            other.name
            for other in _instead_of(chosen, spec)
            if other.takes_goals == chosen.takes_goals and not issubclass(other.agent_class, Predictor)
        ]
        raise UsageError(
            f"{chosen.name} needs {' or '.join(chosen.action_spaces)} actions; {has}. "
            + (f"Try: {', '.join(able)}." if able else "No algorithm here takes them yet.")
        )
    if chosen.takes_goals and not spec.goal_dim:
        raise UsageError(
            f"{chosen.name} learns to reach goals, and this environment gives none. Try: env=ogbench/pointmaze-medium"
        )
    if spec.goal_dim and chosen.takes_data(config) and not chosen.takes_goals:
        with_goals = ", ".join(name for name, other in algorithms().items() if other.takes_goals)
        online = "" if chosen.data == "required" else f"; or no dataset, algo.{chosen.data}=0"
        raise UsageError(
            f"{chosen.name} does not learn to reach goals; the data of this environment has states to reach and no "
            f"rewards. Try: {with_goals}{online}; or one of its tasks alone, env={config.env.id}-singletask"
        )
    if len(spec.obs_shape) != 1 and not chosen.takes_frames(spec.action_space):
        able = [other.name for other in _instead_of(chosen, spec) if other.takes_frames(spec.action_space)]
        raise UsageError(
            f"{chosen.name} needs vectors; the environment has {spec.action_space} actions and observations of shape "
            f"{list(spec.obs_shape)}. "
            + (f"Try: {', '.join(able)}." if able else "No algorithm here learns from data of them yet.")
        )


def _instead_of(chosen: Algorithm, spec: Spec) -> list[Algorithm]:
    """Algorithms that support an environment's actions and, like the chosen one, need a dataset or need none."""
    return [
        other
        for other in algorithms().values()
        if spec.action_space in other.action_spaces and (other.data == "required") == (chosen.data == "required")
    ]
