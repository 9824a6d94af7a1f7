"""BCQ for discrete actions: Batch-Constrained Q-learning (Fujimoto, Conti et al. 2019, arXiv 1910.01708).

Offline Q-learning whose maximum is restricted to actions that the behaviour policy might have taken. An action is
allowed if its probability under a learned model of that policy is more than `threshold` times that of the most probable
action. The values of all other actions, about which the data says nothing, are never used.

    Q         L_Q = E[h(r + gamma (1 - terminated) Q'(s', a') - Q(s, a))],  h Huber's loss
              a'  = argmax Q(s', a) over the actions a with G(a|s') > threshold max G(.|s')
    behavior  L_G = E[-log G(a|s)] + logit_penalty mean(logits^2)

The policy takes the same maximum. With a threshold of 0 this is double Q-learning; with one near 1 it is behaviour
cloning. The penalty on the logits is in the authors' code (github sfujim/BCQ, discrete_BCQ), not in the paper.
Deviations from that code: on frames the two networks share all convolutions and the layer after them, whereas there
they share only the convolutions, and their bytes are not scaled to [0, 1]; and Atari's rewards are not clipped.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, between, check
from zoo.data.batch import Batch
from zoo.nn import MLP, Normalizer, encoder, epsilon_soft, polyak_update
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
    threshold: float = 0.3  # actions less probable than this share of the most probable action are excluded
    logit_penalty: float = 0.01  # weight of the penalty on the squared logits of the behaviour model
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers; frames use a CNN
    discount: float = 0.99  # gamma
    tau: float = 0.005  # fraction of the way that the target network moves; Atari: 1, a copy
    target_every: int = 1  # updates between moves of the target network; Atari: 8_000
    lr: float = 3e-4  # Adam's learning rate; Atari: 6.25e-5
    adam_eps: float = 1e-8  # Adam's epsilon; Atari: 1.5e-4
    batch_size: int = 64  # transitions per update; Atari: 32
    eval_epsilon: float = 0.001  # probability of a random action in stochastic evaluations, such as Atari's
    normalize_obs: bool = False  # observations to mean 0 and standard deviation 1 over the dataset; frames: never

    def __post_init__(self) -> None:
        check(
            self,
            threshold=between(0, 1, "left", "0 is double Q-learning, the paper takes 0.3"),
            logit_penalty=at_least(0),
            target_every=at_least(1),
        )


class BCQNetwork(nn.Module):
    """Observations `[B, ...]` -> values and logits of every action, `[B, num_actions]` each."""

    def __init__(self, spec: Spec, hidden: list[int]) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.encoder, features = encoder(spec.obs_shape)
        layers = [] if spec.is_image else hidden
        self.q = MLP(features, spec.num_actions, layers)
        self.behavior = MLP(features, spec.num_actions, layers)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder(obs)
        return self.q(x), self.behavior(x)


class BCQ(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.network = BCQNetwork(spec, config.hidden)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = Adam(self.network.parameters(), config.lr, eps=config.adam_eps)

    def best_action(self, obs: Tensor) -> Tensor:
        """The actions `[B]` of the highest values among those that are probable enough."""
        q, logits = self.network(obs)
        probability = logits.softmax(-1)
        allowed = probability > self.config.threshold * probability.amax(-1, keepdim=True)
        action: Tensor = q.masked_fill(~allowed, -torch.inf).argmax(-1)
        return action

    def critic_loss(self, batch: Batch, q: Tensor) -> tuple[Tensor, Tensor]:
        """L_Q, and the mean value of the actions taken; `q` are the values `[B, num_actions]` at the observations."""
        with torch.no_grad():
            next_q, _ = self.target_network(batch.next_obs)
            next_value = value_of(self.best_action(batch.next_obs), next_q)
            target = batch.reward + self.config.discount * ~batch.terminated * next_value
        value = value_of(batch.action, q)
        return F.smooth_l1_loss(value, target), value.detach().mean()

    def behavior_loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """L_G; `logits` are `[B, num_actions]` at the observations."""
        return F.cross_entropy(logits, batch.action) + self.config.logit_penalty * logits.square().mean()

    def update(self, batch: Batch) -> Metrics:
        """One gradient step of both networks."""
        values, logits = self.network(batch.obs)
        critic_loss, q = self.critic_loss(batch, values)
        behavior_loss = self.behavior_loss(batch, logits)
        self.optimizer.minimize(critic_loss + behavior_loss)
        return {"critic_loss": critic_loss.detach(), "behavior_loss": behavior_loss.detach(), "q": q}

    def update_target(self) -> None:
        """Moves the target network."""
        polyak_update(self.target_network, self.network, self.config.tau)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        action = self.best_action(self.normalizer(obs))
        return epsilon_soft(action, self.spec.num_actions or 0, self.config.eval_epsilon) if explore else action

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return value_of(action, self.network(self.normalizer(obs))[0])


def value_of(action: Tensor, q: Tensor) -> Tensor:
    """The values of actions `[B]`, from the values `[B, num_actions]` of all actions."""
    return q.gather(1, action[:, None]).squeeze(1)


def train(run: "Run", config: Config) -> BCQ:
    data = run.dataset()
    agent = BCQ(data.spec, config)
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
