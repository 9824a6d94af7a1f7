"""`zoo eval --fqe`: estimates from a dataset, without playing, what policies would return, and which one to choose."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zoo.commands.player import chosen_seed, open_player
from zoo.errors import UsageError, optional

if TYPE_CHECKING:
    from zoo.models.fitted_q import Estimate
    from zoo.settings.config import RunConfig

UPDATES = 10_000  # of fitted Q evaluation, for each critic


class Choice(NamedTuple):
    """The quality of a choice based on estimates (Fu et al. 2021, arXiv 2103.16596, rank correlation and regret@1).

    Attributes:
        correlation: Spearman's, between estimates and returns; NaN if all estimates or all returns are equal.
        regret: the best return minus that of the policy with the largest estimate.
        spread: the best return minus the worst.
    """

    correlation: float
    regret: float
    spread: float


def choice(estimates: np.ndarray, returns: np.ndarray) -> Choice:
    """Compares estimates `[N]` with returns `[N]`."""
    import scipy.stats

    alike = np.ptp(estimates) == 0 or np.ptp(returns) == 0
    correlation = np.nan if alike else float(scipy.stats.spearmanr(estimates, returns).statistic)
    return Choice(correlation, float(returns.max() - returns[estimates.argmax()]), float(np.ptp(returns)))


def estimate(
    paths: Sequence[Path], env: str | None, file: Path | None, dataset: str | None, updates: int, seed: int | None
) -> None:
    """Estimates the discounted return of each run's policy; ranks the policies if there are several.

    Args:
        paths: folders of runs, or ZIP files of Stable-Baselines3.
        env: the environment for ZIP files.
        file: the algorithm file for runs whose algorithm is not the zoo's.
        dataset: the dataset for all policies; None: the one from which the runs learned.
        updates: the number of updates for each critic.
        seed: the critics' seed, the same for each policy; None: the first run's.

    Raises:
        UsageError: the policies cannot be evaluated, or cannot be compared.
    """
    import torch

    from zoo.data.corruption import CorruptionConfig
    from zoo.data.samplers import SamplerConfig
    from zoo.envs import spec_of
    from zoo.models.fitted_q import FittedQ
    from zoo.runs.dataset import open_dataset

    if len(paths) > 1:
        optional("scipy", "a ranking", "bench")
    players = [open_player(path, *_own(path, paths, env, file)) for path in paths]
    configs = [config for config, _ in players]
    _same([config.env.id for config in configs], "play different environments", "Rank those of one.")
    if dataset is None:
        names = [_learned_from(path, config) for path, config in zip(paths, configs, strict=True)]
        dataset = _same(names, "learned from different datasets", "Name one for all: --dataset NAME")
    first, critics_seed = configs[0], chosen_seed(seed, configs[0])
    plain = dataclasses.replace(
        first, dataset=dataset, corruption=CorruptionConfig(), sampler=SamplerConfig(), reward_scale=1.0,
        reward_shift=0.0,
    )  # fmt: skip
    data, _ = open_dataset(plain, spec_of(first.env), torch.device("cpu"), None, None, print)
    discount = max(getattr(config.algo, "discount", 0.99) for config in configs)  # one for all: others' values are less
    for _, agent in players:
        FittedQ.check(agent, data, discount)  # check all before fitting any
    estimates = []
    for path, (_, agent) in zip(paths, players, strict=True):
        torch.manual_seed(critics_seed)
        fitted = FittedQ(agent, data, discount)
        for _ in range(updates):
            fitted.update()
        estimates.append(fitted.estimate())
        value, low, high = estimates[-1]
        whose = f": {path}" if len(paths) > 1 else ""
        by = f"discounted by {discount}, from {dataset}{whose}"
        print(f"fqe          return {value:10.2f} [{low:.2f}, {high:.2f}], {by}", flush=True)
    if len(paths) > 1:
        print("\n".join(["", *ranking(paths, estimates, [last_return(path) for path in paths])]))


def _own(path: Path, paths: Sequence[Path], env: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """The environment and the algorithm file for one of several policies: for ZIP files, for runs of such a file."""
    from zoo.runs.record import read_record

    if path.suffix == ".zip":
        return env, file
    if env is not None and not any(other.suffix == ".zip" for other in paths):
        raise UsageError(f"--env {env} is for ZIP files with --fqe: {path} knows its environment. Leave it out.")
    of_file = len(paths) == 1 or read_record(path)["algorithm"]["file"] is not None
    return None, file if of_file else None


def ranking(paths: Sequence[Path], estimates: "Sequence[Estimate]", returns: Sequence[float]) -> list[str]:
    """The lines of a table of policies, by decreasing estimate, and a line on how well it agrees with returns.

    Args:
        paths: the runs.
        estimates: one for each run.
        returns: from the last evaluation of each run; NaN if there is none.
    """
    width = max(len(str(path)) for path in paths)
    lines = [f"{'run':<{width}}  {'estimated':>10}  {'95 %':>22}  {'returned':>10}"]
    order = sorted(range(len(paths)), key=lambda i: estimates[i].value, reverse=True)
    for i in order:
        interval = f"[{estimates[i].low:.2f}, {estimates[i].high:.2f}]"
        returned = "" if np.isnan(returns[i]) else f"{returns[i]:.2f}"
        lines.append(f"{paths[i]!s:<{width}}  {estimates[i].value:>10.2f}  {interval:>22}  {returned:>10}".rstrip())
    played = [i for i in order if not np.isnan(returns[i])]
    if len(played) > 1:
        made = choice(np.array([estimates[i].value for i in played]), np.array([returns[i] for i in played]))
        share = f", {made.regret / made.spread:.0%} of best less worst" if made.spread else ""
        lines += [
            "",
            f"Spearman's rank correlation with the returns of {len(played)} runs: "
            + ("none, as one side is all alike" if np.isnan(made.correlation) else f"{made.correlation:.2f}"),
            f"regret of the first: {made.regret:.2f}{share}",
        ]
    return lines


def last_return(path: Path) -> float:
    """The mean return in a run's last evaluation, undiscounted; NaN if there is none."""
    from zoo.runs.record import evaluated

    try:
        returns = evaluated(path)
    except OSError:
        return np.nan
    return returns[max(returns)] if returns else np.nan


def _same(values: Sequence[str], what: str, advice: str) -> str:
    """The value that all share. Raises UsageError if they differ."""
    if len(found := sorted(set(values))) > 1:
        raise UsageError(f"these runs {what}: {', '.join(found)}. {advice}")
    return found[0]


def _learned_from(path: Path, config: "RunConfig") -> str:
    """The name of a run's dataset. Raises UsageError if it has none."""
    record = path / "run.json"
    if not (record.is_file() and json.loads(record.read_text()).get("dataset")):
        raise UsageError(f"{path} did not learn from a dataset. Name one: --fqe --dataset NAME")
    return config.dataset
