"""What goes wrong with a file is one line."""

import errno

import pytest

from zoo.errors import guarded


def test_a_file_that_the_system_refuses_is_a_failure_in_one_line(capsys):
    def refused():
        raise PermissionError(errno.EACCES, "Permission denied", "runs/a")

    assert guarded(refused) == 1
    assert capsys.readouterr().err == "zoo: runs/a: Permission denied\n"


def test_what_is_no_files_error_is_a_traceback():
    with pytest.raises(OSError, match="no file"):
        guarded(lambda: (_ for _ in ()).throw(OSError("no file")))
