"""MuJoCo Warp: thousands of Gymnasium's MuJoCo tasks on the run's device, with tensors as inputs and outputs.

MuJoCo Warp (github google-deepmind/mujoco_warp) is MuJoCo in NVIDIA's Warp, for CUDA and for CPUs. A step is one graph
of kernels, recorded once and then replayed; its arrays are shared with torch, so nothing is copied and nothing waits
for the device. It differs from Gymnasium's MuJoCo in these ways:

- it computes in float32;
- it has no PGS solver, for which Humanoid asks: here Newton's finds the optimum of the same problem. A test lets MuJoCo
  itself take steps with both: they differ by less than 1e-5 in positions and 1e-3 in velocities;
- where a capsule steeper than 60 degrees touches the floor, its friction pyramid is rotated about the normal. This
  affects Ant's legs; in the plane, it makes no difference.
"""

import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor

from zoo.envs.config import EnvConfig
from zoo.envs.make import make_one
from zoo.envs.warp_tasks import TASKS, Physics
from zoo.errors import UsageError
from zoo.machine import cache_dir, writable


class Step(NamedTuple):
    """The result of a step of N environments."""

    obs: Tensor  # [N, D] to act on; after an episode's end, the first one of the next
    reward: Tensor  # [N]
    terminated: Tensor  # [N] bool
    truncated: Tensor  # [N] bool
    next_obs: Tensor  # [N, D] the outcome of the step; at an episode's end, its last observation


