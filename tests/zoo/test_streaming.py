"""The shared parts of the streaming algorithms, against the paper's pseudocode, plain networks and whole histories."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from zoo.errors import UsageError
from zoo.streaming import AdaptiveObGD, ObGD, RunningMoments, StreamNetwork, StreamNormalizer, TraceAdam, sparse


class Layered(nn.Module):
    """The same network made from PyTorch's layers."""

    def __init__(self, network: StreamNetwork) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        parts = iter(torch.split(network.weights.detach().clone(), network.sizes))
        for i, shape in enumerate(network.shapes):
            layer = nn.Linear(shape[1], shape[0])
            if len(shape) == 4:
                layer = nn.Conv2d(shape[1], shape[0], shape[2], network.strides[i])
            layer.weight.data, layer.bias.data = next(parts).reshape(shape), next(parts)
            self.layers.append(layer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output for one observation, without a batch dimension."""
        for i, layer in enumerate(self.layers):
            x = layer(x.flatten() if isinstance(layer, nn.Linear) else x)
            if i < len(self.layers) - 1:
                x = F.leaky_relu(F.layer_norm(x, x.size()))
        return x

    def flat(self) -> torch.Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters()])


@pytest.mark.parametrize("shape", [(5,), (4, 10, 10), (4, 84, 84), (3, 53, 96)])
def test_a_network_in_one_vector_computes_what_its_layers_do_one_observation_or_many(shape):
    torch.manual_seed(0)
    network = StreamNetwork(shape, 3, [16, 8], sparsity=0.5)
    plain, x = Layered(network), torch.randn(6, *shape)
    expected = torch.stack([plain(one) for one in x])
    torch.testing.assert_close(network(x), expected)
    torch.testing.assert_close(network(x[2]), expected[2])


@pytest.mark.parametrize("shape", [(1, 2, 5), (96, 96, 3), (3, 52, 96)])
def test_frames_that_no_network_is_known_for_are_refused(shape):
    with pytest.raises(UsageError, match="no network is known for frames of"):
        StreamNetwork(shape, 1, [16])


@pytest.mark.parametrize(
    ("inputs", "hidden", "learns"),
    [(5, [9], False), (5, [16], True), (12, [9], True), (12, [9, 9], False), (12, [16, 9], True), (5, [], True)],
)
def test_a_network_through_which_no_gradient_would_pass_is_refused(inputs, hidden, learns):
    if not learns:
        with pytest.raises(UsageError, match="two layers in a row would begin with zeros alone"):
            StreamNetwork((inputs,), 2, hidden)
        return
    network = StreamNetwork((inputs,), 2, hidden)
    network(torch.randn(inputs)).sum().backward()
    weights = torch.split(network.weights.grad, network.sizes)[::2]
    assert any(part.any() for part in weights)


@pytest.mark.parametrize("shape", [(32, 18), (16, 4, 3, 3), (7, 128)])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_every_output_begins_with_its_share_of_zeros_and_lecuns_uniform_for_the_rest(shape, sparsity):
    torch.manual_seed(0)
    weight = sparse(shape, sparsity).flatten(1)
    inputs = weight.shape[1]
    assert ((weight == 0).sum(1) == math.ceil(sparsity * inputs)).all()
    rest = weight[weight != 0]
    assert rest.abs().max() <= inputs**-0.5
    assert abs(rest.mean()) < 5 * inputs**-0.5 / math.sqrt(3 * len(rest))
    assert rest.std() == pytest.approx((3 * inputs) ** -0.5, rel=0.25)
    if 0 < sparsity < 1:
        assert len({tuple(row) for row in (weight == 0).tolist()}) > 1  # not the same inputs for all


def test_the_biases_begin_at_zero():
    assert all((part == 0).all() for part in torch.split(StreamNetwork((5,), 2, [16]).weights, [80, 16, 32, 2])[1::2])


# --- Optimizers -------------------------------------------------------------------------------------------------------


def pseudo_code(adaptive: bool, weights, gradients, deltas, lr, decay, kappa):
    """ObGD and adaptive ObGD as in the paper's pseudocode, one parameter at a time."""
    z, v = [0.0] * len(weights), [0.0] * len(weights)
    for t, (gradient, delta) in enumerate(zip(gradients, deltas, strict=True), 1):
        z = [decay * zi + gi for zi, gi in zip(z, gradient, strict=True)]
        direction = list(z)
        if adaptive:
            v = [0.999 * vi + 0.001 * (delta * zi) ** 2 for vi, zi in zip(v, z, strict=True)]
            direction = [zi / math.sqrt(vi / (1 - 0.999**t) + 1e-8) for zi, vi in zip(z, v, strict=True)]
        delta_bar = max(abs(delta), 1.0)
        m = lr * kappa * delta_bar * sum(abs(d) for d in direction)
        alpha = min(lr / m, lr) if m > 0 else lr
        weights = [wi + alpha * delta * di for wi, di in zip(weights, direction, strict=True)]
    return weights


@pytest.mark.parametrize(("optimizer", "adaptive"), [(ObGD, False), (AdaptiveObGD, True)])
@pytest.mark.parametrize(("lr", "kappa", "size"), [(1.0, 2.0, 1.0), (0.01, 3.0, 0.1), (1.0, 1.0, 30.0)])
def test_obgd_moves_the_weights_as_the_papers_pseudo_code_does(optimizer, adaptive, lr, kappa, size):
    rng = np.random.default_rng(0)
    network = StreamNetwork((4,), 1, [], sparsity=0).double()  # linear: its gradient is the input, and 1 for the bias
    gradients = np.hstack([size * rng.normal(size=(40, 4)), np.ones((40, 1))])
    deltas = rng.normal(size=40) * rng.choice([0.1, 5.0], 40)
    begin = network.weights.tolist()
    moved = optimizer(network, lr, 0.99 * 0.8, kappa).double()
    for gradient, delta in zip(gradients, deltas, strict=True):
        moved.step(network(torch.as_tensor(gradient[:-1]))[0], torch.as_tensor(delta))
    expected = pseudo_code(adaptive, begin, gradients, deltas, lr, 0.99 * 0.8, kappa)
    np.testing.assert_allclose(network.weights.detach(), expected, rtol=1e-9)


def test_the_classic_optimizer_is_torchs_adam_on_the_trace():
    torch.manual_seed(0)
    network = StreamNetwork((4,), 1, [], sparsity=0)
    theirs = network.weights.detach().clone().requires_grad_()
    adam, ours = torch.optim.Adam([theirs], lr=1e-3), TraceAdam(network, 1e-3, 0.8, 1.0)
    trace = torch.zeros(5)
    for _ in range(30):
        x, delta = torch.randn(4), torch.randn(())
        ours.step(network(x)[0], delta)
        trace = 0.8 * trace + torch.cat([x, torch.ones(1)])
        theirs.grad = -delta * trace
        adam.step()
    torch.testing.assert_close(network.weights.detach(), theirs.detach(), rtol=0, atol=1e-6)


numbers = st.floats(-1, 1, width=32, allow_subnormal=False)  # a run sets this flag, which stays set in its process


@settings(max_examples=200, deadline=None)
@given(
    inputs=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=20),
    delta=st.floats(-1e4, 1e4, allow_subnormal=False).filter(lambda d: abs(d) > 1e-3),
    kappa=st.floats(1, 5),
    decay=st.floats(0, 1, allow_subnormal=False),
)
def test_a_step_never_overshoots(inputs, delta, kappa, decay):
    """The effective step size, by how much of delta a step takes away, is at most 1 / kappa where gradients are bounded
    by 1: the target is approached from the side on which the value was."""
    network = StreamNetwork((3,), 1, [], sparsity=0).double()
    optimizer = ObGD(network, 1.0, decay, kappa).double()
    for x in inputs[:-1]:
        optimizer.step(network(torch.tensor(x, dtype=torch.float64))[0], torch.tensor(0.0, dtype=torch.float64))
    x = torch.tensor(inputs[-1], dtype=torch.float64)
    before = network(x)[0]
    optimizer.step(before, torch.tensor(delta, dtype=torch.float64))
    taken = float((network(x)[0] - before).detach()) / delta
    assert abs(taken) <= 1 / kappa + 1e-9


