"""`zoo play` shows the evaluation's episodes, with a caption for each picture."""

import contextlib
import csv
import os
import re
import shutil
import subprocess
import sys

import gymnasium
import imageio.v3 as imageio
import numpy as np
import pytest
import torch
from PIL import Image

import zoo as package
from zoo.commands import pictures
from zoo.envs import EnvConfig, make
from zoo.runs.evaluation import Moment, evaluate

QUICK = ("algo.hidden=[16]", "steps=64", "eval_every=64", "env.backend=gymnasium")
PPO = ("ppo", "cartpole", *QUICK, "algo.num_steps=32", "algo.minibatches=2")
SAC = ("sac", "pendulum", *QUICK, "algo.learning_starts=32", "algo.batch_size=8")
DQN = ("dqn", "cartpole", *QUICK, "algo.learning_starts=32", "algo.batch_size=8")


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_shows_the_episodes_that_are_evaluated(zoo, trained, tmp_path, suffix):
    run_dir, video = trained(*PPO), tmp_path / f"play{suffix}"
    result = zoo("play", run_dir, "--video", video, "--episodes", "3", "--size", "120")
    assert result.code == 0, result.err
    evaluated = zoo("eval", run_dir, "--episodes", "3").out.splitlines()[:3]
    assert result.out.splitlines()[:3] == evaluated
    assert [each.name for each in tmp_path.iterdir()] == [video.name]
    frames = imageio.imread(video, index=None)
    # 600 x 400 pixels, 120 wide here, and two lines below; three episodes are two by two
    assert frames.shape[1:] == (2 * (80 + 2 * 10), 2 * 120, 3)
    longest = max(int(line.split()[-1]) for line in evaluated)
    assert longest / 4 <= len(frames) <= longest + 2
    assert frames[0].std() > 10


def test_episodes_are_shown_at_their_true_speed():
    for steps_per_second in (10, 30, 50, 125):
        for suffix, fastest in ((".gif", 15), (".mp4", 30), ("", 30)):
            every, rate = pictures.pace(steps_per_second, suffix)
            assert every * rate == pytest.approx(steps_per_second)
            assert rate <= fastest
            assert every == 1 or steps_per_second / (every - 1) > fastest


def test_a_gif_takes_as_long_as_what_it_shows(tmp_path):
    film = pictures.Film(tmp_path / "film.gif", 15)  # 66.7 ms a picture, of which a GIF can say hundredths of seconds
    for i in range(30):
        film.show(np.full((8, 8, 3), i, np.uint8))
    film.close()
    with Image.open(tmp_path / "film.gif") as film_read:
        lasts = []
        for i in range(film_read.n_frames):
            film_read.seek(i)
            lasts.append(film_read.info["duration"])
    assert sum(lasts) == 2_000


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_video_has_the_colours_that_only_its_later_pictures_have(tmp_path, suffix):
    film = pictures.Film(tmp_path / f"film{suffix}", 10)
    shades = np.tile(np.arange(100, 228, dtype=np.uint8)[:, None, None], (1, 128, 3))  # more than a GIF has room for
    for colour in (None, (0, 255, 255), (255, 0, 0)):
        shown = shades.copy()
        if colour:
            shown[20:36, 20:36] = colour
        film.show(shown)
    film.close()
    found = imageio.imread(tmp_path / f"film{suffix}", index=None)[:, 28, 28].astype(int)
    assert len(found) == 3
    assert np.abs(found[1:] - [(0, 255, 255), (255, 0, 0)]).max() < 40


class Coloured:
    """Two environments; each is drawn in the one colour that counts its steps."""

    num_envs = 2

    def __init__(self) -> None:
        self.steps = 0

    def render(self):
        self.steps += 1
        return tuple(np.full((50, 100, 3), value * self.steps, np.uint8) for value in (10, 20))


def test_a_picture_stays_when_its_episode_is_over_and_its_return_is_written_below(monkeypatch):
    shown, written = [], []

    class Sink:
        def show(self, picture):
            shown.append(picture)

    watcher = pictures.Watcher(Coloured(), Sink(), every=1, side=200)
    tile = watcher.tile
    monkeypatch.setattr(watcher, "tile", lambda *each: written.append(each[1:]) or tile(*each))
    obs = np.zeros((2, 3))
    both, one, none = (np.array(running) for running in ((True, True), (True, False), (False, False)))
    watcher(Moment(np.array([1.0, 2.0]), both, np.array([5.0, 6.0]), obs))
    watcher(Moment(np.array([3.0, 4.0]), one, np.array([7.0, 8.0]), obs))
    watcher(Moment(np.array([9.0, 4.0]), none, None, obs))
    assert [picture.shape for picture in shown] == [(120, 400, 3)] * 3
    assert [picture[50, 50, 0] for picture in shown] == [10, 20, 20]
    assert [picture[50, 250, 0] for picture in shown] == [20, 20, 20]
    assert [(float(score), bool(running)) for score, running, _ in written[::2]] == [(1, True), (3, True), (9, False)]
    assert [expected for *_, expected in written[::2]] == [5, 7, None]
    below = [picture[100:, :200].astype(int) for picture in shown]
    assert all((text > 200).any() for text in below[:2])  # there is writing
    assert not np.array_equal(below[0], below[1])
    assert (shown[1][100:, 200:] < 200).all()  # greyed, since it is over


# --- Expected returns -------------------------------------------------------------------------------------------------


def test_the_expected_return_is_the_smallest_critic_of_raw_observations_and_actions(finished):
    loaded = package.load(finished)  # iql, on normalized observations
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    action = np.random.default_rng(1).uniform(-2, 2, (50, 1)).astype(np.float32)
    state = {name: x.numpy() for name, x in loaded.agent.state_dict().items()}
    x = np.concatenate([(obs - state["normalizer.mean"]) / state["normalizer.std"], action], 1)
    values = []
    for member in range(2):
        weights = [name for name in state if name.startswith("critic.") and name.endswith("weight")]
        hidden = x
        for i, name in enumerate(weights):
            hidden = hidden @ state[name][member].T + state[name.replace("weight", "bias")][member]
            hidden = np.maximum(hidden, 0) if i < len(weights) - 1 else hidden
        values.append(hidden[:, 0])
    np.testing.assert_allclose(loaded.expected_return(obs, action), np.minimum(*values), rtol=1e-4, atol=1e-5)


def test_ppos_expected_return_is_in_the_environments_rewards(trained):
    loaded = package.load(trained(*PPO))
    state = {name: x.numpy() for name, x in loaded.agent.state_dict().items() if isinstance(x, torch.Tensor)}
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    x = np.clip((obs - state["normalizer.mean"]) / state["normalizer.std"], -10, 10)
    x = np.tanh(x @ state["value.0.weight"].T + state["value.0.bias"])
    value = (x @ state["value.2.weight"].T + state["value.2.bias"])[:, 0]
    expected = value * state["return_normalizer.std"]
    assert state["return_normalizer.std"] != 1
    np.testing.assert_allclose(loaded.expected_return(obs, loaded.act(obs)), expected, rtol=1e-4, atol=1e-5)


def test_dqns_expected_return_is_of_the_action_that_is_taken(trained):
    loaded = package.load(trained(*DQN))
    obs = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    values = np.stack([loaded.expected_return(obs, np.full(50, action)) for action in (0, 1)], 1)
    assert not np.array_equal(values[:, 0], values[:, 1])
    np.testing.assert_array_equal(values.argmax(1), loaded.act(obs))


def test_every_agent_with_critics_expects_a_return_and_the_others_none():
    from examples import make, specs

    from zoo.settings.registry import algorithms

    without = {"bc", "dt", "rcsl", "mbrcsl"}
    without |= {"crl", "gcbc", "gcivl", "hiql", "ota", "qrl"}  # distances to goals, no returns of actions
    without |= {"recoil"}  # whose values are of imitation, not of rewards
    for name, algorithm in algorithms().items():
        for spec in specs(algorithm):
            agent = make(algorithm, spec)
            obs = torch.randn(5, *spec.obs_shape)
            expected = agent.expected_return(obs, agent.act(obs))
            assert (expected is None) == (name in without), name
            assert expected is None or expected.shape == (5,)


# --- Environments that are drawn --------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "minatar/breakout", "MiniGrid-DoorKey-5x5-v0", "ALE/Pong-v5"])
def test_an_environment_plays_the_same_whether_it_is_drawn_or_not(env_id):
    config = EnvConfig(env_id, backend="gymnasium")
    plain, drawn = make(config, 2), make(config, 2, drawn=True)
    obs, _ = plain.reset(seed=[3, 4])
    np.testing.assert_array_equal(drawn.reset(seed=[3, 4])[0], obs)
    plain.action_space.seed(0)
    for _ in range(30):
        action = plain.action_space.sample()
        for one, other in zip(plain.step(action)[:4], drawn.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    frames = drawn.render()
    assert len(frames) == 2
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.std() > 1 for frame in frames)


