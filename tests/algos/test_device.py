"""No agent waits for its device or uses CPU tensors with it; see `strict_device`."""

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

CHOICES = {  # settings whose values are names
    "value_head": (*SCALAR, *CATEGORICAL), "optimizer": tuple(OPTIMIZERS),
    "f": ("chi2", "chi2_exact", "tv", "reverse_kl"),
}  # fmt: skip

each_algorithm = pytest.mark.parametrize("algorithm", algorithms().values(), ids=list(algorithms()))


def observations(algorithm):
    """Specs with vector observations, and with frames if the algorithm takes them."""
    frames = Spec((2, 6, 6), num_actions=4)
    return [*specs(algorithm), *([frames] if algorithm.takes_frames("discrete") else [])]


def variants():
    """Every algorithm with its defaults, and with one setting changed: each switch, and each name in `CHOICES`."""
    for name, algorithm in algorithms().items():
        yield pytest.param(algorithm, {}, id=name)
        for field in dataclasses.fields(algorithm.module.Config):
            default = getattr(algorithm.module.Config(), field.name)
            values = (not default,) if isinstance(default, bool) else CHOICES.get(field.name, ())
            for value in values:
                support = {"v_min": -1.0, "v_max": 1.0} if value in CATEGORICAL else {}
                if value != default:
                    yield pytest.param(algorithm, {field.name: value} | support, id=f"{name}-{field.name}={value}")


@pytest.mark.parametrize(("algorithm", "settings"), list(variants()))
def test_an_update_stays_on_the_device(algorithm, settings):
    for spec in observations(algorithm):
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


@pytest.mark.filterwarnings("ignore:for .*copying from a non-meta parameter")
@each_algorithm
def test_an_agent_of_a_checkpoint_goes_on_on_its_device(algorithm):
    """A checkpoint is read on the CPU."""
    for spec in specs(algorithm):
        saved, loaded = make(algorithm, spec), moved(make(algorithm, spec))
        batch = batch_for(saved, 0)
        saved.update(batch)
        loaded.load_state_dict(saved.state_dict())
        batch = on_device(batch)
        with strict():
            metrics = loaded.update(batch)
        assert_on_device(metrics)
