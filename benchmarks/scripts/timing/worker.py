"""A process that holds one subject: it builds it, then runs as many updates as it is asked to.

    PYTHON worker.py FILE FUNCTION ARGUMENTS

FUNCTION of FILE, called with ARGUMENTS (JSON, by name), gives what is timed: a callable that takes a number of updates.
Each line of standard input is such a number, and is answered with a line of JSON: the seconds they took, the process's
peak memory (on a GPU, what PyTorch allocated there), the versions of what it has imported, and which library serves the
zoo's linear layers. Needs nothing but Python, so that a peer may have an environment of its own.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

LIBRARIES = {
    "torch": "torch", "jax": "jax", "d3rlpy": "d3rlpy", "stable_baselines3": "stable-baselines3", "sbx": "sbx-rl",
    "torchrl": "torchrl", "gymnasium": "gymnasium", "envpool": "envpool",
}  # fmt: skip


def load(path: Path) -> Any:
    """A file as a module."""
    spec = importlib.util.spec_from_file_location(f"subject_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def on_gpu() -> Any:
    """`torch.cuda`, if this process uses it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_initialized() else None


def peak() -> float | None:
    """The most memory, in MB, that this process has had resident, or on a GPU; None where the system is not Linux."""
    if cuda := on_gpu():
        return float(cuda.max_memory_allocated()) / 1e6
    status = Path("/proc/self/status")  # not getrusage, which continues from the parent's
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else None


def main() -> None:
    """Serves until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not stand between the answers
    file, function, arguments = sys.argv[1:]
    del sys.argv[1:]  # JAX-CORL reads them
    run = getattr(load(Path(file)), function)(**json.loads(arguments))
    for line in sys.stdin:
        begun = time.perf_counter()
        run(int(line))
        if cuda := on_gpu():
            cuda.synchronize()
        seconds = time.perf_counter() - begun
        imported = {name: importlib.metadata.version(name) for key, name in LIBRARIES.items() if key in sys.modules}
        linear = sys.modules.get("zoo.nn.linear")
        choices = linear.choices if linear else {}
        answer = {"seconds": seconds, "peak": peak(), "versions": imported, "linear": choices}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
