"""Checks of an algorithm's `Config`, each in one line of its `__post_init__`.

check(self, expectile=between(0, 1, "neither"), policy=one_of("gaussian", "deterministic"), num_critics=at_least(1))
"""

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.errors import UsageError

if TYPE_CHECKING:
    from zoo.settings.config import RunConfig


class Condition(NamedTuple):
    """A condition that a value must meet.

    Attributes:
        holds: whether a value meets it.
        words: the end of the error message, such as `must be above 0`.
    """

    holds: Callable[[Any], bool]
    words: str


def at_least(low: float, hint: str = "") -> Condition:
    """`low` or more. The hint is added to the message, such as `the paper takes 10`."""
    return Condition(lambda value: value >= low, _words(f"must be at least {low}", hint))


def above(low: float, hint: str = "") -> Condition:
    """More than `low`."""
    return Condition(lambda value: value > low, _words(f"must be above {low}", hint))


def between(low: float, high: float, inclusive: str = "both", hint: str = "") -> Condition:
    """From `low` to `high`; inclusive: `both`, `left`, `right` or `neither`, as in pandas."""
    words = {
        "both": f"must lie between {low} and {high}",
        "left": f"must be at least {low} and below {high}",
        "right": f"must be above {low} and at most {high}",
        "neither": f"must lie between {low} and {high}, both excluded",
    }[inclusive]

    def holds(value: float) -> bool:
        return low < value < high or (value == low and inclusive in ("both", "left")) or (
            value == high and inclusive in ("both", "right")
        )  # fmt: skip

    return Condition(holds, _words(words, hint))


def one_of(*names: str) -> Condition:
    """One of these names."""
    return Condition(lambda value: value in names, f"does not exist; there are {', '.join(names)}")


def _words(text: str, hint: str) -> str:
    return f"{text}; {hint}" if hint else text


SHARES = Condition(
    lambda shares: len(shares) == 3 and min(shares) >= 0 and math.isclose(sum(shares), 1),
    "must be three shares that sum to 1, of goals that are the state itself, later in its episode, anywhere in the "
    "data, such as [0.2,0.5,0.3]",
)

# Conditions of shared settings. Those that end in `_lr`, `_hidden` or `_tau` are checked as `lr`, `hidden` or `tau`.
COMMON = {
    "discount": between(0, 1),
    "tau": between(0, 1, "right"),
    "lr": above(0),
    "hidden": Condition(
        lambda widths: all(width >= 1 for width in widths), "must hold widths of at least 1, such as [256,256]"
    ),
    "batch_size": at_least(1),
    "buffer_size": at_least(1),
    "learning_starts": at_least(0),
    "warmup": at_least(0),
    "epsilon": between(0, 1),
    "eval_epsilon": between(0, 1),
    "exploration_fraction": between(0, 1),
    "entropy_coef": at_least(0),
    "value_coef": at_least(0),
    "gae_lambda": between(0, 1),
    "clip": above(0),
    "target_kl": above(0),
    "beta": at_least(0),
    "expectile": between(0, 1, "neither"),
    "policy_delay": at_least(1),
    "max_weight": above(0),
    "max_exponent": above(0),
    "exploration_noise": at_least(0),
    "target_noise": at_least(0),
    "target_noise_clip": at_least(0),
    "max_grad_norm": above(0),
    "weight_decay": at_least(0),
    "adam_eps": above(0),
    "members": at_least(1),
    "elites": at_least(1),
    "value_goals": SHARES,
    "actor_goals": SHARES,
}


def check(config: Any, **conditions: Condition) -> None:
    """Checks the values of a `Config`: the given conditions, the common ones, and that every number is finite.

    Raises:
        ValueError: a value is not allowed. None is not checked.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        kind = field.name.rpartition("_")[2]
        condition = conditions.pop(field.name, COMMON.get(kind if kind in ("lr", "hidden", "tau") else field.name))
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"algo.{field.name}={value} must be a finite number")
        if value is not None and condition and not condition.holds(value):
            raise ValueError(f"algo.{field.name}={value} {condition.words}")
    if conditions:
        raise TypeError(f"{type(config).__name__} has no {', '.join(conditions)}")


def check_share(name: str, share: float, batch_size: int) -> None:
    """Checks that a batch takes at least one transition from each of its two sources, if both have a share.

    Args:
        name: the setting.
        share: the share of the first source.
        batch_size: the number of transitions from both together.

    Raises:
        ValueError: one of them contributes none.
    """
    count = round(share * batch_size)
    if 0 < share < 1 and count in (0, batch_size):
        found = "no transition" if count == 0 else "every transition"
        raise ValueError(f"algo.{name}={share} of algo.batch_size={batch_size} is {found}. Take a larger batch")


def before_last(steps: int, num_envs: int) -> int:
    """How many of a run's steps are done before the last joint step of all environments."""
    return (steps - 1) // num_envs * num_envs


def check_replay(run: "RunConfig", learning_starts: int, buffer_size: int, train_every: int = 1) -> None:
    """Checks that an online run learns at all, and that its replay buffer holds one step of all its environments.

    Raises:
        UsageError: it does not.
    """
    last_update = run.steps // train_every * train_every
    if before_last(run.steps, run.num_envs) < learning_starts or last_update <= learning_starts:
        often = f", at every algo.train_every={train_every}" if train_every > 1 else ""
        at_once = f"; num_envs={run.num_envs} are taken at once" if run.num_envs > 1 else ""
        raise UsageError(
            f"steps={run.steps}: learning begins after algo.learning_starts={learning_starts}{often}{at_once}. Raise "
            "steps, or lower algo.learning_starts."
        )
    if buffer_size < run.num_envs:
        raise UsageError(
            f"num_envs={run.num_envs}: algo.buffer_size={buffer_size} holds fewer transitions than come in one step. "
            "Try: num_envs=1"
        )
