"""Series: a recorded multivariate stream to predict: `series/hopper`, or a file.

`series/hopper` comes with the zoo: the observations and rewards of 12,000 steps of the embedded dataset `hopper/demo`,
starting at its 24,000th, while the agent that made it was learning and often fell. `series/NAME` is any other CSV file,
`NAME.csv` or `NAME.csv.gz` in the working directory: a line of names, then numbers; the last column is to be predicted,
and a column `date` is left out. The ETT data have this layout (Zhou et al. 2021, arXiv 2012.07436; github
zhouhaoyi/ETDataset); Elsayed et al. 2024 (arXiv 2410.14606) evaluate Stream TD on them.

An observation is a trace of each column: its mean so far with weights that decay by 0.999 per step, as in that paper.
The reward is the last column in the row after the next observation's, scaled to [0, 1] over the file. At its end, the
stream restarts; an episode is 1,000 steps of it. A reset with a seed begins anywhere, one without continues.
"""

import csv
import gzip
import re
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

IDS = "series/<name>"
PREFIX = "series/"
TRACE_DECAY = 0.999
EPISODE = 1_000


def find(env_id: str, folder: Path = Path()) -> Path:
    """The file of a series: one shipped with the zoo, or one in a folder. Raises ValueError if there is none."""
    name = env_id.removeprefix(PREFIX)
    shipped = Path(__file__).parent / "data"
    for place in (shipped, folder):
        for suffix in (".csv", ".csv.gz"):
            if (place / (name + suffix)).is_file():
                return (place / (name + suffix)).absolute()
    names = ", ".join(sorted(path.name.removesuffix(".csv.gz") for path in shipped.iterdir()))
    raise ValueError(
        f"env={PREFIX}{name}: there is no {name}.csv here. The zoo has {names}. Try: env={PREFIX}{names.split(',')[0]}"
    )


@cache
def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The observed traces `[T, columns]`, and the rewards `[T]` for arriving at each row.

    Raises:
        ValueError: the file has another layout, or is too short.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header, lines = next(reader, []), [(reader.line_num, line) for line in reader if line]
        columns = [i for i, name in enumerate(header) if name != "date"]
        if not columns:
            raise ValueError("it has no columns but dates")
        if all(map(is_number, header)):
            raise ValueError("its first line is of numbers")
        for number, line in lines:
            if len(line) != len(header):
                raise ValueError(f"line {number} has {len(line)} values below {len(header)} names")
        rows = np.array([[float(line[i]) for i in columns] for _, line in lines])
    except (OSError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is not a table of numbers below one line of names: {error}") from error
    if len(rows) < 3 or not np.isfinite(rows).all():
        raise ValueError(f"{path} must have three rows or more, all of numbers that are finite; it has {len(rows)}")
    traces = np.empty_like(rows)
    mean = np.zeros(rows.shape[1])
    for i, row in enumerate(rows):
        mean = TRACE_DECAY * mean + (1 - TRACE_DECAY) * row
        traces[i] = mean / (1 - TRACE_DECAY ** (i + 1))
    target = rows[:, -1]
    scaled = (target - target.min()) / max(np.ptp(target), 1e-12)
    return traces.astype(np.float32), np.roll(scaled, -1)


def is_number(text: str) -> bool:
    """Whether the text can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


class Series(gymnasium.Env[np.ndarray, np.int64]):
    """Observes `[columns]`. There is one action, which does nothing."""

    def __init__(self, path: Path) -> None:
        self._obs, self._reward = load(path)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._obs.shape[1:], np.float32)
        self.action_space = gymnasium.spaces.Discrete(1)
        self.at = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.at = int(self.np_random.integers(len(self._obs)))
        return self._obs[self.at], {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at = (self.at + 1) % len(self._obs)
        return self._obs[self.at], float(self._reward[self.at]), False, False, {}


def path(env_id: str) -> Path:
    """The file of a registered series."""
    file: Path = gymnasium.spec(env_id).kwargs["path"]
    return file


def register(env_id: str, folder: Path = Path()) -> None:
    """Registers a series, whose file is in a folder, with Gymnasium. Raises ValueError if there is none."""
    if env_id not in gymnasium.registry:
        name = env_id.removeprefix(PREFIX)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"env={env_id}: a series is named by letters, digits, ., _ and - only. Rename the file.")
        file = find(env_id, folder)
        gymnasium.register(env_id, "zoo.envs.series:Series", kwargs={"path": file}, max_episode_steps=EPISODE)
