"""Names -> vector environments with one autoreset rule, and the reference scores that normalize their returns."""

from zoo.envs.config import EnvConfig, Spec
from zoo.envs.make import make

__all__ = ["EnvConfig", "Spec", "make"]
