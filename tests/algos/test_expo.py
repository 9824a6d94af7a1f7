"""EXPO: candidates, their selection and losses against naive loops over samples."""

import copy
import math

import pytest
import torch

import zoo
from tests.algos.examples import batch_for
from zoo.algos.expo import EXPO, Config
from zoo.spec import Spec

SPEC = Spec((3,), (-2.0, -0.5), (2.0, 0.5))
SCALE = torch.tensor([2.0, 0.5])


def make(**settings):
    torch.manual_seed(0)
    config = {"hidden": [16], "flow_steps": 4, "candidates": 3, "edits": 2, "edit_scale": 0.2, "num_critics": 4}
    return EXPO(SPEC, Config(**config | settings))


@pytest.mark.parametrize("scale", [0.05, 0.7])
def test_edits_can_have_the_entropy_that_they_are_held_to(scale):
    agent = make(edit_scale=scale)
    uniform = torch.distributions.Uniform(torch.full((2,), -scale), scale).entropy().sum()  # maximum size of an edit
    assert float(uniform) - agent.target_entropy == pytest.approx(2 * math.log(2) + 1)
    assert make(target_entropy=-7.0).target_entropy == -7


def flow_by_hand(net, obs, x):
    for k in range(4):
        x = x + net(torch.cat([obs, x, torch.tensor([k / 4])])[None])[0] / 4
    return SCALE * x.clamp(-1, 1)


def edit_by_hand(agent, obs, action, noise):
    """An edit of one action, and the log density of the change, by PyTorch's distributions."""
    mean, log_std = agent.edit(torch.cat([obs, action / SCALE])[None])
    change = torch.tanh(mean + log_std.exp() * noise)[0]
    density = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean[0], log_std[0].exp()),
        [torch.distributions.TanhTransform(), torch.distributions.AffineTransform(0, 0.2)],
    )
    return SCALE * (action / SCALE + 0.2 * change).clamp(-1, 1), density.log_prob(0.2 * change).sum()


def test_candidates_are_the_flows_actions_and_edits_of_the_first_of_them():
    agent, obs, noise = make(), torch.randn(5, 3), torch.randn(5, 5, 2)
    with torch.no_grad():
        found = agent.candidates(agent.flow, obs, noise)
        for i in range(5):
            of_flow = [flow_by_hand(agent.flow.net, obs[i], noise[k, i]) for k in range(3)]
            edits = [edit_by_hand(agent, obs[i], of_flow[k], noise[3 + k, i])[0] for k in range(2)]
            torch.testing.assert_close(found[:, i], torch.stack(of_flow + edits))


def test_the_candidate_is_chosen_whose_least_value_is_largest():
    agent, obs, candidates = make(), torch.randn(6, 3), torch.rand(5, 6, 2) - 0.5
    with torch.no_grad():
        chosen = agent.choose(obs, candidates, by_chance=False)
        for i in range(6):
            values = [float(agent.target_critic(obs[i][None], c[i][None]).min()) for c in candidates]
            torch.testing.assert_close(chosen[i], candidates[values.index(max(values)), i])


def test_a_value_is_the_least_of_a_random_subset_of_the_critics():
    agent, obs, action = make(subset=2), torch.randn(1, 3), torch.rand(1, 2)
    with torch.no_grad():
        members = agent.target_critic(obs, action).flatten().tolist()
        pairs = {min(a, b) for i, a in enumerate(members) for b in members[i + 1 :]}
        seen = {float(agent.least_value(obs, action)) for _ in range(200)}
    assert seen == pairs


@pytest.mark.parametrize("edit_of", ["data", "flow"])
def test_the_edit_policy_climbs_the_mean_of_the_critics_from_the_action_that_it_is_given(edit_of, monkeypatch):
    agent, batch, noise = make(edit_of=edit_of), batch_for(make(), 1), torch.randn(16, 2)
    agent.log_alpha.data.fill_(-0.5)
    monkeypatch.setattr(torch, "randn_like", lambda like: noise)
    with torch.no_grad():
        terms = []
        for i in range(16):
            action = batch.action[i] if edit_of == "data" else flow_by_hand(agent.flow.net, batch.obs[i], noise[i])
            edited, log_prob = edit_by_hand(agent, batch.obs[i], action, noise[i])
            terms.append(math.exp(-0.5) * log_prob - agent.critic(batch.obs[i][None], edited[None]).mean())
    assert float(agent.edit_loss(batch)[0]) == pytest.approx(float(torch.stack(terms).mean()), rel=1e-4)


