"""IQL: Implicit Q-Learning (Kostrikov, Nair, Levine 2021, arXiv 2110.06169).

Offline RL that never asks the critic about an action outside the data. A state value regresses an upper expectile of
the critics' values over the dataset's actions, which approximates the best of them. The critics back up through it. The
policy clones the dataset's actions with weights that grow exponentially with their advantage.

    value    L_V  = E[L2^tau(min Q'(s, a) - V(s))],  L2^tau(u) = |tau - 1(u < 0)| u^2       (Eq. 5)
    critic   L_Q  = E[(r + gamma (1 - terminated) V(s') - Q(s, a))^2]                        (Eq. 6)
    actor    L_pi = E[-exp(beta (min Q'(s, a) - V(s))) log pi(a|s)]                          (Eq. 7)

For discrete actions the policy is categorical, whatever `policy` says. Deviations: two critics, whose minimum stands
for Q', and weights clipped at 100 are in the authors' code (github ikostrikov/implicit_q_learning), not in the
equations; so is the actor's learning rate, which falls by a cosine offline and is constant if a run goes online. All
losses are of the parameters before the update, as in CORL; in the authors' code, actor and critics see the new value.
Layers have PyTorch's initialization, as in CORL (the authors: orthogonal). The log standard deviation is at least -5,
as in the authors' code (CORL: -20).
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import check, one_of
from zoo.data.batch import Batch
from zoo.nn import (
    CategoricalPolicy,
    DeterministicPolicy,
    DiscreteCritic,
    EnsembleCritic,
    GaussianPolicy,
    Normalizer,
    network_for,
    polyak_update,
)  # fmt: skip
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.runs.online import learn_online
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline to online"
DATA = "required"
ACTION_SPACES = ("continuous", "discrete")
FRAMES = ("discrete",)


@dataclass
class Config:
    expectile: float = 0.7  # tau of Eq. 5; the paper uses 0.9 on AntMaze
    beta: float = 3.0  # inverse temperature of Eq. 7; the paper takes 10 on AntMaze
    max_weight: float = 100.0  # the exponential of Eq. 7 is clipped here
    policy: str = "gaussian"  # gaussian (the authors'), or deterministic: squared error for -log pi (CORL, two tasks)
    exploration_noise: float = 0.03  # std of a deterministic policy's noise, online, in units of half the range (CORL)
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers; frames use a CNN
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate at the start; falls to 0 by a cosine, unless there are online_steps
    critic_lr: float = 3e-4  # Adam's learning rate, critics and value
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset; CORL: true
    normalize_reward: bool = True  # rewards times 1000 / (largest - smallest episode return); for locomotion, not games
    value_head: str = "mse"  # of the critics: mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, policy=one_of("gaussian", "deterministic"))


class IQL(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int | None = 1_000_000) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        shape = (spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.actor = (
            CategoricalPolicy(spec, config.hidden)
            if spec.num_actions is not None
            else GaussianPolicy(*shape)
            if config.policy == "gaussian"
            else DeterministicPolicy(*shape, exploration_noise=config.exploration_noise)
        )
        self.value = network_for(spec, 1, config.hidden)
        self.head = value_head(config)
        self.critic = (
            DiscreteCritic(2, spec, config.hidden, self.head.outputs)
            if spec.num_actions is not None
            else EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs)
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.value_optimizer = Adam(self.value.parameters(), config.critic_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr, total_steps)

    def value_loss(self, batch: Batch, target_q: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 5, and the advantages `[B]`."""
        advantage = target_q - self.value(batch.obs).squeeze(-1)
        weight = torch.where(advantage >= 0, self.config.expectile, 1 - self.config.expectile)
        return (weight * advantage.square()).mean(), advantage.detach()

    def critic_loss(self, batch: Batch, next_value: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 6, the mean over both critics, and their mean value."""
        target = batch.reward + self.config.discount * ~batch.terminated * next_value
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, self.head.project(target)).mean(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: Batch, advantage: Tensor) -> Tensor:
        """Eq. 7."""
        weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return (weight * self.actor.cloning_loss(batch.obs, batch.action)).mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of value, actor and critics from the parameters before it; then the target critics move."""
        with torch.no_grad():
            target_q = self.head.value(self.target_critic(batch.obs, batch.action)).amin(0)  # [B]
            next_value = self.value(batch.next_obs).squeeze(-1)  # [B]
        value_loss, advantage = self.value_loss(batch, target_q)
        self.value_optimizer.minimize(value_loss)
        actor_loss = self.actor_loss(batch, advantage)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q = self.critic_loss(batch, next_value)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "value_loss": value_loss.detach(),
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "advantage": advantage.mean(),
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> IQL:
    data = run.dataset()
    agent = IQL(data.spec, config, total_steps=None if run.config.online_steps else run.config.steps)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
