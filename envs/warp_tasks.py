"""Gymnasium's MuJoCo tasks, version 5, as tensor programs: observations, rewards, terminations, starts.

Each class handles N simulators at once, in any float type, so that it can be compared with Gymnasium's own arrays. The
numbers are the defaults of `gymnasium/envs/mujoco/*_v5.py`. As there, positions and inertias of bodies are those that
the integrator has left: from the last stage that it evaluated, not from the state that it arrived at.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Physics(NamedTuple):
    """The quantities that a task sees of N simulators, named as in MuJoCo's `mjData`."""

    qpos: Tensor  # [N, nq]
    qvel: Tensor  # [N, nv]
    xpos: Tensor  # [N, bodies, 3] m
    xipos: Tensor  # [N, bodies, 3] m, the bodies' centers of mass
    cinert: Tensor  # [N, bodies, 10]
    cvel: Tensor  # [N, bodies, 6]
    qfrc_actuator: Tensor  # [N, nv]
    cfrc_ext: Tensor  # [N, bodies, 6]


def uniform(shape: tuple[int, ...], scale: float, generator: torch.Generator) -> Tensor:
    """Uniform random numbers between -scale and scale."""
    return scale * (2 * torch.rand(shape, generator=generator, device=generator.device) - 1)


def within(x: Tensor, low: float, high: float) -> Tensor:
    return (low < x) & (x < high)


