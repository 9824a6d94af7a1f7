"""How fast the zoo's algorithms are beside their peers, in one process, in turn.

    pip install -e '.[peers,envpool,atari]' && pip install --no-deps 'd3rlpy==2.8.1'
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py            # everything that is installed
    OMP_NUM_THREADS=1 python benchmarks/scripts/speed.py td3_bc cql --corl CORL/algorithms/offline
    OMP_NUM_THREADS=3 python benchmarks/scripts/speed.py vector --threads 3

Every subject of a section gets the same shapes and settings (iql, sac: Hopper's, batches of 256, two hidden layers of
256) and is timed in turn, round after round, so that a machine whose speed drifts slows all of them alike; the medians
over the rounds and the ratios round by round are what to quote. d3rlpy pins an old Gymnasium that it does not need for
this, hence `--no-deps`; a peer that is not installed is left out. `eager style` is IQL as single-file implementations
commonly write it (CORL's manner: a network each for Q1, Q2, V and pi, an optimizer each, a Python loop for the target,
`.item()` for every loss), and PPO in CleanRL's: Gymnasium's wrappers around one environment, a `Normal`, loops over
time and minibatches.
"""

import argparse
import copy
import importlib.util
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.algos import cql, dqn, iql, ppo, sac, stream_ac, td3_bc
from zoo.benchmarks.scripts import corl, streaming
from zoo.data.arrays import Arrays
from zoo.data.buffers import ReplayBuffer, RolloutBuffer, replay_buffer
from zoo.data.dataset import Dataset
from zoo.data.samplers import SAMPLERS, SamplerConfig
from zoo.envs import EnvConfig, make
from zoo.models.dynamics import WEIGHT_DECAY, EnsembleDynamics
from zoo.runs.compilation import compile_update
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec
from zoo.streaming import Sample