def test_the_colours_of_an_atari_game_are_those_of_what_the_agent_sees():
    from PIL import Image

    envs = make(EnvConfig("ALE/Breakout-v5", backend="gymnasium"), 2, drawn=True)
    envs.reset(seed=[3, 4])
    for step in range(40):
        obs, *_ = envs.step(np.full(2, step % 4))
    for frame, seen in zip(envs.render(), obs[:, -1], strict=True):
        grey = np.asarray(Image.fromarray(frame).convert("L").resize((84, 84), Image.Resampling.BOX), float)
        assert np.corrcoef(grey.ravel(), seen.ravel())[0, 1] > 0.97


def test_a_critic_of_other_rewards_than_the_environments_is_said_to_be_one(finished, trained):
    from zoo.commands.play import _unit
    from zoo.runs.load import load_agent
    from zoo.runs.residual import Base, Corrected

    for run_dir, unit in ((finished, " (scaled)"), (trained(*PPO), ""), (trained(*SAC), "")):
        config, agent, _ = load_agent(run_dir)
        assert _unit(agent, config) == unit
    config, agent, _ = load_agent(trained(*PPO))
    assert _unit(Corrected(Base(agent, 0.1), agent), config) == ""
    config, agent, _ = load_agent(trained(*DQN, "algo.clip_reward=true"))
    assert _unit(agent, config) == " (clipped)"
    config, agent, _ = load_agent(trained(*PPO, "reward_scale=2"))
    assert _unit(agent, config) == " (scaled)"


def test_minatar_is_drawn_in_a_colour_for_each_kind():
    envs = make(EnvConfig("minatar/spaceinvaders"), 1, drawn=True)
    obs, _ = envs.reset(seed=[0])
    (picture,) = envs.render()
    cells = picture[12::24, 12::24].astype(int)
    kinds: dict[int, set[tuple[int, ...]]] = {}  # the last kind in a cell, -1 where there is none -> its colours
    for row in range(10):
        for column in range(10):
            last = max(np.flatnonzero(obs[0, :, row, column]), default=-1)
            kinds.setdefault(int(last), set()).add(tuple(cells[row, column]))
    assert len(kinds) >= 3
    assert all(len(colours) == 1 for colours in kinds.values())
    assert len(set.union(*kinds.values())) == len(kinds)


@pytest.mark.slow
def test_mujoco_is_drawn_or_says_what_is_missing(zoo, trained, tmp_path):
    run_dir = trained("sac", "hopper", *SAC[2:])
    video = tmp_path / "hopper.mp4"
    result = zoo("play", run_dir, "--video", video, "--episodes", "1", "--size", "64")
    if result.code:
        assert "MuJoCo cannot draw" in result.err
        assert "apt-get install" in result.err
    else:
        assert imageio.imread(video, index=0).std() > 5


