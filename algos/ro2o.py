"""RO2O: robust offline-to-online RL by uncertainty and smoothness (Wen, Yu, Yang et al. 2023, arXiv 2309.16973).

SAC with many critics, like EDAC, regularized to be smooth. Near a state of the data, neither the critics' values nor
the policy may change much, and the values of the policy's actions there are penalized by the critics' disagreement. A
smooth policy meets new states online without a drop in return, and no conservative penalty has to be removed first.

    critic   L_Q  = E[sum_i (Q_i(s, a) - y)^2] + eta_1 L_sm + eta_2 L_ood,                                    (Eq. 11)
             y    = r + gamma (1 - terminated) (min_i Q_i'(s', a') - alpha log pi(a'|s')),  a' ~ pi(s')
             L_sm = E[max over d of mean_i [(1 - tau) max(D_i, 0)^2 + tau min(D_i, 0)^2]],                     (Eq. 5)
             D_i  = Q_i(s + d, a) - Q_i(s, a)
             L_ood = E[(Q_i(s + d, a'') - (Q_i(s + d, a'') - u std_i Q_i(s + d, a'')))^2],  a'' ~ pi(s + d)    (Eq. 9)
    actor    L_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)] + eta_3 E[max over d of J(pi(s), pi(s + d))]         (Eq. 7)
    alpha    L_a  = E[-log alpha (log pi(a|s) + target entropy)]

a ~ pi(s). J is the sum of the KL divergences in both directions, before the squashing. No gradient flows through the
target in L_ood, which is the inner parenthesis. d is one of `perturbations` samples from a cube, the same for all
states of a batch. u falls linearly.

The paper has one objective for both stages. Its published code fine-tunes without L_sm, L_ood and J, from its own steps
alone, which is `online_steps=250000 online_fraction=1 online_starts=2500`; `algo.smooth_online=true` is as in the
paper. Deviations from the authors' code (github BattleWen/RO2O): mean and log standard deviation are two halves of one
layer; log pi is exact, theirs has 1e-6 in its logarithm. Its variants for AntMaze, which add cloning, are left out.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.batch import Batch
from zoo.nn import EnsembleCritic, Normalizer, TanhGaussian, fan_out_critic_, polyak_update, small_last_
from zoo.nn.optim import Adam
from zoo.runs.online import learn_online
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline to online"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    num_critics: int = 10  # number of critics
    perturbations: int = 20  # number of perturbations d
    critic_radius: float = 0.01  # largest entry of d in L_sm, in standard deviations of the data if normalize_obs
    policy_radius: float = 0.01  # the same in J
    ood_radius: float = 0.01  # the same in L_ood
    critic_weight: float = 1e-4  # eta_1, of L_sm
    ood_weight: float = 0.1  # eta_2, of L_ood
    policy_weight: float = 1.0  # eta_3, of J; the paper tunes it by task
    smooth_tau: float = 0.2  # tau of L_sm, weight of values that fall; those that rise have 1 - tau
    uncertainty: float = 1.0  # u at the start
    uncertainty_min: float = 0.1  # u at the end
    uncertainty_decay: float = 5e-7  # decrease of u per update
    smooth_online: bool = False  # use L_sm, L_ood and J online too
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-4  # Adam's learning rate, actor
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    alpha_lr: float = 3e-4  # Adam's learning rate, temperature
    batch_size: int = 256  # transitions per update
    target_entropy: float | None = None  # nats, of actions in [-1, 1]; null is -dim(A)
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset

    def __post_init__(self) -> None:
        check(
            self,
            num_critics=at_least(2, "L_ood is of their disagreement"),
            perturbations=at_least(1),
            smooth_tau=between(0, 1),
            uncertainty_min=at_least(0),
            uncertainty_decay=at_least(0),
            critic_weight=at_least(0),
            policy_weight=at_least(0),
            ood_weight=at_least(0),
            critic_radius=at_least(0),
            policy_radius=at_least(0),
            ood_radius=at_least(0),
        )
        if self.uncertainty < self.uncertainty_min:
            least = self.uncertainty_min
            raise ValueError(f"algo.uncertainty={self.uncertainty} falls to algo.uncertainty_min={least}: give it more")


class RO2O(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.actor = TanhGaussian(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, (-5.0, 2.0))
        small_last_(self.actor.net, 1e-3)
        self.critic = EnsembleCritic(config.num_critics, spec.obs_dim, spec.action_dim, config.hidden)
        fan_out_critic_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.smoothed = nn.Buffer(torch.zeros((), dtype=torch.int64))  # updates with L_sm, L_ood and J so far
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.alpha_lr)

    def uncertainty(self) -> Tensor:
        """u, from the number of updates: to subtract 5e-7 from a float32 near 1 takes off only 4.8e-7."""
        fallen: Tensor = self.config.uncertainty - self.config.uncertainty_decay * self.smoothed
        return fallen.clamp(min=self.config.uncertainty_min)

    def perturbed(self, obs: Tensor, radius: float) -> Tensor:
        """Observations plus each perturbation d: `[n, B, ...]`."""
        d = radius * (2 * torch.rand_like(obs[:1].expand(self.config.perturbations, *obs.shape[1:])) - 1)
        return obs + d[:, None]

    def values_near(self, obs: Tensor, action: Tensor) -> Tensor:
        """The critics' values `[E, n, B]` of actions `[n, B, A]` at observations `[n, B, ...]`."""
        q: Tensor = self.critic(obs.flatten(0, 1), action.flatten(0, 1))
        return q.view(-1, *action.shape[:2])

    def alpha_loss(self, batch: Batch) -> Tensor:
        """L_a."""
        with torch.no_grad():
            _, log_prob = self.actor.sample(batch.obs)
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi without J, and log pi(a|s) `[B]`."""
        action, log_prob = self.actor.sample(batch.obs)
        q = self.critic(batch.obs, action).squeeze(-1).amin(0)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def policy_smoothness(self, batch: Batch) -> Tensor:
        """The largest J of each state, averaged over the batch."""
        near = self.perturbed(batch.obs, self.config.policy_radius)
        mean, log_std = self.actor(batch.obs)
        near_mean, near_log_std = (x.view(*near.shape[:2], -1) for x in self.actor(near.flatten(0, 1)))
        variance, near_variance = (2 * log_std).exp(), (2 * near_log_std).exp()
        squared = (mean - near_mean).square()
        # the logarithms of both KL divergences cancel
        both_ways = (variance + squared) / near_variance + (near_variance + squared) / variance - 2
        largest: Tensor = (both_ways.sum(-1) / 2).amax(0)
        return largest.mean()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q without L_sm and L_ood, and the critics' values `[E, B]`."""
        with torch.no_grad():
            next_action, next_log_prob = self.actor.sample(batch.next_obs)
            next_q = self.target_critic(batch.next_obs, next_action).squeeze(-1).amin(0)
            soft = next_q - self.log_alpha.exp() * next_log_prob
            target = batch.reward + self.config.discount * ~batch.terminated * soft  # [B]
        q = self.critic(batch.obs, batch.action).squeeze(-1)
        return (q - target).square().mean(-1).sum(), q

    def critic_smoothness(self, batch: Batch, q: Tensor) -> Tensor:
        """L_sm; `q` are the batch's values `[E, B]`."""
        near = self.perturbed(batch.obs, self.config.critic_radius)
        change = self.values_near(near, batch.action.expand(len(near), *batch.action.shape)) - q[:, None]
        tau = self.config.smooth_tau
        squared = (1 - tau) * change.clamp(min=0).square() + tau * change.clamp(max=0).square()
        largest: Tensor = squared.mean(0).amax(0)
        return largest.mean()

    def ood_loss(self, batch: Batch) -> Tensor:
        """L_ood, the mean over the critics."""
        near = self.perturbed(batch.obs, self.config.ood_radius)
        with torch.no_grad():
            action = self.actor.act(near.flatten(0, 1), explore=True)
        q = self.values_near(near, action.view(*near.shape[:2], -1))
        target = (q - self.uncertainty() * q.std(0)).detach()
        return (q - target).square().mean()

    def update(self, batch: Batch, smooth: bool = True) -> Metrics:
        """One gradient step of temperature, actor and critics, in this order; then the target critics move.

        Args:
            batch: transitions.
            smooth: include L_sm, L_ood and J.
        """
        config = self.config
        self.alpha_optimizer.minimize(self.alpha_loss(batch))
        actor_loss, log_prob = self.actor_loss(batch)
        smoothed, metrics = actor_loss, {}
        if smooth:
            policy_smoothness = self.policy_smoothness(batch)
            smoothed = actor_loss + config.policy_weight * policy_smoothness
        self.actor_optimizer.minimize(smoothed)
        critic_loss, q = self.critic_loss(batch)
        smoothed = critic_loss
        if smooth:
            critic_smoothness, ood_loss = self.critic_smoothness(batch, q), self.ood_loss(batch)
            smoothed = critic_loss + config.critic_weight * critic_smoothness + config.ood_weight * ood_loss
            metrics = {
                "policy_smoothness": policy_smoothness.detach(),
                "critic_smoothness": critic_smoothness.detach(),
                "ood_loss": ood_loss.detach(),
            }
            self.smoothed.add_(1)
        self.critic_optimizer.minimize(smoothed)
        polyak_update(self.target_critic, self.critic, config.tau)
        return metrics | {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q.detach().mean(),
            "q_std": q.detach().std(0, correction=0).mean(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> RO2O:
    data = run.dataset()
    agent = RO2O(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    learn_online(
        run, agent, data, config.batch_size, update=lambda batch, _: agent.update(batch, smooth=config.smooth_online)
    )
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
