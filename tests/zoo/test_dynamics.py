"""The dynamics ensemble: its likelihood, its members, its training, and when imagined episodes end."""

import copy

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal

from zoo.data.arrays import Arrays
from zoo.data.dataset import Dataset
from zoo.errors import RunError, UsageError
from zoo.models.dynamics import EnsembleDynamics, termination_of
from zoo.spec import Spec

CPU = torch.device("cpu")
NOISE = 0.1  # standard deviation of every outcome in `linear_data`


def linear_data(size: int = 2_000, seed: int = 0) -> Dataset:
    """`s' = s + (0.5 s2 + a1, a2 - 0.5 s1) + noise`, rewarded by `s1 - a1` and noise."""
    rng = np.random.default_rng(seed)
    obs, action = rng.normal(size=(2, size, 2)).astype(np.float32)
    noise = NOISE * rng.normal(size=(size, 3)).astype(np.float32)
    change = np.stack([0.5 * obs[:, 1] + action[:, 0], action[:, 1] - 0.5 * obs[:, 0]], 1) + noise[:, :2]
    truncated = np.zeros(size, bool)
    truncated[99::100] = True
    return Dataset(
        Arrays(obs, action, obs[:, 0] - action[:, 0] + noise[:, 2], obs + change, np.zeros(size, bool), truncated),
        Spec((2,), (-9.0, -9.0), (9.0, 9.0)),
        CPU,
    )


@pytest.fixture
def model() -> EnsembleDynamics:
    torch.manual_seed(0)
    return EnsembleDynamics(3, 2, [16, 16, 16, 16], members=4, elites=2)


@pytest.fixture(scope="module")
def learned() -> EnsembleDynamics:
    torch.manual_seed(0)
    model = EnsembleDynamics(2, 2, [32, 32, 32, 32], members=4, elites=2)
    model.prepare(linear_data(), seed=0)
    for _ in range(250):
        model.epoch()
    model.finish()
    return model


def test_loss_is_the_gaussian_likelihood_with_decay_and_the_width_of_the_bounds(model):
    x, target = torch.randn(4, 8, 5), torch.randn(4, 8, 4)
    mean, log_var = model.predict(model.net, x)
    log_prob = Normal(mean, (0.5 * log_var).exp()).log_prob(target)
    likelihood = (-2 * log_prob - np.log(2 * np.pi)).mean((1, 2)).sum()
    weights = [parameter for name, parameter in model.net.named_parameters() if name.endswith("weight")]
    rates = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    decay = sum(0.5 * rate * (weight**2).sum() for rate, weight in zip(rates, weights, strict=True))
    bounds = 0.01 * (model.max_log_var.sum() - model.min_log_var.sum())
    torch.testing.assert_close(model.loss(x, target), likelihood + decay + bounds, rtol=1e-5, atol=1e-5)


def test_log_variances_stay_between_their_bounds_and_are_themselves_well_inside(model):
    class Given(torch.nn.Module):
        def forward(self, x):
            return x

    for value, low, high in ((1e3, 0.49, 0.5), (-1e3, -10.0, -9.99), (-5.0, -5.02, -4.98)):
        _, log_var = model.predict(Given(), torch.full((4, 1, 8), value))
        assert ((log_var >= low) & (log_var <= high + 1e-4)).all()


def test_members_do_not_know_of_each_other(model):
    obs, action = torch.randn(5, 3), torch.randn(5, 2)
    before, _ = model(obs, action)
    with torch.no_grad():
        for parameter in model.net.parameters():
            parameter[2] += 1
    after, _ = model(obs, action)
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, False, True]


def test_what_is_held_out_is_learned_from_by_no_member():
    model, data = EnsembleDynamics(2, 2, [8] * 4, members=3, elites=1), linear_data(1_000)
    model.prepare(data, seed=3)
    assert len(model.held_out) == 200
    assert not torch.isin(model.bootstrap, model.held_out).any()
    assert model.bootstrap.shape == (3, 800)
    assert len({tuple(sample.tolist()) for sample in model.bootstrap}) == 3
    again = EnsembleDynamics(2, 2, [8] * 4, members=3, elites=1)
    again.prepare(data, seed=3)
    assert torch.equal(again.bootstrap, model.bootstrap)
    again.prepare(linear_data(6_000), seed=3)
    assert len(again.held_out) == 1_000  # the maximum


