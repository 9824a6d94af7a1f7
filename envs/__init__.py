"""From names to vector environments with one autoreset rule, and the reference scores that normalize their returns."""

from zoo.envs import dmc, minatar, neorl2, ogbench, pointmaze  # noqa: F401 - their environments are Gymnasium's from here on
from zoo.envs.config import EnvConfig
from zoo.envs.make import make, make_one, make_with_spec, resolve_backend, spec_of
from zoo.envs.names import exists, in_envpool, known, time_limit

__all__ = [
    "EnvConfig", "exists", "in_envpool", "known", "make", "make_one", "make_with_spec", "resolve_backend", "spec_of",
    "time_limit",
]  # fmt: skip
