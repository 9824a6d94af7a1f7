"""Errors with files are reported in one line."""

import errno
import os
import shutil
import signal
import stat
from pathlib import Path

import pytest
import torch

from zoo import checkpoint
from zoo.cli import main
from zoo.errors import Interrupted, UsageError, guarded
from zoo.files import replacing
from zoo.machine import cache_dir
from zoo.runs.interruption import Interruption
from zoo.runs.terminal import Terminal


def test_a_file_that_the_system_refuses_is_a_failure_in_one_line(capsys):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "runs/a")

    assert guarded(refused) == 1
    assert capsys.readouterr().err == "zoo: runs/a: Permission denied\n"


def test_a_message_with_control_characters_is_still_one_line_of_text(capsys):
    def refused():
        raise UsageError("array \x1b[2J\x07 of\na file")

    assert guarded(refused) == 2
    assert capsys.readouterr().err == "zoo: array ?[2J? of a file\n"


def test_a_pipe_whose_reader_has_gone_changes_no_exit_code(monkeypatch):
    class Gone:
        def write(self, _):
            raise BrokenPipeError

    def interrupted():
        raise Interrupted("interrupted")

    replaced = []
    monkeypatch.setattr("os.dup2", lambda _, number: replaced.append(number))
    monkeypatch.setattr("sys.stderr", Gone())
    assert guarded(interrupted) == 130
    assert replaced == [2]


def test_a_run_is_asked_to_stop_though_nobody_reads_of_it(monkeypatch):
    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr("os.write", gone)
    raised = []
    monkeypatch.setattr("signal.raise_signal", raised.append)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    interruption = Interruption()
    assert not Interruption.came
    with interruption:
        interruption._ask(signal.SIGINT, None)
        Terminal().on_broken_pipe()  # as it prints its last evaluation
    assert interruption.asked
    assert not raised  # which would end it at once
    Interruption()  # of the next run
    assert not Interruption.came


def test_a_signal_whose_handler_is_not_pythons_is_left_to_it(monkeypatch):
    set_by_c = signal.SIGTERM
    monkeypatch.setattr("signal.getsignal", lambda number: None if number == set_by_c else signal.SIG_DFL)
    taken = []
    monkeypatch.setattr("signal.signal", lambda number, handler: taken.append(number) or signal.SIG_DFL)
    with Interruption():
        assert taken == [signal.SIGINT]
    assert taken == [signal.SIGINT, signal.SIGINT]  # given back


def test_what_is_no_files_error_is_a_traceback():
    with pytest.raises(OSError, match="no file"):
        guarded(lambda: (_ for _ in ()).throw(OSError("no file")))


def test_a_full_memory_is_not_taken_for_a_damaged_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "a.pt", {"x": torch.ones(2)})

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("torch.load", full)
    with pytest.raises(torch.OutOfMemoryError):
        checkpoint.load(tmp_path / "a.pt")


# --- Unusual file systems ---


def test_a_file_is_written_where_folders_cannot_be_synced(tmp_path, monkeypatch):
    sync, synced = os.fsync, []

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with replacing(tmp_path / "file") as file:
        file.write(b"new")
    assert len(synced) == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"new")]


def test_a_run_that_cannot_begin_says_why_where_open_files_cannot_be_deleted(tmp_path, monkeypatch, capsys):
    """NFS keeps an open file, such as a run's lock, until it is closed."""
    unlink = Path.unlink

    def kept(path, *args, **options):
        if path.name == ".lock":
            raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))
        unlink(path, *args, **options)

    monkeypatch.setattr(Path, "unlink", kept)
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: kept(path / ".lock"))
    assert main(["run", "algo=bc", "env=pendulum", "dataset=nothing", f"run_dir={tmp_path / 'run'}"]) == 2
    assert "dataset=nothing does not exist" in capsys.readouterr().err


def test_a_user_without_a_home_is_told_to_set_one(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(UsageError, match="Set HOME"):
        cache_dir()
