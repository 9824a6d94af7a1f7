"""Other libraries' runs: steps and returns are read from each format, and the report compares them with the zoo's."""

import csv
import json

import numpy as np
import pytest
from torch.utils.tensorboard import SummaryWriter

from zoo.benchmarks.peers import PARTS, curve
from zoo.benchmarks.reading import read
from zoo.cli import main
from zoo.errors import UsageError
from zoo.settings.compose import compose

HOPPER = compose(["algo=sac", "env=hopper"])[0].env


def write(path, header, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def test_progress_of_stable_baselines3_has_rows_without_an_evaluation(tmp_path):
    header = ["rollout/ep_rew_mean", "time/total_timesteps", "eval/mean_reward", "time/fps"]
    file = write(tmp_path / "progress.csv", header, [1.5, 100, "", 9], ["", 200, 7.5, ""], [2.5, 300, "", 9])
    _, steps, returns = curve(file, HOPPER)
    assert (steps.tolist(), returns.tolist()) == ([200], [7.5])
    _, _, named = curve(file, HOPPER, "time/fps")
    assert named.tolist() == [9, 9]


def test_normalized_scores_of_corl_become_returns(tmp_path):
    file = write(tmp_path / "wandb.csv", ["_step", "d4rl_normalized_score"], [5000, 0.0], [10000, 100.0])
    _, steps, returns = curve(file, HOPPER)
    assert steps.tolist() == [5000, 10000]
    np.testing.assert_allclose(returns, [HOPPER.random_score, HOPPER.expert_score])


def test_a_monitor_file_counts_steps_by_its_episodes_and_averages_them_over_parts_of_the_run(tmp_path):
    lines = ['#{"t_start": 0}', "r,l,t"] + [f"{i}.0,10,0.1" for i in range(40 * PARTS)]
    (tmp_path / "monitor.csv").write_text("\n".join([*lines, ""]))
    _, steps, returns = curve(tmp_path / "monitor.csv", HOPPER)
    assert steps.tolist() == [400 * (i + 1) for i in range(PARTS)]
    expected = [np.mean(range(40 * i, 40 * (i + 1))) for i in range(PARTS)]
    np.testing.assert_allclose(returns, expected)


def test_evaluations_npz_are_averaged_over_episodes(tmp_path):
    results = np.arange(6.0).reshape(3, 2)
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1, 2, 3]), results=results)
    _, steps, returns = curve(tmp_path / "evaluations.npz", HOPPER)
    assert (steps.tolist(), returns.tolist()) == ([1, 2, 3], [0.5, 2.5, 4.5])


def test_an_array_that_would_run_code_is_refused(tmp_path, capsys):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([{}], dtype=object), results=np.zeros((1, 1)))
    given = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "d")]
    assert main([*given, "algo=sac", "env=hopper"]) == 2
    assert "cannot be read as results" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_a_half_written_archive_and_a_folder_that_is_a_file_are_refused(tmp_path, capsys):
    (tmp_path / "evaluations.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "x.csv").write_text("step,return_mean\n1,2\n")
    for file, folder, says in (
        ("evaluations.npz", "d", "cannot be read as results"),
        ("x.csv", "x.csv", "cannot make"),
    ):
        given = ["bench", "import-peer", str(tmp_path / file), "SB3", "--dir", str(tmp_path / folder)]
        assert main([*given, "algo=sac", "env=hopper"]) == 2
        assert says in capsys.readouterr().err


def test_evaluations_npz_that_do_not_fit_are_refused_and_nothing_is_left(tmp_path, capsys):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1, 2]), results=np.zeros((3, 2)))
    given = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "d")]
    assert main([*given, "algo=sac", "env=hopper"]) == 2
    assert "timesteps (2,) do not fit results (3, 2)" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


