"""The available offline datasets, and their locations. Nothing is read.

A name is looked up in this order: a dataset embedded in the package, the local Minari store, the Minari hub, and a file
(HDF5 in D4RL's layout, or a NumPy archive).
"""

import contextlib
import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zoo.errors import RunError, UsageError, nearest, printable
from zoo.machine import home

if TYPE_CHECKING:  # zoo.envs imports gymnasium, which `zoo list` does not need
    from zoo.envs import EnvConfig

EMBEDDED = Path(__file__).parent / "embedded"
HUB_NAMES = ("simple", "medium", "expert")  # the Minari hub has mujoco/<env>/<name>-v0 of these
ON_THE_HUB = ("ant", "halfcheetah", "hopper", "humanoid", "reacher", "swimmer", "walker2d")  # for these environments
ZOO_NAMESPACE = "zoo"  # datasets made or imported by the zoo are zoo/<env>/<name>-v0 in the local store
HUB_TIMEOUT = 5.0  # seconds for the hub to respond at all
FILE_SUFFIXES = (".hdf5", ".h5", ".npz")
D4RL_KINDS = ("random", "medium", "medium-replay", "full-replay", "expert", "medium-expert")
PASSWORD = re.compile(r"(?<=//)[^/\s]*@")  # in an address, with the user's name
PORTION = re.compile(r"(?:(\d+(?:\.\d+)?)%|(\d{1,9})ep:)?([^%]+)")  # a part of a mixture: share or episodes, then name
UNREADABLE = (  # what reading a dataset's metadata.json may raise, which anybody may have written
    OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError,
)  # fmt: skip
OGBENCH_KINDS = ("navigate", "stitch", "explore")


def scripted_kinds(env_id: str) -> tuple[str, ...]:
    """The kinds of data that come from a scripted controller for the environment."""
    if env_id.startswith("ogbench/pointmaze"):
        return OGBENCH_KINDS
    return ("waypoint",) if env_id.startswith("PointMaze") else ()


def made_kinds(env_id: str) -> tuple[str, ...]:
    """The kinds that `zoo data make` makes for the environment: none made by agents for goal-reaching tasks."""
    scripted = scripted_kinds(env_id)
    return scripted if env_id.startswith("ogbench/") else D4RL_KINDS + scripted


@dataclass(frozen=True)
class Source:
    """The location of one dataset."""

    name: str  # as requested
    kind: str  # embedded, minari, hdf5 or npz
    path: Path

    @property
    def in_episodes(self) -> bool:
        """Whether it is stored episode by episode; files of flat arrays may not mark the ends of theirs."""
        return self.kind not in ("hdf5", "npz")


