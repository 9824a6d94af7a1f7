"""MBRCSL: model-based return-conditioned supervised learning (Zhou, Zhu, Zhou, Cui, Gupta, Du 2023, arXiv 2310.19308).

Return-conditioned cloning needs no Bellman completeness, but it cannot stitch together parts of two episodes. So
episodes are imagined first, by a clone of the behaviour policy in a learned model of the environment. By chance, some
of them join parts of several real ones. The few whose return is higher than that of the data's best episode are then
cloned. Algorithm 1:

    1  learn the dynamics    p(s', r | s, a), an ensemble of Gaussians
    2  learn the behaviour   mu(a | s), a diffusion policy, as the data's actions may be multimodal
    3  imagine episodes      from the data's first observations; keep those that beat the data, until there are enough
    4  clone them            L_pi = E[(pi(s, g_t) - a)^2],  g_t = r_t + ... + r_T; act with g_0 = the best return kept

The steps of a run are the updates of stage 4; stages 1 to 3 come before them. The episodes that were kept are saved as
`rollouts.hdf5`, a dataset for other algorithms.

Settings are those of the authors' code (github zhaoyizhou1123/mbrcsl). Deviations: the noise network is a residual MLP,
whereas theirs is shaped like a U-Net and far larger. It trains for 5 epochs with a learning rate of 3e-4 that falls to
0; theirs trains for 50, but with 1e-5 at most, as their schedule is meant to be stepped per update but is stepped per
epoch and never leaves its warm-up. Its observations are normalized, and it has no weight decay (theirs: 1e-6). Either
way, the cloned behaviour remains a blurred copy of the data's, and the blur is what lets it cross from one episode to
another: the longer it trains, the rarer are imagined episodes that beat the data. Imagined episodes have the task's
length and end by its termination rule, whereas theirs never end; episodes in which the model's rewards lie far from the
data's are discarded. The model trains for at most 200 epochs, theirs for as long as it improves. Their code draws
batches in passes, without replacement, and leaves a tenth out of stage 4. The policy's input is the return divided by
the largest return, and there is no weight decay; with unscaled returns and a decay of 0.1, as in preset=paper, its
return swings from one evaluation to the next. Its actions are in units of half their range. It trains for a fixed
number of updates; theirs stops by a hold-out loss after 80 to 100 epochs.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from zoo.agent import Agent, Metrics
from zoo.checks import above, at_least, check
from zoo.data.dataset import Dataset
from zoo.models.diffusion import DiffusionPolicy
from zoo.models.dynamics import EnsembleDynamics, Termination, learn_dynamics, termination_of
from zoo.models.imagined import Imagined, Kept
from zoo.nn import MLP, BoundedPolicy, near_zero_
from zoo.nn.optim import Adam
from zoo.returns import ReturnToGo
from zoo.spec import Spec

if TYPE_CHECKING:
    from zoo.runs.run import Run

FAMILY = "model-based"
SETTING = "offline"
DATA = "required"
ACTION_SPACES = ("continuous",)


@dataclass
class Config:
    hidden: list[int] = field(default_factory=lambda: [1024, 1024])  # widths of the policy's hidden layers
    lr: float = 5e-5  # Adam's learning rate, policy
    weight_decay: float = 0.0  # L2 penalty of the policy, added to the gradients; the authors use 0.1
    batch_size: int = 256  # transitions per update, in all stages
    target_return: float | None = None  # return to condition on; null: the best return of the episodes kept
    return_scale: float | None = None  # returns are divided by this; null: the largest return of the episodes kept
    dynamics_hidden: list[int] = field(default_factory=lambda: [200, 200, 200, 200])  # widths of each model
    dynamics_lr: float = 1e-3  # Adam's learning rate, dynamics
    members: int = 7  # models in the ensemble
    elites: int = 5  # models used for rollouts: the best on held-out transitions
    dynamics_epochs: int = 200  # epochs at most; ends when no model has improved by 1 % for 5 epochs
    behavior_hidden: list[int] = field(default_factory=lambda: [128, 128, 128])  # widths of the noise network's blocks
    behavior_lr: float = 3e-4  # Adam's learning rate at the start, behaviour; falls to 0 by a cosine
    behavior_epochs: int = 5  # passes over the data; with more of them, few imagined episodes join two real ones
    diffusion_steps: int = 10  # denoising steps from noise to action
    rollouts: int = 100  # imagined episodes to keep
    rollout_batch: int = 200  # episodes imagined at a time
    rollout_rounds: int = 1000  # rounds of rollout_batch episodes, at most
    min_return: float | None = None  # keep the episodes whose return exceeds this; null: the best return in the data

    def __post_init__(self) -> None:
        counts = (
            "dynamics_epochs", "behavior_epochs", "diffusion_steps", "rollouts", "rollout_batch", "rollout_rounds",
        )  # fmt: skip
        check(self, return_scale=above(0), **dict.fromkeys(counts, at_least(1)))


class ReturnBatch(NamedTuple):
    """Observations and actions, with the returns that followed."""

    obs: Tensor  # [B, obs_dim]
    action: Tensor  # [B, A]
    return_to_go: Tensor  # [B]


class MBRCSL(Agent):
    def __init__(self, spec: Spec, config: Config, total_steps: int = 1) -> None:
        super().__init__()
        self.spec, self.config = spec, config
        self.dynamics = EnsembleDynamics(
            spec.obs_dim, spec.action_dim, config.dynamics_hidden, config.members, config.elites, config.dynamics_lr,
            config.batch_size,
        )  # fmt: skip
        self.behavior = DiffusionPolicy(
            spec.obs_dim, spec.action_low, spec.action_high, config.behavior_hidden, config.diffusion_steps,
            config.behavior_lr, total_steps,
        )  # fmt: skip
        self.goal = ReturnToGo()
        self.bounds = BoundedPolicy(spec.action_low, spec.action_high)
        self.actor = near_zero_(MLP(spec.obs_dim + 1, spec.action_dim, config.hidden))
        self.optimizer = Adam(self.actor.parameters(), config.lr, weight_decay=config.weight_decay)

    @torch.no_grad()
    def imagine(self, obs: Tensor, horizon: int, terminates: Termination) -> Imagined:
        """Episodes of the cloned behaviour in the model, from first observations `[B, obs_dim]` (stage 3)."""
        running = torch.ones(len(obs), dtype=torch.bool, device=obs.device)
        steps = []
        for _ in range(horizon):
            action = self.behavior.sample(obs)
            next_obs, reward, _ = self.dynamics.step(obs, action)
            terminated = terminates(next_obs)
            steps.append((obs, action, reward, next_obs, terminated, running))
            running = running & ~terminated
            obs = next_obs
        return Imagined(*(torch.stack(column, 1) for column in zip(*steps, strict=True)))

    def policy(self, obs: Tensor, return_to_go: Tensor) -> Tensor:
        """Actions `[B, A]`, before they are clipped to the bounds, for observations and returns-to-go `[B]`."""
        x: Tensor = self.actor(torch.cat([obs, return_to_go[:, None] / self.goal.scale], -1))
        return self.bounds.center + self.bounds.scale * x

    def actor_loss(self, batch: ReturnBatch) -> Tensor:
        """L_pi."""
        return self.bounds.squared_error(self.policy(batch.obs, batch.return_to_go), batch.action).mean()

    def update(self, batch: ReturnBatch) -> Metrics:
        """One gradient step of the policy (stage 4)."""
        actor_loss = self.actor_loss(batch)
        self.optimizer.minimize(actor_loss)
        return {"actor_loss": actor_loss.detach()}

    def begin(self, num_envs: int) -> None:
        self.goal.begin(num_envs)

    def observe(self, obs: Tensor, action: Tensor, reward: Tensor) -> None:
        self.goal.subtract(reward)

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        return self.bounds.clip(self.policy(obs, self.goal.remaining(len(obs))))

    def memory(self) -> dict[str, Tensor]:
        return {"return_to_go": self.goal.target}

    @torch.no_grad()
    def step(self, obs: Tensor, reward: Tensor, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        left = memory["return_to_go"] - reward
        return self.bounds.clip(self.policy(obs, left)), {"return_to_go": left}


def train(run: "Run", config: Config) -> MBRCSL:
    data = run.dataset()
    updates = max(1, len(data) // config.batch_size)  # in a pass over the data
    agent = MBRCSL(data.spec, config, config.behavior_epochs * updates)
    terminates = termination_of(run.config.env.id, run.config.env.kwargs, data)
    agent.behavior.normalizer.fit(data.obs)
    run.track(agent=agent)
    horizon = run.time_limit() or int(data.episode_lengths.max())
    worst, best = (float(bound) for bound in data.episode_returns.aminmax())
    if config.target_return is not None:  # checked before the stages, which take time
        reachable = torch.tensor([worst, max(best, horizon * float(data.reward.max()))])
        agent.goal.set_target(config.target_return, reachable, of=f"{horizon} steps of the data's rewards could")
    threshold = best if config.min_return is None else config.min_return
    kept = Kept(threshold, (float(data.reward.min()), float(data.reward.max())))
    run.track(kept=kept)
    clone = run.compiled(agent.behavior.update)

    learn_dynamics(run, agent.dynamics, data, config.dynamics_epochs)

    for _ in run.stage("behavior", config.behavior_epochs):
        batches = (data.sample(config.batch_size) for _ in range(updates))
        losses = [clone(batch.obs, batch.action)["loss"] for batch in batches]
        run.log({"loss": torch.stack(losses).mean()})

    first = data.obs[data.episode_starts]
    for _ in run.stage("rollouts", config.rollout_rounds, until=lambda: len(kept) >= config.rollouts):
        starts = first[torch.randint(len(first), (config.rollout_batch,), device=run.device)]
        run.log(kept.add(agent.imagine(starts, horizon, terminates)))
    imagined = Dataset(kept.arrays(), data.spec, run.device)
    kept.write(run.dir / "rollouts.hdf5", f"imagined by mbrcsl from {run.config.dataset} of {run.config.env.name}")
    run.report(f"{kept.summary()}; see them: zoo data show {run.dir / 'rollouts.hdf5'} --env {run.config.env.name}")

    scale = config.return_scale or (float(agent.goal.scale) if run.config.init_from else None)  # of the loaded weights
    run.report(agent.goal.set_target(config.target_return, imagined.episode_returns, scale, "the imagined episodes"))
    return_to_go = imagined.return_to_go()
    for _ in run.steps():
        batch = imagined.sample(config.batch_size)
        run.log(agent.update(ReturnBatch(batch.obs, batch.action, return_to_go[batch.index])))
    return agent


if __name__ == "__main__":
    from zoo.cli import run_file

    run_file(__file__)
