"""DSRL: steering a policy by its noise (Wagenmaker, Nakamoto, Zhang et al. 2025, arXiv 2506.15799), DSRL-NA.

A flow that imitates the data turns noise into an action: a = f(s, w). It is then frozen, and RL learns which noise to
give it. Actions thus stay near the data, and no gradients through f are needed. Many w may give the same action, hence
two pairs of critics: Q(s, a), learned from transitions, and N(s, w), which regresses Q(s, f(s, w)).

    flow     L_v  = E[|v(s, x_t, t) - (a - x_0)|^2],  x_t = (1 - t) x_0 + t a,  x_0 ~ N(0, I)             (before)
    critic   L_Q  = E[(Q_i(s, a) - y)^2],
             y    = r + gamma (1 - terminated) (min_i Q_i'(s', f(s', w')) - alpha log pi(w'|s')),  w' ~ pi(s')
    noise    L_N  = E[(N_i(s, w) - Q_i(s, f(s, w)))^2],  w ~ N(0, I)
    actor    L_pi = E[alpha log pi(w|s) - min_i N_i(s, w)],  w ~ pi(s), within [-magnitude, magnitude]
    alpha    L_a  = E[-log alpha (log pi(w|s) + target entropy)]

(Algorithm 1.) pi is the density of noise in units of the magnitude, as in the authors' code. `steps` are updates of the
flow; during `online_steps` everything else is updated. Before the first online update the flow gets standard normal
noise, or 0 without exploration. The buffer holds actions, not noise, so that the agent can learn from the dataset too;
the authors' runs learn from their own transitions alone (`online_fraction=1`). DSRL-SAC, the variant without critics of
actions, is SAC whose actions are the noise for a finished run of this file: `zoo run algo=sac base=RUN_DIR
base_mode=noise base_scale=1.5 algo.target_entropy=0 eval_deterministic=false`.

At a target entropy of 0 the noise stays broad. The authors evaluate by sampling it: `eval_deterministic=false`.

Deviations from the authors' code (github ajwagen/dsrl): a flow instead of a diffusion policy with DDIM; single actions,
not chunks of four, each discounted by `discount`; observations are normalized; activations are ReLU, not tanh; layer
normalization follows them, in the critics alone, whereas theirs precedes them, in the actor too; the critics of noise
take one step for each step of the other critics, on the same batch, whereas theirs take ten, on batches of their own,
after twenty of the others. In that code, the noise of DSRL-NA lies within [-1, 1] whatever the magnitude, and the last
step of a truncated episode does not bootstrap. DSRL-SAC begins with standard normal noise there, and with uniform noise
here.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, check
from zoo.data.batch import Batch
from zoo.models.flow import FlowPolicy
from zoo.nn import EnsembleCritic, Normalizer, TanhGaussian, polyak_update
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
    magnitude: float = 1.5  # noise lies within [-magnitude, magnitude]; the larger it is, the rarer the actions may be
    flow_steps: int = 10  # steps of Euler's method, from noise to action
    hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the hidden layers, actor and critics
    flow_hidden: list[int] = field(default_factory=lambda: [256, 256, 256])  # widths of the flow's hidden layers
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    flow_lr: float = 3e-4  # Adam's learning rate, flow
    actor_lr: float = 3e-4  # Adam's learning rate, actor and temperature
    critic_lr: float = 3e-4  # Adam's learning rate, critics of actions and of noise
    batch_size: int = 256  # transitions per update
    target_entropy: float = 0.0  # nats, of noise in units of the magnitude
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset

    def __post_init__(self) -> None:
        check(self, magnitude=above(0), flow_steps=at_least(1))


class DSRL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        bound = (config.magnitude,) * spec.action_dim
        self.flow = FlowPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.flow_hidden, config.flow_steps)
        self.actor = TanhGaussian(spec.obs_dim, tuple(-x for x in bound), bound, config.hidden)  # of noise
        self.critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, layer_norm=True)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.noise_critic = EnsembleCritic(2, spec.obs_dim, spec.action_dim, config.hidden, layer_norm=True)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.target_entropy = config.target_entropy
        self.learns = nn.Buffer(torch.zeros((), dtype=torch.bool))  # until then, the flow acts alone
        self.flow_optimizer = Adam(self.flow.parameters(), config.flow_lr)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.noise_critic_optimizer = Adam(self.noise_critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.actor_lr)

    def flow_loss(self, batch: Batch) -> Tensor:
        """L_v, a mean over action dimensions too."""
        noise, action = torch.randn_like(batch.action), self.flow.to_unit(batch.action)
        time = torch.rand_like(batch.reward)[:, None]
        velocity: Tensor = self.flow(batch.obs, (1 - time) * noise + time * action, time)
        return (velocity - (action - noise)).square().mean()

    def sample_noise(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """w `[B, A]` and log pi(w|s) `[B]`, the density of noise in units of the magnitude."""
        noise, log_prob = self.actor.sample(obs)
        return noise, log_prob + self.actor.log_scale

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, and the critics' mean value."""
        with torch.no_grad():
            noise, log_prob = self.sample_noise(batch.next_obs)
            next_action = self.flow.sample(batch.next_obs, noise)
            next_q = self.target_critic(batch.next_obs, next_action).squeeze(-1).amin(0)
            soft_value = next_q - self.log_alpha.exp() * log_prob
            target = batch.reward + self.config.discount * ~batch.terminated * soft_value
        q = self.critic(batch.obs, batch.action).squeeze(-1)  # [2, B]
        return (q - target).square().mean(-1).sum(), q.detach().mean()

    def noise_loss(self, batch: Batch) -> Tensor:
        """L_N."""
        noise = torch.randn_like(batch.action)
        with torch.no_grad():
            q = self.critic(batch.obs, self.flow.sample(batch.obs, noise))
        loss: Tensor = (self.noise_critic(batch.obs, noise) - q).square().mean((1, 2)).sum()
        return loss

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_pi, and log pi(w|s) `[B]`."""
        noise, log_prob = self.sample_noise(batch.obs)
        value = self.noise_critic(batch.obs, noise).squeeze(-1).amin(0)
        return (self.log_alpha.exp().detach() * log_prob - value).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha * (log_prob + self.target_entropy)).mean()

    def clone(self, batch: Batch) -> Metrics:
        """One gradient step of the flow."""
        flow_loss = self.flow_loss(batch)
        self.flow_optimizer.minimize(flow_loss)
        return {"flow_loss": flow_loss.detach()}

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of critics, critics of noise, actor and temperature, in this order."""
        self.learns.fill_(True)
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        noise_loss = self.noise_loss(batch)
        self.noise_critic_optimizer.minimize(noise_loss)
        actor_loss, log_prob = self.actor_loss(batch)
        self.actor_optimizer.minimize(actor_loss)
        self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "noise_loss": noise_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "alpha": self.log_alpha.detach().exp(),
            "entropy": -log_prob.mean(),
            "q": q,
        }

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        steered = self.actor.act(obs, explore)
        free = torch.randn_like(steered) if explore else torch.zeros_like(steered)
        return self.flow.sample(obs, torch.where(self.learns, steered, free))

    @torch.no_grad()
    def generate(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions `[B, A]` for observations `[B, ...]` and noise `[B, A]`."""
        return self.flow.sample(self.normalizer(obs), noise)


def train(run: "Run", config: Config) -> DSRL:
    data = run.dataset()
    agent = DSRL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    clone = run.compiled(agent.clone)
    for _ in run.steps():
        run.log(clone(data.sample(config.batch_size)))
    learn_online(run, agent, data, config.batch_size)
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
