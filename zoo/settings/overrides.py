"""The notation of settings, `key=value`, read and written with Hydra's grammar."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from zoo.errors import UsageError, quoted
from zoo.machine import expanded


def parse(arguments: Sequence[str]) -> list[Override]:
    """Overrides as Hydra reads them, with `~` for the home folder and letters beyond ASCII too.

    Raises:
        UsageError: one cannot be parsed.
    """
    for argument in arguments:
        if argument.endswith(".py") and "=" not in argument:
            raise UsageError(f"{argument}: a file of your own is run by itself: python {quoted(argument)} env=...")
        if "=" not in argument:
            raise UsageError(f"'{argument}' is not key=value. Write for example: zoo run algo=iql env=hopper")
    parser = OverridesParser.create()
    overrides = []
    for argument in arguments:
        try:
            overrides += parser.parse_overrides([_readable(argument)])
        except HydraException as error:
            raise UsageError(
                f"cannot read {argument}: put the value in quotes if it holds spaces, brackets, commas or =."
            ) from error
        # a resolver, or a name of one: the records of other people's runs may not read ours
        if re.search(r"\$\{[^}]*(?::|\$\{)", str(overrides[-1].value())):
            raise UsageError(f"{argument}: ${{...}} is the value of another setting, such as ${{seed}}, nothing else.")
    return overrides


def _readable(argument: str) -> str:
    """A setting with its value in quotes if Hydra's grammar lacks it: a folder at home, or letters beyond ASCII."""
    key, _, value = argument.partition("=")
    if value.startswith("~/"):
        return f"{key}={_literal(expanded(value))}"
    plain = not re.search(r"""[\s,='"\\()\[\]{}]""", value)
    return argument if value.isascii() or not plain else f"{key}={_literal(value)}"


def value_of(override: Override) -> str:
    """The value of an override, without quotes."""
    value = override.value()
    return value if isinstance(value, str) else str(override.get_value_element_as_str()).strip("'\"")


def expand(arguments: Sequence[str]) -> list[list[str]]:
    """Every combination of a multirun's values: `seed=0,1 env=a` -> `[[seed=0, env=a], [seed=1, env=a]]`."""
    choices, overrides = [], parse(arguments)
    keys = [override.get_key_element() for override in overrides]
    for override, key in zip(overrides, keys, strict=True):
        if override.is_sweep_override():
            if keys.count(key) > 1:
                raise UsageError(f"{override.input_line} and another value of {key} are both given. Leave one out")
            try:
                values = list(override.sweep_string_iterator())
            except HydraException as error:
                raise UsageError(
                    f"{override.input_line} has no values one after another: list them, or search with sweeper=optuna."
                ) from error
            choices.append([f"{key}={value}" for value in values])
        else:
            choices.append([str(override.input_line)])
    return [list(combination) for combination in itertools.product(*choices)]


def varying(runs: Sequence[Sequence[str]]) -> list[str]:
    """For each run that `expand` gives, the settings in which they differ, as typed: `algo.lr=1e-3 seed=1`."""
    differ = [len(set(values)) > 1 for values in zip(*runs, strict=True)]
    return [" ".join(map(typed, itertools.compress(run, differ))) for run in runs]


def as_overrides(settings: dict[str, Any], prefix: str = "") -> list[str]:
    """Keyword arguments as overrides: `{"env": "hopper", "algo": {"beta": 1}}` -> `[env=hopper, algo.beta=1]`.

    Raises:
        UsageError: a value is an object of an unsupported kind, such as an environment.
    """
    overrides = []
    for key, value in settings.items():
        value = value.tolist() if hasattr(value, "tolist") else value  # scalars and arrays of NumPy and PyTorch
        if isinstance(value, str | Path) and str(value).startswith("~/"):
            value = expanded(value)
        if isinstance(value, dict):
            overrides += as_overrides(value, f"{prefix}{key}.")
        elif not isinstance(value, str | Path | int | float | list | tuple | None):
            if prefix + key == "env":
                how = 'gymnasium.register("Mine-v0", entry_point=...), then env="Mine-v0"'
                raise UsageError(f"env is the name of an environment, not of type {type(value).__name__}: {how}")
            kinds = 'names, numbers, true or false, or lists of them, such as "hopper"'
            raise UsageError(f"{prefix}{key} cannot be of type {type(value).__name__}: settings are {kinds}.")
        else:
            overrides.append(f"{prefix}{key}={_literal(value, exact=prefix.startswith('env.kwargs.'))}")
    return overrides


def typed(override: str) -> str:
    """A setting as it is typed in a shell: within further quotes where the shell would change it."""
    return quoted(override) if re.search(r"[^\w.,/+%:=\[\]-]", override) else override


def folders(text: str) -> list[str]:
    """The folders that `run_dir` or `resume` names, one or several: `[a,'b c']` -> `["a", "b c"]`.

    Raises:
        UsageError: it names none.
    """
    if text[:1] not in ("[", "'", '"'):
        return [text]
    value = parse([f"run_dir={text}"])[0].value()
    if value == []:
        raise UsageError("[] names no folder. Give one, or several: [DIR,DIR]")
    if not isinstance(value, list):
        return [str(value)]
    items = re.findall(r"""'(?:\\.|[^'])*'|"(?:\\.|[^"])*"|[^\s,][^,]*""", text[1:-1])
    return [name for item in items for name in folders(item.strip())]  # what looks like a number stays as typed


def _literal(value: Any, exact: bool = False) -> str:
    """A value as Hydra reads it; with `exact`, a string that it would read as a number is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_literal(one, exact) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_literal(key)}:{_literal(one, exact)}' for key, one in value.items())}}}"
    plain = re.fullmatch(r"[\w./+%:-]+", str(value), re.ASCII)
    if isinstance(value, str | Path) and not (plain and (not exact or parse([f"x={value}"])[0].value() == value)):
        # a backslash is literal, except before a quote
        return "'" + re.sub(r"\\+(?='|$)", lambda found: 2 * found[0], str(value)).replace("'", "\\'") + "'"
    return str(value)
