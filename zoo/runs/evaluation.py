"""Evaluation: exactly one episode in each environment, from fixed seeds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from zoo.agent import Agent, Policy, Predictor
from zoo.errors import RunError
from zoo.runs.stepper import is_finite, last_info, number_in
from zoo.settings.config import RunConfig

IDLE_STEPS = 1_800  # two minutes of an Atari game, which runs at 60 frames a second, 4 of them a step
LONGEST = 100_000  # steps of an episode; an Atari episode has 27,000 at most
UNSEEN = 0.01  # share of a return's weight that may be missing, where an episode is cut off, for it to count as known


class Episodes(NamedTuple):
    """One episode per environment: undiscounted returns `[E]` and lengths in steps `[E]`.

    Also: whether it was a success `[E]`, at any of its steps, if the environment reports `info["success"]` or
    `info["is_success"]`; how far off a `Predictor` was, see `value_error`; for games with lives, whether it was cut off
    as idle `[E]`; the number of each environment's task `[E]`, if there are several: `info["task"]`; and by name the
    numbers `[E]` in `info` at the end, as far as they were asked for.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None = None
    value_error: float | None = None
    idle: np.ndarray | None = None
    tasks: np.ndarray | None = None
    infos: Mapping[str, np.ndarray] = {}


class Moment(NamedTuple):
    """What `watch` receives about the E episodes of an evaluation, before each step and once more at the end."""

    returns: np.ndarray  # [E] so far
    running: np.ndarray  # [E] bool: not over yet
    expected: np.ndarray | None  # [E] the critics' prediction for the action about to be taken; None without critics
    obs: np.ndarray  # [E, ...] for which the action was chosen


def seeds(what: str, *numbers: int, count: int) -> Any:
    """Seeds for `training` or `evaluation`: they differ between the two, and for different numbers."""
    key = ("training", "evaluation").index(what) + 1
    return np.random.SeedSequence([key, *numbers]).generate_state(count).tolist()


def evaluate(
    agent: Agent, envs: VectorEnv, seed: int, explore: bool = False, info_keywords: Sequence[str] = (),
    watch: Callable[[Moment], None] | None = None,
) -> Episodes:  # fmt: skip
    """Plays the first episode of every environment in `envs`, from initial states determined by the run's seed.

    One episode each, not the first N to finish: those would be the short ones. An Atari game is cut off after
    `IDLE_STEPS` in which no points were scored and no life was lost.

    Args:
        agent: the agent that plays.
        envs: the environments.
        seed: the run's. It seeds the agent's random numbers too; those of training are not touched.
        explore: sample actions, as in training; otherwise act deterministically.
        info_keywords: names of numbers in `info` at an episode's end.
        watch: called before each step and at the end.

    Raises:
        RunError: the environment returns NaN or infinity, or lacks such a number, or an episode does not end within
            `LONGEST` steps.
    """
    device = next(agent.parameters()).device
    starts = seeds("evaluation", seed, count=envs.num_envs)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(starts[0])
        return _play(agent, envs, starts, explore, info_keywords, watch)


def _play(
    agent: Agent, envs: VectorEnv, starts: Any, explore: bool, info_keywords: Sequence[str],
    watch: Callable[[Moment], None] | None,
) -> Episodes:  # fmt: skip
    policy = Policy(agent)
    policy.begin(envs.num_envs)
    obs, info = envs.reset(seed=starts)
    _check(obs)
    returns, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, dtype=int)
    successes, reported = np.zeros(envs.num_envs, dtype=bool), False
    tasks = _column(info, "task")
    lives, still = info.get("zoo/lives"), np.zeros(envs.num_envs, dtype=int)  # steps in which nothing has happened
    idle = None if lives is None else np.zeros(envs.num_envs, dtype=bool)
    infos = {name: np.full(envs.num_envs, np.nan) for name in info_keywords}
    running = np.ones(envs.num_envs, dtype=bool)
    steps: list[tuple[np.ndarray, ...]] = []  # of a predictor: predictions, rewards, which episodes ran and terminated
    while running.any():
        if lengths.max() >= LONGEST:
            raise RunError(
                f"an episode of an evaluation has not ended after {LONGEST:,} steps. Give the environment a time "
                "limit: env.max_episode_steps=N, not above this"
            )
        action = policy.act(obs, explore)
        if watch:
            watch(Moment(returns.copy(), running.copy(), policy.expected_return(obs, action), obs))
        before, predicted = obs, policy.predict(obs) if isinstance(agent, Predictor) else action
        obs, reward, terminated, truncated, info = envs.step(action.copy())  # a copy: an environment may change it
        _check(obs, reward)
        if type(agent).observe is not Agent.observe:  # most agents have no memory
            policy.observe(before, action, reward)
        if isinstance(agent, Predictor):
            steps.append((predicted, reward, running.copy(), terminated))
        returns += reward * running
        lengths += running
        ended = terminated | truncated
        for said, where in ((info, ~ended), (info.get("final_info", {}), ended)):
            success = _column(said, "success")
            if success is None:
                success = _column(said, "is_success")  # gymnasium-robotics' name for it
            if success is not None:
                reported = True
                successes |= running & where & success.astype(bool)  # some report it as a number
        for i in np.flatnonzero(running & ended) if infos else ():
            last = last_info(info, i)
            for name, numbers in infos.items():
                numbers[i] = number_in(last, name)
        running &= ~ended
        if idle is not None:
            left = info["zoo/lives"]
            still = np.where((reward != 0) | (left != lives), 0, still + 1)
            lives = left
            idle |= running & (still >= IDLE_STEPS)
            running &= ~idle
    if watch:
        watch(Moment(returns, running, None, obs))
    error = None
    if isinstance(agent, Predictor):
        error = value_error(agent.discount, *(np.stack(column) for column in zip(*steps, strict=True)))
    return Episodes(returns, lengths, successes if reported else None, error, idle, tasks, infos)


