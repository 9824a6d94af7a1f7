"""BC: behaviour cloning, and with `top_fraction=0.1` 10 % BC (Chen et al. 2021, arXiv 2106.01345, section 5.1).

Supervised regression of the dataset's actions on its observations: no reward, no value. Cloning only the episodes with
the highest returns is the baseline that any offline RL algorithm should beat, and often does not.

    actor   L_pi = E[(pi(s) - a)^2], for discrete actions E[-log pi(a|s)]

Deviation: the paper's %BC clones the best share of transitions; here, as in CORL, it is the best share of episodes.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import between, check
from zoo.data.batch import Batch
from zoo.nn import CategoricalPolicy, DeterministicPolicy, Normalizer
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "offline"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous", "discrete")
FRAMES = ("discrete",)


@dataclass
class Config:
    top_fraction: float = 1.0  # clone this fraction of the episodes, those with the highest returns; 0.1 is 10 % BC
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers; frames use a CNN
    lr: float = 3e-4  # Adam's learning rate
    batch_size: int = 256  # transitions per update
    normalize_obs: bool = True  # observations to mean 0 and standard deviation 1 over the dataset (CORL)

    def __post_init__(self) -> None:
        check(self, top_fraction=between(0, 1, "right", "0.1 is 10 % BC"))


class BC(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.normalizer = Normalizer(spec.obs_shape)
        self.actor = (
            DeterministicPolicy(spec.obs_dim, spec.action_low, spec.action_high, config.hidden)
            if spec.num_actions is None
            else CategoricalPolicy(spec, config.hidden)
        )
        self.optimizer = Adam(self.actor.parameters(), config.lr)

    def actor_loss(self, batch: Batch) -> Tensor:
        """The loss, a mean over the batch and, for continuous actions, over their dimensions."""
        return self.actor.cloning_loss(batch.obs, batch.action).mean() / max(1, self.spec.action_dim)

    def update(self, batch: Batch) -> Metrics:
        """One gradient step."""
        loss = self.actor_loss(batch)
        self.optimizer.minimize(loss)
        return {"actor_loss": loss.detach()}

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        obs = self.normalizer(obs)
        return self.actor.sample(obs) if explore else self.actor.mode(obs)


def train(run: "Run", config: Config) -> BC:
    data = run.dataset()
    if config.top_fraction < 1:
        data.top_episodes(config.top_fraction)
    agent = BC(data.spec, config)
    data.prepare(agent, config)
    run.track(agent=agent)
    for _ in run.steps():
        run.log(agent.update(data.sample(config.batch_size)))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
