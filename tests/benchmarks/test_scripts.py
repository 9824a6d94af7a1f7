"""The scripts, run as scripts: then Python looks for modules in the scripts' folder first."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import zoo.algos
import zoo.benchmarks
from zoo.benchmarks.scripts import ogbench_in_jax
from zoo.data.waypoints import center
from zoo.envs.pointmaze import GOAL, START

SCRIPTS = Path(zoo.benchmarks.__path__[0]) / "scripts"


@pytest.mark.parametrize(
    "folder", [SCRIPTS, SCRIPTS / "timing", Path(zoo.algos.__path__[0])], ids=lambda folder: folder.name
)
def test_no_script_has_a_neighbour_that_hides_a_module_of_the_standard_library(folder):
    assert not {path.stem for path in folder.glob("*.py")} & sys.stdlib_module_names


def script(name: str, *args: str) -> str:
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def curves(*args: str) -> str:
    return script("curves", *args)


def test_curves_are_laid_side_by_side_with_the_mean_and_its_interval(tmp_path):
    for seed, values in enumerate([(1, 2, 3), (2, 3, 4), (3, 4, 8)]):
        rows = [f"{step},{value}" for step, value in zip((10, 20, 30), values, strict=True)]
        (tmp_path / f"seed{seed}.csv").write_text("\n".join(["step,return_mean", *rows]))
    paths = [str(tmp_path / f"seed{seed}.csv") for seed in range(3)]
    lines = [line.split() for line in curves("--last", "2", *paths).splitlines()]
    assert lines[0] == ["step", "seed0", "seed1", "seed2"]
    assert lines[1:4] == [["10", "1.0", "2.0", "3.0"], ["20", "2.0", "3.0", "4.0"], ["30", "3.0", "4.0", "8.0"]]
    assert lines[4] == ["last", "2", "2.5", "3.5", "6.0"]
    assert lines[5][-3:] == ["4.0", "+-", "1.8"]
    assert lines[6][-2:] == ["[-0.5,", "8.5]"]  # 4 -+ t(0.975, 2) = 4.303 times 1.803 / sqrt(3)
    assert "interval" not in curves(*paths[:2])


def test_updates_before_a_run_goes_online_are_no_steps_of_its_episodes(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"config": {"steps": 1000, "online_steps": 40}}))
    rows = "step,episode_return,episode_length\n500,,\n1020,1.0,20\n1030,nan,nan\n1040,4.0,10\n"
    (tmp_path / "metrics.csv").write_text(rows)
    assert "3.0\n" in curves("--training", "2000", str(tmp_path))  # one episode and two


def test_the_maze_is_drawn_with_episodes_of_any_length(tmp_path):
    pytest.importorskip("gymnasium_robotics")
    paths = [[START, (2, 1), GOAL], [START, GOAL], [START, START, START, (2, 1)]]
    obs = np.concatenate([[[*center(cell), 0.0, 0.0] for cell in path] for path in paths])
    with h5py.File(tmp_path / "maze.hdf5", "w") as file:
        file["observations"] = file["next_observations"] = obs
        file["actions"], file["rewards"] = np.zeros((9, 2)), np.ones(9)
        file["terminals"], file["timeouts"] = np.zeros(9, bool), np.isin(np.arange(9), (2, 4, 8))
    output = script("maze", str(tmp_path / "maze.hdf5"), "--out", str(tmp_path / "maze.png"))
    assert "3 episodes, returns 2.0 to 4.0; 2 reach the goal, 1 of them without the detour" in output
    assert (tmp_path / "maze.png").read_bytes().startswith(b"\x89PNG")


def test_the_training_episodes_of_the_last_steps_are_averaged(tmp_path):
    (tmp_path / "run.csv").write_text("step,episode_return\n10,1\n20,\n30,4\n40,6\n")
    assert curves("--training", "20", str(tmp_path / "run.csv")).split()[-1] == "5.0"
    rows = ["step,episode_return,episode_length", "1000,100,100", "2000,,", "3000,3000,1000", "4000,100,100"]
    (tmp_path / "run.csv").write_text("\n".join(rows))  # in the last 3,000 steps two of 3,000 and ten of 100
    mean = float(curves("--training", "3000", str(tmp_path / "run.csv")).split()[-1])
    assert mean == pytest.approx(7000 / 12, abs=0.1)


def test_the_shares_of_an_algorithms_time_are_those_of_the_whole():
    header, _, row = [line.strip("| ").split(" | ") for line in script("shares", "sac").splitlines()[-3:]]
    shares = dict(zip(header[3:], (float(cell.removesuffix(" %")) for cell in row[3:]), strict=True))
    assert row[0] == "sac"
    speed, limit = (float(cell.replace(",", "")) for cell in row[1:3])
    assert limit == pytest.approx(speed / shares["products"] * 100, rel=0.01)
    assert sum(shares.values()) == pytest.approx(100, abs=0.5)  # each is rounded
    assert all(shares[part] > 0 for part in ("products", "other operators", "sampling", "environment", "Python"))
    assert shares["compiled loops"] == 0


def test_ogbenchs_settings_are_those_of_the_line_for_the_agent_and_the_dataset(tmp_path):
    (tmp_path / "impls").mkdir()
    (tmp_path / "impls/hyperparameters.sh").write_text(
        "# pointmaze-medium-navigate-v0 (QRL)\n"
        "python main.py --env_name=pointmaze-medium-navigate-v0 --agent=agents/qrl.py --agent.alpha=0.0003\n"
        "python main.py --env_name=pointmaze-medium-stitch-v0 --eval_episodes=50 --agent=agents/qrl.py"
        " --agent.actor_p_randomgoal=0.5 --agent.alpha=0.001\n"
    )
    found = ogbench_in_jax.settings(tmp_path, "qrl", "pointmaze-medium-stitch-v0")
    assert found == {"actor_p_randomgoal": "0.5", "alpha": "0.001"}
    assert ogbench_in_jax.settings(tmp_path, "qrl", "pointmaze-medium-navigate-v0") == {"alpha": "0.0003"}
    with pytest.raises(SystemExit, match="no line for crl on"):
        ogbench_in_jax.settings(tmp_path, "crl", "pointmaze-medium-stitch-v0")


@pytest.mark.parametrize(
    ("text", "default", "value"), [("64,32", (512, 512), (64, 32)), ("8", 1024, 8), ("1e-3", 0.3, 0.001)]
)
def test_a_setting_of_ogbench_has_the_type_of_its_default(text, default, value):
    assert ogbench_in_jax.parse(text, default) == value


def test_an_exported_dataset_has_ogbenchs_layout(tmp_path):
    obs = np.arange(6, dtype=np.float32)[:, None]
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        file["observations"], file["next_observations"], file["actions"] = obs, obs + 1, obs
        file["terminals"] = np.array([0, 0, 1, 0, 0, 0], bool)
        file["timeouts"] = np.array([0, 0, 0, 0, 0, 1], bool)
    arrays = ogbench_in_jax.load(tmp_path / "data.hdf5")
    assert arrays["terminals"].tolist() == [0, 0, 1, 0, 0, 1]
    assert (arrays["next_observations"] == obs + 1).all()