@contextlib.contextmanager
def skipped_without_opengl():
    """A test is skipped where MuJoCo finds no OpenGL, and fails for any other reason."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("MuJoCo cannot draw"):
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("task", ["pointmaze-medium", "cube-single"])
def test_ogbenchs_tasks_are_drawn(monkeypatch, task):
    pytest.importorskip("ogbench")
    monkeypatch.delenv("MUJOCO_GL", raising=False)  # MuJoCo was imported long before it is set
    with skipped_without_opengl():
        envs = make(EnvConfig(f"ogbench/{task}", backend="gymnasium"), 1, drawn=True)
        envs.reset(seed=[0])
    assert envs.metadata["render_fps"] in (10, 20)
    assert envs.render()[0].std() > 5


def test_the_camera_follows_a_body_that_runs_away():
    with skipped_without_opengl():
        envs = make(EnvConfig("Hopper-v5", backend="gymnasium"), 2, drawn=True)
    envs.reset(seed=[0, 1])
    for away, env in zip((0.0, 20.0), envs.envs, strict=True):
        inner = env.unwrapped
        inner.set_state(inner.data.qpos + np.eye(6)[0] * away, inner.data.qvel)  # meters
    there = [(frame[..., 0].astype(int) - frame[..., 2] > 40).sum() for frame in envs.render()]  # brown, as the body
    assert min(there) > 1_000
    assert there[0] == pytest.approx(there[1], rel=0.3)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "missing"), [("osmesa", "OSMesa"), ("egl", "EGL")])
def test_where_mujoco_finds_no_library_it_is_named_and_nothing_is_written(trained, tmp_path, backend, missing):
    code = (
        "import sys, ctypes.util\n"
        "find = ctypes.util.find_library\n"
        f"ctypes.util.find_library = lambda name: None if name == '{missing}' else find(name)\n"
        "sys.modules['OpenGL'] = None\n"  # as where its library is missing: MuJoCo cannot be imported
        "import zoo.cli\n"
        "sys.exit(zoo.cli.main(sys.argv[1:]))\n"
    )
    command = ["play", trained("sac", "hopper", *SAC[2:]), "--video", tmp_path / "x.gif", "--episodes", "1"]
    environment = os.environ | {"MUJOCO_GL": backend}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, command)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    says = f"zoo: MuJoCo cannot draw with MUJOCO_GL={backend}: the library {missing} is missing. Type: apt-get install"
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_without_opengl_the_packages_of_both_ways_are_told_apart(monkeypatch):
    from zoo.envs import pictures as drawing

    here = {"EGL", "OSMesa"}
    monkeypatch.setattr(drawing, "find_library", lambda name: name if name in here else None)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    here.remove("OSMesa")
    assert "OSMesa is missing. Type: apt-get install libosmesa6, or set MUJOCO_GL=egl" in drawing.no_opengl()
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert "MUJOCO_GL=egl: finds no device. Type: apt-get install libegl1" in drawing.no_opengl()
    here.clear()
    assert "the library EGL is missing. Type: apt-get install libegl1" in drawing.no_opengl()
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert "MUJOCO_GL=glfw: without a screen it needs EGL or OSMesa" in drawing.no_opengl()
    monkeypatch.delenv("MUJOCO_GL")
    assert drawing.no_opengl().startswith("MuJoCo cannot draw with a window")


# --- The window, and what is refused ----------------------------------------------------------------------------------


def test_a_window_shows_the_pictures_and_may_be_closed(zoo, trained, monkeypatch):
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    result = zoo("play", trained(*PPO), "--episodes", "1", "--size", "64")
    assert result.code == 0, result.err
    assert "episode   0" in result.out
    window = pictures.Window("title", 1_000)
    picture = np.full((40, 60, 3), 7, np.uint8)
    window.show(picture)
    assert pygame.display.get_caption()[0] == "title"
    assert pygame.surfarray.array3d(pygame.display.get_surface()).shape == (60, 40, 3)
    pygame.event.post(pygame.event.Event(pygame.QUIT))
    with pytest.raises(pictures.Closed):
        window.show(picture)
    window.close()


def refused(result, *words: str) -> None:
    assert result.code == 2, result
    assert result.err.startswith("zoo: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err


def test_what_cannot_be_shown_is_refused_in_one_line(zoo, trained, tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    run_dir = trained(*PPO)
    refused(zoo("play", run_dir), "no screen here", "--video play.mp4")
    refused(zoo("play", run_dir, "--video", tmp_path / "x.avi"), "must end in .mp4 or .gif")
    refused(zoo("play", run_dir, "--video", tmp_path / "no" / "x.gif"), "no does not exist")
    refused(zoo("play", run_dir, "--video", tmp_path / "x.gif", "--episodes", "0"), "--episodes 0 must be at least 1")
    refused(zoo("play", run_dir, "--video", tmp_path / "x.gif", "--size", "9"), "--size 9 must be at least 64")
    refused(zoo("play", tmp_path, "--video", tmp_path / "x.gif"), "not the folder of a run")
    stream = trained("stream_td", "series/hopper", "steps=50", "eval_every=50", "algo.hidden=[16]", "algo.sparsity=0")
    refused(zoo("play", stream, "--video", tmp_path / "x.gif"), "series/hopper has no pictures")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    refused(zoo("play", run_dir, "--video", tmp_path / "x.mp4"), "imageio_ffmpeg", "rl-zoo[video]")
    assert not list(tmp_path.iterdir())


def test_a_video_that_is_not_whole_is_a_failure_and_replaces_nothing(zoo, trained, tmp_path, monkeypatch):
    video, show = tmp_path / "x.mp4", pictures.Film.show
    video.write_text("precious")

    def lose(film, picture):  # as ffmpeg does on a full disk, all but the first
        if film.shown:
            film.shown += 1
        else:
            show(film, picture)

    monkeypatch.setattr(pictures.Film, "show", lose)
    result = zoo("play", trained(*PPO), "--video", video, "--episodes", "1", "--size", "64", "--force")
    assert result.code == 1
    assert " pictures 1 could be written: the disk may be full" in result.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]


def test_a_video_that_is_there_is_replaced_only_by_force(zoo, trained, tmp_path):
    video = tmp_path / "x.gif"
    video.write_text("precious")
    arguments = ("play", trained(*PPO), "--video", video, "--episodes", "1", "--size", "64")
    refused(zoo(*arguments), "exists", "--force")
    assert video.read_text() == "precious"
    assert zoo(*arguments, "--force").code == 0
    assert imageio.imread(video, index=0).ndim == 3


def test_a_video_that_cannot_be_finished_is_not_left_behind(zoo, trained, tmp_path, monkeypatch):
    shows = []

    def show(self, picture):
        shows.append(picture)
        if len(shows) > 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pictures.Film, "show", show)
    result = zoo("play", trained(*PPO), "--video", tmp_path / "x.mp4", "--episodes", "1")
    assert result.code == 1
    assert "No space left on device" in result.err
    assert not list(tmp_path.iterdir())


def test_watching_changes_nothing(trained):
    agent = package.load(trained(*SAC)).agent
    envs = make(EnvConfig("Pendulum-v1", backend="gymnasium"), 2)
    moments: list[Moment] = []
    watched = evaluate(agent, envs, 0, watch=moments.append)
    alone = evaluate(agent, envs, 0)
    np.testing.assert_array_equal(watched.returns, alone.returns)
    assert len(moments) == 201  # before each of 200 steps, and at the end
    assert (moments[0].returns == 0).all()
    np.testing.assert_array_equal(moments[-1].returns, alone.returns)


@pytest.mark.parametrize(
    ("obs", "said"),
    [([np.nan, 0, 0], "NaN or inf"), ([[0, 0, 0], [0, np.inf, 0]], "NaN or inf"), ([0, 0], "shape [3], not [2]")],
)  # fmt: skip
def test_a_policy_refuses_observations_that_are_none(finished, obs, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        package.load(finished).act(np.array(obs))


def test_a_policy_plays_in_another_environment_that_fits_it(zoo, trained):
    online = trained("sac", "pendulum", "algo.hidden=[16]", "steps=64", "eval_every=64", "algo.learning_starts=32",
                     "algo.batch_size=8", "env.backend=gymnasium")  # fmt: skip
    gymnasium.register("ShortPendulum-v0", gymnasium.spec("Pendulum-v1").entry_point, max_episode_steps=7)
    try:
        result = zoo("eval", online, "--env", "ShortPendulum-v0", "--episodes", "2")
    finally:
        del gymnasium.registry["ShortPendulum-v0"]
    assert result.code == 0, result.err
    assert result.out.count("steps     7") == 2
    result = zoo("eval", online, "--env", "cartpole", "--episodes", "2")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "env=CartPole-v1 is not what the agent was trained in: its obs_shape (4,), not (3,)" in result.err


def test_agents_that_were_kept_play_as_they_were_evaluated(zoo, finished, trained, tmp_path):
    with (finished / "evaluations.csv").open(newline="") as file:
        returns = {row["step"]: float(row["return_mean"]) for row in csv.DictReader(file)}
    best = max(returns, key=returns.__getitem__)
    for step, evaluated in [*((step, step) for step in returns), ("best", best)]:
        result = zoo("eval", finished, "--step", step)
        assert f"mean         return {returns[evaluated]:10.2f}" in result.out
    obs = np.zeros(3, np.float32)
    assert package.load(finished, step=100).act(obs) != package.load(finished).act(obs)
    assert package.load(finished, step="300").act(obs) == package.load(finished).act(obs)
    assert zoo("export", finished, "--format", "torchscript", "--step", "100", "--output", tmp_path / "p.ts").code == 0
    for folder, said in ((finished, "There are: best, 100, 200, 300"), (trained(*PPO), "Train with keep_agents=true")):
        result = zoo("eval", folder, "--step", "150")
        assert result.code == 2
        assert said in result.err


def test_the_best_agent_is_found_among_other_files_and_beside_a_row_that_was_cut_short(zoo, finished, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    expected = zoo("eval", run_dir, "--step", "best").out
    shutil.copy(run_dir / "agents" / "100.pt", run_dir / "agents" / "mine.pt")
    with (run_dir / "evaluations.csv").open("a") as file:
        file.write("300,")
    assert zoo("eval", run_dir, "--step", "best").out == expected
    for damage in ("step,return_mean\nx,1.0\n", "step,return_mean\n1,x\n", "step\n1\n"):
        (run_dir / "evaluations.csv").write_text(damage)
        result = zoo("eval", run_dir, "--step", "best")
        assert (result.code, result.err.count("\n"), "evaluations.csv is damaged" in result.err) == (1, 1, True)
    (run_dir / "run.json").write_text('{"status": "fin')
    refused(zoo("play", run_dir, "--video", tmp_path / "x.gif", "--log"), "it has no readable run.json")


def test_the_help_lists_the_commands(zoo):
    out = zoo("--help").out
    assert "zoo play DIR" in out
    assert "zoo export DIR" in out
    for command in ("play", "export"):
        with pytest.raises(SystemExit) as end:
            zoo(command, "--help")
        assert end.value.code == 0
