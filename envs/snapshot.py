"""The state of a simulator within an episode, so that a run can resume there in another process.

The state is known for Gymnasium's MuJoCo and classic control tasks, in process, for `series`, and for `Pipeline` and
`DMSD` of `neorl2`: their next steps are a function of a few arrays. For all other simulators, such as EnvPool's, it is
unknown.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from zoo.envs.dynamics import ActionNoise
from zoo.envs.foreign import layers
from zoo.envs.neorl2 import DMSD, Pipeline
from zoo.envs.series import Series

CLASSIC, MUJOCO = "gymnasium.envs.classic_control", "gymnasium.envs.mujoco"
# derived quantities of MuJoCo with which a reward compares a step's outcome: they stem from an earlier substep
DERIVED = ("xpos", "xipos")


def save(envs: VectorEnv) -> dict[str, Any] | None:
    """The state of all environments, as arrays and numbers; None if it is unknown for one of them."""
    if not isinstance(envs, SyncVectorEnv):
        return None
    if not all(map(_usual, envs.envs)):
        return None
    simulators = [_save(env.unwrapped) for env in envs.envs]
    if any(simulator is None for simulator in simulators):
        return None
    return {
        "simulators": simulators,
        "elapsed": [env.get_wrapper_attr("_elapsed_steps") for env in envs.envs],
        "rng": [_rng(env.unwrapped.np_random) for env in envs.envs],
        "actions": _rng(envs.action_space.np_random),
    }


def restore(envs: VectorEnv, state: dict[str, Any]) -> None:
    """Restores a saved state in environments of the same kind, which must have been reset."""
    assert isinstance(envs, SyncVectorEnv)
    for i, env in enumerate(envs.envs):
        _restore(env.unwrapped, state["simulators"][i])
        env.set_wrapper_attr("_elapsed_steps", state["elapsed"][i])
        _put_rng(env.unwrapped.np_random, state["rng"][i])
    _put_rng(envs.action_space.np_random, state["actions"])


def _usual(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether it has the wrappers of a Gymnasium task with a step limit, and no other wrappers that have a state."""
    *around, _ = layers(env)
    wrappers = set(map(type, around))
    return TimeLimit in wrappers and wrappers <= {TimeLimit, OrderEnforcing, PassiveEnvChecker, ActionNoise}


def _save(env: Any) -> dict[str, Any] | None:
    if isinstance(env, MujocoEnv) and type(env).__module__.startswith(MUJOCO):
        import mujoco

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        physics = np.empty(mujoco.mj_stateSize(env.model, kind))
        mujoco.mj_getState(env.model, env.data, physics, kind)
        return {"physics": physics.tolist(), **{name: getattr(env.data, name).tolist() for name in DERIVED}}
    if isinstance(env, Series):
        return {"at": env.at}
    if isinstance(env, Pipeline | DMSD):
        return env.get_state()
    if type(env).__module__.startswith(CLASSIC):
        state = np.asarray(env.state)
        return {
            "state": state.tolist(),
            "dtype": str(state.dtype),
            "beyond": getattr(env, "steps_beyond_terminated", 0),
        }
    return None


def _restore(env: Any, state: dict[str, Any]) -> None:
    if isinstance(env, MujocoEnv):
        import mujoco

        mujoco.mj_setState(env.model, env.data, np.array(state["physics"]), mujoco.mjtState.mjSTATE_INTEGRATION)
        for name in DERIVED:
            getattr(env.data, name)[:] = state[name]
    elif isinstance(env, Series):
        env.at = state["at"]
    elif isinstance(env, Pipeline | DMSD):
        env.set_state(state)
    else:
        env.state = np.array(state["state"], state["dtype"])
        env.steps_beyond_terminated = state["beyond"]


def _rng(generator: np.random.Generator) -> dict[str, Any]:
    """The state of NumPy's PCG64, with its long integers as text."""
    state: Any = generator.bit_generator.state
    return {**state, "state": {name: str(number) for name, number in state["state"].items()}}


def _put_rng(generator: np.random.Generator, state: dict[str, Any]) -> None:
    numbers = {name: int(number) for name, number in state["state"].items()}
    generator.bit_generator.state = {**state, "state": numbers}
