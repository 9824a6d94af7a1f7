"""ReinFlow: PPO of a flow policy with learned noise in its steps (Zhang, Yu, Su, Wang 2025, arXiv 2505.22094).

A flow that imitates the data turns noise into an action in K steps. With Gaussian noise of a learned scale added at
each step, the steps are a Markov chain whose density is known. PPO can then be applied to the whole chain as if it were
the action. PPO trains the flow and the noise network; evaluation adds no noise.

    flow     L_v  = E[|v(s, x_t, t) - (a - x_0)|^2],  x_t = (1 - t) x_0 + t a,  x_0 ~ N(0, I)              (before)
    chain    x_{k+1} ~ N(clip(x_k + v(s, x_k, k/K) / K), sigma(s, k/K)^2),  a = x_K,  sigma from min_std to max_std
    density  log pi = [log N(x_0; 0, I) + sum_k log N(x_{k+1})] / ((K + 1) dim(A)),  clamped to [-1, 1]
    policy   L_pi = E[-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A)] - c H,  rho = pi / pi_old
    value    L_V  = E[(V(s) - R)^2] / 2

H is the chain's entropy, divided like its log density. `steps` are updates of the flow, and `online_steps` are
environment steps of PPO, during the first `online_starts` of which only the value learns. `max_std` is held for the
first 35 % of the online steps, then falls by a cosine to 70 % of the way from `min_std`.

Where paper and authors' code (github ReinFlow/ReinFlow) differ, this follows the code: log density and entropy are
divided, and the former is clamped; means are clipped to the bounds, and noise to three standard deviations. Deviations
from the code: single actions, not chunks of four, so that `clip` allows a quarter as much of a whole chain; one grid of
times, k/K, whereas its rectified flow acts on k/(K - 1) and is judged on k/K; a truncated episode bootstraps from its
true last observation, whereas theirs does not bootstrap at time limits; a flow of GELU units, not ReLU, without time
embedding, residual layers and weight averaging; a value network without residual layers and weight decay; cloning at a
constant learning rate without weight decay; no target KL (theirs: 1); observations normalized by mean and standard
deviation; learning rates that do not oscillate. Without exploration x_0 is 0; theirs is drawn. Its penalty on the
distance from the imitating flow is left out, as is DPPO, which does the same with a diffusion policy. Sizes, rollouts
and learning rates are for one environment and a small network; `preset=paper` has the authors'.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, between, check, one_of
from zoo.data.batch import Batch, Transition
from zoo.data.buffers import RolloutBuffer
from zoo.errors import UsageError
from zoo.models.flow import FlowPolicy
from zoo.nn import MLP, Mish, Normalizer, RunningNormalizer
from zoo.nn.optim import Adam
from zoo.returns import ReturnsSoFar, gae
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "on-policy"
SETTING = "offline to online"
DATA = "required"
ACTION_SPACES = ("continuous",)

NOISE_HIDDEN = (64, 64)  # widths of the noise network's hidden layers
NOISE_BOUND = 3.0  # standard deviations
LOG_PROB_BOUND = 1.0  # nats per dimension and step
HOLD = 0.35  # the share of the online steps for which max_std is held
LEFT = 0.7  # the share of max_std's distance from min_std that is left at their end


@dataclass
class Config:
    flow_steps: int = 4  # K, steps of Euler's method, from noise to action
    noise: str = "learned"  # standard deviation of the noise: learned, or fixed at min_std
    min_std: float = 0.1  # least std of the noise on unit actions; if far lower, densities reach their bound
    max_std: float = 0.24  # largest std of the noise, at the start
    num_steps: int = 2048  # steps per environment and rollout
    epochs: int = 10  # passes over a rollout
    minibatches: int = 16  # minibatches per pass
    clip: float = 0.01  # epsilon; small, as log pi is averaged over steps and dimensions
    entropy_coef: float = 0.03  # c, weight of the entropy
    discount: float = 0.99  # gamma
    gae_lambda: float = 0.95  # lambda of GAE
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, flow
    value_hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, value
    flow_lr: float = 3e-4  # Adam's learning rate, flow while it clones
    actor_lr: float = 4.5e-5  # Adam's learning rate, flow and noise network in PPO
    value_lr: float = 6.5e-4  # Adam's learning rate, value
    batch_size: int = 256  # transitions per update of the flow while it clones
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset

    def __post_init__(self) -> None:
        check(
            self,
            flow_steps=at_least(1),
            noise=one_of("learned", "fixed"),
            min_std=above(0),
            max_std=at_least(self.min_std, "algo.min_std is the least"),
            num_steps=at_least(1),
            epochs=at_least(1),
            minibatches=at_least(1),
            clip=between(0, 1, "neither"),
        )

    def check_run(self, run: "RunConfig") -> None:
        if run.online_fraction is not None or run.online_updates != 1:
            raise UsageError(
                "reinflow learns from its latest steps alone. Leave out online_fraction and online_updates"
            )
        batch_size = self.num_steps * run.num_envs
        if batch_size % self.minibatches or batch_size == self.minibatches:
            raise UsageError(
                f"num_envs={run.num_envs} times algo.num_steps={self.num_steps} are {batch_size} transitions a "
                f"rollout, which algo.minibatches={self.minibatches} does not divide into parts of two or more. Try: "
                "algo.minibatches=1"
            )
        if 0 < run.online_steps < batch_size:
            raise UsageError(
                f"online_steps={run.online_steps} are fewer than one rollout of {batch_size}, after which reinflow "
                "learns first. Give more, or fewer algo.num_steps"
            )
        last = -(-run.online_steps // run.num_envs) // self.num_steps * batch_size - run.num_envs
        if run.online_steps and run.online_starts > last:
            raise UsageError(
                f"online_starts={run.online_starts}: no whole rollout of {batch_size} ends after them, so reinflow's "
                f"policy would never learn. They must be at most {last}, or give more online_steps"
            )


class Minibatch(NamedTuple):
    obs: Tensor  # [B, ...], normalized
    chain: Tensor  # [B, K + 1, A] from noise to action, in units of half the action's range
    log_prob: Tensor  # [B] of the policy that acted
    advantage: Tensor  # [B]
    returns: Tensor  # [B]


class ReinFlow(Agent):
    PER_RUN = ("max_std",)  # its schedule begins anew with `init_from`

    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.returns_so_far = ReturnsSoFar(config.discount)
        self.return_normalizer = RunningNormalizer(())
        self.flow = FlowPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, config.flow_steps)
        self.value = MLP(spec.obs_dim, 1, config.value_hidden, Mish)
        self.max_std = nn.Buffer(torch.tensor(config.max_std))
        self.flow_optimizer = Adam(self.flow.parameters(), config.flow_lr)
        moved = [*self.flow.parameters()]
        if config.noise == "learned":
            self.noise = MLP(spec.obs_dim + 1, spec.action_dim, NOISE_HIDDEN, nn.Tanh)
            moved += self.noise.parameters()
        self.actor_optimizer = Adam(moved, config.actor_lr)
        self.value_optimizer = Adam(self.value.parameters(), config.value_lr)

    def flow_loss(self, batch: Batch) -> Tensor:
        """L_v, a mean over action dimensions too."""
        noise, action = torch.randn_like(batch.action), self.flow.to_unit(batch.action)
        time = torch.rand_like(batch.reward)[:, None]
        velocity: Tensor = self.flow(batch.obs, (1 - time) * noise + time * action, time)
        return (velocity - (action - noise)).square().mean()

    def clone(self, batch: Batch) -> Metrics:
        """One gradient step of the flow."""
        flow_loss = self.flow_loss(batch)
        self.flow_optimizer.minimize(flow_loss)
        return {"flow_loss": flow_loss.detach()}

    def transition(self, obs: Tensor, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation `[..., A]` of the points after `x` `[..., A]` at times `[..., 1]`."""
        mean = (x + self.flow(obs, x, time) / self.config.flow_steps).clamp(-1, 1)
        low = self.config.min_std
        if self.config.noise == "fixed":
            return mean, torch.full_like(mean, low)
        share = (torch.tanh(self.noise(torch.cat([obs, time], -1))) + 1) / 2
        return mean, low * (self.max_std / low) ** share

    def log_prob(self, obs: Tensor, chain: Tensor) -> tuple[Tensor, Tensor]:
        """Log density and entropy of chains `[B, K + 1, A]`, means over steps and dimensions: `[B]` each."""
        steps = self.config.flow_steps
        time = (torch.arange(steps, device=chain.device) / steps)[:, None].to(chain)
        obs, time = obs[:, None].expand(-1, steps, -1), time.expand(len(chain), -1, -1)
        mean, std = self.transition(obs, chain[:, :-1], time)
        first = torch.zeros_like(chain[:, :1])
        mean, std = torch.cat([first, mean], 1), torch.cat([first + 1, std], 1)
        log_prob = -((chain - mean) / std).square() / 2 - std.log() - math.log(2 * math.pi) / 2
        entropy = std.log() + math.log(2 * math.pi * math.e) / 2
        return log_prob.mean((1, 2)).clamp(-LOG_PROB_BOUND, LOG_PROB_BOUND), entropy.mean((1, 2))

    def policy_loss(self, log_prob: Tensor, batch: Minibatch) -> Tensor:
        """L_pi without the entropy; advantages are normalized to mean 0 and standard deviation 1."""
        advantage = (batch.advantage - batch.advantage.mean()) / (batch.advantage.std() + 1e-8)
        ratio = (log_prob - batch.log_prob).exp()
        clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        return -torch.minimum(ratio * advantage, clipped * advantage).mean()

    def value_loss(self, batch: Minibatch) -> Tensor:
        """L_V."""
        loss: Tensor = (self.value(batch.obs).squeeze(-1) - batch.returns).square().mean() / 2
        return loss

    def update_value(self, batch: Minibatch) -> Metrics:
        """One gradient step of the value."""
        value_loss = self.value_loss(batch)
        self.value_optimizer.minimize(value_loss)
        return {"value_loss": value_loss.detach()}

    def update(self, batch: Minibatch) -> Metrics:
        """One gradient step of flow, noise and value."""
        log_prob, entropy = self.log_prob(batch.obs, batch.chain)
        policy_loss = self.policy_loss(log_prob, batch)
        self.actor_optimizer.minimize(policy_loss - self.config.entropy_coef * entropy.mean())
        log_ratio = log_prob.detach() - batch.log_prob
        return self.update_value(batch) | {
            "policy_loss": policy_loss.detach(),
            "entropy": entropy.detach().mean(),
            "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean(),  # http://joschu.net/blog/kl-approx.html, k3
            "clip_fraction": ((log_ratio.exp() - 1).abs() > self.config.clip).float().mean(),
        }

    @torch.no_grad()
    def prepare(self, rollout: Transition) -> Minibatch:
        """A rollout `[T, N, ...]` whose actions are chains, as one batch `[T * N, ...]` with advantages."""
        obs, chain = self.normalizer(rollout.obs.flatten(0, 1)), rollout.action.flatten(0, 1)
        log_prob, _ = self.log_prob(obs, chain)
        value = self.value(obs).reshape(rollout.reward.shape)
        ended = rollout.terminated | rollout.truncated
        cut = ended.clone()
        cut[-1] = True
        next_value = value.roll(-1, 0)  # where the next step begins, except at the end of an episode or rollout
        next_value[cut] = self.value(self.normalizer(rollout.next_obs[cut])).squeeze(-1)
        discount, lambda_ = self.config.discount, self.config.gae_lambda
        self.return_normalizer.update(self.returns_so_far.update(rollout.reward, ended).flatten())
        reward = (rollout.reward / self.return_normalizer.std).clamp(-10, 10)
        advantage = gae(reward, value, next_value, rollout.terminated, ended, discount, lambda_)
        return Minibatch(obs, chain, log_prob, *(y.flatten() for y in (advantage, advantage + value)))

    def learn(self, rollout: Transition, done: float, value_only: bool = False) -> Metrics:
        """Makes `epochs` passes over a rollout, in minibatches shuffled anew for each pass.

        Args:
            rollout: `[T, N, ...]`, whose actions are chains.
            done: the share of the online steps taken so far, by which `max_std` falls.
            value_only: only the value learns.

        Returns:
            The means of the updates' metrics.
        """
        whole = self.prepare(rollout)
        update = self.update_value if value_only else self.update
        steps: list[Metrics] = []
        for _ in range(self.config.epochs):
            order = torch.randperm(len(whole.returns), device=whole.returns.device)
            shuffled = (x[order].chunk(self.config.minibatches) for x in whole)
            steps += [update(Minibatch(*minibatch)) for minibatch in zip(*shuffled, strict=True)]
        falling = min(max((done - HOLD) / (1 - HOLD), 0.0), 1.0)
        share = LEFT + (1 - LEFT) * (1 + math.cos(math.pi * falling)) / 2
        self.max_std.fill_(self.config.min_std + share * (self.config.max_std - self.config.min_std))
        spread = whole.returns.var()
        explained = torch.where(spread > 0, 1 - whole.advantage.var() / spread, 0.0)
        means = {name: torch.stack([step[name] for step in steps]).mean() for name in steps[0]}
        return means | {"explained_variance": explained, "max_std": self.max_std}

    @torch.no_grad()
    def sample(self, obs: Tensor) -> Tensor:
        """Chains `[N, K + 1, A]` from noise to action, in units of half the action's range."""
        obs = self.normalizer(obs)
        chain = [torch.randn(obs.shape[0], self.spec.action_dim, device=obs.device)]
        for k in range(self.config.flow_steps):
            mean, std = self.transition(obs, chain[-1], torch.full_like(obs[:, :1], k / self.config.flow_steps))
            chain.append(mean + std * torch.randn_like(mean).clamp(-NOISE_BOUND, NOISE_BOUND))
        chain[-1] = chain[-1].clamp(-1, 1)
        return torch.stack(chain, 1)

    @torch.no_grad()
    def generate(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions `[B, A]` for observations `[B, ...]` and noise `[B, A]`, with no noise on the way."""
        obs, x = self.normalizer(obs), noise
        for k in range(self.config.flow_steps):
            x, _ = self.transition(obs, x, torch.full_like(obs[:, :1], k / self.config.flow_steps))
        return self.flow.from_unit(x)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        if explore:
            return self.flow.from_unit(self.sample(obs)[:, -1])
        return self.generate(obs, torch.zeros(obs.shape[0], self.spec.action_dim, device=obs.device))

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        value: Tensor = self.value(self.normalizer(obs)).squeeze(-1)
        return value * self.return_normalizer.std  # in the environment's rewards


def fine_tune(run: "Run", agent: ReinFlow, config: Config) -> None:
    envs, buffer = run.envs(), RolloutBuffer(run.device)
    run.track(buffer=buffer)
    if not envs.resumed:  # new episodes begin
        buffer.clear()
    for step in run.online_steps():
        taken = step - run.config.steps
        chain = agent.sample(envs.obs)
        buffer.append(envs.step(agent.flow.from_unit(chain[:, -1]))._replace(action=chain))
        if len(buffer) == config.num_steps:
            run.log(agent.learn(buffer.stacked(), taken / run.config.online_steps, taken < run.config.online_starts))
            buffer.clear()


def train(run: "Run", config: Config) -> ReinFlow:
    data = run.dataset()
    agent = ReinFlow(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    clone = run.compiled(agent.clone)
    for _ in run.steps():
        run.log(clone(data.sample(config.batch_size)))
    if run.config.online_steps:
        fine_tune(run, agent, config)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
