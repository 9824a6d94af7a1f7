"""RO2O: its terms against naive loops, its updates without them against EDAC's."""

import numpy as np
import pytest
import torch
from plain import shake
from torch.distributions import Normal, kl_divergence

import zoo
from zoo.algos import edac
from zoo.algos.ro2o import RO2O, Config
from zoo.data.batch import Batch
from zoo.runs.load import load_agent


def make(spec, **settings) -> RO2O:
    torch.manual_seed(1)
    agent = RO2O(spec, Config(hidden=[16, 16], num_critics=3, perturbations=4, **settings)).double()
    shake(agent.target_critic, agent.critic, agent.actor)
    return agent


def perturbations(agent, batch, radius) -> torch.Tensor:
    """The perturbations of the next call."""
    state = torch.get_rng_state()
    near = agent.perturbed(batch.obs, radius) - batch.obs
    torch.set_rng_state(state)
    return near


def test_perturbations_are_the_same_for_all_states_and_within_their_radius(spec, make_batch):
    agent, batch = make(spec), make_batch(0)
    d = agent.perturbed(batch.obs, 0.3) - batch.obs  # [n, B, obs]
    np.testing.assert_allclose(d, d[:, :1].expand_as(d), atol=1e-12)
    assert 0.2 < d.max() <= 0.3
    assert -0.3 <= d.min() < -0.2
    assert len(np.unique(d[:, 0].numpy().round(9))) == d[:, 0].numel()


def test_policy_is_smooth_in_the_worst_case_both_ways(spec, make_batch):
    agent, batch = make(spec, policy_radius=0.4), make_batch(0)
    torch.manual_seed(2)
    d = perturbations(agent, batch, 0.4)[:, 0]
    largest = []
    for obs in batch.obs:
        here = Normal(*(f(x) for f, x in zip((lambda m: m, torch.exp), agent.actor(obs), strict=True)))
        both = []
        for one in d:
            mean, log_std = agent.actor(obs + one)
            there = Normal(mean, log_std.exp())
            both.append((kl_divergence(here, there) + kl_divergence(there, here)).sum().item())
        largest.append(max(both))
    assert agent.policy_smoothness(batch).item() == pytest.approx(np.mean(largest), rel=1e-9)


def test_critics_are_smooth_in_the_worst_case_and_more_so_where_values_rise(spec, make_batch):
    agent, batch = make(spec, critic_radius=0.4, smooth_tau=0.2), make_batch(0)
    torch.manual_seed(2)
    d = perturbations(agent, batch, 0.4)[:, 0]
    largest = []
    for obs, action in zip(batch.obs, batch.action, strict=True):
        here = agent.critic(obs[None], action[None])[:, 0, 0]
        sizes = []
        for one in d:
            change = (agent.critic((obs + one)[None], action[None])[:, 0, 0] - here).tolist()
            sizes.append(np.mean([(0.8 if c > 0 else 0.2) * c * c for c in change]))
        largest.append(max(sizes))
    q = agent.critic(batch.obs, batch.action).squeeze(-1)
    assert agent.critic_smoothness(batch, q).item() == pytest.approx(np.mean(largest), rel=1e-9)


def test_what_the_policy_does_nearby_is_moved_down_by_the_critics_disagreement(spec, make_batch):
    agent, batch = make(spec, ood_radius=0.4, uncertainty=0.7), make_batch(0)
    q = agent.critic(batch.obs, batch.action)
    weight = agent.critic[0].weight
    torch.manual_seed(2)
    loss = agent.ood_loss(batch)
    (gradient,) = torch.autograd.grad(loss, weight)
    torch.manual_seed(2)
    near = agent.perturbed(batch.obs, 0.4)
    action = agent.actor.sample(near.flatten(0, 1))[0].detach()
    q = agent.critic(near.flatten(0, 1), action).squeeze(-1)
    spread = np.std(q.detach().numpy(), axis=0, ddof=1)
    assert loss.item() == pytest.approx(np.mean((0.7 * spread) ** 2), rel=1e-6)  # u is float32
    (expected,) = torch.autograd.grad((q * torch.from_numpy(2 * 0.7 * spread)).mean(), weight)  # same factor for each
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-14)


def test_uncertainty_falls_linearly_to_its_least(spec, make_batch):
    agent = make(spec, uncertainty=1.0, uncertainty_min=0.85, uncertainty_decay=0.05)
    seen = []
    for seed in range(5):
        agent.update(make_batch(seed))
        seen.append(round(agent.uncertainty().item(), 6))
    assert seen == [0.95, 0.9, 0.85, 0.85, 0.85]


def test_uncertainty_falls_by_as_much_as_it_should_in_float32(spec, make_batch):
    """The default, 5e-7, is not a multiple of 6e-8, the spacing of float32 numbers just below 1."""
    agent = RO2O(spec, Config(hidden=[8], num_critics=2, perturbations=1))
    batch = Batch(*(x.float() if x.is_floating_point() else x for x in make_batch(0)))
    for _ in range(200):
        agent.update(batch)
    assert 1 - agent.uncertainty().item() == pytest.approx(200 * 5e-7, rel=1e-3)


def test_without_the_terms_it_is_sac_with_many_critics(spec, make_batch):
    agent = make(spec, normalize_obs=False)
    other = edac.EDAC(spec, edac.Config(hidden=[16, 16], num_critics=3, eta=0)).double()
    state = {name: x for name, x in agent.state_dict().items() if name != "smoothed"}
    other.load_state_dict(state)
    for seed in range(3):
        torch.manual_seed(seed)
        agent.update(make_batch(seed), smooth=False)
        torch.manual_seed(seed)
        other.update(make_batch(seed))
    for name, x in other.state_dict().items():
        torch.testing.assert_close(agent.state_dict()[name], x, rtol=0, atol=0)


def test_a_run_that_starts_from_another_goes_on_with_its_uncertainty(pendulum_file, tmp_path):
    """The authors continue online at the uncertainty that the offline run had come to."""
    common = {
        "env": "pendulum", "eval_every": 100, "eval_episodes": 1, "logger": "none",
        "algo_config": {"hidden": [8], "batch_size": 8, "num_critics": 2, "smooth_online": True},
        "dataset": pendulum_file, "compile": False,
    }  # fmt: skip
    once = zoo.train("ro2o", steps=6, online_steps=4, run_dir=tmp_path / "once", **common)
    offline = zoo.train("ro2o", steps=6, run_dir=tmp_path / "offline", **common)
    online = zoo.train(
        "ro2o", steps=0, online_steps=4, init_from=str(offline.dir), run_dir=tmp_path / "online", **common
    )
    found = [int(load_agent(run.dir)[1].smoothed) for run in (once, offline, online)]
    assert found == [10, 6, 10]


def test_an_uncertainty_below_its_least_is_refused():
    with pytest.raises(ValueError, match=r"algo.uncertainty=0.05 falls to algo.uncertainty_min=0.1: give it more"):
        Config(uncertainty=0.05)
