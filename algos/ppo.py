"""PPO: Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347).

On-policy policy gradient that takes many small steps on each rollout. Advantages are estimated by GAE. The probability
ratio to the policy that acted is clipped, so that moving further gains nothing. The value regresses the returns.

    policy   L^CLIP = E[-min(rho A, clip(rho, 1 - epsilon, 1 + epsilon) A)],  rho = pi(a|s) / pi_old(a|s)     (Eq. 7)
    value    L^VF   = E[max((V - R)^2, (V_old + clip(V - V_old, -epsilon, epsilon) - R)^2)] / 2,  R = A + V_old
    total    L      = L^CLIP + c1 L^VF - c2 entropy                                                          (Eq. 9)

What the paper leaves open follows Huang et al. 2022 ("The 37 Implementation Details of PPO") and CleanRL. Deviations: a
truncated episode bootstraps from its true last observation; the running statistics of observations and returns are
updated once per rollout, not at every step; the return that scales rewards starts anew at truncations too; an action's
mean and standard deviation are in units of half its range; the learning rate falls at every gradient step, not once per
rollout, and so falls less where `target_kl` skips some.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Transition
from zoo.data.buffers import RolloutBuffer
from zoo.errors import UsageError
from zoo.nn import MLP, Categorical, Gaussian, RunningNormalizer, encoder, orthogonal_
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam, linear
from zoo.returns import ReturnsSoFar, gae
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "on-policy"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("continuous", "discrete")
FRAMES = True


@dataclass
class Config:
    num_steps: int = 2048  # steps per environment and rollout; Atari: 128
    epochs: int = 10  # passes over a rollout; Atari: 4
    minibatches: int = 32  # minibatches per pass; Atari: 4
    hidden: list[int] = field(default_factory=lambda: [64, 64])  # widths of the tanh layers of actor and critic each
    lr: float = 3e-4  # Adam's learning rate at the start; Atari: 2.5e-4
    lr_decay: bool = True  # the learning rate falls to 0 linearly over all gradient steps
    discount: float = 0.99  # gamma
    gae_lambda: float = 0.95  # lambda of GAE
    clip: float = 0.2  # epsilon, of the ratio and the value; Atari: 0.1
    clip_value: bool = True  # the value's change is clipped, as the ratio is; false: L^VF = E[(V - R)^2] / 2
    target_kl: float | None = None  # stop the passes over a rollout above this approximate KL divergence; null: never
    value_coef: float = 0.5  # c1, weight of the value's loss; Stable-Baselines3's vf_coef is half of it
    entropy_coef: float = 0.0  # c2, weight of the entropy; Atari: 0.01
    max_grad_norm: float = 0.5  # gradients of a larger norm are scaled down to it
    normalize_advantage: bool = True  # to mean 0 and standard deviation 1 in each minibatch
    normalize_obs: bool = True  # vectors by their running mean and standard deviation; frames stay as they are
    normalize_reward: bool = True  # by the discounted return's running standard deviation, unless clipped; Atari: false
    clip_reward: bool = False  # to -1, 0 or 1; Atari: true
    value_head: str = "mse"  # mse, or one whose values are not clipped: huber, two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins, given with v_max; null is minus v_max
    v_max: float | None = None  # largest value of the bins; null is 1.5 to 2 times the largest return so far
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, num_steps=at_least(1), epochs=at_least(1), minibatches=at_least(1))

    def check_run(self, run: "RunConfig") -> None:
        batch_size = self.num_steps * run.num_envs
        if batch_size % self.minibatches:
            raise UsageError(
                f"num_envs={run.num_envs} times algo.num_steps={self.num_steps} are {batch_size} transitions a "
                f"rollout, which algo.minibatches={self.minibatches} does not divide. "
                f"Try: algo.minibatches={math.gcd(batch_size, self.minibatches)}"
            )
        if run.steps < batch_size:
            raise UsageError(
                f"steps={run.steps} are fewer than one rollout of {batch_size}, after which PPO learns first. Give "
                "more, or fewer algo.num_steps"
            )
        if self.normalize_advantage and batch_size == self.minibatches:
            raise UsageError("a minibatch of one has no standard deviation. Type: algo.normalize_advantage=false")


class Minibatch(NamedTuple):
    obs: Tensor  # [B, ...], normalized
    action: Tensor  # [B, A] or [B]
    log_prob: Tensor  # [B] of the policy that acted
    value: Tensor  # [B] at that time
    advantage: Tensor  # [B]
    returns: Tensor  # [B]


class PPO(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        normalized = config.normalize_obs and not spec.is_image
        self.normalizer = RunningNormalizer(spec.obs_shape) if normalized else nn.Identity()
        self.returns_so_far = ReturnsSoFar(config.discount)
        self.return_normalizer = RunningNormalizer(())
        self.encoder, features = encoder(spec.obs_shape)
        orthogonal_(self.encoder)
        hidden = [] if spec.is_image else config.hidden  # images: one network with two heads
        self.policy = (Categorical if spec.num_actions else Gaussian)(spec)
        self.actor = orthogonal_(MLP(features, self.policy.outputs, hidden, nn.Tanh), last_gain=0.01)
        self.head = value_head(config, online=True)
        self.value = orthogonal_(MLP(features, self.head.outputs, hidden, nn.Tanh), last_gain=1.0)
        self.head.init_(self.value)
        self.optimizer = Adam(
            self.parameters(), config.lr, total_steps if config.lr_decay else None, linear, eps=1e-5,
            max_norm=config.max_grad_norm,
        )  # fmt: skip

    def policy_loss(self, log_prob: Tensor, batch: Minibatch) -> Tensor:
        """Eq. 7."""
        advantage = batch.advantage
        if self.config.normalize_advantage:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (log_prob - batch.log_prob).exp()
        clipped = ratio.clamp(1 - self.config.clip, 1 + self.config.clip)
        return -torch.minimum(ratio * advantage, clipped * advantage).mean()

    def value_loss(self, out: Tensor, batch: Minibatch) -> Tensor:
        """L^VF; heads other than mse have a loss of their own in place of the clipped squared error."""
        if self.config.value_head != "mse":
            return self.head.loss(out, self.head.project(batch.returns)).mean()
        value = self.head.value(out)
        if not self.config.clip_value:
            return 0.5 * (value - batch.returns).square().mean()
        clipped = batch.value + (value - batch.value).clamp(-self.config.clip, self.config.clip)
        errors = torch.maximum((value - batch.returns).square(), (clipped - batch.returns).square())
        return 0.5 * errors.mean()

    def update(self, batch: Minibatch) -> Metrics:
        """One gradient step of policy and value on a minibatch."""
        x = self.encoder(batch.obs)
        log_prob, entropy = self.policy.log_prob(self.actor(x), batch.action)
        policy_loss = self.policy_loss(log_prob, batch)
        value_loss = self.value_loss(self.value(x), batch)
        loss = policy_loss + self.config.value_coef * value_loss - self.config.entropy_coef * entropy.mean()
        self.optimizer.minimize(loss)
        log_ratio = log_prob.detach() - batch.log_prob
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach().mean(),
            "approx_kl": (log_ratio.exp() - 1 - log_ratio).mean(),  # http://joschu.net/blog/kl-approx.html, k3
            "clip_fraction": ((log_ratio.exp() - 1).abs() > self.config.clip).float().mean(),
            **self.head.metrics(),
        }

    @torch.no_grad()
    def prepare(self, rollout: Transition) -> Minibatch:
        """A rollout `[T, N, ...]` with scaled rewards, as one batch `[T * N, ...]` with advantages."""
        obs, action = self.normalizer(rollout.obs.flatten(0, 1)), rollout.action.flatten(0, 1)
        x = self.encoder(obs)
        log_prob, _ = self.policy.log_prob(self.actor(x), action)
        value = self.head.value(self.value(x)).reshape(rollout.reward.shape)
        ended = rollout.terminated | rollout.truncated
        cut = ended.clone()
        cut[-1] = True
        next_value = value.roll(-1, 0)  # where the next step begins, except at the end of an episode or rollout
        next_value[cut] = self.head.value(self.value(self.encoder(self.normalizer(rollout.next_obs[cut]))))
        discount, lambda_ = self.config.discount, self.config.gae_lambda
        advantage = gae(rollout.reward, value, next_value, rollout.terminated, ended, discount, lambda_)
        return Minibatch(obs, action, log_prob, *(y.flatten() for y in (value, advantage, advantage + value)))

    @torch.no_grad()
    def scale_reward(self, rollout: Transition) -> Transition:
        """A rollout `[T, N, ...]` with its rewards as the critic sees them."""
        reward, ended = rollout.reward, rollout.terminated | rollout.truncated
        if self.config.clip_reward:
            return rollout._replace(reward=reward.sign())
        if not self.config.normalize_reward:
            return rollout
        self.return_normalizer.update(self.returns_so_far.update(reward, ended).flatten())
        return rollout._replace(reward=(reward / self.return_normalizer.std).clamp(-10, 10))

    def learn(self, rollout: Transition) -> Metrics:
        """Makes `epochs` passes over a rollout with scaled rewards, in minibatches shuffled anew for each pass.

        Returns the means of the metrics of `update`.
        """
        whole = self.prepare(rollout)
        steps: list[Metrics] = []
        for _ in range(self.config.epochs):
            order = torch.randperm(len(whole.returns), device=whole.returns.device)
            shuffled = (x[order].chunk(self.config.minibatches) for x in whole)
            steps += [self.update(Minibatch(*minibatch)) for minibatch in zip(*shuffled, strict=True)]
            if self.config.target_kl is not None and steps[-1]["approx_kl"] > self.config.target_kl:
                break
        metrics = {name: torch.stack([step[name].float() for step in steps]).mean() for name in steps[0]}
        metrics |= self.head.metrics()  # a count, not a mean
        if isinstance(self.normalizer, RunningNormalizer):
            self.normalizer.update(rollout.obs.flatten(0, 1))
        if len(whole.returns) > 1:
            spread = whole.returns.var()
            metrics["explained_variance"] = torch.where(spread > 0, 1 - whole.advantage.var() / spread, 0.0)
        return metrics

    @torch.no_grad()
    def sample(self, obs: Tensor) -> Tensor:
        """An action sampled from the policy, before it is clipped to the bounds."""
        return self.policy.sample(self.actor(self.encoder(self.normalizer(obs))))

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        out = self.actor(self.encoder(self.normalizer(obs)))
        return self.policy.clip(self.policy.sample(out)) if explore else self.policy.mode(out)

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.head.value(self.value(self.encoder(self.normalizer(obs)))) * self.reward_unit()

    def reward_unit(self) -> Tensor:
        """What a value of 1 amounts to in the environment's rewards `[]`, or in clipped ones if they are clipped."""
        std = self.return_normalizer.std
        return std if self.config.normalize_reward and not self.config.clip_reward else torch.ones_like(std)


def train(run: "Run", config: Config) -> PPO:
    envs = run.envs()
    iterations = -(-run.config.steps // envs.num_envs) // config.num_steps
    agent = PPO(envs.spec, config, iterations * config.epochs * config.minibatches)
    buffer = RolloutBuffer(run.device)
    run.track(agent=agent, buffer=buffer)
    if not envs.resumed:  # new episodes begin
        buffer.clear()
    for _ in run.steps():
        action = agent.sample(envs.obs)
        buffer.append(envs.step(agent.policy.clip(action))._replace(action=action))
        if len(buffer) == config.num_steps:
            data = agent.scale_reward(buffer.stacked())
            agent.head.update_support(data.reward, data.terminated | data.truncated, agent.value)
            run.log(agent.learn(data))
            buffer.clear()
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
