"""One training run: device and seed, environments or a dataset, and the loop with logs, evaluations and checkpoints."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zoo import checkpoint
from zoo.agent import Agent, Metrics, check_optimizers
from zoo.data.corruption import Adversary
from zoo.data.dataset import Dataset
from zoo.envs import make_with_spec, time_limit
from zoo.files import save_json
from zoo.nn import linear
from zoo.returns import begin_episodes
from zoo.runs.compilation import accelerated, compiles
from zoo.runs.dataset import open_dataset, open_demonstrations
from zoo.runs.device import restore_rng, rng_state, set_up
from zoo.runs.evaluation import Episodes, evaluate, in_words, judged, summary
from zoo.runs.interruption import Interruption, interrupted
from zoo.runs.load import load_base
from zoo.runs.logging import EpisodeMeans, Latest, Logger, parse_loggers
from zoo.runs.record import spec_of
from zoo.runs.residual import Corrected, ResidualStepper, begin_at_base
from zoo.runs.start import start_from
from zoo.runs.tensor_stepper import Stepper, begin
from zoo.runs.terminal import ProgressBar, terminal
from zoo.runs.tracking import FORMAT, Stateful, Tracked, clipped, diverged
from zoo.settings.config import RunConfig
from zoo.settings.fit import check_spaces
from zoo.settings.registry import Algorithm

if TYPE_CHECKING:
    from zoo.runs.together import Together


class Run:
    """Passed to an algorithm's `train`: `envs()` or `dataset()`, `track` for its agent, `steps()` to loop over.

    Attributes:
        config: the run's settings.
        device: where tensors live.
        dir: the run's folder.
        record: the contents of `run.json`.
        spec: the environment's shapes and bounds.
        done: steps completed.
        evaluations: the episodes of each evaluation in this process, with its step.
    """

    def __init__(
        self, config: RunConfig, algorithm: Algorithm, run_dir: Path, record: dict[str, Any],
        state: dict[str, Any] | None, adversary: Adversary | None = None, together: "Together | None" = None,
    ) -> None:  # fmt: skip
        self.config, self.algorithm, self.dir, self.record = config, algorithm, run_dir, record
        self.device, self._state, self._adversary = set_up(config), state, adversary
        begun = state or {"linear": {}, "step": 0, "seconds": 0.0, "metrics": {}, "stages": {}}
        linear.begin(begun["linear"])
        self.done, self._seconds = begun["step"], begun["seconds"]
        self._metrics, self._stages = Latest(begun["metrics"]), begun["stages"]  # the passes done of each stage
        self._tracked = Tracked(run_dir, algorithm.path)
        self._agent: Agent  # the tracked one
        self._stepper: Stepper | None = None
        self._dataset: Dataset | None = None
        self._episodes = EpisodeMeans(config.info_keywords)
        self._bar: ProgressBar | None = None
        self._together = together
        self._interruption = together.interruption if together else Interruption()
        self._reported_clipping = self._restored = False
        self.evaluations: list[tuple[int, Episodes]] = []
        trained = spec_of(record) if state else None
        self._eval_envs, self.spec = make_with_spec(config.env, config.eval_episodes, config.threads, trained=trained)
        self._base = load_base(config, algorithm, self.spec, record, self.device)
        check_spaces(algorithm, self.spec, config, f"{config.env.name} has {self._eval_envs.single_action_space}")
        record["compiled"] = compiles(config, record.get("compiled"))
        self._logger = Logger(run_dir, parse_loggers(config.logger), record, self.done, self._stages if state else None)

    # --- Methods for algorithms ---------------------------------------------------------------------------------------

    def envs(self) -> Stepper:
        """The training environments, `num_envs` of them; `steps()` counts their steps."""
        self._stepper = begin(self.config, self.done, self.device, self._episodes.add)
        if self._state and self._state.get("envs"):
            self._stepper.load_state_dict(self._state["envs"])
        elif self.done > (0 if self.algorithm.setting == "online" else self.config.steps):
            self.report("the simulator cannot be put back into the middle of its episodes: new ones begin")
        return cast(Stepper, ResidualStepper(self._stepper, self._base)) if self._base else self._stepper

    def time_limit(self) -> int | None:
        """Steps after which a played episode is truncated, if any; the episodes of the data may have another limit."""
        return self.config.env.max_episode_steps or time_limit(self.config.env.id)

    def dataset(self) -> Dataset:
        """The run's dataset, checked against its environment, on the run's device."""
        begun_with = self.record["dataset"]["fingerprint"] if self._state else None
        self._dataset, self.record["dataset"] = open_dataset(
            self.config, self.spec, self.device, self._adversary, begun_with, self.report
        )
        self.save_record()
        return self._dataset

    def demonstrations(self, name: str) -> Dataset:
        """Another dataset, named by the setting `algo.expert`; checked like the run's own."""
        begun = self.record["demonstrations"]["fingerprint"] if self._state else None
        opened = open_demonstrations(name, self.config.env, self.spec, self.device, begun, self.report)
        data, self.record["demonstrations"] = opened
        self.save_record()
        return data

    def track(self, **tracked: Stateful) -> None:
        """Saves these objects with every checkpoint, by name; in a resumed run this loads them from it.

        One of them is the `agent`. It moves to the run's device, starts as `init_from` says, and its `update` compiles.
        """
        for name, one in tracked.items():
            check_optimizers(name, one)
            if name == "agent":
                assert isinstance(one, Agent)
                self._agent = one.to(self.device)
                one.update = self.compiled(one.update)  # type: ignore[method-assign]
                if self._base and not self._state:
                    begin_at_base(one)
                if self._dataset:
                    self.record["dataset"]["reward_scale"] = self._dataset.reward_scale
                if self.config.init_from is not None and not self._state:
                    self.record["init_from"] = start_from(one, self.config, self.algorithm, self.record)
            self._tracked.add(name, one)
            if self._state:
                self._tracked.load(name, self._state["tracked"], bool(self._stepper and not self._stepper.resumed))

    def compiled(self, update: Callable[..., Metrics]) -> Callable[..., Metrics]:
        """An update, of the agent or of a module in it, as one compiled graph or a CUDA graph, as `compile` says."""
        if self._together:
            return self._together.join(update, self.record["compiled"], lambda: self.done)
        return accelerated(update, self.record["compiled"], self.device)

    def report(self, line: str) -> None:
        """Prints a note, once, and keeps it under `notes` in `run.json`."""
        self._print(line)
        if line not in self.record.setdefault("notes", []):
            self.record["notes"].append(line)
        self.save_record()

    def log(self, metrics: Metrics) -> None:
        """Keeps the latest value of each metric; values are read, and the device waited for, only when a row is due."""
        self._metrics.add(metrics)

    def stage(self, name: str, passes: int, until: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Yields passes of a stage before `steps()`, such as the training of a model: 0, 1, 2, ...

        At most `passes` of them, and no more once `until` holds. After each there is a checkpoint: a resumed run
        continues with the pass that it was in. The logged metrics become a row of `<name>.csv`.
        """
        if (done := self._stages.get(name, 0)) >= passes or until():
            return
        self._begin()
        with self._interruption, self._progress(passes, done, f"passes of {name}") as bar:
            self._bar = bar
            self._print(f"{name}: up to {passes:,} passes")
            while done < passes and not until():
                mark = time.perf_counter()
                yield done
                self._stages[name] = done = done + 1
                seconds = time.perf_counter() - mark
                self._seconds += seconds
                self._logger.stage(name, done, self._values(f"in pass {done:,} of {name}"), seconds)
                self._metrics = Latest({})
                bar.update(done)
                spent = self.record.setdefault("stages", {}).setdefault(name, {"seconds": 0.0})
                spent["seconds"], spent["passes"] = round(spent["seconds"] + seconds, 2), done
                self.save_record()
                self._checkpoint()
                if self._interruption.asked:
                    raise interrupted(f"pass {done:,} of {name}", self.algorithm.command, self.dir)

    def steps(self) -> Iterator[int]:
        """Yields the number of steps done before each pass of the loop: 0, 1, 2, ... offline; by `num_envs` online.

        Between passes it handles metrics, evaluations, checkpoints and interruptions, each when it is due.
        """
        self._begin()
        if self.config.steps == self.done == 0:
            self._evaluate()  # the starting point of the online steps
        yield from self._passes(self.config.steps)
        if self.done <= self.config.steps:
            self._state, self._metrics = None, Latest({})  # not those from before the online steps, if these start now

    def online_steps(self) -> Iterator[int]:
        """Continues after `steps()` in the training environments, for the `online_steps` of the run."""
        yield from self._passes(self.config.steps + self.config.online_steps)

    def _passes(self, end: int) -> Iterator[int]:
        config = self.config
        if self._stepper and not self._stepper.resumed:
            begin_episodes(self._agent)
        stride = self._stepper.num_envs if self._stepper else 1
        mark, mark_step = time.perf_counter(), self.done
        with self._interruption, self._progress(end, self.done, "env steps" if self._stepper else "updates") as bar:
            self._bar = bar
            while self.done < end:
                yield self.done
                before, self.done = self.done, self.done + stride
                last = self.done >= end
                stopping = self._interruption.asked  # read once: a later signal counts for the next pass
                evaluating = last or self.done // config.eval_every > before // config.eval_every
                saving = last or stopping or self.done // config.checkpoint_every > before // config.checkpoint_every
                if saving or evaluating or self.done // config.log_every > before // config.log_every:
                    seconds = time.perf_counter() - mark
                    self._seconds += seconds
                    self._log_metrics((self.done - mark_step) / seconds)
                    if evaluating:
                        self._evaluate()
                    if saving:
                        self._checkpoint()
                    mark, mark_step = time.perf_counter(), self.done
                bar.update(self.done)
                if stopping and not last:
                    raise interrupted(f"step {self.done:,}", self.algorithm.command, self.dir)

    # --- Between passes -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Called before the first pass. Restores, once, what a checkpoint holds beside the tracked objects."""
        if self._together and self._dataset:
            self._together.share(self._dataset)
        if self._state and not self._restored:
            self._restored = True
            restore_rng(self._state["rng"], self.device)
            if self._dataset:
                self._dataset.sampler.prefetched = self._state["prefetched"].to(self.device)

    def _values(self, when: str) -> dict[str, float]:
        """The metrics as numbers. Raises RunError if one is not finite."""
        values = self._metrics.read()
        if broken := sorted(name for name, value in values.items() if not math.isfinite(value)):
            self._save_state(self.dir / "diverged.pt")
            raise diverged(self.dir, when, broken)
        return values

    def _log_metrics(self, steps_per_second: float) -> None:
        values = self._values(f"before step {self.done:,}")
        if values.get("clipped_targets") and not self._reported_clipping:
            self._reported_clipping = True
            self.report(clipped(values["clipped_targets"], self.done))
        if self._stepper:
            self._stepper.report()
            values |= self._episodes.take()
        self._logger.metrics(self.done, values, self._seconds, steps_per_second)

    def _evaluate(self) -> None:
        config, agent = self.config, Corrected(self._base, self._agent) if self._base else self._agent
        episodes = evaluate(agent, self._eval_envs, config.seed, not config.eval_deterministic, config.info_keywords)
        self.evaluations.append((self.done, episodes))
        row = summary(episodes, config)
        self._logger.evaluation(self.done, row | {"returns": " ".join(f"{value:.6f}" for value in episodes.returns)})
        if config.keep_agents:
            (self.dir / "agents").mkdir(exist_ok=True)
            checkpoint.save(self.dir / "agents" / f"{self.done}.pt", self._agent.state_dict())
        self._print(f"step {self.done:>9,}  {in_words(row)}", judged(row).strip() or f"return {row['return_mean']:.1f}")

    def _progress(self, total: int, done: int, unit: str) -> ProgressBar:
        return ProgressBar(total, done, unit, moves=not self._together or self._together.index == 0)

    def _print(self, line: str, score: str | None = None) -> None:
        line = self._together.label + line if self._together else line
        self._bar.print(line, score) if self._bar else terminal().print(line, markup=False)

    def _checkpoint(self) -> None:
        self._logger.sync()
        self._save_state(self.dir / "checkpoint.pt")
        self._tracked.prune()

    def _save_state(self, path: Path) -> None:
        state = {
            "format": FORMAT,
            "step": self.done,
            "seconds": self._seconds,
            "metrics": self._metrics.read(),
            "stages": self._stages,
            "tracked": self._tracked.state_dict(),
            "rng": rng_state(self.device),
            "linear": dict(linear.choices),
            "envs": self._stepper.state_dict() if self._stepper else None,
            "prefetched": self._dataset.sampler.prefetched.clone() if self._dataset else None,
        }
        checkpoint.save(path, state)

    def save_record(self) -> None:
        """Writes `run.json` in its present state."""
        save_json(self.dir / "run.json", self.record | {"linear": dict(linear.choices)})

    def close(self) -> None:
        """Closes environments and loggers, and frees what it learned with: a run may be kept for its evaluations."""
        for envs in (self._eval_envs, *([self._stepper.envs] if self._stepper else [])):
            with contextlib.suppress(Exception):  # errors in the environment's own code, when they cost nothing
                envs.close()
        for name in ("_tracked", "_dataset", "_stepper", "_state"):
            vars(self).pop(name, None)
        self._logger.close()