OBS_DIM, ACTION_DIM, BATCH_SIZE = 11, 3, 256  # Hopper
EPISODE = 1_000
CPU = torch.device("cpu")
PONG = "ALE/Pong-v5"
SPEC = Spec((OBS_DIM,), (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
ENVPOOL, SB3, D3RLPY = (
    importlib.util.find_spec(name) is not None for name in ("envpool", "stable_baselines3", "d3rlpy")
)

Subject = Callable[[int], None]  # runs that many updates


def random_arrays(size: int) -> Arrays:
    """Episodes of standard normal observations and uniform actions: speed does not depend on what the numbers are."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((size + 1, OBS_DIM), dtype=np.float32)
    truncated = np.arange(1, size + 1) % EPISODE == 0
    truncated[-1] = True
    action = rng.uniform(-1, 1, (size, ACTION_DIM)).astype(np.float32)
    reward = rng.standard_normal(size, dtype=np.float32)
    return Arrays(obs[:-1], action, reward, obs[1:], np.zeros(size, bool), truncated)


def stepper(env: str, num_envs: int = 1, threads: int = 1, backend: str = "gymnasium") -> EnvStepper:
    """Environments as a training loop has them."""
    envs = make(EnvConfig(id=env, backend=backend), num_envs, threads, training=True)
    return EnvStepper(envs, 0, CPU, lambda *_: None)


def repeat(step: Callable[[], object]) -> Subject:
    """A subject out of one step."""

    def run(count: int) -> None:
        for _ in range(count):
            step()

    return run


def updates(agent: Any, arrays: Arrays, compiled: bool, *arguments: Iterator[Any]) -> Subject:
    """An offline algorithm's loop: batches and, beside them, what its update takes."""
    data = Dataset(arrays, SPEC, CPU)
    update = compile_update(agent.update) if compiled else agent.update
    return repeat(lambda: update(data.sample(BATCH_SIZE), *map(next, arguments)))


def in_bfloat16(subject: Subject) -> Subject:
    """The same with `matmul_precision=medium`."""

    def run(count: int) -> None:
        torch.set_float32_matmul_precision("medium")
        subject(count)
        torch.set_float32_matmul_precision("highest")

    return run


def corls(folder: Path, algo: str, arrays: Arrays) -> Subject:
    """CORL's own class and buffer."""
    peer = corl.PEERS[algo]
    module = corl.load_corl(folder / peer.file)
    buffer = module.ReplayBuffer(OBS_DIM, ACTION_DIM, len(arrays.reward), device="cpu")
    buffer.load_d4rl_dataset(dict(zip(corl.FIELDS, [*arrays[:4], arrays.terminated], strict=True)))
    update = getattr(peer.build(module, SPEC, 1_000_000), peer.update)
    return repeat(lambda: update(buffer.sample(BATCH_SIZE)))


def eager_style_iql(arrays: Arrays) -> Subject:
    """IQL written the common way, see above."""
    fields = [torch.from_numpy(field) for field in arrays[:4]] + [torch.from_numpy(arrays.terminated).float()]

    def network(inputs: int, outputs: int) -> nn.Sequential:
        layers = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)]
        return nn.Sequential(*layers)

    critics = nn.ModuleList([network(OBS_DIM + ACTION_DIM, 1) for _ in range(2)])
    targets = copy.deepcopy(critics).requires_grad_(False)
    value, policy = network(OBS_DIM, 1), network(OBS_DIM, ACTION_DIM)
    log_std = nn.Parameter(torch.zeros(ACTION_DIM))
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=3e-4)
    value_optimizer = torch.optim.Adam(value.parameters(), lr=3e-4)
    policy_optimizer = torch.optim.Adam([*policy.parameters(), log_std], lr=3e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(policy_optimizer, 1_000_000)

    def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> float:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def step() -> tuple[float, ...]:
        index = np.random.randint(0, len(arrays.reward), size=BATCH_SIZE)
        obs, action, reward, next_obs, done = (field[index].to(CPU) for field in fields)
        with torch.no_grad():
            next_v = value(next_obs).squeeze(-1)
            target_q = torch.min(*(target(torch.cat([obs, action], 1)).squeeze(-1) for target in targets))
        advantage = target_q - value(obs).squeeze(-1)
        value_loss = (torch.abs(0.7 - (advantage < 0).float()) * advantage**2).mean()
        losses = [descend(value_loss, value_optimizer)]
        backup = reward + (1 - done) * 0.99 * next_v
        qs = [critic(torch.cat([obs, action], 1)).squeeze(-1) for critic in critics]
        critic_loss = (F.mse_loss(qs[0], backup) + F.mse_loss(qs[1], backup)) / 2
        losses.append(descend(critic_loss, critic_optimizer))
        for target, source in zip(targets.parameters(), critics.parameters(), strict=True):
            target.data.copy_(0.995 * target.data + 0.005 * source.data)
        weight = torch.exp(3 * advantage.detach()).clamp(max=100)
        normal = torch.distributions.Normal(torch.tanh(policy(obs)), log_std.clamp(-5, 2).exp())
        log_prob = normal.log_prob(action).sum(-1)
        losses.append(descend(-(weight * log_prob).mean(), policy_optimizer))
        schedule.step()
        return tuple(losses)

    return repeat(step)


def d3rlpys(config: Any, arrays: Arrays) -> Subject:
    """One of d3rlpy's algorithms: sampling from its buffer and its update."""
    import d3rlpy

    dataset = d3rlpy.dataset.MDPDataset(
        arrays.obs,
        arrays.action,
        arrays.reward,
        arrays.terminated.astype(np.float32),
        arrays.truncated.astype(np.float32),
    )
    algo = config.create(device="cpu:0")
    algo.build_with_dataset(dataset)
    return repeat(lambda: algo.update(dataset.sample_transition_batch(BATCH_SIZE)))


def zoo_sac(compiled: bool) -> Subject:
    """`algos/sac.py`'s loop: an environment step and an update."""
    envs = stepper("Hopper-v5")
    agent = sac.SAC(envs.spec, sac.Config())
    buffer = ReplayBuffer(100_000, envs.spec, CPU)
    for _ in range(1_000):
        buffer.add(envs.step(envs.random_action()))
    update = compile_update(agent.update) if compiled else agent.update

    def step() -> None:
        buffer.add(envs.step(agent.act(envs.obs, explore=True)))
        update(buffer.sample(BATCH_SIZE))

    return repeat(step)


def stable_baselines3(model: Any, first: int, worth: int) -> Subject:
    """A model of Stable-Baselines3: after its first steps, `worth` environment steps and what is learned from them."""
    model.learn(first)

    def run(count: int) -> None:
        model.learn(count * worth, reset_num_timesteps=False)

    return run


def zoo_ppo(envs: EnvStepper, config: ppo.Config, compiled: bool) -> Subject:
    """`algos/ppo.py`'s loop: a rollout and what is learned from it."""
    agent = ppo.PPO(envs.spec, config)
    if compiled:
        agent.update = compile_update(agent.update)  # type: ignore[method-assign]

    def iterate() -> None:
        buffer = RolloutBuffer()
        for _ in range(config.num_steps):
            action = agent.sample(envs.obs)
            buffer.append(envs.step(agent.policy.clip(action))._replace(action=action))
        agent.learn(agent.scale_reward(buffer.stacked()))

    return repeat(iterate)


def zoo_dqn(envs: EnvStepper, config: dqn.Config, compiled: bool) -> Subject:
    """`algos/dqn.py`'s loop: as many environment steps as an update is due after, and the update."""
    agent = dqn.DQN(envs.spec, config)
    buffer = replay_buffer(config.buffer_size, envs.spec, CPU, envs.num_envs, stacked=True)
    for _ in range(config.learning_starts):
        buffer.add(envs.step(envs.random_action()))
    update = compile_update(agent.update) if compiled else agent.update

    def step() -> None:
        for _ in range(config.train_every):
            transition = envs.step(agent.explore(agent.act(envs.obs), config.epsilon))
            buffer.add(transition._replace(reward=transition.reward.sign()))
        update(buffer.sample_n_step(config.batch_size, config.n_step, config.discount))

    return repeat(step)


def alone(envs: EnvStepper) -> Subject:
    """The environments under uniformly random actions, sampled beforehand."""
    actions = itertools.cycle([envs.envs.action_space.sample() for _ in range(1_000)])
    return repeat(lambda: envs.envs.step(next(actions)))


def eager_style_ppo() -> Subject:
    """PPO as single-file implementations commonly write it, with the zoo's settings."""
    config = ppo.Config()

    def wrapped() -> gymnasium.Env:
        env: gymnasium.Env = gymnasium.make("Hopper-v5")
        wrappers = gymnasium.wrappers
        env = wrappers.ClipAction(wrappers.RecordEpisodeStatistics(wrappers.FlattenObservation(env)))
        space = env.observation_space
        env = wrappers.TransformObservation(wrappers.NormalizeObservation(env), lambda x: np.clip(x, -10, 10), space)
        return wrappers.TransformReward(wrappers.NormalizeReward(env), lambda x: float(np.clip(float(x), -10, 10)))

    def network(outputs: int, gain: float) -> nn.Module:
        layers = [nn.Linear(OBS_DIM, 64), nn.Linear(64, 64), nn.Linear(64, outputs)]
        for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
            nn.init.orthogonal_(layer.weight, scale)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    envs = gymnasium.vector.SyncVectorEnv([wrapped])
    actor, critic, log_std = network(ACTION_DIM, 0.01), network(1, 1.0), nn.Parameter(torch.zeros(1, ACTION_DIM))
    parameters = [*actor.parameters(), *critic.parameters(), log_std]
    optimizer = torch.optim.Adam(parameters, lr=config.lr, eps=1e-5)
    steps = config.num_steps
    obs, actions = torch.zeros(steps, 1, OBS_DIM), torch.zeros(steps, 1, ACTION_DIM)
    log_probs, rewards, ends, values = (torch.zeros(steps, 1) for _ in range(4))
    current, end = torch.tensor(envs.reset(seed=0)[0], dtype=torch.float32), torch.zeros(1)

    def policy(x: Tensor) -> torch.distributions.Normal:
        mean = actor(x)
        return torch.distributions.Normal(mean, log_std.expand_as(mean).exp())

    def iterate() -> None:
        nonlocal current, end
        for t in range(steps):
            obs[t], ends[t] = current, end
            with torch.no_grad():
                distribution = policy(current)
                actions[t] = distribution.sample()
                log_probs[t] = distribution.log_prob(actions[t]).sum(1)
                values[t] = critic(current).flatten()
            following, reward, terminated, truncated, _ = envs.step(actions[t].numpy())
            rewards[t] = torch.tensor(reward)
            current = torch.tensor(following, dtype=torch.float32)
            end = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        advantages = torch.zeros_like(rewards)
        with torch.no_grad():
            advantage, next_value, go_on = torch.zeros(1), critic(current).flatten(), 1 - end
            for t in reversed(range(steps)):
                delta = rewards[t] + config.discount * next_value * go_on - values[t]
                advantages[t] = advantage = delta + config.discount * config.gae_lambda * go_on * advantage
                next_value, go_on = values[t], 1 - ends[t]
        flat = [x.reshape(steps, -1).squeeze(-1) for x in (obs, actions, log_probs, values, advantages)]
        order, size, fractions = np.arange(steps), steps // config.minibatches, []
        for _ in range(config.epochs):
            np.random.shuffle(order)
            for start in range(0, steps, size):
                o, a, old, v, adv = (x[order[start : start + size]] for x in flat)
                distribution, value = policy(o), critic(o).view(-1)
                ratio = (distribution.log_prob(a).sum(1) - old).exp()
                fractions.append(((ratio - 1).abs() > config.clip).float().mean().item())
                normal = (adv - adv.mean()) / (adv.std() + 1e-8)
                loss = torch.max(-normal * ratio, -normal * ratio.clamp(1 - config.clip, 1 + config.clip)).mean()
                clipped = v + (value - v).clamp(-config.clip, config.clip)
                error = torch.max((value - adv - v) ** 2, (clipped - adv - v) ** 2).mean()
                entropy = distribution.entropy().sum(1).mean()
                optimizer.zero_grad()
                (loss - config.entropy_coef * entropy + config.value_coef * 0.5 * error).backward()
                nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
                optimizer.step()

    return repeat(iterate)


def compare(title: str, subjects: dict[str, Subject], rounds: int, count: int, worth: int = 1) -> None:
    """Prints each subject's speed and, round by round, how many times the peers' the zoo's is.

    Args:
        worth: what one call counts for.
    """
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for run in subjects.values():
        run(min(20, count))
    for _ in range(rounds):
        for name, run in subjects.items():
            start = time.perf_counter()
            run(count)
            seconds[name].append(time.perf_counter() - start)
    threads = f"{torch.get_num_threads()} thread" + "s" * (torch.get_num_threads() > 1)
    print(f"\n{title}: {rounds} rounds of {count}, {threads}, torch {torch.__version__}", flush=True)
    peers = [name for name in subjects if not name.startswith("zoo")]
    print(f"  {'':<28}{'median /s':>10}{'min':>10}{'max':>10}" + "".join(f"{'x ' + peer:>24}" for peer in peers))
    for name, taken in seconds.items():
        speeds = [count * worth / one for one in taken]
        ratios = [statistics.median(p / s for p, s in zip(seconds[peer], taken, strict=True)) for peer in peers]
        columns = "".join(f"{ratio:>24.2f}" for ratio in ratios) if name.startswith("zoo") else ""
        print(f"  {name:<28}{statistics.median(speeds):>10.1f}{min(speeds):>10.1f}{max(speeds):>10.1f}{columns}")


def print_profile(subject: Subject, count: int) -> None:
    """Prints what share of the time goes into matrix products, and how many operations an update's take."""
    with torch.profiler.profile(with_flops=True) as profile:
        subject(count)
    events = profile.key_averages()
    products = [event for event in events if event.key in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")]
    busy, total = (sum(event.self_cpu_time_total for event in chosen) for chosen in (products, events))
    flops = sum(event.flops for event in products) / count
    print(
        f"profile of zoo: matrix products take {busy / total:.0%} of the time, for {flops / 1e9:.1f} GFLOP an update, "
        f"{flops * count / busy / 1e3:.0f} GFLOP/s",
        flush=True,
    )


def eager_and_compiled(subject: Callable[[bool], Subject], name: str = "zoo") -> dict[str, Subject]:
    """A subject of the zoo's, made with and without compilation."""
    return {name: subject(False), f"{name}, compile=true": subject(True)}


def time_iql(args: argparse.Namespace) -> None:
    """Updates on random data."""
    arrays = random_arrays(args.transitions)
    subjects = eager_and_compiled(lambda compiled: updates(iql.IQL(SPEC, iql.Config()), arrays, compiled))
    subjects["eager style"] = eager_style_iql(arrays)
    if D3RLPY:
        from d3rlpy.algos import IQLConfig

        subjects["d3rlpy"] = d3rlpys(IQLConfig(batch_size=BATCH_SIZE), arrays)
    compare("IQL, updates/s", subjects, args.rounds, 60)


def time_td3_bc(args: argparse.Namespace) -> None:
    """Updates on random data."""
    arrays = random_arrays(args.transitions)
    subjects = eager_and_compiled(
        lambda compiled: updates(td3_bc.TD3BC(SPEC, td3_bc.Config()), arrays, compiled, itertools.cycle((False, True)))
    )
    if args.corl:
        subjects["CORL"] = corls(args.corl, "td3_bc", arrays)
    if D3RLPY:
        from d3rlpy.algos import TD3PlusBCConfig

        subjects["d3rlpy"] = d3rlpys(TD3PlusBCConfig(batch_size=BATCH_SIZE), arrays)
    compare("TD3+BC, updates/s", subjects, args.rounds, 60)


def time_cql(args: argparse.Namespace) -> None:
    """Updates on random data, CORL's shape: three hidden layers of 256, no learned weight."""
    arrays = random_arrays(args.transitions)
    subjects = eager_and_compiled(lambda compiled: updates(cql.CQL(SPEC, cql.Config()), arrays, compiled))
    in_half = eager_and_compiled(
        lambda compiled: updates(cql.CQL(SPEC, cql.Config()), arrays, compiled), "zoo, bfloat16"
    )
    subjects |= {name: in_bfloat16(subject) for name, subject in in_half.items()}
    if args.corl:
        subjects["CORL"] = corls(args.corl, "cql", arrays)
    if D3RLPY:
        from d3rlpy.algos import CQLConfig
        from d3rlpy.models import VectorEncoderFactory

        shape = VectorEncoderFactory([256, 256, 256])
        config = CQLConfig(
            batch_size=BATCH_SIZE, actor_encoder_factory=shape, critic_encoder_factory=shape, alpha_learning_rate=0.0
        )
        subjects["d3rlpy"] = d3rlpys(config, arrays)
    compare("CQL, updates/s", subjects, args.rounds, 5)
    print_profile(subjects["zoo"], 10)


def time_dynamics(args: argparse.Namespace) -> None:
    """Updates of the ensemble, 7 models of 4 layers of 200, out of whole epochs; and how far the losses lie apart."""
    arrays = random_arrays(args.transitions)
    data = Dataset(arrays, SPEC, CPU)

    def zoo(compiled: bool) -> Subject:
        model = EnsembleDynamics(OBS_DIM, ACTION_DIM, [200] * 4)
        model.prepare(data, seed=0)
        if compiled:
            model.update = compile_update(model.update)  # type: ignore[method-assign]
        return partial(epoch_of, model)

    subjects = eager_and_compiled(zoo)
    if args.mbrcsl:
        sys.path.insert(0, str(args.mbrcsl))
        from offlinerlkit.dynamics.ensemble_dynamics import EnsembleDynamics as TheirTraining
        from offlinerlkit.modules.dynamics_module import EnsembleDynamicsModel

        theirs = EnsembleDynamicsModel(OBS_DIM, ACTION_DIM, [200] * 4, weight_decays=list(WEIGHT_DECAY))
        training = TheirTraining(theirs, torch.optim.Adam(theirs.parameters(), lr=1e-3), None, None)
        ours = EnsembleDynamics(OBS_DIM, ACTION_DIM, [200] * 4)
        ours.prepare(data, seed=0)
        x, target = ours.x.numpy()[ours.bootstrap], ours.target.numpy()[ours.bootstrap]
        with torch.no_grad():
            for layer, their_layer in zip(ours.layers, [*theirs.backbones, theirs.output_layer], strict=True):
                layer.weight.copy_(their_layer.weight)
                layer.bias.copy_(their_layer.bias)
        pairs = []
        for batch in range(10):
            piece = slice(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
            their_loss = training.learn(x[:, piece], target[:, piece], BATCH_SIZE)
            loss = ours.update(ours.x[ours.bootstrap[:, piece]], ours.target[ours.bootstrap[:, piece]])["loss"]
            pairs.append((their_loss, float(loss)))
        apart = [abs(a - b) / abs(a) for a, b in pairs]
        print(
            f"\nlosses of the same weights on the same batches: {apart[0]:.0e} apart at first, {max(apart):.0e} in ten"
        )
        subjects["MBRCSL's authors'"] = lambda count: training.learn(
            x[:, : count * BATCH_SIZE], target[:, : count * BATCH_SIZE], BATCH_SIZE
        )
    compare("dynamics ensemble, updates/s", subjects, args.rounds, 20)


def epoch_of(model: EnsembleDynamics, count: int) -> None:
    """So many updates, as `EnsembleDynamics.epoch` takes them."""
    for start in range(0, count * BATCH_SIZE, BATCH_SIZE):
        batch = model.bootstrap[:, start : start + BATCH_SIZE]
        model.update(model.x[batch], model.target[batch])


def time_streaming(args: argparse.Namespace) -> None:
    """Stream AC on HalfCheetah, an update a step."""
    subjects = eager_and_compiled(zoo_stream_ac)
    if args.streaming:
        theirs = streaming.Theirs("stream_ac", args.streaming, "HalfCheetah-v5", seed=0, steps=0, timed=True)
        subjects["stream-x's authors'"] = repeat(theirs.step)
    compare("Stream AC on HalfCheetah-v5, environment steps/s", subjects, args.rounds, 500)


def zoo_stream_ac(compiled: bool) -> Subject:
    """Its training loop."""
    envs = stepper("HalfCheetah-v5")
    agent = stream_ac.StreamAC(envs.spec, stream_ac.Config())
    update = compile_update(agent.update) if compiled else agent.update
    agent.start(envs.obs[0])

    def step() -> None:
        transition = envs.step(agent.policy.clip(agent.action)[None])
        update(Sample.of(transition))
        if transition.terminated or transition.truncated:
            agent.start(envs.obs[0])

    return repeat(step)


def time_samplers(args: argparse.Namespace) -> None:
    """Batches out of 1,000,000 transitions, and where they lie alone."""
    arrays = random_arrays(1_000_000)
    data = {name: Dataset(arrays, SPEC, CPU, SamplerConfig(name)) for name in SAMPLERS}
    sampled = {name if name == "uniform" else f"zoo, {name}": one for name, one in data.items()}
    batches = {name: repeat(partial(one.sample, BATCH_SIZE)) for name, one in sampled.items()}
    compare(f"batches of {BATCH_SIZE} of 1,000,000/s", batches, args.rounds, 2_000)
    indices = {name: repeat(partial(one.sampler, BATCH_SIZE)) for name, one in sampled.items()}
    compare("their indices alone/s", indices, args.rounds, 2_000)


def time_sac(args: argparse.Namespace) -> None:
    """Hopper."""
    subjects = eager_and_compiled(zoo_sac)
    if SB3:
        from stable_baselines3 import SAC

        peer = SAC("MlpPolicy", gymnasium.make("Hopper-v5"), batch_size=BATCH_SIZE, learning_starts=1_000, device="cpu")
        subjects["stable-baselines3"] = stable_baselines3(peer, 1_001, worth=1)
    compare("SAC on Hopper-v5, environment steps with an update each/s", subjects, args.rounds, 60)


def time_ppo(args: argparse.Namespace) -> None:
    """One Hopper, CleanRL's settings."""
    config = ppo.Config()
    subjects = eager_and_compiled(lambda compiled: zoo_ppo(stepper("Hopper-v5"), config, compiled))
    subjects["eager style"] = eager_style_ppo()
    if ENVPOOL:
        made = partial(stepper, "Hopper-v5", backend="envpool")
        subjects |= eager_and_compiled(lambda compiled: zoo_ppo(made(), config, compiled), "zoo, EnvPool")
    compare("PPO on one Hopper-v5, environment steps/s", subjects, args.rounds, 1, config.num_steps)


def time_vector(args: argparse.Namespace) -> None:
    """Sixteen of EnvPool's Hoppers."""
    if not ENVPOOL:
        return
    num_envs = 16
    made = partial(stepper, "Hopper-v5", num_envs, args.threads, "envpool")
    compare("16 EnvPool Hopper-v5 alone, environment steps/s", {"zoo": alone(made())}, args.rounds, 2_000, num_envs)
    config = ppo.Config()
    subjects = eager_and_compiled(lambda compiled: zoo_ppo(made(), config, compiled))
    title = "PPO on 16 EnvPool Hopper-v5, environment steps/s"
    compare(title, subjects, max(1, args.rounds // 5), 1, config.num_steps * num_envs)


def time_atari(args: argparse.Namespace) -> None:
    """Pong, the settings of `benchmarks/scripts/sb3.py`, with a replay buffer that two of them fit into memory."""
    if not importlib.util.find_spec("ale_py"):
        return
    backend, pong = "envpool" if ENVPOOL else "gymnasium", EnvConfig(id=PONG)
    if SB3:
        from zoo.benchmarks.scripts import sb3
    common: dict[str, Any] = {"batch_size": 32, "buffer_size": 20_000, "learning_starts": 1_000}
    config = dqn.Config(lr=1e-4, train_every=4, target_every=1_000, clip_reward=True, **common)
    subjects = eager_and_compiled(lambda compiled: zoo_dqn(stepper(PONG, backend=backend), config, compiled))
    if SB3:
        from stable_baselines3 import DQN

        off_policy = DQN(
            "CnnPolicy", sb3.atari(pong, 1, 0), learning_rate=1e-4, train_freq=4, target_update_interval=1_000,
            device="cpu", **common,
        )  # fmt: skip
        subjects["stable-baselines3"] = stable_baselines3(off_policy, 1_004, worth=4)
    compare(f"DQN on Pong ({backend}), environment steps/s", subjects, args.rounds, 50, worth=4)
    rollouts = ppo.Config(
        num_steps=128, epochs=4, minibatches=4, lr=2.5e-4, clip=0.1, entropy_coef=0.01, normalize_reward=False,
        clip_reward=True,
    )  # fmt: skip
    subjects = eager_and_compiled(lambda compiled: zoo_ppo(stepper(PONG, 8, backend=backend), rollouts, compiled))
    if SB3:
        subjects["stable-baselines3"] = stable_baselines3(sb3.ppo(pong, 0), 1, worth=1_024)
    compare(f"PPO on 8 Pong ({backend}), environment steps/s", subjects, max(1, args.rounds // 3), 1, worth=1_024)


SECTIONS = {
    "iql": time_iql, "td3_bc": time_td3_bc, "cql": time_cql, "dynamics": time_dynamics, "samplers": time_samplers,
    "sac": time_sac, "streaming": time_streaming, "ppo": time_ppo, "vector": time_vector, "atari": time_atari,
}  # fmt: skip


def main() -> None:
    """Times every subject that is installed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--transitions", type=int, default=200_000, help="of the offline algorithms' data")
    parser.add_argument("--corl", type=Path, help="CORL's folder algorithms/offline, to time its classes beside")
    parser.add_argument("--mbrcsl", type=Path, help="github zhaoyizhou1123/mbrcsl, to time its ensemble beside")
    parser.add_argument("--streaming", type=Path, help="github mohmdelsayed/streaming-drl, to time its AC beside")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}: there are {', '.join(SECTIONS)}")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for section in args.sections or SECTIONS:
        SECTIONS[section](args)


if __name__ == "__main__":
    main()
