"""EDAC against a naive implementation with the same actions, with a loop over all pairs of critics."""

import pytest
import torch
from plain import assert_close, forward, leaves, member, shake, soft_update, step
from torch import nn

from zoo.algos.edac import EDAC, Config
from zoo.nn.layers import EnsembleLinear


class Reference:
    """Algorithm 1: temperature, actor, critics, with a network for each critic and a loop over their pairs."""

    def __init__(self, agent: EDAC, spec, eta: float) -> None:
        self.low, self.high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
        self.eta = eta
        self.policy, (self.log_alpha,) = leaves(agent.actor.parameters()), leaves([agent.log_alpha])
        self.critics = [member(agent.critic, m) for m in range(3)]
        self.targets = [member(agent.target_critic, m) for m in range(3)]
        self.actor_adam = torch.optim.Adam(self.policy, 3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], 3e-4)
        self.critic_adam = torch.optim.Adam([p for critic in self.critics for p in critic], 3e-4)

    def sample(self, obs):
        mean, log_std = forward(self.policy, obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        x = normal.mean + normal.stddev * torch.randn(mean.shape, dtype=torch.float64)
        half = (self.high - self.low) / 2
        log_prob = normal.log_prob(x) - torch.log(half * (1 - torch.tanh(x) ** 2))
        return (self.low + self.high) / 2 + half * torch.tanh(x), log_prob.sum(-1)

    def q(self, critic, obs, action):
        return forward(critic, torch.cat([obs, action], 1))[:, 0]

    def diversity(self, batch):
        directions = []
        for critic in self.critics:
            action = batch.action.clone().requires_grad_()
            (g,) = torch.autograd.grad(self.q(critic, batch.obs, action).sum(), action, create_graph=True)
            directions.append(g / (g.norm(dim=1, keepdim=True) + 1e-10))
        pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
        return sum((directions[i] * directions[j]).sum(1).mean() for i, j in pairs) / 2

    def update(self, batch) -> None:
        with torch.no_grad():
            _, log_prob = self.sample(batch.obs)
        step(self.alpha_adam, -(self.log_alpha * (log_prob - 2)).mean())
        alpha = self.log_alpha.exp().detach()
        action, log_prob = self.sample(batch.obs)
        q = torch.stack([self.q(critic, batch.obs, action) for critic in self.critics]).min(0).values
        step(self.actor_adam, (alpha * log_prob - q).mean())
        with torch.no_grad():
            next_action, next_log_prob = self.sample(batch.next_obs)
            next_q = torch.stack([self.q(t, batch.next_obs, next_action) for t in self.targets]).min(0).values
            target = batch.reward + 0.99 * (1 - batch.terminated.double()) * (next_q - alpha * next_log_prob)
        loss = sum(((self.q(critic, batch.obs, batch.action) - target) ** 2).mean() for critic in self.critics)
        step(self.critic_adam, loss + self.eta * self.diversity(batch) if self.eta else loss)
        for target_critic, critic in zip(self.targets, self.critics, strict=True):
            soft_update(target_critic, critic, 0.005)


@pytest.mark.parametrize("eta", [0.0, 2.0], ids=["sac-n", "edac"])
def test_six_updates_equal_a_naive_implementation_with_the_same_actions(spec, make_batch, eta):
    torch.manual_seed(1)
    agent = EDAC(spec, Config(hidden=[16, 16], num_critics=3, eta=eta)).double()
    shake(agent.target_critic, agent.critic, agent.actor)
    reference = Reference(agent, spec, eta)
    for seed in range(6):
        torch.manual_seed(seed)
        agent.update(make_batch(seed))
        torch.manual_seed(seed)
        reference.update(make_batch(seed))
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close([agent.log_alpha], [reference.log_alpha])
    for m in range(3):
        assert_close(member(agent.critic, m), reference.critics[m])
        assert_close(member(agent.target_critic, m), reference.targets[m])


def test_lb_sacs_critics_normalize_before_the_activation(spec):
    """Linear, LayerNorm, ReLU, as in CORL's lb_sac.py. The normalization's weights start at 1 and its biases at 0."""
    agent = EDAC(spec, Config(num_critics=2, hidden=[8, 8], eta=0, critic_layer_norm=True))
    obs, action = torch.randn(5, spec.obs_dim), torch.rand(5, spec.action_dim)
    found = agent.critic(obs, action)
    for m in range(2):
        weights = leaves(
            parameter[m] if name == "weight" else parameter[m, 0]
            for layer in agent.critic
            if isinstance(layer, EnsembleLinear)
            for name, parameter in layer.named_parameters()
        )
        expected = forward(
            weights, torch.cat([obs, action], -1), lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]).relu()
        )
        torch.testing.assert_close(found[m], expected)


def test_the_policy_begins_near_no_action_whatever_it_observes(spec):
    """As in the authors' code: the last layer is uniform within 1e-3, and the other layers' biases are 0.1."""
    *hidden, last = (layer for layer in EDAC(spec, Config(num_critics=2)).actor.net if isinstance(layer, nn.Linear))
    assert len(hidden) == 3
    assert all((layer.bias == 0.1).all() for layer in hidden)
    assert last.bias.abs().max() <= 1e-3
    assert 0.99e-3 < last.weight.abs().max() <= 1e-3
    assert last.weight.std().item() == pytest.approx(1e-3 / 3**0.5, rel=0.08)
