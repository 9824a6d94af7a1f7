"""`zoo bench import-peer`: imports another library's run, so that the report compares it with the zoo's runs.

It reads CSV files (CORL's and CleanRL's from W&B, Stable-Baselines3's `progress.csv` and `monitor.csv`, or any file
with a column of steps and a column of returns), Stable-Baselines3's `evaluations.npz`, and folders of TensorBoard
events.
"""

import csv
import hashlib
import io
import re
from datetime import UTC, datetime
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from omegaconf import OmegaConf

from zoo.agent import Predictor
from zoo.benchmarks.suite import ELSEWHERE, digest
from zoo.commands.parser import Parser
from zoo.envs import EnvConfig
from zoo.errors import UsageError, nearest, quoted
from zoo.files import replacing, save_json
from zoo.runs.execute import label
from zoo.settings.compose import compose

STEPS = ("global_step", "step", "Step", "time/total_timesteps", "total_timesteps", "timesteps", "_step")
RETURNS = ("return_mean", "eval/mean_reward", "eval/episodic_return", "evaluation_return")  # returns of evaluations
SCORES = ("score", "d4rl_normalized_score", "eval/d4rl_normalized_score", "eval/normalized_score_mean")
EPISODES = ("charts/episodic_return", "episodic_return", "rollout/ep_rew_mean", "r")  # returns of training episodes
BY_EPISODE = "eval/episodic_return"  # in CleanRL's files, its steps are numbers of episodes after the end of the run
SLACK = 0.02  # relative difference in steps between runs with one budget: runs end after a whole rollout or episode
PARTS = 20  # training returns are averaged over this many equal parts of a run


def main(arguments: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        prog="zoo bench import-peer",
        description="Imports another library's run into a folder of runs. zoo report then compares it with the zoo's.",
        epilog="Example: zoo bench import-peer progress.csv SB3 --dir bench/mine algo=sac env=hopper seed=0",
    )
    parser.add_argument("file", type=Path, help="CSV file, evaluations.npz, or folder of TensorBoard events")
    parser.add_argument("peer", help="the run's library: CORL, CleanRL, SB3, ...")
    parser.add_argument(
        "overrides", nargs="+", metavar="key=value", help="the run's settings, as for zoo run; steps=N: only N steps"
    )
    parser.add_argument("--dir", type=Path, required=True, help="folder of runs")
    parser.add_argument("--column", help="name of the column of returns or scores, if it is not a usual one")
    parser.add_argument("--steps-column", help="name of a CSV file's column of steps, if it is not a usual one")
    args = parser.parse_intermixed_args(arguments)
    print(f"written to {take(args.file, args.peer, args.overrides, args.dir, args.column, args.steps_column)}/")
    return 0


