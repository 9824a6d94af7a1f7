"""The dataset in the package."""

import json

import numpy as np

from zoo.cli import main
from zoo.data.catalog import EMBEDDED, resolve
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig

HOPPER = EnvConfig(id="Hopper-v5", random_score=-20.272305, expert_score=3234.3)
FOLDER = EMBEDDED / "hopper" / "demo"


def test_demo_is_small_and_large_enough() -> None:
    arrays, (source,) = load_arrays(HOPPER, "demo")
    assert source.kind == "embedded"
    assert len(arrays.reward) >= 100_000
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 8_000_000


def test_demo_is_of_mixed_quality_up_to_a_good_gait() -> None:
    arrays, _ = load_arrays(HOPPER, "demo")
    scores = HOPPER.normalize(arrays.episode_returns)
    assert scores.min() < 10
    assert np.quantile(scores, 0.5) < 60
    assert scores.max() > 75


def test_demo_says_the_command_that_made_it() -> None:
    metadata = json.loads((resolve(HOPPER, "demo").path / "metadata.json").read_text())
    assert metadata["zoo"]["command"].startswith("zoo data make hopper ")
    assert metadata["zoo"]["training"]["algo"]["name"] == "sac"
    assert metadata["algorithm_name"] == "SAC"


def test_demo_verifies() -> None:
    assert main(["data", "verify", "hopper/demo"]) == 0
