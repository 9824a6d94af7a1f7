"""Runs the `zoo` command: in this process, or in a separate process if the test kills it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from zoo.cli import main

QUICK = ("eval_episodes=2", "logger=none", "algo.hidden=[16]", "algo.batch_size=32")


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


def call(*arguments: object) -> Result:
    """Runs `zoo` with the given arguments in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """`zoo("run", ...)` in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    return call


@pytest.fixture(scope="session")
def train(tmp_path_factory, pendulum_file):
    """`train(name, *overrides)`: the folder of a short finished offline run on Pendulum."""

    def run(name: str, *overrides: str) -> Path:
        run_dir = tmp_path_factory.mktemp("runs") / name
        result = call("run", "env=pendulum", f"dataset={pendulum_file}", f"run_dir={run_dir}", *QUICK, *overrides)
        assert result.code == 0, result.err
        return run_dir

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """`trained("sac", "pendulum", *overrides)`: the folder of a short run, cached by its arguments."""
    made: dict[tuple[str, ...], Path] = {}

    def run(algo: str, env: str, *overrides: str) -> Path:
        if (algo, env, *overrides) not in made:
            run_dir = tmp_path_factory.mktemp("trained") / algo
            settings = (f"run_dir={run_dir}", "logger=none", "eval_episodes=1", *overrides)
            result = call("run", f"algo={algo}", f"env={env}", *settings)
            assert result.code == 0, result.err
            made[(algo, env, *overrides)] = run_dir
        return made[(algo, env, *overrides)]

    return run


@pytest.fixture(scope="session")
def finished(train) -> Path:
    """A finished run of IQL on normalized observations. Tests must not write to its folder."""
    return train(
        "finished", "algo=iql", "steps=300", "eval_every=100", "checkpoint_every=100", "log_every=50", "seed=3",
        "algo.normalize_obs=true", "logger=tensorboard", "keep_agents=true", "env.backend=gymnasium",
    )  # fmt: skip


# --- Commands in processes of their own ---

# Imports what a run needs once, then forks a child for every job, so that jobs do not spend seconds on imports.
SERVER = """
import json, os, sys
import zoo.api, zoo.algos.bc, zoo.algos.iql, zoo.algos.sac, zoo.cli
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        pid, status = os.waitpid(job["wait"], os.WNOHANG)
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    pid = os.fork()
    if pid == 0:
        os.chdir(job["cwd"])
        os.environ.update(job["environment"])
        for number, path in ((0, os.devnull), (1, job["stdout"]), (2, job["stderr"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.exit(zoo.cli.main(job["arguments"]))
    print(pid, flush=True)
"""


@dataclass
class Process:
    """A `zoo` command in a separate process."""

    server: "Server"
    pid: int
    folder: Path
    code: int | None = None

    def running(self) -> bool:
        if self.code is None:
            self.code = self.server.ask({"wait": self.pid})
        return self.code is None

    def wait(self, seconds: float = 60) -> Result:
        deadline = time.monotonic() + seconds
        while self.running():
            assert time.monotonic() < deadline, "the command did not end"
            time.sleep(0.01)
        assert self.code is not None
        return Result(self.code, (self.folder / "stdout").read_text(), (self.folder / "stderr").read_text())

    def wait_for(self, path: Path, seconds: float = 60) -> None:
        """Waits until a file exists or the process has ended."""
        deadline = time.monotonic() + seconds
        while not path.exists() and self.running():
            assert time.monotonic() < deadline, f"no {path}"
            time.sleep(0.005)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Server:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, question: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def start(server, tmp_path_factory):
    """`start("run", ...)`: the same in a separate process, which the test may watch and kill."""
    started = []

    def begin(*arguments: object, environment: dict[str, str] | None = None) -> Process:
        folder = tmp_path_factory.mktemp("process")
        job = {"arguments": [str(argument) for argument in arguments], "cwd": str(folder)}
        job["environment"] = environment or {}
        pid = server.ask(job | {"stdout": str(folder / "stdout"), "stderr": str(folder / "stderr")})
        started.append(Process(server, pid, folder))
        return started[-1]

    yield begin
    for process in started:
        if process.running():
            process.kill()
            process.wait()