class Task:
    """The common part of most tasks: forward velocity and health are rewarded, and actions cost.

    Attributes:
        derived: whether more than `qpos` and `qvel` matters for the observation or the position at a start.
    """

    derived = False
    unobserved = 1  # number of leading entries of qpos that are not observed: the location
    velocity_bound = math.inf  # observed velocities are clipped to this
    forward_weight = 1.0
    healthy_reward = 0.0
    control_weight = 1e-3
    noise = 5e-3  # half the width of the uniform distribution of initial states
    normal_velocity = False  # draw initial velocities from a normal distribution with this standard deviation

    def __init__(self, bodies: list[str], mass: Tensor, dt: float) -> None:
        self.bodies, self.mass, self.dt = bodies, mass, dt  # names; [bodies] kg; seconds per step

    def observe(self, now: Physics) -> Tensor:
        """The observations `[N, D]`."""
        velocity = now.qvel.clamp(-self.velocity_bound, self.velocity_bound)
        return torch.cat([now.qpos[:, self.unobserved :], velocity], 1)

    def position(self, now: Physics) -> Tensor:
        """The coordinate whose change is the forward velocity, `[N]` m."""
        return now.qpos[:, 0]

    def healthy(self, now: Physics) -> Tensor:
        """Whether the episode continues, bool `[N]`."""
        return torch.ones_like(now.qpos[:, 0], dtype=torch.bool)

    def contact_cost(self, now: Physics) -> Tensor | float:
        """Costs `[N]` of contact forces."""
        return 0.0

    def reward(self, now: Physics, action: Tensor, before: Tensor) -> Tensor:
        """The rewards `[N]` of a step.

        Args:
            now: the state after the step.
            action: `[N, A]`.
            before: `position` before the step, `[N]`.
        """
        forward = self.forward_weight * (self.position(now) - before) / self.dt
        cost = self.control_weight * action.square().sum(1) + self.contact_cost(now)
        return forward + self.healthy_reward * self.healthy(now) - cost

    def start(self, qpos: Tensor, qvel: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Initial positions and velocities of N episodes, from the model's own `[N, nq]` and `[N, nv]`."""
        if self.normal_velocity:
            moved = self.noise * torch.randn(qvel.shape, generator=generator, device=generator.device)
        else:
            moved = uniform(qvel.shape, self.noise, generator)
        return qpos + uniform(qpos.shape, self.noise, generator), qvel + moved


class Hopper(Task):
    velocity_bound = 10.0
    healthy_reward = 1.0

    def healthy(self, now: Physics) -> Tensor:
        rest = within(torch.cat([now.qpos[:, 2:], now.qvel], 1), -100, 100).all(1)
        return rest & (now.qpos[:, 1] > 0.7) & within(now.qpos[:, 2], -0.2, 0.2)


class Walker2d(Task):
    velocity_bound = 10.0
    healthy_reward = 1.0

    def healthy(self, now: Physics) -> Tensor:
        return within(now.qpos[:, 1], 0.8, 2) & within(now.qpos[:, 2], -1, 1)


class HalfCheetah(Task):
    control_weight = 0.1
    noise = 0.1
    normal_velocity = True


class Swimmer(Task):
    unobserved = 2
    control_weight = 1e-4
    noise = 0.1


class Ant(Task):
    derived = True
    unobserved = 2
    healthy_reward = 1.0
    control_weight = 0.5
    noise = 0.1
    normal_velocity = True

    def contact_forces(self, now: Physics) -> Tensor:
        """Contact forces `[N, bodies, 6]`, clipped."""
        return now.cfrc_ext.clamp(-1, 1)

    def contact_cost(self, now: Physics) -> Tensor:
        return 5e-4 * self.contact_forces(now).square().sum((1, 2))

    def observe(self, now: Physics) -> Tensor:
        return torch.cat([super().observe(now), self.contact_forces(now)[:, 1:].flatten(1)], 1)

    def position(self, now: Physics) -> Tensor:
        return now.xpos[:, 1, 0]

    def healthy(self, now: Physics) -> Tensor:
        finite = torch.cat([now.qpos, now.qvel], 1).isfinite().all(1)
        return finite & (now.qpos[:, 2] >= 0.2) & (now.qpos[:, 2] <= 1)


class Humanoid(Task):
    derived = True
    unobserved = 2
    forward_weight = 1.25
    healthy_reward = 5.0
    control_weight = 0.1
    noise = 1e-2

    def contact_cost(self, now: Physics) -> Tensor:
        return (5e-7 * now.cfrc_ext.square().sum((1, 2))).clamp(max=10)

    def observe(self, now: Physics) -> Tensor:
        bodies = (quantity[:, 1:].flatten(1) for quantity in (now.cinert, now.cvel))
        return torch.cat([super().observe(now), *bodies, now.qfrc_actuator[:, 6:], now.cfrc_ext[:, 1:].flatten(1)], 1)

    def position(self, now: Physics) -> Tensor:
        return (now.xipos[:, :, 0] * self.mass).sum(1) / self.mass.sum()

    def healthy(self, now: Physics) -> Tensor:
        return within(now.qpos[:, 2], 1, 2)


class InvertedPendulum(Task):
    unobserved = 0
    noise = 0.01

    def healthy(self, now: Physics) -> Tensor:
        return torch.cat([now.qpos, now.qvel], 1).isfinite().all(1) & (now.qpos[:, 1].abs() <= 0.2)

    def reward(self, now: Physics, action: Tensor, before: Tensor) -> Tensor:
        return self.healthy(now).to(now.qpos)


class Reacher(Task):
    derived = True

    def between(self, now: Physics) -> Tensor:
        """The vector from target to fingertip, `[N, 3]` m."""
        return now.xpos[:, self.bodies.index("fingertip")] - now.xpos[:, self.bodies.index("target")]

    def observe(self, now: Physics) -> Tensor:
        angles = now.qpos[:, :2]
        return torch.cat([angles.cos(), angles.sin(), now.qpos[:, 2:], now.qvel[:, :2], self.between(now)[:, :2]], 1)

    def reward(self, now: Physics, action: Tensor, before: Tensor) -> Tensor:
        distance: Tensor = torch.linalg.vector_norm(self.between(now), dim=1)
        return -distance - action.square().sum(1)

    def start(self, qpos: Tensor, qvel: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The target is uniform in a disc of 0.2 m; Gymnasium draws from a square until the target is in the disc."""
        arms = qpos[:, :2] + uniform((len(qpos), 2), 0.1, generator)
        moved = qvel[:, :2] + uniform((len(qvel), 2), 0.005, generator)
        radius, turn = torch.rand((2, len(qpos)), generator=generator, device=generator.device)
        radius, angle = 0.2 * radius.sqrt(), 2 * math.pi * turn
        target = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
        return torch.cat([arms, target], 1), torch.cat([moved, torch.zeros_like(target)], 1)


TASKS: dict[str, type[Task]] = {f"{task.__name__}-v5": task for task in (
    Ant, HalfCheetah, Hopper, Humanoid, InvertedPendulum, Reacher, Swimmer, Walker2d,
)}  # fmt: skip
