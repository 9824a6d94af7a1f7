"""`make`: a Gymnasium `VectorEnv` from any backend, under one autoreset rule.

The rule is Gymnasium's `SAME_STEP`: the step that ends an episode returns the first observation of the next one, and
`info["final_obs"][i]` (where `info["_final_obs"][i]`) holds the last observation of the episode that ended. Every step
of every environment is therefore one transition, none is a reset, and no final observation is lost.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation, ReshapeObservation, TransformObservation

from zoo.envs import atari, images, minigrid, ogbench, pictures
from zoo.envs.bipedal_walker import NewWorld
from zoo.envs.config import EnvConfig
from zoo.envs.dynamics import changed
from zoo.envs.foreign import Plain, check_wrappers, is_foreign
from zoo.envs.names import IN_WARP, load_package, same_in_envpool
from zoo.envs.processes import ProcessVectorEnv
from zoo.errors import UsageError
from zoo.spec import Spec

BACKENDS = ("auto", "envpool", "gymnasium", "async", "warp")


def resolve_backend(config: EnvConfig) -> str:
    """Resolves `auto` on this machine to `envpool` or `gymnasium`; returns any other backend unchanged.

    Raises:
        ValueError: there is no such backend, or Warp does not have the environment.
    """
    if config.backend not in BACKENDS:
        raise ValueError(f"env.backend={config.backend} does not exist. There are: {', '.join(BACKENDS)}.")
    if config.backend == "auto":
        return "envpool" if same_in_envpool(config.id) and not config.only_in_gymnasium else "gymnasium"
    if config.backend == "async" and config.is_atari:
        raise ValueError("env.backend=async: Atari games are stepped by threads already. Type: env.backend=gymnasium")
    if config.only_in_gymnasium and config.backend not in ("gymnasium", "async"):
        names = ", ".join(f"env.{name}" for name in config.only_in_gymnasium)
        raise ValueError(f"env.backend={config.backend} has no {names}. Type: env.backend=gymnasium")
    if config.backend == "warp" and config.id not in IN_WARP:
        raise ValueError(
            f"env.backend=warp does not have {config.id}. It has: {', '.join(IN_WARP)}. Type: env.backend=gymnasium"
        )
    return config.backend


def make(config: EnvConfig, num_envs: int, threads: int = 1, training: bool = False, drawn: bool = False) -> VectorEnv:
    """`num_envs` copies of an environment, stepped together.

    With `env.backend=warp`, these are Gymnasium's, for evaluation; those for training are `zoo.envs.warp.WarpEnvs`.

    Args:
        config: which environment.
        num_envs: the number of copies.
        threads: CPU threads for environments that are stepped in C++.
        training: in Atari games a lost life terminates; `env.changed_in` may distinguish training from evaluation.
        drawn: `render()` returns a picture of each, uint8 `[height, width, 3]`. Only Gymnasium's can be drawn.

    Raises:
        ValueError: no such environment or backend, the backend does not have it, its package is missing, its images
            cannot be understood, or it cannot be drawn here.
    """
    envs: VectorEnv
    if drawn:
        pictures.prepare(config.id)
    backend = resolve_backend(config)
    if backend == "envpool" and not drawn:
        from zoo.envs.envpool import EnvPoolVectorEnv

        envs = EnvPoolVectorEnv(config.id, num_envs, threads, config.max_episode_steps, config.sticky)
    else:
        with _explained(config):
            if config.is_atari:
                envs = atari.from_ale(config.id, num_envs, threads, config.sticky, drawn)
            else:
                one = partial(_make_changed, config, training, drawn)
                tasks = config.id.startswith(ogbench.PREFIX)
                copies = [partial(one, copy=i) if tasks else one for i in range(num_envs)]
                if backend == "async" and not drawn:
                    envs = ProcessVectorEnv(config.id, copies)
                else:
                    envs = SyncVectorEnv(copies, autoreset_mode=AutoresetMode.SAME_STEP)
    if not config.is_atari:
        return envs
    envs = atari.Lives(envs, atari.has_fire(config.id))
    return atari.EpisodicLife(envs) if training else envs


def spec_of(config: EnvConfig) -> Spec:
    """The shapes and bounds of an environment. Raises UsageError if it cannot be made, or is unsuitable for agents."""
    envs, spec = make_with_spec(config, 1)
    envs.close()
    return spec


def make_with_spec(
    config: EnvConfig, num_envs: int, threads: int = 1, drawn: bool = False, trained: Spec | None = None
) -> tuple[VectorEnv, Spec]:
    """Environments from `make`, and their spec.

    Args:
        trained: the spec of the agent that will play in them, if there is one.

    Raises:
        UsageError: they cannot be made, or their spaces are unsuitable for all agents, or differ from the agent's.
    """
    try:
        envs = make(config, num_envs, threads, drawn=drawn)
        spec = Spec.of(envs.single_observation_space, envs.single_action_space)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if trained not in (None, spec):
        envs.close()
        pairs = ((name, value, getattr(trained, name)) for name, value in vars(spec).items())
        others = "; ".join(f"{name} {found}, not {before}" for name, found, before in pairs if found != before)
        raise UsageError(f"env={config.id} is not what the agent was trained in: its {others}")
    return envs, spec


@contextmanager
def _explained(config: EnvConfig) -> Iterator[None]:
    """Explains in one line why an environment cannot be made."""
    env_id = config.id
    load_package(env_id)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is out of date.*")  # an older version was requested by name
            yield
    except gymnasium.error.UnregisteredEnv as error:
        others = "`zoo list` shows what there is; one of your own needs its module: ZOO_IMPORT=MODULE zoo ..."
        raise ValueError(f"env={env_id} does not exist. {error} {others}") from error
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise ValueError(f"env={env_id} cannot be made. {error}{_newest(env_id)}") from error
    except AssertionError as error:
        why = f". {str(error) or 'An assertion in it failed.'}"
        if "gymnasium_robotics" in str(gymnasium.spec(env_id).entry_point):  # Fetch, Kitchen and hands: an older MuJoCo
            why = f": its package does not work with MuJoCo {version('mujoco')}."
        raise ValueError(f"env={env_id} cannot be made{why}") from error
    except gymnasium.error.Error as error:  # a malformed or withdrawn id
        raise ValueError(f"env={env_id} cannot be made. {error}") from error
    except Exception as error:
        if not config.kwargs or isinstance(error, ValueError):
            raise
        raise ValueError(
            f"env={env_id} cannot be made with {config.kwargs}. {type(error).__name__}: {error}"
        ) from error


def _newest(env_id: str) -> str:
    """A hint at a later version that needs another package, or none: for gym's old MuJoCo tasks."""
    namespace, name, version = gymnasium.envs.registration.parse_env_id(env_id)
    newest = gymnasium.envs.registration.find_highest_version(namespace, name)
    return "" if newest in (None, version) else f" Try env={name}-v{newest}."


