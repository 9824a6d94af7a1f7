"""A zoo of deep-RL and offline-RL algorithms: one algorithm, one file."""

import csv
import sys
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Interrupted", "RunError", "UsageError", "evaluate", "load", "make_envs", "resume", "train"]

NO_WINDOWS = "Linux or macOS is needed. On Windows: in WSL, https://learn.microsoft.com/windows/wsl"

csv.field_size_limit(2**31 - 1)  # an evaluation's returns are one cell of arbitrary length

if TYPE_CHECKING:
    from zoo.api import Interrupted, RunError, UsageError, evaluate, load, make_envs, resume, train


def __getattr__(name: str) -> Any:
    if name in __all__:  # imported on first use: they import torch, which takes seconds
        if sys.platform == "win32":
            raise ImportError(NO_WINDOWS)
        import zoo.api

        return getattr(zoo.api, name)
    raise AttributeError(f"module 'zoo' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
