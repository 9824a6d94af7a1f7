"""What a report says of runs that went online."""

from types import SimpleNamespace

import numpy as np

from zoo.benchmarks.switch import switches


def test_values_of_the_data_are_the_first_the_lowest_and_the_last_averaged_over_the_runs():
    runs = [
        SimpleNamespace(
            config={"steps": 10, "online_steps": 30},
            steps=np.array([10, 20, 30, 40]),
            columns={"score": np.arange(4.0), "data_value": np.array([np.nan, *values])},
        )
        for values in ([9.0, 2.0, 5.0], [7.0, 4.0, 3.0])
    ]
    (found,) = switches([SimpleNamespace(runs=runs, measure="score")])
    assert found.data_value == [8, 2.5, 4]
