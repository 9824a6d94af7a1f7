"""Adam against torch.optim.Adam; a compiled update against the eager one."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from zoo.algos import iql, sac
from zoo.data.batch import Batch
from zoo.nn import tracing
from zoo.nn.optim import Adam, linear
from zoo.runs.compilation import compile_update
from zoo.spec import Spec

SPEC = Spec((5,), (-1.0, -2.0), (1.0, 2.0))


def two_networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
    return network, copy.deepcopy(network)


def random_batch(size: int = 64) -> Batch:
    obs, next_obs = torch.randn(2, size, 5)
    action = torch.rand(size, 2) * 2 - 1
    return Batch(obs, action, torch.randn(size), next_obs, torch.rand(size) < 0.1, torch.arange(size))


@pytest.mark.parametrize(
    ("settings", "peer"),
    [
        ({}, torch.optim.Adam),
        ({"weight_decay": 0.1}, torch.optim.Adam),
        ({"weight_decay": 0.1, "decoupled": True}, torch.optim.AdamW),
    ],
)
def test_adam_moves_weights_as_torchs_fused_adam_does_to_the_last_bit(settings, peer) -> None:
    ours, theirs = two_networks()
    adam = Adam(ours.parameters(), 1e-3, **settings)
    reference = peer(theirs.parameters(), lr=1e-3, weight_decay=settings.get("weight_decay", 0.0), fused=True)
    for _ in range(50):
        x = torch.randn(8, 5)
        adam.minimize(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("settings", "peer"),
    [
        ({"eps": 0.01}, torch.optim.Adam),
        ({"eps": 0.01, "weight_decay": 0.1}, torch.optim.Adam),
        ({"eps": 0.01, "weight_decay": 0.1, "decoupled": True}, torch.optim.AdamW),
    ],
    ids=["plain", "coupled", "decoupled"],
)
def test_the_formula_that_is_compiled_takes_torchs_steps(settings, peer) -> None:
    ours, theirs = two_networks()
    adam, begun = Adam(ours.parameters(), 1e-2, **settings), {"weight_decay": 0.0} | settings
    reference = peer(theirs.parameters(), lr=1e-2, eps=begun["eps"], weight_decay=begun["weight_decay"])
    for _ in range(20):
        x = torch.randn(8, 5)
        with tracing.tracing():
            adam.minimize(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_gradients_of_any_layout_move_their_own_weights(max_norm) -> None:
    torch.manual_seed(0)
    ours = nn.Conv2d(3, 4, 3)
    theirs = copy.deepcopy(ours)
    adam = Adam(ours.parameters(), 1e-3, max_norm=max_norm)
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-3)
    for _ in range(5):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
        (gradient, _) = torch.autograd.grad(ours(x).square().sum(), list(ours.parameters()))
        assert gradient.stride() != ours.weight.stride()
        adam.minimize(ours(x).square().sum())
        reference.zero_grad()
        theirs(x).square().sum().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or math.inf)
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def test_learning_rate_falls_to_zero_by_a_cosine() -> None:
    weight = nn.Parameter(torch.zeros(()))
    adam = Adam([weight], 0.1, decay_steps=10)
    places = [0.0]
    for _ in range(12):
        adam.minimize(weight * 3.0)  # a constant gradient: Adam moves by exactly the learning rate
        places.append(weight.item())
    moves = [before - after for before, after in itertools.pairwise(places)]
    expected = [0.1 * 0.5 * (1 + math.cos(math.pi * min(step, 10) / 10)) for step in range(12)]
    assert moves == pytest.approx(expected, abs=1e-6)


def test_minimize_leaves_no_gradient_in_the_networks_that_a_loss_passes_through() -> None:
    actor, critic = nn.Linear(5, 2), nn.Linear(2, 1)
    before = critic.weight.clone()
    Adam(actor.parameters(), 1e-2).minimize(critic(actor(torch.randn(4, 5))).sum())
    assert critic.weight.grad is None
    assert torch.equal(critic.weight, before)


def test_a_copy_from_a_state_dict_goes_on_as_the_original() -> None:
    torch.manual_seed(0)
    agent = sac.SAC(SPEC, sac.Config(hidden=[8]))
    for _ in range(3):
        agent.update(random_batch())
    other = sac.SAC(SPEC, sac.Config(hidden=[8]))
    other.load_state_dict(agent.state_dict())
    batch, state = random_batch(), torch.get_rng_state()
    agent.update(batch)
    torch.set_rng_state(state)
    other.update(batch)
    for p, q in zip(agent.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.slow
def test_a_compiled_update_takes_the_steps_of_the_eager_one() -> None:
    torch.manual_seed(0)
    eager = iql.IQL(SPEC, iql.Config(hidden=[32, 32]), total_steps=100)
    compiled = copy.deepcopy(eager)
    for adam in (compiled.value_optimizer, compiled.critic_optimizer, compiled.actor_optimizer):
        assert all(id(p) in {id(q) for q in compiled.parameters()} for p in adam.moved)
    update = compile_update(compiled.update)
    for _ in range(10):
        batch = random_batch()
        expected, metrics = eager.update(batch), update(batch)
        for name, value in expected.items():
            torch.testing.assert_close(metrics[name], value, rtol=1e-3, atol=1e-4)
    for p, q in zip(eager.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("max_norm", [0.05, 100.0])
def test_gradients_are_scaled_down_to_a_norm_as_torch_does_and_the_rate_falls_linearly(max_norm) -> None:
    ours, theirs = two_networks()
    adam = Adam(ours.parameters(), 1e-2, decay_steps=40, decay=linear, eps=1e-5, max_norm=max_norm)
    reference = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-5)
    for step in range(30):
        x = torch.randn(8, 5)
        adam.minimize(ours(x).square().mean())
        reference.zero_grad()
        theirs(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        reference.param_groups[0]["lr"] = 1e-2 * (1 - step / 40)
        reference.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
