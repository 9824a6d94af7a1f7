"""Four tasks of NeoRL-2 (Gao et al. 2025, arXiv 2503.19267; github polixir/NeoRL2), with difficulties of real ones.

`Pipeline`: the valve of a pipe is opened and closed so that the flow at its end, which water reaches after 20 steps,
meets a demand. `DMSD`: two masses between walls, connected by springs and dampers, are pushed to targets. These are in
NumPy. `SafetyHalfCheetah`, which must not run too fast, and `RandomFrictionHopper`, whose foot has another friction in
every episode, are Gymnasium's. Only the hopper terminates. Their data: `zoo data import FILE.npz pipeline/NAME`.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.spaces import Box

State = dict[str, Any]


class Pipeline(gymnasium.Env[np.ndarray, np.ndarray]):
    """An observation holds the flow and the demand, the 25 flows before, and the last 25 actions, newest first.

    An action in [-1, 1] is added to the flow into the pipe, which stays within [0, 200]. The demand is one of 50, 80,
    110 and 140, redrawn with probability 0.003 per step. The reward is (2 - |flow - demand| / 100)^2 - 3.
    """

    LARGEST, LENGTH, HISTORY, STEPS = 200.0, 20, 25, 1000  # flow; steps in the pipe, in an observation, in an episode
    DEMANDS, CHANGE = (50.0, 80.0, 110.0, 140.0), 0.003

    def __init__(self) -> None:
        low = np.concatenate([np.zeros(2 + self.HISTORY), -np.ones(self.HISTORY)]).astype(np.float32)
        high = np.where(low < 0, 1, self.LARGEST).astype(np.float32)
        self.observation_space = Box(low, high)
        self.action_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[np.ndarray, State]:
        super().reset(seed=seed)
        self.inside = np.full(self.LENGTH, self.np_random.uniform(80, 120))  # the flows inside the pipe, newest first
        self.flows = np.full(self.HISTORY + 1, self.inside[0])  # the flows at its end, newest first
        self.actions = np.zeros(self.HISTORY)
        self.demand = float(self.np_random.choice(self.DEMANDS))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, State]:
        if self.np_random.random() < self.CHANGE:
            self.demand = float(self.np_random.choice(self.DEMANDS))
        change = float(np.clip(action, -1, 1)[0])
        entering = np.clip(self.inside[0] + change, 0, self.LARGEST)
        self.inside = np.concatenate([[entering], self.inside[:-1]])
        self.flows = np.concatenate([self.inside[-1:], self.flows[:-1]])
        self.actions = np.concatenate([[change], self.actions[:-1]])
        reward = (2 - abs(float(self.flows[0]) - self.demand) / 100) ** 2 - 3
        return self._observe(), reward, False, False, {}

    def _observe(self) -> np.ndarray:
        return np.concatenate([self.flows[:1], [self.demand], self.flows[1:], self.actions]).astype(np.float32)

    def get_state(self) -> State:
        """Everything that the next steps depend on, except the random numbers."""
        arrays = {name: getattr(self, name).tolist() for name in ("inside", "flows", "actions")}
        return arrays | {"demand": self.demand}

    def set_state(self, state: State) -> None:
        """Continues from the result of `get_state`."""
        self.inside, self.flows, self.actions = (np.array(state[name]) for name in ("inside", "flows", "actions"))
        self.demand = state["demand"]


class DMSD(gymnasium.Env[np.ndarray, np.ndarray]):
    """An observation holds positions, velocities and targets of both masses; an action is the force on each, times 30.

    wall - spring - mass - spring - mass - spring - wall, with a damper beside each spring; Euler's method in steps of
    0.2 s. A target lasts the whole episode or half of it. The reward is the sum of -log(|error| + 0.01).
    """

    STIFFNESS, DAMPING, MASS, FORCE, TIME = 2.0, 4.0, 20.0, 30.0, 0.2
    STEPS = 100  # steps in an episode

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (6,), np.float32)
        self.action_space = Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[np.ndarray, State]:
        super().reset(seed=seed)
        parts = self.np_random.integers(1, 3, 2)  # parts of the episode, each with its own target
        halves = self.np_random.uniform(-1.5, 1.5, (2, 2))  # [half, mass]
        self.targets = np.where(parts == 1, halves[0], halves)
        self.position = self.np_random.uniform(-0.25, 0.25, 2)
        self.velocity = self.np_random.uniform(-0.1, 0.1, 2)
        self.time = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, State]:
        self.time += 1
        force = self.FORCE * np.clip(np.asarray(action, np.float64), -1, 1)
        # each mass is pulled back by the springs on both of its sides, and towards the other mass by one of them
        drawn = self.STIFFNESS * (self.position[::-1] - 2 * self.position)
        damped = self.DAMPING * (self.velocity[::-1] - 2 * self.velocity)
        self.position = self.position + self.TIME * self.velocity
        self.velocity = self.velocity + self.TIME / self.MASS * (drawn + damped + force)
        error = self.position - self._target()
        return self._observe(), float(-np.log(np.abs(error) + 0.01).sum()), False, False, {}

    def _target(self) -> np.ndarray:
        target: np.ndarray = self.targets[int(min(self.time, self.STEPS - 1) >= self.STEPS // 2)]
        return target

    def _observe(self) -> np.ndarray:
        return np.concatenate([self.position, self.velocity, self._target()]).astype(np.float32)

    def get_state(self) -> State:
        """Everything that the next steps depend on, except the random numbers."""
        arrays = {name: getattr(self, name).tolist() for name in ("targets", "position", "velocity")}
        return arrays | {"time": self.time}

    def set_state(self, state: State) -> None:
        """Continues from the result of `get_state`."""
        self.targets, self.position, self.velocity = (
            np.array(state[name]) for name in ("targets", "position", "velocity")
        )
        self.time = state["time"]


class SafetyHalfCheetah(HalfCheetahEnv):
    """HalfCheetah-v5 with its position observed, and a reward of -100 for a step at more than 3.2096 m/s."""

    FASTEST, FINE = 3.2096, -100.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(exclude_current_positions_from_observation=False, **kwargs)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs, self.FINE if info["x_velocity"] > self.FASTEST else float(reward), terminated, truncated, info


class RandomFrictionHopper(HopperEnv):
    """Hopper-v5 with its position and, last, its foot's friction observed; that is uniform in [1.5, 2.5] per episode.

    Unlike Hopper, it is not rewarded for standing. The authors round the friction to two digits in the simulation, but
    not in the observation.
    """

    FRICTION = (1.5, 2.5)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(exclude_current_positions_from_observation=False, **kwargs)
        self.foot = self.model.geom("foot_geom").id
        self.floor = self.model.geom_friction[0, 0]
        self.observation_space = Box(-np.inf, np.inf, (self.model.nq + self.model.nv + 1,), np.float64)

    def reset_model(self) -> np.ndarray:
        changed = self.model.geom_friction[0, 0] / self.floor  # changed by `env.friction` since it was made
        self.model.geom_friction[self.foot, 0] = changed * self.np_random.uniform(*self.FRICTION)
        obs: np.ndarray = super().reset_model()  # type: ignore[no-untyped-call]
        return obs

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)  # type: ignore[no-untyped-call]
        return obs, float(info["reward_forward"] + info["reward_ctrl"]), terminated, truncated, info

    def _get_obs(self) -> np.ndarray:
        return np.append(super()._get_obs(), self.model.geom_friction[self.foot, 0])  # type: ignore[no-untyped-call]


gymnasium.register("neorl2/Pipeline-v0", "zoo.envs.neorl2:Pipeline", max_episode_steps=Pipeline.STEPS)
gymnasium.register("neorl2/DMSD-v0", "zoo.envs.neorl2:DMSD", max_episode_steps=DMSD.STEPS)
gymnasium.register("neorl2/SafetyHalfCheetah-v0", "zoo.envs.neorl2:SafetyHalfCheetah", max_episode_steps=1000)
gymnasium.register("neorl2/RandomFrictionHopper-v0", "zoo.envs.neorl2:RandomFrictionHopper", max_episode_steps=1000)
