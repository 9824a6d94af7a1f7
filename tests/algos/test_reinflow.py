"""ReinFlow: densities and losses against torch.distributions and naive loops, its stages, and resumed runs."""

import copy
import math

import numpy as np
import pytest
import torch
from plain import forward, leaves
from torch.distributions import Normal

import zoo
from zoo.algos.reinflow import Config, ReinFlow
from zoo.data.batch import Transition
from zoo.errors import UsageError
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec

SPEC = Spec((3,), (-2.0, -0.5), (2.0, 0.5))
SMALL = {"hidden": [16], "value_hidden": [16], "num_steps": 16, "epochs": 2, "minibatches": 4}
K, DIM = 4, 2


def make(**settings) -> ReinFlow:
    torch.manual_seed(0)
    agent = ReinFlow(SPEC, Config(**SMALL | settings)).double()
    with torch.no_grad():
        agent.normalizer.mean.copy_(torch.tensor([0.5, -1.0, 0.0]))
        agent.normalizer.std.copy_(torch.tensor([2.0, 0.5, 1.0]))
        for parameter in agent.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return agent


def rollout(agent: ReinFlow, steps: int = 16, envs: int = 2) -> Transition:
    """A rollout of the agent, with random observations, rewards and ends of episodes."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(steps + 1, envs, 3))
    next_obs = obs[1:].copy()
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    next_obs[truncated] = rng.normal(size=(truncated.sum(), 3))  # the true last observation, not the next first
    torch.manual_seed(1)
    chain = torch.stack([agent.sample(torch.from_numpy(at)) for at in obs[:-1]])
    reward = rng.normal(size=(steps, envs))
    rest = map(torch.from_numpy, (reward, next_obs, terminated, truncated))
    return Transition(torch.from_numpy(obs[:-1]), chain, *rest)


class Reference:
    """A chain's density, one transition of one sample at a time."""

    def __init__(self, agent: ReinFlow) -> None:
        self.agent = agent
        self.flow, self.value = (leaves(net.parameters()) for net in (agent.flow, agent.value))
        self.noise = leaves(agent.noise.parameters()) if agent.config.noise == "learned" else []

    def after(self, obs, x, k) -> Normal:
        """The distribution of the point after `x` `[A]` at step `k`."""
        time = torch.tensor([k / K]).double()
        gelu = lambda y: torch.nn.functional.gelu(y, approximate="tanh")  # noqa: E731
        mean = x + forward(self.flow, torch.cat([obs, x, time])[None], activation=gelu)[0] / K
        low, high = math.log(self.agent.config.min_std**2), 2 * self.agent.max_std.log()
        log_variance = torch.full((DIM,), low, dtype=torch.float64)
        if self.agent.config.noise == "learned":
            out = forward(self.noise, torch.cat([obs, time])[None], activation=torch.tanh)[0]
            log_variance = low + (high - low) * (torch.tanh(out) + 1) / 2
        return Normal(torch.clamp(mean, -1, 1), torch.exp(log_variance / 2))

    def density(self, obs, chain):
        """The log density `[B]` and entropy `[B]` of chains."""
        log_probs, entropies = [], []
        for o, points in zip(obs, chain, strict=True):
            first = Normal(torch.zeros(DIM).double(), 1.0)
            log_prob, entropy = first.log_prob(points[0]).sum(), first.entropy().sum()
            for k in range(K):
                distribution = self.after(o, points[k], k)
                log_prob = log_prob + distribution.log_prob(points[k + 1]).sum()
                entropy = entropy + distribution.entropy().sum()
            log_probs.append(torch.clamp(log_prob / ((K + 1) * DIM), -1, 1))
            entropies.append(entropy / ((K + 1) * DIM))
        return torch.stack(log_probs), torch.stack(entropies)

    def v(self, obs):
        return forward(self.value, obs, activation=torch.nn.functional.mish)[..., 0]


