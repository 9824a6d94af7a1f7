"""The parts of an update stay on their device; see `strict_device`."""

import numpy as np
import pytest
import torch
from examples import make
from examples_on_device import CONTINUOUS, CPU, DISCRETE, FRAMES, dataset, dynamics, transition
from strict_device import DEVICE, assert_on_device, moved, on_device, strict

from zoo.data.batch import mixed
from zoo.data.buffers import FrameBuffer, ReplayBuffer, RolloutBuffer
from zoo.data.corruption import Adversary
from zoo.data.samplers import SAMPLERS
from zoo.models.diffusion import DiffusionPolicy
from zoo.models.dynamics import TERMINATIONS
from zoo.nn import Normalizer, RunningNormalizer
from zoo.nn.heads import CATEGORICAL, SCALAR
from zoo.returns import ReturnsSoFar, discounted_sum, gae
from zoo.runs.online import sample
from zoo.settings.registry import algorithm


@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE, FRAMES], ids=["continuous", "discrete", "frames"])
def test_a_replay_buffer_takes_and_gives_transitions_on_its_device(spec):
    stacked = spec is FRAMES
    buffer = FrameBuffer(9, spec, DEVICE, num_envs=2) if stacked else ReplayBuffer(9, spec, DEVICE)
    step = transition(spec)
    with strict():
        for i in range(12):  # it becomes full and wraps around
            buffer.add(step, np.array([i % 4 == 3, False]))
        samples = [buffer.sample(5), buffer.sample_n_step(5, 3, 0.99)]
        buffer.cut()
    assert_on_device(samples)


def test_a_rollout_buffer_of_a_checkpoint_goes_on_on_its_device():
    saved, buffer = RolloutBuffer(CPU), RolloutBuffer(DEVICE)
    assert saved.state_dict() == {}
    for _ in range(2):
        saved.append(transition(CONTINUOUS, device=CPU))
    buffer.load_state_dict(saved.state_dict())
    assert len(buffer) == 2
    buffer.append(transition(CONTINUOUS))
    with strict():
        assert_on_device(buffer.stacked())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_dataset_gives_batches_on_its_device_whatever_samples_them(sampler):
    data, buffer = dataset(sampler), ReplayBuffer(100, CONTINUOUS, DEVICE)
    buffer.add(transition(CONTINUOUS))
    with strict():
        batches = [data.sample(16) for _ in range(65)]  # the indices of 64 are sampled at a time
        batches += [sample(data, buffer, 16, None), sample(data, buffer, 16, 0.5), mixed(batches[0], batches[1])]
    assert_on_device(batches)


@pytest.mark.parametrize("name", [*SCALAR, *CATEGORICAL])
def test_a_value_head_works_on_its_device(name):
    head = moved(CATEGORICAL[name](-1.0, 1.0, 11) if name in CATEGORICAL else SCALAR[name]())
    out, reward = on_device((torch.randn(2, 8, head.outputs), torch.randn(8)))
    with strict():
        target = head.backup(reward, 0.99 * reward, head.min_member(out))
        results = [head.value(out), head.project(reward), target, head.loss(out, target), head.metrics()]
    assert_on_device(results)


@pytest.mark.parametrize("weights", [None, torch.ones(10)])
def test_normalizers_take_statistics_and_normalize_on_their_device(weights):
    normalizer, running = moved(Normalizer((3,))), moved(RunningNormalizer((3,)))
    x, weights = on_device((torch.randn(10, 3), weights))
    with strict():
        normalizer.fit(x, weights)
        running.update(x)
        assert_on_device([normalizer(x), running(x)])


def test_sums_over_time_stay_on_the_device():
    reward, ended = on_device((torch.randn(5, 2), torch.zeros(5, 2, dtype=torch.bool)))
    with strict():
        assert_on_device([discounted_sum(reward, reward), gae(reward, reward, reward, ended, ended, 0.99, 0.95)])


def test_returns_so_far_of_a_checkpoint_go_on_on_their_device():
    saved, returns = ReturnsSoFar(0.99), moved(ReturnsSoFar(0.99))
    reward, ended = torch.randn(5, 2), torch.zeros(5, 2, dtype=torch.bool)
    saved.update(reward, ended)
    reward, ended = on_device((reward, ended))
    with strict():
        assert_on_device(returns.update(reward, ended))
    returns.load_state_dict(saved.state_dict())
    with strict():
        assert_on_device(returns.update(reward, ended))


@pytest.mark.parametrize("part", ["obs", "action", "dynamics"])
@pytest.mark.parametrize("name", ["edac", "iql", "td3_bc"])
def test_an_adversary_looks_for_its_noise_on_the_device(name, part, tmp_path):
    agent = moved(make(algorithm(name), CONTINUOUS))
    adversary = Adversary(agent, None, tmp_path, "")
    adversary.STEPS = 2
    obs, action, next_obs = on_device((torch.randn(8, 3), torch.randn(8, 2), torch.randn(8, 3)))
    noise = action if part == "action" else obs
    with strict():
        assert_on_device(adversary._descend(part, 1.0, obs, action, next_obs, noise.clone(), noise[0]))


def test_a_dynamics_model_learns_and_imagines_on_its_device():
    model = dynamics()
    obs, action = on_device((torch.randn(8, 3), torch.randn(8, 2)))
    with strict():
        loss = model.update(model.x[:8].expand(3, -1, -1), model.target[:8].expand(3, -1, -1))
        imagined = model.step(obs, action)
        ends = [terminates(imagined[0]) for terminates in TERMINATIONS.values()]
    assert_on_device([loss, imagined, ends])


def test_a_diffusion_policy_learns_and_samples_on_its_device():
    policy = moved(DiffusionPolicy(3, (-1.0, -1.0), (1.0, 1.0), [8], steps=4, lr=1e-3, decay_steps=10))
    obs, action = on_device((torch.randn(8, 3), torch.randn(8, 2)))
    with strict():
        assert_on_device([policy.update(obs, action), policy.sample(obs)])


def test_mbrcsl_imagines_episodes_on_the_device():
    agent, obs = moved(make(algorithm("mbrcsl"), CONTINUOUS)), on_device(torch.randn(8, 3))
    with strict():
        assert_on_device(agent.imagine(obs, 3, TERMINATIONS["Hopper"]))
