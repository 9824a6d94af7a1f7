"""One training run: device and seed, environments or a dataset, and the loop's steps with what is due between them."""

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from zoo import checkpoint
from zoo.agent import Agent, Metrics
from zoo.config import RunConfig
from zoo.data.arrays import check_fits, missing_ends, out_of_bounds
from zoo.data.buffers import ReplayBuffer
from zoo.data.corruption import CorruptionConfig, corrupt
from zoo.data.dataset import Dataset
from zoo.data.load import load_arrays
from zoo.envs import in_envpool, make, resolve_backend, time_limit
from zoo.errors import Interrupted, RunError, UsageError
from zoo.evaluation import Episodes, evaluate, seeds
from zoo.logging import Logger, ProgressBar, parse_loggers
from zoo.registry import Algorithm
from zoo.replay_log import ReplayLog
from zoo.rollout import Rollout
from zoo.spec import Spec


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


class Run:
    """What an algorithm's `train` is given: `envs()` or `dataset()`, `track` for its agent, `steps()` to loop over.

    Attributes:
        config: the run's settings.
        device: where tensors live.
        dir: the run's folder.
        record: what `run.json` holds.
        spec: shapes and bounds of the environment.
        done: steps completed.
        evaluations: the episodes of each evaluation of this process, with its step.
    """

    def __init__(
        self,
        config: RunConfig,
        algorithm: Algorithm,
        run_dir: Path,
        record: dict[str, Any],
        state: dict[str, Any] | None,
    ) -> None:
        self.config, self.algorithm, self.dir, self.record = config, algorithm, run_dir, record
        self.device = resolve_device(config.device)
        torch.set_num_threads(config.threads)
        torch.set_flush_denormal(True)  # a CPU takes ten times as long with weights that have decayed to almost nothing
        torch.set_float32_matmul_precision(config.matmul_precision)
        torch.manual_seed(config.seed)
        self._state = state
        self.done: int = state["step"] if state else 0  # steps completed
        self._seconds: float = state["seconds"] if state else 0.0
        self._stages: dict[str, int] = state.get("stages", {}) if state else {}  # passes done of each
        self._tracked: dict[str, Stateful] = {}
        self._replay: dict[str, ReplayLog] = {}  # of the replay buffers among them
        self._agent: Agent | None = None
        self._rollout: Rollout | None = None
        self._dataset: Dataset | None = None
        self._metrics: Metrics = {}
        self._episodes: list[tuple[float, float]] = []  # return and length of those that ended since the last row
        self._interrupted = False
        self._bar: ProgressBar | None = None
        self._told_of_clipping = self._restored = False
        self.evaluations: list[tuple[int, Episodes]] = []
        try:
            self._resolve_backend()
            self._eval_envs = make(config.env, config.eval_episodes, config.threads)
            self.spec = Spec.of(self._eval_envs.single_observation_space, self._eval_envs.single_action_space)
        except ValueError as error:
            raise UsageError(str(error)) from error
        self._check_spaces()
        self._logger = Logger(run_dir, parse_loggers(config.logger), record["config"], self.done, record["id"])

    # --- What an algorithm asks for -----------------------------------------------------------------------------------

    def envs(self) -> Rollout:
        """The training environments, `num_envs` of them; `steps()` counts theirs."""
        # where a resumed run cannot put the simulators back, it starts new episodes, from other seeds
        self._rollout = Rollout(
            make(self.config.env, self.config.num_envs, self.config.threads, training=True),
            seeds("training", self.config.seed, self.done, count=self.config.num_envs),
            self.device,
            lambda *episode: self._episodes.append(episode),
        )
        if self._state and self._state.get("rollout"):
            self._rollout.load_state_dict(self._state["rollout"])
        elif self.done > (0 if self.algorithm.setting == "online" else self.config.steps):
            self.report("the simulator cannot be put back into the middle of its episodes: new ones begin")
        return self._rollout

    def time_limit(self) -> int | None:
        """Steps after which an episode that is played is truncated, if any; those of the data may be others."""
        return self.config.env.max_episode_steps or time_limit(self.config.env.id)

    def dataset(self) -> Dataset:
        """The dataset of the run, checked against its environment, on the run's device."""
        name, env = self.config.dataset, self.config.env
        limit = time_limit(env.id)
        arrays, sources = load_arrays(env, name, limit)
        check_fits(arrays, self.spec, name, env)
        unmarked = missing_ends(arrays, name, env, limit)
        if outside := int(out_of_bounds(arrays.action, self.spec).sum()):
            self.report(
                f"dataset={name}: {outside:,} of {len(arrays.action):,} actions lie outside the bounds of {env.id}, by "
                f"size up to {np.abs(arrays.action).max():.4g}; they are learned from as they are"
            )
        described = {
            "name": name,
            "sources": [{"name": source.name, "kind": source.kind, "path": str(source.path)} for source in sources],
            "transitions": len(arrays.reward),
            "episodes": len(arrays.episode_starts),
            "fingerprint": arrays.fingerprint(),
        }
        if self._state and self.record["dataset"]["fingerprint"] != described["fingerprint"]:
            raise UsageError(
                f"dataset={name} is not the data this run began with: its content has changed. Start a new run."
            )
        corruption = self.config.corruption
        if corruption.name != CorruptionConfig.name:
            arrays, changed = corrupt(arrays, corruption, self.config.seed, self.device)
            described["corrupted"] = changed
        self.record["dataset"] = described
        self.save_record()
        self._dataset = Dataset(arrays, self.spec, self.device, self.config.sampler, unmarked)
        return self._dataset

    def track(self, **tracked: Stateful) -> None:
        """Saves these with every checkpoint, by their names; in a resumed run they are loaded from it now.

        One of them is the `agent`. It moves to the run's device, and its `update` is compiled if the run is to compile.
        """
        for name, one in tracked.items():
            assert name not in self._tracked, f"{name} is tracked twice"
            if name == "agent":
                assert isinstance(one, Agent)
                self._agent = one.to(self.device)
                one.update = self.compiled(one.update)  # type: ignore[method-assign]
            if isinstance(one, ReplayBuffer):
                self._replay[name] = ReplayLog(self.dir / "replay" / name, one)
            if self._state:
                self._load(name, one, self._state)
            self._tracked[name] = one

    def _load(self, name: str, one: Stateful, state: dict[str, Any]) -> None:
        """Raises RunError where the checkpoint holds another one."""
        try:
            saved = state["tracked"][name]
            if name in self._replay:
                new_episodes = self._rollout is not None and not self._rollout.resumed
                self._replay[name].read(saved, new_episodes)
            else:
                one.load_state_dict(saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise RunError(
                f"{self.dir / 'checkpoint.pt'} does not fit {self.algorithm.path}, or it was written by an older "
                "version of the zoo. Start a new run."
            ) from error

    def compiled(self, update: Callable[..., Metrics]) -> Callable[..., Metrics]:
        """An update as one compiled graph, if the run is to compile."""
        return compile_update(update) if self.config.compile else update

    def report(self, line: str) -> None:
        """Says something on the terminal that `run.json` keeps under `notes`, once."""
        self._bar.print(line) if self._bar else print(line, flush=True)
        if line not in self.record.setdefault("notes", []):
            self.record["notes"].append(line)
        self.save_record()

    def log(self, metrics: Metrics) -> None:
        """Keeps the latest metrics; they are read, and the device waited for, only when a row is due."""
        self._metrics = metrics

    def stage(self, name: str, passes: int, until: Callable[[], bool] = lambda: False) -> Iterator[int]:
        """Passes of what comes before `steps()`, such as the training of a model: 0, 1, 2, ...

        At most so many, and no more once `until` holds. After each there is a checkpoint: a resumed run goes on with
        the pass that it was in. What was logged is a row of `<name>.csv`.
        """
        done = self._stages.get(name, 0)
        if done >= passes or until():
            return
        self._restore()
        with self._signals(), ProgressBar(passes, done, f"passes of {name}") as bar:
            self._bar = bar
            while done < passes and not until():
                mark = time.perf_counter()
                yield done
                self._stages[name] = done = done + 1
                seconds = time.perf_counter() - mark
                self._seconds += seconds
                values = self._values(f"in pass {done:,} of {name}")
                self._logger.stage(name, done, values, seconds)
                bar.update(done)
                spent = self.record.setdefault("stages", {}).setdefault(name, {"seconds": 0.0})
                spent["seconds"], spent["passes"] = round(spent["seconds"] + seconds, 2), done
                self.save_record()
                self._checkpoint()
                if self._interrupted:
                    raise Interrupted(
                        f"interrupted after pass {done:,} of {name}; its checkpoint is written. Continue: "
                        f"{self.algorithm.command} resume={self.dir}"
                    )

    def steps(self) -> Iterator[int]:
        """The number of steps done before each pass of the loop: 0, 1, 2, ... offline; by `num_envs` online.

        Between passes: metrics, evaluation, checkpoints and interruptions, each when it is due.
        """
        self._restore()
        yield from self._passes(self.config.steps)
        if self.done <= self.config.steps:
            self._state = None  # the checkpoint is from before the online steps, if they come now

    def online_steps(self) -> Iterator[int]:
        """Goes on after `steps()` in the training environments, for the `online_steps` of the run."""
        yield from self._passes(self.config.steps + self.config.online_steps)

    def _passes(self, end: int) -> Iterator[int]:
        config = self.config
        stride = self._rollout.num_envs if self._rollout else 1
        mark, mark_step = time.perf_counter(), self.done
        with (
            self._signals(),
            ProgressBar(end, self.done, "env steps" if self._rollout else "updates") as bar,
        ):
            self._bar = bar
            while self.done < end:
                yield self.done
                before, self.done = self.done, self.done + stride
                last = self.done >= end
                interrupted = self._interrupted  # once: a signal that comes during the evaluation is the next pass's
                evaluating = last or self.done // config.eval_every > before // config.eval_every
                saving = last or interrupted or self.done // config.checkpoint_every > before // config.checkpoint_every
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
                if interrupted and not last:
                    raise Interrupted(
                        f"interrupted after step {self.done:,}; its checkpoint is written. Continue: "
                        f"{self.algorithm.command} resume={self.dir}"
                    )

    # --- Between passes -----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """What a checkpoint holds beside what is tracked, once: where random numbers and the sampler went on."""
        if self._state and not self._restored:
            self._restored = True
            restore_rng(self._state["rng"], self.device)
            if self._dataset:
                self._dataset.sampler.drawn = self._state["drawn"].to(self.device)

    def _values(self, when: str) -> dict[str, float]:
        """The metrics as numbers. Raises RunError where one is not finite."""
        values = {name: float(value) for name, value in self._metrics.items()}
        broken = sorted(name for name, value in values.items() if not math.isfinite(value))
        if broken:
            self._save_state(self.dir / "diverged.pt")
            raise RunError(
                f"the run diverged {when}: {', '.join(broken)} not finite. Its state is in {self.dir / 'diverged.pt'}"
                f"{'; the last good one is checkpoint.pt' if (self.dir / 'checkpoint.pt').exists() else ''}. "
                "A smaller learning rate or scaled rewards often help."
            )
        return values

    def _log_metrics(self, steps_per_second: float) -> None:
        values = self._values(f"before step {self.done:,}")
        if values.get("clipped_targets") and not self._told_of_clipping:
            self._told_of_clipping = True
            self.report(
                f"{values['clipped_targets']:.0f} value targets up to step {self.done:,} were outside the support and "
                "were clipped; metrics.csv counts them on. Wider: algo.v_min, algo.v_max"
            )
        if self._rollout:
            returns, lengths = np.array(self._episodes or [(math.nan, math.nan)]).mean(0)
            values |= {"episode_return": float(returns), "episode_length": float(lengths)}
            self._episodes.clear()
        self._logger.metrics(self.done, values, self._seconds, steps_per_second)

    def _evaluate(self) -> None:
        assert self._agent is not None
        episodes = evaluate(self._agent, self._eval_envs, self.config.seed, not self.config.eval_deterministic)
        self.evaluations.append((self.done, episodes))
        row = summary(episodes, self.config)
        self._logger.evaluation(self.done, row | {"returns": " ".join(f"{value:.6f}" for value in episodes.returns)})
        if self.config.keep_agents:
            (self.dir / "agents").mkdir(exist_ok=True)
            checkpoint.save(self.dir / "agents" / f"{self.done}.pt", self._agent.state_dict())
        score = judged(row)
        assert self._bar is not None
        self._bar.print(
            f"step {self.done:>9,}  return {row['return_mean']:8.1f} +- {row['return_std']:.1f}{score}",
            score.strip() or f"return {row['return_mean']:.1f}",
        )

    def _checkpoint(self) -> None:
        self._save_state(self.dir / "checkpoint.pt")
        for log in self._replay.values():
            log.prune()

    def _save_state(self, path: Path) -> None:
        checkpoint.save(
            path,
            {
                "step": self.done,
                "seconds": self._seconds,
                "stages": self._stages,
                "tracked": {
                    name: self._replay[name].write() if name in self._replay else one.state_dict()
                    for name, one in self._tracked.items()
                },
                "rng": rng_state(self.device),
                "rollout": self._rollout.state_dict() if self._rollout else None,
                "drawn": self._dataset.sampler.drawn.clone() if self._dataset else None,
            },
        )

    def save_record(self) -> None:
        """Writes `run.json` as it stands."""
        checkpoint.save_json(self.dir / "run.json", self.record)

    def close(self) -> None:
        """Closes the loggers and environments."""
        self._logger.close()
        self._eval_envs.close()
        if self._rollout:
            self._rollout.envs.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM asks for a checkpoint and the end; a second one ends the process as usual."""
        before: dict[int, Any] = {}

        def ask(number: int, _frame: Any) -> None:
            self._interrupted = True
            signal.signal(number, before[number])

        with contextlib.suppress(ValueError):  # not the main thread: signals stay with whoever owns it
            for asked in (signal.SIGINT, signal.SIGTERM):
                before[asked] = signal.signal(asked, ask)
        try:
            yield
        finally:
            for number, previous in before.items():
                signal.signal(number, previous)

    def _resolve_backend(self) -> None:
        """Settles for the whole run, resumed on another machine too, what `env.backend=auto` is."""
        env = self.config.env
        asked, env.backend = env.backend, resolve_backend(env)
        self.record["config"]["env"]["backend"] = env.backend
        if asked == "auto" and env.backend == "gymnasium" and in_envpool():
            print(f"env.backend=gymnasium: EnvPool does not have {env.id}", flush=True)

    def _check_spaces(self) -> None:
        from zoo.registry import algorithms

        if self.spec.action_space not in self.algorithm.action_spaces:
            able = [name for name, other in algorithms().items() if self.spec.action_space in other.action_spaces]
            raise UsageError(
                f"{self.algorithm.name} needs {' or '.join(self.algorithm.action_spaces)} actions; "
                f"{self.config.env.name} has {self._eval_envs.single_action_space}. "
                + (f"Try: {', '.join(able)}." if able else "No algorithm here takes them yet.")
            )
        if len(self.spec.obs_shape) != 1 and not self.algorithm.takes_frames:
            able = [name for name, other in algorithms().items() if other.takes_frames]
            raise UsageError(
                f"{self.algorithm.name} needs vectors; {self.config.env.name} has observations of shape "
                f"{list(self.spec.obs_shape)}. Try: {', '.join(able)}."
            )


def summary(episodes: Episodes, config: RunConfig) -> dict[str, Any]:
    """The columns of one evaluation; `score` is empty for an environment without reference scores."""
    score = config.env.normalize(episodes.returns.mean())
    return {
        "return_mean": float(episodes.returns.mean()),
        "return_std": float(episodes.returns.std()),
        "score": "" if score is None else float(score),
        "length_mean": float(episodes.lengths.mean()),
        **({} if episodes.successes is None else {"success": float(episodes.successes.mean())}),
        **({} if episodes.value_error is None else {"value_error": episodes.value_error}),
        **({} if episodes.idle is None else {"idle": float(episodes.idle.mean())}),
    }


def judged(row: dict[str, Any]) -> str:
    """What a `summary` says beside the return, as the terminal shows it: each where there is one."""
    score = f"  score {row['score']:.1f}" if row["score"] != "" else ""
    success = f"  success {row['success']:.0%}" if "success" in row else ""
    error = f"  value error {row['value_error']:.2f}" if "value_error" in row else ""
    return score + success + error + (f"  idle {row['idle']:.0%}" if row.get("idle") else "")


def compile_update(update: Callable[..., Metrics], backend: str = "inductor") -> Callable[..., Metrics]:
    """An agent's update as one compiled graph, its gradients included. Raises UsageError where torch is too old."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        raise UsageError(f"compile=true needs a newer torch than {torch.__version__}: pip install 'torch>=2.13,<2.14'")
    torch._dynamo.config.trace_autograd_ops = True
    return torch.compile(update, fullgraph=True, backend=backend)


def resolve_device(name: str) -> torch.device:
    """`auto` -> a GPU where there is one. Raises UsageError where the device does not exist."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name} is not on this machine. Try: device=cpu.") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name} is of a kind that the zoo does not use. Try: device=cpu or device=cuda.")
    return device


def rng_state(device: torch.device) -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_rng(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:  # else it was written where there was no GPU
        torch.cuda.set_rng_state(state["cuda"], device)
