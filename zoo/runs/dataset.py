"""The dataset of a run: loaded, checked against the environment, and corrupted if requested."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from zoo.data.ahead import SampledAhead
from zoo.data.arrays import Arrays, fitted, out_of_bounds
from zoo.data.catalog import Source, recorded_env
from zoo.data.corruption import Adversary, CorruptionConfig, corrupt
from zoo.data.dataset import Dataset
from zoo.data.load import NO_REWARDS, load_arrays, missing_ends
from zoo.envs import EnvConfig
from zoo.errors import RunError, UsageError
from zoo.settings.config import RunConfig
from zoo.spec import Spec

Content = tuple[Arrays, list[Source], str]  # with the fingerprint
_kept: dict[tuple[str, str], Content] | None = None  # by environment and name, while datasets are read only once


@contextlib.contextmanager
def reading_once() -> Iterator[None]:
    """Inside this context, a dataset that several runs open is read only once. Nothing changes the arrays in place."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _kept = None


def open_dataset(
    config: RunConfig,
    spec: Spec,
    device: torch.device,
    adversary: Adversary | None,
    begun_with: str | None,
    report: Callable[[str], None],
) -> tuple[Dataset, dict[str, Any]]:
    """The dataset that a run's settings name.

    Args:
        config: the run's settings.
        spec: the environment's shapes and bounds.
        device: where the dataset's tensors live.
        adversary: a trained agent, if the corruption needs one.
        begun_with: the fingerprint of the data that a resumed run began with.
        report: called with each line that the user should see.

    Returns:
        The dataset, and its description for `run.json`.

    Raises:
        UsageError: there is no such dataset, or it is not of this environment, not the one that the run began with, or
            not the one that the adversary learned from.
        RunError: the dataset cannot be read.
    """
    name, corruption = config.dataset, config.corruption
    arrays, unmarked, description = _read(name, config.env, spec, report)
    if begun_with not in (None, description["fingerprint"]):
        raise UsageError(other_content(f"dataset={name}"))
    if adversary and adversary.fingerprint != description["fingerprint"]:
        raise UsageError(
            f"corruption.critic={corruption.critic} has not learned from this dataset. Train an "
            "offline actor-critic (the paper: EDAC with 10 critics) on this env and dataset, and give the run's folder."
        )
    if corruption.name != CorruptionConfig.name:
        arrays, description["corrupted"] = corrupt(arrays, corruption, config.seed, device, adversary)
    if not spec.goal_dim and config.reward_shift == 0 and not arrays.reward.any():
        report(f"dataset={name}: {NO_REWARDS}")
    arrays = arrays._replace(reward=_rescaled(arrays.reward, config, report))
    data = Dataset(arrays, spec, device, config.sampler, unmarked, report)
    if device.type == "cuda":
        data.sample = SampledAhead(data)  # type: ignore[method-assign]
    return data, description


def _rescaled(reward: np.ndarray, config: RunConfig, report: Callable[[str], None]) -> np.ndarray:
    """The rewards to learn from; reports it if those of a sparse task had already been shifted."""
    scale, shift = config.reward_scale, config.reward_shift
    if (shift < 0 and reward.min() < 0) or (shift > 0 and reward.max() > 0):
        report(
            f"dataset={config.dataset}: reward_shift={shift:g} moves rewards that lie in [{reward.min():g}, "
            f"{reward.max():g}]; leave it out if they were shifted before"
        )
    with np.errstate(over="ignore", invalid="ignore"):  # the run refuses infinite rewards
        return (scale * reward + shift).astype(reward.dtype)


def open_demonstrations(
    name: str, env: EnvConfig, spec: Spec, device: torch.device, begun_with: str | None,
    report: Callable[[str], None],
) -> tuple[Dataset, dict[str, Any]]:  # fmt: skip
    """Another dataset, named by the setting `algo.expert`; sampled uniformly and never corrupted.

    Args:
        name: as for `dataset`; may be a mixture.

    The other arguments, results and exceptions are those of `open_dataset`.
    """
    try:
        arrays, unmarked, description = _read(name, env, spec, report)
    except (UsageError, RunError) as error:
        raise type(error)(str(error).replace("dataset=", "algo.expert=")) from error
    if begun_with not in (None, description["fingerprint"]):
        raise UsageError(other_content(f"algo.expert={name}"))
    return Dataset(arrays, spec, device, missing_ends=unmarked, report=report), description


def other_content(named: str) -> str:
    return f"{named} is not the data this run began with: its content has changed. Start a new run."


def _read(name: str, env: EnvConfig, spec: Spec, report: Callable[[str], None]) -> tuple[Arrays, str, dict[str, Any]]:
    """A dataset that fits the environment, why its episode ends are unreliable (if they are), and its description."""
    arrays, sources, fingerprint = _content(name, env)
    arrays = fitted(arrays, spec, name, env)
    if outside := int(out_of_bounds(arrays.action, spec).sum()):
        report(
            f"dataset={name}: {outside:,} of {len(arrays.action):,} actions lie outside the bounds of {env.id}, by "
            f"size up to {np.abs(arrays.action).max():.4g}; they are learned from as they are"
        )
    for source in sources:
        if source.in_episodes and (recorded := recorded_env(source.path)) not in (None, env.id):
            report(f"dataset={name}: {source.name} was recorded in {recorded}, and this run is in {env.id}")
    description = {
        "name": name,
        "sources": [{"name": source.name, "kind": source.kind, "path": str(source.path)} for source in sources],
        "transitions": len(arrays.reward),
        "episodes": len(arrays.episode_starts),
        "fingerprint": fingerprint,
    }
    return arrays, missing_ends(arrays, sources, name, env), description


def _content(name: str, env: EnvConfig) -> Content:
    if _kept is not None and (env.id, name) in _kept:
        return _kept[env.id, name]
    arrays, sources = load_arrays(env, name)
    content = arrays, sources, arrays.fingerprint()
    if _kept is not None:
        _kept[env.id, name] = content
    return content
