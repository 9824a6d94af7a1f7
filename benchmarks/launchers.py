"""Launchers start processes of one or several runs: here, or on a Ray or Slurm cluster with a shared file system."""

import contextlib
import ctypes
import importlib
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from omegaconf import OmegaConf

from zoo.errors import UsageError
from zoo.machine import cores, nvidia_smi

PER_GPU = 4  # default number of processes at a time on each GPU
QUEUED = 1000  # maximum number of jobs in Slurm's queue
DAY = 24 * 60  # default time limit of a Slurm job, in minutes
FORWARDED = ("MINARI_DATASETS_PATH", "PYTHONPATH", "ZOO_IMPORT")  # environment variables for other machines
KILLED = -signal.SIGKILL
PR_SET_PDEATHSIG = 1  # an option of Linux's prctl


class Process(Protocol):
    """A process of one or several runs."""

    def poll(self) -> int | None:
        """The exit code; None while the process is running."""

    def interrupt(self) -> None:
        """Asks the process to write a checkpoint and end."""

    def kill(self) -> None:
        """Kills the process."""


class Launcher(Protocol):
    """Starts processes.

    Attributes:
        places: one entry for each process that may run at the same time: its device, or None if the launcher does not
            choose it.
        gpus: the number of GPUs for them, as far as known; 0 if they use none.
    """

    places: list[str | None]
    gpus: int

    def start(self, command: list[str], log: Path, device: str | None) -> Process:
        """Runs `python command` and appends its output to a log, which is touched when the process begins."""

    def close(self) -> None:
        """Releases the launcher's resources."""


def launcher(name: str, jobs: int | None, folder: Path, options: list[str], **usual: Any) -> Launcher:
    """Makes the launcher with the given name.

    Args:
        name: a key of `LAUNCHERS`.
        jobs: the number of processes at a time; None for as many as fit.
        folder: a folder for the launcher's own files.
        options: `key=value` options of `Local`, of `ray.init` or of submitit's executor.
        usual: defaults for options that are not given.

    Raises:
        UsageError: the launcher's library is not installed, or the launcher refuses an option.
    """
    try:
        given: Any = OmegaConf.to_container(OmegaConf.from_dotlist(options))
    except Exception as error:  # OmegaConf or YAML cannot parse it
        raise UsageError(f"launcher={name} {' '.join(options)}: {str(error).splitlines()[0]}") from error
    try:
        return LAUNCHERS[name](jobs, folder, **usual | given)
    except ImportError as error:
        raise UsageError(f"launcher={name} needs {error.name}. Type: pip install 'rl-zoo[scale]'") from error
    except (TypeError, ValueError, NameError, RuntimeError, ConnectionError) as error:
        if unknown := re.search(r"(?:unexpected keyword|multiple values for) argument '(\w+)'", str(error)):
            raise UsageError(f"launcher.{unknown[1]} does not exist for launcher={name}.") from error
        raise UsageError(f"launcher={name} {' '.join(options)}: {error}") from error


# --- This machine -----------------------------------------------------------------------------------------------------


class Local:
    """Runs processes on this machine: one per core, or several per GPU.

    Args:
        gpus: the GPUs to use, such as `0` or `0,2`; None for all visible ones.
        per_gpu: the number of processes at a time on each GPU; 0 uses no GPU and runs one process per core.

    Raises:
        ValueError: a GPU does not exist, or `per_gpu` is negative.
    """

    def __init__(self, jobs: int | None, folder: Path, gpus: Any = None, per_gpu: int = PER_GPU) -> None:
        if not isinstance(per_gpu, int) or per_gpu < 0:
            raise ValueError("per_gpu must be a whole number of at least 0.")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        there = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
        there = there[: torch.cuda.device_count()]
        names = there if gpus is None else [*map(str, gpus)] if isinstance(gpus, list) else str(gpus).split(",")
        if unknown := [name for name in names if name not in there]:
            raise ValueError(f"there is no GPU {', '.join(unknown)} here. GPUs: {', '.join(there) or 'none'}.")
        names = names if per_gpu else []
        count = jobs or per_gpu * len(names) or cores()
        self.places: list[str | None] = [names[i % len(names)] if names else None for i in range(count)]
        self.gpus = min(len(names), count)

    def start(self, command: list[str], log: Path, device: str | None) -> Process:
        return LocalProcess(command, log, {} if device is None else {"CUDA_VISIBLE_DEVICES": device})

    def close(self) -> None:
        pass


def roomiest(free: Sequence[str | None], places: Sequence[str | None]) -> str | None:
    """The GPU on which the next process starts: the one with the most free memory.

    A process takes a while to allocate its memory, so each running process counts with at least its share of the GPU's
    memory.

    Args:
        free: the devices of the free places.
        places: the devices of all places.
    """
    memory = gpu_memory() if len(set(free)) > 1 else {}
    if not all(device in memory for device in free):
        memory = {}

    def room(device: str | None) -> float:
        now, capacity = memory.get(str(device), (math.inf, 1.0))
        return min(now, capacity * free.count(device) / places.count(device))

    return max(free, key=room)


def gpu_memory() -> dict[str, tuple[float, float]]:
    """Free and total memory of the GPUs in MiB, by number and by UUID; empty if unknown."""
    return {
        name: (float(free), float(total))
        for number, uuid, free, total in nvidia_smi("index", "uuid", "memory.free", "memory.total")
        for name in (number, uuid)
    }


