"""PPO against a plain implementation in CleanRL's style, and on a task that it must learn."""

import numpy as np
import pytest
import scipy.stats
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, step
from torch.distributions import Categorical, Normal

import zoo
from zoo.algos.ppo import PPO, Config, Minibatch
from zoo.cli import main
from zoo.data.batch import Transition
from zoo.errors import UsageError
from zoo.spec import Spec

CONTINUOUS, DISCRETE = Spec((3,), (-0.5, -2.0), (3.0, -1.0)), Spec((3,), num_actions=4)
SMALL = {"num_steps": 16, "minibatches": 4, "epochs": 2, "hidden": [8, 8]}


def rollout(spec: Spec, steps: int = 16, envs: int = 2, seed: int = 0) -> Transition:
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(steps + 1, envs, 3))
    next_obs = obs[1:].copy()
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    next_obs[truncated] = rng.normal(size=(truncated.sum(), 3))  # the true last observation, not the next first
    shape = (steps, envs)
    action = rng.integers(4, size=shape) if spec.num_actions else rng.normal((1.2, -1.5), size=(*shape, 2))
    return Transition(
        *map(torch.from_numpy, (obs[:-1], action, rng.normal(size=shape), next_obs, terminated, truncated))
    )


def make(spec: Spec, updates: int = 8, **settings) -> PPO:
    torch.manual_seed(2)
    agent = PPO(spec, Config(**SMALL, **settings), updates).double()
    with torch.no_grad():
        for parameter in [*agent.policy.parameters(), *agent.actor.parameters()]:
            parameter.add_(0.3 * torch.randn_like(parameter))
    return agent


def test_discrete_actions_are_drawn_with_the_probabilities_of_the_policy():
    agent = make(DISCRETE)
    obs = torch.tensor([[0.3, -1.0, 0.5]]).double()
    count = 40_000
    drawn = torch.bincount(agent.sample(obs.expand(count, 3)), minlength=4)
    expected = count * agent.actor(agent.encoder(obs))[0].softmax(-1).detach()
    assert scipy.stats.chisquare(drawn.numpy(), expected.numpy()).pvalue > 1e-3


class Reference:
    """One iteration, step by step: loops over time, torch.distributions, torch.optim.Adam, clip_grad_norm_."""

    def __init__(self, agent: PPO, spec: Spec) -> None:
        self.spec, self.config = spec, agent.config
        self.policy, self.value = leaves(agent.actor.parameters()), leaves(agent.value.parameters())
        self.log_std = [] if spec.num_actions else leaves([agent.policy.log_std])
        self.parameters = [*self.log_std, *self.policy, *self.value]
        self.adam = torch.optim.Adam(self.parameters, lr=3e-4, eps=1e-5)

    def v(self, obs):
        return forward(self.value, obs, activation=torch.tanh)[..., 0]

    def distribution(self, obs):
        out = forward(self.policy, obs, activation=torch.tanh)
        if self.spec.num_actions:
            return Categorical(logits=out)
        low, high = torch.tensor(self.spec.action_low).double(), torch.tensor(self.spec.action_high).double()
        return Normal((low + high) / 2 + (high - low) / 2 * out, (high - low) / 2 * self.log_std[0].exp())

    def log_prob(self, obs, action):
        log_prob = self.distribution(obs).log_prob(action)
        return log_prob if self.spec.num_actions else log_prob.sum(-1)

    def entropy(self, obs):
        entropy = self.distribution(obs).entropy()
        return entropy if self.spec.num_actions else entropy.sum(-1)

    def learn(self, data: Transition, updates: int) -> None:
        config, (steps, envs) = self.config, data.reward.shape
        obs, action = data.obs.flatten(0, 1), data.action.flatten(0, 1)
        advantage = torch.zeros(steps, envs).double()
        with torch.no_grad():
            old_value, old_log_prob = self.v(obs), self.log_prob(obs, action)
            for n in range(envs):
                following = 0.0
                for t in reversed(range(steps)):
                    value, next_value = self.v(data.obs[t, n]), self.v(data.next_obs[t, n])
                    bootstrap = 0.0 if data.terminated[t, n] else 0.99 * next_value
                    over = data.terminated[t, n] or data.truncated[t, n]
                    following = data.reward[t, n] + bootstrap - value + (0.0 if over else 0.99 * 0.95 * following)
                    advantage[t, n] = following
        advantage = advantage.flatten()
        returns = advantage + old_value
        for update in range(updates):
            if update % config.minibatches == 0:
                order = torch.randperm(steps * envs)
            size = steps * envs // config.minibatches
            part = order[(update % config.minibatches) * size :][:size]
            a = advantage[part]
            a = (a - a.mean()) / (a.std() + 1e-8)
            ratio = torch.exp(self.log_prob(obs[part], action[part]) - old_log_prob[part])
            loss = torch.max(-a * ratio, -a * torch.clamp(ratio, 1 - config.clip, 1 + config.clip)).mean()
            value = self.v(obs[part])
            clipped = old_value[part] + torch.clamp(value - old_value[part], -config.clip, config.clip)
            worse = (value - returns[part]) ** 2
            if config.clip_value:
                worse = torch.max(worse, (clipped - returns[part]) ** 2)
            loss = loss + 0.5 * 0.5 * worse.mean() - config.entropy_coef * self.entropy(obs[part]).mean()
            for group in self.adam.param_groups:
                group["lr"] = 3e-4 * (1 - update / updates if config.lr_decay else 1)
            step(self.adam, loss, max_norm=0.5)


