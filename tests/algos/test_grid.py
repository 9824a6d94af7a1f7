"""Every sampler and corruption works with every offline algorithm.

Both are applied to a dataset before an algorithm sees it. So all pairs are tested with two algorithms, one that learns
from transitions and one that learns from windows; the others are tested with each sampler and each corruption at least
once.
"""

import dataclasses
import itertools
import math

import pytest

import zoo
from zoo.data.corruption import PARTS
from zoo.data.samplers import SAMPLERS
from zoo.settings.registry import algorithms

OFFLINE = [algorithm for algorithm in algorithms().values() if algorithm.data == "required"]
CORRUPTIONS = ("none", *(f"random-{part}" for part in PARTS))
# settings for short runs, if an algorithm has them
SMALL = {
    "batch_size": 32, "hidden": [16], "num_actions": 2, "num_critics": 2, "layers": 1, "width": 16, "context": 5,
    "warmup": 10, "members": 2, "elites": 1, "dynamics_hidden": [32, 32, 32, 32], "dynamics_epochs": 12,
    "dynamics_lr": 5e-3, "behavior_hidden": [8], "behavior_epochs": 1, "diffusion_steps": 2, "min_return": -1700.0,
    "rollout_batch": 256, "rollouts": 10,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", OFFLINE, ids=[algorithm.name for algorithm in OFFLINE])
def test_200_updates_with_every_sampler_and_every_corruption(
    algorithm, pendulum_file, cartpole_file, reach_file, tmp_path
):
    has = {field.name for field in dataclasses.fields(algorithm.module.Config)}
    small = SMALL | {"expert": f"2ep:{pendulum_file}"}
    continuous = "continuous" in algorithm.action_spaces
    env, file = ("pendulum", pendulum_file) if continuous else ("cartpole", cartpole_file)
    if algorithm.takes_goals:
        env, file = "Reach-v0", reach_file
    corruptions = [one for one in CORRUPTIONS if continuous or one != "random-action"]  # which adds noise to numbers
    pairs = list(itertools.product(SAMPLERS, corruptions))
    if algorithm.name not in ("iql", "dt"):
        pairs = list(zip(itertools.cycle(SAMPLERS), corruptions, strict=False))
    for sampler, corruption in pairs:
        run = zoo.train(
            algorithm.name, env=env, dataset=file, sampler=sampler, corruption=corruption, steps=200,
            eval_every=200, eval_episodes=1, log_every=50, logger="none", run_dir=tmp_path / f"{sampler}-{corruption}",
            algo_config={name: value for name, value in small.items() if name in has},
        )  # fmt: skip
        ((_, episodes),) = run.evaluations
        assert math.isfinite(episodes.returns.mean())
        assert ("corrupted" in run.record["dataset"]) == (corruption != "none")
