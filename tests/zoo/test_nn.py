"""Networks against NumPy loops, policies' densities against torch.distributions, SciPy and numeric integration."""

import numpy as np
import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from zoo.errors import UsageError
from zoo.nn import (
    GELU,
    MLP,
    CategoricalPolicy,
    DeterministicPolicy,
    DiscreteCritic,
    EnsembleCritic,
    EnsembleLinear,
    EnsembleMLP,
    GaussianPolicy,
    Mish,
    Normalizer,
    RunningNormalizer,
    TanhGaussian,
    encoder,
    fan_out_critic_,
    glorot_,
    network_for,
    orthogonal_,
    polyak_update,
)  # fmt: skip
from zoo.nn.layers import slope_of_mish
from zoo.spec import Spec

LOW, HIGH = (-0.5, -2.0), (3.0, -1.0)  # neither symmetric nor of unit width


def numpy_mlp(x: np.ndarray, layers: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Affine layers `x @ weight + bias` with ReLU between them."""
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight + bias
        if i < len(layers) - 1:
            x = np.maximum(x, 0)
    return x


def numpy_layers(mlp: MLP) -> list[tuple[np.ndarray, np.ndarray]]:
    linear = [layer for layer in mlp if isinstance(layer, torch.nn.Linear)]
    return [(layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in linear]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_mlp_is_affine_maps_with_relus_between_them():
    mlp = MLP(5, 2, [8, 7])
    x = torch.randn(11, 5)
    np.testing.assert_allclose(mlp(x).detach(), numpy_mlp(x.numpy(), numpy_layers(mlp)), rtol=1e-5, atol=1e-6)


def test_mlp_without_hidden_layers_is_linear():
    mlp = MLP(5, 2, [])
    x, y = torch.randn(2, 3, 5)
    torch.testing.assert_close(mlp(x + y) - mlp(y), mlp(x) - mlp(torch.zeros(5)))


def test_every_member_of_an_ensemble_is_its_own_mlp():
    ensemble = EnsembleMLP(3, 5, 2, [8, 7])
    x = torch.randn(11, 5)
    out = ensemble(x).detach().numpy()
    assert out.shape == (3, 11, 2)
    parameters = [parameter.detach().numpy() for parameter in ensemble.parameters()]
    for member in range(3):
        layers = [(parameters[i][member].T, parameters[i + 1][member, 0]) for i in range(0, len(parameters), 2)]
        np.testing.assert_allclose(out[member], numpy_mlp(x.numpy(), layers), rtol=1e-5, atol=1e-6)


def test_the_loss_of_one_member_moves_no_other():
    ensemble = EnsembleMLP(3, 5, 1, [8])
    ensemble(torch.randn(11, 5))[1].sum().backward()
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        assert (parameter.grad[[0, 2]] == 0).all()
        assert (parameter.grad[1] != 0).any()


def test_members_begin_apart_with_the_distribution_of_torchs_linear():
    inputs = 100
    ensemble = EnsembleMLP(2, inputs, 50, [])
    weight = ensemble[0].weight.detach().numpy()
    bound = 1 / np.sqrt(inputs)  # torch.nn.Linear's documented U(-1/sqrt(in), 1/sqrt(in))
    for member in weight:
        assert scipy.stats.kstest(member.ravel(), scipy.stats.uniform(-bound, 2 * bound).cdf).pvalue > 0.001
    assert abs(np.corrcoef(weight[0].ravel(), weight[1].ravel())[0, 1]) < 0.1


def test_tanh_gaussian_log_prob_is_that_of_the_transformed_normal():
    policy = TanhGaussian(4, LOW, HIGH, [8]).double()
    obs = torch.randn(64, 4, dtype=torch.float64)
    action, log_prob = policy.sample(obs)
    mean, log_std = policy(obs)
    low, high = torch.tensor(LOW, dtype=torch.float64), torch.tensor(HIGH, dtype=torch.float64)
    onto_bounds = AffineTransform((low + high) / 2, (high - low) / 2, event_dim=1)
    oracle = TransformedDistribution(Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(), onto_bounds])
    assert ((action > low) & (action < high)).all()
    torch.testing.assert_close(log_prob, oracle.log_prob(action), rtol=1e-6, atol=1e-6)


def test_tanh_gaussian_density_integrates_to_one_over_the_action_interval(monkeypatch):
    policy = TanhGaussian(1, LOW[:1], HIGH[:1], []).double()
    noise = torch.linspace(-8, 8, 100_001, dtype=torch.float64)[:, None]  # a grid of actions, from a grid of noise
    monkeypatch.setattr(torch, "randn_like", lambda _: noise)
    action, log_prob = policy.sample(torch.full_like(noise, 0.7))
    assert np.trapezoid(log_prob.exp().detach(), action[:, 0].detach()) == pytest.approx(1, abs=1e-6)


def test_tanh_gaussian_log_prob_stays_finite_where_tanh_saturates():
    policy = TanhGaussian(1, (-1.0,), (1.0,), [])
    with torch.no_grad():
        policy.net[-1].bias[0] = 50.0
    _, log_prob = policy.sample(torch.zeros(10, 1))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in policy.parameters())


def test_tanh_gaussian_mode_is_the_action_without_noise(monkeypatch):
    policy = TanhGaussian(4, LOW, HIGH, [8])
    obs = torch.randn(5, 4)
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    torch.testing.assert_close(policy.sample(obs)[0], policy.mode(obs))


@pytest.mark.parametrize(("log_std", "effective"), [(-0.3, -0.3), (-9.0, -5.0), (4.0, 2.0)])
def test_gaussian_policy_log_prob_is_scipys_in_the_units_of_the_action(log_std, effective):
    policy = GaussianPolicy(4, LOW, HIGH, [8]).double()
    policy.log_std.data.fill_(log_std)
    obs, action = torch.randn(6, 4).double(), torch.randn(6, 2).double()
    half_range = (np.array(HIGH) - np.array(LOW)) / 2
    oracle = scipy.stats.norm(policy.mode(obs).detach().numpy(), np.exp(effective) * half_range)
    np.testing.assert_allclose(policy.log_prob(obs, action).detach(), oracle.logpdf(action.numpy()).sum(-1), rtol=1e-6)


def test_gaussian_policy_samples_are_normal_and_clipped_to_the_bounds():
    policy = GaussianPolicy(1, LOW[:1], HIGH[:1], [])
    obs = torch.zeros(20_000, 1)
    sample = policy.sample(obs).detach().numpy()[:, 0]
    mean, std = policy.mode(obs[:1]).item(), (HIGH[0] - LOW[0]) / 2
    assert sample.min() == LOW[0]
    assert sample.max() == HIGH[0]
    inside = sample[(sample > LOW[0]) & (sample < HIGH[0])]
    truncated = scipy.stats.truncnorm((LOW[0] - mean) / std, (HIGH[0] - mean) / std, mean, std)
    assert scipy.stats.kstest(inside, truncated.cdf).pvalue > 0.001


def test_deterministic_policy_is_tanh_of_its_network_onto_the_bounds():
    policy = DeterministicPolicy(4, LOW, HIGH, [8])
    obs = torch.randn(6, 4)
    squashed = (np.tanh(numpy_mlp(obs.numpy(), numpy_layers(policy.net))) + 1) / 2  # 0 to 1
    expected = np.array(LOW) + squashed * (np.array(HIGH) - np.array(LOW))
    np.testing.assert_allclose(policy.mode(obs).detach(), expected, rtol=1e-5, atol=1e-6)


def test_polyak_moves_every_parameter_the_same_fraction_and_no_source():
    target, source = EnsembleMLP(2, 3, 1, [4]), EnsembleMLP(2, 3, 1, [4])
    before = [parameter.detach().numpy().copy() for parameter in target.parameters()]
    towards = [parameter.detach().numpy().copy() for parameter in source.parameters()]
    polyak_update(target, source, 0.1)
    for old, new, goal, now in zip(before, target.parameters(), towards, source.parameters(), strict=True):
        np.testing.assert_allclose(new.detach(), 0.9 * old + 0.1 * goal, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(now.detach(), goal)


def test_normalizer_begins_as_the_identity():
    x = torch.randn(5, 3)
    torch.testing.assert_close(Normalizer((3,))(x), x)


def test_normalizer_takes_mean_and_population_std_and_survives_a_constant_column():
    x = torch.randn(100, 3) * torch.tensor([5.0, 0.1, 0.0]) + torch.tensor([1.0, -2.0, 7.0])
    normalizer = Normalizer((3,))
    normalizer.fit(x)
    expected = (x.numpy() - x.numpy().mean(0)) / (x.numpy().std(0) + 1e-3)
    np.testing.assert_allclose(normalizer(x), expected, rtol=1e-4, atol=1e-4)
    loaded = Normalizer((3,))
    loaded.load_state_dict(normalizer.state_dict())
    assert torch.equal(loaded(x), normalizer(x))


@pytest.mark.parametrize("value", [101_325.4, 1_000_000.3])
def test_a_column_that_is_constant_at_a_large_value_is_normalized_to_0(value):
    x = torch.full((100_000, 2), value)
    x[:, 1] += torch.randn(100_000)
    normalizer, running = Normalizer((2,)), RunningNormalizer((2,))
    normalizer.fit(x)
    for part in x.split(2_000):
        running.update(part)
    for normalized in (normalizer(x), running(x)):
        assert normalized[:, 0].abs().max() < 1e-3
        assert normalized[:, 1].mean().abs() < 0.05
        assert 0.95 < normalized[:, 1].std() < 1.05


def test_normalizer_weighs_a_row_as_so_many_of_it(monkeypatch):
    monkeypatch.setattr("zoo.nn.normalizers.ROWS", 8)
    x, weights = torch.randn(20, 3) * 4 + 1, torch.randint(0, 4, (20,))
    weighted, repeated = Normalizer((3,)), Normalizer((3,))
    weighted.fit(x, 0.3 * weights)
    repeated.fit(x.repeat_interleave(weights, 0))
    torch.testing.assert_close(weighted(x), repeated(x))


@pytest.mark.parametrize(
    ("shape", "features"),
    [
        ((4, 84, 84), 512), ((3, 96, 64), 512), ((1, 36, 37), 512), ((6, 10, 10), 128), ((3, 7, 7), 128),
    ],
)  # fmt: skip
def test_frames_are_encoded_as_pixels_or_as_the_numbers_they_are(shape, features):
    frames = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    network, outputs = encoder(shape)
    assert outputs == features
    scaled = frames.float() / (255 if features == 512 else 1)
    expected = scaled
    for layer in network:
        expected = layer(expected)
    assert network(frames).shape == (5, features)
    torch.testing.assert_close(network(frames), expected)
    torch.testing.assert_close(network(scaled), expected)  # floats are already scaled


def test_a_vector_is_encoded_as_itself():
    network, outputs = encoder((7,))
    x = torch.randn(3, 7)
    assert outputs == 7
    assert torch.equal(network(x), x)


@pytest.mark.parametrize("shape", [(4, 35, 80), (3, 2, 7), (3, 17, 10), (96, 96, 3)])
def test_frames_of_an_unexpected_shape_are_refused(shape):
    with pytest.raises(UsageError, match=r"no network is known for frames of \[.*\]: there are some for"):
        encoder(shape)


def test_orthogonal_layers_have_orthogonal_rows_of_their_gain():
    network = MLP(32, 4, [16, 8], torch.nn.Tanh)
    orthogonal_(network, last_gain=0.01)
    for layer, gain in zip(list(network)[::2], (2**0.5, 2**0.5, 0.01), strict=True):
        products = layer.weight @ layer.weight.T
        torch.testing.assert_close(products, gain**2 * torch.eye(len(products)), rtol=0, atol=1e-5)
        assert not layer.bias.any()


@pytest.mark.parametrize("shape", [(), (3,)])
def test_running_statistics_are_those_of_all_that_was_seen(shape):
    normalizer, parts = RunningNormalizer(shape), [5 + 3 * torch.randn(n, *shape) for n in (1, 40, 7, 200)]
    assert torch.equal(normalizer(parts[1]), parts[1].clamp(-10, 10))  # no samples yet: unchanged
    for part in parts:
        normalizer.update(part)
    seen = torch.cat(parts)
    torch.testing.assert_close(normalizer.mean, seen.mean(0))
    torch.testing.assert_close(normalizer.std, seen.std(0, correction=0))
    torch.testing.assert_close(
        normalizer(seen), (seen - seen.mean(0)) / seen.std(0, correction=0), rtol=1e-4, atol=1e-4
    )
    assert normalizer(seen + 1e6).max() == 10


def test_running_statistics_of_what_is_constant_stay_after_many_updates():
    """The constant that is added to the variance must not become part of the variance itself."""
    normalizer, small = RunningNormalizer((2,)), 1e-3 * torch.randn(2_000, 5)
    for part in small:
        normalizer.update(torch.stack([torch.full((5,), 7.0), part], 1))
    torch.testing.assert_close(normalizer.std[0].item(), 1e-4, rtol=1e-3, atol=0)
    expected = (small.double().var(correction=0) + 1e-8).sqrt()
    torch.testing.assert_close(normalizer.std[1].double(), expected, rtol=1e-3, atol=0)


def test_edacs_critics_begin_with_weights_as_wide_as_a_layer_has_outputs():
    critic = fan_out_critic_(EnsembleCritic(50, 11, 3, [64, 256]))
    layers = [layer for layer in critic if isinstance(layer, EnsembleLinear)]
    for layer, bound in zip(layers, (1 / 8, 1 / 16, 3e-3), strict=True):
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        np.testing.assert_allclose(layer.weight.detach().std(), bound / 3**0.5, rtol=0.03)
    assert all((layer.bias == 0.1).all() for layer in layers[:-1])
    assert layers[-1].bias.abs().max() <= 3e-3


def test_glorots_weights_are_as_wide_as_both_sides_of_a_layer_ask_for_and_each_members_are_its_own():
    torch.manual_seed(0)
    critic = glorot_(EnsembleCritic(2, 5, 3, [300]))
    first = critic[0].weight.detach()  # [2, 300, 8]
    bound = (6 / (8 + 300)) ** 0.5
    assert first.abs().max() <= bound
    for member in first:
        assert float(member.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not torch.equal(*first)
    assert not critic[0].bias.any()


def test_actions_and_their_numbers_from_minus_1_to_1_are_each_others_inverse_and_clipped():
    policy = DeterministicPolicy(3, (-0.5, -2.0), (3.0, -1.0))
    x = torch.tensor([[-1.0, 1.0], [0.0, 0.5], [-7.0, 7.0]])
    action = policy.from_unit(x)
    torch.testing.assert_close(action, torch.tensor([[-0.5, -1.0], [1.25, -1.25], [-0.5, -1.0]]))
    torch.testing.assert_close(policy.to_unit(action), x.clamp(-1, 1))


# --- Discrete actions, frames -----------------------------------------------------------------------------------------

DISCRETE = Spec((3,), num_actions=4)
FRAMES = Spec((2, 6, 5), num_actions=4, obs_dtype="uint8")


def test_a_categorical_policy_is_the_softmax_of_its_network():
    policy, obs = CategoricalPolicy(DISCRETE, [16]).double(), torch.randn(5, 3, dtype=torch.float64)
    action = torch.tensor([0, 3, 1, 1, 2])
    logits = numpy_mlp(obs.numpy(), numpy_layers(policy.net))
    expected = scipy.special.log_softmax(logits, 1)
    np.testing.assert_allclose(policy.cloning_loss(obs, action).detach(), -expected[range(5), action], rtol=1e-9)
    np.testing.assert_array_equal(policy.mode(obs), logits.argmax(1))
    many = policy.sample(obs[:1].expand(20_000, 3))
    found = np.bincount(many, minlength=4) / 20_000
    np.testing.assert_allclose(found, np.exp(expected[0]), atol=0.015)


@pytest.mark.parametrize("outputs", [1, 7])
def test_discrete_critics_give_each_members_outputs_for_the_actions_taken(outputs):
    critic, obs = DiscreteCritic(3, DISCRETE, [16], outputs).double(), torch.randn(5, 3, dtype=torch.float64)
    action = torch.tensor([0, 3, 1, 1, 2])
    parameters = [parameter.detach().numpy() for parameter in critic.net.parameters()]
    found = critic(obs, action)
    assert found.shape == (3, 5, outputs)
    for m in range(3):
        hidden = np.maximum(obs.numpy() @ parameters[0][m].T + parameters[1][m], 0)
        values = hidden @ parameters[2][m].T + parameters[3][m]
        for i in range(5):
            first = outputs * int(action[i])
            np.testing.assert_allclose(found[m, i].detach(), values[i, first : first + outputs], rtol=1e-9)


def test_frames_pass_through_an_encoder_first():
    frames, action = torch.randint(0, 2, (5, 2, 6, 5), dtype=torch.uint8), torch.randint(0, 4, (5,))
    assert network_for(FRAMES, 3, [8])(frames).shape == (5, 3)
    assert CategoricalPolicy(FRAMES, [8]).mode(frames).shape == (5,)
    critic = DiscreteCritic(2, FRAMES, [8])
    assert critic(frames, action).shape == (2, 5, 1)
    features = critic.encoder(frames)
    torch.testing.assert_close(critic(frames, action)[1, 3, 0], critic.net(features)[1, 3, action[3]])


def test_observations_of_two_dimensions_are_vectors_to_a_network():
    spec, obs = Spec((5, 3), num_actions=4), torch.randn(7, 5, 3)
    net = network_for(spec, 2, [8])
    torch.testing.assert_close(net(obs), net[1](obs.flatten(1)))
    assert CategoricalPolicy(spec, [8]).mode(obs).shape == (7,)
    assert isinstance(network_for(Spec((5,), num_actions=4), 2, [8]), MLP)


def test_a_normalizer_leaves_bytes_as_they_are():
    normalizer, frames = Normalizer((2, 6, 5)), torch.randint(0, 255, (5, 2, 6, 5), dtype=torch.uint8)
    assert normalizer(frames) is frames


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize(("own", "pytorchs"), [(GELU(), gelu), (Mish(), F.mish)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6)])
@pytest.mark.parametrize("count", [10, 10_000])  # with one kernel and with several
def test_activations_and_their_gradients_are_pytorchs_for_numbers_of_any_size(own, pytorchs, dtype, tolerance, count):
    x = torch.cat([torch.linspace(-8, 8, count), torch.tensor([-1e4, -100.0, -30.0, 0.0, 19.99, 20.01, 100.0, 1e4])])
    x = x.to(dtype).requires_grad_()
    given = torch.autograd.grad(own(x).sum(), x)[0], torch.autograd.grad(pytorchs(x).sum(), x)[0]
    torch.testing.assert_close(own(x), pytorchs(x), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*given, rtol=tolerance, atol=tolerance)


def test_the_slope_of_mish_is_its_derivative():
    x = torch.cat([torch.linspace(-30, 30, 1_000), torch.tensor([-1e4, 1e4])]).double().requires_grad_()
    torch.testing.assert_close(slope_of_mish(x), torch.autograd.grad(F.mish(x).sum(), x)[0], rtol=1e-13, atol=1e-13)


def test_actions_stay_within_bounds_that_are_not_numbers_of_float32():
    tenths = [i / 10 for i in range(-30, 31)]
    pairs = [(low, high) for low in tenths for high in tenths if low < high]
    pairs += [(0.001, 5.0), (-1.0, 1e8), (1e8, 1e8 + 64), (-1e-3, 1e3)]
    low, high = zip(*pairs, strict=True)
    policy = DeterministicPolicy(3, low, high, [])
    extremes = torch.tensor([-1e30, -1.0, -0.3, 0.0, 0.7, 1.0, 1e30])[:, None].expand(-1, len(pairs))
    actions = [policy.squash(extremes), policy.from_unit(extremes), policy.clip(extremes)]
    for action in torch.cat([*actions, policy.perturb(actions[0], extremes)]).double():
        assert (torch.tensor(low, dtype=torch.float64) <= action).all()
        assert (action <= torch.tensor(high, dtype=torch.float64)).all()
    span = torch.tensor(high) - torch.tensor(low)
    reached = policy.clip(extremes[-1]) - policy.clip(extremes[0])
    torch.testing.assert_close(reached, span, rtol=2e-5, atol=0)
    plain = DeterministicPolicy(3, (-1.0, -2.0, 0.0), (1.0, 2.0, 1.0), [])
    assert (plain.center.tolist(), plain.scale.tolist()) == ([0, 0, 0.5], [1, 2, 0.5])
