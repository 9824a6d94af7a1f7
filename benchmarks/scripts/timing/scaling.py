"""How the cost of an update scales with the batch size, network width, dataset size and number of environments."""

from argparse import Namespace
from collections.abc import Iterator

from zoo.benchmarks.scripts.timing.rounds import Subject, Table
from zoo.benchmarks.scripts.timing.tables import installed, zoo

BATCH_SIZES = (64, 256, 1_024, 4_096)
WIDTHS = (64, 256, 512, 1_024)
TRANSITIONS = (100_000, 1_000_000, 10_000_000)
NUM_ENVS = (1, 4, 16, 64)
ROLLOUT = 2_048  # total steps of all environments


def scaling(_: Namespace) -> Iterator[Table]:
    note = "Two hidden layers of 256."
    yield Table("IQL by batch size, updates", 10, each("batch_size", BATCH_SIZES), note=note)
    note = "Batches of 256, and two hidden layers of the given width."
    yield Table("IQL by width, updates", 10, each("hidden", WIDTHS), note=note)
    data = {f"zoo, transitions={size:,}": {"transitions": size} for size in TRANSITIONS}
    data["zoo, the last in files"] = {"transitions": TRANSITIONS[-1], "mapped": True}
    subjects = {name: Subject("offline.py", "updates", {"algo": "iql"} | given) for name, given in data.items()}
    note = (
        "The last row is a `Dataset` of arrays that NumPy maps from files. The files have just been written, so the "
        "system still has them in its cache. The memory is mostly pages of the files, which the system can reclaim. "
        "Mapped arrays work from Python; `zoo run` reads its datasets into memory. A dataset larger than the memory "
        "was not measured."
    )
    yield Table("IQL by transitions of the dataset, updates", 60, subjects, note=note)
    note = "One update per environment step, however many environments there are: only acting is shared."
    subjects = environments("off_policy", algo="sac")
    yield Table("SAC on Hopper-v5 by environments, steps", NUM_ENVS[-1], subjects, note=note)
    note = f"Rollouts of {ROLLOUT:,} steps of all environments together, with 320 gradient steps after each."
    yield Table("PPO on Hopper-v5 by environments, steps", 1, environments("on_policy"), ROLLOUT, note)


def each(setting: str, values: tuple[int, ...]) -> dict[str, Subject]:
    """IQL with each value of a setting."""
    subjects: dict[str, Subject] = {}
    for value in values:
        subjects |= zoo("offline.py", "updates", f"zoo, {setting}={value}", algo="iql", **{setting: value})
    return subjects


def environments(function: str, **arguments: str) -> dict[str, Subject]:
    """An algorithm with each number of environments, in Gymnasium and EnvPool."""
    subjects = {}
    for backend in ("gymnasium", "envpool") if installed("envpool") else ("gymnasium",):
        for number in NUM_ENVS:
            steps = {"num_steps": ROLLOUT // number} if function == "on_policy" else {}
            given = {"num_envs": number, "backend": backend, **steps, **arguments}
            subjects[f"zoo, {backend}, num_envs={number}"] = Subject("online.py", function, given)
    return subjects
