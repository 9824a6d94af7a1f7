"""Runs the stream-x authors' code on the zoo's environments, or compares its updates with the zoo's.

    git clone https://github.com/mohmdelsayed/streaming-drl
    python benchmarks/scripts/streaming.py stream_ac streaming-drl --env HalfCheetah-v5 --steps 1000000 --out theirs.csv
    python benchmarks/scripts/streaming.py stream_ac streaming-drl --env HalfCheetah-v5 --agree 300

The first command runs the authors' agent and wrappers unchanged, with the defaults and the main loop of their script,
on Gymnasium's current version of the task. Episodes have the zoo's time limit; `--max-episode-steps 10000` sets that of
the classic tasks in their scripts. It writes the mean return of the episodes that ended in every 1,000 steps, for
`curves.py --training`. The second command gives both agents the same stream, from the same weights, within one episode.
It leaves out the time feature, which in the authors' code is one step late. It fails if the first update already
differs. `speed.py streaming` measures both speeds.
"""

import argparse
import csv
import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch

from zoo.algos import stream_ac, stream_q, stream_sarsa
from zoo.spec import Spec
from zoo.streaming import Sample

CLASSES = {"stream_ac": "StreamAC", "stream_q": "StreamQ", "stream_sarsa": "StreamSARSA"}
ENTROPY_COEF = 0.01
LOG_EVERY = 1_000
SAME = 1e-6  # largest allowed difference of the weights after one update on the same sample


class Raw(gymnasium.Wrapper):
    """Keeps the environment's last output, and has `num_envs`, which the authors' time wrapper needs."""

    num_envs = 1

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.obs, info = self.env.reset(**kwargs)
        return self.obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.obs, self.reward, self.terminated, self.truncated, info = self.env.step(action)
        return self.obs, self.reward, self.terminated, self.truncated, info


class ChannelsLast(gymnasium.ObservationWrapper):
    """Frames `[C, H, W]` -> `[H, W, C]`, the layout of their networks."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        channels, height, width = env.observation_space.shape or ()
        self.observation_space = gymnasium.spaces.Box(0, 1, (height, width, channels), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.transpose(1, 2, 0)


class Theirs:
    """The authors' agent and wrappers, with their scripts' main loop, one step at a time.

    Attributes:
        agent: their agent.
        raw: the environment below their wrappers.
        obs: the agent's current observation.
        action: the last action.
        episodes: the returns and lengths of the episodes that have ended.
    """

    def __init__(
        self,
        algo: str,
        folder: Path,
        env_id: str,
        seed: int,
        steps: int,
        timed: bool,
        max_episode_steps: int | None = None,
    ) -> None:
        sys.path.insert(0, str(folder))
        self.algo, self.episodes = algo, list[tuple[float, float]]()  # returns and lengths
        self.raw = Raw(gymnasium.make(env_id, max_episode_steps=max_episode_steps))
        frames = len(self.raw.observation_space.shape or ()) == 3
        discrete = isinstance(self.raw.action_space, gymnasium.spaces.Discrete)
        kind = "" if algo != "stream_ac" else "_discrete" if discrete else "_continuous"
        module = importlib.import_module(algo + kind + ("_minatar" if frames else ""))
        env: Any = gymnasium.wrappers.RecordEpisodeStatistics(ChannelsLast(self.raw) if frames else self.raw)
        env = env if discrete else gymnasium.wrappers.ClipAction(env)
        env = module.NormalizeObservation(module.ScaleReward(env, gamma=0.99))
        if timed and not frames:
            env.num_envs = 1
            env = importlib.import_module("time_wrapper").AddTimeInfo(env)
        self.env = env
        torch.manual_seed(seed)
        np.random.seed(seed)  # their exploration uses NumPy's generator
        shape, actions = env.observation_space.shape, env.action_space
        arguments = {"n_actions": int(actions.n) if discrete else actions.shape[0]}
        arguments |= {"n_channels": shape[-1]} if frames else {"n_obs": shape[0]}
        if algo != "stream_ac":  # the defaults of their scripts, which differ from those of their classes
            fraction = 0.2 if frames and algo == "stream_q" else 0.05
            arguments |= {"exploration_fraction": fraction}
            if not (frames and algo == "stream_sarsa"):  # this one always explores for 50,000 steps
                arguments |= {"total_steps": steps}
        self.agent = getattr(module, CLASSES[algo])(**arguments)
        self.obs, _ = env.reset(seed=seed)
        self.next_action = self.agent.sample_action(self.obs) if algo == "stream_sarsa" else 0

    def step(self) -> None:
        """Acts once and learns from it."""
        extra: tuple[Any, ...] = ()
        if self.algo == "stream_sarsa":
            self.action = self.next_action
        elif self.algo == "stream_q":
            self.action, *extra = self.agent.sample_action(self.obs)
        else:
            self.action, extra = self.agent.sample_action(self.obs), (ENTROPY_COEF,)
        obs, reward, terminated, truncated, info = self.env.step(self.action)
        done = terminated or truncated
        if self.algo == "stream_sarsa":
            self.next_action = self.agent.sample_action(obs)
            self.agent.update_params(self.obs, self.action, reward, obs, self.next_action, done)
        else:
            self.agent.update_params(self.obs, self.action, reward, obs, done, *extra)
        self.obs = obs
        if done:
            self.episodes.append((float(info["episode"]["r"]), float(info["episode"]["l"])))
            self.obs, _ = self.env.reset()


def ours_like(theirs: Theirs, algo: str) -> Any:
    """The zoo's agent with the same weights, at the start of the same episode."""
    spec = Spec.of(theirs.raw.observation_space, theirs.raw.action_space)
    ours = build(algo, spec)
    with torch.no_grad():
        for network, layers in pairs(ours, theirs.agent):
            network.weights.copy_(torch.cat([p.flatten() for p in layers]))
    ours.start(torch.as_tensor(theirs.raw.obs))
    return ours


