"""Results of policies that are trained offline and then continue online: how far they drop, and what they reach."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zoo.benchmarks.stats import Estimate, mean

if TYPE_CHECKING:
    from zoo.benchmarks.analysis import Row
    from zoo.benchmarks.records import Result

FIGURES = ("offline", "dip", "online", "final")


class Switch(NamedTuple):
    """A method's runs that continued online.

    Attributes:
        offline: the last evaluation of the offline stage.
        dip: `offline` minus the lowest evaluation of the online stage; 0 if none is lower.
        online: the mean of all evaluations of the online stage. Regret is the best possible score minus this mean.
        final: the last evaluation.
        data_value: the critics' mean value of transitions of the dataset, over the runs: at the first online
            evaluation, the lowest, and the last; empty if unknown.
    """

    row: "Row"
    offline: Estimate
    dip: Estimate
    online: Estimate
    final: Estimate
    data_value: list[float]


def switches(rows: Sequence["Row"]) -> list[Switch]:
    """The methods whose runs were all evaluated in both stages."""
    found = []
    for row in rows:
        figures = [of_run(run, row.measure) for run in row.runs if went_online(run)]
        if len(figures) == len(row.runs):
            values = [run.columns.get("data_value", np.empty(0)) for run in row.runs]
            known = [one[~np.isnan(one)] for one in values]
            spread = [(one[0], one.min(), one[-1]) for one in known if len(one)]
            offline, dip, online, final = map(mean, np.array(figures).T)
            data_value = np.mean(spread, 0).tolist() if len(spread) == len(known) else []
            found.append(Switch(row, offline, dip, online, final, data_value))
    return found


def went_online(run: "Result") -> bool:
    """Whether a run has evaluations in both stages."""
    return bool(run.config["online_steps"]) and run.steps[0] <= run.config["steps"] < run.steps[-1]


def of_run(run: "Result", measure: str) -> tuple[float, float, float, float]:
    """`FIGURES` of one run."""
    values, offline = run.columns[measure], run.steps <= run.config["steps"]
    before, after = values[offline][-1], values[~offline]
    return before, max(before - after.min(), 0.0), after.mean(), after[-1]
