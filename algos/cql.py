"""CQL: Conservative Q-Learning (Kumar, Zhou, Tucker, Levine 2020, arXiv 2006.04779), its variant CQL(H).

SAC whose critics are regularized: their values are pushed down on all actions, by a soft maximum, and up on the data's.
Actions outside the data are then undervalued rather than overvalued, and the policy stays near the data.

    critic   L_Q  = E[(Q_i(s, a) - y)^2] + alpha E[logsumexp_a Q_i(s, a) - Q_i(s, a)],                      (Eq. 4)
             y    = r + gamma (1 - terminated) min_i Q_i'(s', a'),  a' ~ pi(s')
    actor    L_pi = E[alpha_H log pi(a|s) - min_i Q_i(s, a)],  a ~ pi(s)                                    (SAC)
    alpha_H  L_a  = E[-log alpha_H (log pi(a|s) + target entropy)]                                          (SAC)

The soft maximum is estimated by importance sampling, with actions drawn uniformly, from pi(s) and from pi(s')
(appendix F). With `lagrange` the weight of the gap between the two terms is learned, so that the gap stays at
`target_gap` (Eq. 30).

With `calibrated` this is Cal-QL (Nakamoto et al. 2023, arXiv 2303.05479): the values of the policy's actions are not
pushed below the return that the data achieved from that state on. Values thus keep the scale of true returns, and
online learning does not begin by unlearning the policy. In the soft maximum, the value Q_i(s, a) of an action a ~ pi(s)
or a ~ pi(s') is replaced by max(Q_i(s, a), G), where G is the data's return-to-go at s.

Deviations, as in CORL (github young-geng/CQL): there is no 1/2 before the squared error of Eq. 4, so that alpha weighs
half as much; y has no entropy term; all losses are computed before any parameter is updated. Unlike in CORL, one
forward pass of the policy serves all actions sampled at an observation; its log standard deviation starts at -1 through
the bias of its layer, without an additional learned scale and offset; with `max_target`, y uses the actions of the soft
maximum; and without `orthogonal_init` the critics have PyTorch's initialization. Unlike in the authors' code (github
aviralkumar2907/CQL, d4rl), the actor does not clone the data for its first 40,000 updates; with `max_target`, y is the
largest of the minima, not the smallest of the maxima; the learned weight begins at e, not 1; `target_gap` is the gap,
not its product with alpha; and target critics begin as copies. Cal-QL's authors (github nakamotoo/Cal-QL) collect an
episode and then take one update for each of its steps; here an update follows each step, and the values of an online
episode are bounded only after it has ended, when its returns-to-go are known. CORL does not calibrate online. The
return-to-go of a truncated episode is the sum of the rewards it received. But if all its rewards are equal, as when a
sparse goal was missed, it is the return of receiving that reward forever (for which the authors have a setting). With
more than two critics, all of them are penalized; WSRL's code (github zhouzypaul/wsrl) penalizes two, sampled with
replacement like those in y.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.monte_carlo import MonteCarloBatch, MonteCarloReturns
from zoo.nn import EnsembleCritic, Normalizer, TanhGaussian, near_zero_, orthogonal_, polyak_update
from zoo.nn.heads import value_head
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
    alpha: float = 10.0  # weight of the gap between the soft maximum and the data's actions; AntMaze: 5
    num_actions: int = 10  # actions for the soft maximum, from each of three distributions
    lagrange: bool = False  # multiply alpha by a learned weight that holds the gap at target_gap; AntMaze: true
    target_gap: float = 0.8  # gap that lagrange holds, for actions in [-1, 1]
    max_target: bool = False  # y takes the best of num_actions next actions; AntMaze: true
    calibrated: bool = False  # Cal-QL: in the gap, values of the policy's actions are at least the data's return-to-go
    num_critics: int = 2  # number of critics; WSRL: 10
    subset: int | None = None  # critics drawn anew at each update, whose minimum y takes; null: all; WSRL: 2
    critic_layer_norm: bool = False  # layer normalization in the critics; WSRL: true
    actor_layer_norm: bool = False  # layer normalization in the actor; WSRL: true
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    actor_lr: float = 3e-5  # Adam's learning rate, actor and temperature alpha_H; AntMaze: 1e-4
    critic_lr: float = 3e-4  # Adam's learning rate, critics and the learned weight
    batch_size: int = 256  # transitions per update
    target_entropy: float | None = None  # of actions in [-1, 1], held by alpha_H; null is -dim(A)
    orthogonal_init: bool = True  # critics begin with orthogonal weights and zero biases (CORL)
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset (CORL)
    normalize_reward: bool = False  # rewards times 1000 / (largest - smallest episode return)
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(
            self,
            alpha=at_least(0, "0 is SAC without conservatism, the paper takes 5 to 10"),
            num_actions=at_least(1, "the paper takes 10"),
            num_critics=at_least(1, "the paper takes 2"),
            subset=between(1, self.num_critics, "both", "null is all of algo.num_critics"),
        )


class CQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.head = value_head(config)
        self.actor = TanhGaussian(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, layer_norm=config.actor_layer_norm
        )
        near_zero_(self.actor.net)
        *_, bias = self.actor.net.parameters()
        nn.init.constant_(bias[spec.action_dim :], -1.0)  # of the log standard deviations
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs,
            config.critic_layer_norm, norm_first=True,
        )  # fmt: skip
        if config.orthogonal_init:
            orthogonal_(self.critic, last_gain=0.01)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))  # of alpha_H
        self.log_weight = nn.Parameter(torch.ones(()))  # of lagrange
        self.target_entropy = self.actor.target_entropy(config.target_entropy)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.actor_lr)
        self.weight_optimizer = Adam([self.log_weight], config.critic_lr)

    def actor_loss(self, batch: MonteCarloBatch, policy: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(a|s) `[B]`, for the policy's mean and log standard deviation at the observations."""
        action, log_prob = self.actor.draw(*policy, torch.randn_like(batch.action))
        q = self.head.value(self.critic(batch.obs, action)).amin(0)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def backed_up(self, out: Tensor) -> Tensor:
        """The outputs that y may use, of `subset` of the target critics, from all outputs `[E, ...]`."""
        if self.config.subset is None:
            return out
        drawn = torch.rand_like(out.flatten(1)[:, 0])  # [E]
        return out.index_select(0, drawn.topk(self.config.subset).indices)

    def target(self, batch: MonteCarloBatch, next_policy: tuple[Tensor, Tensor], next_actions: Tensor) -> Tensor:
        """y, in the form that the value head takes."""
        discount = self.config.discount * ~batch.terminated
        if not self.config.max_target:
            next_action, _ = self.actor.draw(*next_policy, torch.randn_like(batch.action))
            next_out = self.head.min_member(self.backed_up(self.target_critic(batch.next_obs, next_action)))
            return self.head.backup(batch.reward, discount, next_out)
        next_out = self.backed_up(self.target_critic.of_many(batch.next_obs, next_actions))  # [E, n, B, outputs]
        value = self.head.value(next_out).amin(0).amax(0)  # [B]
        return self.head.project(batch.reward + discount * value)

    def gap(
        self, batch: MonteCarloBatch, q: Tensor, sampled: tuple[Tensor, Tensor], sampled_next: tuple[Tensor, Tensor]
    ) -> Tensor:
        """The soft maximum over all actions, in units where they lie in [-1, 1], minus the data's value: `[E]`.

        Args:
            batch: transitions.
            q: `[E, B]` values of the data's actions.
            sampled: actions `[n, B, A]` of the policy at the observations, and their log densities `[n, B]`.
            sampled_next: likewise at the next observations.
        """
        uniform = self.actor.from_unit(2 * torch.rand_like(sampled[0]) - 1)
        actions = torch.cat([uniform, sampled_next[0], sampled[0]])  # [3 n, B, A]
        log_density = torch.cat([torch.full_like(sampled[1], self.actor.log_uniform), sampled_next[1], sampled[1]])
        values = self.head.value(self.critic.of_many(batch.obs, actions))  # [E, 3 n, B]
        if self.config.calibrated:
            n = self.config.num_actions
            values = torch.cat([values[:, :n], torch.maximum(values[:, n:], batch.return_to_go)], 1)
        return (torch.logsumexp(values - log_density, 1) - q).mean(-1) - self.actor.log_scale

    def update(self, batch: MonteCarloBatch) -> Metrics:
        """One gradient step of all networks, from losses computed before it; then the target critics move.

        The batch needs returns-to-go only with `calibrated`.
        """
        policy: tuple[Tensor, Tensor] = self.actor(batch.obs)
        actor_loss, log_prob = self.actor_loss(batch, policy)
        with torch.no_grad():
            noise = torch.randn_like(batch.action.expand(2, self.config.num_actions, *batch.action.shape))
            next_policy: tuple[Tensor, Tensor] = self.actor(batch.next_obs)
            sampled, sampled_next = self.actor.draw(*policy, noise[0]), self.actor.draw(*next_policy, noise[1])
            target = self.target(batch, next_policy, sampled_next[0])
        out = self.critic(batch.obs, batch.action)  # [E, B, outputs]
        q = self.head.value(out)
        gap = self.gap(batch, q, sampled, sampled_next)
        penalty = self.config.alpha * gap.sum()
        if self.config.lagrange:
            weight = self.log_weight.exp().clamp(max=1e6)
            penalty = weight.detach() * penalty
            excess = self.config.alpha * (gap.detach() - self.config.target_gap).mean()
            self.weight_optimizer.minimize(-weight * excess)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        self.actor_optimizer.minimize(actor_loss)
        critic_loss = self.head.loss(out, target).mean(-1).sum()
        self.critic_optimizer.minimize(critic_loss + penalty)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        learned = {"weight": self.log_weight.detach().exp()} if self.config.lagrange else {}
        return {
            "critic_loss": critic_loss.detach(),
            "gap": gap.detach().mean(),
            "actor_loss": actor_loss.detach(),
            "temperature": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q.detach().mean(),
            **learned,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.act(obs, explore)


def train(run: "Run", config: Config) -> CQL:
    data = run.dataset()
    agent = CQL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    returns = MonteCarloReturns(data, config.discount) if config.calibrated else None

    def update(batch: Any, _: int = 0) -> Metrics:
        return agent.update(returns.add_to(batch) if returns else batch)

    for _ in run.steps():
        run.log(update(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size, returns, update)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
