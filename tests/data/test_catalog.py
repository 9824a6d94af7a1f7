"""Where the name of a dataset is looked up, in which order, and the message if it is not found."""

import json
import re
import shutil
import socket
import time
from pathlib import Path

import pytest
from minari.storage import remotes

from zoo.data import catalog
from zoo.data.catalog import Source, resolve
from zoo.data.load import load_arrays, read
from zoo.data.minari import write_minari
from zoo.envs import EnvConfig
from zoo.errors import RunError, UsageError

from .conftest import episodes, write_d4rl

ENV = EnvConfig(id="Pendulum-v1")


@pytest.fixture
def places(store, tmp_path, monkeypatch):
    """Puts a dataset with a number of steps under an id in the store or in the package."""
    monkeypatch.setattr(catalog, "EMBEDDED", tmp_path / "embedded")

    def put(place: str, steps: int, embedded: bool = False) -> None:
        folder = (tmp_path / "embedded" if embedded else store) / place
        minari_id = "zoo/pendulum/x-v0" if embedded else place
        write_minari(episodes([steps], [True]), folder, minari_id, ENV.id, {}, force=False, flat=True)

    return put


def steps(source: Source) -> int:
    return len(read(source, 200).reward)


def test_a_name_means_the_embedded_one_then_the_zoos_own_then_the_hubs(places) -> None:
    places("D4RL/pendulum/expert-v2", 4)
    assert steps(resolve(ENV, "expert")) == 4
    places("mujoco/pendulum/expert-v0", 3)
    assert steps(resolve(ENV, "expert")) == 3
    places("zoo/pendulum/expert-v0", 2)
    assert steps(resolve(ENV, "expert")) == 2
    places("pendulum/expert", 1, embedded=True)
    assert steps(resolve(ENV, "expert")) == 1
    places("zoo/pendulum/other-v0", 5)
    assert [steps(resolve(ENV, f"pendulum/{name}")) for name in ("expert", "other")] == [1, 5], "as data list says it"


def test_a_full_minari_id_means_itself_alone(places) -> None:
    places("pendulum/expert", 1, embedded=True)
    places("mujoco/pendulum/expert-v0", 3)
    places("zoo/pendulum/expert-v0", 2)
    assert steps(resolve(ENV, "mujoco/pendulum/expert-v0")) == 3


def test_a_file_is_taken_by_its_path_even_with_a_plus_in_its_name(places, tmp_path) -> None:
    path = write_d4rl(tmp_path / "a+b.hdf5", episodes([5], [True]))
    arrays, sources = load_arrays(ENV, str(path))
    assert (len(arrays.reward), sources[0].kind) == (5, "hdf5")
    with pytest.raises(UsageError, match="is not a file"):
        resolve(ENV, str(tmp_path / "no.hdf5"))


@pytest.mark.parametrize("name", ["rows.npy", "rows.pkl", "rows.csv"])
def test_a_file_of_another_format_is_said_to_be_one(store, name) -> None:
    Path(name).write_text("rows")
    with pytest.raises(
        UsageError, match=r"rows\.\w+ is no \.hdf5, \.h5 or \.npz file\. Such a file has the arrays obs"
    ):
        resolve(ENV, name)


def test_minaris_own_file_is_recognized_and_its_folder_asked_for(places, store) -> None:
    places("my/pendulum-v0", 3)
    file = (store / "my/pendulum-v0/data/main_data.hdf5").rename("main_data.hdf5")
    with pytest.raises(RunError, match=f"the file of a Minari dataset; copy that dataset's whole folder into {store}"):
        load_arrays(ENV, str(file))


def test_a_mixture_takes_whole_episodes_from_the_start_of_each_part(store) -> None:
    parts = {"a": episodes([3] * 10, [True] * 10, 1), "b": episodes([4] * 10, [False] * 10, 2)}
    for name, rows in parts.items():
        minari_id = f"zoo/pendulum/{name}-v0"
        write_minari(rows, store / minari_id, minari_id, ENV.id, {}, force=False, flat=True)
    mixed, sources = load_arrays(ENV, "a+25%b")
    assert mixed.episode_lengths.tolist() == [3] * 10 + [4] * 3  # 25 % of 40 is 10: two episodes are too short
    assert (mixed.obs[30:42] == parts["b"].obs[:12]).all()
    assert [source.name for source in sources] == ["zoo/pendulum/a-v0", "zoo/pendulum/b-v0"]


