"""`make`: a Gymnasium `VectorEnv` from either backend, under one autoreset rule.

The rule is Gymnasium's `SAME_STEP`: the step that ends an episode returns the first observation of the next one, and
`info["final_obs"][i]` (where `info["_final_obs"][i]`) holds the last observation of the episode that ended. So every
step of every environment is one transition, none is a reset, and no final observation is lost.
"""

import warnings
from functools import partial

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from zoo.envs.config import EnvConfig


def make(config: EnvConfig, num_envs: int) -> VectorEnv:
    """`num_envs` copies of an environment, stepped together in this process.

    Raises:
        ValueError: no such environment, no such backend, or the backend does not have it.
    """
    if config.backend not in ("gymnasium", "envpool"):
        raise ValueError(f"env.backend={config.backend} does not exist. There are: envpool, gymnasium.")
    if config.backend == "envpool":
        from zoo.envs.envpool import EnvPoolVectorEnv

        return EnvPoolVectorEnv(config.id, num_envs)
    return SyncVectorEnv([partial(_make_one, config.id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def _make_one(env_id: str) -> gymnasium.Env:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is out of date.*")  # an older version was asked for by name
            if "mujoco" in str(gymnasium.spec(env_id).entry_point):
                _hush_mujoco()
            return gymnasium.make(env_id)
    except gymnasium.error.UnregisteredEnv as error:
        raise ValueError(f"env={env_id} does not exist. {error} `zoo list` shows what there is.") from error
    except (gymnasium.error.Error, ImportError) as error:  # a malformed or withdrawn id, a package that is missing
        raise ValueError(f"env={env_id} cannot be made. {error}") from error


def _hush_mujoco() -> None:
    """MuJoCo writes its warnings to the terminal and to a file in the working directory: makes Python warnings of them.

    All but one, which Gymnasium's HalfCheetah causes by an attribute that MuJoCo means to drop.
    """
    import mujoco

    def warn(message: str) -> None:
        if "settotalmass" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    mujoco.set_mju_user_warning(warn)
