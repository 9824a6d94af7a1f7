"""Stable-Baselines3 (PyTorch) and SBX (JAX), which have the same interface. This imports nothing from the zoo.

SBX runs a whole update, or all updates on a rollout, in one compiled function.
"""

import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

HOPPER, PONG = "Hopper-v5", "ALE/Pong-v5"

Run = Callable[[int], None]


def learner(library: str, algo: str, policy: str, env: Any, device: str = "cpu", **settings: Any) -> Any:
    """A model of `stable_baselines3` or `sbx`."""
    return getattr(importlib.import_module(library), algo)(policy, env, device=device, seed=0, **settings)


def learning(model: Any, first: int, worth: int) -> Run:
    """A function to time: after the first steps, each call has `worth` environment steps and their updates."""
    model.learn(first)
    return lambda count: model.learn(count * worth, reset_num_timesteps=False)


def off_policy(library: str, algo: str, device: str = "cpu") -> Run:
    """SAC or TD3 on Hopper, with one update per step."""
    model = learner(
        library, algo, "MlpPolicy", gymnasium.make(HOPPER), device, learning_rate=3e-4, batch_size=256,
        buffer_size=100_000, learning_starts=1_000, train_freq=1, gradient_steps=1,
        policy_kwargs={"net_arch": [256, 256]},
    )  # fmt: skip
    return learning(model, 1_001, worth=1)


def on_policy(library: str, device: str = "cpu") -> Run:
    """PPO in one Hopper environment, with a rollout of 2,048 steps per call."""
    env = VecNormalize(DummyVecEnv([lambda: gymnasium.make(HOPPER)]))
    net = {"pi": [64, 64], "vf": [64, 64]}
    model = learner(
        library,
        "PPO",
        "MlpPolicy",
        env,
        device,
        n_steps=2_048,
        n_epochs=10,
        batch_size=64,
        policy_kwargs={"net_arch": net},
    )
    return learning(model, 1, worth=2_048)


def pong(num_envs: int) -> VecFrameStack:
    """Pong, where a lost life terminates, rewards are clipped and four frames are stacked."""
    import ale_py

    gymnasium.register_envs(ale_py)
    once = {"frameskip": 1, "repeat_action_probability": 0.0}  # the wrapper skips frames itself
    return VecFrameStack(make_atari_env(PONG, num_envs, 0, env_kwargs=once), 4)


def pong_on_policy(library: str) -> Run:
    """PPO in eight Pong environments, with a rollout of 128 steps each per call."""
    model = learner(
        library, "PPO", "CnnPolicy", pong(8), n_steps=128, n_epochs=4, batch_size=256, learning_rate=2.5e-4,
        clip_range=0.1, ent_coef=0.01,
    )  # fmt: skip
    return learning(model, 1, worth=1_024)


def pong_dqn(library: str, scan: bool = True) -> Run:
    """DQN on Pong, with four environment steps and an update per call.

    Args:
        scan: whether SBX runs its update in a `jax.lax.scan`, which is its default, or calls the same step directly.
    """
    if not scan:
        jax = importlib.import_module("jax")
        jax.lax.scan = lambda step, carry, xs, unroll: step(carry, xs[0])
    model = learner(
        library, "DQN", "CnnPolicy", pong(1), learning_rate=1e-4, train_freq=4, target_update_interval=1_000,
        batch_size=32, buffer_size=20_000, learning_starts=1_000,
    )  # fmt: skip
    return learning(model, 1_004, worth=4)
