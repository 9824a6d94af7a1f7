"""f-DVL: dual V-learning (Sikchi, Zheng, Zhang, Niekum 2023, arXiv 2302.08560); with f=reverse_kl Extreme Q-Learning.

As in IQL, the state value is an implicit maximum of the critics over the data's actions. Its loss is derived from the
dual of RL as a linear program, and each f-divergence between policy and data gives a loss of its own.

    value    L_V  = E[lambda f(d) - (1 - lambda) d],  d = min Q'(s, a) - V(s), where f(d) is
             chi2          max(d + d^2 / 4, 0)
             chi2_exact    d + d^2 / 4, and -1 where d < -2: the conjugate of (x - 1)^2 over densities x >= 0
             tv            max(d, 0): V is the quantile 2 - 1 / lambda
    or       L_V  = E[exp(z) - z - 1],  z = d / lambda: reverse_kl, V is lambda log E[exp(Q / lambda)]
    critic   L_Q  = sum over i of E[h(r + gamma (1 - terminated) V(s') - Q_i(s, a))],  h Huber's loss
    actor    L_pi = E[-exp(beta d) log pi(a|s)]

reverse_kl is the Gumbel regression of Garg, Hejna, Geist and Ermon 2023 (arXiv 2301.02328). Its loss is divided by the
exponential of the batch's largest z, and z is clipped. Both, like the two critics and the weights clipped at 100, are
in the authors' code (github hari-sikchi/DVL), not in the equations. So is chi2, which is 0 for d in [-4, 0] and grows
again below, so that with lambda = 1 no value in that band is preferred; chi2_exact is what the paper derives.
Deviations from that code: in V, layer normalization follows the ReLU instead of preceding it, and adds 1e-5 to the
variance, not 1e-6; networks have PyTorch's initialization, not an orthogonal one; the data's actions are not clipped to
1 - 1e-5. The code's noise on them and its gradient penalty, off by default, are left out. So is its dropout, which is
0.5 in V on AntMaze, where the actor's learning rate also stays constant, and 0.1 in the actor on Kitchen and Adroit.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, check, one_of
from zoo.data.batch import Batch
from zoo.nn import MLP, EnsembleCritic, GaussianPolicy, Normalizer, polyak_update
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    f: str = "chi2"  # the divergence: chi2 (the authors' form), chi2_exact, tv, or reverse_kl: Extreme Q-Learning
    temperature: float = 0.7  # lambda: V rises with it, and with tv to the maximum of Q; with reverse_kl V falls
    max_exponent: float = 7.0  # of reverse_kl: z is clipped here
    random_actions: int = 0  # uniform actions added to each of the data's in the value's loss; the authors take 0 or 1
    beta: float = 3.0  # inverse temperature of the actor's weights; AntMaze: 10
    max_weight: float = 100.0  # the actor's weights are clipped here
    huber_delta: float = 20.0  # where h turns linear
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    value_layer_norm: bool = True  # layer normalization in the value
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate at the start; falls to 0 by a cosine
    critic_lr: float = 3e-4  # Adam's learning rate, critics and value
    batch_size: int = 256  # transitions per update; the authors take 1024 in most tasks
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    normalize_reward: bool = True  # rewards times 1000 / (largest - smallest episode return); for locomotion

    def __post_init__(self) -> None:
        check(
            self,
            f=one_of("chi2", "chi2_exact", "tv", "reverse_kl"),
            temperature=above(0),
            random_actions=at_least(0),
            huber_delta=above(0),
        )
        if self.f == "tv" and self.temperature <= 0.5:
            raise ValueError(
                f"algo.temperature={self.temperature} with algo.f=tv has no minimum: V would fall for ever, since it "
                "is the quantile 2 - 1 / temperature. Take one above 0.5, such as 0.8"
            )
        if self.f in ("tv", "chi2_exact") and self.temperature > 1:
            raise ValueError(
                f"algo.temperature={self.temperature} with algo.f={self.f} has no minimum: V would rise for ever. "
                "Take one up to 1, such as 0.8"
            )


class DVL(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.actor = GaussianPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.value = MLP(spec.obs_dim, 1, config.hidden, layer_norm=config.value_layer_norm)
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.critic_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr, total_steps)

    def difference(self, obs: Tensor, action: Tensor) -> Tensor:
        """d `[B]`."""
        with torch.no_grad():
            q = self.target_critic(obs, action).squeeze(-1).amin(0)
        d: Tensor = q - self.value(obs).squeeze(-1)
        return d

    def implicit_maximum(self, d: Tensor) -> Tensor:
        """The terms of L_V, `[B] -> [B]`: their mean is least where V is an implicit maximum of Q."""
        temperature = self.config.temperature
        if self.config.f == "reverse_kl":
            z = (d / temperature).clamp(max=self.config.max_exponent)
            largest = z.detach().amax().clamp(min=-1)
            return torch.exp(z - largest) - (z + 1) * torch.exp(-largest)
        if self.config.f == "tv":
            f = d.clamp(min=0)
        elif self.config.f == "chi2":
            f = (d + d.square() / 4).clamp(min=0)
        else:
            bounded = d.clamp(min=-2)
            f = bounded + bounded.square() / 4
        return temperature * f - (1 - temperature) * d

    def value_loss(self, batch: Batch) -> Tensor:
        """L_V, over the data's actions and `random_actions` uniform ones for each of them."""
        obs, action = batch.obs, batch.action
        if self.config.random_actions > 0:
            many = self.config.random_actions
            uniform = self.actor.from_unit(2 * torch.rand_like(action.repeat(many, 1)) - 1)
            obs = obs.repeat(1 + many, 1)
            action = torch.cat([action, uniform])
        return self.implicit_maximum(self.difference(obs, action)).mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and d `[B]`."""
        advantage = self.difference(batch.obs, batch.action).detach()
        weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return (weight * self.actor.cloning_loss(batch.obs, batch.action)).mean(), advantage

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, and the critics' mean value."""
        with torch.no_grad():
            next_value = self.value(batch.next_obs).squeeze(-1)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        q = self.critic(batch.obs, batch.action).squeeze(-1)  # [2, B]
        loss = F.huber_loss(q, target.expand_as(q), reduction="none", delta=self.config.huber_delta)
        return loss.mean(-1).sum(), q.detach().mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of value, actor and critics, in this order; then the target critics move."""
        value_loss = self.value_loss(batch)
        self.value_optimizer.minimize(value_loss)
        actor_loss, advantage = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage.mean(),
            "q": q,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> DVL:
    data = run.dataset()
    agent = DVL(data.spec, config, total_steps=run.config.steps)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
