"""f-DVL: V against SciPy on bandits, its losses against naive loops, its updates against a plain implementation."""

import math

import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, mean_return, member, soft_update, step
from scipy.optimize import bisect, minimize_scalar
from scipy.special import logsumexp

import zoo
from zoo.algos.dvl import DVL, Config


def make(spec, total_steps=1_000_000, **settings) -> DVL:
    torch.manual_seed(1)
    agent = DVL(spec, Config(hidden=[16, 16], **settings), total_steps=total_steps).double()
    with torch.no_grad():  # targets that differ from the critics, values that differ from zero
        for network in (agent.target_critic, agent.critic, agent.value, agent.actor.net):
            for parameter in network.parameters():
                parameter.add_(0.6 * torch.randn_like(parameter))
    return agent


# --- The value that V converges to ------------------------------------------------------------------------------------

BANDIT = np.random.default_rng(0).normal(size=2_000)  # values of a state's actions, as distributed in the data


def learned_value(spec, q: np.ndarray, **settings) -> float:
    """The V at which the gradient changes its sign, for the critics' values of one state's actions.

    This is not the minimum of the loss, because reverse_kl's loss is scaled by a factor without gradient.
    """
    agent, q_ = make(spec, **settings), torch.from_numpy(q)

    def gradient(v: float) -> float:
        v_ = torch.tensor(v, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(agent.implicit_maximum(q_ - v_).mean(), v_)[0].item()

    return float(bisect(gradient, -5, 8))


@pytest.mark.parametrize("temperature", [0.6, 0.75, 0.8, 0.95])
def test_total_variation_regresses_a_quantile(spec, temperature):
    value = learned_value(spec, BANDIT, f="tv", temperature=temperature)
    assert value == pytest.approx(np.quantile(BANDIT, 2 - 1 / temperature), abs=5e-3)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_reverse_kl_regresses_the_log_of_the_mean_exponential(spec, temperature):
    value = learned_value(spec, BANDIT, f="reverse_kl", temperature=temperature, max_exponent=50.0)
    assert value == pytest.approx(temperature * logsumexp(BANDIT / temperature, b=1 / len(BANDIT)), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.9])
def test_exact_chi_square_weighs_actions_by_a_density_that_sums_to_what_the_loss_says(spec, temperature):
    """The derivative is 0 if lambda E[max(1 + d / 2, 0)] = 1 - lambda: weights are linear, and 0 for d < -2."""
    value = learned_value(spec, BANDIT, f="chi2_exact", temperature=temperature)
    weight = np.maximum(1 + (BANDIT - value) / 2, 0)
    assert temperature * weight.mean() == pytest.approx(1 - temperature, abs=1e-5)


@pytest.mark.parametrize("f", ["chi2", "chi2_exact"])
def test_each_form_of_chi_square_has_the_minimum_that_a_search_finds(spec, f):
    best = minimize_scalar(lambda v: naive(f, BANDIT - v, 0.7), bounds=(-5, 8), method="bounded").x
    assert learned_value(spec, BANDIT, f=f, temperature=0.7) == pytest.approx(best, abs=1e-4)


def test_the_authors_form_of_chi_square_is_more_cautious_than_the_exact_one(spec):
    authors, exact = (learned_value(spec, BANDIT, f=f, temperature=0.7) for f in ("chi2", "chi2_exact"))
    assert authors < exact - 0.5


@pytest.mark.parametrize("f", ["chi2", "chi2_exact", "tv"])
def test_a_higher_temperature_gives_a_higher_value(spec, f):
    values = [learned_value(spec, BANDIT, f=f, temperature=temperature) for temperature in (0.6, 0.7, 0.8, 0.9)]
    assert values == sorted(values)
    assert values[0] < values[-1] - 0.5


@pytest.mark.parametrize(
    ("f", "temperature", "why"), [("tv", 0.5, "fall"), ("tv", 1.1, "rise"), ("chi2_exact", 1.1, "rise")]
)
def test_a_loss_without_a_minimum_is_refused(f, temperature, why):
    with pytest.raises(ValueError, match=f"algo.temperature={temperature} with algo.f={f} .* {why} for ever"):
        Config(f=f, temperature=temperature)


# --- Losses -----------------------------------------------------------------------------------------------------------


def naive(f: str, d: np.ndarray, temperature: float, max_exponent: float = 7.0) -> float:
    """L_V by a loop over the transitions."""
    losses = []
    largest = max(-1.0, max(min(x / temperature, max_exponent) for x in d))
    for x in d:
        if f == "reverse_kl":
            z = min(x / temperature, max_exponent)
            losses.append((math.exp(z) - z - 1) / math.exp(largest))
            continue
        value = {
            "chi2": max(x + x * x / 4, 0),
            "chi2_exact": x + x * x / 4 if x > -2 else -1,
            "tv": max(x, 0),
        }[f]
        losses.append(temperature * value - (1 - temperature) * x)
    return float(np.mean(losses))