@pytest.mark.parametrize("noise", ["learned", "fixed"])
def test_a_chains_density_and_entropy_are_those_of_its_gaussians(noise):
    agent = make(noise=noise)
    obs, chain = torch.randn(12, 3).double(), agent.sample(torch.randn(12, 3).double())
    chain[0] = 5  # so unlikely that it is clamped
    for one, other in zip(agent.log_prob(obs, chain), Reference(agent).density(obs, chain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert agent.log_prob(obs, chain)[0][0] == -1
    assert agent.log_prob(obs, chain)[0].std() > 0.01


def test_a_chain_is_drawn_from_the_gaussians_whose_density_it_is_given():
    """By the means and deviations of a naive loop, each step's noise is standard normal, within three deviations."""
    agent, count = make(), 3000
    obs = torch.tensor([0.3, -1.2, 0.8]).double().expand(count, 3)
    torch.manual_seed(3)
    chain, reference = agent.sample(obs), Reference(agent)
    normalized = agent.normalizer(obs)[0]
    for k in range(K):
        distributions = [reference.after(normalized, x, k) for x in chain[:, k]]
        mean, std = (torch.stack([getattr(d, name) for d in distributions]) for name in ("mean", "stddev"))
        noise = ((chain[:, k + 1] - mean) / std).detach()
        assert noise.abs().max() < 3 + 1e-9
        if k < K - 1:  # the last point is clipped to the bounds
            assert noise.abs().max() > 2.9
            assert noise.mean(0).abs().max() < 4 / count**0.5
            assert (noise.std(0) - 1).abs().max() < 0.05
    assert chain[:, -1].abs().max() <= 1
    assert chain[:, 1:-1].abs().max() > 1


def test_noise_lies_between_its_bounds_and_reaches_them():
    agent = make(min_std=0.05, max_std=0.4)
    for out, bound in ((-9.0, 0.05), (9.0, 0.4)):
        agent.noise[-1].bias.data.fill_(out)
        _, std = agent.transition(torch.randn(50, 3).double(), torch.randn(50, 2).double(), torch.rand(50, 1).double())
        torch.testing.assert_close(std, torch.full((50, 2), bound).double(), rtol=1e-4, atol=0)


def test_the_ratio_is_1_before_the_first_update():
    """The rollout and the update use the same times. With the authors' two grids of times, the ratio is not 1."""
    agent = make()
    whole = agent.prepare(rollout(agent))
    log_prob, _ = agent.log_prob(whole.obs, whole.chain)
    assert torch.equal(log_prob, whole.log_prob)
    metrics = agent.update(whole)
    assert metrics["approx_kl"] == 0
    assert metrics["clip_fraction"] == 0
    assert agent.update(whole)["approx_kl"] > 0


def test_a_rollout_is_learned_from_as_by_naive_loops():
    """Two passes of four minibatches: returns, advantages, losses and Adam's steps, in plain code."""
    agent = make(entropy_coef=0.1, clip=0.02, actor_lr=1e-3, value_lr=2e-3)
    data, reference = rollout(agent), Reference(agent)
    before = agent.state_dict()
    torch.manual_seed(2)
    agent.learn(data, 0.0)

    steps, envs = data.reward.shape
    scale = np.std(so_far(data), ddof=0)
    obs = (data.obs - before["normalizer.mean"]) / before["normalizer.std"]
    next_obs = (data.next_obs - before["normalizer.mean"]) / before["normalizer.std"]
    advantage = torch.zeros(steps, envs).double()
    with torch.no_grad():
        for n in range(envs):
            following = 0.0
            for t in reversed(range(steps)):
                value, next_value = reference.v(obs[t, n]), reference.v(next_obs[t, n])
                bootstrap = 0.0 if data.terminated[t, n] else 0.99 * next_value
                over = data.terminated[t, n] or data.truncated[t, n]
                delta = (data.reward[t, n] / scale).clamp(-10, 10) + bootstrap - value
                advantage[t, n] = following = delta + (0.0 if over else 0.99 * 0.95 * following)
        advantage, obs, chain = advantage.flatten(), obs.flatten(0, 1), data.action.flatten(0, 1)
        returns = advantage + reference.v(obs)
        old, _ = reference.density(obs, chain)
    actor = torch.optim.Adam([*reference.flow, *reference.noise], lr=1e-3)
    critic = torch.optim.Adam(reference.value, lr=2e-3)
    torch.manual_seed(2)
    for _ in range(2):
        for part in torch.randperm(steps * envs).chunk(4):
            new, entropy = reference.density(obs[part], chain[part])
            a = (advantage[part] - advantage[part].mean()) / (advantage[part].std() + 1e-8)
            ratio = torch.exp(new - old[part])
            loss = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.98, 1.02)).mean() - 0.1 * entropy.mean()
            for optimizer, objective in (
                (actor, loss),
                (critic, 0.5 * ((reference.v(obs[part]) - returns[part]) ** 2).mean()),
            ):
                optimizer.zero_grad()
                objective.backward()
                optimizer.step()
    for net in ("flow", "noise", "value"):
        for ours, theirs in zip(getattr(agent, net).parameters(), getattr(reference, net), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def so_far(data: Transition) -> list[float]:
    """The discounted sum of past rewards at each step."""
    found = []
    for n in range(data.reward.shape[1]):
        total = 0.0
        for t in range(len(data.reward)):
            total = float(data.reward[t, n]) + 0.99 * total
            found.append(total)
            total *= not (data.terminated[t, n] or data.truncated[t, n])
    return found


def test_the_largest_noise_is_held_and_falls_to_7_tenths_of_the_way():
    agent, seen = make(min_std=0.1, max_std=0.2), []
    for done in range(1, 11):
        agent.learn(rollout(agent), done / 10)
        seen.append(float(agent.max_std))
    shares = [min(max((done / 10 - 0.35) / 0.65, 0), 1) for done in range(1, 11)]
    expected = [0.17 + 0.03 * 0.5 * (1 + math.cos(math.pi * share)) for share in shares]
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_fixed_noise_has_no_network_and_the_flow_learns():
    agent = make(noise="fixed")
    before = copy.deepcopy(agent.state_dict())
    agent.learn(rollout(agent), 0.0)
    assert not any(name.startswith("noise.") for name in before)
    assert not torch.equal(agent.flow.net[0].weight, before["flow.net.0.weight"])


def test_a_value_alone_learns_where_it_is_told_to():
    agent = make()
    before = copy.deepcopy(agent.state_dict())
    agent.learn(rollout(agent), 0.0, value_only=True)
    for name, value in agent.state_dict().items():
        if name.startswith(("flow.net", "noise.")):
            assert torch.equal(value, before[name]), name
        elif name.startswith("value."):
            assert not torch.equal(value, before[name]), name


def test_without_exploring_there_is_no_noise():
    agent, obs = make(), torch.randn(20, 3).double()
    reference, expected = Reference(agent), []
    for o in agent.normalizer(obs):
        x = torch.zeros(2).double()
        for k in range(K):
            x = reference.after(o, x, k).mean
        expected.append(torch.tensor([2.0, 0.5]) * x.detach())
    torch.testing.assert_close(agent.act(obs), torch.stack(expected))
    assert (agent.act(obs, explore=True) - agent.act(obs)).abs().max() > 0.05


def test_the_expected_return_is_in_the_environments_rewards():
    agent, obs = make(), torch.randn(5, 3).double()
    agent.return_normalizer.std.fill_(3.0)
    expected = 3 * agent.value(agent.normalizer(obs)).squeeze(-1).detach()
    torch.testing.assert_close(agent.expected_return(obs, torch.zeros(5, 2)), expected)


RUN = {"eval_every": 100, "eval_episodes": 1, "logger": "none", "compile": False}
TINY = {"hidden": [8], "batch_size": 8, "num_steps": 20, "minibatches": 2, "epochs": 2}


def test_a_run_clones_first_then_learns_a_value_and_climbs_then(pendulum_file, tmp_path, monkeypatch):
    calls = []
    for name in ("clone", "update", "update_value"):
        function = getattr(ReinFlow, name)
        monkeypatch.setattr(ReinFlow, name, lambda a, b, f=function, n=name: (calls.append(n), f(a, b))[1])
    zoo.train(
        "reinflow", env="pendulum", dataset=pendulum_file, steps=6, online_steps=80, online_starts=40, num_envs=2,
        algo_config=TINY | {"num_steps": 10}, run_dir=tmp_path / "run", **RUN,
    )  # fmt: skip
    assert calls == ["clone"] * 6 + ["update_value"] * 8 + ["update", "update_value"] * 8


@pytest.mark.parametrize(
    ("settings", "own", "message"),
    [
        ({"online_steps": 19}, {}, "fewer than one rollout of 20"),
        ({"online_steps": 60}, {"minibatches": 3}, r"algo\.minibatches=3 does not divide.* Try: algo\.minibatches=1"),
        ({"online_steps": 60}, {"minibatches": 20}, r"parts of two or more\. Try: algo\.minibatches=1"),
        ({"online_steps": 60, "online_fraction": 0.5}, {}, "Leave out online_fraction"),
        ({"online_steps": 60, "online_updates": 2}, {}, "online_updates"),
        (
            {"online_steps": 38, "online_starts": 30, "num_envs": 2},
            {"num_steps": 10},
            "They must be at most 18, or give",
        ),
    ],
)
def test_what_cannot_be_is_refused(settings, own, message, pendulum_file, tmp_path):
    with pytest.raises(UsageError, match=message):
        zoo.train(
            "reinflow", env="pendulum", dataset=pendulum_file, steps=6, run_dir=tmp_path / "run",
            algo_config=TINY | own, **settings, **RUN,
        )  # fmt: skip


def test_the_end_of_a_chain_is_played_and_progress_is_counted_in_online_steps(pendulum_file, tmp_path, monkeypatch):
    done, chains, played = [], [], []
    learn, sample, take = ReinFlow.learn, ReinFlow.sample, EnvStepper.step
    monkeypatch.setattr(ReinFlow, "learn", lambda a, data, d, v=False: (done.append(d), learn(a, data, d, v))[1])
    monkeypatch.setattr(ReinFlow, "sample", lambda a, obs: (chains.append(sample(a, obs)), chains[-1])[1])
    monkeypatch.setattr(EnvStepper, "step", lambda envs, action: (played.append(action), take(envs, action))[1])
    zoo.train(
        "reinflow", env="pendulum", dataset=pendulum_file, steps=30, online_steps=40, num_envs=2,
        algo_config=TINY | {"num_steps": 10}, run_dir=tmp_path / "run", **RUN,
    )  # fmt: skip
    assert done == pytest.approx([18 / 40, 38 / 40])
    torch.testing.assert_close(torch.cat(played), 2 * torch.cat([chain[:, -1] for chain in chains]))
