"""`zoo data make`: D4RL's six kinds of datasets by their definitions, from one small SAC run."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import minari
import numpy as np
import pytest
import torch

from zoo import checkpoint, cli
from zoo.commands.data.collect import collect
from zoo.data.arrays import Arrays
from zoo.data.minari import read_minari
from zoo.envs import EnvConfig

from .conftest import same, tree

KINDS = ("random", "medium", "medium-replay", "full-replay", "expert", "medium-expert")
SMALL = ["--steps", "600", "algo.learning_starts=100", "eval_every=100", "eval_episodes=4", "algo.hidden=[32,32]"]
SMALL += [f"algo.{part}_lr=0.003" for part in ("actor", "critic", "alpha")]  # so that it learns something in 600 steps
RANDOM_RETURN = 5.2  # from configs/env/inverted_pendulum.yaml


def store_of(home: Path) -> Path:
    return home / "store" / "zoo" / "inverted_pendulum"


def make_in(home: Path, *arguments: str) -> int:
    """Runs `zoo data make inverted_pendulum ...` with a folder as the working directory and for the store."""
    home.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("MINARI_DATASETS_PATH", str(home / "store"))
        return cli.main(["data", "make", "inverted_pendulum", *arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with all six kinds of datasets: `runs/` and `store/`."""
    home = tmp_path_factory.mktemp("made")
    assert make_in(home, *KINDS, "--size", "700", *SMALL) == 0
    return home


@pytest.fixture(scope="module")
def run_dir(made: Path) -> Path:
    return made / "runs" / "inverted_pendulum" / "sac-data-seed0"


def read(home: Path, name: str) -> Arrays:
    return read_minari(store_of(home) / f"{name}-v0" / "data")


def recorded(home: Path, name: str) -> dict:
    return json.loads((store_of(home) / f"{name}-v0" / "data" / "metadata.json").read_text())


def evaluations(run_dir: Path) -> list[tuple[int, float]]:
    with (run_dir / "evaluations.csv").open() as file:
        return [(int(row["step"]), float(row["return_mean"])) for row in csv.DictReader(file)]


def test_each_kind_is_a_minari_dataset_of_its_env_in_whole_episodes(made) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(made / "store"))
        for kind in KINDS:
            loaded = minari.load_dataset(f"zoo/inverted_pendulum/{kind}-v0")
            assert loaded.spec.env_spec.id == "InvertedPendulum-v5"
            assert loaded.recover_environment().spec.id == "InvertedPendulum-v5"
            ends = [episode.terminations[-1] or episode.truncations[-1] for episode in loaded]
            assert all(ends)
            if not kind.endswith("-replay"):
                assert 700 <= loaded.total_steps < 700 + 1_000


def test_medium_is_the_first_agent_a_third_of_the_way_to_the_expert(made, run_dir) -> None:
    rows = evaluations(run_dir)
    best_step, best = max(rows, key=lambda row: row[1])
    third = RANDOM_RETURN + (best - RANDOM_RETURN) / 3
    step, value = next((step, value) for step, value in rows if value >= third)
    (part,) = recorded(made, "medium")["zoo"]["parts"]
    assert (part["training_step"], part["evaluation_return"]) == (step, pytest.approx(value))
    (part,) = recorded(made, "expert")["zoo"]["parts"]
    assert (part["training_step"], part["evaluation_return"]) == (best_step, pytest.approx(best))


def test_medium_replay_is_the_replay_buffer_up_to_that_moment(made, run_dir) -> None:
    (part,) = recorded(made, "medium-replay")["zoo"]["parts"]
    count = part["training_step"]
    assert 0 < count <= 600
    files = torch.load(run_dir / "checkpoint.pt", weights_only=True)["tracked"]["buffer"]["files"]
    parts = [torch.load(run_dir / "replay" / "buffer" / f"{a}-{b}.pt", weights_only=True) for a, b in files]
    buffer = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    arrays = read(made, "medium-replay")
    assert part["transitions"] == len(arrays.reward) == count
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        np.testing.assert_array_equal(getattr(arrays, name), buffer[name][:count].numpy())


def test_medium_replay_of_a_smaller_size_is_spread_over_the_whole_time(made, run_dir, tmp_path) -> None:
    assert make_in(tmp_path, "medium-replay", "--size", "60", "--run", str(run_dir)) == 0
    whole, thinned = read(made, "medium-replay"), read(tmp_path, "medium-replay")
    longest = whole.episode_lengths.max()
    assert 60 - longest <= len(thinned.reward) <= 60 + longest
    place = {row.tobytes(): i for i, row in enumerate(whole.obs)}
    places = [place[row.tobytes()] for row in thinned.obs]
    assert places == sorted(places)
    assert places[-1] > len(whole.reward) / 2


