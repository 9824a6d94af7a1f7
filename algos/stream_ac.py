"""Stream AC(lambda): actor and critic from a stream (Elsayed, Vasan, Mahmood 2024, arXiv 2410.14606).

Each sample is learned from once, when it arrives, and not stored. The critic's temporal difference says how much better
it went than expected; actor and critic follow the traces of their past gradients accordingly, as far as keeps a sample
from overshooting (ObGD).

    delta   = r + gamma (1 - terminated) V(s') - V(s)
    critic  z_V  <- gamma lambda z_V  + grad V(s)
    actor   z_pi <- gamma lambda z_pi + grad (log pi(a|s) + tau sign(delta) H(pi(.|s)))
    both    w <- w + ObGD's step size  delta z

Observations and rewards are normalized by their running statistics. The docstring of `zoo.streaming` lists what
deviates from the authors' code in every streaming algorithm. Here also:

- Actions are in units of half their range.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.nn import HALF_LOG_2PI, BoundedPolicy
from zoo.spec import Spec
from zoo.streaming import Sample, StreamAgent, StreamNetwork, check_stream, optimizer, stream

if TYPE_CHECKING:
    from zoo.runs.run import Run

SETTING = "online"
DATA = "none"
ACTION_SPACES = ("continuous", "discrete")
FRAMES = True


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # widths of actor and critic each; CartPole: 32, 32
    discount: float = 0.99  # gamma
    trace_lambda: float = 0.8  # lambda, how long credit reaches back
    lr: float = 1.0  # step size where ObGD does not bound it
    kappa_policy: float = 3.0  # how far below the bound the actor's steps stay
    kappa_value: float = 2.0  # the critic's likewise
    entropy_coef: float = 0.01  # tau, weight of the entropy
    optimizer: str = "obgd"  # obgd, adaptive_obgd; sgd and adam are the classic methods'
    sparsity: float = 0.9  # share of the weights that begin at 0
    layer_norm: bool = True  # LayerNorm before every activation
    normalize_obs: bool = True  # by their running mean and standard deviation
    scale_reward: bool = True  # by the running standard deviation of the discounted sum of rewards
    time_feature: bool = True  # vectors are joined by the elapsed share of the episode

    def __post_init__(self) -> None:
        check_stream(self, "kappa_policy", "kappa_value")


class Gaussian(BoundedPolicy):
    """Actions around a learned mean, with a learned spread. Only what the environment gets is clipped."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec.action_low, spec.action_high)
        self.outputs = 2 * spec.action_dim

    def sample(self, out: Tensor) -> Tensor:
        mean, spread = out.chunk(2, -1)
        return self.center + self.scale * (mean + F.softplus(spread) * torch.randn_like(mean))

    def mode(self, out: Tensor) -> Tensor:
        return self.clip(self.center + self.scale * out.chunk(2, -1)[0])

    def log_prob(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log density of an unclipped action and entropy, each `[]`, but for what the action's units add to them."""
        mean, spread = out.chunk(2, -1)
        std = F.softplus(spread)
        deviation = ((action - self.center) / self.scale - mean) / std
        log_prob = -0.5 * deviation.square() - std.log() - HALF_LOG_2PI
        return log_prob.sum(-1), (std.log() + HALF_LOG_2PI + 0.5).sum(-1)


class Categorical(nn.Module):
    """Discrete actions."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.outputs = spec.num_actions

    def sample(self, out: Tensor) -> Tensor:
        return (out - torch.empty_like(out).exponential_().log()).argmax(-1)  # Gumbel's trick

    def mode(self, out: Tensor) -> Tensor:
        return out.argmax(-1)

    def clip(self, action: Tensor) -> Tensor:
        return action

    def log_prob(self, out: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability and entropy, each `[]`."""
        log_probs = out.log_softmax(-1)
        return log_probs.gather(-1, action[None]).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


class StreamAC(StreamAgent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__(spec, config)
        shape, settings = self.normalizer.shape, (config.hidden, config.sparsity, config.layer_norm)
        self.policy = (Categorical if spec.num_actions else Gaussian)(spec)
        self.actor = StreamNetwork(shape, self.policy.outputs, *settings)
        self.critic = StreamNetwork(shape, 1, *settings)
        self.actor_optimizer = optimizer(config, self.actor, config.kappa_policy)
        self.critic_optimizer = optimizer(config, self.critic, config.kappa_value)

    @torch.no_grad()
    def start(self, obs: Tensor) -> None:
        """An episode begins with `obs`: no credit for what was before."""
        self.actor_optimizer.reset()
        self.critic_optimizer.reset()
        self.x.copy_(self.normalizer.reset(obs))
        self.action.copy_(self.policy.sample(self.actor(self.x)))

    def update(self, batch: Sample) -> Metrics:
        """Learns from the outcome of the last action and chooses the next."""
        with torch.no_grad():
            reward, next_x = self.normalizer.step(batch.reward, batch.next_obs)
            target = reward + self.config.discount * ~batch.terminated * self.critic(next_x)[0]
        value = self.critic(self.x)[0]
        delta = target - value.detach()
        log_prob, entropy = self.policy.log_prob(self.actor(self.x), self.action)
        actor_step_size = self.actor_optimizer.step(log_prob + self.config.entropy_coef * delta.sign() * entropy, delta)
        critic_step_size = self.critic_optimizer.step(value, delta)
        with torch.no_grad():
            self.x.copy_(next_x)
            self.action.copy_(self.policy.sample(self.actor(next_x)))
        return {
            "td_error": delta,
            "value": value.detach(),
            "entropy": entropy.detach(),
            "actor_step_size": actor_step_size,
            "critic_step_size": critic_step_size,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        out = self.actor(self.normalized(obs))
        return self.policy.clip(self.policy.sample(out)) if explore else self.policy.mode(out)


def train(run: "Run", config: Config) -> StreamAC:
    envs, time_limit = stream(run, config)
    agent = StreamAC(envs.spec, config)
    agent.normalizer.time_limit.fill_(time_limit)
    run.track(agent=agent)
    if not envs.resumed:
        agent.start(envs.obs[0])
    for _ in run.steps():
        transition = envs.step(agent.policy.clip(agent.action)[None])
        run.log(agent.update(Sample.of(transition)))
        if transition.terminated or transition.truncated:
            agent.start(envs.obs[0])
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
