"""DQN: Deep Q-Network (Mnih et al. 2015, Nature 518), its refinements as options.

Q-learning from a replay buffer, with a target network that is updated from time to time by copying the online network.
Actions are epsilon-greedy, with an epsilon that decays linearly.

    L = E[(Q(s, a) - y)^2],  y = r + gamma (1 - terminated) max_a' Q'(s', a')

- `double`: the online network chooses a', the target network values it (van Hasselt et al. 2015, arXiv 1509.06461)
- `dueling`: Q = V + A - mean A (Wang et al. 2015, arXiv 1511.06581, Eq. 9)
- `n_step`: y sums the rewards of n steps (Sutton 1988; Hessel et al. 2017, arXiv 1710.02298)
- `value_head=c51`: the distribution of the return (Bellemare et al. 2017, arXiv 1707.06887); `two_hot`, `hl_gauss`:
  classification instead of the squared error (Farebrother et al. 2024, arXiv 2403.03950)

Deviations: the optimizer is Adam; the default loss is the squared error with clipped gradients, and `value_head=huber`
is the paper's loss. On frames, the dueling streams split after the last shared layer. The defaults are for small vector
environments; the comments give CleanRL's settings for Atari.
"""

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import at_least, check, check_replay
from zoo.data.batch import NStepBatch
from zoo.data.buffers import replay_buffer
from zoo.nn import MLP, encoder, epsilon_soft, of_action, polyak_update
from zoo.nn.heads import value_head
from zoo.nn.optim import Adam
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run
    from zoo.settings.config import RunConfig

FAMILY = "off-policy"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("discrete",)
FRAMES = True


@dataclass
class Config:
    double: bool = False  # the online network chooses the action whose target value is taken
    dueling: bool = False  # separate streams for value and advantages
    n_step: int = 1  # rewards summed before the target network's value
    hidden: list[int] = field(default_factory=lambda: [256, 256])  # widths of the hidden layers; frames use a CNN
    discount: float = 0.99  # gamma
    lr: float = 1e-3  # Adam's learning rate; Atari: 1e-4
    adam_eps: float = 1e-8  # Adam's epsilon
    max_grad_norm: float | None = 10.0  # gradients of a larger norm are scaled down to it; null: never; Atari: null
    batch_size: int = 64  # transitions per update; Atari: 32
    buffer_size: int = 100_000  # transitions kept; Atari: 1_000_000
    learning_starts: int = 1_000  # environment steps before the first update; Atari: 80_000
    train_every: int = 2  # environment steps per update; Atari: 4
    target_every: int = 250  # environment steps between moves of the target network; Atari: 1_000
    tau: float = 1.0  # fraction of the way that the target network moves; 1: a copy
    epsilon: float = 0.05  # final probability of a random action; Atari: 0.01
    exploration_fraction: float = 0.2  # share of steps over which epsilon falls from 1; `init_from`: none; Atari: 0.1
    eval_epsilon: float = 0.05  # probability of a random action in evaluations that sample actions: Atari, MiniGrid
    clip_reward: bool = False  # to -1, 0 or 1; Atari: true
    value_head: str = "mse"  # mse, huber, or a distribution over bins: two_hot, c51, hl_gauss
    v_min: float | None = None  # least value of the bins, given with v_max; null is minus v_max; Atari: -10
    v_max: float | None = None  # largest value of the bins; null is 1.5 to 2 times the largest return so far; Atari: 10
    num_bins: int = 51  # bins of a categorical head; use 101 for c51 without v_min and v_max

    def __post_init__(self) -> None:
        check(self, n_step=at_least(1), train_every=at_least(1), target_every=at_least(1))

    def check_run(self, run: "RunConfig") -> None:
        check_replay(run, self.learning_starts, self.buffer_size, self.train_every)


class QNetwork(nn.Module):
    """Observations `[B, ...]` -> outputs of a value head for each action `[B, num_actions, outputs]`."""

    def __init__(self, spec: Spec, config: Config, outputs: int) -> None:
        super().__init__()
        assert spec.num_actions is not None
        self.shape = (spec.num_actions, outputs)
        self.encoder, features = encoder(spec.obs_shape)
        hidden = [] if spec.is_image else config.hidden
        self.advantage = MLP(features, spec.num_actions * outputs, hidden)
        self.value = MLP(features, outputs, hidden) if config.dueling else None

    def forward(self, obs: Tensor) -> Tensor:
        x = self.encoder(obs)
        advantage: Tensor = self.advantage(x).unflatten(-1, self.shape)
        if self.value is None:
            return advantage
        value: Tensor = self.value(x)
        return value[:, None] + advantage - advantage.mean(1, keepdim=True)


class DQN(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.head = value_head(config, online=True)
        self.network = QNetwork(spec, config, self.head.outputs)
        self.head.init_(self.network)
        self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = Adam(self.network.parameters(), config.lr, eps=config.adam_eps, max_norm=config.max_grad_norm)

    def critic_loss(self, batch: NStepBatch) -> tuple[Tensor, Tensor]:
        """L, and the mean value of the actions taken."""
        with torch.no_grad():
            next_out = self.target_network(batch.next_obs)
            chooser = self.network(batch.next_obs) if self.config.double else next_out
            next_action = self.head.value(chooser).argmax(-1)
            target = self.head.backup(batch.reward, batch.discount, of_action(next_out, next_action))
        out = of_action(self.network(batch.obs), batch.action)
        return self.head.loss(out, target).mean(), self.head.value(out.detach()).mean()

    def update(self, batch: NStepBatch) -> Metrics:
        """One gradient step."""
        critic_loss, q = self.critic_loss(batch)
        self.optimizer.minimize(critic_loss)
        return {"critic_loss": critic_loss.detach(), "q": q, **self.head.metrics()}

    def update_target(self) -> None:
        """Moves the target network."""
        polyak_update(self.target_network, self.network, self.config.tau)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        greedy: Tensor = self.head.value(self.network(obs)).argmax(-1)
        return self.explore(greedy, self.config.eval_epsilon) if explore else greedy

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.head.value(of_action(self.network(obs), action))

    def explore(self, action: Tensor, epsilon: float) -> Tensor:
        """Actions `[B]`, each with probability `epsilon` replaced by a random one."""
        return epsilon_soft(action, self.spec.num_actions or 0, epsilon)


def train(run: "Run", config: Config) -> DQN:
    envs = run.envs()
    agent = DQN(envs.spec, config)
    buffer = replay_buffer(config.buffer_size, envs.spec, run.device, envs.num_envs, run.config.env.is_atari)
    run.track(agent=agent, buffer=buffer)
    falling = config.exploration_fraction * run.config.steps if run.config.init_from is None else 0.0  # steps

    for step in run.steps():
        progress = min(1.0, step / falling) if falling else 1.0
        action = agent.explore(agent.act(envs.obs), 1 + progress * (config.epsilon - 1))
        transition = envs.step(action)
        if config.clip_reward:
            transition = transition._replace(reward=transition.reward.sign())
        buffer.add(transition, envs.ended)
        ended = transition.terminated | transition.truncated
        # the bins of a distribution without v_max grow with the returns
        agent.head.update_support(transition.reward[None], ended[None], agent.network, agent.target_network)
        if step >= config.learning_starts:
            after = step + envs.num_envs
            for _ in range(step // config.train_every, after // config.train_every):
                run.log(agent.update(buffer.sample_n_step(config.batch_size, config.n_step, config.discount)))
            for _ in range(step // config.target_every, after // config.target_every):
                agent.update_target()
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
