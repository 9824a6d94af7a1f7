"""Distances between states: what the embedding computes, and that it is always a quasimetric."""

import numpy as np
import pytest
import torch

from zoo.nn.goals import Quasimetric, length_normalize


def union(x: np.ndarray, y: np.ndarray) -> float:
    """The length of the union of the intervals [x_i, y_i], those with x_i < y_i, one joined to the next."""
    total, end = 0.0, -np.inf
    for low, high in sorted((a, b) for a, b in zip(x, y, strict=True) if a < b):
        total += max(0.0, high - max(low, end))
        end = max(end, high)
    return total


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_a_distance_mixes_the_mean_and_the_largest_union_of_intervals(ties):
    network = Quasimetric(3, [16], 24).double()
    with torch.no_grad():
        network.share.fill_(0.7)
    x, y = torch.randn(2, 50, 24, dtype=torch.float64)
    if ties:  # intervals that begin or end together, that touch, and that are empty
        x, y = (2 * x).round(), (2 * y).round()
    share = 1 / (1 + np.exp(-0.7))
    for distance, one, other in zip(network.between(x, y).tolist(), x.numpy(), y.numpy(), strict=True):
        unions = [union(a, b) for a, b in zip(one.reshape(3, 8), other.reshape(3, 8), strict=True)]
        np.testing.assert_allclose(distance, share * np.mean(unions) + (1 - share) * max(unions))


def test_the_gradient_of_a_distance_is_that_of_finite_differences():
    network = Quasimetric(3, [16], 24).double()
    x, y = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(network.between, (x, y))


def test_a_distance_is_a_quasimetric():
    torch.manual_seed(1)
    network = Quasimetric(3, [16], 64).double()
    a, b, c = torch.randn(3, 200, 3, dtype=torch.float64)
    assert (network(a, a) == 0).all()
    assert (network(a, c) <= network(a, b) + network(b, c) + 1e-12).all()
    assert (network(a, b) - network(b, a)).abs().max() > 0.01


def test_a_vector_without_a_direction_stays_where_it_is():
    assert (length_normalize(torch.zeros(2, 5)) == 0).all()


def test_vectors_on_the_sphere_keep_their_direction():
    x = torch.randn(20, 10, dtype=torch.float64)
    scaled = length_normalize(x)
    torch.testing.assert_close(scaled.square().sum(-1), torch.full((20,), 10.0, dtype=torch.float64))
    torch.testing.assert_close(torch.cosine_similarity(scaled, x), torch.ones(20, dtype=torch.float64))