def test_full_replay_is_all_that_the_run_collected(made) -> None:
    part, arrays = recorded(made, "full-replay")["zoo"]["parts"][0], read(made, "full-replay")
    before = read(made, "medium-replay")
    assert part["training_step"] == len(arrays.reward) == 600
    np.testing.assert_array_equal(arrays.obs[: len(before.obs)], before.obs)
    np.testing.assert_array_equal(arrays.reward[: len(before.obs)], before.reward)


def test_full_replay_is_made_of_any_finished_run_with_a_replay_buffer(tmp_path, capsys) -> None:
    td3 = ["algo=td3", "steps=120", "algo.learning_starts=60", "algo.hidden=[8]", "eval_every=60", "eval_episodes=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        common = ["run", "env=inverted_pendulum", "compile=false", "logger=none", "env.backend=gymnasium"]
        assert cli.main([*common, *td3, "run_dir=td3"]) == 0
        assert cli.main([*common, "algo=ppo", "steps=64", "algo.num_steps=64", "run_dir=ppo"]) == 0
    assert make_in(tmp_path, "full-replay", "--run", "td3") == 0
    assert len(read(tmp_path, "full-replay").reward) == 120
    assert recorded(tmp_path, "full-replay")["algorithm_name"] == "TD3"
    capsys.readouterr()
    assert make_in(tmp_path, "medium", "--run", "td3") == 2
    assert "is a run of td3" in capsys.readouterr().err
    assert make_in(tmp_path, "full-replay", "--run", "ppo", "--force") == 2
    assert "ppo has no replay buffer" in capsys.readouterr().err
    checkpoint.save(tmp_path / "td3" / "checkpoint.pt", {"step": 120})
    assert make_in(tmp_path, "full-replay", "--run", "td3", "--force") == 1
    assert "was written by an older version of the zoo" in capsys.readouterr().err


def test_data_of_agents_need_no_replay_buffer(run_dir, tmp_path, capsys) -> None:
    shutil.copytree(run_dir, tmp_path / "shared", ignore=shutil.ignore_patterns("replay"))
    assert make_in(tmp_path, "expert", "--size", "50", "--run", "shared") == 0
    for kind in ("medium-replay", "full-replay"):
        assert make_in(tmp_path, kind, "--run", "shared") == 2
        assert "shared has no replay" in capsys.readouterr().err


def test_medium_expert_is_half_of_each(made) -> None:
    medium, expert, both = (read(made, kind) for kind in ("medium", "expert", "medium-expert"))
    parts = recorded(made, "medium-expert")["zoo"]["parts"]
    assert [part["kind"] for part in parts] == ["medium", "expert"]
    assert all(part["transitions"] >= 350 for part in parts)
    split = parts[0]["transitions"]
    np.testing.assert_array_equal(both.obs[:split], medium.obs[:split])
    np.testing.assert_array_equal(both.obs[split:], expert.obs[: parts[1]["transitions"]])


def test_random_actions_are_uniform_over_the_action_space(made) -> None:
    action = read(made, "random").action
    assert -3 <= action.min() < -2.9 < 2.9 < action.max() <= 3
    assert abs(action.mean()) < 4 * 3 / np.sqrt(3 * len(action))
    assert np.histogram(action, 6)[0].min() > len(action) / 12


def test_the_metadata_records_the_exact_command_and_what_came_of_it(made) -> None:
    metadata = recorded(made, "random")
    command = f"zoo data make inverted_pendulum {' '.join(KINDS)} --size 700 --steps 600"
    assert metadata["zoo"]["command"].startswith(command)
    assert command in metadata["description"]
    assert metadata["author"] == ["rl-zoo"]
    assert metadata["zoo"]["seed"] == 0
    assert metadata["zoo"]["training"]["steps"] == 600
    assert metadata["zoo"]["training"]["algo"]["actor_lr"] == 0.003
    arrays = read(made, "random")
    (part,) = metadata["zoo"]["parts"]
    assert part["return_mean"] == pytest.approx(arrays.episode_returns.mean())
    assert metadata["fingerprint"] == arrays.fingerprint()


def test_the_command_repeated_elsewhere_makes_the_same_data(made, tmp_path) -> None:
    assert make_in(tmp_path / "again", *KINDS, "--size", "700", *SMALL) == 0
    for kind in KINDS:
        assert same(read(tmp_path / "again", kind), read(made, kind))


def test_another_seed_makes_other_data(made, run_dir, tmp_path) -> None:
    assert make_in(tmp_path / "other", "expert", "--size", "700", "--seed", "1", "--run", str(run_dir)) == 0
    assert not same(read(tmp_path / "other", "expert"), read(made, "expert"))


def test_a_finished_run_is_reused_and_not_trained_again(made, run_dir, tmp_path, capsys) -> None:
    shutil.copytree(made / "runs", tmp_path / "runs")
    assert make_in(tmp_path, "medium", "--size", "700", *SMALL) == 0
    assert "step       100" not in capsys.readouterr().out
    assert same(read(tmp_path, "medium"), read(made, "medium"))
    assert make_in(tmp_path, "expert", "--size", "700", *SMALL, "algo.discount=0.9") == 2
    assert "algo.discount=0.99, not 0.9" in capsys.readouterr().err


def test_a_mixture_goes_by_its_name_into_a_folder_of_choice_without_the_flat_copy(made, run_dir, tmp_path) -> None:
    arguments = ["random+50%medium+10%expert", "--name", "mixed", "--size", "700", "--run", str(run_dir)]
    assert make_in(tmp_path, *arguments, "--out", str(tmp_path / "package" / "mixed")) == 0
    assert sorted(tree(tmp_path)) == ["package/mixed/data/main_data.hdf5", "package/mixed/data/metadata.json"]
    mixed = read_minari(tmp_path / "package" / "mixed" / "data")
    parts = [read(made, "random"), read(made, "medium"), read(made, "expert")]
    expected = [part.head(share * len(part.reward)) for part, share in zip(parts, (1, 0.5, 0.1), strict=True)]
    np.testing.assert_array_equal(mixed.obs, np.concatenate([part.obs for part in expected]))
    metadata = json.loads((tmp_path / "package/mixed/data/metadata.json").read_text())
    assert metadata["dataset_id"] == "zoo/inverted_pendulum/mixed-v0"


def test_random_data_needs_no_training(tmp_path) -> None:
    assert make_in(tmp_path, "random", "--size", "50") == 0
    assert not (tmp_path / "runs").exists()
    assert len(read(tmp_path, "random").reward) >= 50


def test_a_command_that_was_stopped_makes_what_it_had_not_made_yet(made, tmp_path, capsys) -> None:
    home, arguments = tmp_path / "home", [*KINDS, "--size", "700", *SMALL]
    shutil.copytree(made, home)
    assert make_in(home, *arguments) == 2  # everything already exists
    assert "random-v0 exists" in capsys.readouterr().err
    for kind in ("expert", "medium-expert"):
        shutil.rmtree(store_of(home) / f"{kind}-v0")
    before = tree(store_of(home))
    assert make_in(home, *arguments) == 0
    assert "random is there" in capsys.readouterr().out
    assert tree(store_of(home)).items() >= before.items()
    assert same(read(home, "medium-expert"), read(made, "medium-expert"))
    shutil.rmtree(store_of(home) / "expert-v0")
    assert make_in(home, *arguments, "--seed", "1") == 2  # runs of another command are not reused
    assert "random-v0 exists" in capsys.readouterr().err


def test_collected_episodes_are_what_the_environments_play_for_these_actions() -> None:
    env = EnvConfig(id="InvertedPendulum-v5")
    arrays = collect(env, lambda rollout: rollout.random_action(), 300, seed=7)
    start = 0
    for index in range(10):
        copy = gymnasium.make(env.id)
        obs, _ = copy.reset(seed=7 + index)
        steps, ended = 0, True
        while (steps < 30 or not ended) and start < len(arrays.reward):  # an environment's share is 30 transitions
            np.testing.assert_array_equal(arrays.obs[start], obs.astype(np.float32))
            obs, reward, terminated, truncated, _ = copy.step(arrays.action[start])
            assert arrays.reward[start] == np.float32(reward)
            np.testing.assert_array_equal(arrays.next_obs[start], obs.astype(np.float32))
            assert (arrays.terminated[start], arrays.truncated[start]) == (terminated, truncated)
            ended = terminated or truncated
            if ended:
                obs, _ = copy.reset()
            start, steps = start + 1, steps + 1
        copy.close()
    assert start == len(arrays.reward) >= 300


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_runs_that_datasets_cannot_be_made_of_are_refused_in_one_line(run_dir, tmp_path, capsys) -> None:
    def refused(code: int, part: str, kind: str = "medium") -> None:
        assert make_in(tmp_path, kind, "--size", "50", "--run", str(copy)) == code
        error = capsys.readouterr().err
        assert error.startswith("zoo: ")
        assert error.count("\n") == 1
        assert part in error
        assert not (tmp_path / "store").exists()

    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    config = json.loads((copy / "run.json").read_text())["config"]
    edit_json(copy / "run.json", status="interrupted")
    refused(2, "has not finished")
    edit_json(copy / "run.json", status="finished", config=config | {"keep_agents": False})
    refused(2, "keep_agents=true")
    pendulum = {"id": "Pendulum-v1", "name": "pendulum"}
    edit_json(copy / "run.json", config=config | {"env": config["env"] | pendulum})
    refused(2, "a run of sac on Pendulum-v1")
    edit_json(copy / "run.json", config=config)
    table = (copy / "evaluations.csv").read_text()
    (copy / "evaluations.csv").write_text(table.splitlines()[0] + "\n600,1.0,0,0,1,1\n")
    refused(1, "no better than random actions")
    (copy / "evaluations.csv").write_text(table)
    shutil.rmtree(copy / "agents")
    refused(1, "does not exist", "expert")


def test_a_replay_buffer_that_forgot_its_start_makes_no_medium_replay(tmp_path, capsys) -> None:
    assert make_in(tmp_path, "medium-replay", "--size", "50", *SMALL, "algo.buffer_size=300") == 2
    assert "kept 300 of 600" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("before_first_checkpoint", [True, False])
def test_a_command_that_was_killed_goes_on_when_it_is_repeated(tmp_path, before_first_checkpoint) -> None:
    every = 100_000 if before_first_checkpoint else 300
    arguments = ["medium-replay", "--size", "5000", *SMALL, "--steps", "900", f"checkpoint_every={every}"]
    command = [sys.executable, "-m", "zoo.cli", "data", "make", "inverted_pendulum", *arguments]
    environment = os.environ | {"MINARI_DATASETS_PATH": str(tmp_path / "store"), "OMP_NUM_THREADS": "1"}
    run_dir = tmp_path / "runs" / "inverted_pendulum" / "sac-data-seed0"
    awaited = run_dir / ("evaluations.csv" if before_first_checkpoint else "checkpoint.pt")
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not awaited.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert json.loads((run_dir / "run.json").read_text())["status"] == "running"
    assert make_in(tmp_path, *arguments) == 0
    record = json.loads((run_dir / "run.json").read_text())
    assert record["status"] == "finished"
    assert ("resumed" in record) is not before_first_checkpoint
    step = recorded(tmp_path, "medium-replay")["zoo"]["parts"][0]["training_step"]
    assert len(read(tmp_path, "medium-replay").reward) == step


# --- Discrete actions -------------------------------------------------------------------------------------------------

CARTPOLE = ["--steps", "4000", "algo.learning_starts=200", "eval_every=400", "eval_episodes=4", "algo.hidden=[64]"]
CARTPOLE += ["algo.train_every=1", "algo.target_every=100", "reward_scale=0.1", "env.max_episode_steps=150"]


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("cartpole")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("MINARI_DATASETS_PATH", str(home / "store"))
        arguments = ["data", "make", "cartpole", "random", "medium-replay", "expert", "--size", "500", *CARTPOLE]
        assert cli.main(arguments) == 0
    return home


def test_with_discrete_actions_dqn_is_trained_and_plays(cartpole) -> None:
    found = {}
    for kind in ("random", "medium-replay", "expert"):
        path = cartpole / "store" / "zoo" / "cartpole" / f"{kind}-v0" / "data"
        found[kind] = read_minari(path)
        assert found[kind].action.dtype == np.int64
        assert set(found[kind].action.tolist()) == {0, 1}
        assert json.loads((path / "metadata.json").read_text())["algorithm_name"] == "DQN"
    assert found["expert"].episode_returns.mean() > 2 * found["random"].episode_returns.mean()


def test_data_have_the_environments_rewards_and_the_time_limit_of_the_training(cartpole) -> None:
    lengths = []
    for kind in ("random", "medium-replay", "expert"):
        data = read_minari(cartpole / "store" / "zoo" / "cartpole" / f"{kind}-v0" / "data")
        assert set(data.reward.tolist()) == {1.0}
        lengths.append(data.episode_lengths.max())
    assert max(lengths) == lengths[2] == 150


def test_the_replay_of_dqn_is_its_first_transitions_in_order(cartpole) -> None:
    """The first actions are uniform, because of `epsilon`, and the dataset has whole episodes."""
    data = read_minari(cartpole / "store" / "zoo" / "cartpole" / "medium-replay-v0" / "data")
    ended = data.terminated | data.truncated
    going_on = np.flatnonzero(~ended)
    np.testing.assert_array_equal(data.next_obs[going_on], data.obs[going_on + 1])


def test_a_run_of_another_algorithm_is_not_taken(cartpole, run_dir, capsys) -> None:
    dqn = cartpole / "runs" / "cartpole" / "dqn-data-seed0"
    assert make_in(cartpole / "other", "medium", "--run", str(dqn)) == 2
    assert "is a run of dqn on CartPole-v1, not of sac on InvertedPendulum-v5" in capsys.readouterr().err


def test_frames_are_recorded_as_bytes(tmp_path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
        assert cli.main(["data", "make", "minatar/breakout", "random", "--size", "200"]) == 0
    data = read_minari(tmp_path / "store" / "zoo" / "minatar-breakout" / "random-v0" / "data")
    assert data.obs.dtype == np.uint8
    assert data.obs.shape[1:] == (4, 10, 10)
    assert len(data.reward) >= 200