# --- Running statistics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "offset"), [((), 0.0), ((3,), 0.0), ((3,), 1e6), ((2, 4, 4), -5.0)])
def test_running_moments_are_those_of_the_whole_history(shape, offset):
    history = offset + np.random.default_rng(0).normal(size=(500, *shape))
    moments = RunningMoments(shape)
    np.testing.assert_allclose(moments.std(), np.ones(shape))  # no samples yet
    for x in history:
        moments.update(torch.as_tensor(x))
    np.testing.assert_allclose(moments.mean, history.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moments.std(), history.std(0, ddof=1), rtol=1e-6)


def test_normalization_is_by_running_statistics_and_the_time_goes_from_minus_to_plus_a_half():
    rng = np.random.default_rng(0)
    normalizer = StreamNormalizer((2,), 0.9)
    normalizer.time_limit.fill_(10)
    seen, sums = [], []
    for _episode in range(3):
        obs = rng.normal(3, 2, 2)
        seen.append(obs)
        x = normalizer.reset(torch.as_tensor(obs))
        assert x[-1] == -0.5
        total = 0.0
        for t in range(1, 11):
            obs, reward = rng.normal(3, 2, 2), rng.normal()
            seen.append(obs)
            total = 0.9 * total + reward  # only of this episode
            sums.append(total)
            scaled, x = normalizer.step(torch.tensor(reward), torch.as_tensor(obs))
            std = np.std(sums, ddof=1) if len(sums) > 1 else 1.0
            assert float(scaled) == pytest.approx(reward / std, rel=1e-5)
            expected = (obs - np.mean(seen, 0)) / np.std(seen, axis=0, ddof=1)
            np.testing.assert_allclose(x[:2], expected, rtol=1e-5, atol=1e-6)
            assert float(x[2]) == pytest.approx(t / 10 - 0.5)


def test_a_normalizer_with_everything_off_changes_nothing():
    normalizer = StreamNormalizer((2,), 0.9, time_feature=False, normalize_obs=False, scale_reward=False)
    obs = torch.tensor([3.0, -4.0])
    assert torch.equal(normalizer.reset(obs), obs)
    reward, x = normalizer.step(torch.tensor(7.0), 2 * obs)
    assert reward == 7
    assert torch.equal(x, 2 * obs)


@pytest.mark.parametrize(("shape", "expected"), [((2, 3), (7,)), ((4, 10, 10), (4, 10, 10)), ((5,), (6,))])
def test_vectors_get_the_time_and_frames_do_not(shape, expected):
    normalizer = StreamNormalizer(shape, 0.9)
    assert normalizer.shape == expected
    assert normalizer.reset(torch.randn(shape)).shape == expected
    assert normalizer(torch.randn(8, *shape), torch.zeros(8)).shape == (8, *expected)


def test_pictures_that_are_not_normalized_are_fractions_and_grids_are_as_they_are():
    for shape, expected in (((1, 84, 84), 0.8), ((1, 10, 10), 204.0)):
        normalizer = StreamNormalizer(shape, 0.9, normalize_obs=False)
        x = normalizer.reset(torch.full(shape, 204, dtype=torch.uint8))
        torch.testing.assert_close(x, torch.full(shape, expected))
