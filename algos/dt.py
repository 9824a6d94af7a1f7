"""DT: Decision Transformer (Chen et al. 2021, arXiv 2106.01345).

Offline RL as sequence modelling: a causal transformer reads the last K steps as tokens (return-to-go, observation,
action, return-to-go, ...) and predicts the action at each observation. Conditioned on a high return, it acts as the
data's good episodes did. Like all return-conditioned cloning, it cannot stitch together parts of two episodes.

    actor   L_pi = E[(pi(g_{t-K+1}, s_{t-K+1}, a_{t-K+1}, ..., g_t, s_t) - a_t)^2]          (section 3)
    acting  g_0 = the best return in the data,  g_{t+1} = g_t - r_t

Settings are those of the authors' code (github kzl/decision-transformer, gym): embeddings of the timestep in the
episode instead of positions, a tanh on the actions, gradients clipped at 0.25, a warm-up of the learning rate.
Deviations: windows that are cut short by an episode's end are padded on the right, where the causal mask hides the
padding, not on the left; returns are in units of the largest in the data, and the target is the best; 1e-3 is added to
the observations' standard deviation, as elsewhere in the zoo, not 1e-6; actions are in units of half their range.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, between, check
from zoo.nn import BoundedPolicy, Linear, Normalizer
from zoo.nn.optim import Adam
from zoo.returns import ReturnToGo
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "return-conditioned"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    context: int = 20  # K, steps that the policy sees
    layers: int = 3  # of the transformer
    heads: int = 1  # of its attention
    width: int = 128  # of an embedding
    dropout: float = 0.1  # dropout rate of embeddings, attention and residual branches
    lr: float = 1e-4  # AdamW's learning rate
    warmup: int = 10_000  # updates over which the learning rate rises linearly; 0: none
    weight_decay: float = 1e-4  # AdamW's weight decay
    max_grad_norm: float = 0.25  # gradients of a larger norm are scaled down to it
    batch_size: int = 64  # windows per update
    target_return: float | None = None  # return to condition on; null: the best return in the data
    return_scale: float | None = None  # returns are divided by this; null: the largest return in the data
    max_episode_steps: int = 1000  # number of step embeddings; later steps share the last one

    def __post_init__(self) -> None:
        counts = ("context", "layers", "heads", "width", "max_episode_steps")
        check(self, dropout=between(0, 1, "left"), return_scale=above(0), **dict.fromkeys(counts, at_least(1)))
        if self.width % self.heads:
            raise ValueError(f"algo.width={self.width} must be a multiple of algo.heads={self.heads}")


class Windows(NamedTuple):
    """Windows of K consecutive steps of an episode; `inside` is false where the episode was over."""

    obs: Tensor  # [B, K, obs_dim]
    action: Tensor  # [B, K, A]
    return_to_go: Tensor  # [B, K]
    timestep: Tensor  # [B, K] int64, in the episode
    inside: Tensor  # [B, K] bool


class Block(nn.Module):
    """A GPT-2 block: causal attention and two layers, each part after a layer norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_qkv, self.from_heads = Linear(width, 3 * width), Linear(width, width)
        self.widen, self.narrow = Linear(width, 4 * width), Linear(4 * width, width)

    def forward(self, x: Tensor, dropout: float) -> Tensor:
        """`[B, tokens, width]` to the same shape."""
        qkv = self.to_qkv(self.norm_1(x)).chunk(3, -1)
        # each [B, heads, tokens, width / heads]
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)
        seen = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + F.dropout(self.from_heads(seen.transpose(1, 2).flatten(2)), dropout)
        return x + F.dropout(self.narrow(F.relu(self.widen(self.norm_2(x)))), dropout)


