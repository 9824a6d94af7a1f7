"""Other libraries' runs: each of their formats gives steps and returns, and stands in the report beside the zoo's."""

import csv
import json

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from zoo.benchmarks.peers import PARTS, curve
from zoo.benchmarks.records import read
from zoo.cli import main
from zoo.compose import compose

HOPPER = compose(["algo=sac", "env=hopper"])[0].env


def write(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_progress_of_stable_baselines3_has_rows_without_an_evaluation(tmp_path):
    header = ["rollout/ep_rew_mean", "time/total_timesteps", "eval/mean_reward", "time/fps"]
    file = write(tmp_path / "progress.csv", header, [1.5, 100, "", 9], ["", 200, 7.5, ""], [2.5, 300, "", 9])
    steps, returns = curve(file, HOPPER, None)
    assert (steps.tolist(), returns.tolist()) == ([200], [7.5])
    _, named = curve(file, HOPPER, "time/fps")
    assert named.tolist() == [9, 9]


def test_normalized_scores_of_corl_become_returns(tmp_path):
    file = write(tmp_path / "wandb.csv", ["_step", "d4rl_normalized_score"], [5000, 0.0], [10000, 100.0])
    steps, returns = curve(file, HOPPER, None)
    assert steps.tolist() == [5000, 10000]
    np.testing.assert_allclose(returns, [HOPPER.random_score, HOPPER.expert_score])


def test_a_monitor_file_counts_steps_by_its_episodes_and_averages_them_over_parts_of_the_run(tmp_path):
    lines = ['#{"t_start": 0}', "r,l,t"] + [f"{i}.0,10,0.1" for i in range(40 * PARTS)]
    (tmp_path / "monitor.csv").write_text("\n".join(lines))
    steps, returns = curve(tmp_path / "monitor.csv", HOPPER, None)
    assert steps.tolist() == [400 * (i + 1) for i in range(PARTS)]
    expected = [np.mean(range(40 * i, 40 * (i + 1))) for i in range(PARTS)]
    np.testing.assert_allclose(returns, expected)


def test_evaluations_npz_are_averaged_over_episodes(tmp_path):
    results = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1, 2, 3]), results=results)
    steps, returns = curve(tmp_path / "evaluations.npz", HOPPER, None)
    assert (steps.tolist(), returns.tolist()) == ([1, 2, 3], [0.5, 2.5, 4.5])


def test_an_array_that_would_run_code_is_refused(tmp_path, capsys):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([{}], dtype=object), results=np.zeros((1, 1)))
    given = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "d")]
    assert main([*given, "algo=sac", "env=hopper"]) == 2
    assert "cannot be read as results" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_tensorboard_events_of_cleanrl_are_the_episodes_it_trained_on(tmp_path):
    writer = SummaryWriter(str(tmp_path / "runs" / "Hopper__sac__1"))
    for step in range(1, 101):
        writer.add_scalar("charts/episodic_return", step, step * 10)
    writer.close()
    steps, returns = curve(tmp_path / "runs", HOPPER, None)
    assert steps.tolist() == [50 * (i + 1) for i in range(PARTS)]
    np.testing.assert_allclose(returns, [5 * i + 3 for i in range(PARTS)])


def test_an_imported_run_stands_in_the_report_as_its_librarys(tmp_path, capsys):
    file = write(tmp_path / "sac.csv", ["step", "return_mean"], [10, 100.0], [20, 300.0])
    runs = tmp_path / "runs"
    given = ["bench", "import-peer", str(file), "SB3", "algo=sac", "env=hopper", "seed=3", "--dir", str(runs)]
    assert main(given) == 0
    assert main(given) == 2  # it is there
    assert "is there already. Delete it first" in capsys.readouterr().err
    (result,), notes = read(runs)
    assert not notes
    assert (result.task, result.method, result.seed, result.figure("final")) == ("hopper", "sac (SB3)", 3, 300)
    assert json.loads((result.dir / "run.json").read_text())["source"]["file"] == "sac.csv"
    assert main(["report", str(runs)]) == 0
    assert "| sac (SB3) | 1 | 20 | 300.0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        ("step,reward\n1,2\n", ["algo=sac", "env=hopper"], "Name one: --column NAME"),
        ("step,reward\n1,2\n", ["algo=sac", "env=hopper", "--column", "rewards"], "Nearest: reward."),
        ("when,return_mean\n1,2\n", ["algo=sac", "env=hopper"], "no column of steps, such as step"),
        ("", ["algo=sac", "env=hopper"], "it has no rows"),
        ("step,score\n1,2\n", ["algo=sac", "env=reacher", "env.expert_score=null"], "no reference scores to undo them"),
        ("step,return_mean\n1,2\n", ["algo=sacc", "env=hopper"], "Nearest: sac"),
        (None, ["algo=sac", "env=hopper"], "cannot be read as results"),
    ],
)
def test_what_holds_no_results_is_refused(tmp_path, capsys, text, given, says):
    if text is not None:
        (tmp_path / "x.csv").write_text(text)
    where = ["bench", "import-peer", str(tmp_path / "x.csv"), "SB3", "--dir", str(tmp_path / "runs")]
    assert main([*where, *given]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
