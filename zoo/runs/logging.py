"""Where a run's numbers go: CSV files always, TensorBoard, W&B and Trackio on request."""

import contextlib
import csv
import importlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from zoo.errors import RunError, UsageError, optional
from zoo.files import replacing, sync
from zoo.runs.stepper import number_in
from zoo.settings.config import flat

LOGGERS = ("tensorboard", "wandb", "trackio")
TIMING = {"step", "seconds", "steps_per_second"}  # columns of metrics.csv beside the metrics
JUDGED_BY = ("eval/return_mean", "eval/score")  # shown by TensorBoard beside the hyperparameters


def parse_loggers(text: str) -> list[str]:
    """`tensorboard+wandb` -> both; `none` -> none. Raises UsageError on any other name."""
    names = [] if text == "none" else text.split("+")
    for name in names:
        if name not in LOGGERS:
            raise UsageError(
                f"logger={text} does not exist. There are: {', '.join(LOGGERS)}, several as tensorboard+wandb, none."
            )
    return names


class CsvLog:
    """A CSV file written row by row. When reopened, it drops the rows beyond the step from which the run resumes."""

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        self.columns: list[str] = []
        self.dropped = 0  # the largest step among the dropped rows
        if path.exists():
            with path.open(newline="", errors="replace") as file:
                rows = [row for row in csv.DictReader(file) if None not in row and None not in row.values()]
            whole = [row for row in rows if row.get("step", "").isdecimal()]  # the others are damaged
            rows = [row for row in whole if int(row["step"]) <= resume_step]
            self.dropped = max((step for row in whole if (step := int(row["step"])) > resume_step), default=0)
            self._rewrite(list(rows[0]) if rows else [], rows)

    def write(self, row: dict[str, Any]) -> None:
        """Appends a row; a value without a column, such as the first loss of a run, gets a new column."""
        new = [name for name in row if name not in self.columns]
        if new:
            rows: list[dict[str, Any]] = []
            if self.path.exists():
                with self.path.open(newline="") as file:
                    rows = list(csv.DictReader(file))
            return self._rewrite(self.columns + new, [*rows, row])
        try:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns, restval="").writerow(row)
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}.") from error

    def sync(self) -> None:
        """Waits until the rows are on the disk."""
        try:
            sync(self.path)
        except FileNotFoundError:  # there are no rows yet
            return
        except OSError as error:
            raise RunError(f"cannot write {self.path}: {error.strerror}.") from error

    def _rewrite(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        """Replaces the file as a whole, so that a kill in between loses no rows."""
        self.columns = columns
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
        with replacing(self.path) as file:
            file.write(text.getvalue().encode())


class Latest:
    """The latest value of each metric. Nothing is read, and no device waited for, until the values are requested.

    Args:
        metrics: the initial metrics.
    """

    def __init__(self, metrics: Mapping[str, float]) -> None:
        self._within: dict[str, Mapping[str, Any]] = dict.fromkeys(metrics, metrics)

    def add(self, metrics: Mapping[str, Any]) -> None:
        self._within |= dict.fromkeys(metrics, metrics)

    def read(self) -> dict[str, float]:
        """The values. Raises UsageError if one is not a number, or has the name of a column that is not a metric."""
        if taken := TIMING & self._within.keys():
            raise UsageError(f"a metric has the name {min(taken)}, which is a column of metrics.csv. Take another name")
        values = {name: torch.as_tensor(metrics[name]) for name, metrics in self._within.items()}
        for name, value in values.items():
            if value.numel() != 1:
                raise UsageError(
                    f"the metric {name} has the shape {tuple(value.shape)}. Log one number, such as a mean"
                )
        return {name: float(value) for name, value in values.items()}


class EpisodeMeans:
    """Mean return and length of the training episodes that have ended since the last row, and of numbers in `info`.

    Args:
        info_keywords: the names of these numbers.
    """

    def __init__(self, info_keywords: Sequence[str] = ()) -> None:
        self.info_keywords = info_keywords
        self.names = ["episode_return", "episode_length", *(f"info_{name}" for name in info_keywords)]
        self.episodes: list[list[float]] = []

    def add(self, episode_return: float, length: float, info: Mapping[str, Any]) -> None:
        """Adds an episode with the `info` of its last step. Raises RunError if that lacks a number."""
        self.episodes.append([episode_return, length, *(number_in(info, name) for name in self.info_keywords)])

    def take(self) -> dict[str, float]:
        """The means, NaN if no episode has ended; then starts anew."""
        columns = zip(*self.episodes or [[math.nan] * len(self.names)], strict=True)
        means = dict(zip(self.names, map(fmean, columns), strict=True))
        self.episodes.clear()
        return means


class Logger:
    """Writes the metrics and evaluations of one run to all its loggers.

    W&B and Trackio cannot delete: what they received from a killed run, beyond its checkpoint, is not sent again.

    Args:
        run_dir: the run's folder.
        names: the names of the loggers.
        record: the contents of `run.json`.
        resume_step: the step that the run continues from.
        stages: for a run that continues, the number of passes done in each stage.
    """

    def __init__(
        self, run_dir: Path, names: list[str], record: dict[str, Any], resume_step: int,
        stages: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        config, run_id = record["config"], record["id"]
        self.run_dir, name = run_dir, run_dir.resolve().name  # run_dir may be a dot
        self.metrics_csv = CsvLog(run_dir / "metrics.csv", resume_step)
        self.evaluations_csv = CsvLog(run_dir / "evaluations.csv", resume_step)
        self.stage_csv: dict[str, CsvLog] = {}
        for stage, done in (stages or {}).items():
            self.stage_csv[stage] = CsvLog(run_dir / f"{stage}.csv", done)
        self.tensorboard = self.wandb = self.trackio = None
        if "tensorboard" in names:
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams

            continued = stages is not None
            self.tensorboard = SummaryWriter(str(run_dir), purge_step=resume_step + 1 if continued else None)
            shown = {key: value if type(value) in (int, float) else str(value) for key, value in flat(config).items()}
            for summary in hparams(shown, dict.fromkeys(JUDGED_BY, 0.0)):  # type: ignore[no-untyped-call]
                self.tensorboard.file_writer.add_summary(summary)  # type: ignore[attr-defined]
            if continued:  # the purge also hides stages, which are counted by pass
                self._stages_again()
        if "wandb" in names:
            wandb = optional("wandb", "logger=wandb", "wandb")
            os.environ.setdefault("WANDB_SILENT", "true")
            try:
                self.wandb = wandb.init(
                    project=os.environ.get("WANDB_PROJECT", "zoo"), name=name, dir=run_dir, id=run_id, resume="allow",
                    config=config,
                    reinit="create_new",  # several runs of one process may be open at once
                )  # fmt: skip
            except Exception as error:  # not logged in, or no network: wandb raises whatever its transport does
                raise RunError(
                    f"logger=wandb cannot start: {error} Log in: wandb login; or keep it here: WANDB_MODE=offline."
                ) from error
            for prefix in ("train", "eval"):
                self.wandb.define_metric(f"{prefix}/*", step_metric="step")
            for stage in self.stage_csv:
                self.wandb.define_metric(f"{stage}/*", step_metric=f"{stage}/pass")
        if "trackio" in names:
            trackio = optional("trackio", "logger=trackio", "trackio")
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    self.trackio = trackio.init(  # it resumes by the name
                        project="zoo", name=f"{name}-{run_id}", config=flat(config), resume="allow"
                    )
            except Exception as error:  # whatever prevents access to its database
                raise RunError(f"logger=trackio cannot start: {error} Its folder: TRACKIO_DIR.") from error

    def metrics(self, step: int, values: dict[str, float], seconds: float, steps_per_second: float) -> None:
        timing = {"seconds": round(seconds, 2), "steps_per_second": round(steps_per_second, 1)}
        self.metrics_csv.write({"step": step, **timing, **values})
        train = {f"train/{name}": value for name, value in (values | timing).items()}
        self._scalars(step, train, known=step <= self.metrics_csv.dropped)

    def evaluation(self, step: int, row: dict[str, Any]) -> None:
        self.evaluations_csv.write({"step": step, **row})
        evaluated = {f"eval/{name}": value for name, value in row.items() if isinstance(value, float)}
        self._scalars(step, evaluated, known=step <= self.evaluations_csv.dropped)

    def stage(self, name: str, done: int, values: dict[str, float], seconds: float) -> None:
        """Adds a row to `<name>.csv`, for one pass of a stage before the steps."""
        if name not in self.stage_csv:
            self.stage_csv[name] = CsvLog(self.run_dir / f"{name}.csv", done - 1)
            if self.wandb is not None:
                self.wandb.define_metric(f"{name}/*", step_metric=f"{name}/pass")
        values = values | {"seconds": round(seconds, 2)}
        file = self.stage_csv[name]
        file.write({"step": done, **values})
        scalars = {f"{name}/{key}": value for key, value in values.items()}
        self._scalars(done, scalars, f"{name}/pass", known=done <= file.dropped)

    def sync(self) -> None:
        """Syncs the CSV files, before a checkpoint: a resumed run does not write the rows before it again."""
        for log in (self.metrics_csv, self.evaluations_csv, *self.stage_csv.values()):
            log.sync()

    def _stages_again(self) -> None:
        """Adds the contents of the files of earlier stages to TensorBoard."""
        for stage, log in self.stage_csv.items():
            with log.path.open(newline="") as file:
                for row in csv.DictReader(file):
                    done = int(row.pop("step"))
                    self._scalars(done, {f"{stage}/{key}": float(value) for key, value in row.items() if value})

    def video(self, step: int, path: Path) -> None:
        """Logs a GIF of how the agent at a step plays, as `play`."""
        if self.tensorboard is not None:
            from tensorboard.compat.proto.summary_pb2 import Summary

            image = Summary.Image(colorspace=3, encoded_image_string=path.read_bytes())
            summary = Summary(value=[Summary.Value(tag="play", image=image)])
            self.tensorboard.file_writer.add_summary(summary, step)  # type: ignore[attr-defined]
        if self.wandb is not None:
            self.wandb.log({"step": step, "play": importlib.import_module("wandb").Video(str(path), format="gif")})
        if self.trackio is not None:
            self.trackio.log({"play": importlib.import_module("trackio").Video(str(path), format="gif")}, step=step)

    def _scalars(self, step: int, scalars: dict[str, float], axis: str = "step", known: bool = False) -> None:
        if self.tensorboard is not None:
            try:
                for name, value in scalars.items():
                    self.tensorboard.add_scalar(name, value, step)
            except OSError as error:
                raise RunError(f"cannot write TensorBoard's events: {error.strerror}.") from error
        if known:  # for trackers that cannot delete
            return
        if self.wandb is not None:
            self.wandb.log({axis: step, **scalars})  # not W&B's own step, which must not decrease from stage to stage
        if self.trackio is not None:
            self.trackio.log(scalars, step=step)

    def close(self) -> None:
        if self.tensorboard is not None:
            with contextlib.suppress(OSError):  # a full disk; what could not be written here is in the CSV files
                self.tensorboard.close()
        if self.wandb is not None:
            self.wandb.finish()
        if self.trackio is not None:
            with contextlib.redirect_stdout(io.StringIO()):
                self.trackio.finish()
