"""A finished run: its task, its method and its figures.

A run has three figures: `final`, its last evaluation; `best`, its best evaluation, which is selected on the evaluation
episodes; and `area`, the mean of all evaluations, whatever the number of steps between them. Evaluations have other
seeds than training.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zoo.benchmarks.suite import ELSEWHERE, digest
from zoo.data.catalog import parse_mixture
from zoo.data.corruption import CorruptionConfig
from zoo.data.samplers import USED_BY
from zoo.envs import EnvConfig
from zoo.envs.config import DYNAMICS
from zoo.errors import UsageError, quoted
from zoo.settings.compose import compose
from zoo.settings.config import flat
from zoo.settings.overrides import as_overrides, typed
from zoo.settings.registry import algorithms

FIGURES = ("final", "best", "area")
MEASURES = {
    "score": "normalized score", "return_mean": "return", "value_error": "value error",
    "training_return": "return of training episodes",
}  # fmt: skip
LEAST_IS_BEST = ("value_error",)  # measures of which lower is better; of all others, higher is better
REFERENCES = ("random_score", "expert_score")
# settings that distinguish methods: what they learn from and how, how long they are run and how
RUNS = ("init_from", "base", "corruption.critic")  # settings that name another run, perhaps another one for each seed
OF_ONLINE = ("online_starts", "online_updates", "online_fraction", "base_mode", "base_scale", *RUNS)
OF_LEARNING = ("algo.", "sampler.", "reward_scale", "reward_shift", *OF_ONLINE)
EVALUATED = ("eval_every", "eval_episodes", "eval_deterministic")
SIMULATOR = "env.backend"  # for runs in MuJoCo Warp, which differs from Gymnasium's MuJoCo
METHOD = (*OF_LEARNING, "steps", "online_steps", "num_envs", "matmul_precision", *EVALUATED)


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        dir: the run's folder; for an archived run, its path as if the archive were a folder of runs.
        record: the content of its `run.json`.
        steps: the steps of its evaluations.
        columns: the columns of `evaluations.csv` with numbers, of the same length; NaN for a missing number.
        seconds: the seconds of training up to each evaluation; NaN if unknown.
        archive: the CSV file that it was read from, if not from its folder.
        setting: the environment, with its changed settings: `hopper`, `pong, sticky=0.25`.
        data: the dataset and its corruption: `medium, random-obs`; empty without a dataset.
        returns: the returns of the episodes of the last evaluation `[E]`; empty if unknown.
        method: the method: `iql`, with the settings that distinguish it from others of the same algorithm.
        apart: those settings in `RUNS` whose runs also need a digest of their settings, because others have their name.
    """

    dir: Path
    record: dict[str, Any]
    steps: np.ndarray
    columns: dict[str, np.ndarray]
    seconds: np.ndarray
    archive: Path | None = None
    returns: np.ndarray = field(default_factory=lambda: np.empty(0))
    setting: str = ""
    data: str = ""
    method: str = ""
    apart: frozenset[str] = frozenset()

    @property
    def source(self) -> Path:
        """The file or folder that it was read from."""
        return self.archive or self.dir

    @property
    def task(self) -> str:
        """The name of its task: `hopper, medium, random-obs`."""
        return ", ".join(filter(None, (self.setting, self.data)))

    @property
    def config(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.record["config"]
        return settings

    @property
    def algo(self) -> str:
        return str(self.config["algo"]["name"])

    @property
    def env(self) -> str:
        return str(self.config["env"]["name"])

    @property
    def dataset(self) -> str:
        """The name of its dataset; empty for a run without one."""
        return str(self.config.get("dataset") or "") if self.record.get("dataset") else ""

    @property
    def corruption(self) -> dict[str, Any] | None:
        """The corruption of its dataset, if any."""
        given: dict[str, Any] = self.config.get("corruption") or {"name": CorruptionConfig.name}
        return given if given["name"] != CorruptionConfig.name else None

    @property
    def altered(self) -> dict[str, Any]:
        """Changed settings of the environment: the length of episodes, arguments, sticky actions, the dynamics."""
        usual = vars(EnvConfig())
        names = ("max_episode_steps", "sticky", *DYNAMICS, "changed_in")
        env = {**usual, **self.config["env"]}
        changed = {name: env[name] for name in names if env[name] != usual[name]}
        return changed | flat(env["kwargs"], "kwargs.")

    @property
    def references(self) -> dict[str, float]:
        """The reference scores of its normalized scores; empty if it has none."""
        found = {name: self.config["env"].get(name) for name in REFERENCES}
        return {} if None in found.values() else found

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def peer(self) -> str:
        """The run's library; empty for the zoo."""
        return str(self.record.get("peer") or "")

    @property
    def file(self) -> str:
        """The algorithm file, if it is not one of the zoo's."""
        return str((self.record.get("algorithm") or {}).get("file") or "")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the method, flat. Runs that it began with are named without their seed; see `apart`."""
        chosen = {k: v for k, v in flat(self.config).items() if k.startswith(METHOD) and k != "algo.name"}
        for name, run_dir in self.begun_with.items():
            origin = [self.origins[name]] if name in self.apart and name in self.origins else []
            chosen[name] = "-".join([seedless(run_dir), *origin])
        if "algo.expert" in chosen:
            chosen["algo.expert"] = bare(chosen["algo.expert"])
        return used(chosen) | ({SIMULATOR: "warp"} if self.config["env"].get("backend") == "warp" else {})

    @property
    def begun_with(self) -> dict[str, str]:
        """The folders of other runs that it began with, keyed by the setting that names them."""
        settings = flat(self.config)
        return {name: settings[name] for name in RUNS if settings.get(name)}

    @cached_property
    def origins(self) -> dict[str, str]:
        """A digest of the settings of each of these runs, without the seed; none if the run's folder is missing."""
        if "origins" in self.record:  # from an archive
            return dict(self.record["origins"])
        found = {}
        for name, run_dir in self.begun_with.items():
            try:
                record = json.loads(Path(self.record.get("folder") or "", run_dir, "run.json").read_text())
                other = Result(Path(run_dir), record, np.empty(0), {}, np.empty(0))
                task = other.config["env"]["id"], other.altered, other.dataset, other.corruption
                found[name] = digest([other.algo, *task, other.settings])[:6]
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    @cached_property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults or from the run's preset; all settings for a user's own file."""
        usual = {} if self.file else self.usual(self.config.get("preset"))
        return {key: value for key, value in self.settings.items() if (key, value) not in usual.items()}

    def usual(self, preset: str | None = None) -> dict[str, Any]:
        """All settings, flat, of its algorithm and task with a preset; empty if the preset has none for them."""
        given = {"preset": preset, "dataset": self.dataset, "corruption": (self.corruption or {}).get("name")}
        more = as_overrides({key: value for key, value in given.items() if value}) if preset else []
        env = environment(self.config)
        return defaults(self.algo, env, tuple(more)) or defaults(self.algo, env, tuple(more[:1]))  # without the data

    @property
    def unfinished(self) -> str:
        """A message if its evaluations end before its last step; otherwise empty, as for another library's run."""
        due = int(self.config["steps"]) + int(self.config["online_steps"])
        if self.peer or self.steps[-1] >= due:
            return ""
        return f"its evaluations end at {self.steps[-1]:,} of {due:,} steps"

    @property
    def scores(self) -> np.ndarray:
        """Normalized scores of the episodes of the last evaluation `[E]`; empty if unknown."""
        scores = EnvConfig(**self.config["env"]).normalize(self.returns) if len(self.returns) else None
        return np.empty(0) if scores is None else np.asarray(scores)

    @property
    def measure(self) -> str:
        """The column by which the run is compared: the normalized score offline, the return online."""
        if "value_error" in self.columns:
            return "value_error"
        known = "score" in self.columns and not np.isnan(self.columns["score"]).any()
        return "score" if self.dataset and known else "return_mean"

    def figure(self, name: str, measure: str | None = None) -> float:
        """`final`, `best`, `area`, or `last3`, the mean of the last three evaluations."""
        measure = measure or self.measure
        values = self.columns[measure]
        known = values[~np.isnan(values)]
        if name == "final" or not len(known):
            return float(values[-1])
        if name in ("area", "last3"):
            return float(known[-3 if name == "last3" else 0 :].mean())
        return float(known.min() if measure in LEAST_IS_BEST else known.max())

    @property
    def command(self) -> str:
        """The command that repeats the run; empty for another library's run."""
        if self.peer:
            return ""
        env = environment(self.config)
        start, named, usual = "zoo run", {"algo": self.algo, "env": env}, defaults(self.algo, env)
        if self.file:  # its own defaults are not read, because that would run the file
            start, named = f"python {quoted(self.file)}", {"env": env}
            zoos = defaults(next(iter(algorithms())), env)
            usual = {key: value for key, value in zoos.items() if not key.startswith("algo.")}
        named_apart = (*ELSEWHERE, "preset", "algo.name", "env.id", "env.name")
        changed = {k: v for k, v in flat(self.config).items() if k not in named_apart and (k, v) not in usual.items()}
        for group in ("sampler", "corruption"):
            if any(key.startswith(f"{group}.") for key in changed):  # these are typed with the group's name
                named[group] = self.config[group]["name"]
                changed.pop(f"{group}.name", None)
        return " ".join([start, *map(typed, as_overrides(named | changed))])

    @property
    def identity(self) -> str:
        """A digest of everything that the run's results depend on, to the last bit."""
        settings = {key: value for key, value in self.config.items() if key not in ELSEWHERE or key == "threads"}
        code = [self.record.get(key) for key in ("peer", "code", "versions", "hardware", "compiled", "linear", "seeds")]
        given = dict.fromkeys(("dataset", "demonstrations"), "fingerprint")
        given |= dict.fromkeys(("init_from", "base", "critic"), "checkpoint")
        data = [(self.record.get(name) or {}).get(key) for name, key in given.items()]
        known = algorithms().get(self.algo)
        acts = not data[0] or bool(self.config.get("online_steps")) or (known is not None and known.setting == "online")
        # not all simulators can resume in the middle of an episode; MuJoCo Warp's steps on a GPU are not reproducible
        cut = "resumed" in self.record and acts
        warp = self.config["env"].get("backend") == "warp" and (self.record.get("hardware") or {}).get("gpu")
        own = self.record.get("id", True) if cut or warp else None
        return digest([settings, code, data, self.record.get("series"), own])


def used(settings: dict[str, Any]) -> dict[str, Any]:
    """Flat settings without those that the chosen sampler does not use."""
    sampler = settings.get("sampler.name")
    unused = {f"sampler.{name}" for name, samplers in USED_BY.items() if sampler not in samplers}
    return {key: value for key, value in settings.items() if key not in unused}


def seedless(run_dir: str) -> str:
    """The name of a run's folder without its seed."""
    return Path(re.sub(r"-?seed\d+[^/]*", "", run_dir)).name


def bare(dataset: str) -> str:
    """The name of a dataset or mixture. Absolute paths of files become the files' names."""
    parts = [(part.amount, part.name) for part in parse_mixture(dataset)]
    return "+".join(amount + (Path(name).name if Path(name).is_absolute() else name) for amount, name in parts)


def shared(record: dict[str, Any]) -> dict[str, Any]:
    """A run's record without the paths of the machine that it ran on. Only names are kept."""
    config = {**record["config"], "run_dir": None}
    config |= {name: seedless(config[name]) for name in RUNS if config.get(name)}
    if config.get("dataset"):
        config["dataset"] = bare(config["dataset"])
    if config["algo"].get("expert"):
        config["algo"] = config["algo"] | {"expert": bare(config["algo"]["expert"])}
    if (config.get("corruption") or {}).get("critic"):
        config["corruption"] = config["corruption"] | {"critic": seedless(config["corruption"]["critic"])}
    record = {key: value for key, value in record.items() if key != "folder"} | {"config": config}
    if (record.get("algorithm") or {}).get("file"):
        file = Path(record["algorithm"]["file"])  # with its folder's name: two files may have the same name
        record["algorithm"] = record["algorithm"] | {"file": str(Path(file.parent.name, file.name))}
    if record.get("notes"):
        record["notes"] = [re.sub(r"(?<![\w.])/[^\s+]*/", "", note) for note in record["notes"]]
    for name in ("dataset", "demonstrations"):
        if (record.get(name) or {}).get("sources"):
            sources = [{"name": bare(one["name"]), "kind": one["kind"]} for one in record[name]["sources"]]
            record[name] = record[name] | {"name": bare(record[name]["name"]), "sources": sources}
    return record


def environment(config: dict[str, Any]) -> str:
    """The value of `env=` that names a run's environment."""
    return EnvConfig(config["env"]["id"], config["env"]["name"]).argument


@cache
def defaults(algo: str, env: str, more: tuple[str, ...] = ()) -> dict[str, Any]:
    """The default settings of an algorithm on an environment, flat; empty if the zoo does not have them."""
    try:
        return flat(compose([f"algo={algo}", f"env={env}", *more])[2])
    except UsageError:
        return {}