def take(
    file: Path,
    peer: str,
    overrides: list[str],
    folder: Path,
    column: str | None = None,
    steps_column: str | None = None,
) -> Path:
    """Writes another library's run in the format of the zoo's runs, as far as it is known.

    Args:
        file: the run's results.
        peer: the run's library.
        overrides: the run's settings. If they include `steps`, later results of a longer run are ignored.
        folder: the folder of runs.
        column, steps_column: the columns of returns or scores, and of steps; None if they have one of the usual names.

    Returns:
        The run's folder.

    Raises:
        UsageError: the file has no readable results, its results end before `steps`, or the run already exists.
    """
    if not re.fullmatch(r"[\w.+ -]*\w[\w.+ -]*", peer):
        raise UsageError(f"{peer!r} cannot be a library's name. Use letters and digits, such as CORL.")
    if where := next((one for one in overrides if one.startswith("run_dir=")), None):
        raise UsageError(f"{where}: the run gets its own folder. Name the folder to put it in: --dir DIR")
    config, algorithm, settings = compose(overrides)
    if issubclass(algorithm.agent_class, Predictor):
        raise UsageError(f"algo={algorithm.name} predicts and has no returns. Name one that acts: zoo list")
    given = any(one.partition("=")[0] == "steps" for one in overrides)
    name, steps, returns = curve(file, config.env, column, steps_column, config.steps if given else None)
    if given and steps[-1] < (1 - SLACK) * config.steps:
        raise UsageError(f"{file} ends at step {steps[-1]}, before steps={config.steps}. Type steps={steps[-1]}.")
    data = algorithm.takes_data(config)
    settings["steps"] = config.steps if given else planned_steps(steps)
    method = {key: value for key, value in settings.items() if key not in ELSEWHERE}
    run_dir = folder / (
        f"{config.env.name}-{label(config, algorithm)}-seed{config.seed}-{peer.lower()}-{digest(method)[:8]}"
    )
    if run_dir.exists():
        raise UsageError(f"{run_dir} is there already. Delete it first: rm -r {quoted(run_dir)}")
    record = {
        "status": "finished",
        "peer": f"{peer}, training episodes" if name in EPISODES else peer,
        "source": {"file": file.name, "column": name, "sha256": content_digest(file)},
        "config": settings,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
    } | ({"dataset": {"name": config.dataset, "fingerprint": None}} if data else {})
    try:
        run_dir.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {run_dir}: {error.strerror}.") from error
    with replacing(run_dir / "config.yaml") as out:
        out.write(OmegaConf.to_yaml(OmegaConf.create(settings)).encode())
    with replacing(run_dir / "evaluations.csv") as out:
        rows = ["step,return_mean,score"]
        for step, value in zip(steps, returns, strict=True):
            score = config.env.normalize(value)
            rows.append(f"{step},{value},{'' if score is None else score}")
        out.write("\n".join([*rows, ""]).encode())
    save_json(run_dir / "run.json", record)
    return run_dir


def content_digest(file: Path) -> str:
    """Digest of the content of a file, or of the files in a folder."""
    paths = sorted(path for path in file.rglob("*") if path.is_file()) if file.is_dir() else [file]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def curve(
    file: Path, env: EnvConfig, column: str | None = None, steps_column: str | None = None, total: int | None = None
) -> tuple[str, np.ndarray, np.ndarray]:
    """Steps and returns of a run's evaluations, or of its training episodes if it has no evaluations.

    Args:
        file: the run's results.
        env: the run's environment.
        column, steps_column: the columns to read, if they do not have one of the usual names.
        total: the run's number of steps. Later rows are ignored, except within half a part of the run, because runs end
            after a whole episode or rollout. None: the last step in the file, rounded to two digits if that is near.

    Returns:
        The column that was read, the steps, and the returns.

    Raises:
        UsageError: the file has no such results.
    """
    if steps_column and (file.is_dir() or file.suffix == ".npz"):
        raise UsageError(f"--steps-column {steps_column}: {file} has no columns of steps. Leave it out.")
    try:
        if file.is_dir():
            table = of_tensorboard(file)
        elif file.suffix == ".npz":
            table = of_npz(file)
        else:
            table = of_csv(file, steps_column)
    except (
        OSError, ValueError, KeyError, TypeError, StopIteration, OverflowError, EOFError, csv.Error, BadZipFile,
    ) as error:  # fmt: skip
        said = str(error).rstrip(".")
        raise UsageError(f"{file} cannot be read as results: {type(error).__name__} {said}.") from error
    by_episode = "charts/episodic_return" in table
    known = [column] if column else [one for one in RETURNS + SCORES + EPISODES if one != BY_EPISODE or not by_episode]
    name = next((name for name in known if name in table), None)
    if name is None:
        asked = f"no column {column}" if column else "no column of returns that is known"
        raise UsageError(f"{file} has {asked}. {nearest(column or '', table)} Name one: --column NAME")
    steps, values = table[name]
    held = ~np.isnan(values)
    if not held.any() or np.isinf(values).any():
        raise UsageError(f"{file} has {'infinite' if held.any() else 'no'} numbers in the column {name}.")
    order = np.argsort(steps[held], kind="stable")
    steps, values = steps[held][order], values[held][order]
    if total is not None:
        most = total * (1 + 0.5 / PARTS)
        nearest_end = steps[np.abs(steps - total).argmin()]
        within = steps <= (most if name in EPISODES else max(total, min(nearest_end, most)))
        if not within.any():
            raise UsageError(f"{file} begins after steps={total}, at {steps[0]}. Leave steps= out, or give more.")
        steps, values = steps[within], values[within]
    if name in SCORES or re.search(r"(?<!un)normalized", name):
        if env.expert_score is None or env.random_score is None:
            raise UsageError(f"{file} has normalized scores, but {env.name} has no reference scores to undo them.")
        values = env.random_score + values / 100 * (env.expert_score - env.random_score)
    if name in EPISODES:
        steps, values = averaged(steps, values, total or planned_steps(steps))
    return name, steps, values


