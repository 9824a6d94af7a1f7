"""Small agents of every algorithm, and random batches for their updates."""

import typing
from dataclasses import replace
from typing import Any

import torch

from zoo.agent import Agent
from zoo.settings.registry import Algorithm
from zoo.spec import Spec
from zoo.streaming import Sample

STATES = ("value_goal", "actor_goal", "subgoal", "waypoint", "option_end", "option_goal")  # in batches with goals


def batch_for(agent: Agent, seed: int, learn: str = "update") -> Any:
    """A random batch of the type that this method of the agent takes: 16 transitions, or one for a stream."""
    generator, spec = torch.Generator().manual_seed(seed), agent.spec
    kind = typing.get_type_hints(getattr(agent, learn))["batch"]
    shape = (4, 4) if "timestep" in kind._fields else (16,)  # windows of an episode, or single steps of it
    shape = () if kind is Sample else shape
    columns = {name: torch.randn(shape, generator=generator) for name in kind._fields}
    for name in ("obs", "next_obs", *STATES):
        columns[name] = torch.randn(*shape, *spec.state_shape, generator=generator)
    if spec.num_actions is None:
        columns["action"] = 2 * torch.rand(*shape, spec.action_dim, generator=generator) - 1
    else:
        columns["action"] = torch.randint(spec.num_actions, shape, generator=generator)
    columns["terminated"], columns["index"] = torch.randn(shape, generator=generator) > 0, torch.arange(16)
    columns["next_action"], columns["follows"] = columns["action"].roll(1), ~columns["terminated"]
    columns["reached"], columns["option_reached"] = columns["terminated"], columns["terminated"].roll(1)
    columns["timestep"], columns["inside"] = torch.arange(4).expand(4, 4), torch.ones(4, 4, dtype=torch.bool)
    if "chain" in kind._fields:
        columns["chain"] = 0.1 * torch.randn(*shape, 5, spec.action_dim, generator=generator)  # a likely chain
    return kind(**{name: columns[name] for name in kind._fields})


def doubles(batch: Any) -> Any:
    """The batch in float64."""
    return type(batch)(*(x.double() if x.is_floating_point() else x for x in batch))


def specs(algorithm: Algorithm) -> list[Spec]:
    """Specs with vector observations for each kind of actions that an algorithm takes, with a goal if it needs one."""
    known = {"continuous": Spec((3,), (-1.0, -1.0), (1.0, 1.0)), "discrete": Spec((3,), num_actions=4)}
    found = [known[space] for space in algorithm.action_spaces]
    return [replace(spec, obs_shape=(6,), goal_dim=3) for spec in found] if algorithm.takes_goals else found


def make(algorithm: Algorithm, spec: Spec, **settings: Any) -> Agent:
    """An algorithm's agent, with small layers if their size can be set."""
    hidden = {"hidden": [16]} if hasattr(algorithm.module.Config(), "hidden") else {}
    return algorithm.agent_class(spec, algorithm.module.Config(**(hidden | settings)))
