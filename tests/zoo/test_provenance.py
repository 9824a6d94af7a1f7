from pathlib import Path

import pytest

import zoo
from zoo import provenance
from zoo.registry import Algorithm, algorithm


def versions(place: Path, envs: str, monkeypatch: pytest.MonkeyPatch, bc: Algorithm) -> str:
    """The code version of a zoo of two files, with its environments in a folder of that name."""
    for name in ("zoo/__init__.py", f"{envs}/make.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"# {Path(name).name}\n")
    monkeypatch.setattr(zoo, "__file__", str(place / "zoo/__init__.py"))
    monkeypatch.setattr(provenance, "folder", lambda name: place / envs)
    return provenance.code_version.__wrapped__(bc)


def test_the_same_code_has_one_version_as_a_checkout_and_installed(tmp_path, monkeypatch):
    bc = algorithm("bc")
    checkout = versions(tmp_path / "checkout", "envs", monkeypatch, bc)
    installed = versions(tmp_path / "installed", "zoo/envs", monkeypatch, bc)
    assert checkout == installed
    (tmp_path / "installed/zoo/envs/make.py").write_text("# changed\n")
    assert provenance.code_version.__wrapped__(bc) != installed
