"""`zoo data list|show|import|export|verify`: their output, and one clear line for each possible error."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from zoo.data.d4rl import read_d4rl
from zoo.data.minari import write_minari

from .conftest import D4RL_NAMES, Result, episodes, put_elsewhere, tree, write_d4rl

ROWS = episodes([4, 3, 200, 1], [True, False, False, True])
ID = "zoo/pendulum/mine-v0"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_d4rl(tmp_path / "mine.hdf5", ROWS)


@pytest.fixture
def mine(store: Path) -> Path:
    """A dataset in the store: its folder `data`."""
    write_minari(ROWS, store / ID, ID, "Pendulum-v1", {"description": "made for a test"}, force=False, flat=True)
    return store / ID / "data"


def assert_one_line(result: Result, code: int, *parts: str) -> None:
    assert result.code == code
    assert result.err.startswith("zoo: ")
    assert result.err.count("\n") == 1
    for part in parts:
        assert part in result.err


def edit(path: Path, name: str, change) -> None:
    """Rewrites one field of an HDF5 file."""
    with h5py.File(path, "r+") as opened:
        value = change(opened[name][()])
        del opened[name]
        opened[name] = value


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# --- export -----------------------------------------------------------------------------------------------------------


def test_what_is_exported_is_what_is_in_the_store(zoo, mine, tmp_path) -> None:
    file = tmp_path / "out.hdf5"
    assert "208 transitions in 4 episodes" in zoo("data", "export", "pendulum/mine", file).out
    for found, expected in zip(read_d4rl(file, 200), ROWS, strict=True):
        np.testing.assert_array_equal(found, expected)
    with h5py.File(file) as opened:
        assert opened.attrs["command"].startswith("zoo data export pendulum/mine")
    content = file.read_bytes()
    assert_one_line(zoo("data", "export", "pendulum/mine", file), 2, "exists", "--force")
    assert file.read_bytes() == content
    assert zoo("data", "export", "pendulum/mine", file, "--force").code == 0
    assert_one_line(zoo("data", "export", "pendulum/mine", tmp_path / "out.csv"), 2, "must end in .hdf5 or .h5")
    assert_one_line(zoo("data", "export", "pendulum/mine", tmp_path / "no" / "out.h5"), 2, "no does not exist")


# --- list, show -------------------------------------------------------------------------------------------------------


def test_a_picture_takes_the_place_of_no_other_file(zoo, mine, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert_one_line(zoo("data", "show", "pendulum/mine", "--png", tmp_path / "notes.txt"), 2, "must end in .png")
    result = zoo("data", "show", "pendulum/mine", "--png", tmp_path / "no" / "x.png")
    assert_one_line(result, 2, "no does not exist")
    assert not result.out
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_list_names_every_dataset_with_its_counts_and_size(zoo, mine) -> None:
    row = next(line for line in zoo("data", "list").out.splitlines() if line.startswith("pendulum/mine"))
    size = sum(path.stat().st_size for path in mine.iterdir())
    assert row.split()[1:5] == ["208", "4", f"{size / 1e6:.1f}", "MB"]


NESTED = 50_000 * "[" + 50_000 * "]"


@pytest.mark.parametrize("text", ["{", NESTED, '{"total_steps": Infinity, "total_episodes": 1}'])
def test_list_goes_past_a_dataset_whose_metadata_is_damaged(zoo, mine, text) -> None:
    (mine / "metadata.json").write_text(text)
    result = zoo("data", "list")
    assert result.code == 0
    assert "unreadable" in result.out


def test_list_names_what_a_killed_command_has_left(zoo, store, mine) -> None:
    left = [store / ".partial-a", mine.parent.parent / ".partial-b"]
    assert "unfinished" not in zoo("data", "list").out
    for folder in left:
        mine.parent.rename(folder) if folder is left[1] else folder.mkdir()
    lines = [line for line in zoo("data", "list").out.splitlines() if line.startswith("unfinished")]
    assert [line.split(": ")[1] for line in lines] == [str(folder) for folder in left]


def test_list_reads_metadata_only_and_imports_nothing_heavy(mine) -> None:
    (mine / "main_data.hdf5").write_bytes(b"")
    heavy = "{'torch', 'h5py', 'minari'}"
    code = f"import sys; from zoo.cli import main; main(['data', 'list']); print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pendulum/mine" in done.stdout
    assert done.stdout.splitlines()[-1] == "set()"


def test_show_prints_the_statistics_and_draws_them(zoo, mine) -> None:
    result = zoo("data", "show", "pendulum/mine")
    assert result.code == 0
    returns = [
        float(ROWS.reward[s : s + n].sum()) for s, n in zip(ROWS.episode_starts, ROWS.episode_lengths, strict=True)
    ]
    for part in (
        str(mine), "208", f"mean {np.mean(returns):.1f}  std {np.std(returns):.1f}  min {min(returns):.1f}",
        f"median {np.median(returns):.1f}", "mean 52.0", "50.0% terminated, 50.0% truncated", "made for a test",
        f"{100 * (np.mean(returns) + 1207.6) / (-156.995 + 1207.6):.1f} normalized",
    ):  # fmt: skip
        assert part in result.out
    assert Path("pendulum-mine.png").read_bytes().startswith(b"\x89PNG")


def test_show_takes_mixtures_ids_and_files(zoo, mine, file) -> None:
    mixture = zoo("data", "show", "pendulum/mine+50%mine", "--png", "mixture.png")
    assert "transitions  415" in mixture.out  # 208, and 4 + 3 + 200 that hold the half
    for parts in ("pendulum/mine+50%pendulum/mine", f"{ID}+50%{ID}"):
        assert "transitions  415" in zoo("data", "show", parts, "--png", "mixture.png").out
    assert "transitions  208" in zoo("data", "show", ID).out
    assert "transitions  208" in zoo("data", "show", file, "--env", "pendulum").out
    np.savez("rows.npz", **dict(zip(D4RL_NAMES, ROWS, strict=True)))
    assert "transitions  208" in zoo("data", "show", "rows.npz", "--env", "pendulum").out
    pictures = ["mixture.png", "pendulum-mine-v0.png", "pendulum-mine.png", "pendulum-rows.png"]
    assert sorted(path.name for path in Path().glob("*.png")) == pictures


def test_an_environment_without_a_short_name_is_found_by_the_name_in_the_list(zoo, mine) -> None:
    env_id = "InvertedDoublePendulum-v5"
    assert_one_line(zoo("run", "algo=bc", f"env={env_id}", "dataset=x"), 2, f"zoo data make {env_id}", f"{env_id}/x")
    assert zoo("data", "make", env_id, "random", "--size", "100").code == 0
    listed = next(line for line in zoo("data", "list").out.splitlines() if "random" in line).split()[0]
    assert listed == "inverteddoublependulum/random"
    for name in (listed, f"{env_id}/random", f"zoo/{listed}-v0", f"{listed}+50%random"):
        shown = zoo("data", "show", name)
        assert shown.code == 0, name
        assert "parts: kind=random, transitions=" in shown.out
    assert_one_line(zoo("data", "show", "nothing/random"), 2, "env=nothing does not exist")


@pytest.mark.parametrize("minari_id", ["cart-v0", "my/pendulum-v0", "pendulum/other-v3"])
def test_every_name_in_the_list_is_taken(zoo, store, minari_id) -> None:
    write_minari(ROWS, store / minari_id, minari_id, "Pendulum-v1", {}, force=False, flat=True)
    assert minari_id in [line.split()[0] for line in zoo("data", "list").out.splitlines()]
    for name in (minari_id, f"{minari_id}+50%{minari_id}"):
        result = zoo("data", "verify", name)
        assert result.code == 0, result.err
    edit_json(store / minari_id / "data" / "metadata.json", env_spec=None)
    result = zoo("data", "verify", minari_id)
    if minari_id.startswith("pendulum/"):
        assert result.code == 0, result.err
    else:
        assert_one_line(result, 2, "--env ENV")
    assert zoo("data", "verify", minari_id, "--env", "pendulum").code == 0


def test_a_dataset_of_an_embedded_ones_name_is_made_elsewhere_than_in_the_store(zoo, store) -> None:
    make = ("data", "make", "hopper", "random", "--size", "100", "--name", "demo")
    assert_one_line(zoo(*make), 2, "hopper/demo is a dataset that the package brings")
    assert zoo(*make, "--out", "there").code == 0
    assert Path("there/data").is_dir()
    assert not store.exists()


def test_show_without_matplotlib_shows_the_rest_and_says_how_to_install_it(zoo, mine, monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = zoo("data", "show", "pendulum/mine")
    assert result.code == 0, result.err
    assert "transitions" in result.out
    assert "not drawn: that needs pip install 'rl-zoo[plot]'" in result.out
    assert not list(tmp_path.glob("*.png"))


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("shwo", ["data shwo is not a command", "Nearest: show"]),
        ("show", ["required: name", "zoo data show --help"]),
        ("show pendulum/mien", ["dataset=mien does not exist", "Nearest: mine", "zoo data make pendulum"]),
        ("show pendulm/mine", ["env=pendulm does not exist", "pendulum"]),
        ("show mine", ["mine is not ENV/DATASET", "--env ENV"]),
        ("show my/mine-v0", ["env=my does not exist", "--env ENV"]),
        ("show pendulum/200%mine", ["a part of a mixture is", "200%mine"]),
        ("show ../mine.hdf5", ["--env hopper"]),
        ("show no.hdf5 --env pendulum", ["dataset=no.hdf5 is not a file"]),
        ("show pendulum/mine --env hopper", ["does not exist for hopper"]),
        (f"show {ID} --env hopper", ["observations (3,) and actions (1,)", "Hopper-v5", "(11,) and (3,)"]),
        ("import no.hdf5 pendulum/other", ["no.hdf5 is not a file"]),
        ("import ../mine.hdf5 pendulum/mine", ["exists", "--force"]),
        ("import ../mine.hdf5 hopper/other", ["observations (3,) and actions (1,)", "Hopper-v5"]),
        ("import ../mine.hdf5 hopper/demo", ["hopper/demo is a dataset that the package brings", "another name"]),
        ("import ../mine.hdf5 pendulum/a+b", ["a+b cannot be a dataset's name"]),
        ("import ../mine.hdf5 pendulum/other-v2", ["other-v2 cannot be a dataset's name"]),
        ("import ../mine.hdf5 pendulum/ünï", ["ünï cannot be a dataset's name"]),
        ("import ../mine.hdf5 pendulum/null", ["null cannot be a dataset's name"]),
        ("import ../mine.hdf5 other", ["other is not ENV/NAME, such as hopper/other"]),
        ("import pendulum/other mine.hdf5", ["the file comes first: zoo data import mine.hdf5 pendulum/other"]),
        ("verify pendulum/mien", ["Nearest: mine"]),
        ("verify ~nobody/mine.hdf5 --env pendulum", ["dataset=~nobody/mine.hdf5 is not a file"]),
        ("make pendulum random --out elsewhere --name a+b", ["a+b cannot be a dataset's name"]),
        ("make pendulum", ["no kind of dataset is given", "random, medium, medium-replay"]),
        ("make pendulum expret", ["expret is not a kind of dataset", "Nearest: expert"]),
        ("make pendulum random+10%expert", ["is a mixture", "--name"]),
        ("make pendulum random --size 0", ["--size 0 must be at least 1"]),
        ("make pendulum random --size many", ["--size", "many"]),
        ("make pendulum random expert --name both", ["--name is for one dataset"]),
        ("make pendulum random --name mine", ["exists", "--force"]),
        ("make pendulum medium --run nowhere", ["nowhere is not the folder of a run"]),
        ("make pendulum medium algo.gama=1", ["algo.gama does not exist"]),
        ("make pendulum medium num_envs=2", ["num_envs=2", "one environment"]),
        ("make pendulum steps=10", ["no kind of dataset is given"]),
        ("make Hopper-v3 random", ["env=Hopper-v3 cannot be made"]),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_what_to_type_and_changes_nothing(
    zoo, store, mine, file, arguments, parts
) -> None:
    before = tree(store)
    assert_one_line(zoo("data", *arguments.split()), 2, *parts)
    assert tree(store) == before
    assert list(Path().iterdir()) == []


# --- failures ---------------------------------------------------------------------------------------------------------


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scribble(path: Path) -> None:
    path.write_bytes(os.urandom(1_000))


def huge(path: Path) -> None:
    """Observations that are too large for memory. Their data are not written to the file."""
    with h5py.File(path, "r+") as file:
        del file["observations"]
        file.create_dataset("observations", shape=(10**14, 3), dtype=np.float32, chunks=(1_000, 3))


def elsewhere(how: str):
    """Takes the rewards from another file."""

    def change(path: Path) -> None:
        other = path.with_name("secret.h5")
        with h5py.File(other, "w") as file:
            file["a"] = np.ones(208, np.float32)
        with h5py.File(path, "r+") as file:
            del file["rewards"]
            if how in ("external", "virtual"):
                put_elsewhere(file, "rewards", other, "a", 208, how)
            elif how == "linked":
                file["rewards"] = h5py.ExternalLink(other, "a")
            else:
                file["there"] = h5py.ExternalLink(other, "/")
                file["rewards"] = h5py.SoftLink("/there/a")

    return change


def with_nan(value: np.ndarray) -> np.ndarray:
    value[5] = np.nan  # step 1 of episode 1
    return value


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (halve, ["cannot be read", "truncated file"]),
        (scribble, ["cannot be read", "file signature not found"]),
        (lambda path: path.write_bytes(b""), ["cannot be read"]),
        (lambda path: edit(path, "observations", with_nan), ["NaN or infinite obs", "episode 1, step 1"]),
        (lambda path: edit(path, "actions", with_nan), ["NaN or infinite action", "episode 1, step 1"]),
        (lambda path: edit(path, "rewards", with_nan), ["NaN or infinite reward", "episode 1, step 1"]),
        (lambda path: edit(path, "rewards", lambda x: x / 0.0), ["NaN or infinite reward", "in 208 transitions"]),
        (lambda path: edit(path, "actions", lambda x: x[:-1]), ["207 actions but 208 rewards"]),
        (lambda path: edit(path, "terminals", lambda x: x[:0]), ["0 terminals but 208 rewards"]),
        (lambda path: edit(path, "rewards", lambda x: np.array([b"a"] * 208)), ["cannot be read"]),
        (
            lambda path: edit(path, "terminals", lambda x: with_nan(x.astype(float))),
            ["its terminals are not all 0 or 1"],
        ),
        (lambda path: edit(path, "timeouts", lambda x: x - 1.0), ["its timeouts are not all 0 or 1"]),
        (lambda path: edit(path, "observations", lambda x: x.astype(float) * 1e300), ["NaN or infinite obs"]),
        (huge, ["cannot be read", "Unable to allocate"]),
        (elsewhere("external"), ["it takes arrays from other files"]),
        (elsewhere("linked"), ["it takes arrays from other files"]),
        (elsewhere("linked softly"), ["it takes arrays from other files"]),
        (elsewhere("virtual"), ["it takes arrays from other files"]),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_damaged_file_is_refused_in_one_line_and_nothing_is_imported(zoo, store, file, damage, parts) -> None:
    damage(file)
    assert_one_line(zoo("data", "import", file, "pendulum/other"), 1, *parts)
    assert_one_line(zoo("data", "show", file, "--env", "pendulum"), 1, *parts)
    assert not store.exists()


def test_a_file_without_rewards_or_with_a_group_in_their_place_is_refused(zoo, store, file) -> None:
    with h5py.File(file, "r+") as opened:
        del opened["rewards"]
    assert_one_line(zoo("data", "import", file, "pendulum/other"), 1, "it lacks rewards")
    with h5py.File(file, "r+") as opened:
        opened.create_group("rewards")
    assert_one_line(zoo("data", "import", file, "pendulum/other"), 1, "it lacks rewards")
    assert not store.exists()


@pytest.mark.slow
def test_a_full_disk_leaves_the_store_as_it_was(store, mine, tmp_path) -> None:
    big = write_d4rl(tmp_path / "big.hdf5", episodes([200] * 50, [False] * 50))
    before = tree(store)
    code = (
        "import resource, sys; from zoo.cli import main; import zoo.data.load, minari; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)); sys.exit(main(sys.argv[1:]))"
    )
    for name, force in (("other", []), ("mine", ["--force"])):
        arguments = ["data", "import", str(big), f"pendulum/{name}", *force]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        result = Result(done.returncode, done.stdout, done.stderr)
        assert_one_line(
            result, 1, f"cannot write {store}/zoo/pendulum/{name}-v0", "File too large", "Nothing there has changed"
        )
        assert tree(store) == before
        assert [path.name for path in store.iterdir()] == ["zoo"]


def test_a_command_that_is_terminated_leaves_the_store_as_it_was(zoo, store, mine, file, monkeypatch):
    before, handler = tree(store), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("zoo.data.minari._write_data", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        assert zoo("data", "import", file, "pendulum/mine", "--force").code == 130
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert tree(store) == before


def test_a_store_that_cannot_be_written_to_is_one_line(zoo, file, monkeypatch, tmp_path) -> None:
    (tmp_path / "occupied").write_text("a file, not a folder")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "occupied"))
    assert_one_line(zoo("data", "import", file, "pendulum/other"), 1, "cannot write", "Not a directory")


def test_a_place_that_cannot_be_written_to_is_found_before_anything_is_collected(zoo, tmp_path) -> None:
    (tmp_path / "occupied").write_text("a file, not a folder")
    result = zoo("data", "make", "pendulum", "random", "--size", "200", "--out", tmp_path / "occupied" / "mine")
    assert_one_line(result, 1, "cannot write", "Not a directory")
    assert "collecting" not in result.out


def test_show_of_a_dataset_with_another_kind_of_record(zoo, mine) -> None:
    edit_json(mine / "metadata.json", zoo="not a dictionary")
    assert_one_line(zoo("data", "show", "pendulum/mine"), 1, "cannot be read")


def test_show_of_attributes_that_cannot_be_read(zoo, file) -> None:
    with h5py.File(file, "r+") as opened:
        h5py.h5a.create(opened.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create(h5py.h5s.SCALAR))
    assert_one_line(zoo("data", "show", file, "--env", "pendulum"), 1, "cannot be read")


# --- verify -----------------------------------------------------------------------------------------------------------


def test_verify_says_what_it_checked(zoo, mine, file) -> None:
    result = zoo("data", "verify", "pendulum/mine")
    assert result.code == 0
    for part in ("208 transitions in 4 episodes", "finite", "fingerprint", "bounds", "successor", "OK"):
        assert part in result.out
    assert zoo("data", "verify", file, "--env", "pendulum").out.endswith("OK\n")


def rewrite(mine: Path, **fields: np.ndarray) -> None:
    """Replaces the content in the store by other valid content, with a matching record."""
    write_minari(ROWS._replace(**fields), mine.parent, ID, "Pendulum-v1", {}, force=True, flat=True)


def spoil_episode(mine: Path) -> None:
    edit(mine / "main_data.hdf5", "episode_2/rewards", lambda x: x + 1)


def spoil_flat(mine: Path) -> None:
    with np.load(mine / "flat.npz") as flat:
        fields = dict(flat)
    np.savez(mine / "flat.npz", **(fields | {"reward": fields["reward"] + 1}))


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (lambda mine: halve(mine / "main_data.hdf5"), ["cannot be read", "truncated file"]),
        (lambda mine: (mine / "main_data.hdf5").unlink(), ["cannot be read", "main_data.hdf5"]),
        (lambda mine: (mine / "metadata.json").write_text("{"), ["cannot be read"]),
        (lambda mine: edit_json(mine / "metadata.json", data_format="arrow"), ["cannot be read"]),
        (lambda mine: edit_json(mine / "metadata.json", data_format="zarr"), ["cannot be read"]),
        (spoil_episode, ["its fingerprint is"]),
        (spoil_flat, ["its flat copy differs"]),
        (lambda mine: edit(mine / "main_data.hdf5", "episode_2/rewards", lambda x: x[:-1]), ["not as long as"]),
        (lambda mine: edit(mine / "main_data.hdf5", "episode_2/observations", with_nan), ["NaN", "episode 2, step"]),
        (lambda mine: edit(mine / "main_data.hdf5", "episode_2/observations", lambda x: x[:, :1]), ["different obs"]),
        (lambda mine: edit(mine / "main_data.hdf5", "episode_2/actions", lambda x: x.astype(int)), ["different obs"]),
        (lambda mine: edit(mine / "main_data.hdf5", "episode_2/terminations", lambda x: x[:1]), ["not as long as"]),
        (lambda mine: edit_json(mine / "metadata.json", total_steps=float("inf")), ["cannot be read"]),
        (lambda mine: edit_json(mine / "metadata.json", total_steps=209), ["208 transitions, not the 209"]),
        (lambda mine: edit_json(mine / "metadata.json", total_episodes=5), ["cannot be read", "episode_4"]),
        (lambda mine: rewrite(mine, action=ROWS.action * 2), ["outside the bounds of Pendulum-v1"]),
        (lambda mine: rewrite(mine, obs=ROWS.obs[:, :2], next_obs=ROWS.next_obs[:, :2]), ["observations (2,)"]),
    ],
)  # fmt: skip
def test_verify_finds_every_damage_in_one_line(zoo, mine, damage, parts) -> None:
    damage(mine)
    assert_one_line(zoo("data", "verify", "pendulum/mine"), 2 if "observations (2,)" in parts else 1, *parts)


def test_verify_of_metadata_from_elsewhere(zoo, mine) -> None:
    metadata = mine / "metadata.json"
    edit_json(metadata, env_spec=json.dumps({"id": "a\x1b[2J\nb"}))
    assert "recorded in a?[2J b, not in Pendulum-v1" in zoo("data", "verify", "pendulum/mine").out
    metadata.write_text(NESTED)
    assert_one_line(zoo("data", "verify", "pendulum/mine"), 1, "cannot be read")


def test_verify_finds_episodes_that_are_too_long_or_do_not_chain(zoo, tmp_path) -> None:
    long = write_d4rl(tmp_path / "long.hdf5", episodes([201], [False]))
    assert_one_line(zoo("data", "verify", long, "--env", "pendulum"), 1, "an episode of 201 steps", "after 200")
    broken = write_d4rl(
        tmp_path / "broken.hdf5", episodes([5, 5], [False, False])._replace(truncated=np.arange(10) == 9)
    )
    assert_one_line(zoo("data", "verify", broken, "--env", "pendulum"), 1, "1 steps whose successor")


def test_verify_finds_successors_that_are_the_observations_shifted_by_a_row(zoo, tmp_path, store) -> None:
    rows = episodes([5, 4, 3], [False, True, False])
    shifted = rows._replace(next_obs=np.concatenate([rows.obs[1:], rows.next_obs[-1:]]))
    file = write_d4rl(tmp_path / "shifted.hdf5", shifted)
    assert_one_line(
        zoo("data", "verify", file, "--env", "pendulum"), 1,
        "each of the 1 episodes that are cut off ends with the first observation of the next one",
    )  # fmt: skip
    one_of_two = episodes([5, 4, 3], [False, False, False])
    one_of_two.next_obs[4] = one_of_two.obs[5]
    file = write_d4rl(tmp_path / "one.hdf5", one_of_two)
    assert zoo("data", "verify", file, "--env", "pendulum").code == 0
    write_minari(shifted, store / ID, ID, "Pendulum-v1", {}, force=False, flat=True)  # may be one episode cut up
    result = zoo("data", "verify", "pendulum/mine")
    assert result.code == 0
    assert "each of the 1 episodes" in result.out


def test_show_and_export_say_where_the_file_leaves_an_end_out(zoo, tmp_path) -> None:
    rows = episodes([5, 5], [False, False])._replace(truncated=np.arange(10) == 9)
    broken = write_d4rl(tmp_path / "broken.hdf5", rows)
    for command in (("show", broken), ("export", broken, tmp_path / "out.hdf5")):
        result = zoo("data", *command, "--env", "pendulum")
        assert result.code == 0
        assert "does not say where its episodes end: 1 times a successor is not the next row" in result.out


def test_a_file_in_a_folder_of_its_environments_name_is_that_file(zoo, file, tmp_path) -> None:
    Path("pendulum").mkdir()
    write_d4rl(Path("pendulum/mine.hdf5"), episodes([7], [True]))
    write_d4rl(Path("mine.hdf5"), ROWS)
    assert "transitions  7" in zoo("data", "show", "pendulum/mine.hdf5", "--env", "pendulum").out
    assert "transitions  14" in zoo("data", "show", "pendulum/mine.hdf5+pendulum/mine.hdf5", "--env", "pendulum").out
    many = "+".join(["pendulum/mine.hdf5"] * 20)  # longer than a file's name may be
    assert "transitions  140" in zoo("data", "show", many, "--env", "pendulum").out


def test_a_picture_of_returns_that_differ_by_rounding(zoo, tmp_path) -> None:
    rows = episodes([1, 1], [True, True])._replace(reward=np.array([1e8, np.nextafter(np.float32(1e8), 2e8)]))
    write_d4rl(tmp_path / "alike.hdf5", rows._replace(reward=rows.reward.astype(np.float32)))
    assert zoo("data", "show", tmp_path / "alike.hdf5", "--env", "pendulum", "--png", tmp_path / "a.png").code == 0
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ((), []),
        (("timeouts",), ["no timeouts: an episode ends where a successor is not the next row."]),
        (
            ("timeouts", "next_observations"),
            [
                "no timeouts: an episode ends after 200 steps, unless it terminates earlier.",
                "no next_observations: the last step of an episode that does not terminate is left out.",
            ],
        ),
    ],
)
def test_import_says_what_it_assumes_of_a_file_that_lacks_arrays(zoo, tmp_path, without, said) -> None:
    path = write_d4rl(tmp_path / "old.hdf5", ROWS, without)
    out = zoo("data", "import", path, "pendulum/old").out
    assert [line.removeprefix("old.hdf5 has ") for line in out.splitlines() if "old.hdf5 has" in line] == said


def test_import_cuts_and_tells_where_the_file_leaves_an_end_out(zoo, tmp_path) -> None:
    broken = write_d4rl(
        tmp_path / "broken.hdf5", episodes([5, 5], [False, False])._replace(truncated=np.arange(10) == 9)
    )
    result = zoo("data", "import", broken, "pendulum/cut")
    assert result.code == 0
    assert "1 episodes end where the file does not say so" in result.out
    assert zoo("data", "verify", "pendulum/cut").code == 0
