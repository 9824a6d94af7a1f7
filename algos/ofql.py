"""OFQL: One-Step Flow Q-Learning (Nguyen, Yoo 2025, arXiv 2508.13904), Diffusion-QL without its chain.

Diffusion-QL denoises in several steps, and its gradients go back through all of them. This policy maps noise to an
action in one step, without distillation. It learns the average velocity of a flow between two times, which MeanFlow
(Geng et al. 2025, arXiv 2505.13447) relates to the velocity of the straight lines from noise to the data's actions.

    path     a_t = (1 - t) a + t eps,  v = eps - a,  eps ~ N(0, I);  action  a~ = eps - u(eps, 0, 1; s)
    clone    L_u = E[|u(a_t, r, t; s) - sg(v - (t - r) du/dt)|^2],  du/dt = v d_a u + d_t u
    critic   L_Q = E[(Q_i(s, a) - y)^2],  y = r + gamma (1 - terminated) min_j Q_j'(s', a'),  a' of pi'(s')
    policy   L   = L_u - eta E[Q(s, a~)] / E|Q(s, a~)|

sg stops gradients, and pi' is a moving average of the policy. The times r <= t are two samples of a logit-normal
distribution, but with probability `flow_ratio` r is set to t: there u is the velocity itself, and L_u is plain flow
matching. du/dt is one derivative in forward mode, along (v, 0, 1).

With `backup_actions` above 1, each Q_j' takes its best value over that many actions a', as Diffusion-QL does on
AntMaze.

The authors' code is not public. What the paper leaves open follows Diffusion-QL's code: when and how far pi' moves, the
mean over action dimensions in L_u, and that |Q| is that of the critic that is not maximized. Gradients are not clipped.
The paper also does not say whether one of many actions is chosen by value, as in Diffusion-QL; `candidates=50` does so.
When exploring, one of them is drawn with probabilities that are the softmax of min_i Q_i'(s, a). Without exploration,
the one with the highest value is taken. The first or only one then comes from noise 0, and the others from noise that
is fixed when the agent is created, so that acting is deterministic.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.batch import Batch
from zoo.models.flow import MeanFlowPolicy
from zoo.nn import EnsembleCritic, Mish, Normalizer, best_of, polyak_update
from zoo.nn.heads import value_head
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
    eta: float = 0.1  # weight of the values against the cloning; the paper takes 0.001 to 0.5, by task
    flow_ratio: float = 0.5  # share of the samples with r = t: 1 is flow matching alone
    time_mean: float = -0.4  # mean of the logit of a time
    time_std: float = 1.0  # standard deviation of the logit of a time
    backup_actions: int = 1  # actions at the next observation, the best of which counts; Diffusion-QL: 10 on AntMaze
    candidates: int = 1  # actions sampled to act, of which the critics choose one; Diffusion-QL has 50
    average_start: int = 1000  # updates before pi' begins to follow pi
    average_every: int = 5  # updates between moves of pi'
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # pi' and the target critics move this fraction of the way
    lr: float = 3e-4  # Adam's learning rate, policy and critics
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("backup_actions", "candidates", "average_every"), at_least(1))
        nonnegative = dict.fromkeys(("eta", "time_std", "average_start"), at_least(0))
        check(self, flow_ratio=between(0, 1), **counts, **nonnegative)


class OFQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.policy = MeanFlowPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.head = value_head(config)
        self.critic = EnsembleCritic(
            2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs, activation=Mish
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer = Adam(self.policy.parameters(), config.lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.lr)
        noise = torch.randn(config.candidates, 1, spec.action_dim)
        noise[0] = 0
        self.noise = nn.Buffer(noise)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, summed over the critics, and their mean value."""
        with torch.no_grad():
            next_obs = batch.next_obs.expand(self.config.backup_actions, *batch.next_obs.shape)  # [n, B, obs_dim]
            noise = torch.randn_like(batch.action.expand(self.config.backup_actions, *batch.action.shape))
            next_action = self.target_policy.sample(next_obs, noise)  # [n, B, A]
            next_q = self.head.value(self.target_critic.of_many(batch.next_obs, next_action))  # [2, n, B]
            next_value = next_q.amax(1).amin(0)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, self.head.project(target)).mean(-1).sum(), self.head.value(out.detach()).mean()

    def times(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """r and t, each `[B]`."""
        one, other = torch.randn_like(like), torch.randn_like(like)
        r = (self.config.time_mean + self.config.time_std * torch.minimum(one, other)).sigmoid()
        t = (self.config.time_mean + self.config.time_std * torch.maximum(one, other)).sigmoid()
        return torch.where(torch.rand_like(t) < self.config.flow_ratio, t, r), t

    def cloning_loss(self, batch: Batch) -> Tensor:
        """L_u."""
        action, noise = self.policy.to_unit(batch.action), torch.randn_like(batch.action)
        r, t = self.times(batch.reward)
        v = noise - action
        u, du_dt = self.policy.with_derivative(batch.obs, action + t[:, None] * v, r, t, v)  # no gradient of du_dt
        return (u - (v - (t - r)[:, None] * du_dt)).square().mean()

    def q_loss(self, batch: Batch) -> Tensor:
        """Minus one critic's mean value of the policy's actions, divided by the other critic's mean absolute value."""
        action = self.policy.sample(batch.obs, torch.randn_like(batch.action))
        q = self.head.value(self.critic(batch.obs, action))  # [2, B]
        value = q.mean(-1) / q.abs().mean(-1).detach().flip(0)  # [2]
        return -torch.where(torch.rand_like(value[0]) > 0.5, value[0], value[1])

    def update(self, batch: Batch, average: bool = True) -> Metrics:
        """One gradient step of the critics, then of the policy; then the target critics and, if `average`, pi' move."""
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        cloning_loss, q_loss = self.cloning_loss(batch), self.q_loss(batch)
        self.policy_optimizer.minimize(cloning_loss + self.config.eta * q_loss)
        if average:
            polyak_update(self.target_policy, self.policy, self.config.tau)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "cloning_loss": cloning_loss.detach(),
            "q_loss": q_loss.detach(),
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        noise = self.noise.expand(-1, obs.shape[0], -1)  # [candidates, B, A]
        noise = torch.randn_like(noise) if explore else noise
        if self.config.candidates == 1:
            return self.policy.sample(obs, noise[0])
        action = self.policy.sample(obs.expand(self.config.candidates, *obs.shape), noise)  # [candidates, B, A]
        q = self.head.value(self.target_critic.of_many(obs, action)).amin(0)  # [candidates, B]
        return best_of(action, q, by_chance=explore)


def train(run: "Run", config: Config) -> OFQL:
    data = run.dataset()
    agent = OFQL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for step in run.steps():
        average = step >= config.average_start and step % config.average_every == 0
        run.log(agent.update(data.sample(config.batch_size), average))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
