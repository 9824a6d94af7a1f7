"""Every sampler and corruption works with every offline algorithm."""

import itertools
import math

import pytest

import zoo
from zoo.data.samplers import SAMPLERS

ALGORITHMS = ("bc", "td3_bc", "iql", "cql", "rebrac", "awac", "riql")
CORRUPTIONS = ("none", "random-obs", "random-action", "random-reward", "random-dynamics")


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_200_updates_with_every_sampler_on_every_corruption(algo, pendulum_file, tmp_path):
    small = {"batch_size": 32, "hidden": [16]} | ({"num_actions": 2} if algo == "cql" else {})
    for sampler, corruption in itertools.product(SAMPLERS, CORRUPTIONS):
        run = zoo.train(
            algo, env="pendulum", dataset=pendulum_file, sampler=sampler, corruption=corruption, steps=200,
            eval_every=200, eval_episodes=1, log_every=50, logger="none", run_dir=tmp_path / f"{sampler}-{corruption}",
            algo_config=small,
        )  # fmt: skip
        ((_, episodes),) = run.evaluations
        assert math.isfinite(episodes.returns.mean())
        assert ("corrupted" in run.record["dataset"]) == (corruption != "none")
