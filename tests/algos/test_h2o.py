"""H2O: its ratio and losses against naive loops, and a known density ratio."""

import copy
import importlib
import math

import h5py
import numpy as np
import pytest
import torch
from plain import assert_close, step
from torch.nn import functional as F

import zoo
from zoo.algos.h2o import H2O, Config
from zoo.data.batch import Batch
from zoo.errors import UsageError
from zoo.spec import Spec


def make(spec, **settings) -> H2O:
    torch.manual_seed(1)
    agent = H2O(spec, Config(hidden=[16, 16], input_noise=0, **settings)).double()
    with torch.no_grad():  # targets that differ from the critics, ratios that differ from one
        for network in (agent.target_critic, agent.critic, agent.of_action, agent.of_step):
            for parameter in network.parameters():
                parameter.add_(0.4 * torch.randn_like(parameter))
    return agent


def halves(batch: Batch) -> tuple[Batch, Batch]:
    """A batch of transitions from the dataset, and one from the simulator."""
    split = len(batch.reward) // 2
    return Batch(*(x[:split] for x in batch)), Batch(*(x[split:] for x in batch))


def ratio(agent, obs, action, next_obs) -> list[float]:
    """Eq. 9 from the probabilities of both discriminators."""
    of_action = agent.of_action(obs, action)
    action_probs = of_action.softmax(-1).tolist()
    step_probs = (agent.of_step(obs, action, next_obs) + of_action).softmax(-1).tolist()
    return [s[0] * a[1] / (s[1] * a[0]) for a, s in zip(action_probs, step_probs, strict=True)]


def test_ratio_is_that_of_the_discriminators_probabilities(spec, make_batch):
    agent, (_, simulated) = make(spec), halves(make_batch(0))
    expected = ratio(agent, simulated.obs, simulated.action, simulated.next_obs)
    got = agent.log_ratio(simulated.obs, simulated.action, simulated.next_obs).exp()
    np.testing.assert_allclose(got.detach(), expected)
    assert min(expected) < 0.9
    assert max(expected) > 1.1
    np.testing.assert_allclose(agent.weight(simulated), np.clip(expected, 1e-5, 1))


def test_difference_is_the_mean_of_the_log_ratio_around_next_states(spec, make_batch):
    agent, (_, simulated) = make(spec, next_states=3), halves(make_batch(0))
    agent.obs_std.copy_(torch.linspace(0.5, 2, len(agent.obs_std)))
    torch.manual_seed(5)
    got = agent.difference(simulated)
    torch.manual_seed(5)
    noise = torch.randn(3, *simulated.next_obs.shape, dtype=torch.float64)
    logs = [
        [-math.log(r) for r in ratio(agent, simulated.obs, simulated.action, simulated.next_obs + agent.obs_std * n)]
        for n in noise
    ]
    expected = np.mean(logs, 0)
    np.testing.assert_allclose(got, np.clip(expected, torch.finfo(torch.float64).tiny, 10))
    assert expected.min() < 0 < expected.max()


def test_discriminators_minimize_the_cross_entropy_of_both_kinds(spec, make_batch):
    agent, batch = make(spec), make_batch(0)
    split = len(batch.reward) // 2
    expected = 0.0
    for (obs, action, next_obs), kind in zip(
        zip(batch.obs, batch.action, batch.next_obs, strict=True), [0] * split + [1] * split, strict=True
    ):
        of_action = agent.of_action(obs, action)
        for logits in (of_action, agent.of_step(obs, action, next_obs) + of_action):
            expected += F.cross_entropy(logits, torch.tensor(kind)).item() / split
    assert agent.discriminator_loss(batch, split).item() == pytest.approx(expected, rel=1e-12)


