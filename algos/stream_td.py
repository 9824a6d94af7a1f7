"""Stream TD(lambda): prediction from a stream (Elsayed, Vasan, Mahmood 2024, arXiv 2410.14606).

TD(lambda) (Sutton 1988) with a network. It predicts the discounted sum of future rewards on a stream that it does not
act on. Each sample is learned from once, when it arrives, and is not stored; ObGD keeps updates from overshooting.

    delta = r + gamma (1 - terminated) V(s') - V(s)
    z     <- gamma lambda z + grad V(s)
    w     <- w + eta delta z,  eta = lr / max(lr kappa max(|delta|, 1) |z|_1, 1)                           (ObGD)

Observations and rewards are normalized by their running statistics; predictions are in the rewards' own units. An
evaluation freezes the network and reports `value_error`, its error on stretches of the stream in units of the std of
the actual returns. The docstring of `zoo.streaming` lists what deviates from the authors' code in every streaming
algorithm. Here also:

- A stream is cut into episodes (`zoo.envs.series`); traces and the sum that scales rewards start anew in each.
- Training starts anywhere in the stream and goes round it; theirs makes one pass from its first row.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from zoo.agent import Metrics, Predictor
from zoo.errors import UsageError
from zoo.spec import Spec
from zoo.streaming import Sample, StreamAgent, StreamNetwork, check_stream, optimizer, stream

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "streaming"
SETTING = "online"
DATA = "none"
ACTION_SPACES = ("discrete",)
FRAMES = True


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [128, 128])  # widths of the hidden layers
    discount: float = 0.99  # gamma
    trace_lambda: float = 0.8  # lambda, how long credit reaches back
    lr: float = 1.0  # step size where ObGD does not bound it
    kappa: float = 2.0  # kappa of ObGD: the larger it is, the smaller the bound on the step
    optimizer: str = "obgd"  # obgd, adaptive_obgd; or that of the classic method: sgd, adam
    sparsity: float = 0.9  # share of the weights that begin at 0
    layer_norm: bool = True  # LayerNorm before every activation
    normalize_obs: bool = True  # by their running mean and standard deviation
    scale_reward: bool = True  # by the running standard deviation of the discounted sum of rewards
    time_feature: bool = False  # append the elapsed share of the episode to vector observations

    def __post_init__(self) -> None:
        check_stream(self, "kappa")


class StreamTD(StreamAgent, Predictor):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__(spec, config)
        self.discount = config.discount
        self.network = StreamNetwork(self.normalizer.shape, 1, config.hidden, config.sparsity, config.layer_norm)
        self.optimizer = optimizer(config, self.network, config.kappa)

    @torch.no_grad()
    def start(self, obs: Tensor) -> None:
        """Begins an episode at `obs`; no credit reaches back before it."""
        self.optimizer.reset()
        self.x.copy_(self.normalizer.reset(obs))

    def update(self, batch: Sample) -> Metrics:
        """Learns from the outcome of a step."""
        with torch.no_grad():
            reward, next_x = self.normalizer.step(batch.reward, batch.next_obs)
            target = reward + self.config.discount * ~batch.terminated * self.network(next_x)[0]
        value = self.network(self.x)[0]
        delta = target - value.detach()
        step_size = self.optimizer.step(value, delta)
        self.x.copy_(next_x)
        return {"td_error": delta, "value": value.detach(), "step_size": step_size}

    @torch.no_grad()
    def predict(self, obs: Tensor) -> Tensor:
        return self.in_rewards(self.network(self.normalized(obs))[..., 0])

    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return torch.zeros(len(obs), dtype=torch.int64, device=obs.device)


def train(run: "Run", config: Config) -> StreamTD:
    envs, time_limit = stream(run, config)
    if envs.spec.num_actions != 1:
        raise UsageError(
            f"stream_td predicts and does not act; {run.config.env.name} has {envs.spec.num_actions} actions. "
            "Try: env=series/hopper"
        )
    agent = StreamTD(envs.spec, config)
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
