"""Stream AC(lambda): actor and critic from a stream (Elsayed, Vasan, Mahmood 2024, arXiv 2410.14606).

Each sample is learned from once, when it arrives, and is not stored. The TD error says how much better the step went
than expected. It moves actor and critic along the traces of their past gradients, with a step size that ObGD bounds so
that no update overshoots.

    delta   = r + gamma (1 - terminated) V(s') - V(s)
    critic  z_V  <- gamma lambda z_V  + grad V(s)
    actor   z_pi <- gamma lambda z_pi + grad (log pi(a|s) + tau sign(delta) H(pi(.|s)))
    both    w <- w + eta delta z,  eta = lr / max(lr kappa max(|delta|, 1) |z|_1, 1)                       (ObGD)

Observations and rewards are normalized by their running statistics. The docstring of `zoo.streaming` lists what
deviates from the authors' code in every streaming algorithm. Here also:

- Actions are in units of half their range.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Metrics
from zoo.nn import Categorical, Gaussian
from zoo.spec import Spec
from zoo.streaming import Sample, StreamAgent, StreamNetwork, check_stream, optimizer, stream

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "streaming"
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
    kappa_policy: float = 3.0  # kappa of ObGD, actor: the larger it is, the smaller the bound on the step
    kappa_value: float = 2.0  # kappa of ObGD, critic
    entropy_coef: float = 0.01  # tau, weight of the entropy
    optimizer: str = "obgd"  # obgd, adaptive_obgd; or those of the classic methods: sgd, adam
    sparsity: float = 0.9  # share of the weights that begin at 0
    layer_norm: bool = True  # LayerNorm before every activation
    normalize_obs: bool = True  # by their running mean and standard deviation
    scale_reward: bool = True  # by the running standard deviation of the discounted sum of rewards
    time_feature: bool = True  # append the elapsed share of the episode to vector observations

    def __post_init__(self) -> None:
        check_stream(self, "kappa_policy", "kappa_value")


class StreamAC(StreamAgent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__(spec, config)
        shape, settings = self.normalizer.shape, (config.hidden, config.sparsity, config.layer_norm)
        self.policy = Categorical(spec) if spec.num_actions else Gaussian(spec, state_dependent_std=True)
        self.actor = StreamNetwork(shape, self.policy.outputs, *settings)
        self.critic = StreamNetwork(shape, 1, *settings)
        self.actor_optimizer = optimizer(config, self.actor, config.kappa_policy)
        self.critic_optimizer = optimizer(config, self.critic, config.kappa_value)

    @torch.no_grad()
    def start(self, obs: Tensor) -> None:
        """Begins an episode at `obs`; no credit reaches back before it."""
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

    def best(self, x: Tensor) -> Tensor:
        return self.policy.mode(self.actor(x))

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        x = self.normalized(obs)
        return self.policy.clip(self.policy.sample(self.actor(x))) if explore else self.best(x)

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.in_rewards(self.critic(self.normalized(obs))[..., 0])


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
        if envs.ended[0]:
            agent.start(envs.obs[0])
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