def test_discriminators_see_transitions_with_noise_of_which_ratio_and_policy_see_nothing(spec, make_batch):
    agent, batch = make(spec), make_batch(0)
    split = len(batch.reward) // 2
    agent.config.input_noise = 0.5
    torch.manual_seed(3)
    found = agent.discriminator_loss(batch, split).item()
    torch.manual_seed(3)
    noisy = batch._replace(obs=batch.obs + 0.5 * torch.randn(batch.obs.shape, dtype=torch.float64))
    noisy = noisy._replace(action=batch.action + 0.5 * torch.randn(batch.action.shape, dtype=torch.float64))
    noisy = noisy._replace(next_obs=batch.next_obs + 0.5 * torch.randn(batch.next_obs.shape, dtype=torch.float64))
    seen = agent.weight(batch), agent.act(batch.obs)
    agent.config.input_noise = 0.0
    assert found == pytest.approx(agent.discriminator_loss(noisy, split).item(), rel=1e-12)
    assert abs(found - agent.discriminator_loss(batch, split).item()) > 1e-3
    for with_noise, without in zip(seen, (agent.weight(batch), agent.act(batch.obs)), strict=True):
        assert torch.equal(with_noise, without)


@pytest.mark.parametrize(("penalty", "weighted"), [(0.01, True), (0.0, True), (0.5, False)])
def test_critic_loss_weighs_what_is_simulated_and_pushes_down_where_dynamics_differ(
    spec, make_batch, penalty, weighted
):
    agent, batch = make(spec, penalty=penalty, weighted=weighted), make_batch(2)
    split = len(batch.reward) // 2
    true, simulated = halves(batch)
    torch.manual_seed(3)
    loss, metrics = agent.critic_loss(batch, split)
    torch.manual_seed(3)
    next_action, _ = agent.actor.sample(batch.next_obs)
    next_q = agent.target_critic(batch.next_obs, next_action)[..., 0]
    target = batch.reward + 0.99 * ~batch.terminated * torch.minimum(next_q[0], next_q[1])
    weight = ratio(agent, simulated.obs, simulated.action, simulated.next_obs)
    weight = np.clip(weight, 1e-5, 1) if weighted else np.ones(split)
    u = agent.difference(simulated)
    expected = 0.0
    for i in range(2):
        errors = (agent.critic(batch.obs, batch.action)[i, :, 0] - target).square().tolist()
        expected += np.mean(errors[:split]) + np.mean(weight * errors[split:])
        pushed = agent.critic(simulated.obs, simulated.action)[i, :, 0]
        omega = u / u.sum()
        gap = math.log(sum(o * math.exp(q) for o, q in zip(omega.tolist(), pushed.tolist(), strict=True)))
        expected += penalty * (gap - agent.critic(true.obs, true.action)[i].mean().item())
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert metrics["weight"].item() == pytest.approx(np.mean(weight))


@pytest.mark.parametrize("value", [1e6, -1e6])
def test_what_the_critics_are_pushed_for_is_at_most_1000_in_size(spec, make_batch, value):
    agent, batch = make(spec, penalty=0.5), make_batch(2)
    split = len(batch.reward) // 2
    q = torch.full((2, len(batch.reward), 1), value).double()
    q[:, :split] = 0  # of the true transitions
    agent.critic.forward = lambda obs, action: q
    torch.manual_seed(3)
    with_penalty, _ = agent.critic_loss(batch, split)
    agent.config.penalty = 0.0
    torch.manual_seed(3)
    without, _ = agent.critic_loss(batch, split)
    assert (with_penalty - without).item() == pytest.approx(0.5 * 2 * math.copysign(1000, value), rel=1e-3)


def test_the_discriminators_logits_lie_within_2(spec):
    agent = make(spec)
    logits = agent.of_action(1e4 * torch.randn(50, len(agent.obs_std)).double(), torch.zeros(50, spec.action_dim))
    assert 1.9 < logits.abs().max() <= 2