def test_timesteps_that_are_whole_floats_are_written_as_whole_numbers(tmp_path):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([10.0, 20.0]), results=np.ones((2, 3)))
    _, steps, _ = curve(tmp_path / "evaluations.npz", HOPPER)
    assert steps.dtype == np.int64
    given = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "runs")]
    assert main([*given, "algo=sac", "env=hopper"]) == 0
    (run_dir,) = (path.parent for path in (tmp_path / "runs").rglob("run.json"))
    with (run_dir / "evaluations.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["10", "20"]


@pytest.mark.parametrize(
    ("timesteps", "says"),
    [
        ([10.0, np.nan], "its timesteps contain nan, which is not a number of steps"),
        ([10.0, np.inf], "its timesteps contain inf, which is not a number of steps"),
        ([10.0, 20.5], "its timesteps contain 20.5, which is not a number of steps"),
        ([10, -20], "its timesteps contain -20, which is not a number of steps"),
        (["10", "20"], "its timesteps are of type <U2, not numbers"),
    ],
)
def test_timesteps_that_are_no_numbers_of_steps_are_refused_in_one_line(tmp_path, capsys, timesteps, says):
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array(timesteps), results=np.ones((2, 3)))
    given = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "runs")]
    assert main([*given, "algo=sac", "env=hopper"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_events_of_several_runs_are_not_taken_for_one(tmp_path):
    for seed in range(2):
        writer = SummaryWriter(str(tmp_path / f"Hopper__sac__{seed}"))
        writer.add_scalar("charts/episodic_return", seed, 10)
        writer.close()
    with pytest.raises(UsageError, match="charts/episodic_return is in more than one run; give the folder of one"):
        curve(tmp_path, HOPPER)


def test_a_killed_run_s_last_row_is_left_out_and_rows_are_taken_in_the_order_of_their_steps(tmp_path, capsys):
    for last in ("3.0,1", "3.0,10,0.", "3.0,10,0.1"):
        (tmp_path / "monitor.csv").write_text('#{"t_start": 0}\nr,l,t\n1.0,10,0.1\n' + last)
        assert curve(tmp_path / "monitor.csv", HOPPER)[1].tolist() == [10]
        assert f"the last row of {tmp_path / 'monitor.csv'} is cut off and left out" in capsys.readouterr().out
    file = write(tmp_path / "x.csv", ["step", "return_mean"], [20, 5], [10, 1])
    _, steps, returns = curve(file, HOPPER)
    assert (steps.tolist(), returns.tolist()) == ([10, 20], [1, 5])


def test_two_methods_of_one_library_stand_side_by_side(tmp_path):
    file = write(tmp_path / "x.csv", ["step", "return_mean"], [10, 100.0])
    given = ["bench", "import-peer", str(file), "CORL", "algo=bc", "env=hopper", "--dir", str(tmp_path / "runs")]
    assert main(given) == main([*given, "algo.top_fraction=0.1"]) == 0
    assert {result.method for result in read(tmp_path / "runs")[0]} == {"bc (CORL)", "bc, top_fraction=0.1 (CORL)"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", " "])
def test_a_library_cannot_be_called_anything(tmp_path, capsys, name):
    file = write(tmp_path / "x.csv", ["step", "return_mean"], [10, 100.0])
    assert main(["bench", "import-peer", str(file), name, "algo=sac", "env=hopper", "--dir", str(tmp_path / "d")]) == 2
    assert "cannot be a library's name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_tensorboard_events_of_cleanrl_are_the_episodes_it_trained_on(tmp_path):
    writer = SummaryWriter(str(tmp_path / "runs" / "Hopper__sac__1"))
    for step in range(1, 101):
        writer.add_scalar("charts/episodic_return", step, step * 10)
    writer.close()
    _, steps, returns = curve(tmp_path / "runs", HOPPER)
    assert steps.tolist() == [50 * (i + 1) for i in range(PARTS)]
    np.testing.assert_allclose(returns, [5 * i + 3 for i in range(PARTS)])


def test_cleanrls_evaluations_at_its_end_which_have_no_steps_are_not_its_learning_curve(tmp_path):
    rows = [[step, step / 10, ""] for step in range(100, 1100, 100)] + [[i, "", 500.0] for i in range(10)]
    file = write(tmp_path / "x.csv", ["step", "charts/episodic_return", "eval/episodic_return"], *rows)
    name, steps, returns = curve(file, HOPPER)
    assert (name, steps[-1], returns[-1]) == ("charts/episodic_return", 1000, 100)
    assert curve(file, HOPPER, "eval/episodic_return")[0] == "eval/episodic_return"


def test_unnormalized_returns_are_no_normalized_scores(tmp_path):
    for name, expected in (("eval/unnormalized_return", 1000.5), ("eval/normalized_return", HOPPER.expert_score)):
        value = 1000.5 if "un" in name else 100.0
        file = write(tmp_path / "x.csv", ["step", name], [5000, value])
        assert curve(file, HOPPER, name)[2].tolist() == pytest.approx([expected])


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    for start in ("", '#{"t_start": 0}\n'):
        columns = "r,l" if start else "step,return_mean"
        (tmp_path / "x.csv").write_text(f"\ufeff{start}{columns}\n7,8\n", encoding="utf-8")
        assert curve(tmp_path / "x.csv", HOPPER)[1].tolist() == [8 if start else 7]


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
    assert "| sac (SB3) | 1 | 20 | 2 | 300.0 |" in capsys.readouterr().out


def test_of_a_longer_run_so_many_steps_count(tmp_path, capsys):
    file = write(tmp_path / "bc.csv", ["step", "return_mean"], [10, 100.0], [1020, 300.0], [1030, 200.0])
    given = ["bench", "import-peer", str(file), "CORL", "algo=bc", "env=hopper", "--dir", str(tmp_path / "runs")]
    assert main([*given, "steps=1000"]) == 0
    ((result,), _) = read(tmp_path / "runs")
    assert (result.steps.tolist(), result.figure("final", "return_mean")) == ([10, 1020], 300)
    assert main([*given, "steps=9"]) == 2
    assert "begins after steps=9, at 10" in capsys.readouterr().err
    lines = ['#{"t_start": 0}', "r,l,t"] + [f"{i}.0,10,0.1" for i in range(400)]
    (tmp_path / "monitor.csv").write_text("\n".join([*lines, ""]))
    _, steps, returns = curve(tmp_path / "monitor.csv", HOPPER, total=200)
    np.testing.assert_array_equal(steps, 10 * np.arange(1, PARTS + 1))
    np.testing.assert_array_equal(returns, np.arange(PARTS))


def test_a_run_that_ended_early_is_not_taken_for_a_whole_one(tmp_path, capsys):
    file = write(tmp_path / "bc.csv", ["step", "return_mean"], [500, 100.0], [970, 300.0])
    given = ["bench", "import-peer", str(file), "CORL", "algo=bc", "env=hopper", "--dir", str(tmp_path / "runs")]
    assert main([*given, "steps=1000"]) == 2
    assert capsys.readouterr().err.strip().endswith("ends at step 970, before steps=1000. Type steps=970.")
    assert not (tmp_path / "runs").exists()
    assert main([*given, "steps=980"]) == 0
    lines = ['#{"t_start": 0}', "r,l,t"] + ["1.0,10,0.1"] * 94  # the last of 20 equal parts has no episode
    (tmp_path / "monitor.csv").write_text("\n".join([*lines, ""]))
    given[2] = str(tmp_path / "monitor.csv")
    assert main([*given, "steps=1000"]) == 2
    assert "ends at step 950, before steps=1000" in capsys.readouterr().err


def test_steps_of_the_run_count_and_not_the_rows_of_a_logger(tmp_path):
    rows = [[i, 200 * i, 1.0] for i in range(1, 41)]
    file = write(tmp_path / "wandb.csv", ["_step", "global_step", "charts/episodic_return"], *rows)
    name, steps, _ = curve(file, HOPPER)
    assert (name, steps[-1]) == ("charts/episodic_return", 8000)
    assert curve(file, HOPPER, steps_column="_step")[1][-1] == 40


def test_the_steps_of_a_run_are_two_digits_where_these_are_near(tmp_path):
    for last, planned in ((1_004_000, 1_000_000), (1_250_000, 1_250_000), (99_840, 100_000)):
        file = write(
            tmp_path / "progress.csv", ["step", "episodic_return"], *[[last * (i + 1) // 40, i] for i in range(40)]
        )
        _, steps, returns = curve(file, HOPPER)
        assert steps[-1] == planned
        assert returns[-1] == pytest.approx(38.5, abs=0.5)


def test_a_column_of_steps_is_a_csv_files(tmp_path, capsys):
    file = write(tmp_path / "results.txt", ["t", "return_mean"], [10, 1.0])
    assert curve(file, HOPPER, steps_column="t")[1].tolist() == [10]
    np.savez(tmp_path / "evaluations.npz", timesteps=np.array([1]), results=np.ones((1, 1)))
    where = ["bench", "import-peer", str(tmp_path / "evaluations.npz"), "SB3", "--dir", str(tmp_path / "runs")]
    assert main([*where, "algo=sac", "env=hopper", "--steps-column", "t"]) == 2
    assert "evaluations.npz has no columns of steps. Leave it out." in capsys.readouterr().err


def test_seeds_that_end_with_episodes_of_their_own_meet_in_one_row(tmp_path, capsys):
    runs = tmp_path / "runs"
    for seed, length in enumerate((97, 101, 103)):
        lines = ['#{"t_start": 0}', "r,l,t"] + [f"{seed}.0,{length},0.1" for _ in range(100_000 // length)]
        (tmp_path / "monitor.csv").write_text("\n".join([*lines, ""]))
        given = ["bench", "import-peer", str(tmp_path / "monitor.csv"), "SB3", "--dir", str(runs), "algo=ppo"]
        assert main([*given, "env=cartpole", f"seed={seed}", *(["steps=100000"] * (seed == 0))]) == 0
    results, notes = read(runs)
    assert not notes
    assert {result.method for result in results} == {"ppo (SB3, training episodes)"}
    assert [result.steps.tolist() for result in results] == [[5000 * (i + 1) for i in range(PARTS)]] * 3
    assert json.loads((results[0].dir / "run.json").read_text())["source"]["column"] == "r"
    assert main(["report", str(runs)]) == 0
    assert "| ppo (SB3, training episodes) | 3 | 100,000 | 20 | 1.0 [-1.5, 3.5] |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        ("step,reward\n1,2\n", ["algo=sac", "env=hopper"], "Name one: --column NAME"),
        ("step,reward\n1,2\n", ["algo=sac", "env=hopper", "--column", "rewards"], "Nearest: reward."),
        ("when,return_mean\n1,2\n", ["algo=sac", "env=hopper"], "no column of steps, such as global_step"),
        ("", ["algo=sac", "env=hopper"], "it has no rows"),
        ("step,return_mean\n1,nan\n", ["algo=sac", "env=hopper"], "no numbers in the column return_mean"),
        ("step,return_mean\n1,inf\n2,3\n", ["algo=sac", "env=hopper"], "infinite numbers in the column return_mean"),
        ("step,return_mean\n1,2,3\n4,5\n", ["algo=sac", "env=hopper"], "not all rows have as many fields"),
        ("step,score\n1,2\n", ["algo=sac", "env=reacher", "env.expert_score=null"], "no reference scores to undo them"),
        ("step,return_mean\n1,2\n", ["algo=sacc", "env=hopper"], "Nearest: sac"),
        (None, ["algo=sac", "env=hopper"], "cannot be read as results"),
        (
            "step,return_mean\n1,2\n",
            ["algo=stream_td", "env=series/hopper"],
            "algo=stream_td predicts and has no returns",
        ),
        ("step,return_mean\ninf,2\n", ["algo=sac", "env=hopper"], "cannot be read as results"),
        (
            "step,return_mean\n1,2\n",
            ["algo=sac", "env=hopper", "--steps-column", "t"],
            "no column of steps, such as t.",
        ),
        ("step,return_mean\n1,2\n", ["algo=sac", "env=hopper", "run_dir=a"], "run_dir=a: the run gets its own folder"),
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