def test_an_input_that_never_varies_is_0_and_does_no_harm():
    model, data = EnsembleDynamics(2, 2, [8] * 4, members=2, elites=1), linear_data(300)
    data.obs[:, 1] = 3
    model.prepare(data, seed=0)
    assert (model.x[:, 1] == 0).all()
    assert model.epoch()["loss"].isfinite()


def test_a_terminal_step_whose_successor_is_not_known_is_not_learned_from():
    model, data = EnsembleDynamics(2, 2, [8] * 4, members=3, elites=1), linear_data(1_000)
    data.terminated[:100] = True
    data.next_obs[:50] = data.obs[:50]
    model.prepare(data, seed=3)
    learned = torch.cat([model.held_out, model.bootstrap.flatten()])
    assert len(model.held_out) == 190
    assert learned.min() >= 50
    assert torch.isin(torch.arange(50, 100), learned).any()


def test_learns_the_outcome_and_how_sure_it_can_be(learned):
    data = linear_data(500, seed=1)
    mean, log_var = (x[learned.elites].mean(0) for x in learned(data.obs, data.action))
    truth = torch.cat([data.next_obs - data.obs, data.reward[:, None]], 1)
    error = (mean - truth).square().mean(0)
    assert (error < 1.5 * NOISE**2).all()
    assert ((0.5 * log_var).exp().mean(0) - NOISE).abs().max() < 0.3 * NOISE


def test_elites_are_the_members_with_the_least_held_out_error(learned):
    mean, _ = learned.predict(learned.net, learned.x[learned.held_out])
    error = (mean - learned.target[learned.held_out]).square().mean((1, 2))
    torch.testing.assert_close(error, learned.least_error)  # each member has its best weights again
    assert set(learned.elites.tolist()) == set(error.argsort()[:2].tolist())


def test_training_ends_after_five_epochs_without_improvement():
    torch.manual_seed(0)
    model = EnsembleDynamics(2, 2, [8] * 4, members=2, elites=1)
    model.prepare(linear_data(300), seed=0)
    epochs_since, least = 0, np.full(2, np.inf)
    while not model.converged:
        model.epoch()
        mean, _ = model.predict(model.net, model.x[model.held_out])
        error = (mean - model.target[model.held_out]).square().mean((1, 2)).detach().numpy()
        improved = error < 0.99 * least
        least = np.where(improved, error, least)
        epochs_since = 0 if improved.any() else epochs_since + 1
        assert int(model.stale) == epochs_since
    assert epochs_since == 5


def test_a_step_draws_one_elites_gaussian(learned):
    obs, action = torch.tensor([[0.5, -0.5]]), torch.tensor([[0.3, 0.2]])
    torch.manual_seed(0)
    next_obs, reward, unsure = learned.step(obs.expand(20_000, 2), action.expand(20_000, 2))
    mean, log_var = (x[:, 0] for x in learned(obs, action))
    chosen, variance = mean[learned.elites], log_var[learned.elites].exp()
    drawn = torch.cat([next_obs - obs, reward[:, None]], 1)
    expected = variance.mean(0) + chosen.var(0, correction=0)
    assert ((drawn.mean(0) - chosen.mean(0)).abs() < 4 * (expected / 20_000).sqrt()).all()
    torch.testing.assert_close(drawn.var(0), expected, rtol=0.05, atol=0)
    torch.testing.assert_close(unsure[0], (0.5 * log_var).exp().norm(dim=1).max())


def test_a_model_that_learned_nothing_is_refused():
    model = EnsembleDynamics(2, 2, [8] * 4, members=2, elites=1)
    model.prepare(linear_data(300), seed=0)
    with pytest.raises(RunError, match="learned nothing"):
        model.finish()  # before any epoch


def test_a_model_that_diverges_says_what_to_change():
    torch.manual_seed(0)
    model = EnsembleDynamics(2, 2, [8] * 4, members=2, elites=1, lr=1e10)
    model.prepare(linear_data(300), seed=0)
    with pytest.raises(RunError, match=r"diverged.*algo\.dynamics_lr"):
        [model.epoch() for _ in range(20)]


