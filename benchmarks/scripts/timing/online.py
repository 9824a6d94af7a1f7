"""The loops of online algorithms: environment steps and updates."""

import importlib
import itertools
from typing import Any

import torch

from zoo.algos import dqn, ppo, stream_ac
from zoo.benchmarks.scripts.timing.offline import Run, begin, repeat
from zoo.data.buffers import ReplayBuffer, RolloutBuffer, replay_buffer
from zoo.envs import EnvConfig, make
from zoo.runs.compilation import accelerated, compile_update
from zoo.runs.stepper import EnvStepper
from zoo.streaming import Sample

CPU = torch.device("cpu")
HOPPER, PONG = "Hopper-v5", "ALE/Pong-v5"
AGENTS = {"sac": "SAC", "td3": "TD3"}
ROLLOUT = 2_048  # total steps of all environments
PONG_DQN: dict[str, Any] = {"batch_size": 32, "buffer_size": 20_000, "learning_starts": 1_000}


def stepper(env: str, num_envs: int, backend: str, device: str = "cpu") -> Any:
    """Environments as in a training loop."""
    config = EnvConfig(id=env, backend=backend)
    if backend == "warp":
        warp, steppers = (importlib.import_module(name) for name in ("zoo.envs.warp", "zoo.runs.tensor_stepper"))
        return steppers.TensorStepper(warp.WarpEnvs(config, num_envs, torch.device(device)), 0, lambda *_: None)
    envs = make(config, num_envs, torch.get_num_threads(), training=True)
    return EnvStepper(envs, 0, torch.device(device), lambda *_: None)


def alone(num_envs: int, backend: str, device: str = "cpu", env: str = HOPPER) -> Run:
    """Environments alone, with uniformly random actions. For Gymnasium and EnvPool, these are sampled in advance."""
    envs = stepper(env, num_envs, backend, device)
    if backend == "warp":
        return repeat(lambda: envs.step(envs.random_action()))
    actions = itertools.cycle([envs.envs.action_space.sample() for _ in range(1_000)])
    return repeat(lambda: envs.envs.step(next(actions)))


def off_policy(
    algo: str, compiled: bool | str = False, num_envs: int = 1, backend: str = "gymnasium", device: str = "cpu",
    updates: int | None = None,
) -> Run:  # fmt: skip
    """The loop of `algos/sac.py` or `algos/td3.py` on Hopper, counted in environment steps.

    Args:
        updates: the number of updates after each step of all environments; None for the number of environments.
    """
    begin()
    where = torch.device(device)
    envs = stepper(HOPPER, num_envs, backend, device)
    module: Any = importlib.import_module(f"zoo.algos.{algo}")
    agent = getattr(module, AGENTS[algo])(envs.spec, module.Config()).to(where)
    buffer = ReplayBuffer(100_000, envs.spec, where)
    for _ in range(max(10, 1_000 // num_envs) if updates else 1_000):
        buffer.add(envs.step(envs.random_action()))
    update = accelerated(agent.update, compiled, where)
    delays = itertools.cycle([(True,), (False,)] if algo == "td3" else [()])

    def step() -> None:
        transition = envs.step(agent.act(envs.obs, explore=True))
        buffer.add(transition)
        ended = transition.terminated | transition.truncated
        agent.head.update_support(transition.reward[None], ended[None], agent.critic, agent.target_critic)
        for _ in range(updates or num_envs):
            update(buffer.sample(agent.config.batch_size), *next(delays))

    return lambda count: repeat(step)(count // num_envs)


def on_policy(
    compiled: bool | str = False, num_envs: int = 1, backend: str = "gymnasium", num_steps: int = ROLLOUT,
    device: str = "cpu", env: str = HOPPER,
) -> Run:  # fmt: skip
    """The loop of `algos/ppo.py`: a rollout of `num_steps` steps per environment, and the updates on it."""
    envs = stepper(env, num_envs, backend, device)
    return rollouts(envs, ppo.Config(num_steps=num_steps), compiled, torch.device(device))


def pong_on_policy(backend: str, compiled: bool = False) -> Run:
    """The same in eight Pong environments."""
    config = ppo.Config(
        num_steps=128, epochs=4, minibatches=4, lr=2.5e-4, clip=0.1, entropy_coef=0.01, normalize_reward=False,
        clip_reward=True,
    )  # fmt: skip
    return rollouts(stepper(PONG, 8, backend), config, compiled)


def rollouts(envs: Any, config: ppo.Config, compiled: bool | str, device: torch.device = CPU) -> Run:
    """PPO's loop, one rollout per call."""
    begin()
    agent = ppo.PPO(envs.spec, config).to(device)
    agent.update = accelerated(agent.update, compiled, device)  # type: ignore[method-assign]

    def iterate() -> None:
        buffer = RolloutBuffer(device)
        for _ in range(config.num_steps):
            action = agent.sample(envs.obs)
            buffer.append(envs.step(agent.policy.clip(action))._replace(action=action))
        agent.learn(agent.scale_reward(buffer.stacked()))

    return repeat(iterate)


def pong_dqn(backend: str, compiled: bool = False) -> Run:
    """The loop of `algos/dqn.py` on Pong: `train_every` environment steps, and an update."""
    begin()
    envs = stepper(PONG, 1, backend)
    config = dqn.Config(lr=1e-4, train_every=4, target_every=1_000, clip_reward=True, **PONG_DQN)
    agent = dqn.DQN(envs.spec, config)
    buffer = replay_buffer(config.buffer_size, envs.spec, CPU, envs.num_envs, stacked=True)
    for _ in range(config.learning_starts):
        buffer.add(envs.step(envs.random_action()))
    update = compile_update(agent.update) if compiled else agent.update

    updates = itertools.count(1)

    def step() -> None:
        for _ in range(config.train_every):
            transition = envs.step(agent.explore(agent.act(envs.obs), config.epsilon))
            buffer.add(transition._replace(reward=transition.reward.sign()), envs.ended)
        update(buffer.sample_n_step(config.batch_size, config.n_step, config.discount))
        if next(updates) * config.train_every % config.target_every == 0:
            agent.update_target()

    return repeat(step)


def streaming(env: str, compiled: bool = False) -> Run:
    """The loop of `algos/stream_ac.py`: an environment step and an update on it."""
    begin()
    envs = stepper(env, 1, "gymnasium")
    agent = stream_ac.StreamAC(envs.spec, stream_ac.Config())
    update = compile_update(agent.update) if compiled else agent.update
    agent.start(envs.obs[0])

    def step() -> None:
        transition = envs.step(agent.policy.clip(agent.action)[None])
        update(Sample.of(transition))
        if envs.ended[0]:
            agent.start(envs.obs[0])

    return repeat(step)
