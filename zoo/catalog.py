"""Which offline datasets there are and where: names in, places out, nothing read.

A name resolves in this order: a dataset embedded in the package, the local Minari store, the Minari hub, a D4RL-layout HDF5 file.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.errors import RunError, UsageError, nearest

if TYPE_CHECKING:  # zoo.envs brings in gymnasium, which `zoo list` has no use for
    from zoo.envs import EnvConfig

EMBEDDED = Path(__file__).parent / "embedded"
HUB_NAMES = ("simple", "medium", "expert")  # what the Minari hub has as mujoco/<env>/<name>-v0
ZOO_NAMESPACE = "zoo"  # what the zoo makes and imports is zoo/<env>/<name>-v0 in the local store
D4RL_KINDS = ("random", "medium", "medium-replay", "expert", "medium-expert")


@dataclass(frozen=True)
class Source:
    """Where one dataset was found."""

    name: str  # as it was asked for
    kind: str  # embedded, minari or hdf5
    path: Path


def store() -> Path:
    """The local Minari store: MINARI_DATASETS_PATH, or ~/.minari/datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def candidates(env: "EnvConfig", name: str) -> list[str]:
    """The Minari ids that a name can mean: itself if it is one, else the zoo's own and then the hub's."""
    if re.fullmatch(r"(?:[\w.-]+/)*[\w.-]+-v\d+", name):
        return [name]
    return [f"{ZOO_NAMESPACE}/{env.name}/{name}-v0", f"mujoco/{env.name}/{name}-v0", f"D4RL/{env.name}/{name}-v2"]


def resolve(env: "EnvConfig", name: str) -> Source:
    """Finds one dataset, downloading it from the Minari hub where it is only there.

    Raises:
        UsageError: no dataset of that name; says which there are and how to get one.
        RunError: it is on the hub only and the hub cannot be reached.
    """
    embedded = EMBEDDED / env.name / name
    if embedded.is_dir():
        return Source(name, "embedded", embedded / "data")
    ids = candidates(env, name)
    for minari_id in ids:
        if (store() / minari_id / "data").is_dir():
            return Source(minari_id, "minari", store() / minari_id / "data")
    path = Path(name).expanduser()
    if path.suffix in (".hdf5", ".h5"):
        if path.is_file():
            return Source(name, "hdf5", path.resolve())
        raise UsageError(f"dataset={name} is not a file.")
    if ids == [name] or name in HUB_NAMES:
        return _download(env, name, ids[0] if ids == [name] else f"mujoco/{env.name}/{name}-v0")
    raise UsageError(f"dataset={name} does not exist for {env.name}. {_ways(env, name)}")


def _ways(env: "EnvConfig", name: str) -> str:
    known = [listed.split("/", 1)[1] for listed in available() if listed.split("/", 1)[0] == env.name]
    kind = name if name in D4RL_KINDS else "medium"
    return (
        f"{nearest(name, known) if known else 'There is none here yet.'} "
        f"Make it: zoo data make {env.name} {kind} (about 45 minutes on one core); "
        f"import it: zoo data import FILE.hdf5 {env.name}/{name}; "
        f"download it: minari download mujoco/{env.name}/medium-v0."
    )


def _download(env: "EnvConfig", name: str, minari_id: str) -> Source:
    import minari

    try:
        minari.download_dataset(minari_id)
    except Exception as error:  # the hub's client raises whatever its transport does
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"dataset={name}: {minari_id} is not in the local store and could not be downloaded ({reason[:120]}). {_ways(env, name)}"
        ) from error
    return Source(minari_id, "minari", store() / minari_id / "data")


def available() -> Iterator[str]:
    """The datasets at hand, as `<env>/<name>`: embedded ones, then the zoo's own in the local store, then full Minari ids there."""
    for path in sorted(EMBEDDED.glob("*/*/data")):
        yield f"{path.parent.parent.name}/{path.parent.name}"
    for path in sorted(store().rglob("metadata.json")):
        if path.parent.name == "data":
            minari_id = path.parent.parent.relative_to(store()).as_posix()
            own = re.fullmatch(rf"{ZOO_NAMESPACE}/(.+)-v0", minari_id)
            yield own[1] if own else minari_id