def build(algo: str, spec: Spec) -> Any:
    """The zoo's agent with the settings of the authors' scripts, but without the time feature."""
    hidden = [128] if spec.is_image else [128, 128] if spec.num_actions is None else [32, 32]
    module: Any = {"stream_ac": stream_ac, "stream_q": stream_q, "stream_sarsa": stream_sarsa}[algo]
    return getattr(module, CLASSES[algo])(spec, module.Config(hidden=hidden, time_feature=False))


def pairs(ours: Any, theirs: Any) -> list[tuple[Any, list[torch.Tensor]]]:
    """Each of our networks, with their weights and biases in our order."""
    if not hasattr(ours, "actor"):
        return [(ours.network, list(theirs.parameters()))]
    if not hasattr(theirs, "policy_net"):
        return [
            (ours.actor, list(theirs.network_policy.parameters())),
            (ours.critic, list(theirs.network_value.parameters())),
        ]
    actor = list(theirs.policy_net.parameters())
    if len(actor) == 8:  # mean and standard deviation are separate layers
        actor = [*actor[:4], torch.cat([actor[4], actor[6]]), torch.cat([actor[5], actor[7]])]
    return [(ours.actor, actor), (ours.critic, list(theirs.value_net.parameters()))]


def print_agreement(algo: str, theirs: Theirs, steps: int) -> None:
    """Prints the difference of the weights after the first update, and after `steps` updates or the first episode."""
    ours = ours_like(theirs, algo)
    for step in range(1, steps + 1):
        begun = [network.weights.detach().clone() for network, _ in pairs(ours, theirs.agent)]
        theirs.step()
        raw = theirs.raw
        ours.action.copy_(torch.as_tensor(theirs.action))
        ended = raw.terminated or raw.truncated or step == steps
        sample = Sample(torch.tensor(raw.reward), torch.as_tensor(raw.obs), torch.tensor(raw.terminated))
        if algo == "stream_sarsa":  # it learns from the next action
            ours.choose = mock.Mock(return_value=torch.as_tensor(theirs.next_action))
        ours.update(sample)
        if step == 1 or ended:
            for (network, layers), before in zip(pairs(ours, theirs.agent), begun, strict=True):
                weights, own = torch.cat([p.detach().flatten() for p in layers]), network.weights.detach()
                moved, apart = float((weights - before).norm()), float((weights - own).norm())
                norm = float(weights.norm())
                print(f"update {step}: weights of norm {norm:.1f} moved by {moved:.1e}, {apart:.0e} apart")
                if step == 1 and not apart <= SAME:
                    sys.exit(f"they differ by more than {SAME:.0e}")
        if ended:
            return


def main() -> None:
    """Trains or compares."""
    parser = argparse.ArgumentParser(description="Runs the stream-x authors' code, or compares it with the zoo's.")
    parser.add_argument("algo", choices=list(CLASSES))
    parser.add_argument("folder", type=Path, help="a clone of github mohmdelsayed/streaming-drl")
    parser.add_argument("--env", required=True, help="a Gymnasium id, or minatar/breakout")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-episode-steps", type=int, help="10,000 in their scripts (default: the task's own)")
    parser.add_argument("--out", type=Path, help="CSV file for their learning curve")
    parser.add_argument("--agree", type=int, metavar="UPDATES", help="compare this number of updates instead")
    args = parser.parse_args()
    if not (args.out or args.agree):
        parser.error("give --out FILE or --agree UPDATES")
    torch.set_num_threads(1)
    theirs = Theirs(args.algo, args.folder, args.env, args.seed, args.steps, not args.agree, args.max_episode_steps)
    if args.agree:
        print_agreement(args.algo, theirs, args.agree)
        return
    with args.out.open("w") as file:
        rows = csv.writer(file)
        rows.writerow(["step", "seconds", "episode_return", "episode_length"])
        begun = time.perf_counter()
        for step in range(1, args.steps + 1):
            theirs.step()
            if step % LOG_EVERY == 0:
                means = [statistics.mean(column) for column in zip(*theirs.episodes, strict=True)] or ["", ""]
                rows.writerow([step, round(time.perf_counter() - begun, 2), *means])
                file.flush()
                theirs.episodes.clear()


if __name__ == "__main__":
    main()
