"""Files are written whole or not at all, whoever else writes them or was killed on the way."""

import os
import subprocess
import sys

from zoo.files import replacing, replacing_path


def test_two_processes_that_write_one_file_do_not_mix_what_they_write(tmp_path, monkeypatch):
    file = tmp_path / "file"
    with replacing(file) as first:
        first.write(b"first, ")
        first.flush()
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: 1)
            with replacing(file) as second:
                second.write(b"second")
        assert file.read_bytes() == b"second"
        first.write(b"and last")
    assert file.read_bytes() == b"first, and last"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_deleted_when_the_file_is_written_again(tmp_path):
    file, other = tmp_path / "file", tmp_path / "file.pt.7.partial"
    code = (
        "import os, signal, sys; from pathlib import Path; from zoo.files import replacing\n"
        "with replacing(Path(sys.argv[1])): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, file], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    other.write_bytes(b"another file's")
    with replacing(file) as place:
        place.write(b"whole")
    assert sorted(tmp_path.iterdir()) == [file, other]
    assert file.read_bytes() == b"whole"


def test_a_file_that_is_written_by_path_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    file, synced, fsync = tmp_path / "file", [], os.fsync

    def spy(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, file.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    with replacing_path(file) as partial:
        partial.write_bytes(b"whole")
    assert synced == [(file.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
