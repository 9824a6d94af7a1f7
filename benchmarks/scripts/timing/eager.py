"""IQL and PPO in the usual style of single-file implementations, with the zoo's settings.

IQL is in CORL's style: separate networks for Q1, Q2, V and pi with an optimizer each, a Python loop for the target
networks, and `.item()` for every loss. PPO is in CleanRL's style: Gymnasium's wrappers around one environment, a
`Normal`, and loops over time and minibatches.
"""

import copy

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.algos import ppo
from zoo.benchmarks.scripts.timing.offline import ACTION_DIM, BATCH_SIZE, CPU, OBS_DIM, Run, random_arrays, repeat


def iql() -> Run:
    """Updates on random data."""
    torch.manual_seed(0)
    arrays = random_arrays()
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


def on_policy() -> Run:
    """PPO's iterations in one Hopper environment: a rollout, and the updates on it."""
    torch.manual_seed(0)
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