@pytest.mark.parametrize(
    ("settings", "words"), [({"elites": 8}, r"algo\.elites=8"), ({"hidden": [8, 8]}, r"algo\.dynamics_hidden=\[8, 8\]")]
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(UsageError, match=words):
        EnsembleDynamics(**({"obs_dim": 3, "action_dim": 1, "hidden": [8] * 4} | settings))


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5"])
def test_episodes_end_where_the_task_itself_ends_them(env_id):
    env = gymnasium.make(env_id)
    env.action_space.seed(0)
    next_obs, ended = [], []
    for seed in range(25):
        env.reset(seed=seed)
        over, steps = False, 0
        while not over and steps < 200:
            obs, _, over, *_ = env.step(env.action_space.sample())
            next_obs.append(obs)
            ended.append(over)
            steps += 1
    assert any(ended)
    data = linear_data(100)
    said = termination_of(env_id, {}, data)(torch.from_numpy(np.array(next_obs)).float())
    assert said.tolist() == ended


def at(env_id: str, **values: float) -> list[float]:
    """An observation at rest, except for some numbers."""
    space = gymnasium.make(env_id).observation_space
    obs = [0.0] * space.shape[0]
    obs[0] = {"Hopper-v5": 1.25, "Walker2d-v5": 1.25, "Ant-v5": 0.75, "Humanoid-v5": 1.4}.get(env_id, 0.0)
    for place, value in values.items():
        obs[int(place[1:])] = value
    return obs


@pytest.mark.parametrize(
    ("env_id", "place", "inside", "outside"),
    [
        ("Hopper-v5", "_0", 0.71, 0.69),
        ("Hopper-v5", "_1", 0.19, 0.21),
        ("Hopper-v5", "_1", -0.19, -0.21),
        ("Hopper-v5", "_4", 99.0, 101.0),
        ("Hopper-v5", "_7", -99.0, -101.0),
        ("Walker2d-v5", "_0", 0.81, 0.79),
        ("Walker2d-v5", "_0", 1.99, 2.01),
        ("Walker2d-v5", "_1", 0.99, 1.01),
        ("Walker2d-v5", "_1", -0.99, -1.01),
        ("Walker2d-v5", "_9", -99.0, -101.0),
        ("HalfCheetah-v5", "_0", 99.0, 101.0),
        ("HalfCheetah-v5", "_0", -99.0, -101.0),
        ("HalfCheetah-v5", "_16", 99.0, 101.0),
        ("Ant-v5", "_0", 0.21, 0.19),
        ("Ant-v5", "_0", 0.99, 1.01),
        ("Humanoid-v5", "_0", 1.01, 0.99),
        ("Humanoid-v5", "_0", 1.99, 2.01),
        ("InvertedPendulum-v5", "_1", 0.19, 0.21),
        ("InvertedPendulum-v5", "_1", -0.19, -0.21),
    ],
)
def test_each_bound_of_a_task_ends_its_episodes(env_id, place, inside, outside):
    rule = termination_of(env_id, {}, linear_data(100))
    obs = torch.tensor([at(env_id), at(env_id, **{place: inside}), at(env_id, **{place: outside})])
    assert rule(obs).tolist() == [False, False, True]


def test_where_no_transition_terminates_nothing_ends_an_episode_and_else_a_rule_is_needed():
    data = linear_data(100)
    assert not termination_of("Pendulum-v1", {}, data)(torch.randn(7, 3)).any()
    data = copy.copy(data)
    data.terminated = torch.ones(100, dtype=torch.bool)
    with pytest.raises(UsageError, match="does not know when"):
        termination_of("MyOwn-v0", {}, data)


def test_arguments_of_a_task_may_change_when_it_ends():
    arguments, data = {"terminate_when_unhealthy": False}, linear_data(100)
    lying = torch.tensor([at("Hopper-v5", _0=0.1)])
    assert termination_of("Hopper-v5", {}, data)(lying).all()
    assert not termination_of("Hopper-v5", arguments, data)(lying).any()
    data = copy.copy(data)
    data.terminated = torch.ones(100, dtype=torch.bool)
    with pytest.raises(UsageError, match=r"does not know when.* as they are made by default"):
        termination_of("Hopper-v5", {"healthy_z_range": (0.5, 2.0)}, data)
