"""Discrete CQL: Conservative Q-Learning without an actor (Kumar, Zhou, Tucker, Levine 2020, arXiv 2006.04779).

Offline double Q-learning whose values are pushed down on all actions, by a soft maximum, and up on the data's actions.
This is the form of CQL(H) that the paper uses for Atari; `cql` is the form with an actor, for continuous actions.

    L_Q = E[h(y - Q(s, a))] + alpha E[logsumexp_b Q(s, b) - Q(s, a)],  h Huber's loss               (Eq. 4)
    y   = r + gamma (1 - terminated) Q'(s', argmax_b Q(s', b))

Deviations: the authors' code (github aviralkumar2907/CQL, atari) learns quantiles of the return (QR-DQN). Here the
default is the Huber loss of the mean, as in d3rlpy's DiscreteCQL, and `value_head=c51` learns the distribution. Double
Q-learning is also as in that library. The authors' convolutions pad their inputs, and their weights are initialized as
in Dopamine. Atari's rewards are not clipped.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check
from zoo.data.batch import Batch
from zoo.nn import Normalizer, epsilon_soft, network_for, of_action, polyak_update
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("discrete",)
FRAMES = True


@dataclass
class Config:
    alpha: float = 1.0  # weight of the gap between the soft maximum and the data's actions
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers; frames use a CNN
    discount: float = 0.99  # gamma
    tau: float = 0.005  # fraction of the way that the target network moves; Atari: 1, a copy
    target_every: int = 1  # updates between moves of the target network; Atari: 2_000
    lr: float = 3e-4  # Adam's learning rate; Atari: 5e-5
    adam_eps: float = 1e-8  # Adam's epsilon; Atari: 3.125e-4
    batch_size: int = 64  # transitions per update; Atari: 32
    eval_epsilon: float = 0.001  # probability of a random action in stochastic evaluations, such as Atari's
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset; frames: never
    value_head: str = "huber"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins; null computes it from the returns in the data
    v_max: float | None = None  # largest value of the bins; null computes it too
    num_bins: int = 51  # bins of a categorical head

    def __post_init__(self) -> None:
        check(self, alpha=at_least(0, "0 is double Q-learning"), target_every=at_least(1))


class DiscreteCQL(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.spec, self.config, self.num_actions = spec, config, spec.num_actions
        self.normalizer = Normalizer(spec.obs_shape)
        self.head = value_head(config)
        self.network = network_for(spec, spec.num_actions * self.head.outputs, config.hidden)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = Adam(self.network.parameters(), config.lr, eps=config.adam_eps)

    def out(self, network: nn.Module, obs: Tensor) -> Tensor:
        """Outputs of the value head for every action, `[B, num_actions, outputs]`."""
        out: Tensor = network(obs).unflatten(-1, (self.num_actions, self.head.outputs))
        return out

    def target(self, batch: Batch) -> Tensor:
        """y, in the form that the value head takes."""
        next_action = self.head.value(self.out(self.network, batch.next_obs)).argmax(-1)
        next_out = self.out(self.target_network, batch.next_obs)
        discount = self.config.discount * ~batch.terminated
        return self.head.backup(batch.reward, discount, of_action(next_out, next_action))

    def update(self, batch: Batch) -> Metrics:
        """One gradient step."""
        with torch.no_grad():
            target = self.target(batch)
        out = self.out(self.network, batch.obs)
        taken = of_action(out, batch.action)
        critic_loss = self.head.loss(taken, target).mean()
        q = self.head.value(taken)
        gap = (torch.logsumexp(self.head.value(out), -1) - q).mean()
        self.optimizer.minimize(critic_loss + self.config.alpha * gap)
        return {"critic_loss": critic_loss.detach(), "gap": gap.detach(), "q": q.detach().mean(), **self.head.metrics()}

    def update_target(self) -> None:
        """Moves the target network."""
        polyak_update(self.target_network, self.network, self.config.tau)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        action = self.head.value(self.out(self.network, self.normalizer(obs))).argmax(-1)
        return epsilon_soft(action, self.num_actions, self.config.eval_epsilon) if explore else action

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.head.value(of_action(self.out(self.network, self.normalizer(obs)), action))


def train(run: "Run", config: Config) -> DiscreteCQL:
    data = run.dataset()
    agent = DiscreteCQL(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for step in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
        if (step + 1) % config.target_every == 0:
            agent.update_target()
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