def test_an_unknown_name_is_answered_by_the_nearest_and_how_to_get_one(places) -> None:
    places("zoo/pendulum/replay-v0", 2)
    with pytest.raises(UsageError) as caught:
        resolve(ENV, "repaly")
    message = str(caught.value)
    for part in ("Nearest: replay", "Make one: zoo data make pendulum", "import one: zoo data import FILE.hdf5"):
        assert part in message
    assert "minari" not in message
    places("pendulum", 2)  # a folder that is not ENV/DATASET
    with pytest.raises(UsageError, match="Nearest: replay"):
        resolve(ENV, "repaly")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvConfig("Hopper-v5"), r".* or download one: minari download mujoco/hopper/medium-v0\."),
        (
            EnvConfig("ogbench/pointmaze-large", "pointmaze-large"),
            ".* Make one: zoo data make pointmaze-large navigate;.*",
        ),
        (EnvConfig("ogbench/antmaze-large"), "[^:]*There is none here yet. Import one: zoo data import [^;]*"),
    ],
)
def test_only_what_works_is_advised(places, env, message) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(env, "replay")
    assert re.fullmatch(message, str(caught.value))


def test_what_is_being_written_or_downloaded_is_not_listed(places, store) -> None:
    places("zoo/pendulum/replay-v0", 2)
    places(".partial-abc/zoo/pendulum/other-v0", 2)
    places("zoo/pendulum/.partial-abc/dataset", 2)
    assert list(catalog.available()) == ["pendulum/replay"]


def test_without_network_a_hub_dataset_fails_within_seconds_and_says_what_to_do(store, monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        start = time.perf_counter()
        with pytest.raises(RunError) as caught:
            resolve(ENV, "expert")
    assert time.perf_counter() - start < 10
    for part in ("mujoco/pendulum/expert-v0", "refused", "zoo data make", "zoo data import", "copied to"):
        assert part in str(caught.value)
    assert not store.exists() or list(store.iterdir()) == []


def test_a_hub_that_does_not_answer_is_given_up_within_seconds(store, monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(catalog, "HUB_TIMEOUT", 0.5)
        start = time.perf_counter()
        with pytest.raises(RunError, match="timed out"):
            resolve(ENV, "expert")
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("address", ["http://me:SECRET@localhost", "//me:SECRET@localhost"])
def test_a_password_in_the_hubs_address_is_not_printed(store, monkeypatch, address) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(RunError, match="could not be downloaded") as caught:
        resolve(ENV, "expert")
    assert "SECRET" not in str(caught.value)


class Hub:
    """A Minari remote in a folder, with the interface that `minari.storage.hosting` needs."""

    folder = None
    breaks = False

    def __init__(self, name, token=None) -> None:
        pass

    def list_datasets(self, prefix=None):
        for path in self.folder.rglob("metadata.json"):
            minari_id = path.parent.parent.relative_to(self.folder).as_posix()
            if minari_id.startswith(prefix or ""):
                yield minari_id

    def get_dataset_metadata(self, dataset_id):
        return json.loads((self.folder / dataset_id / "data" / "metadata.json").read_text())

    def download_dataset(self, dataset_id, path) -> None:
        shutil.copytree(self.folder / dataset_id, path / dataset_id)
        if self.breaks:
            (path / dataset_id / "data" / "main_data.hdf5").write_bytes(b"half")
            raise ConnectionError("the line broke")

    def list_namespaces(self):
        return ["mujoco", "mujoco/pendulum"]

    def download_namespace_metadata(self, namespace, path) -> None:
        (path / namespace).mkdir(parents=True, exist_ok=True)
        (path / namespace / "namespace_metadata.json").write_text("{}")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    minari_id = "mujoco/pendulum/expert-v0"
    rows = episodes([6], [True])
    write_minari(rows, tmp_path / "hub" / minari_id, minari_id, ENV.id, {}, force=False, flat=False)
    monkeypatch.setattr(Hub, "folder", tmp_path / "hub")
    monkeypatch.setitem(remotes._registry, "folder", lambda: Hub)
    monkeypatch.setenv("MINARI_REMOTE", "folder://hub")
    return Hub


def test_a_hub_dataset_is_downloaded_once(store, hub, monkeypatch) -> None:
    source = resolve(ENV, "expert")
    assert source.path == store / "mujoco/pendulum/expert-v0/data"
    assert steps(source) == 6
    monkeypatch.setattr(hub, "download_dataset", None)
    assert resolve(ENV, "expert") == source
    assert [path.name for path in store.iterdir()] == ["mujoco"]


def test_of_two_downloads_at_once_the_second_takes_what_the_first_one_got(store, hub, monkeypatch) -> None:
    def download_dataset(self, dataset_id, path) -> None:
        shutil.copytree(self.folder / dataset_id, path / dataset_id)
        shutil.copytree(self.folder / dataset_id, store / dataset_id)  # written by another process in the meantime

    monkeypatch.setattr(hub, "download_dataset", download_dataset)
    assert steps(resolve(ENV, "expert")) == 6
    assert [path.name for path in store.iterdir()] == ["mujoco"]


def test_a_download_that_breaks_off_leaves_nothing_in_the_store(store, hub, monkeypatch) -> None:
    monkeypatch.setattr(hub, "breaks", True)
    with pytest.raises(RunError, match="the line broke"):
        resolve(ENV, "expert")
    assert list(store.iterdir()) == []
    monkeypatch.setattr(hub, "breaks", False)
    assert steps(resolve(ENV, "expert")) == 6
