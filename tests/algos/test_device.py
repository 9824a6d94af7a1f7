"""No agent waits for its device, or mixes in tensors of the CPU; see `strict_device`."""

import dataclasses

import pytest
import torch
from examples import batch_for, make, specs
from strict_device import DEVICE, assert_on_device, moved, on_device, strict

from zoo.agent import Predictor
from zoo.nn.heads import CATEGORICAL, SCALAR
from zoo.settings.registry import algorithms
from zoo.spec import Spec
from zoo.streaming import StreamAgent
from zoo.streaming.optimizers import OPTIMIZERS

CHOICES = {"value_head": (*SCALAR, *CATEGORICAL), "optimizer": tuple(OPTIMIZERS)}  # of settings that are a name

each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=list(algorithms()))


def observations(algorithm):
    """Vectors, and frames where it takes them."""
    frames = Spec((2, 6, 6), num_actions=4)
    return [*specs(algorithm), *([frames] if algorithm.takes_frames else [])]


def variants(algorithm):
    """Its settings as they are, and with one of them changed: each that is on or off, and each name of `CHOICES`."""
    yield {}
    for field in dataclasses.fields(algorithm.module.Config):
        default = getattr(algorithm.module.Config(), field.name)
        values = (not default,) if isinstance(default, bool) else CHOICES.get(field.name, ())
        for value in values:
            support = {"v_min": -1.0, "v_max": 1.0} if field.name == "value_head" and value in CATEGORICAL else {}
            yield {field.name: value} | support


@each_algorithm
def test_an_update_stays_on_the_device(algorithm):
    for spec in observations(algorithm):
        for settings in variants(algorithm):
            agent = make(algorithm, spec, **settings)
            batches = [on_device(batch_for(agent, seed)) for seed in range(2)]
            moved(agent)
            with strict():
                metrics = [agent.update(batch) for batch in batches]
            assert_on_device(metrics)


@each_algorithm
def test_acting_stays_on_the_device(algorithm):
    for spec in observations(algorithm):
        agent, obs, reward = moved(make(algorithm, spec)), *on_device((torch.randn(5, *spec.obs_shape), torch.ones(5)))
        for explore in (False, True):
            with strict():
                agent.begin(5)
                for _ in range(3):
                    action = agent.act(obs, explore)
                    agent.observe(obs, action, reward)
            assert_on_device(action)


@each_algorithm
def test_a_new_agent_is_made_of_numbers_that_are_known_without_the_device(algorithm):
    for spec in observations(algorithm):
        with torch.device(DEVICE), strict():
            agent = make(algorithm, spec)
        assert_on_device(list(agent.state_dict().values()))


@each_algorithm
def test_what_kinds_of_agents_do_besides_stays_on_the_device(algorithm):
    for spec in observations(algorithm):
        agent, obs = moved(make(algorithm, spec)), on_device(torch.randn(5, *spec.obs_shape))
        if isinstance(agent, Predictor):
            with strict():
                assert_on_device(agent.predict(obs))
        if isinstance(agent, StreamAgent):
            with strict():
                agent.start(obs[0])
            assert_on_device(list(agent.state_dict().values()))
