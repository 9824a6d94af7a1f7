"""The process of one subject: builds the subject, then runs the requested numbers of updates.

    PYTHON worker.py FILE FUNCTION ARGUMENTS

FUNCTION in FILE is called with ARGUMENTS (JSON, by name) and returns the function to time, which takes a number of
updates. Each line of standard input is such a number. The answer is a line of JSON: the seconds that the updates took,
the process's peak memory (on a GPU, what PyTorch allocated there), the versions of its imports, and the library for the
zoo's linear layers. This file needs only Python, so that another library can have its own environment.
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
    """Loads a file as a module."""
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
    """This process's peak memory in MB, resident or on a GPU; None if the system is not Linux."""
    if cuda := on_gpu():
        return float(cuda.max_memory_allocated()) / 1e6
    status = Path("/proc/self/status")  # getrusage would include the parent's peak
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else None


def main() -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' output must not mix with the answers
    file, function, arguments = sys.argv[1:]
    del sys.argv[1:]  # JAX-CORL would read them
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
