"""Whether operations are being traced: for an update of many agents, or for exporting a policy."""

import contextlib
from collections.abc import Iterator

active = False


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Inside this context, layers and optimizers avoid fused or measured kernels, which have no batching rule."""
    global active
    active = True
    try:
        yield
    finally:
        active = False
