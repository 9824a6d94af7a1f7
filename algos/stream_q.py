"""Stream Q(lambda): Q-learning from a stream (Elsayed, Vasan, Mahmood 2024, arXiv 2410.14606).

Watkins' Q(lambda) (1989) with a network. Each sample is learned from once, when it arrives, and is not stored. Credit
reaches back along the trace of past gradients to the last action that was not greedy: what follows such an action says
nothing about the greedy policy before it. ObGD keeps updates from overshooting.

    delta = r + gamma (1 - terminated) max_a' Q(s', a') - Q(s, a)
    z     <- gamma lambda z + grad Q(s, a), 0 if a was not greedy
    w     <- w + eta delta z,  eta = lr / max(lr kappa max(|delta|, 1) |z|_1, 1)                           (ObGD)

Observations and rewards are normalized by their running statistics. The docstring of `zoo.streaming` lists what
deviates from the authors' code in every streaming algorithm.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Metrics
from zoo.spec import Spec
from zoo.streaming import Sample, StreamAgent, StreamNetwork, check_stream, epsilon_greedy, optimizer, stream

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "streaming"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("discrete",)
FRAMES = True


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [32, 32])  # widths of the hidden layers; MinAtar: 128; Atari: 256
    discount: float = 0.99  # gamma
    trace_lambda: float = 0.8  # lambda, how long credit reaches back
    lr: float = 1.0  # step size where ObGD does not bound it
    kappa: float = 2.0  # kappa of ObGD: the larger it is, the smaller the bound on the step
    epsilon: float = 0.01  # final probability of a random action
    exploration_fraction: float = 0.05  # share of steps in which epsilon falls; `init_from`: none; MinAtar: 0.2
    optimizer: str = "obgd"  # obgd, adaptive_obgd; or those of the classic methods: sgd, adam
    sparsity: float = 0.9  # share of the weights that begin at 0
    layer_norm: bool = True  # LayerNorm before every activation
    normalize_obs: bool = True  # by their running mean and standard deviation
    scale_reward: bool = True  # by the running standard deviation of the discounted sum of rewards
    time_feature: bool = True  # append the elapsed share of the episode to vector observations

    def __post_init__(self) -> None:
        check_stream(self, "kappa")


class StreamQ(StreamAgent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1_000_000) -> None:
        super().__init__(spec, config)
        assert spec.num_actions is not None
        self.exploration_steps = max(1.0, config.exploration_fraction * total_steps)
        self.network = StreamNetwork(
            self.normalizer.shape, spec.num_actions, config.hidden, config.sparsity, config.layer_norm
        )
        self.optimizer = optimizer(config, self.network, config.kappa)

    def choose(self, x: Tensor) -> Tensor:
        """An epsilon-greedy action `[]`; epsilon falls from 1."""
        return epsilon_greedy(self.network(x), self.epsilon(self.config.epsilon, self.exploration_steps))

    @torch.no_grad()
    def start(self, obs: Tensor) -> None:
        """Begins an episode at `obs`; no credit reaches back before it."""
        self.optimizer.reset()
        self.x.copy_(self.normalizer.reset(obs))
        self.action.copy_(self.choose(self.x))

    def update(self, batch: Sample) -> Metrics:
        """Learns from the outcome of the last action and chooses the next."""
        with torch.no_grad():
            reward, next_x = self.normalizer.step(batch.reward, batch.next_obs)
            target = reward + self.config.discount * ~batch.terminated * self.network(next_x).amax()
        q = self.network(self.x)
        value = q.gather(0, self.action[None])[0]
        delta = target - value.detach()
        step_size = self.optimizer.step(value, delta)
        with torch.no_grad():
            self.optimizer.trace.mul_(self.action == q.argmax())
            self.x.copy_(next_x)
            self.action.copy_(self.choose(next_x))
        return {"td_error": delta, "value": value.detach(), "step_size": step_size}

    def best(self, x: Tensor) -> Tensor:
        best: Tensor = self.network(x).argmax(-1)
        return best

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        x = self.normalized(obs)
        return epsilon_greedy(self.network(x), self.config.epsilon) if explore else self.best(x)

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.in_rewards(self.network(self.normalized(obs)).gather(-1, action[:, None])[:, 0])


def train(run: "Run", config: Config) -> StreamQ:
    envs, time_limit = stream(run, config)
    agent = StreamQ(envs.spec, config, run.config.steps if run.config.init_from is None else 0)
    agent.normalizer.time_limit.fill_(time_limit)
    run.track(agent=agent)
    if not envs.resumed:
        agent.start(envs.obs[0])
    for _ in run.steps():
        transition = envs.step(agent.action[None])
        run.log(agent.update(Sample.of(transition)))
        if envs.ended[0]:
            agent.start(envs.obs[0])
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
