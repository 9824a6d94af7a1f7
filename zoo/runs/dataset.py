"""The dataset of a run: loaded, checked against the environment, corrupted if that was asked for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from zoo.data.arrays import check_fits, missing_ends, out_of_bounds
from zoo.data.corruption import Adversary, CorruptionConfig, corrupt
from zoo.data.dataset import Dataset
from zoo.data.load import load_arrays
from zoo.envs import time_limit
from zoo.errors import UsageError
from zoo.settings.config import RunConfig
from zoo.spec import Spec


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
        config: of the run.
        spec: of the environment.
        device: where the dataset's tensors live.
        adversary: a trained agent, where the corruption needs one.
        begun_with: the fingerprint of the data that a resumed run began with.
        report: called with each line that the user should know.

    Returns:
        The dataset, and its description for `run.json`.

    Raises:
        UsageError: no such dataset, or not of this environment, or not the one that the run began with.
        RunError: it cannot be read.
    """
    name, env, corruption = config.dataset, config.env, config.corruption
    limit = time_limit(env.id)
    arrays, sources = load_arrays(env, name, limit)
    check_fits(arrays, spec, name, env)
    unmarked = missing_ends(arrays, name, env, limit)
    if outside := int(out_of_bounds(arrays.action, spec).sum()):
        report(
            f"dataset={name}: {outside:,} of {len(arrays.action):,} actions lie outside the bounds of {env.id}, by "
            f"size up to {np.abs(arrays.action).max():.4g}; they are learned from as they are"
        )
    description = {
        "name": name,
        "sources": [{"name": source.name, "kind": source.kind, "path": str(source.path)} for source in sources],
        "transitions": len(arrays.reward),
        "episodes": len(arrays.episode_starts),
        "fingerprint": arrays.fingerprint(),
    }
    if begun_with not in (None, description["fingerprint"]):
        raise UsageError(
            f"dataset={name} is not the data this run began with: its content has changed. Start a new run."
        )
    if corruption.name != CorruptionConfig.name:
        arrays, description["corrupted"] = corrupt(arrays, corruption, config.seed, device, adversary)
    return Dataset(arrays, spec, device, config.sampler, unmarked, report), description