class DT(Agent):
    def __init__(self, spec: Spec, config: Config) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        width = config.width
        self.normalizer = Normalizer(spec.obs_shape)
        self.goal = ReturnToGo()
        self.bounds = BoundedPolicy(spec.action_low, spec.action_high)
        self.of_return, self.of_obs = Linear(1, width), Linear(spec.obs_dim, width)
        self.of_action = Linear(spec.action_dim, width)
        self.of_timestep = nn.Embedding(config.max_episode_steps, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, config.heads) for _ in range(config.layers))
        self.last_norm, self.to_action = nn.LayerNorm(width), Linear(width, spec.action_dim)
        for block in self.blocks.modules():
            if isinstance(block, nn.Linear):
                nn.init.normal_(block.weight, std=0.02)
                nn.init.zeros_(block.bias)
        first = 1 / max(config.warmup, 1)  # share of the learning rate at the first update
        self.optimizer = Adam(
            self.parameters(), config.lr, config.warmup or None, lambda done: (done + first).clamp(max=1),
            max_norm=config.max_grad_norm, weight_decay=config.weight_decay, decoupled=True,
        )  # fmt: skip
        self.begin(0)

    def policy(self, obs: Tensor, action: Tensor, return_to_go: Tensor, timestep: Tensor, dropout: float) -> Tensor:
        """Actions `[B, T, A]`, each from the earlier steps of its window, its return-to-go and its observation.

        Args:
            obs: `[B, T, obs_dim]` normalized.
            action: `[B, T, A]`.
            return_to_go: `[B, T]`.
            timestep: `[B, T]`.
            dropout: the dropout rate.
        """
        time = self.of_timestep(timestep.clamp(max=self.config.max_episode_steps - 1))
        tokens = torch.stack(
            [
                self.of_return(return_to_go[..., None] / self.goal.scale) + time,
                self.of_obs(obs) + time,
                self.of_action(self.bounds.to_unit(action)) + time,
            ],
            2,
        ).flatten(1, 2)  # [B, 3 T, width]
        x = F.dropout(self.norm(tokens), dropout)
        for block in self.blocks:
            x = block(x, dropout)
        at_obs = self.last_norm(x)[:, 1::3]
        return self.bounds.squash(self.to_action(at_obs))

    def actor_loss(self, windows: Windows) -> Tensor:
        """Mean squared error, in units of half the range of the actions, over these and the steps inside episodes."""
        obs, action, return_to_go, timestep, inside = windows
        predicted = self.policy(obs, action, return_to_go, timestep, self.config.dropout)
        error = self.bounds.squared_error(predicted, action).mean(-1)
        return (error * inside).sum() / inside.sum()

    def update(self, batch: Windows) -> Metrics:
        """One gradient step."""
        loss = self.actor_loss(batch)
        self.optimizer.minimize(loss)
        return {"actor_loss": loss.detach()}

    def begin(self, num_envs: int) -> None:
        self.goal.begin(num_envs)
        self.num_envs = num_envs
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []  # of each step so far: obs, action, return-to-go before it
        self.steps = 0

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        seen = [*self.seen, (self.normalizer(obs), action, self.goal.remaining(len(obs)))]
        self.seen = seen[max(0, len(seen) + 1 - self.config.context) :]
        self.steps += 1
        self.goal.subtract(reward)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        if len(obs) != self.num_envs:
            self.begin(len(obs))
        now = (self.normalizer(obs), obs.new_zeros(len(obs), self.spec.action_dim), self.goal.remaining(len(obs)))
        seen, done, left = (torch.stack(column, 1) for column in zip(*self.seen, now, strict=True))
        timestep = torch.arange(self.steps - len(self.seen), self.steps + 1, device=obs.device)
        return self.policy(seen, done, left, timestep.expand(len(obs), -1), dropout=0.0)[:, -1]

    def memory(self) -> dict[str, Tensor]:
        context, target = self.config.context, self.goal.target
        return {
            "seen": target.new_zeros(context, self.spec.obs_dim),  # normalized; from the window's first step on
            "done": target.new_zeros(context, self.spec.action_dim),
            "return_to_go": target.repeat(context),
            "steps": target.new_zeros((), dtype=torch.int64),  # of the episode so far
        }

    @torch.no_grad()
    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Like `act`, in a window of fixed length that fills from its beginning: no step attends to later ones."""
        seen, done, left, steps = memory.values()
        context = self.config.context
        before = (steps - 1).clamp(0, context - 1)[:, None]  # place of the step before
        now = left.gather(1, before) - reward[:, None]
        full = (steps >= context)[:, None]
        place = steps.clamp(max=context - 1)[:, None]
        window = torch.arange(context, device=obs.device)
        here = window == place  # [B, K]
        left = torch.where(here, now, torch.where(full, left.roll(-1, 1), left))
        here, full = here[..., None], full[..., None]
        seen = torch.where(here, self.normalizer(obs)[:, None], torch.where(full, seen.roll(-1, 1), seen))
        done = torch.where(full, done.roll(-1, 1), done)  # nothing attends to the actions at `place` and after it
        actions = self.policy(seen, done, left, steps[:, None] - place + window, dropout=0.0)
        memory = {"seen": seen, "done": torch.where(here, actions, done), "return_to_go": left, "steps": steps + 1}
        return (actions * here).sum(1), memory


def train(run: "Run", config: Config) -> DT:
    data = run.dataset()
    agent = DT(data.spec, config)
    data.normalize_obs(agent.normalizer)
    run.report(agent.goal.set_target(config.target_return, data.episode_returns, config.return_scale))
    run.track(agent=agent)
    return_to_go, timestep, left = data.return_to_go(), *data.timesteps()
    ahead = torch.arange(config.context, device=run.device)
    for _ in run.steps():
        first = data.sampler(config.batch_size)
        inside = ahead < left[first][:, None]
        index = first[:, None] + ahead * inside
        windows = Windows(data.obs[index], data.action[index], return_to_go[index], timestep[index], inside)
        run.log(agent.update(windows))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
