"""EDAC: Ensemble-Diversified Actor Critic (An, Moon, Kim, Song 2021, arXiv 2110.01548); with eta=0 it is SAC-N.

SAC-N is SAC with N critics. Their minimum is a lower confidence bound, which is low outside the data if there are
enough critics. EDAC diversifies the critics' gradients with respect to the action. This raises the critics'
disagreement outside the data, so that fewer of them suffice.

    critic   L_Q  = E[sum_i (Q_i(s, a) - y)^2] + eta L_D,                                           (Algorithm 1)
             y    = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s')),  a' ~ pi(s')
             L_D  = E[sum over i != j of <g_i, g_j>] / (N - 1),  g_i = grad_a Q_i(s, a) / |grad_a Q_i(s, a)|   (Eq. 5)
    actor    L_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(s)
    alpha    L_a  = E[-log alpha (log pi(a|s) + target entropy)]

With eta=0 and batches of 10,000 this is LB-SAC (Nikulin et al. 2022, arXiv 2211.11092), which needs fewer critics than
SAC-N. Deviations from the authors' code (github snu-mllab/EDAC): temperature, actor and critics are updated in this
order, each from the parameters just updated, as in CORL, whereas the authors compute all three losses before any step;
mean and log standard deviation are the two halves of one layer, not two layers; log pi is exact, whereas the authors
add 1e-6 inside its logarithm; weights are initialized as in CORL, uniformly in +-1/sqrt(outputs) in the critics and in
+-1/sqrt(inputs) in the actor, where the authors have it the other way round; and target critics begin as copies, theirs
with weights of their own.

MSG (Ghasemipour, Gu, Nachum 2022, arXiv 2205.13703) is not an option here. In MSG, each critic backs up its own next
value, and the actor maximizes the critics' mean minus 4 or 8 standard deviations. But its authors' code
(github google-research jrl/agents/msg) also has no entropy in the targets, a penalty on the values of the policy's
actions with a weight for each task, 50,000 updates of cloning beforehand, and randomly weighted errors.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Batch
from zoo.nn import EnsembleCritic, Normalizer, TanhGaussian, fan_out_critic_, polyak_update, small_last_
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
    num_critics: int = 10  # N; the paper takes 10 on halfcheetah and walker2d, 50 on hopper
    eta: float = 1.0  # weight of L_D; 0 is SAC-N, which needs 10 to 500 critics
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    critic_layer_norm: bool = False  # layer normalization in the critics; LB-SAC on hopper-medium: true
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    alpha_lr: float = 3e-4  # Adam's learning rate, temperature
    batch_size: int = 256  # transitions per update
    target_entropy: float | None = None  # nats, of actions in [-1, 1]; null is -dim(A)
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    normalize_reward: bool = False  # rewards times 1000 / (largest - smallest episode return)

    def __post_init__(self) -> None:
        check(self, num_critics=at_least(1, "the paper takes 10 or 50"), eta=at_least(0, "0 is SAC-N"))
        if self.eta > 0 and self.num_critics == 1:
            raise ValueError("algo.num_critics=1 has no other critic to differ from: give algo.eta=0")


class EDAC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.actor = TanhGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, (-5.0, 2.0))
        small_last_(self.actor.net, 1e-3)
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, spec.action_dim, config.hidden, layer_norm=config.critic_layer_norm,
            norm_first=True,
        )  # fmt: skip
        fan_out_critic_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr)

    def alpha_loss(self, batch: Batch) -> Tensor:
        """L_a."""
        with torch.no_grad():
            _, log_prob = self.actor.sample(batch.obs)
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).squeeze(-1).amin(0)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q without L_D, and the critics' values `[N, B]`."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs)
            next_q = self.target_critic(batch.next_obs, next_action).squeeze(-1).amin(0)
            soft = next_q - self.log_alpha.exp() * next_log_prob
            target = batch.reward + self.config.discount * ~batch.terminated * soft  # [B]
        q = self.critic(batch.obs, batch.action).squeeze(-1)
        return (q - target).square().mean(-1).sum(), q.detach()

    def diversity_loss(self, batch: Batch) -> Tensor:
        """L_D."""
        count = self.config.num_critics
        action = batch.action.expand(count, -1, -1).clone().requires_grad_()  # [N, B, A]
        q = self.critic(batch.obs.expand(count, -1, -1), action)
        (gradient,) = torch.autograd.grad(q.sum(), action, create_graph=True)
        gradient = gradient / (gradient.norm(dim=-1, keepdim=True) + 1e-10)
        # the sum over pairs is the square of the sum minus the sum of the squares
        pairs = gradient.sum(0).square().sum(-1) - gradient.square().sum((0, 2))  # [B]
        loss: Tensor = pairs.mean() / (count - 1)
        return loss

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of temperature, actor and critics, in this order; then the target critics move."""
        alpha_loss = self.alpha_loss(batch)
        self.alpha_optimizer.minimize(alpha_loss)
        actor_loss, log_prob = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        critic_loss, q = self.critic_loss(batch)
        diversity_loss = self.diversity_loss(batch) if self.config.eta > 0 else critic_loss.new_zeros(())
        self.critic_optimizer.minimize(critic_loss + self.config.eta * diversity_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "diversity_loss": diversity_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q.mean(),
            "q_std": q.std(0, correction=0).mean(),  # 0, not NaN, for a single critic
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> EDAC:
    data = run.dataset()
    agent = EDAC(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