def planned_steps(steps: np.ndarray) -> int:
    """The number of steps that a run was set to, estimated from its last step: runs end after an episode or rollout."""
    last, rounded = int(steps[-1]), int(float(f"{steps[-1]:.1e}"))
    return rounded if abs(rounded - last) <= SLACK * last else last


def averaged(steps: np.ndarray, values: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each of `PARTS` equal parts of a run of `total` steps. Later values count in the last part."""
    ends = np.linspace(0, total, PARTS + 1)[1:].astype(int)
    parts = np.searchsorted(ends, steps).clip(max=PARTS - 1)
    filled = np.unique(parts)
    return ends[filled], np.array([values[parts == part].mean() for part in filled])


Table = dict[str, tuple[np.ndarray, np.ndarray]]  # steps and values of each column


def of_csv(file: Path, steps_column: str | None = None) -> Table:
    """The columns of a CSV file. For `monitor.csv`, the steps are the cumulative sum of the episodes' lengths."""
    with file.open(newline="", encoding="utf-8-sig") as lines:
        start = lines.readline()
        text = ("" if start.startswith("#") else start) + lines.read()
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    if rows and (None in rows[-1].values() or not text.endswith("\n")):
        rows.pop()
        print(f"the last row of {file} is cut off and left out")
    if not rows:
        raise ValueError("it has no rows")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError("not all rows have as many fields as the first")
    if start.startswith("#"):
        steps = np.cumsum([int(row["l"]) for row in rows])
    else:
        known = (steps_column,) if steps_column else STEPS
        name = next((name for name in known if name in rows[0]), None)
        if name is None:
            raise ValueError(
                f"it has no column of steps, such as {', '.join(known[:3])}. Name one: --steps-column NAME"
            )
        steps = np.array([int(float(row[name])) if row[name] else -1 for row in rows])
    table: Table = {}
    for column in rows[0]:
        held = [i for i, row in enumerate(rows) if row[column] and steps[i] >= 0]
        try:
            table[column] = steps[held], np.array([float(rows[i][column]) for i in held])
        except ValueError:  # not a column of numbers
            continue
    return table


def of_npz(file: Path) -> Table:
    """Reads Stable-Baselines3's `evaluations.npz`: `timesteps [N]`, `results [N, E]`."""
    with np.load(file, allow_pickle=False) as arrays:
        steps, results = arrays["timesteps"], arrays["results"]
    if results.ndim != 2 or steps.shape != results.shape[:1]:
        raise ValueError(f"timesteps {steps.shape} do not fit results {results.shape}")
    for name, array in {"timesteps": steps, "results": results}.items():
        if array.dtype.kind not in "iuf":
            raise ValueError(f"its {name} are of type {array.dtype}, not numbers")
    whole = (steps == np.floor(steps)) & (steps >= 0) & (steps < 2.0**63)  # false for NaN
    if not whole.all():
        raise ValueError(f"its timesteps contain {steps[~whole][0]}, which is not a number of steps")
    return {"return_mean": (steps.astype(np.int64), results.mean(1))}


def of_tensorboard(folder: Path) -> Table:
    """The scalars in a folder of TensorBoard events and its subfolders."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    table: Table = {}
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(place), size_guidance={"scalars": 0})
        events.Reload()
        for tag in events.Tags()["scalars"]:
            if tag in table:
                raise ValueError(f"{tag} is in more than one run; give the folder of one run, such as {place}")
            scalars = events.Scalars(tag)
            table[tag] = np.array([one.step for one in scalars]), np.array([one.value for one in scalars])
    if not table:
        raise ValueError("it holds no TensorBoard scalars")
    return table
