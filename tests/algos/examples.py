"""What every algorithm is tested on: agents of small networks, and random batches of the kind that they learn from."""

import typing
from dataclasses import replace
from typing import Any

import torch

from zoo.agent import Agent
from zoo.settings.registry import Algorithm
from zoo.spec import Spec
from zoo.streaming import Sample

STATES = ("value_goal", "actor_goal", "subgoal", "waypoint", "option_end", "option_goal")  # of batches with goals


def batch_for(agent: Agent, seed: int, learn: str = "update") -> Any:
    """A batch of the kind that this method of the agent names, of random content: 16 transitions, of a stream one."""
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
        columns["chain"] = 0.1 * torch.randn(*shape, 5, spec.action_dim, generator=generator)  # one that is likely
    return kind(**{name: columns[name] for name in kind._fields})


def specs(algorithm: Algorithm) -> list[Spec]:
    """Of vectors, for each kind of actions that it takes; with a goal, which is a state too, where it needs one."""
    known = {"continuous": Spec((3,), (-1.0, -1.0), (1.0, 1.0)), "discrete": Spec((3,), num_actions=4)}
    found = [known[space] for space in algorithm.action_spaces]
    return [replace(spec, obs_shape=(6,), goal_dim=3) for spec in found] if algorithm.takes_goals else found


def make(algorithm: Algorithm, spec: Spec, **settings: Any) -> Agent:
    """Its agent, with small layers where they can be set."""
    hidden = {"hidden": [16]} if hasattr(algorithm.module.Config(), "hidden") else {}
    return algorithm.agent_class(spec, algorithm.module.Config(**(hidden | settings)))
