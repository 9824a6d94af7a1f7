"""MOPO against a plain implementation, and its model rollouts."""

import importlib
import itertools
import math

import pytest
import torch
from plain import assert_close, forward, leaves, member, soft_update, step

from zoo import cli
from zoo.algos.mopo import MOPO, Config
from zoo.data.buffers import ReplayBuffer
from zoo.models.dynamics import model_rollouts, never

SMALL = {"hidden": [16, 16], "dynamics_hidden": [8] * 4}


@pytest.fixture
def agent(spec) -> MOPO:
    torch.manual_seed(1)
    return MOPO(spec, Config(**SMALL), total_steps=10)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_updates_as_soft_actor_critic_written_out_does(agent, spec, make_batch, temperature):
    agent = agent.double()
    agent.log_alpha.data.fill_(math.log(temperature))
    low, high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
    policy, (log_alpha,) = leaves(agent.actor.parameters()), leaves([agent.log_alpha])
    critics, targets = ([member(net, m) for m in (0, 1)] for net in (agent.critic, agent.target_critic))
    actor_adam, alpha_adam = torch.optim.Adam(policy, 1e-4), torch.optim.Adam([log_alpha], 1e-4)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(actor_adam, 10)
    critic_adam = torch.optim.Adam([p for critic in critics for p in critic], 3e-4)

    def draw(obs):
        mean, log_std = forward(policy, obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        x = mean + normal.stddev * torch.randn_like(mean)
        log_det = torch.distributions.TanhTransform().log_abs_det_jacobian(x, torch.tanh(x))
        log_prob = normal.log_prob(x) - log_det - ((high - low) / 2).log()
        return (low + high) / 2 + (high - low) / 2 * torch.tanh(x), log_prob.sum(-1)

    def least(networks, obs, action):
        return torch.min(*(forward(net, torch.cat([obs, action], 1))[:, 0] for net in networks))

    for seed in range(4):
        batch = make_batch(seed)
        torch.manual_seed(seed)
        agent.update(batch)
        torch.manual_seed(seed)
        with torch.no_grad():
            next_action, next_log_prob = draw(batch.next_obs)
            soft = least(targets, batch.next_obs, next_action) - log_alpha.exp().clamp(max=1) * next_log_prob
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * soft
        inputs = torch.cat([batch.obs, batch.action], 1)
        step(critic_adam, sum(((forward(net, inputs)[:, 0] - target) ** 2).mean() for net in critics))
        action, log_prob = draw(batch.obs)
        step(actor_adam, (log_alpha.exp().detach().clamp(max=1) * log_prob - least(critics, batch.obs, action)).mean())
        decay.step()
        step(alpha_adam, -(log_alpha * (log_prob.detach() - 2)).mean())
        for old, new in zip(targets, critics, strict=True):
            soft_update(old, new, 0.005)
    assert_close(agent.actor.parameters(), policy)
    assert_close([agent.log_alpha], [log_alpha])
    for m in (0, 1):
        assert_close(member(agent.critic, m), critics[m])
        assert_close(member(agent.target_critic, m), targets[m])


def test_a_reward_is_reduced_by_how_unsure_the_model_is(agent):
    obs = torch.randn(6, 3)
    torch.manual_seed(0)
    (plain,) = model_rollouts(agent, obs, 1, never)
    torch.manual_seed(0)
    (penalized,) = model_rollouts(agent, obs, 1, never, penalty=2.5)
    torch.manual_seed(0)
    action = agent.act(obs, explore=True)
    _, log_var = agent.dynamics(obs, action)
    unsure = torch.stack([(0.5 * member).exp().norm(dim=1) for member in log_var]).amax(0)
    torch.testing.assert_close(penalized.reward, plain.reward - 2.5 * unsure)
    assert torch.equal(penalized.next_obs, plain.next_obs)
    assert torch.equal(plain.action, action)


def test_a_rollout_goes_on_where_it_was_and_stops_where_it_terminates(agent):
    def ends_below_zero(next_obs):
        return next_obs[:, 0] < 0

    steps = list(model_rollouts(agent, torch.randn(200, 3), 4, ends_below_zero))
    for one, after in itertools.pairwise(steps):
        assert torch.equal(after.obs, one.next_obs[~one.terminated])
        assert torch.equal(one.terminated, one.next_obs[:, 0] < 0)
    assert len(steps[-1].reward) < 200


def test_imagines_anew_when_due_and_learns_from_rollouts_and_data(pendulum_file, tmp_path, monkeypatch):
    drawn, batches = [], []

    def recording(agent, obs, *rest):
        drawn.append(len(obs))
        yield from model_rollouts(agent, obs, *rest)

    update = MOPO.update
    monkeypatch.setattr("zoo.algos.mopo.model_rollouts", recording)
    monkeypatch.setattr(MOPO, "update", lambda self, batch: (batches.append(batch), update(self, batch))[1])
    settings = [
        "algo.hidden=[8]",
        "algo.dynamics_hidden=[32,32,32,32]",
        "algo.dynamics_epochs=30",
        "algo.rollout_batch=70",
    ]
    settings += ["algo.rollout_every=10", "algo.rollouts_kept=2", "algo.real_fraction=0.25", "algo.batch_size=32"]
    files = [f"dataset={pendulum_file}", f"run_dir={tmp_path / 'run'}", "logger=none", "eval_episodes=1", "steps=35"]
    assert cli.main(["run", "algo=mopo", "env=pendulum", *settings, *files]) == 0
    assert drawn == [70] * 4
    assert {len(batch.reward) for batch in batches} == {32}
    radius = batches[-1].next_obs[:, :2].norm(dim=1)
    assert (radius[:8] - 1).abs().max() < 1e-5  # the data's
    assert (radius[8:] - 1).abs().max() > 1e-3  # the model's


def test_a_share_of_the_data_that_is_no_transition_is_refused():
    with pytest.raises(ValueError, match=r"real_fraction=0.05 of algo.batch_size=8 is no transition"):
        Config(batch_size=8)
    Config(batch_size=8, real_fraction=0)  # only from the model


@pytest.mark.parametrize("name", ["combo", "mopo"])
def test_rollouts_are_as_often_as_long_and_as_many_as_the_settings_say(name, pendulum_file, tmp_path, monkeypatch):
    module, asked, sizes = importlib.import_module(f"zoo.algos.{name}"), [], []

    def rule(next_obs):
        return next_obs[:, 0] < -9

    def rollouts(agent, obs, *rest):
        asked.append((len(obs), *rest))
        yield from model_rollouts(agent, obs, *rest)

    monkeypatch.setattr(module, "termination_of", lambda *_: rule)
    monkeypatch.setattr(module, "model_rollouts", rollouts)
    monkeypatch.setattr(module, "ReplayBuffer", lambda size, *rest: (sizes.append(size), ReplayBuffer(size, *rest))[1])
    own = ["algo.penalty=0.7"] if name == "mopo" else ["algo.num_actions=2"]
    small = [
        "algo.hidden=[8]",
        "algo.dynamics_hidden=[32,32,32,32]",
        "algo.dynamics_epochs=30",
        "algo.batch_size=32",
        "algo.rollout_batch=70",
        "algo.rollout_every=10",
        "algo.rollouts_kept=2",
        "algo.rollout_length=3",
    ]
    files = [f"dataset={pendulum_file}", f"run_dir={tmp_path / 'run'}", "logger=none", "eval_episodes=1", "steps=35"]
    assert cli.main(["run", f"algo={name}", "env=pendulum", *small, "algo.real_fraction=0.25", *own, *files]) == 0
    assert asked == [(70, 3, rule, *([0.7] if name == "mopo" else []))] * 4
    assert sizes == [70 * 3 * 2]