def test_discriminators_learn_a_ratio_of_densities_that_is_known():
    """If true next states are N(a, 1) and simulated ones N(a + 1, 1), then log p / p_sim = 1/2 - (s' - a)."""
    torch.manual_seed(0)
    agent = H2O(Spec((1,), (-1.0,), (1.0,)), Config(hidden=[32, 32], input_noise=0, discriminator_lr=3e-3))
    for _ in range(600):
        obs, action = torch.randn(512, 1), 2 * torch.rand(512, 1) - 1
        next_obs = action + torch.randn(512, 1) + (torch.arange(512) >= 256)[:, None]
        batch = Batch(obs, action, torch.zeros(512), next_obs, torch.zeros(512, dtype=torch.bool), torch.arange(512))
        agent.discriminator_optimizer.minimize(agent.discriminator_loss(batch, 256))
    shift = torch.linspace(-1.0, 2.0, 13)[:, None]
    action = torch.zeros_like(shift)
    error = agent.log_ratio(torch.zeros_like(shift), action, action + shift) - (0.5 - shift[:, 0])
    assert error.abs().max() < 0.4


def test_trains_in_a_simulator_that_is_wrong_and_is_evaluated_in_the_true_one(tmp_path, monkeypatch):
    making, made = importlib.import_module("zoo.envs.make"), []
    original = making.changed

    def watched(env, config, training):
        env = original(env, config, training)
        made.append((training, env.unwrapped.model.opt.gravity[2]))
        return env

    monkeypatch.setattr(making, "changed", watched)
    run = zoo.train(
        "h2o", env="hopper", **{"env.gravity": 2.0, "env.changed_in": "training"}, dataset="demo",
        steps=12, eval_every=12, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config={"hidden": [8], "batch_size": 8, "learning_starts": 4},
    )  # fmt: skip
    assert {gravity for training, gravity in made if training} == {-19.62}
    assert {gravity for training, gravity in made if not training} == {-9.81}
    state = torch.load(run.dir / "checkpoint.pt", weights_only=True)
    assert (state["tracked"]["agent"]["obs_std"] != 1).all()


def test_data_without_successors_of_terminal_steps_are_refused(tmp_path):
    rng, ends = np.random.default_rng(0), np.arange(40) % 10 == 9
    with h5py.File(tmp_path / "old.hdf5", "w") as file:
        file["observations"], file["actions"] = rng.standard_normal((40, 11)), rng.uniform(-1, 1, (40, 3))
        file["rewards"], file["terminals"], file["timeouts"] = np.ones(40), ends, np.zeros(40, bool)
    with pytest.raises(UsageError, match="the dataset lacks those of 4 terminal steps"):
        zoo.train(
            "h2o", env="hopper", dataset=str(tmp_path / "old.hdf5"), steps=12, logger="none", run_dir=tmp_path / "run",
            algo_config={"hidden": [8], "batch_size": 8, "learning_starts": 4},
        )  # fmt: skip


def test_a_share_of_zero_is_refused():
    with pytest.raises(
        (ValueError, UsageError), match=r"offline_fraction=0.* it learns from a dataset and from a simul"
    ):
        Config(offline_fraction=0)


def test_an_update_moves_the_discriminators_first_and_then_all_others_from_the_same_weights(spec, make_batch):
    agent, batch = make(spec, offline_fraction=0.25), make_batch(0)
    other = copy.deepcopy(agent)
    torch.manual_seed(0)
    metrics = agent.update(batch)
    torch.manual_seed(0)
    discriminators = [*other.of_action.parameters(), *other.of_step.parameters()]
    step(torch.optim.Adam(discriminators, 3e-4), other.discriminator_loss(batch, 8))  # 8 of 32 are of the dataset
    actor_loss, log_prob = other.actor_loss(batch)
    critic_loss, _ = other.critic_loss(batch, 8)
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss.item(), rel=1e-9)
    assert metrics["actor_loss"].item() == pytest.approx(actor_loss.item(), rel=1e-9)
    parts = ((other.actor, actor_loss), (other.critic, critic_loss))
    moves = [([*net.parameters()], torch.autograd.grad(loss, [*net.parameters()])) for net, loss in parts]
    moves.append(([other.log_alpha], torch.autograd.grad(other.alpha_loss(log_prob), [other.log_alpha])))
    for parameters, gradients in moves:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.optim.Adam(parameters, 3e-4).step()
    with torch.no_grad():
        for target, source in zip(other.target_critic.parameters(), other.critic.parameters(), strict=True):
            target.lerp_(source, 0.005)
    assert_close(agent.parameters(), other.parameters())
