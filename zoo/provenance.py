"""What a reader needs to know to repeat a run or a dataset elsewhere."""

import hashlib
import os
import platform
import re
import subprocess
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

import zoo
from zoo.registry import Algorithm, folder

PACKAGES = ("torch", "gymnasium", "mujoco", "numpy", "minari")


def commit() -> str | None:
    """The commit of the checkout that this code runs from, if it does."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or None


def processor() -> str:
    """Its name, where it is known: another one may round otherwise."""
    known = Path("/proc/cpuinfo")  # Linux's; platform.processor() is empty there
    named = re.search(r"^model name\s*: (.+)$", known.read_text(), re.MULTILINE) if known.exists() else None
    return named[1] if named else platform.processor()


@cache
def code_version(algorithm: Algorithm) -> str:
    """Digest of the algorithm's file and of everything in `zoo/` and `envs/`."""
    digest = hashlib.sha256()
    shared = [sorted(place.glob("*.py")) for place in (folder("envs"), Path(zoo.__file__).parent)]
    for path in [*chain(*shared), algorithm.path]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def provenance(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm file, code, versions, commit and hardware, as `run.json` holds them."""
    import torch

    return {
        "algorithm": {
            "name": algorithm.name,
            "file": None if algorithm.is_own else str(algorithm.path),
            "sha256": hashlib.sha256(algorithm.path.read_bytes()).hexdigest(),
        },
        "code": code_version(algorithm),
        "commit": commit(),
        "versions": {"zoo": zoo.__version__, "python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        "hardware": {
            "machine": platform.machine(),
            "processor": processor(),
            "cpus": os.cpu_count(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }
