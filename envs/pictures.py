"""Draws environments, and explains why one cannot be drawn: MuJoCo needs OpenGL; without a window, EGL or OSMesa."""

import contextlib
import gc
import importlib
import io
import os
import sys
import warnings
from ctypes.util import find_library
from typing import Any

import gymnasium

# OpenGL backends that need no screen -> the library, and the Debian packages that have it
WITHOUT_SCREEN = {"egl": ("EGL", "libegl1 libgl1-mesa-dri"), "osmesa": ("OSMesa", "libosmesa6")}


def prepare(env_id: str) -> None:
    """Makes MuJoCo use the first screenless backend whose library is installed, unless `MUJOCO_GL` names one.

    Raises:
        ValueError: the environment is MuJoCo's, and the library that `MUJOCO_GL` names is missing.
    """
    there = [name for name, (library, _) in WITHOUT_SCREEN.items() if find_library(library)]
    if there and sys.platform == "linux":  # MuJoCo has these backends only there
        os.environ.setdefault("MUJOCO_GL", there[0])
    spec = gymnasium.registry.get(env_id)
    if env_id.startswith(("PointMaze", "ogbench/")) or (spec and "mujoco" in str(spec.entry_point)):
        try:
            import mujoco  # this loads the library

            renderer = sys.modules[mujoco.Renderer.__module__]
            importlib.reload(renderer.gl_context)  # an earlier import may have chosen another library
        except Exception as error:  # of many kinds
            raise ValueError(no_opengl()) from error


def make_drawn(env_id: str, max_episode_steps: int | None = None, **settings: Any) -> gymnasium.Env:
    """One of Gymnasium's environments, whose `render()` returns a picture, uint8 `[height, width, 3]`.

    Raises:
        ValueError: it cannot be drawn, or MuJoCo finds no OpenGL.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*possible render_modes.*")
            env = gymnasium.make(env_id, max_episode_steps=max_episode_steps, render_mode="rgb_array", **settings)
    except TypeError as error:  # it does not accept the argument
        raise ValueError(f"env={env_id} has no pictures.") from error
    inner: Any = getattr(env.unwrapped, "point_env", env.unwrapped)  # for Point Maze
    if hasattr(inner, "mujoco_renderer"):
        import mujoco

        camera = mujoco.mj_name2id(inner.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        if camera >= 0:  # the model's own, which follows the body; Gymnasium 1.4 uses one that stays behind
            inner.mujoco_renderer.camera_id = camera
        if not _draws(inner):
            raise ValueError(no_opengl())
    return env


def _draws(env: Any) -> bool:
    """Whether a MuJoCo environment can draw a first picture."""
    with contextlib.redirect_stderr(io.StringIO()):  # a half-made viewer complains when it is freed, which happens here
        try:
            env.render()
            return True
        except Exception:  # of many kinds, from three libraries
            pass
        gc.collect()
        return False


def no_opengl() -> str:
    """Says in one line why MuJoCo cannot draw with the backend that `MUJOCO_GL` names, and what to install."""
    chosen = os.environ.get("MUJOCO_GL")
    name = chosen if chosen in WITHOUT_SCREEN else "egl"
    library, packages = WITHOUT_SCREEN[name]
    others = [other for other, (its, _) in WITHOUT_SCREEN.items() if other != chosen and find_library(its)]
    instead = f", or set MUJOCO_GL={others[0]}, which is here" if others else ""
    if chosen not in WITHOUT_SCREEN:
        return (
            f"MuJoCo cannot draw with {f'MUJOCO_GL={chosen}' if chosen else 'a window'}: without a screen it needs EGL "
            f"or OSMesa. Type: apt-get install {packages}{instead}"
        )
    why = "finds no device" if find_library(library) else f"the library {library} is missing"
    return f"MuJoCo cannot draw with MUJOCO_GL={chosen}: {why}. Type: apt-get install {packages}{instead}"
