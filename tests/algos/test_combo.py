"""COMBO against loops over states and actions with SciPy's logsumexp, on the actions that it draws itself."""

import numpy as np
import pytest
import scipy.special
import torch
from plain import assert_close, forward, leaves, member, shake, soft_update, step

from zoo import cli
from zoo.algos.combo import COMBO, Config

N, REAL = 3, 8  # actions of each kind, and how many of a batch of 32 are the data's


@pytest.fixture
def agent(spec) -> COMBO:
    torch.manual_seed(1)
    settings = {"hidden": [16, 16], "dynamics_hidden": [8] * 4, "num_actions": N, "beta": 0.7}
    agent = COMBO(spec, Config(**settings, batch_size=32, real_fraction=REAL / 32), total_steps=10).double()
    shake(agent.critic, agent.target_critic, agent.actor)
    return agent


class Reference:
    """Eq. 2 and 3, after SAC's actor and temperature updates, in loops."""

    def __init__(self, agent: COMBO, spec) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.policy, (self.log_alpha,) = leaves(agent.actor.parameters()), leaves([agent.log_alpha])
        self.critics = [member(agent.critic, m) for m in (0, 1)]
        self.targets = [member(agent.target_critic, m) for m in (0, 1)]
        self.actor_adam = torch.optim.Adam(self.policy, 1e-4)
        self.decay = torch.optim.lr_scheduler.CosineAnnealingLR(self.actor_adam, 10)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 1e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def draw(self, obs, noise):
        mean, log_std = forward(self.policy, obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        x = mean + normal.stddev * noise
        log_det = torch.distributions.TanhTransform().log_abs_det_jacobian(x, torch.tanh(x))
        log_prob = normal.log_prob(x) - log_det - ((self.high - self.low) / 2).log()
        return (self.low + self.high) / 2 + (self.high - self.low) / 2 * torch.tanh(x), log_prob.sum(-1)

    def q(self, net, obs, action):
        return forward(net, torch.cat([obs, action], 1))[:, 0]

    def least(self, nets, obs, action):
        return torch.min(*(self.q(net, obs, action) for net in nets))

    def update(self, batch) -> float:
        """One update. Returns the gap of the conservative term, as a mean over both critics, by SciPy."""
        shape = batch.action.shape
        action, log_prob = self.draw(batch.obs, torch.randn(shape, dtype=torch.float64))
        step(
            self.actor_adam,
            (self.log_alpha.exp().detach() * log_prob - self.least(self.critics, batch.obs, action)).mean(),
        )
        self.decay.step()
        step(self.alpha_adam, -(self.log_alpha * (log_prob.detach() - 2)).mean())
        with torch.no_grad():
            next_action, _ = self.draw(batch.next_obs, torch.randn(shape, dtype=torch.float64))
            next_q = self.least(self.targets, batch.next_obs, next_action)
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * next_q
            noise = torch.randn(2, N, *shape, dtype=torch.float64)
            sampled = [self.draw(batch.obs, noise[0, k]) for k in range(N)]
            sampled += [self.draw(batch.next_obs, noise[1, k]) for k in range(N)]
            uniform = (self.low + self.high) / 2 + (self.high - self.low) / 2 * (
                2 * torch.rand(N, *shape, dtype=torch.float64) - 1
            )
            density = -(self.high - self.low).log().sum().expand(len(batch.obs))
            sampled += [(uniform[k], density) for k in range(N)]
        loss, gaps = 0.0, []
        for critic in self.critics:
            q = self.q(critic, batch.obs, batch.action)
            values = torch.stack([self.q(critic, batch.obs, a) - log_prob for a, log_prob in sampled])
            gap = torch.logsumexp(values, 0).mean() - q[:REAL].mean()
            by_scipy = scipy.special.logsumexp(values.detach().numpy(), axis=0).mean() - float(q[:REAL].mean())
            gaps.append(by_scipy)
            loss = loss + ((q - target) ** 2).mean() + 0.7 * gap
        step(self.critic_adam, loss)
        for old, new in zip(self.targets, self.critics, strict=True):
            soft_update(old, new, 0.005)
        return float(np.mean(gaps))


def test_updates_as_the_loops_do(agent, spec, make_batch):
    reference = Reference(agent, spec)
    for seed in range(4):
        torch.manual_seed(seed)
        gap = agent.update(make_batch(seed))["gap"]
        torch.manual_seed(seed)
        assert reference.update(make_batch(seed)) == pytest.approx(float(gap), rel=1e-6)
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close([agent.log_alpha], [reference.log_alpha])
    for m in (0, 1):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


@pytest.mark.parametrize("settings", [{"real_fraction": 0.001}, {"real_fraction": 0.5, "batch_size": 1}])
def test_a_batch_without_data_or_without_the_model_is_refused(settings):
    with pytest.raises(ValueError, match=r"is (no|every) transition"):
        Config(**settings)


def test_half_of_a_batch_is_the_data_and_comes_first(pendulum_file, tmp_path, monkeypatch):
    batches, update = [], COMBO.update
    monkeypatch.setattr(COMBO, "update", lambda self, batch: (batches.append(batch), update(self, batch))[1])
    settings = [
        "algo.hidden=[8]",
        "algo.dynamics_hidden=[32,32,32,32]",
        "algo.dynamics_epochs=30",
        "algo.rollout_batch=70",
    ]
    settings += ["algo.rollout_every=10", "algo.batch_size=32", "algo.num_actions=2"]
    files = [f"dataset={pendulum_file}", f"run_dir={tmp_path / 'run'}", "logger=none", "eval_episodes=1", "steps=12"]
    assert cli.main(["run", "algo=combo", "env=pendulum", *settings, *files]) == 0
    assert len(batches) == 12
    radius = batches[-1].next_obs[:, :2].norm(dim=1)
    assert (radius[:16] - 1).abs().max() < 1e-5
    assert (radius[16:] - 1).abs().max() > 1e-3