class WarpEnvs:
    """`num_envs` copies of one of `TASKS` in float32 on a device.

    The step that ends an episode starts the next one, in that world only, without reading any tensor's value.

    Attributes:
        num_envs: N.
        single_observation_space: Gymnasium's; so is `single_action_space`.

    Raises:
        UsageError: MuJoCo Warp is not installed.
    """

    def __init__(self, config: EnvConfig, num_envs: int, device: torch.device) -> None:
        self._warp, self._mujoco_warp = _load(config.id)
        env = make_one(config.id)
        assert env.spec is not None  # Gymnasium has made it
        self.num_envs, self._device = num_envs, device
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        bounds = env.action_space
        assert isinstance(bounds, gymnasium.spaces.Box)
        self._low, self._high = (torch.tensor(bound, device=device) for bound in (bounds.low, bounds.high))
        limit = config.max_episode_steps or env.spec.max_episode_steps
        assert limit is not None
        self._time_limit = limit
        simulator: Any = env.unwrapped
        self._frame_skip: int = simulator.frame_skip
        model = simulator.model
        with self._warp.ScopedDevice(str(device)):
            self._model, self._worlds = self._put(model)
        mass = torch.tensor(model.body_mass, dtype=torch.float32, device=device)
        self._task = TASKS[config.id]([model.body(i).name for i in range(model.nbody)], mass, simulator.dt)
        self._qpos_at_rest, self._qvel_at_rest = (
            torch.tensor(state, dtype=torch.float32, device=device).repeat(num_envs, 1)
            for state in (simulator.init_qpos, simulator.init_qvel)
        )
        env.close()
        tensor = self._warp.to_torch
        self._now = Physics(*(tensor(getattr(self._worlds, name)) for name in Physics._fields))
        self._ctrl, self._warmstart = tensor(self._worlds.ctrl), tensor(self._worlds.qacc_warmstart)
        self._before = torch.zeros(num_envs, device=device)  # the task's position at the beginning of the step
        self._elapsed = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._generator = torch.Generator(device)
        self._simulate, self._derive = self._recorded(self._advance), self._recorded(self._kinematics)

    def reset(self, seed: int) -> Tensor:
        """Starts all episodes from random states determined by the seed. Returns observations `[N, D]`."""
        self._generator.manual_seed(seed)
        everywhere = torch.ones(self.num_envs, dtype=torch.bool, device=self._device)
        return self._start(everywhere, self._task.observe(self._now), self._before)

    def random_action(self) -> Tensor:
        """Uniform actions `[N, A]`."""
        drawn = torch.rand(self._ctrl.shape, generator=self._generator, device=self._device)
        return self._low + (self._high - self._low) * drawn

    def step(self, action: Tensor) -> Step:
        """One step with actions `[N, A]`."""
        self._ctrl.copy_(action)
        self._simulate()
        next_obs = self._task.observe(self._now)
        reward = self._task.reward(self._now, action, self._before)
        terminated = ~self._task.healthy(self._now)
        self._elapsed += 1
        truncated = self._elapsed >= self._time_limit
        obs = self._start(terminated | truncated, next_obs, self._task.position(self._now).clone())
        return Step(obs, reward, terminated, truncated, next_obs)

    def state_dict(self) -> dict[str, Tensor]:
        """The simulators' states within their episodes, and their random numbers: all that the next step depends on."""
        return {name: tensor.clone() for name, tensor in self._state().items()} | {
            "generator": self._generator.get_state()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores these states."""
        for name, tensor in self._state().items():
            tensor.copy_(state[name])
        if state["generator"].shape == self._generator.get_state().shape:  # otherwise it is from another kind of device
            self._generator.set_state(state["generator"].cpu())

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _state(self) -> dict[str, Tensor]:
        return {
            "qpos": self._now.qpos,
            "qvel": self._now.qvel,
            "warmstart": self._warmstart,
            "before": self._before,
            "elapsed": self._elapsed,
        }

    def _start(self, where: Tensor, obs: Tensor, position: Tensor) -> Tensor:
        """Starts the episodes for which `where` `[N]` is set. Returns the observations, which elsewhere are `obs`."""
        qpos, qvel = self._task.start(self._qpos_at_rest, self._qvel_at_rest, self._generator)
        column = where[:, None]
        self._now.qpos.copy_(torch.where(column, qpos, self._now.qpos))
        self._now.qvel.copy_(torch.where(column, qvel, self._now.qvel))
        self._warmstart.masked_fill_(column, 0)
        self._elapsed.masked_fill_(where, 0)
        if self._task.derived:
            self._derive()
        # no forces have acted yet
        first = self._now._replace(
            qfrc_actuator=torch.zeros_like(self._now.qfrc_actuator), cfrc_ext=torch.zeros_like(self._now.cfrc_ext)
        )
        self._before.copy_(torch.where(where, self._task.position(first), position))
        return torch.where(column, self._task.observe(first), obs)

    def _put(self, model: Any) -> tuple[Any, Any]:
        """The model and the worlds' state as Warp's arrays."""
        import mujoco

        if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
            model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        contacts = 2 * model.ngeom  # both ends of every capsule
        rows = 4 * contacts + model.njnt  # a pyramid for each, and the limits of the joints
        # `opt.deterministic` is not set: mujoco_warp 4.0 orders neither contacts nor constraints (its issue 1422), and
        # fixed sums alone take ten times as long on an H200 and make no more worlds equal to the last bit
        put = self._mujoco_warp.put_model(model)
        return put, self._mujoco_warp.make_data(model, self.num_envs, nconmax=contacts, njmax=rows)

    def _advance(self) -> None:
        for _ in range(self._frame_skip):
            self._mujoco_warp.step(self._model, self._worlds)
        self._mujoco_warp.rne_postconstraint(self._model, self._worlds)  # cfrc_ext

    def _kinematics(self) -> None:
        self._mujoco_warp.kinematics(self._model, self._worlds)
        self._mujoco_warp.com_pos(self._model, self._worlds)
        self._mujoco_warp.com_vel(self._model, self._worlds)

    def _recorded(self, kernels: Callable[[], None]) -> Callable[[], None]:
        """A function that launches these kernels as one graph."""
        warp, device = self._warp, str(self._device)
        with warp.ScopedDevice(device):
            kernels()  # compiles them
            with warp.ScopedCapture() as capture:
                kernels()
            warp.synchronize_device()  # torch continues on its own stream
        if self._device.type == "cpu":
            return lambda: warp.capture_launch(capture.graph)
        return lambda: warp.capture_launch(
            capture.graph, stream=warp.stream_from_torch(torch.cuda.current_stream(self._device))
        )


def _load(env_id: str) -> tuple[Any, Any]:
    """Warp and MuJoCo Warp, set to report only errors, and to keep their kernels in the zoo's cache.

    Raises:
        UsageError: they are not installed.
    """
    try:
        warp = importlib.import_module("warp")  # its types are not strict
        warp.config.log_level = warp.LOG_ERROR
        if "WARP_CACHE_PATH" not in os.environ:
            warp.config.kernel_cache_dir = _kernels()
        with _silent():
            warp.init()
        import mujoco_warp
    except ImportError as error:
        raise UsageError(f"env={env_id} in MuJoCo Warp needs mujoco_warp. Type: pip install 'rl-zoo[warp]'") from error
    return warp, mujoco_warp


@functools.cache
def _kernels() -> str:
    """The folder for compiled kernels: in the zoo's cache, or this process's own if that cannot be written."""
    folder = cache_dir() / "warp"
    return str(folder if writable(folder) else tempfile.mkdtemp())


@contextmanager
def _silent() -> Iterator[None]:
    """Silences what C++ code writes to the terminal: that there is no GPU."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
