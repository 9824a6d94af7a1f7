"""Learning on top of a frozen base policy, that of a finished run: correcting its actions, or choosing its noise.

Residual learning (ResiP, Ankile et al. 2024, arXiv 2407.16677): a = a_base + base_scale u, clipped to the bounds, in
units of half the action's range, where a_base is the base's action and u the agent's, given the observation and a_base.
The agent's last layer starts at 0, so that training starts at the base policy. There the standard deviation of u starts
at exp(-1), here at the algorithm's own value.

Noise (DSRL-SAC, Wagenmaker et al. 2025, arXiv 2506.15799): a = f(s, base_scale u), where f is the base policy.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from zoo.agent import Agent
from zoo.data.batch import Transition
from zoo.nn import BoundedPolicy
from zoo.runs.tensor_stepper import Stepper
from zoo.spec import Spec


class Base(nn.Module):
    """A frozen base policy, whose actions a residual policy corrects.

    Attributes:
        spec: the environment's shapes and bounds.
        residual_spec: those of the residual policy: observations include the base's action, actions lie in [-1, 1].
    """

    def __init__(self, agent: Agent, scale: float) -> None:
        super().__init__()
        self.agent, self.scale, self.spec = agent.requires_grad_(False), scale, agent.spec
        self.bounds = BoundedPolicy(self.spec.action_low, self.spec.action_high)
        size = self.spec.action_dim
        self.residual_spec = Spec((self.spec.obs_dim + size,), (-1.0,) * size, (1.0,) * size)

    @torch.no_grad()
    def seen(self, obs: Tensor) -> Tensor:
        """The residual policy's observations `[B, D + A]`: observations `[B, D]` and the base's actions in [-1, 1]."""
        return torch.cat([obs, self.bounds.to_unit(self.agent.act(obs))], -1)

    def corrected(self, seen: Tensor, correction: Tensor) -> Tensor:
        """The actions `[B, A]` in the environment that result from corrections `[B, A]`."""
        return self.bounds.from_unit(seen[:, self.spec.obs_dim :] + self.scale * correction)

    def correction(self, seen: Tensor, action: Tensor) -> Tensor | None:
        """The correction `[B, A]` that results in an action; None if the action does not determine it."""
        return (self.bounds.to_unit(action) - seen[:, self.spec.obs_dim :]) / self.scale


class NoiseBase(Base):
    """A frozen base policy that turns noise into actions. The agent that chooses the noise observes the environment."""

    def __init__(self, agent: Agent, scale: float) -> None:
        super().__init__(agent, scale)
        self.residual_spec = dataclasses.replace(self.residual_spec, obs_shape=self.spec.obs_shape)

    def seen(self, obs: Tensor) -> Tensor:
        """The observations themselves."""
        return obs

    @torch.no_grad()
    def corrected(self, seen: Tensor, correction: Tensor) -> Tensor:
        """The actions `[B, A]` into which the base turns noise `[B, A]`."""
        generate: Any = self.agent.generate
        action: Tensor = generate(seen, self.scale * correction)
        return action

    def correction(self, seen: Tensor, action: Tensor) -> None:
        """None: many noise vectors may give the same action."""


class Corrected(Agent):
    """A base and its residual policy as one agent for the environment."""

    def __init__(self, base: Base, agent: Agent) -> None:
        super().__init__()
        self.base, self.agent, self.spec = base, agent, base.spec

    @torch.no_grad()
    def act(self, obs: Tensor, explore: bool = False) -> Tensor:
        seen = self.base.seen(obs)
        return self.base.corrected(seen, self.agent.act(seen, explore))

    @torch.no_grad()
    def expected_return(self, obs: Tensor, action: Tensor) -> Tensor | None:
        seen = self.base.seen(obs)
        correction = self.base.correction(seen, action)
        return None if correction is None else self.agent.expected_return(seen, correction)


class ResidualStepper:
    """Training environments as the residual policy sees them: the transitions' actions are corrections.

    Attributes:
        obs: `[N, D + A]`, see `Base.seen`.
        spec: `Base.residual_spec`.
    """

    def __init__(self, stepper: Stepper, base: Base) -> None:
        self.stepper, self.base, self.spec = stepper, base, base.residual_spec
        self.obs = base.seen(stepper.obs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stepper, name)

    def random_action(self) -> Tensor:
        """Uniform corrections `[N, A]`."""
        return 2 * torch.rand(self.num_envs, self.base.spec.action_dim, device=self.obs.device) - 1

    def step(self, correction: Tensor) -> Transition:
        """One step of every environment, like `EnvStepper.step`."""
        obs, given = self.obs, self.stepper.step(self.base.corrected(self.obs, correction))
        self.obs = self.base.seen(self.stepper.obs)
        return given._replace(obs=obs, action=correction, next_obs=self.base.seen(given.next_obs))


def begin_at_base(agent: Agent) -> None:
    """Sets the actors' last layers to 0, so that they correct nothing before they have learned."""
    actors = [module for name, module in agent.named_children() if name in ("actor", "target_actor")]
    for actor in actors:
        *_, last = (layer for layer in actor.modules() if isinstance(layer, nn.Linear))
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
