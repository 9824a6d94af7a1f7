"""FQL: Flow Q-Learning (Park, Li, Levine 2025, arXiv 2502.02538).

A flow can represent any distribution of actions, but maximizing Q through its many steps is slow and unstable. So there
are two policies: a flow that only imitates the data, by flow matching; and a network that maps noise to an action in
one step, which maximizes Q and is regularized towards the flow's action for the same noise.

    critic   L_Q  = E[(Q_i(s, a) - r - gamma (1 - terminated) mean_i Q_i'(s', a'))^2],  a' = mu(s', z)
    flow     L_v  = E[|v(s, x_t, t) - (a - x_0)|^2],  x_t = (1 - t) x_0 + t a,  x_0, z ~ N(0, I),  t ~ U[0, 1]
    policy   L_mu = E[alpha |mu(s, z) - x_1(s, z)|^2 - mean_i Q_i(s, mu(s, z))],  dx/dt = v(s, x, t),  x_0 = z

(Algorithm 1.) x_1 is Euler's solution in `flow_steps` steps. Only the one-step policy acts. Without exploration its
noise is 0, so that acting is deterministic; the authors evaluate with noise, which is `eval_deterministic=false`.

Deviations: as in the authors' code (github seohongpark/fql), the squared errors of flow and policy are means over
action dimensions, not sums, so that alpha is larger by a factor of dim(A); x_1 is clipped to the bounds in the policy's
loss, and mu only as the critics' input; all losses are computed before any parameter is updated, and the target critics
move towards the critics from before the update. Unlike in that code, the data's actions are not clipped to 1 - 1e-5,
and layer normalization adds 1e-5 to the variance, not 1e-6. That repository's IFQL is left out: only the flow is the
same; its value and critics are IQL's, and it takes the best of 32 actions of the flow. Going online, after 1,000,000
updates, the authors take another alpha than offline in some tasks: 100 in humanoidmaze-medium, 30 in antsoccer, 1,000
for Adroit's `cloned` data, and 10,000 for those of relocate.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, check, one_of
from zoo.data.batch import Batch
from zoo.models.flow import FlowPolicy, OneStepPolicy
from zoo.nn import GELU, EnsembleCritic, Normalizer, glorot_, polyak_update
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
    alpha: float = 10.0  # weight of the distance to the flow, a mean over action dimensions; to be chosen for each task
    normalize_q: bool = False  # scale values in the policy's loss to a mean size of 1; then try alpha 0.03 to 10
    target_q: str = "mean"  # of the two critics in the target: mean, or min (Adroit, OGBench's AntMaze)
    flow_steps: int = 10  # steps of Euler's method, from noise to the action that the flow clones
    hidden: list[int] = field(default_factory=lambda: [512, 512, 512, 512])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    lr: float = 3e-4  # Adam's learning rate, all networks
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, alpha=above(0), target_q=one_of("mean", "min"), flow_steps=at_least(1))


class FQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        shape = (spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
        self.flow = FlowPolicy(*shape, steps=config.flow_steps)
        self.policy = OneStepPolicy(*shape)
        self.head = value_head(config)
        self.critic = EnsembleCritic(
            2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs, layer_norm=True, activation=GELU
        )
        glorot_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.critic_optimizer = Adam(self.critic.parameters(), config.lr)
        self.flow_optimizer = Adam(self.flow.parameters(), config.lr)
        self.policy_optimizer = Adam(self.policy.parameters(), config.lr)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, the mean over both critics, and their mean value."""
        with torch.no_grad():
            next_action = self.policy.sample(batch.next_obs, torch.randn_like(batch.action))
            next_q = self.head.value(self.target_critic(batch.next_obs, next_action))  # [2, B]
            next_value = next_q.amin(0) if self.config.target_q == "min" else next_q.mean(0)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, self.head.project(target)).mean(), self.head.value(out.detach()).mean()

    def flow_loss(self, batch: Batch) -> Tensor:
        """L_v: the velocity regresses that of the straight line from noise to the data's action."""
        noise, action = torch.randn_like(batch.action), self.flow.to_unit(batch.action)
        time = torch.rand_like(batch.reward)[:, None]
        x = (1 - time) * noise + time * action
        velocity: Tensor = self.flow(batch.obs, x, time)
        return (velocity - (action - noise)).square().mean()

    def policy_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_mu, and the distance to the flow that is part of it."""
        noise = torch.randn_like(batch.action)
        with torch.no_grad():
            cloned = self.flow.to_unit(self.flow.sample(batch.obs, noise))
        x = self.policy(batch.obs, noise)
        distance = (x - cloned).square().mean()
        q = self.head.value(self.critic(batch.obs, self.policy.from_unit(x))).mean(0)  # [B]
        scale = 1 / q.abs().mean().detach() if self.config.normalize_q else 1.0
        return self.config.alpha * distance - scale * q.mean(), distance.detach()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of critics, flow and policy and a move of the targets, from the parameters before it."""
        critic_loss, q = self.critic_loss(batch)
        policy_loss, distance = self.policy_loss(batch)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        self.policy_optimizer.minimize(policy_loss)
        self.critic_optimizer.minimize(critic_loss)
        self.flow_optimizer.minimize(flow_loss := self.flow_loss(batch))
        return {
            "critic_loss": critic_loss.detach(),
            "flow_loss": flow_loss.detach(),
            "policy_loss": policy_loss.detach(),
            "distance": distance,
            "q": q,
            **self.head.metrics(),
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        noise = torch.zeros_like(obs[:, :1]).expand(-1, self.spec.action_dim)
        return self.policy.sample(obs, torch.randn_like(noise) if explore else noise)

    @torch.no_grad()
    def generate(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions `[B, A]` for observations `[B, ...]` and noise `[B, A]`."""
        return self.flow.sample(self.normalizer(obs), noise)


def train(run: "Run", config: Config) -> FQL:
    data = run.dataset()
    agent = FQL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
