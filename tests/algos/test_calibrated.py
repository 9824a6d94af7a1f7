"""Cal-QL in a run: the lower bounds of its values, offline, online, and after resuming."""

import json

import numpy as np
import pytest
import torch

import zoo
from zoo.algos.cql import CQL
from zoo.cli import main
from zoo.errors import UsageError

SMALL = {
    "env": "inverted_pendulum", "eval_every": 10_000, "eval_episodes": 1, "logger": "none", "env.backend": "gymnasium",
}  # fmt: skip
CONFIG = {"hidden": [16], "batch_size": 64, "num_actions": 2, "calibrated": True, "normalize_obs": False}


@pytest.fixture
def batches(monkeypatch):
    seen, update = [], CQL.update
    monkeypatch.setattr(CQL, "update", lambda agent, batch: (seen.append(batch), update(agent, batch))[1])
    return seen


@pytest.mark.parametrize("num_envs", [1, 2])
def test_own_episodes_have_their_returns_once_they_have_ended(unsteady_file, tmp_path, batches, num_envs):
    run = zoo.train(
        "cql", **SMALL, dataset=unsteady_file, steps=3, online_steps=60, online_fraction=0.5, num_envs=num_envs,
        run_dir=tmp_path / "run", algo_config=CONFIG,
    )  # fmt: skip
    assert all(torch.isfinite(batch.return_to_go).all() for batch in batches[:3])
    buffer = torch.load(run.dir / "checkpoint.pt", weights_only=True)["tracked"]["online_buffer"]
    (first, last), *rest = buffer["files"]
    assert not rest
    rows = torch.load(run.dir / "replay" / "online_buffer" / f"{first}-{last}.pt", weights_only=True)
    returns = {}  # by the run's own observations
    for env in range(num_envs):
        reward, over = (rows[name][env::num_envs].numpy() for name in ("reward", "terminated"))
        obs, start = rows["obs"][env::num_envs], 0
        for end in np.flatnonzero(over):
            for t in range(start, end + 1):
                value = sum(0.99**k * r for k, r in enumerate(reward[t : end + 1]))
                returns[tuple(obs[t].tolist())] = value
            start = end + 1
    assert returns  # a pole that nobody has learned to balance falls within a few steps
    known = 0
    for obs, value in zip(batches[-1].obs[32:], batches[-1].return_to_go[32:], strict=True):
        if tuple(obs.tolist()) in returns:
            assert float(value) == pytest.approx(returns[tuple(obs.tolist())], rel=1e-4)
            known += 1
        else:
            assert value == -torch.inf
    assert known


def test_a_run_that_was_stopped_in_an_episode_goes_on_with_the_same_returns(unsteady_file, tmp_path):
    arguments = ["run", "algo=cql", f"dataset={unsteady_file}", *(f"{key}={value}" for key, value in SMALL.items())]
    arguments += [f"algo.{key}={value}".replace(" ", "").lower() for key, value in CONFIG.items()]
    arguments += ["steps=2", "online_fraction=0.5", "compile=false"]
    assert main([*arguments, "online_steps=80", f"run_dir={tmp_path / 'whole'}"]) == 0
    run_dir = tmp_path / "run"
    assert main([*arguments, "online_steps=50", f"run_dir={run_dir}"]) == 0
    record = json.loads((run_dir / "run.json").read_text())
    record["config"]["online_steps"] = 80
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "running"}))
    assert main(["run", f"resume={run_dir}"]) == 0
    paths = (tmp_path / "whole" / "checkpoint.pt", run_dir / "checkpoint.pt")
    whole, resumed = (torch.load(path, weights_only=True)["tracked"]["agent"] for path in paths)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items() if isinstance(value, torch.Tensor))


def test_data_that_does_not_say_where_episodes_end_has_no_returns(unsteady_file, tmp_path, monkeypatch):
    monkeypatch.setattr("zoo.runs.dataset.missing_ends", lambda *_: "this file does not say where its episodes end.")
    with pytest.raises(UsageError, match="does not say where its episodes end"):
        zoo.train("cql", **SMALL, dataset=unsteady_file, steps=3, run_dir=tmp_path / "run", algo_config=CONFIG)
