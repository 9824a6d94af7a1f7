"""DQL: Diffusion-QL (Wang, Hunt, Zhou 2022, arXiv 2208.06193), a diffusion policy that maximizes Q.

The policy turns noise into an action in a few denoising steps, and so can represent any distribution. One loss imitates
the data by predicting the noise that was added to its actions. The other maximizes the critics' values of generated
actions, with gradients through all denoising steps. To act, the policy samples many actions and takes one that the
critics value highly.

    critic   L_Q = E[(Q_i(s, a) - y)^2],  y = r + gamma (1 - terminated) min_j Q_j'(s', a'),  a' ~ pi'(s')
    clone    L_d = E[|eps - eps_theta(sqrt(abar_k) a + sqrt(1 - abar_k) eps, s, k)|^2],  k ~ U{1..K},  eps ~ N(0, I)
    policy   L   = L_d - eta E[Q_i(s, a~)] / E|Q_j(s, a~)|,  a~ ~ pi(s),  (i, j) = (1, 2) or (2, 1) by a coin

pi' is a moving average of pi. With `backup_actions` above 1, each Q_j' takes its best value over that many actions a'
(AntMaze but umaze: 10). The K = 5 variances are those of a variance-preserving SDE. To act, one of `candidates` actions
is drawn with probabilities that are the softmax of min_i Q_i'(s, a). Without exploration, the candidate with the
highest value is taken, and the candidates come from noise that is fixed when the agent is created, so that acting is
deterministic. The authors always sample, which is `eval_deterministic=false`.

The paper's figures are those of each run's best checkpoint, chosen by online evaluations ("online model selection" in
the authors' code). Compare them with `best`, not with `final`.

Deviations: as in the authors' code (github Zhendong-Wang/Diffusion-Policies-for-Offline-RL), |Q| is that of the critic
that is not maximized; L_d is a mean over action dimensions; the actions predicted at each denoising step are clipped to
the bounds; gradients are clipped to a norm that depends on the dataset; and acting uses pi, not pi'. Its cosine decay
of the learning rates is left out: the schedule has a step for every 1,000 updates and takes one every 50,000, and so
changes the rates by less than 0.1 %. Its standardized rewards for Pen are left out too.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Batch
from zoo.models.diffusion import DenoisingPolicy
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
    eta: float = 1.0  # weight of the values against the cloning
    diffusion_steps: int = 5  # K, denoising steps from noise to action
    backup_actions: int = 1  # actions at the next observation, the best of which counts; AntMaze but umaze: 10
    candidates: int = 50  # actions sampled to act, of which one is taken
    max_grad_norm: float = 1.0  # largest norm of policy's and critics' gradients; the paper takes 1 to 10, by dataset
    average_start: int = 1000  # updates before pi' begins to follow pi
    average_every: int = 5  # updates between moves of pi'
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # pi' and the target critics move this fraction of the way
    actor_lr: float = 3e-4  # Adam's learning rate, policy
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 101  # bins of a categorical head

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("diffusion_steps", "backup_actions", "candidates", "average_every"), at_least(1))
        check(self, eta=at_least(0), average_start=at_least(0), **counts)


class DQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.policy = DenoisingPolicy(
            spec.obs_dim, spec.action_low, spec.action_high, config.hidden, config.diffusion_steps
        )
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.head = value_head(config)
        self.critic = EnsembleCritic(
            2, spec.obs_dim, spec.action_dim, config.hidden, self.head.outputs, activation=Mish
        )
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.policy_optimizer = Adam(self.policy.parameters(), config.actor_lr, max_norm=config.max_grad_norm)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr, max_norm=config.max_grad_norm)
        self.noise = nn.Buffer(torch.randn(config.diffusion_steps, config.candidates, 1, spec.action_dim))

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, summed over the critics, and their mean value."""
        with torch.no_grad():
            next_obs = batch.next_obs.expand(self.config.backup_actions, *batch.next_obs.shape)  # [n, B, obs_dim]
            noise = torch.randn(
                self.config.diffusion_steps, *next_obs.shape[:-1], self.spec.action_dim, device=next_obs.device,
                dtype=next_obs.dtype,
            )  # fmt: skip
            next_action = self.target_policy.sample(next_obs, noise)  # [n, B, A]
            next_q = self.head.value(self.target_critic.of_many(batch.next_obs, next_action))  # [2, n, B]
            next_value = next_q.amax(1).amin(0)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        out = self.critic(batch.obs, batch.action)  # [2, B, outputs]
        return self.head.loss(out, self.head.project(target)).mean(-1).sum(), self.head.value(out.detach()).mean()

    def cloning_loss(self, batch: Batch) -> Tensor:
        """L_d, at steps sampled uniformly."""
        action, noise = self.policy.to_unit(batch.action), torch.randn_like(batch.action)
        step = torch.randint(self.config.diffusion_steps, (len(action),), device=action.device)
        predicted: Tensor = self.policy(batch.obs, self.policy.noised(action, step, noise), step)
        return (predicted - noise).square().mean()

    def q_loss(self, batch: Batch) -> Tensor:
        """Minus one critic's mean value of the policy's actions, divided by the other critic's mean absolute value."""
        noise = torch.randn(
            self.config.diffusion_steps, *batch.action.shape, device=batch.action.device, dtype=batch.action.dtype
        )
        action = self.policy.sample(batch.obs, noise)
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
        noise = self.noise.expand(-1, -1, obs.shape[0], -1)  # [steps, candidates, B, A]
        noise = torch.randn_like(noise) if explore else noise
        action = self.policy.sample(obs.expand(self.config.candidates, *obs.shape), noise)  # [candidates, B, A]
        q = self.head.value(self.target_critic.of_many(obs, action)).amin(0)  # [candidates, B]
        return best_of(action, q, by_chance=explore)


def train(run: "Run", config: Config) -> DQL:
    data = run.dataset()
    agent = DQL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for step in run.steps():
        average = step >= config.average_start and step % config.average_every == 0
        run.log(agent.update(data.sample(config.batch_size), average))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