@pytest.mark.parametrize(
    ("f", "temperature"), [("chi2", 0.7), ("chi2_exact", 0.6), ("tv", 0.8), ("reverse_kl", 2.0), ("reverse_kl", 0.3)]
)
def test_value_loss_is_the_one_of_its_divergence(spec, f, temperature):
    agent = make(spec, f=f, temperature=temperature)
    d = np.linspace(-7, 7, 41)
    found = agent.implicit_maximum(torch.from_numpy(d)).mean().item()
    assert found == pytest.approx(naive(f, d, temperature), rel=1e-6)


def test_random_actions_lie_within_the_bounds_and_count_beside_the_data(spec, make_batch):
    agent, batch = make(spec, random_actions=3), make_batch()
    seen = []
    agent.difference = lambda obs, action: seen.append((obs, action)) or torch.zeros(len(obs))  # type: ignore
    agent.value_loss(batch)
    ((obs, action),) = seen
    assert torch.equal(obs, torch.cat([batch.obs] * 4))
    assert torch.equal(action[:32], batch.action)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    uniform = (action[32:] - low) / (high - low)
    assert ((uniform >= 0) & (uniform <= 1)).all()
    assert uniform.std(0) == pytest.approx([1 / math.sqrt(12)] * 2, rel=0.2)


def test_three_updates_equal_a_plain_step_by_step_implementation(spec, make_batch):
    """The order is value, actor with the new value, critics with the new value, target critics."""
    agent = make(spec, total_steps=20, f="tv", temperature=0.8, value_layer_norm=False, huber_delta=0.5)
    low, high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
    value, policy = leaves(agent.value.parameters()), leaves(agent.actor.net.parameters())
    (log_std,) = leaves([agent.actor.log_std])
    critics, targets = ([member(network, m) for m in (0, 1)] for network in (agent.critic, agent.target_critic))
    value_adam, actor_adam = torch.optim.Adam(value, 3e-4), torch.optim.Adam([*policy, log_std], 3e-4)
    critic_adams = [torch.optim.Adam(critic, 3e-4) for critic in critics]
    for updates in range(3):
        batch = make_batch(updates)
        pairs = torch.cat([batch.obs, batch.action], 1)
        with torch.no_grad():
            q = torch.minimum(*(forward(target, pairs)[:, 0] for target in targets))
        d = q - forward(value, batch.obs)[:, 0]
        step(value_adam, (0.8 * torch.relu(d) - 0.2 * d).mean())

        advantage = (q - forward(value, batch.obs)[:, 0]).detach()
        mean = low + (torch.tanh(forward(policy, batch.obs)) + 1) / 2 * (high - low)
        normal = torch.distributions.Normal(mean, log_std.exp() * (high - low) / 2)
        weight = torch.exp(3.0 * advantage).clamp(max=100)
        for group in actor_adam.param_groups:
            group["lr"] = 3e-4 * (1 + math.cos(math.pi * updates / 20)) / 2
        step(actor_adam, -(weight * normal.log_prob(batch.action).sum(1)).mean())

        with torch.no_grad():
            target = batch.reward + 0.99 * forward(value, batch.next_obs)[:, 0] * (1 - batch.terminated.double())
        for critic, target_critic, adam in zip(critics, targets, critic_adams, strict=True):
            error = (forward(critic, pairs)[:, 0] - target).abs()
            step(adam, torch.where(error < 0.5, error**2 / 2, 0.5 * (error - 0.25)).mean())
            soft_update(target_critic, critic, 0.005)
        agent.update(batch)
    assert_close(agent.value.parameters(), value)
    assert_close([*agent.actor.net.parameters(), agent.actor.log_std], [*policy, log_std])
    for m in (0, 1):
        assert_close(member(agent.critic, m), critics[m])
        assert_close(member(agent.target_critic, m), targets[m])


@pytest.mark.parametrize(("f", "temperature"), [("chi2", 0.7), ("chi2_exact", 0.6), ("tv", 0.8), ("reverse_kl", 2.0)])
def test_learns_more_than_the_policy_that_the_data_is_from(tmp_path, unsteady_file, f, temperature):
    run = zoo.train(
        "dvl", env="inverted_pendulum", dataset=unsteady_file, steps=1_500, eval_every=1_500, eval_episodes=10,
        logger="none", run_dir=tmp_path / "run", **GYMNASIUM,
        algo_config={"f": f, "temperature": temperature, "hidden": [64, 64], "actor_lr": 1e-3, "critic_lr": 1e-3},
    )  # fmt: skip
    _, episodes = run.evaluations[-1]
    assert episodes.returns.mean() > 2 * mean_return(unsteady_file)
