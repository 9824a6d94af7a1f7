"""A separate Minari store for each test, the `zoo` command in this process, and small episodes in D4RL's layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from zoo import cli
from zoo.data.arrays import Arrays


class Result(NamedTuple):
    """The exit code of a command, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The local Minari store, empty; the working directory is next to it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "store"


@pytest.fixture
def zoo(store: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs `zoo ...` in this process."""

    def run(*arguments: Any) -> Result:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return run


def episodes(lengths: list[int], terminated: list[bool], seed: int = 0, obs_dim: int = 3) -> Arrays:
    """Episodes of random numbers with Pendulum-v1's shapes. Each observation occurs once as `obs`."""
    rng = np.random.default_rng(seed)
    parts = []
    for length, ends in zip(lengths, terminated, strict=True):
        obs = rng.standard_normal((length + 1, obs_dim)).astype(np.float32)
        action, reward = (
            rng.uniform(-2, 2, (length, 1)).astype(np.float32),
            rng.standard_normal(length).astype(np.float32),
        )
        last = np.arange(length) == length - 1
        parts.append((obs[:-1], action, reward, obs[1:], last & ends, last & (not ends)))
    return Arrays(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))


def frames(lengths: list[int], terminated: list[bool], seed: int = 0) -> Arrays:
    """Episodes like MinAtar's Breakout: frames of bytes, six discrete actions."""
    rng = np.random.default_rng(seed)
    rows = episodes(lengths, terminated, seed)
    obs, next_obs = (rng.integers(0, 256, (len(rows.reward), 4, 10, 10), dtype=np.uint8) for _ in range(2))
    going_on = np.flatnonzero(~(rows.terminated | rows.truncated))
    next_obs[going_on] = obs[going_on + 1]
    return rows._replace(obs=obs, next_obs=next_obs, action=rng.integers(0, 6, len(rows.reward)))


D4RL_NAMES = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")


def put_elsewhere(file: h5py.File, name: str, other: Path, source: str, size: int, how: str) -> None:
    """Adds float32 numbers whose bytes lie in another HDF5 file: `external` storage, or a `virtual` dataset."""
    if how == "external":
        file.create_dataset(name, (size,), np.float32, external=[(str(other), 0, 4 * size)])
        return
    layout = h5py.VirtualLayout((size,), np.float32)
    layout[:] = h5py.VirtualSource(other, source, (size,))
    file.create_virtual_dataset(name, layout)


def write_d4rl(path: Path, arrays: Arrays, without: tuple[str, ...] = ()) -> Path:
    """A D4RL-layout file, with or without its later fields."""
    with h5py.File(path, "w") as file:
        for name, field in zip(D4RL_NAMES, arrays, strict=True):
            if name not in without:
                file[name] = field
    return path


def same(left: Arrays, right: Arrays) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def tree(folder: Path) -> dict[str, bytes]:
    """Every file in a folder and its subfolders, with its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
