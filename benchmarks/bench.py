"""`zoo bench SUITE`: runs a suite, with as many processes at a time as there are cores."""

import argparse
import csv
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from zoo.benchmarks import export, peers
from zoo.benchmarks.analysis import build
from zoo.benchmarks.jobs import Job, grouped, record, status
from zoo.benchmarks.launchers import LAUNCHERS, launcher
from zoo.benchmarks.report import require, write
from zoo.benchmarks.runner import Runner, failures
from zoo.benchmarks.suite import Planned, check_data, check_devices, on_cpu, plan, suites
from zoo.commands.parser import Parser
from zoo.errors import RunError, UsageError, discard, nearest
from zoo.settings.registry import folder as folder_of

SHOWN = 30  # jobs in the live view


def main(arguments: list[str]) -> int:
    """Runs the command."""
    if arguments[:1] == ["import-peer"]:
        return peers.main(arguments[1:])
    if arguments[:1] == ["export"]:
        return export.main(arguments[1:])
    titles = {name: path.read_text().partition("\n")[0].lstrip("# ") for name, path in suites().items()}
    listed = "\n".join(f"  {name:<24} {title}" for name, title in titles.items())
    parser = Parser(
        prog="zoo bench",
        description="Runs a suite. If you repeat the command, it runs only what is missing.",
        epilog=f"suites:\n{listed}\n\nzoo bench import-peer --help: import another library's run for the report\n"
        "zoo bench export --help: write the runs of a folder to one CSV file",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", metavar="SUITE", help="one of the suites below, or a file of your own: mine.yaml")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings of every run, as for zoo run -m. launcher=ray or launcher=slurm uses other machines; "
        "launcher.gpus=0,2 and launcher.per_gpu=8 set the GPUs and the number of processes on each. On a GPU, runs "
        "that differ only in their seeds are one process, as with seeds= of zoo run",
    )
    parser.add_argument("--dir", type=Path, help="folder of the runs (default: bench/SUITE)")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="only list the runs and estimate how long they take, from speeds measured here or in the zoo's report",
    )
    parser.add_argument(
        "--jobs", type=int, help="processes at a time (default: one per core, or 4 per GPU; see launcher.per_gpu)"
    )
    parser.add_argument("--stall", type=float, default=3600, help="seconds without output after which a run has hung")
    args = parser.parse_intermixed_args(arguments)
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs} must be at least 1.")
    if not args.stall > 0:
        raise UsageError(f"--stall {args.stall:g} must be above 0.")
    where = [one for one in args.overrides if one.startswith(("launcher=", "launcher."))]
    options = [one.removeprefix("launcher.") for one in where if one.startswith("launcher.")]
    (*_, chosen) = ["local", *(one.partition("=")[2] for one in where if one.startswith("launcher="))]
    if chosen not in LAUNCHERS:
        raise UsageError(f"launcher={chosen} does not exist. {nearest(chosen, LAUNCHERS)}")
    runs = plan(args.suite, [one for one in args.overrides if one not in where])
    if chosen == "local":
        check_devices(runs)
    usual = {"per_gpu": 0} if chosen != "slurm" and on_cpu(runs) else {}
    folder = args.dir or Path("bench") / Path(args.suite).stem
    if args.dry_run:
        here = launcher(chosen, args.jobs, folder, options, **usual) if chosen == "local" else None
        show_plan(runs, folder, len(here.places) if here else args.jobs, here.gpus if here else 0)
        return 0
    check_data(runs)
    require()
    started = time.monotonic()
    with showing() as show:
        jobs = Runner(runs, folder, launcher(chosen, args.jobs, folder, options, **usual), args.stall, show).go()
    done = sum(job.state == "finished" for job in jobs)
    print(f"{done} of {len(jobs)} runs finished in {duration(time.monotonic() - started)}; they are in {folder}/\n")
    problems = []
    for step in (lambda: write(build(folder), folder / "report") if done else None, lambda: failures(jobs)):
        try:
            step()
        except (RunError, UsageError) as error:
            problems.append(str(error))
    if problems:
        raise RunError(" ".join(problems))
    return 0


def speeds(folder: Path) -> dict[tuple[str, ...], float]:
    """Steps per second of an algorithm on an environment and on any: `{("iql", "hopper"): 170, ("iql",): 165}`.

    These are medians over the rows of all runs in a folder, in its sibling folders and in the default folders. If there
    are none, they are the speeds in the zoo's own report (`docs/results`), with one thread per run.
    """
    return medians(reported()) | medians(measured(folder))


