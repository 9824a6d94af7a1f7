"""Whether what runs is being traced, operation by operation: an update of many agents, or a policy to be exported."""

import contextlib
from collections.abc import Iterator

active = False


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Within it layers and optimizers do without what has no rule for a batch of agents: fused or measured kernels."""
    global active
    active = True
    try:
        yield
    finally:
        active = False