def _check(*arrays: np.ndarray) -> None:
    """Raises RunError unless all numbers are finite, also as float32."""
    with np.errstate(over="ignore"):
        finite = all(is_finite(array.astype(np.float32, copy=False)) for array in arrays)
    if not finite:
        raise RunError("in an evaluation the environment gave an observation or a reward that is NaN or infinite.")


def _column(info: dict[str, Any], name: str) -> np.ndarray | None:
    """What `info` reports for each environment, a number or a truth value `[N]`; None if it reports neither."""
    column = info.get(name)
    if not isinstance(column, np.ndarray) or column.ndim != 1:
        return None
    if all(isinstance(value, bool | np.bool_ | None) for value in column):  # an array of objects, if they are NumPy's
        return column.astype(bool)
    return column if column.dtype.kind in "iuf" else None


def value_error(
    discount: float, predicted: np.ndarray, reward: np.ndarray, running: np.ndarray, terminated: np.ndarray
) -> float:
    """Root mean squared error of predicted returns, in standard deviations of the actual ones; 1 means no skill.

    A step counts only if its return is known: in an episode that is cut off, steps far enough from its end.

    Args:
        discount: the discount factor of the returns.
        predicted: `[T, E]`, predictions at each step of E episodes; the arguments below have the same shape.
        reward: the reward of the step.
        running: whether the step belongs to the episode.
        terminated: whether the step is the episode's last, after which nothing follows.

    Returns:
        NaN if no return is known, or all are the same.
    """
    actual, unseen = np.zeros(reward.shape), np.zeros(reward.shape)
    later, missing = np.zeros(reward.shape[1]), np.ones(reward.shape[1])
    for t in reversed(range(len(reward))):
        later = np.where(running[t], reward[t] + discount * ~terminated[t] * later, 0.0)
        missing = np.where(running[t], discount * ~terminated[t] * missing, 1.0)
        actual[t], unseen[t] = later, missing
    known = running & (unseen <= UNSEEN)
    if not known.any() or not (spread := actual[known].std()):
        return float("nan")
    return float(np.sqrt(((predicted - actual)[known] ** 2).mean()) / spread)


def summary(episodes: Episodes, config: RunConfig) -> dict[str, Any]:
    """The columns of one evaluation; `score` is empty for an environment without reference scores."""
    scores, successes, tasks = config.env.normalize(episodes.returns), episodes.successes, episodes.tasks
    of_task = {} if successes is None or tasks is None else {i: successes[tasks == i] for i in np.unique(tasks)}
    return {
        "return_mean": float(episodes.returns.mean()),
        "return_std": float(episodes.returns.std()),
        "score": "" if scores is None else float(scores.mean()),
        "length_mean": float(episodes.lengths.mean()),
        **({} if successes is None else {"success": float(successes.mean())}),
        **{f"success_task{number:g}": float(some.mean()) for number, some in of_task.items()},
        **({} if episodes.value_error is None else {"value_error": episodes.value_error}),
        **({} if episodes.idle is None else {"idle": float(episodes.idle.mean())}),
        **{f"info_{name}": float(np.nanmean(numbers)) for name, numbers in episodes.infos.items()},
    }


def in_words(row: dict[str, Any]) -> str:
    """The figures of a `summary`, as the terminal shows them."""
    return f"return {row['return_mean']:8.1f} +- {row['return_std']:.1f}{judged(row)}"


def judged(row: dict[str, Any]) -> str:
    """The figures of a `summary` other than the return, as the terminal shows them."""
    score = f"  score {row['score']:.1f}" if row["score"] != "" else ""
    success = f"  success {row['success']:.0%}" if "success" in row else ""
    error = f"  value error {row['value_error']:.2f}" if "value_error" in row else ""
    infos = "".join(f"  {key.removeprefix('info_')} {value:.4g}" for key, value in row.items() if key[:5] == "info_")
    return score + success + error + (f"  idle {row['idle']:.0%}" if row.get("idle") else "") + infos