def test_the_critics_back_up_the_choice_at_the_next_observation(monkeypatch):
    agent, batch = make(subset=4), batch_for(make(), 2)
    chosen = torch.rand(16, 2) - 0.5
    monkeypatch.setattr(agent, "choose", lambda obs, candidates: chosen)
    with torch.no_grad():
        value = agent.target_critic(batch.next_obs, chosen).squeeze(-1).amin(0)
        target = batch.reward + 0.99 * torch.where(batch.terminated, 0.0, value)
        expected = ((agent.critic(batch.obs, batch.action).squeeze(-1) - target) ** 2).mean()
    assert float(agent.critic_loss(batch)[0]) == pytest.approx(float(expected), rel=1e-5)


def test_a_backup_is_of_the_flow_that_learns_and_of_another_subset_each_time(monkeypatch):
    agent, batch, flows = make(subset=1), batch_for(make(), 2), []
    candidates, chosen = agent.candidates, torch.rand(16, 2) - 0.5
    monkeypatch.setattr(agent, "candidates", lambda flow, *given: (flows.append(flow), candidates(flow, *given))[1])
    monkeypatch.setattr(agent, "choose", lambda obs, candidates: chosen)
    losses = {round(float(agent.critic_loss(batch)[0]), 4) for _ in range(100)}
    assert all(flow is agent.flow for flow in flows)
    assert len(losses) == agent.config.num_critics


def test_the_flow_acts_alone_until_the_first_update_and_the_best_candidate_then():
    agent, obs = make(), torch.randn(7, 3)
    noise = agent.noise.expand(-1, 7, -1)
    candidates = agent.candidates(agent.average_flow, obs, noise)
    torch.testing.assert_close(agent.act(obs), candidates[0].detach())
    torch.testing.assert_close(agent.act(obs), agent.generate(obs, torch.zeros(7, 2)))
    agent.update(batch_for(agent, 3))
    candidates = agent.candidates(agent.average_flow, obs, noise)
    torch.testing.assert_close(agent.act(obs), agent.choose(obs, candidates, by_chance=False).detach())
    assert torch.equal(agent.act(obs), agent.act(obs))


def test_cloning_moves_the_flow_alone_and_an_update_everything():
    agent = make()
    for step, moved in ((agent.clone, ("flow.", "average_flow.")), (agent.update, ("flow.", "edit.", "critic."))):
        before = copy.deepcopy(agent.state_dict())
        step(batch_for(agent, 4))
        changed = {
            name.split(".")[0] + "."
            for name, value in agent.state_dict().items()
            if "optimizer" not in name and not torch.equal(value, before[name])
        }
        assert set(moved) <= changed
        assert step == agent.update or changed == {"flow.", "average_flow."}


def test_without_edits_their_policy_and_temperature_do_not_learn():
    agent = make(edits=0)
    before = copy.deepcopy(agent.state_dict())
    assert "edit_loss" not in agent.update(batch_for(agent, 4))
    changed = {name.split(".")[0] for name, value in agent.state_dict().items() if not torch.equal(value, before[name])}
    assert "critic" in changed
    assert not changed & {"edit", "edit_optimizer", "log_alpha", "alpha_optimizer"}


def test_more_edits_than_candidates_are_refused():
    with pytest.raises(ValueError, match="edits=9 must lie between 0 and 8; so many of"):
        Config(edits=9)


@pytest.mark.parametrize("settings", [{"candidates": 1, "edits": 0}, {"candidates": 2, "edits": 1}])
def test_a_run_clones_first_and_learns_all_of_it_then(settings, pendulum_file, tmp_path):
    run = zoo.train(
        "expo", env="pendulum", dataset=pendulum_file, steps=5, online_steps=8, online_starts=3, eval_every=100,
        eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config={"hidden": [8], "batch_size": 8, "flow_steps": 2, **settings},
    )  # fmt: skip
    assert run.done == 13
    assert bool(run._agent.learns)