def reported() -> Iterator[tuple[str, str, list[float]]]:
    """Algorithm, environment and speed of the runs in the zoo's own report, from its `speeds.csv`."""
    with (folder_of("benchmarks") / "speeds.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["algo"], row["env"], [float(row["steps_per_second"])]


def measured(folder: Path) -> Iterator[tuple[str, str, list[float]]]:
    """Algorithm, environment and speeds of each run in a folder, in its sibling folders and in the default folders."""
    places = {place.resolve() for place in (folder.absolute().parent, Path("bench"), Path("runs"))}
    for path in {path for place in places for path in place.glob("*/*/metrics.csv")}:
        try:
            with path.open(newline="") as file:
                rows = [row for row in csv.DictReader(file) if row.get("steps_per_second")]
            known = record(path.parent)
            if known.get("stages"):  # the time for training models before the updates counts too
                values = [float(rows[-1]["step"]) / float(rows[-1]["seconds"])]
            else:
                values = [float(row["steps_per_second"]) for row in rows]
            run = known["config"]["algo"]["name"], known["config"]["env"]["name"], values
        except (OSError, ValueError, KeyError, TypeError, IndexError, ZeroDivisionError):  # half-written
            continue
        yield run


def medians(runs: Iterable[tuple[str, str, list[float]]]) -> dict[tuple[str, ...], float]:
    """Median speeds by algorithm and environment, and by algorithm."""
    rows: dict[tuple[str, ...], list[float]] = {}
    for algo, env, values in runs:
        for key in ((algo, env), (algo,)):
            rows.setdefault(key, []).extend(values)
    return {key: statistics.median(values) for key, values in rows.items() if values}


def show_plan(runs: Sequence[Planned], folder: Path, places: int | None, gpus: int) -> None:
    """Prints the runs, their status, and the time that the rest will take; `places`: None if the launcher decides."""
    known, left_of, unknown = speeds(folder), dict[str, float](), 0
    for run in runs:
        algo, env = run.settings["algo"]["name"], run.settings["env"]["name"]
        speed = known.get((algo, env), known.get((algo,)))
        state = "no data" if run.missing else status(folder / run.name)
        due = ""
        if state != "finished":
            if speed:
                begun = (folder / run.name / "checkpoint.pt").exists()
                takes = (run.steps - (progress(folder / run.name)[0] if begun else 0)) / speed
                left_of[run.name] = takes
                due = duration(takes)
            else:
                unknown += 1
        print(f"{run.name:<60} {run.steps:>10,} steps  {state or '-':<12} {due}")
    groups = grouped([Job(run, folder / run.name) for run in runs if run.name in left_of], gpus)
    each = [max(left_of[job.run.name] for job in group) for group in groups]
    seconds = max(sum(each) / (places or 1), *each, 0.0)  # at least as long as the longest one
    left = [f"about {duration(seconds)}{'' if places else ' of processor time'}, plus evaluations"] if seconds else []
    left += [f"{unknown} of unknown speed"] if unknown else []
    how = f"{len(runs)} runs, {places} at a time" if places else f"{len(runs)} runs"
    print(f"{how}: {' and '.join(left) or 'nothing is left to do'}")


@contextmanager
def showing() -> Iterator[Callable[[list[Job]], None]]:
    """Shows the state of the jobs: as a table in a terminal, otherwise as one line per change."""
    console, states = Console(), dict[str, str]()

    def print_changes(jobs: list[Job]) -> None:
        for job in jobs:
            if job.state != states.get(job.run.name, "waiting"):
                done = sum(other.state == "finished" for other in jobs)
                line = f"{datetime.now():%F %T}  {job.state:<8}  {job.run.name}  ({done} of {len(jobs)} done)"
                try:
                    print(line, flush=True)
                except BrokenPipeError:  # nothing reads the pipe any more; the runs continue
                    discard(sys.stdout.fileno())
            states[job.run.name] = job.state

    if not console.is_terminal:
        yield print_changes
        return
    shown: list[Job] = []
    with Live(get_renderable=lambda: view(shown), console=console, refresh_per_second=1, transient=True):
        yield lambda jobs: shown.__setitem__(slice(None), jobs)


def view(jobs: Sequence[Job]) -> Table:
    """A table of the running jobs, their speeds, and the time left."""
    counts = Counter(job.state for job in jobs)
    title = ", ".join(f"{counts[state]} {state}" for state in ("finished", "running", "waiting", "failed"))
    table = Table(title=title, title_justify="left", box=None)
    for column in ("run", "step", "of", "steps/s", "left"):
        table.add_column(column, justify="left" if column == "run" else "right")
    for job in [job for job in jobs if job.state == "running"][:SHOWN]:
        step, speed = progress(job.dir)
        left = duration((job.run.steps - step) / speed) if speed else ""
        table.add_row(job.run.name, f"{step:,}", f"{job.run.steps:,}", f"{speed:.1f}" if speed else "", left)
    return table


def progress(run_dir: Path) -> tuple[int, float]:
    """The last step that a run has logged, and its speed; both 0 if it has logged nothing yet."""
    try:
        with (run_dir / "metrics.csv").open(newline="") as file:
            *_, row = csv.DictReader(file)
        return int(row["step"]), float(row["steps_per_second"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0.0


def duration(seconds: float) -> str:
    """`90061` -> `25 h 1 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
