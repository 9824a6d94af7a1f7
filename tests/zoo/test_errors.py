"""What goes wrong with a file is one line."""

import errno

import pytest
import torch

from zoo import checkpoint
from zoo.errors import guarded


def test_a_file_that_the_system_refuses_is_a_failure_in_one_line(capsys):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "runs/a")

    assert guarded(refused) == 1
    assert capsys.readouterr().err == "zoo: runs/a: Permission denied\n"


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
