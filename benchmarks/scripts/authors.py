"""What the comparisons with other authors' code share: how far results may differ, and the report."""

from collections.abc import Iterable

import numpy as np

LIMIT = 1e-5  # largest relative difference of losses and of weights' changes


def largest(differences: Iterable[float]) -> float:
    """The largest difference, or NaN if one is NaN, which `max` may drop."""
    return float(np.max([*differences]))


def report(found: dict[str, float]) -> int:
    """Prints every difference. Returns the exit code: 1 if one is above `LIMIT` or NaN."""
    for name, difference in found.items():
        print(f"{name:<50} {difference:.1e}{'' if difference <= LIMIT else '  DIFFERS'}")
    worst = largest(found.values())
    print(f"largest relative difference: {worst:.1e} (tolerance {LIMIT:.0e})", flush=True)
    return int(not worst <= LIMIT)
