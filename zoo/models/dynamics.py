"""A model of an environment, learned from its transitions: an ensemble of Gaussian networks.

Chua et al. 2018 (PETS, arXiv 1805.12114), Janner et al. 2019 (MBPO, arXiv 1906.08253). The networks, their training and
its stopping rule are those of MOPO (Yu et al. 2020, arXiv 2005.13239) in OfflineRL-Kit, on which the experiments of
COMBO and MBRCSL are based too; except that the rest of an epoch that does not fill a batch is left out.

Members are judged by their squared error on held-out transitions. Judged by likelihood, they would train longer and fit
the data better, but they would also trust more of what lies outside it: in Point Maze, that there are no walls where
nobody ran into them.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.agent import Metrics
from zoo.data.arrays import without_successor
from zoo.data.batch import Transition
from zoo.data.dataset import Dataset
from zoo.errors import RunError, UsageError
from zoo.nn import EnsembleLinear, EnsembleMLP, Normalizer
from zoo.nn.optim import Adam

if TYPE_CHECKING:
    from zoo.runs.run import Run

WEIGHT_DECAY = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)  # of the layers, first to last: half of it times squared weights
BOUND_WEIGHT = 0.01  # factor in the loss on the width of the interval for the log variances
HOLDOUT, MAX_HOLDOUT = 0.2, 1000  # share of the transitions held out to judge the members, and their largest number
IMPROVEMENT = 0.01  # relative; a member whose holdout error falls by less has not improved
PATIENCE = 5  # epochs without an improvement of any member before training stops


class EnsembleDynamics(nn.Module):
    """`members` networks `(obs, action) -> (next_obs - obs, reward)` as one batched network; means and log variances.

    Every member sees its own bootstrap sample. The members with the smallest error on held-out transitions are elites;
    each imagined step is sampled from one of them. Usage: `prepare`, then `epoch` until `converged`, then `finish`.

    Args:
        obs_dim, action_dim: sizes of an observation and an action.
        hidden: widths of the hidden layers, four.
        members: number of networks.
        elites: how many of them are used.
        lr: Adam's learning rate.
        batch_size: number of transitions per update.
    """

    PER_RUN = ("least_error", "stale")

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden: list[int],
        members: int = 7,
        elites: int = 5,
        lr: float = 1e-3,
        batch_size: int = 256,
    ) -> None:
        super().__init__()
        if not 1 <= elites <= members:
            raise UsageError(f"algo.elites={elites} must lie between 1 and algo.members={members}; the paper takes 5.")
        if len(hidden) + 1 != len(WEIGHT_DECAY):
            raise UsageError(f"algo.dynamics_hidden={hidden} must be four widths, such as [200,200,200,200].")
        self.members, self.batch_size = members, batch_size
        self.inputs = Normalizer((obs_dim + action_dim,))
        self.net = EnsembleMLP(members, obs_dim + action_dim, 2 * (obs_dim + 1), hidden, activation=nn.SiLU)
        self.layers = [layer for layer in self.net if isinstance(layer, EnsembleLinear)]
        for layer in self.layers:
            nn.init.trunc_normal_(layer.weight, std=0.5 / layer.weight.shape[-1] ** 0.5)
            nn.init.zeros_(layer.bias)
        self.max_log_var = nn.Parameter(torch.full((obs_dim + 1,), 0.5))
        self.min_log_var = nn.Parameter(torch.full((obs_dim + 1,), -10.0))
        self.optimizer = Adam(self.parameters(), lr)
        self.best = EnsembleMLP(members, obs_dim + action_dim, 2 * (obs_dim + 1), hidden, activation=nn.SiLU)
        self.best.load_state_dict(self.net.state_dict())
        self.best.requires_grad_(False)
        self.least_error = nn.Buffer(torch.full((members,), torch.inf))  # for each member, on held-out data
        self.stale = nn.Buffer(torch.zeros((), dtype=torch.int64))  # epochs since any member improved
        self.elites = nn.Buffer(torch.arange(elites))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances `[members, B, obs_dim + 1]` of the state difference and the reward."""
        return self.predict(self.net, self.inputs(torch.cat([obs, action], -1)))

    def predict(self, net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs for normalized inputs; the log variances are softly bounded by learned bounds."""
        mean, log_var = net(x).chunk(2, -1)
        log_var = self.max_log_var - F.softplus(self.max_log_var - log_var)
        return mean, self.min_log_var + F.softplus(log_var - self.min_log_var)

    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        """The negative log likelihood up to a constant, summed over members; weight decay; and the width of the bounds.

        Args:
            x: `[members, B, obs_dim + action_dim]` normalized inputs.
            target: `[members, B, obs_dim + 1]`.
        """
        mean, log_var = self.predict(self.net, x)
        likelihood = ((mean - target).square() * (-log_var).exp() + log_var).mean((1, 2)).sum()
        decay = sum(
            0.5 * rate * layer.weight.square().sum() for rate, layer in zip(WEIGHT_DECAY, self.layers, strict=True)
        )
        return likelihood + decay + BOUND_WEIGHT * (self.max_log_var - self.min_log_var).sum()

    def update(self, x: Tensor, target: Tensor) -> Metrics:
        """One step of Adam."""
        loss = self.loss(x, target)
        self.optimizer.minimize(loss)
        return {"loss": loss.detach()}

    # --- Training -----------------------------------------------------------------------------------------------------

    def prepare(self, data: Dataset, seed: int) -> int:
        """Splits the data for `epoch`: each member's bootstrap sample, and held-out data, determined by the seed alone.

        Returns:
            The number of terminal transitions that are left out because the data lack their successors.
        """
        generator = torch.Generator(data.device).manual_seed(seed)
        known = (~without_successor(data)).nonzero().squeeze(-1)
        order = known[torch.randperm(len(known), generator=generator, device=data.device)]
        held_out = min(int(HOLDOUT * len(order)), MAX_HOLDOUT)
        if held_out < 1:
            raise UsageError(f"a dynamics model cannot be learned from {len(order)} transitions: take at least 5.")
        self.held_out, seen = order[:held_out], order[held_out:]
        shape = (self.members, len(seen))
        self.bootstrap = seen[torch.randint(len(seen), shape, generator=generator, device=data.device)]
        x = torch.cat([data.obs, data.action], -1)
        self.inputs.mean.copy_(x[seen].double().mean(0))
        std = x[seen].double().std(0, correction=0)
        self.inputs.std.copy_(torch.where(std < 1e-12, 1.0, std))
        self.x, self.target = self.inputs(x), torch.cat([data.next_obs - data.obs, data.reward[:, None]], -1)
        return len(data) - len(known)

    def epoch(self) -> Metrics:
        """One pass over every member's sample, in batches of one size; then computes their errors on held-out data.

        Raises:
            RunError: the loss is no longer finite.
        """
        order = torch.rand(self.bootstrap.shape, device=self.bootstrap.device).argsort(1)
        index = self.bootstrap.gather(1, order)
        size = min(self.batch_size, index.shape[1])
        losses = [self.update(self.x[batch], self.target[batch])["loss"] for batch in _whole(index, size)]
        with torch.no_grad():
            mean, _ = self.predict(self.net, self.x[self.held_out])
            error = (mean - self.target[self.held_out]).square().mean((1, 2))
            if not error.isfinite().all():
                raise RunError(
                    "the dynamics model diverged: its error on held-out transitions is not finite. A smaller "
                    "algo.dynamics_lr often helps; zoo data verify checks the data."
                )
            improved = error < (1 - IMPROVEMENT) * self.least_error
            self.least_error.copy_(torch.where(improved, error, self.least_error))
            for kept, weight in zip(self.best.parameters(), self.net.parameters(), strict=True):
                kept.copy_(torch.where(improved[:, None, None], weight, kept))
            self.stale.copy_(torch.where(improved.any(), 0, self.stale + 1))
        least = self.least_error.sort().values[: len(self.elites)]
        return {"loss": torch.stack(losses).mean(), "holdout_error": error.mean(), "elite_error": least.mean()}

    @property
    def converged(self) -> bool:
        """Whether no member has improved for some epochs."""
        return bool(self.stale >= PATIENCE)

    def finish(self) -> str:
        """Restores each member's best weights and selects the elites; returns a line to report.

        Raises:
            RunError: the elites predict no better than the mean would.
        """
        self.net.load_state_dict(self.best.state_dict())
        self.elites.copy_(self.least_error.argsort()[: len(self.elites)])
        error, spread = float(self.least_error[self.elites].mean()), float(self.target.var(0).mean())
        if not error < spread:
            raise RunError(
                f"the dynamics model learned nothing: its error on held-out transitions is {error:.3g}, that of their "
                f"mean {spread:.3g}. Take a smaller algo.dynamics_lr, or more algo.dynamics_epochs."
            )
        return f"dynamics: error on held-out transitions {error:.3g}, of their mean {spread:.3g}"

    # --- Imagining ----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Samples next observations and rewards `[B]`, each from one elite; also returns the uncertainty `[B]`.

        The uncertainty is the largest norm of a member's standard deviations (MOPO's penalty).
        """
        mean, log_var = self(obs, action)
        std = (0.5 * log_var).exp()
        rows = torch.arange(len(obs), device=obs.device)
        member = self.elites[torch.randint(len(self.elites), (len(obs),), device=obs.device)]
        sampled = mean[member, rows] + std[member, rows] * torch.randn_like(mean[0])
        return obs + sampled[:, :-1], sampled[:, -1], std.norm(dim=2).amax(0)


class Imagining(Protocol):
    """An agent that has a dynamics model."""

    dynamics: EnsembleDynamics

    def act(self, obs: Tensor, explore: bool = False) -> Tensor: ...


def model_rollouts(
    agent: Imagining, obs: Tensor, length: int, terminates: "Termination", penalty: float = 0.0
) -> Iterator[Transition]:
    """Steps of rollouts `[N, ...]` in an agent's model, exploring, from observations `[N, obs_dim]` (MBPO).

    Rollouts that terminate take no further steps. Each transition counts as the end of an episode, because the
    rollouts of one call are not grouped.

    Args:
        penalty: factor on the model's uncertainty, which is subtracted from the rewards.
    """
    for _ in range(length):
        action = agent.act(obs, explore=True)
        next_obs, reward, unsure = agent.dynamics.step(obs, action)
        terminated = terminates(next_obs)
        yield Transition(obs, action, reward - penalty * unsure, next_obs, terminated, ~terminated)
        obs = next_obs[~terminated]
        if len(obs) == 0:
            return


def learn_dynamics(run: "Run", dynamics: EnsembleDynamics, data: Dataset, epochs: int) -> None:
    """The stage `dynamics` of a run that tracks the agent with the model: trains the model for at most `epochs`."""
    if left_out := dynamics.prepare(data, run.config.seed):
        run.report(f"{left_out:,} terminal steps, whose successors the data do not have, are left out")
    dynamics.update = run.compiled(dynamics.update)  # type: ignore[method-assign]
    for _ in run.stage("dynamics", epochs, until=lambda: dynamics.converged):
        run.log(dynamics.epoch())
    run.report(dynamics.finish())
    del dynamics.x, dynamics.target, dynamics.bootstrap, dynamics.held_out  # together larger than the dataset


def _whole(index: Tensor, size: int) -> Iterator[Tensor]:
    """Batches `[members, size]`; a remainder is dropped, so that all have the same shape."""
    for start in range(0, index.shape[1] - size + 1, size):
        yield index[:, start : start + size]


# --- When an imagined episode ends ------------------------------------------------------------------------------------

Termination = Callable[[Tensor], Tensor]  # next observations [B, obs_dim] -> whether each ends the episode [B]


def never(next_obs: Tensor) -> Tensor:
    return torch.zeros(len(next_obs), dtype=torch.bool, device=next_obs.device)


def outside(height: tuple[float, float], angle: float = torch.inf, state: float = torch.inf) -> Termination:
    """Whether the height (the first entry), the angle (the second) or any entry but the first is out of bounds."""

    def terminated(next_obs: Tensor) -> Tensor:
        z = next_obs[:, 0]
        healthy = (z > height[0]) & (z < height[1]) & (next_obs[:, 1].abs() < angle)
        return ~(healthy & (next_obs[:, 1:].abs() < state).all(1))

    return terminated


TERMINATIONS = {  # as in the tasks' own `is_healthy`, gymnasium.envs.mujoco; beyond 100 a model has diverged
    "Hopper": outside((0.7, torch.inf), 0.2, 100),
    "Walker2d": outside((0.8, 2.0), 1.0, 100),
    "HalfCheetah": outside((-100, 100), state=100),
    "Ant": outside((0.2, 1.0)),
    "Humanoid": outside((1.0, 2.0)),
    "InvertedPendulum": lambda next_obs: ~(next_obs[:, 1].abs() <= 0.2),
}


def termination_of(env_id: str, env_kwargs: dict[str, Any], data: Dataset) -> Termination:
    """A task's termination rule; if none is known and the data hold no terminal transition, one without end.

    Raises:
        UsageError: transitions terminate, but the rule is unknown.
    """
    name = env_id.rsplit("-v", 1)[0]
    if name in TERMINATIONS and not env_kwargs:
        return TERMINATIONS[name]
    if data.terminated.any():
        raise UsageError(
            f"env={env_id}: its episodes terminate, and the model does not know when. There are rules for "
            f"{', '.join(TERMINATIONS)}, as they are made by default, and for tasks that never terminate."
        )
    return never
