"""Series: their observations and rewards, their files, and messages about other files."""

import signal

import numpy as np
import pytest

from zoo.cli import main
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig, make, series, time_limit
from zoo.runs.evaluation import value_error
from zoo.runs.run import Run

ETT = "date,HUFL,HULL,OT\n" + "".join(
    f"2016-07-01 {i:02}:00:00,{i * i % 7},{i % 3}.5,{10 + i % 5}\n" for i in range(24)
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory. What is registered and read there is removed afterwards."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    series.load.cache_clear()
    for env_id in [env_id for env_id in series.gymnasium.registry if env_id.startswith("series/")]:
        del series.gymnasium.registry[env_id]


def test_a_file_as_the_ett_data_are_laid_out_is_observed_by_its_traces_and_pays_the_row_after_the_next(here):
    (here / "ett.csv").write_text(ETT)
    rows = np.array([[float(x) for x in line.split(",")[1:]] for line in ETT.splitlines()[1:]])
    traces = np.empty_like(rows)
    for t in range(len(rows)):
        weights = 0.999 ** np.arange(t, -1, -1.0)
        traces[t] = weights @ rows[: t + 1] / weights.sum()
    paid = (rows[:, -1] - 10) / 4
    envs = make(EnvConfig("series/ett"), 1)
    obs, _ = envs.reset(seed=3)
    (at,) = np.flatnonzero(np.isclose(traces, obs, rtol=1e-6).all(1))
    for t in range(at + 1, at + 60):  # after the end, it continues at the beginning
        obs, reward, terminated, truncated, _ = envs.step(np.array([0]))
        np.testing.assert_allclose(obs[0], traces[t % 24], rtol=1e-5)
        assert reward[0] == pytest.approx(paid[(t + 1) % 24])
        assert not terminated[0]
        assert not truncated[0]


def test_an_episode_is_a_thousand_steps_and_the_next_one_goes_on_where_it_ended(here):
    (here / "count.csv").write_text("count\n" + "".join(f"{i}\n" for i in range(3000)))
    envs = make(EnvConfig("series/count"), 1)
    assert time_limit("series/count") == 1000
    obs, _ = envs.reset(seed=0)
    before = obs
    for _ in range(1000):
        obs, _, _, truncated, info = envs.step(np.array([0]))
    assert truncated[0]
    assert np.array_equal(obs[0], info["final_obs"][0])
    assert not np.array_equal(obs, before)
    assert not np.array_equal(envs.reset(seed=1)[0], obs)


def test_the_series_that_is_shipped_is_what_its_docstring_says():
    arrays, _ = load_arrays(EnvConfig("Hopper-v5", "hopper"), "demo")
    rows = np.loadtxt(series.find("series/hopper"), delimiter=",", skiprows=1)
    made = np.column_stack([arrays.obs, arrays.reward])[24_000:36_000]
    np.testing.assert_allclose(rows, made, rtol=1e-3)
    assert series.find("series/hopper").stat().st_size < 500_000


def test_names_may_hold_any_sign_and_a_file_may_have_a_byte_order_mark_and_empty_lines(here):
    (here / "mine.csv").write_text("\ufeffdate,A #1,OT\n2016-07-01 00:00:00,1,2\n2,3,4\n\n3,5,6\n\n", encoding="utf-8")
    obs, reward = series.load(series.find("series/mine"))
    assert obs.shape == (3, 2)
    np.testing.assert_allclose(reward, [0.5, 1.0, 0.0])


def test_a_run_finds_its_series_again_from_another_folder(here, monkeypatch, capsys):
    (here / "ett.csv").write_text(ETT)
    settings = ["algo=stream_td", "env=series/ett", "steps=50", "eval_every=50", "eval_episodes=1", "logger=none"]
    assert main(["run", *settings, "run_dir=run"]) == 0
    del series.gymnasium.registry["series/ett"]
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert main(["eval", str(here / "run")]) == 0, capsys.readouterr().err


def test_a_run_does_not_continue_on_a_series_of_other_content(here, monkeypatch, capsys):
    (here / "ett.csv").write_text(ETT)
    log = Run.log

    def interrupted(run, metrics):
        log(run, metrics)
        signal.raise_signal(signal.SIGINT)

    settings = ["algo=stream_td", "env=series/ett", "steps=50", "eval_every=50", "eval_episodes=1", "logger=none"]
    with monkeypatch.context() as patched:
        patched.setattr(Run, "log", interrupted)
        assert main(["run", *settings, "run_dir=run"]) == 130
    (here / "ett.csv").write_text(ETT + "2016-07-02 00:00:00,1,1.5,12\n")
    series.load.cache_clear()
    capsys.readouterr()
    assert main(["run", "resume=run"]) == 2
    says = "env=series/ett is not the data this run began with: its content has changed. Start a new run."
    assert says in capsys.readouterr().err
    (here / "ett.csv").write_text(ETT)
    series.load.cache_clear()
    assert main(["run", "resume=run"]) == 0


def test_a_series_of_the_zoos_is_not_replaced_by_a_file_of_its_name(here):
    (here / "hopper.csv").write_text(ETT)
    assert series.find("series/hopper").parent != here


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no mine.csv here. The zoo has hopper. Try: env=series/hopper"),
        ("", "it has no columns but dates"),
        ("1,2\n3,4\n5,6\n7,8\n", "its first line is of numbers"),
        ("a,b\n1,2\n3,4,5\n5,6\n", "line 3 has 3 values below 2 names"),
        ("a,b\n1,2\n3,x\n4,5\n", "is not a table of numbers"),
        ("date\n2020\n2021\n2022\n", "it has no columns but dates"),
        ("a,b\n1,2\n", "must have three rows or more"),
        ("a,b\n1,2\n3,nan\n4,5\n", "all of numbers that are finite"),
    ],
)
def test_a_file_that_is_no_series_is_refused_in_one_line(here, capsys, content, says):
    if content is not None:
        (here / "mine.csv").write_text(content)
    assert main(["run", "algo=stream_td", "env=series/mine", "steps=10", "logger=none"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["my data", "sub/x"])
def test_a_name_that_cannot_be_an_environments_is_refused_in_one_line(here, capsys, name):
    (here / name).parent.mkdir(exist_ok=True)
    (here / f"{name}.csv").write_text("a,b\n1,2\n3,4\n4,5\n")
    assert main(["run", "algo=stream_td", f"env='series/{name}'", "steps=10", "logger=none"]) == 2
    err = capsys.readouterr().err
    assert "is named by letters, digits, ., _ and - only" in err
    assert len(err.splitlines()) == 1


def test_value_error_is_that_of_the_returns_that_are_known():
    rng = np.random.default_rng(0)
    steps, discount = 30, 0.5
    lengths, ends = np.array([30, 12, 20]), np.array([False, True, False])  # the second terminated
    reward = rng.normal(size=(steps, 3))
    predicted = rng.normal(size=(steps, 3))
    running = np.arange(steps)[:, None] < lengths
    terminated = (np.arange(steps)[:, None] == lengths - 1) & ends
    errors, actual = [], []
    for e, (length, ended) in enumerate(zip(lengths, ends, strict=True)):
        for t in range(length):
            if ended or length - t >= 7:  # 0.5^7 < 0.01
                actual.append(sum(discount ** (k - t) * reward[k, e] for k in range(t, length)))
                errors.append(predicted[t, e] - actual[-1])
    expected = np.sqrt(np.mean(np.square(errors))) / np.std(actual)
    assert value_error(discount, predicted, reward, running, terminated) == pytest.approx(expected)


def test_value_error_of_returns_that_are_all_unknown_or_all_the_same_is_nan():
    ones = np.ones((5, 1))
    assert np.isnan(value_error(0.99, ones, ones, ones > 0, ones < 0))
    assert np.isnan(value_error(0.0, ones, ones, ones > 0, ones < 0))
