"""ReBRAC: Revisited Behavior Regularized Actor-Critic (Tarasov, Kurenkov, Nikulin, Kolesnikov 2023, arXiv 2305.09836).

TD3+BC with what later work found to matter: a penalty in the critics' target as well as in the actor's loss, each with
its own weight; layer normalization in the critics; deeper networks; larger batches.

    critic   L_Q  = E[(Q_i(s, a) - y)^2]
             y    = r + gamma (1 - terminated) (min_i Q_i'(s', a~) - beta_2 |a~ - a'|^2)             (Eq. 4)
    actor    L_mu = E[-lambda min_i Q_i(s, mu(s)) + beta_1 |mu(s) - a|^2],  lambda = 1 / mean |min_i Q_i|   (Eq. 5)

Online there is no penalty in the target, and beta_1 falls, as in CORL's algorithms/finetune/rebrac.py. There, half of
each batch comes from the dataset and half from the agent's own steps: `online_fraction=0.5`.

a~ is the target policy's action with TD3's noise, and a' is the action that the dataset takes next. Deviations: at the
end of a truncated episode a' is unknown, and that transition goes without the penalty (the authors and CORL drop it).
The critics' layer normalization adds 1e-5 to the variance, not 1e-6. The target actor follows the actor just updated;
theirs follows the actor from before the update. Distances of actions are in units of half their range, which is 1 in
all of the paper's tasks.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.batch import Batch
from zoo.nn import DeterministicPolicy, EnsembleCritic, Normalizer, polyak_update, small_last_
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
    actor_penalty: float = 1.0  # beta_1, weight of the distance to the data's action; the paper: 0.001 to 0.1, by task
    critic_penalty: float = 1.0  # beta_2, likewise of the next action, in the target; the paper: 0 to 0.5, by task
    online_penalty: float = 0.5  # online beta_1 falls linearly to this share of itself (CORL)
    exploration_noise: float = 0.0  # standard deviation of noise on actions online, in units of half their range
    normalize_q: bool = True  # values in the actor's loss are scaled by lambda, to a mean absolute value of 1
    policy_delay: int = 2  # critic updates per update of actor and target networks
    target_noise: float = 0.2  # standard deviation of the noise on the target's actions
    target_noise_clip: float = 0.5  # the largest such noise
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    actor_layer_norm: bool = False  # layer normalization in the actor
    critic_layer_norm: bool = True  # layer normalization in the critics
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target networks move this fraction of the way
    actor_lr: float = 1e-3  # Adam's learning rate, actor
    critic_lr: float = 1e-3  # Adam's learning rate, critics
    batch_size: int = 1024  # transitions per update
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, actor_penalty=at_least(0), critic_penalty=at_least(0), online_penalty=between(0, 1))


class SarsaBatch(NamedTuple):
    """Transitions, and the actions that the dataset takes next."""

    obs: Tensor  # [B, obs_dim]
    action: Tensor  # [B, A]
    reward: Tensor  # [B]
    next_obs: Tensor  # [B, obs_dim]
    terminated: Tensor  # [B] bool
    next_action: Tensor  # [B, A]
    follows: Tensor  # [B] bool, whether there is a next action


class ReBRAC(Agent):
    PER_RUN = ("decays",)  # a run that continues another begins with the full penalty

    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.head = value_head(config)
        self.actor = DeterministicPolicy(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, config.actor_layer_norm,
            exploration_noise=config.exploration_noise,
        )  # fmt: skip
        self.critic = EnsembleCritic(
            2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs, config.critic_layer_norm
        )
        small_last_(self.actor.net, 1e-3)
        small_last_(self.critic, 3e-3)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.decays = nn.Buffer(torch.zeros((), dtype=torch.int64))  # updates after which beta_1 fell
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)

    def critic_loss(self, batch: SarsaBatch) -> tuple[Tensor, Tensor]:
        """Eq. 4, summed over the critics, and their mean value."""
        with torch.no_grad():
            clip = self.config.target_noise_clip
            noise = (self.config.target_noise * torch.randn_like(batch.action)).clamp(-clip, clip)
            action = self.target_actor.perturb(self.target_actor.mode(batch.next_obs), noise)
            distance = self.actor.squared_error(action, batch.next_action).sum(-1)
            penalty = self.config.critic_penalty * distance * batch.follows
            next_out = self.head.min_member(self.target_critic(batch.next_obs, action))  # [B, outputs]
            discount = self.config.discount * ~batch.terminated
            target = self.head.backup(batch.reward - discount * penalty, discount, next_out)
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, target).mean(-1).sum(), self.head.value(out.detach()).mean()

    def actor_loss(self, batch: SarsaBatch, decay: float = 0.0) -> Tensor:
        """Eq. 5, with beta_1 less `decay` for each update so far that had one: subtracting it each time would round."""
        action = self.actor.mode(batch.obs)
        q = self.head.value(self.critic(batch.obs, action)).amin(0)
        scale = 1 / q.abs().mean().detach() if self.config.normalize_q else 1.0
        distance = self.actor.squared_error(action, batch.action).sum(-1)
        share = (1 - decay * self.decays).clamp(min=self.config.online_penalty)
        penalty = self.config.actor_penalty * (share * distance)
        return (penalty - scale * q).mean()

    def update(self, batch: SarsaBatch, delayed: bool = True, decay: float = 0.0) -> Metrics:
        """One gradient step of the critics; if `delayed`, also of the actor, and the target networks move.

        Args:
            batch: transitions, and the actions that the dataset takes next.
            delayed: update the actor and the target networks too.
            decay: the share by which beta_1 falls after this update, until `online_penalty` is left.
        """
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "q": q, **self.head.metrics()}
        if delayed:
            actor_loss = self.actor_loss(batch, decay)
            self.actor_optimizer.minimize(actor_loss)
            polyak_update(self.target_actor, self.actor, self.config.tau)
            polyak_update(self.target_critic, self.critic, self.config.tau)
            metrics["actor_loss"] = actor_loss.detach()
        if decay:
            self.decays.add_(1)
        return metrics

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> ReBRAC:
    data = run.dataset()
    agent = ReBRAC(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    next_action, follows = data.next_action()
    for step in run.steps():
        sampled = data.sample(config.batch_size)
        batch = SarsaBatch(*sampled[:5], next_action[sampled.index], follows[sampled.index])
        run.log(agent.update(batch, delayed=step % config.policy_delay == 0))

    def update(batch: Batch, count: int) -> Metrics:
        nothing_follows = SarsaBatch(*batch[:5], batch.action, torch.zeros_like(batch.terminated))
        updates = (run.config.online_steps - run.config.online_starts) * run.config.online_updates
        return agent.update(nothing_follows, delayed=count % config.policy_delay == 0, decay=1 / updates)

    learn_online(run, agent, data, config.batch_size, update=update)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