def store() -> Path:
    """The local Minari store: MINARI_DATASETS_PATH, or ~/.minari/datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or home() / ".minari" / "datasets")


def candidates(env: "EnvConfig", name: str) -> list[str]:
    """The Minari ids that a name can mean: the name itself if it is an id, else the zoo's own and then the hub's."""
    if re.fullmatch(r"(?:[\w.-]+/)*[\w.-]+-v\d+", name):
        return [name]
    name = _within(env, name)
    return [f"{ZOO_NAMESPACE}/{env.name}/{name}-v0", f"mujoco/{env.name}/{name}-v0", f"D4RL/{env.name}/{name}-v2"]


def _within(env: "EnvConfig", name: str) -> str:
    """A name without its environment's name: `hopper/demo`, as in `zoo data list`, is Hopper's `demo`."""
    return name.removeprefix(f"{env.name}/")


class Portion(NamedTuple):
    """The part of a dataset that a mixture takes: all of it, or whole episodes from its start."""

    share: float  # of the dataset's transitions
    name: str
    episodes: int | None = None  # a number of episodes, instead of a share

    @property
    def amount(self) -> str:
        """The prefix of the name: `10%`, `30ep:`, or nothing."""
        if self.episodes is not None:
            return f"{self.episodes}ep:"
        return "" if self.share == 1 else f"{100 * self.share:g}%"


def parse_mixture(name: str) -> list[Portion]:
    """The parts of a name and how much each gives: all of `random`, a share of `10%expert`, episodes of `30ep:expert`.

    Raises:
        UsageError: a part has no name, a share that is not above 0 and up to 100 %, or zero episodes.
    """
    if file_of(name):
        return [Portion(1.0, name)]  # a file's name may contain a plus sign
    parts = []
    for text in name.split("+"):
        match = PORTION.fullmatch(text)
        if match is None or not 0 < float(match[1] or 100) <= 100 or int(match[2] or 1) < 1:
            raise UsageError(
                f"dataset={name}: a part of a mixture is a name, or a share or a number of episodes and a name, such "
                f"as 10%expert or 30ep:expert; not '{text}'."
            )
        parts.append(Portion(float(match[1] or 100) / 100, match[3], int(match[2]) if match[2] else None))
    return parts


def from_folder(name: str, folder: Path) -> str:
    """A dataset or mixture, in which names of files that are relative to a folder become full paths."""

    def whole(text: str) -> str:
        match = PORTION.fullmatch(text)
        start = match.start(3) if match else 0
        path = file_of(folder / text[start:])
        return f"{text[:start]}{path}" if path else text

    alone = whole(name)  # a file's name may contain a plus sign
    return alone if alone != name else "+".join(map(whole, name.split("+")))


def find(env: "EnvConfig", name: str) -> Source | None:
    """One dataset, if it is available locally; otherwise None."""
    kind = _within(env, name)
    embedded = EMBEDDED / env.name / kind
    if "/" not in kind and (embedded / "data").is_dir():
        return Source(name, "embedded", embedded / "data")
    for minari_id in candidates(env, name):
        if (store() / minari_id / "data").is_dir():
            return Source(minari_id, "minari", store() / minari_id / "data")
    if path := file_of(name):
        return Source(name, kind_of(path), path.resolve())
    return None


def file_of(name: str | Path) -> Path | None:
    """The file that a name refers to, if it exists and is that of a dataset."""
    return Path(name).expanduser() if Path(name).suffix in FILE_SUFFIXES and is_file(name) else None


def is_file(name: str | Path) -> bool:
    """Whether a name refers to a file that exists, of any format."""
    try:
        return Path(name).expanduser().is_file()
    except (OSError, RuntimeError):  # a mixture longer than a file's name may be; ~ with an unknown user
        return False


def recorded_env(data: Path) -> str | None:
    """The id of the environment in the metadata of a Minari dataset, whose folder is `data`, if there is one."""
    try:
        return printable(json.loads(json.loads((data / "metadata.json").read_text())["env_spec"])["id"])
    except UNREADABLE:
        return None


def kind_of(path: Path) -> str:
    """The kind of a file, from its suffix."""
    return "npz" if path.suffix == ".npz" else "hdf5"


def resolve(env: "EnvConfig", name: str) -> Source:
    """Finds one dataset; if only the Minari hub has it, downloads it from there.

    Raises:
        UsageError: there is no dataset of that name; the message lists those that exist and how to get one.
        RunError: only the hub has it, and the hub cannot be reached.
    """
    source = find(env, name)
    if source is not None:
        return source
    if Path(name).suffix in FILE_SUFFIXES:
        raise UsageError(f"dataset={name} is not a file.")
    ids = candidates(env, name)
    if ids == [name] or name in HUB_NAMES:
        return _download(env, name, ids[0] if ids == [name] else f"mujoco/{env.name}/{name}-v0")
    if is_file(name):
        raise UsageError(
            f"dataset={name} is no {', '.join(FILE_SUFFIXES[:-1])} or {FILE_SUFFIXES[-1]} file. Such a file has the "
            "arrays observations, actions, rewards, terminals and timeouts."
        )
    raise UsageError(f"dataset={name} does not exist for {env.name}. {_ways(env, name)}")


def _ways(env: "EnvConfig", name: str) -> str:
    known = [dataset for of_env, _, dataset in (listed.partition("/") for listed in available()) if of_env == env.name]
    scripted, made = scripted_kinds(env.id), made_kinds(env.id)
    kind = name if name in made else (*scripted, "medium")[0]
    hours = "" if kind in ("random", *scripted) else " (3 hours on one core; with --steps 300000, one)"
    new = name if re.fullmatch(r"[-\w]+", name) else "NAME"
    ways = [f"make one: zoo data make {env.argument} {kind}{hours}"] if made else []
    ways.append(f"import one: zoo data import FILE.hdf5 {env.argument}/{new}")
    if env.name in ON_THE_HUB:
        ways.append(f"or download one: minari download mujoco/{env.name}/medium-v0")
    listed = "; ".join(ways)
    return f"{nearest(name, known) if known else 'There is none here yet.'} {listed[0].upper()}{listed[1:]}."


def _download(env: "EnvConfig", name: str, minari_id: str) -> Source:
    place = store()
    try:
        _check_reachable()
        import minari

        place.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".partial-", dir=place) as partial,
            _environment("MINARI_DATASETS_PATH", partial),  # Minari's download folder: renamed once it is complete
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            minari.download_dataset(minari_id)
            (place / minari_id).parent.mkdir(parents=True, exist_ok=True)
            (Path(partial) / minari_id).rename(place / minari_id)
    except Exception as error:  # the hub's client raises whatever its transport does
        if source := find(env, name):  # another process may have downloaded it by now
            return source
        reason = (str(getattr(error, "reason", error)).splitlines() or [type(error).__name__])[0]
        reason = PASSWORD.sub("", reason)
        raise RunError(
            f"dataset={name}: {minari_id} is not in the local store and could not be downloaded ({reason[:120]}). "
            f"{_ways(env, name)} A folder downloaded elsewhere can be copied to {place / minari_id}."
        ) from error
    return Source(minari_id, "minari", place / minari_id / "data")


def _check_reachable() -> None:
    """Raises OSError if Hugging Face does not respond: its client would keep trying for half a minute."""
    if not os.environ.get("MINARI_REMOTE", "hf://").startswith("hf://"):
        return
    hub = PASSWORD.sub("", os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    request = urllib.request.Request(hub, method="HEAD")
    try:
        urllib.request.urlopen(request, timeout=HUB_TIMEOUT).close()
    except urllib.error.HTTPError:
        pass  # it responded
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ssl.SSLError):  # the client may accept certificates that Python does not know
            raise


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def at_hand() -> Iterator[Source]:
    """The datasets on this machine: embedded ones, then those in the local store.

    The zoo's own are named `<env>/<name>`; others have their full Minari id.
    """
    for path in sorted(EMBEDDED.glob("*/*/data")):
        yield Source(f"{path.parent.parent.name}/{path.parent.name}", "embedded", path)
    for path in sorted(store().rglob("data")):
        place = path.parent.relative_to(store())
        hidden = any(part.startswith(".") for part in place.parts)  # being written or downloaded
        if path.is_dir() and not hidden:
            minari_id = place.as_posix()
            own = re.fullmatch(rf"{ZOO_NAMESPACE}/(.+)-v0", minari_id)
            yield Source(own[1] if own else minari_id, "minari", path)


def available() -> Iterator[str]:
    """The names of the datasets on this machine."""
    return (source.name for source in at_hand())
