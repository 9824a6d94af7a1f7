"""Which environments there are, which of them EnvPool has, and which packages have the others."""

import contextlib
import importlib
import io

import gymnasium

from zoo.envs import dmc, series

# prefixes of ids -> the package that has these environments, and the zoo's extra that installs it
PACKAGES = {
    "ALE/": ("ale_py", "atari"),
    "minatar/": ("minatar", "minatar"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "ogbench/": ("ogbench", "ogbench"),
    **dict.fromkeys(
        ("PointMaze", "AntMaze", "AdroitHand", "FrankaKitchen", "Fetch", "HandManipulate", "HandReach"),
        ("gymnasium_robotics", "robotics"),
    ),
}

# EnvPool has other environments of the same names too: ids with these prefixes are known to be the same as Gymnasium's
SAME_IN_ENVPOOL = ("ALE/", "dmc/", "MiniGrid-")
# these are not the same: some lack contact forces in the observation; the car and its track are drawn differently;
# Gymnasium's Pusher-v4 needs an older MuJoCo
OTHER_IN_ENVPOOL = ("Humanoid-v4", "HumanoidStandup-v4", "CarRacing-v2", "CarRacing-v3", "Pusher-v4")
SAME_ENTRY_POINTS = ("gymnasium.envs.classic_control", "gymnasium.envs.box2d", "gymnasium.envs.mujoco")

# MuJoCo Warp simulates MuJoCo's models; for these, `zoo.envs.warp_tasks` has Gymnasium's tasks
IN_WARP = (
    "Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5", "InvertedPendulum-v5", "Reacher-v5", "Swimmer-v5",
    "Walker2d-v5",
)  # fmt: skip


def in_envpool() -> dict[str, str]:
    """The ids of EnvPool's environments -> EnvPool's names for them; empty if it is not installed."""
    try:
        import envpool
    except ImportError:
        return {}
    specs = envpool.registration.registry.specs.items()  # name -> its module, and more
    return {f"ALE/{name}" if module == "envpool.atari" else name: name for name, (module, *_) in specs} | dmc.TASKS


def same_in_envpool(env_id: str) -> bool:
    """Whether EnvPool is installed and has the same environment."""
    if env_id in OTHER_IN_ENVPOOL:
        return False
    if not env_id.startswith(SAME_IN_ENVPOOL):
        entry_point = gymnasium.registry[env_id].entry_point if env_id in gymnasium.registry else None
        if not (isinstance(entry_point, str) and entry_point.startswith(SAME_ENTRY_POINTS)):
            return False
    return env_id in in_envpool()


def load_package(env_id: str) -> None:
    """Imports the package that has the environment, if Gymnasium does not have it: it registers its ids with Gymnasium.

    Raises:
        ValueError: the package is not installed, or there is no such series.
    """
    if env_id.startswith(series.PREFIX):
        series.register(env_id)
    for prefix, (package, extra) in PACKAGES.items():
        if env_id.startswith(prefix):
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # some print news about their environments
                    importlib.import_module(package)
            except ImportError as error:
                raise ValueError(f"env={env_id} needs {package}. Type: pip install 'rl-zoo[{extra}]'") from error


def known() -> list[str]:
    """The ids of the environments in the installed packages, for suggestions."""
    return [*gymnasium.registry, *(env_id for env_id in in_envpool() if env_id.startswith(SAME_IN_ENVPOOL))]


def exists(env_id: str) -> bool:
    """Whether there is such an environment. Raises ValueError if the package that would know is not installed.

    It also raises one, listing the existing series, if there is no such series.
    """
    if env_id in gymnasium.registry or same_in_envpool(env_id):
        return True
    if env_id.startswith(series.PREFIX):
        load_package(env_id)
        return True
    try:
        load_package(env_id)
        return bool(gymnasium.spec(env_id))
    except ValueError:
        if in_envpool() and env_id.startswith(SAME_IN_ENVPOOL):  # it has nearly all of these, but not this one
            return False
        raise
    except gymnasium.error.Error:
        return False


def time_limit(env_id: str) -> int | None:
    """Steps after which an episode is truncated, if Gymnasium knows a limit."""
    try:
        if env_id not in gymnasium.registry:
            load_package(env_id)
        return gymnasium.spec(env_id).max_episode_steps
    except (ValueError, gymnasium.error.Error):
        return None
