"""`env.backend=async`: Gymnasium's environments, each in a process of its own, stepped at the same time."""

import os
import random
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from zoo.errors import RunError


@dataclass
class InProcess:
    """Makes an environment, here or in a process that may have been started without the registrations made here.

    Attributes:
        spec: the environment's registration.
        one: makes the environment.
        parent: the process that steps it.
    """

    spec: EnvSpec
    one: Callable[[], gymnasium.Env[Any, Any]]
    parent: int

    def __call__(self) -> gymnasium.Env[Any, Any]:
        if os.getpid() != self.parent:
            gymnasium.registry.setdefault(self.spec.id, self.spec)
            # Ctrl-C goes to all processes of a terminal; the run takes one more step before it stops
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the run's handler
            os.setpgrp()  # `timeout` and the like send SIGTERM to the run's group
            random.seed()  # processes that are forked would draw the same numbers
            np.random.seed()
        return self.one()


class ProcessVectorEnv(AsyncVectorEnv):
    """`AsyncVectorEnv` under the zoo's autoreset rule, which says in one line that a process was killed."""

    def __init__(self, env_id: str, copies: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        spec, parent = gymnasium.spec(env_id), os.getpid()
        made = [InProcess(spec, one, parent) for one in copies]
        self._answered(super().__init__, made, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(self, **options: Any) -> Any:
        return self._answered(super().reset, **options)

    def step(self, actions: Any) -> Any:
        return self._answered(super().step, actions)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Ends the processes; without waiting for a step that was broken off, of which some answers have been read."""
        super().close_extras(timeout, terminate or self._state != AsyncState.DEFAULT)

    def _answered(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except (EOFError, ConnectionError) as error:
            processes = getattr(self, "processes", [])
            for process in processes:
                process.join(0.5)
            if not any(process.exitcode for process in processes):
                raise  # the environment's own: a simulator behind a socket
            for process in processes:
                process.kill()
            self.closed = True  # the others may not have answered yet
            raise RunError(
                "the process of an environment ended: its own error is above, or is the memory full (lower num_envs or "
                'eval_episodes), or does a script lack `if __name__ == "__main__":`? Without processes: '
                "env.backend=gymnasium"
            ) from error