def make_one(env_id: str, max_episode_steps: int | None = None, drawn: bool = False, **settings: Any) -> gymnasium.Env:
    """One of Gymnasium's environments, set up as in `make`, with settings of its own.

    Raises:
        ValueError: its images cannot be understood, or it cannot be drawn here.
    """
    made_by = str(gymnasium.spec(env_id).entry_point)
    if "mujoco" in made_by:
        _hush_mujoco()
    env = (pictures.make_drawn if drawn else gymnasium.make)(env_id, max_episode_steps=max_episode_steps, **settings)
    if "box2d.bipedal_walker" in made_by:
        env = NewWorld(env)
    if env_id.startswith("MiniGrid-"):
        return minigrid.image_only(env)
    space = env.observation_space
    if isinstance(space, Box) and not space.shape:
        return ReshapeObservation(env, (1,))
    if _holds_an_image(space):
        raise ValueError(f"env={env_id} observes images and other things. Let it observe the image alone, or none")
    if not isinstance(space, Box) and space.is_np_flattenable:  # whole numbers become one-hot vectors
        return FlattenObservation(TransformObservation(env, lambda obs: obs, _by_name(space)))
    return env if env_id.startswith("minatar/") else images.channels_first(env, env_id)


def _holds_an_image(space: Space[Any]) -> bool:
    """Whether an image is one of several observations, which would be flattened."""
    if not isinstance(space, Dict | Tuple):
        return False
    parts = space.values() if isinstance(space, Dict) else space
    return any(
        _holds_an_image(part) or (isinstance(part, Box) and part.dtype == np.uint8 and len(part.shape) == 3)
        for part in parts
    )


def _by_name(space: Space[Any]) -> Space[Any]:
    """A space whose dictionaries are ordered by name, the order in which observations are flattened."""
    return Dict({name: _by_name(space[name]) for name in sorted(space)}) if isinstance(space, Dict) else space


def _make_changed(config: EnvConfig, training: bool, drawn: bool, **settings: Any) -> gymnasium.Env:
    """One environment with the configured dynamics; what others than Gymnasium's and the zoo's return is made plain."""
    env = changed(make_one(config.id, config.max_episode_steps, drawn, **config.kwargs, **settings), config, training)
    check_wrappers(env)
    return Plain(env) if is_foreign(env) else env


def _hush_mujoco() -> None:
    """Turns MuJoCo's warnings, which go to the terminal and to a file in the working directory, into Python warnings.

    One is dropped: Gymnasium's HalfCheetah causes it by an attribute that MuJoCo is going to remove.
    """
    import mujoco

    def warn(message: str) -> None:
        if "settotalmass" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=2)

    mujoco.set_mju_user_warning(warn)