class LocalProcess:
    """A child process, which on Linux ends when this process ends."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str], folder: Path | None = None) -> None:
        self.log: IO[bytes] = log.open("ab")
        os.utime(log)
        self.process = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, cwd=folder, start_new_session=True,
            preexec_fn=becomes_a_run,
        )  # fmt: skip

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is not None:
            self.log.close()
        return code

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self.process.kill()


def becomes_a_run() -> None:
    """Prepares a forked process: it can be interrupted at once and, on Linux, ends when the runner ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # in a shell's background SIGINT is ignored, also in child processes
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


# --- Other machines ---------------------------------------------------------------------------------------------------


def execute(command: list[str], log: Path, folder: Path, environment: dict[str, str]) -> int:
    """Runs a command in a worker of Ray or Slurm, and interrupts it if the worker is interrupted."""
    child = LocalProcess(command, log, environment, folder)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by scancel; submitit would ignore it
    try:
        return child.process.wait()
    except BaseException:  # it was cancelled or reached its time limit, for which submitit raises an exception here
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ignore further signals
        child.interrupt()
        return child.process.wait()
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: a handler that was not set by Python


def arguments(command: list[str], log: Path) -> tuple[list[str], Path, Path, dict[str, str]]:
    """The arguments of `execute` for a command, with this process's working directory and environment."""
    return command, log.resolve(), Path.cwd(), {name: os.environ[name] for name in FORWARDED if name in os.environ}


def lost(log: Path, error: BaseException) -> int:
    """The exit code of a run whose worker was lost. Writes the reason to the run's log."""
    with contextlib.suppress(OSError), log.open("a") as file:
        file.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
    return KILLED


class Ray:
    """Runs each process as a Ray task: in the cluster at `launcher.address`, in one that Ray finds, or on this machine.

    If there are GPUs, each runs `launcher.per_gpu` tasks at a time; 0 uses no GPU and runs one task per core.
    """

    def __init__(self, jobs: int | None, folder: Path, per_gpu: int = PER_GPU, **options: Any) -> None:
        ray: Any = importlib.import_module("ray")
        self.ray = ray
        ray.init(**{"log_to_driver": False, "include_dashboard": False, "logging_level": "error"} | options)
        resources = ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)) if per_gpu else 0, int(resources.get("CPU", 1))
        self.places: list[str | None] = [None] * (jobs or per_gpu * gpus or cpus)
        self.gpus = min(gpus, len(self.places))
        self.task = ray.remote(num_cpus=1, num_gpus=1 / per_gpu if gpus else 0, max_retries=0)(execute)

    def start(self, command: list[str], log: Path, device: str | None) -> Process:
        return RayProcess(self.ray, self.task.remote(*arguments(command, log)), log)

    def close(self) -> None:
        self.ray.shutdown()


class RayProcess:
    """A Ray task."""

    def __init__(self, ray: Any, task: Any, log: Path) -> None:
        self.ray, self.task, self.log = ray, task, log

    def poll(self) -> int | None:
        if not self.ray.wait([self.task], timeout=0)[0]:
            return None
        try:
            return int(self.ray.get(self.task))
        except self.ray.exceptions.RayError as error:  # the worker or its machine was lost, or it was cancelled
            return lost(self.log, error)

    def interrupt(self) -> None:
        self.ray.cancel(self.task, force=False)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)


class Slurm:
    """Submits each process as a Slurm job, by submitit: `launcher.slurm_partition`, `launcher.gpus_per_node`, ...

    A job that reaches its time limit, `launcher.timeout_min`, leaves a checkpoint and is queued again.
    """

    def __init__(self, jobs: int | None, folder: Path, cluster: str = "slurm", **options: Any) -> None:
        submitit: Any = importlib.import_module("submitit")
        self.places: list[str | None] = [None] * (jobs or QUEUED)
        asked = {key: value for key, value in options.items() if value and re.search("gpu|gres|additional", key)}
        self.gpus = 1 if "gpu" in str(asked) else 0  # only Slurm knows how many there are
        self.executor = submitit.AutoExecutor(folder / "submitit", cluster=cluster)
        self.executor.update_parameters(**{"name": "zoo", "cpus_per_task": 1, "timeout_min": DAY} | options)

    def start(self, command: list[str], log: Path, device: str | None) -> Process:
        return SlurmProcess(self.executor.submit(execute, *arguments(command, log)), log)

    def close(self) -> None:
        pass


class SlurmProcess:
    """A Slurm job."""

    def __init__(self, job: Any, log: Path) -> None:
        self.job, self.log, self.cancelled = job, log, False

    def poll(self) -> int | None:
        if not self.job.done():
            return None
        if self.cancelled:  # perhaps before it began: submitit would wait for a result
            return KILLED
        try:
            return int(self.job.result())
        except Exception as error:  # it was ended by a limit, a lost machine or scancel
            return lost(self.log, error)

    def interrupt(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self.job.cancel()
        self.cancelled = True
        self.job.watcher.register_job(self.job.job_id)  # otherwise submitit asks Slurm only every ten minutes

    def kill(self) -> None:
        self.interrupt()


LAUNCHERS: dict[str, Callable[..., Launcher]] = {"local": Local, "ray": Ray, "slurm": Slurm}
