"""EXPO: expressive policy optimization (Dong, Li, Sadigh, Finn 2025, arXiv 2507.07986).

A flow policy imitates the dataset and the agent's own steps, without gradients of the critics. A small edit policy
changes the flow's actions by at most `edit_scale` to maximize Q. The agent samples several actions of the flow, adds
edits of some of them, and takes the one with the highest Q. The critics back up that choice.

    flow     L_v  = E[|v(s, x_t, t) - (a - x_0)|^2],  x_t = (1 - t) x_0 + t a,  x_0 ~ N(0, I)
    critic   L_Q  = E[(Q_i(s, a) - r - gamma (1 - terminated) min_{j in Z'} Q_j'(s', pi*(s')))^2]
    edit     L_e  = E[alpha log pi_e(u|s, a) - mean_i Q_i(s, a + edit_scale u)]
    choice   pi*(s) = argmax over a_1 .. a_N and a_1 + edit_scale u_1 .. a_M + edit_scale u_M of min_{j in Z} Q_j'(s, a)
    alpha    L_a  = E[-alpha (log pi_e(u|s, a) + target entropy)]

(Algorithm 1.) Z and Z' are random subsets of the critics, drawn anew at each use. `steps` are updates of the flow;
during `online_steps` everything is updated. Before the first online update the flow acts alone. The authors sample half
of each batch from the dataset and half from their own steps, with 20 updates of the critics per step:
`online_fraction=0.5 online_starts=5000 online_updates=20`. Without exploration, Z is all of the critics, and the noise
is fixed when the agent is created (0 for the first action), so that acting is deterministic. The authors evaluate by
sampling: `eval_deterministic=false`.

Deviations from the authors' code (github pd-perry/EXPO, read in the first commit of Servo97/EXPO): a flow instead of a
diffusion policy; before learning the flow acts, whereas their actions are uniform unless the policy was cloned before;
flow, edit policy and temperature take as many updates as the critics, all by Adam and at constant learning rates; an
edited action is clipped to the bounds, and is chosen by its value even with `candidates=1`, where theirs is never
taken; the edit policy has PyTorch's initialization, theirs Xavier's; observations are normalized
(`normalize_obs=false`: as theirs). The entropy and its target are of the edits, in units of half the action's range, as
with the code's `adjust_target_entropy`, which is off there. Without it, edits of 0.05 never reach a target of -dim(A) /
2: the temperature grows forever, and the edits become uniform noise.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check, one_of
from zoo.data.batch import Batch
from zoo.models.flow import FlowPolicy
from zoo.nn import EnsembleCritic, Normalizer, TanhGaussian, best_of, glorot_, polyak_update
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
    edit_scale: float = 0.05  # the largest edit, in units of half the action's range; the paper: 0.05 to 0.7
    candidates: int = 8  # N, the flow's actions at an observation; 1 with edits=0 is the flow alone
    edits: int = 8  # M, how many of them are also edited
    edit_of: str = "data"  # actions that the edit policy learns to edit: data, the batch's; flow, fresh ones
    flow_steps: int = 10  # steps of Euler's method, from noise to action
    num_critics: int = 10  # number of critics
    subset: int = 2  # size of Z; AntMaze: 1
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers, all networks
    discount: float = 0.99  # gamma
    tau: float = 0.005  # target critics move this fraction of the way at every update
    flow_tau: float = 0.001  # the flow that acts, a moving average, moves this fraction of the way
    flow_lr: float = 3e-4  # Adam's learning rate, flow
    actor_lr: float = 3e-4  # Adam's learning rate, edit policy and temperature
    critic_lr: float = 3e-4  # Adam's learning rate, critics
    batch_size: int = 256  # transitions per update
    target_entropy: float | None = None  # nats, of edits; null is dim(A) (log edit_scale - 1/2)
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset

    def __post_init__(self) -> None:
        check(
            self,
            edit_scale=between(0, 1, "right"),
            candidates=at_least(1),
            edits=between(0, self.candidates, "both", "so many of algo.candidates are edited"),
            edit_of=one_of("data", "flow"),
            flow_steps=at_least(1),
            num_critics=at_least(1),
            subset=between(1, self.num_critics, "both", "algo.num_critics is all of them"),
        )


class EXPO(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        size = spec.action_dim
        self.flow = FlowPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden, config.flow_steps)
        self.average_flow = copy.deepcopy(self.flow).requires_grad_(False)
        self.edit = TanhGaussian(spec.obs_dim + size, (-1.0,) * size, (1.0,) * size, config.hidden)
        self.critic = EnsembleCritic(
            config.num_critics, spec.obs_dim, size, config.hidden, layer_norm=True, norm_first=True
        )
        glorot_(self.critic)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.zeros(()))
        target = size * (math.log(config.edit_scale) - 0.5)  # -dim(A) / 2 of u, which lies within [-1, 1]
        self.target_entropy = target if config.target_entropy is None else config.target_entropy
        self.learns = nn.Buffer(torch.zeros((), dtype=torch.bool))  # until then, the flow acts alone
        noise = torch.randn(config.candidates + config.edits, 1, size)
        noise[0] = 0
        self.noise = nn.Buffer(noise)
        self.flow_optimizer = Adam(self.flow.parameters(), config.flow_lr)
        self.edit_optimizer = Adam(self.edit.parameters(), config.actor_lr)
        self.critic_optimizer = Adam(self.critic.parameters(), config.critic_lr)
        self.alpha_optimizer = Adam([self.log_alpha], config.actor_lr)

    def edited(self, obs: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Edited actions `[B, A]`, from standard normal noise, and the log densities `[B]` of the edits."""
        unit = self.flow.to_unit(action)
        mean, log_std = self.edit(torch.cat([obs, unit], -1))
        change, log_prob = self.edit.draw(mean, log_std, noise)
        scale = self.config.edit_scale
        return self.flow.from_unit(unit + scale * change), log_prob - self.spec.action_dim * math.log(scale)

    def candidates(self, flow: FlowPolicy, obs: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions and edits of some of them, `[N + M, B, A]`, from standard normal noise of that shape."""
        of_flow, of_edits = noise[: self.config.candidates], noise[self.config.candidates :]
        many = obs.expand(len(of_flow), *obs.shape)
        action = flow.sample(many.flatten(0, 1), of_flow.flatten(0, 1)).view_as(of_flow)
        if not self.config.edits:
            return action
        some = slice(self.config.edits)
        edited, _ = self.edited(many[some].flatten(0, 1), action[some].flatten(0, 1), of_edits.flatten(0, 1))
        return torch.cat([action, edited.view_as(of_edits)])

    def least_value(self, obs: Tensor, action: Tensor, by_chance: bool = True) -> Tensor:
        """The least value `[B]` of actions `[B, A]` by the target critics: those of a newly drawn Z, or all of them."""
        q: Tensor = self.target_critic(obs, action).squeeze(-1)
        if by_chance and self.config.subset < self.config.num_critics:
            q = q.index_select(0, torch.rand_like(q[:, 0]).topk(self.config.subset).indices)
        return q.amin(0)

    def choose(self, obs: Tensor, candidates: Tensor, by_chance: bool = True) -> Tensor:
        """pi*: the candidates of the highest value, `[n, B, A] -> [B, A]`."""
        many = obs.expand(len(candidates), *obs.shape)
        value = self.least_value(many.flatten(0, 1), candidates.flatten(0, 1), by_chance)
        return best_of(candidates, value.view(candidates.shape[:2]))

    def flow_loss(self, batch: Batch) -> Tensor:
        """L_v, a mean over action dimensions too."""
        noise, action = torch.randn_like(batch.action), self.flow.to_unit(batch.action)
        time = torch.rand_like(batch.reward)[:, None]
        velocity: Tensor = self.flow(batch.obs, (1 - time) * noise + time * action, time)
        return (velocity - (action - noise)).square().mean()

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_Q, the mean over the critics, and their mean value."""
        with torch.no_grad():
            noise = torch.randn_like(batch.action.expand(len(self.noise), -1, -1))
            next_action = self.choose(batch.next_obs, self.candidates(self.flow, batch.next_obs, noise))
            value = self.least_value(batch.next_obs, next_action)
            target = batch.reward + self.config.discount * ~batch.terminated * value
        q = self.critic(batch.obs, batch.action).squeeze(-1)  # [E, B]
        return (q - target).square().mean(), q.detach().mean()

    def edit_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """L_e, and log pi_e `[B]` of the edits in units of half the action's range."""
        action = batch.action
        if self.config.edit_of == "flow":
            with torch.no_grad():
                action = self.flow.sample(batch.obs, torch.randn_like(action))
        edited, log_prob = self.edited(batch.obs, action, torch.randn_like(action))
        q = self.critic(batch.obs, edited).squeeze(-1).mean(0)
        return (self.log_alpha.exp().detach() * log_prob - q).mean(), log_prob.detach()

    def alpha_loss(self, log_prob: Tensor) -> Tensor:
        """L_a."""
        return -(self.log_alpha.exp() * (log_prob + self.target_entropy)).mean()

    def clone(self, batch: Batch) -> Metrics:
        """One gradient step of the flow, and a move of its average."""
        flow_loss = self.flow_loss(batch)
        self.flow_optimizer.minimize(flow_loss)
        polyak_update(self.average_flow, self.flow, self.config.flow_tau)
        return {"flow_loss": flow_loss.detach()}

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of critics, flow and, if there are edits, edit policy and temperature, in this order.

        Each target network moves right after its network's step.
        """
        self.learns.fill_(True)
        critic_loss, q = self.critic_loss(batch)
        self.critic_optimizer.minimize(critic_loss)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        metrics = {"critic_loss": critic_loss.detach(), "q": q, **self.clone(batch)}
        if self.config.edits:
            edit_loss, log_prob = self.edit_loss(batch)
            self.edit_optimizer.minimize(edit_loss)
            self.alpha_optimizer.minimize(self.alpha_loss(log_prob))
            metrics |= {
                "edit_loss": edit_loss.detach(),
                "alpha": self.log_alpha.detach().exp(),
                "entropy": -log_prob.mean(),
            }
        return metrics

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        noise = self.noise.expand(-1, obs.shape[0], -1)
        candidates = self.candidates(self.average_flow, obs, torch.randn_like(noise) if explore else noise)
        return torch.where(self.learns, self.choose(obs, candidates, explore), candidates[0])

    @torch.no_grad()
    def generate(self, obs: Tensor, noise: Tensor) -> Tensor:
        """The flow's actions `[B, A]` for observations `[B, ...]` and noise `[B, A]`."""
        return self.average_flow.sample(self.normalizer(obs), noise)


def train(run: "Run", config: Config) -> EXPO:
    data = run.dataset()
    agent = EXPO(data.spec, config)
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