@pytest.mark.parametrize("options", [{}, {"clip_value": False, "lr_decay": False}], ids=["defaults", "options"])
@pytest.mark.parametrize("spec", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def test_an_iteration_equals_a_plain_implementation(spec, options):
    agent = make(spec, normalize_obs=False, normalize_reward=False, entropy_coef=0.01, **options)
    reference, data = Reference(agent, spec), rollout(spec)
    assert data.truncated.any()
    assert data.terminated.any()
    begin = [parameter.detach().clone() for parameter in agent.parameters()]
    torch.manual_seed(5)
    agent.learn(data)
    torch.manual_seed(5)
    reference.learn(data, updates=8)
    assert all(not torch.equal(old, new) for old, new in zip(begin, agent.parameters(), strict=True))
    assert_close(agent.actor.parameters(), reference.policy)
    assert_close(agent.value.parameters(), reference.value)
    if not spec.num_actions:
        assert_close([agent.policy.log_std], reference.log_std)


def test_passes_over_a_rollout_end_once_the_policy_has_moved_by_target_kl(monkeypatch):
    agent, data, kls = make(DISCRETE, target_kl=0.05), rollout(DISCRETE), iter([0.01] * 4 + [0.01, 0.01, 0.01, 0.06])
    agent.config.epochs, taken = 5, []
    update = agent.update
    monkeypatch.setattr(
        agent, "update", lambda batch: update(batch) | {"approx_kl": torch.tensor(taken.append(1) or next(kls))}
    )
    agent.learn(data)
    assert len(taken) == 2 * agent.config.minibatches


def test_what_is_logged_is_the_mean_over_the_minibatches(monkeypatch):
    agent, seen = make(CONTINUOUS), []
    update = agent.update
    monkeypatch.setattr(agent, "update", lambda batch: (seen.append(update(batch)), seen[-1])[1])
    metrics = agent.learn(rollout(CONTINUOUS))
    assert len(seen) == agent.config.epochs * agent.config.minibatches
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"):
        assert float(metrics[name]) == pytest.approx(np.mean([float(one[name]) for one in seen]), rel=1e-5, abs=1e-7)


def test_the_divergence_and_the_share_that_is_clipped_are_of_the_ratio_on_both_sides():
    agent, ratio = make(DISCRETE), torch.tensor([0.5, 0.79, 0.81, 1.0, 1.0, 1.19, 1.21, 3.0]).double()
    obs, action, some = torch.randn(8, 3).double(), torch.randint(4, (8,)), torch.randn(8).double()
    log_prob, _ = agent.policy.log_prob(agent.actor(obs), action)
    metrics = agent.update(Minibatch(obs, action, log_prob.detach() - ratio.log(), some, some, some))
    assert float(metrics["clip_fraction"]) == 4 / 8
    assert float(metrics["approx_kl"]) == pytest.approx(np.mean([r - 1 - np.log(r) for r in ratio.tolist()]))


def test_the_variance_that_is_explained_is_that_of_the_returns():
    """With discount 0, a return is a reward, and the value explains as much of it as is correct."""
    agent, data = make(CONTINUOUS, discount=0.0, normalize_reward=False), rollout(CONTINUOUS)
    value = agent.value(data.obs).detach().squeeze(-1)
    data = data._replace(reward=value + 0.1 * data.reward)
    expected = 1 - np.var((data.reward - value).numpy()) / np.var(data.reward.numpy())
    assert 0 < expected < 1
    assert float(agent.learn(data)["explained_variance"]) == pytest.approx(expected)


def test_targets_beyond_a_given_support_are_counted_over_all_rollouts():
    agent = make(CONTINUOUS, value_head="two_hot", v_min=-0.01, v_max=0.01)
    for _ in range(2):
        metrics = agent.learn(rollout(CONTINUOUS))
    assert int(metrics["clipped_targets"]) == int(agent.head.clipped) > 32


@pytest.mark.parametrize(
    ("settings", "unit"), [({}, 3.0), ({"clip_reward": True}, 1.0), ({"normalize_reward": False}, 1.0)]
)
def test_the_expected_return_is_in_the_rewards_that_the_critic_was_given(settings, unit):
    agent, obs = make(CONTINUOUS, **settings), torch.randn(5, 3).double()
    agent.return_normalizer.std.fill_(3.0)
    agent.normalizer.mean.fill_(0.5)
    expected = unit * agent.value(obs - 0.5).squeeze(-1).detach()
    torch.testing.assert_close(agent.expected_return(obs, torch.zeros(5, 2)), expected)


def test_rewards_that_are_scaled_are_at_most_10_in_size():
    agent, reward = make(CONTINUOUS), torch.zeros(500, 1).double()
    reward[100], reward[200] = 5.0, -5.0
    data = rollout(CONTINUOUS, steps=500, envs=1)._replace(reward=reward, truncated=torch.ones(500, 1).bool())
    scaled = agent.scale_reward(data).reward
    assert (float(scaled.max()), float(scaled.min())) == (10.0, -10.0)


def test_the_policy_begins_nearly_uniform_and_the_layers_orthogonal():
    torch.manual_seed(0)
    agent = PPO(Spec((4, 84, 84), num_actions=4, obs_dtype="uint8"), Config())
    for layer, gain in ((agent.encoder[0], 2**0.5), (agent.actor[-1], 0.01), (agent.value[-1], 1.0)):
        weight = layer.weight.detach().flatten(1)
        torch.testing.assert_close(weight @ weight.T, gain**2 * torch.eye(len(weight)), atol=1e-5, rtol=1e-4)
        assert not layer.bias.any()


def test_rewards_are_divided_by_the_standard_deviation_of_the_discounted_return():
    agent, data = make(CONTINUOUS), rollout(CONTINUOUS)
    ended = data.terminated | data.truncated
    returns, so_far = [], torch.zeros(2).double()
    for t in range(16):
        so_far = data.reward[t] + 0.99 * so_far
        returns.append(so_far)
        so_far = so_far * ~ended[t]
    expected = data.reward / torch.stack(returns).var(correction=0).add(1e-8).sqrt()
    torch.testing.assert_close(agent.scale_reward(data).reward, expected.clamp(-10, 10), rtol=1e-6, atol=0)


def test_atari_rewards_are_clipped_to_their_sign():
    agent = make(DISCRETE, clip_reward=True)
    data = rollout(DISCRETE, steps=2)._replace(reward=torch.tensor([[-7.0, 0.0], [0.5, 400.0]]))
    assert agent.scale_reward(data).reward.tolist() == [[-1, 0], [1, 1]]


def test_observations_are_normalized_by_the_rollouts_before():
    agent, first, second = make(CONTINUOUS), rollout(CONTINUOUS, seed=1), rollout(CONTINUOUS, seed=2)
    assert torch.equal(agent.prepare(first).obs, first.obs.flatten(0, 1))
    agent.learn(first)
    agent.learn(second)
    seen = torch.cat([first.obs, second.obs]).flatten(0, 1)
    torch.testing.assert_close(agent.normalizer.mean, seen.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(agent.normalizer.std, seen.std(0, correction=0), rtol=1e-5, atol=1e-5)


def test_a_loaded_agent_normalizes_raw_observations_by_the_statistics_of_its_training(tmp_path):
    run = zoo.train(
        "ppo", env="pendulum", steps=200, eval_every=200, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config={"num_steps": 100, "minibatches": 2, "epochs": 1, "hidden": [8]},
    )  # fmt: skip
    policy = zoo.load(run.dir)
    obs = np.array([[0.1, 0.9, -3.0], [-1.0, 0.0, 7.0]], dtype=np.float32)
    normalizer = policy.agent.normalizer
    assert normalizer.count == 200
    scaled = ((torch.from_numpy(obs) - normalizer.mean) / normalizer.std).clamp(-10, 10)
    assert not torch.allclose(scaled, torch.from_numpy(obs), atol=0.1)
    np.testing.assert_allclose(
        policy.act(obs), policy.agent.policy.mode(policy.agent.actor(scaled)).detach(), rtol=1e-5
    )


def test_actions_are_clipped_for_the_environment_alone():
    agent = make(CONTINUOUS)
    obs = torch.randn(500, 3).double()
    low, high = torch.tensor(CONTINUOUS.action_low).double(), torch.tensor(CONTINUOUS.action_high).double()
    sampled, acted = agent.sample(obs), agent.act(obs, explore=True)
    assert ((sampled < low) | (sampled > high)).any()
    assert ((acted >= low) & (acted <= high)).all()
    assert ((agent.act(obs) >= low) & (agent.act(obs) <= high)).all()


def test_a_rollout_that_does_not_divide_into_minibatches_says_what_would(tmp_path):
    with pytest.raises(UsageError, match=r"algo.minibatches=4 does not divide.*Try: algo.minibatches=2"):
        zoo.train(
            "ppo", env="cartpole", steps=100, run_dir=tmp_path / "run", algo_config={"num_steps": 10, "minibatches": 4}
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_solves_cartpole_within_60000_steps(tmp_path):
    run = zoo.train(
        "ppo", env="cartpole", num_envs=8, steps=60_000, eval_every=60_000, logger="none", run_dir=tmp_path / "run",
        **GYMNASIUM,
        algo_config={  # as tuned in github DLR-RM/rl-baselines3-zoo hyperparams/ppo.yml
            "num_steps": 32, "minibatches": 1, "epochs": 20, "gae_lambda": 0.8, "discount": 0.98, "lr": 1e-3,
            "normalize_obs": False, "normalize_reward": False,
        },
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() >= 475


def test_a_minibatch_of_one_is_refused_unless_its_advantage_is_left_as_it_is(tmp_path, capsys):
    single = ["algo.num_steps=1", "algo.minibatches=1", "algo.epochs=1", "algo.hidden=[8]"]
    more = ["env=cartpole", "steps=20", "eval_episodes=1", "logger=none", f"run_dir={tmp_path / 'run'}"]
    assert main(["run", "algo=ppo", *more, *single]) == 2
    assert "has no standard deviation. Type: algo.normalize_advantage=false" in capsys.readouterr().err
    assert main(["run", "algo=ppo", *more, *single, "algo.normalize_advantage=false"]) == 0


def test_rollouts_are_valued_and_actions_drawn_by_normalized_observations():
    agent, data, obs = make(CONTINUOUS), rollout(CONTINUOUS), torch.randn(50, 3).double()
    expected = agent.prepare(data)
    torch.manual_seed(0)
    drawn = agent.sample(obs)
    agent.normalizer.mean.fill_(2.0)
    agent.normalizer.std.fill_(3.0)
    moved = data._replace(obs=3 * data.obs + 2, next_obs=3 * data.next_obs + 2)
    for one, other in zip(agent.prepare(moved), expected, strict=True):
        torch.testing.assert_close(one, other)
    torch.manual_seed(0)
    torch.testing.assert_close(agent.sample(3 * obs + 2), drawn)


def test_a_rollout_is_learned_from_with_the_statistics_that_it_was_acted_with(monkeypatch):
    agent, data, seen = make(CONTINUOUS), rollout(CONTINUOUS), []
    update = agent.update
    monkeypatch.setattr(agent, "update", lambda batch: (seen.append(batch.obs), update(batch))[1])
    agent.learn(data)
    torch.testing.assert_close(torch.cat(seen[:4]).sort(0).values, data.obs.flatten(0, 1).sort(0).values)
