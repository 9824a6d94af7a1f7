"""The hyperparameter search: it finds the best settings, tests them with other seeds, and can be continued."""

import csv
import json
from pathlib import Path

import pytest

from zoo.benchmarks import tune
from zoo.cli import main
from zoo.errors import RunError, UsageError

SEARCH = ["run", "-m", "sweeper=optuna", "algo=ppo", "env=cartpole"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trials() -> list[dict[str, str]]:
    with Path("tune/ppo-cartpole/trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("sign", [1, -1])
def test_the_best_of_a_known_function_is_found_and_judged_with_other_seeds(monkeypatch, capsys, sign):
    asked: list[tuple[float, tuple[int, ...]]] = []

    def play(overrides, seeds, jobs, folder):
        folder.mkdir(parents=True, exist_ok=True)
        given = dict(one.split("=", 1) for one in overrides)
        lr, epochs, size = float(given["algo.lr"]), int(given["algo.epochs"]), int(given["algo.num_steps"])
        assert 1e-5 <= lr <= 1e-1
        assert epochs in (2, 4, 6)
        if size == 32:
            raise RunError("no luck")
        asked.append((lr, tuple(seeds)))
        return [sign * (100 - 1e4 * abs(lr - 1e-3) - epochs + seed) for seed in seeds], sign

    monkeypatch.setattr(tune, "run", play)
    given = ["algo.lr=tag(log,interval(1e-5,1e-1))", "algo.epochs=range(2,7,2)", "algo.num_steps=choice(16,32)"]
    assert main([*SEARCH, "sweeper.n_trials=60", "seed=5,6", "sweeper.seeds=[7,8,9]", *given]) == 0
    out = capsys.readouterr().out
    rows = trials()
    assert len(rows) == 60
    assert {row["mean"] == "" for row in rows if row["algo.num_steps"] == "32"} == {True}
    best = max((row for row in rows if row["mean"]), key=lambda row: sign * float(row["mean"]))
    assert 5e-4 < float(best["algo.lr"]) < 2e-3
    assert best["algo.epochs"] == "2"
    assert {seeds for _, seeds in asked[:-1]} == {(7, 8, 9)}
    assert asked[-1] == (float(best["algo.lr"]), (5, 6))
    assert "with seeds 5,6 (the test seeds)" in out
    assert f"algo.lr={best['algo.lr']}" in out.splitlines()[-2]


@pytest.mark.slow
def test_a_search_begun_again_runs_nothing_twice(capsys):
    given = [
        "steps=64", "eval_every=64", "eval_episodes=1", "logger=none", "algo.hidden=[8]", "algo.num_steps=32",
        "algo.minibatches=4", "env.backend=gymnasium", "sweeper.n_trials=2", "sweeper.seeds=[1000]", "seed=0",
        "algo.lr=interval(1e-4,1e-2)",
    ]  # fmt: skip
    assert main([*SEARCH, *given]) == 0
    first = capsys.readouterr().out
    assert first.count("running") == 3  # two trials, and the best one with the test seed
    runs = {path: path.stat().st_mtime_ns for path in Path("tune").rglob("checkpoint.pt")}
    assert len(runs) == 3
    assert len(list(Path("tune/ppo-cartpole/search").rglob("checkpoint.pt"))) == 2
    assert len(list(Path("tune/ppo-cartpole/test").rglob("checkpoint.pt"))) == 1
    assert main([*SEARCH, *given]) == 0
    again = capsys.readouterr().out
    assert "running" not in again
    assert [line for line in first.splitlines() if line.startswith(("trial", "best", "zoo"))] == [
        line for line in again.splitlines() if line.startswith(("trial", "best", "zoo"))
    ]
    assert all(path.stat().st_mtime_ns == when for path, when in runs.items())


def test_trials_on_the_cpu_take_a_core_each_beside_gpus_too(monkeypatch):
    places = []

    def play(self):
        places.append(len(self.launcher.places))
        raise RunError("enough")

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("zoo.benchmarks.launchers.cores", lambda: 3)
    monkeypatch.setattr(tune.Runner, "go", play)
    for device in ("cpu", "cuda"):
        assert main([*SEARCH, "algo.lr=interval(1e-4,1e-2)", "sweeper.n_trials=1", f"device={device}"]) == 1
    assert places == [3, 8]


def test_of_predictions_those_with_the_least_error_are_best(monkeypatch, capsys):
    def play(self):
        for job in self.jobs:
            settings = job.run.settings
            job.dir.mkdir(parents=True, exist_ok=True)
            error = "" if settings["algo"]["kappa"] == 9 else settings["algo"]["kappa"]
            (job.dir / "evaluations.csv").write_text(f"step,return_mean,value_error\n10,1.0,{error}\n")
            (job.dir / "run.json").write_text(
                json.dumps({"status": "finished", "config": settings, "versions": {"zoo": "0"}})
            )
            job.state = "finished"
        return self.jobs

    monkeypatch.setattr(tune.Runner, "go", play)
    given = ["algo=stream_td", "env=series/hopper", "steps=10", "algo.kappa=choice(1.5,2.0,9.0)", "sweeper.n_trials=9"]
    assert main(["run", "-m", "sweeper=optuna", *given, "sweeper.dir=found"]) == 0
    out = capsys.readouterr().out
    assert "algo.kappa=1.5" in out.splitlines()[-2]
    assert "the last evaluations are not all known: [nan, nan, nan]" in out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["algo.lr=1e-3"], "has nothing to search"),
        (["algo.lr=1e-3,1e-2", "run_dir=mine"], "run_dir=mine: each run of a search has its own folder. Name the"),
        (["algo.lr=1e-3,1e-2", "seeds=3"], "seeds=3: a search takes seed=0,1,2 for the test seeds and sweeper.seeds"),
        (["algo.lr=1e-3,1e-2", "sweeper.n_trials=0"], "sweeper.n_trials=0 must be at least 1"),
        (["algo.lr=1e-3,1e-2", "sweeper.jobs=-1"], "sweeper.jobs=-1 must be at least 1"),
        (["algo.lr=1e-3,1e-2", "sweeper.seeds=[]"], "sweeper.seeds=[] must be at least one seed"),
        (["algo.lr=1e-3,1e-2", "sweeper.seeds=[7,7]"], "sweeper.seeds=[7, 7] must be at least one seed, without"),
        (["algo.lr=1e-3,1e-2", "sweeper.seeds=7,8,7"], "sweeper.seeds=[7, 8, 7] must be at least one seed, without"),
        (["algo.lr=1e-3,1e-2", "device=gpu"], "device=gpu is not on this machine. Try: device=cpu."),
        (["algo.lr=1e-3,1e-2", "seed=1,2,1"], "seed=[1, 2, 1] must be at least one seed, without duplicates"),
        (["algo.lr=1e-3,1e-2", "seed=[0,1]"], "seed=[0,1] are not seeds. Give numbers, such as seed=0,1,2"),
        (["algo.lr=1e-3,1e-2", "seed=abc"], "seed=abc are not seeds"),
        (["algo.lr=1e-3,1e-2", "seed=interval(0,3)"], "seed=interval(0,3) are not seeds"),
        (["algo.lr=1e-3,1e-2", "sweepers=3"], "sweepers does not exist"),
        (["algo=bc", "env=hopper", "algo.lr=1e-3,1e-2", "dataset=nowhere"], "3 of 3 runs lack their dataset"),
        (["algo.lr=1e-3,1e-2", "sweeper.trials=3"], "sweeper.trials does not exist. Nearest: n_trials"),
        (["algo.lr=1e-3,1e-2", "seed=1000"], "seed 1000 is both a tuning and a test seed"),
        (["algo.learning=1e-3,1e-2"], "algo.learning does not exist"),
        (["algo.lr=1e-3,1e-2", "sweeper=ax"], "sweeper=ax does not exist. There is: optuna."),
        (["algo.lr=interval(1"], "algo.lr=interval(1"),
        (["algo.lr=tag(log,interval(0,1e-2))"], "algo.lr=tag(log,interval(0,1e-2)) cannot be searched: "),
        (["algo.lr=interval(2e-2,1e-2)"], "algo.lr=interval(2e-2,1e-2) cannot be searched: "),
        (["algo.lr=choice(1e-3,null)"], "NoneType is incompatible with"),
    ],
)
def test_a_search_that_cannot_be_is_refused(capsys, given, says):
    assert main([*SEARCH, *given]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not Path("tune").exists()


def test_settings_that_cannot_be_run_are_a_trial_that_failed_unless_they_are_the_first(monkeypatch, capsys):
    played = []

    def play(overrides, seeds, jobs, folder):
        folder.mkdir(parents=True, exist_ok=True)
        played.append(overrides)
        if "algo.num_steps=64" in overrides:
            raise UsageError("fewer than one rollout")
        return [1.0 for _ in seeds], 1

    monkeypatch.setattr(tune, "run", play)
    codes = []
    for seed in range(4):
        played.clear()
        given = ("sweeper.n_trials=8", "algo.num_steps=choice(64,32)", f"sweeper.sampler_seed={seed}")
        codes.append(main([*SEARCH, *given]))
        first_fails = "algo.num_steps=64" in played[0]
        assert (codes[-1], len(played)) == ((2, 1) if first_fails else (0, 9))
    assert set(codes) == {0, 2}
    assert "failed. fewer than one rollout" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ("algo.policy='gaussian','deterministic'", {"algo.policy=gaussian", "algo.policy=deterministic"}),
        ("algo.hidden=[8],[16,16]", {"algo.hidden=[8]", "algo.hidden=[16,16]"}),
        ("algo.tau=shuffle(0.1,0.2)", {"algo.tau=0.1", "algo.tau=0.2"}),
    ],
)
def test_names_in_quotes_lists_and_shuffled_choices_can_be_searched(monkeypatch, choices, expected):
    seen = set()

    def play(overrides, seeds, jobs, folder):
        folder.mkdir(parents=True, exist_ok=True)
        seen.update(overrides)
        return [1.0 for _ in seeds], 1

    monkeypatch.setattr(tune, "run", play)
    assert main(["run", "-m", "sweeper=optuna", "algo=iql", "env=hopper", "sweeper.n_trials=9", choices]) == 0
    assert seen == {"algo=iql", "env=hopper", *expected}


def test_a_range_of_whole_numbers_gives_whole_numbers(monkeypatch):
    seen = []

    def play(overrides, seeds, jobs, folder):
        folder.mkdir(parents=True, exist_ok=True)
        seen.extend(one.partition("=")[2] for one in overrides if one.startswith("algo.batch_size"))
        return [0.02 for _ in seeds], 1

    monkeypatch.setattr(tune, "run", play)
    searched = ["env=hopper", "sweeper.n_trials=9", "algo.batch_size=int(interval(8,64))"]
    assert main(["run", "-m", "sweeper=optuna", "algo=iql", *searched]) == 0
    assert all(8 <= int(one) <= 64 for one in seen)
    assert len(set(seen)) > 2
