"""ReCOIL: its losses against naive loops, its updates against a plain implementation, and its data."""

import json
import math
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch
from plain import GYMNASIUM, assert_close, forward, leaves, member, soft_update, step

import zoo
from zoo.algos.recoil import Config, ReCOIL
from zoo.cli import main
from zoo.data import catalog
from zoo.data.batch import Batch, mixed
from zoo.errors import RunError, UsageError

SHORT = {"steps": 4, "eval_every": 4, "eval_episodes": 1, "logger": "none"}
SMALL = {"hidden": [8], "batch_size": 8}


def make(spec, total_steps=1_000_000, **settings) -> ReCOIL:
    torch.manual_seed(1)
    agent = ReCOIL(spec, Config(hidden=[16, 16], **settings), total_steps=total_steps).double()
    with torch.no_grad():  # targets that differ from the critics, values that differ from zero
        for network in (agent.target_critic, agent.critic, agent.value, agent.actor.net):
            for parameter in network.parameters():
                parameter.add_(0.6 * torch.randn_like(parameter))
    return agent


class Halves(NamedTuple):
    """Random transitions of the mixture, the same number of the expert, and both as one batch."""

    mixture: Batch
    expert: Batch
    both: Batch


@pytest.fixture
def halves(make_batch):
    """`halves(seed)`."""

    def make_halves(seed: int = 0) -> Halves:
        mixture, expert = make_batch(seed), make_batch(seed + 100)
        return Halves(mixture, expert, mixed(mixture, expert))

    return make_halves


def least(agent, batch, network) -> np.ndarray:
    q = network(agent.target_critic, np.concatenate([batch.obs, batch.action], -1))[..., 0]
    return np.minimum(q[0], q[1])


def test_value_loss_is_of_the_mixture_scaled_by_the_largest_exponent_of_both_halves(spec, halves, network):
    agent, (mixture, expert, both) = make(spec, temperature=0.5, max_exponent=3.0), halves()
    z = []
    for batch in (mixture, expert):
        difference = least(agent, batch, network) - network(agent.value, batch.obs.numpy())[:, 0]
        z.append([min(d / 0.5, 3.0) for d in difference])
    largest = max(-1.0, *z[0], *z[1])
    expected = np.mean([(math.exp(x) - x - 1) / math.exp(largest) for x in z[0]])
    assert agent.update(both)["value_loss"].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("discount", "bound"), [(0.99, 200), (0.9, 20)])
def test_critics_give_the_expert_the_bound_and_take_the_mixture_for_costly(spec, halves, network, discount, bound):
    """In the authors' code the bound is 200 and the cost of a step 2, with a discount of 0.99."""
    agent, (batch, expert, both) = make(spec, discount=discount), halves()
    q = network(agent.critic, np.concatenate([batch.obs, batch.action], -1))[..., 0]
    expert_q = network(agent.critic, np.concatenate([expert.obs, expert.action], -1))[..., 0]
    next_value = network(agent.value, batch.next_obs.numpy())[:, 0]
    expected = 0.0
    for i in (0, 1):
        losses = []
        for j in range(32):
            target = -2 + discount * (-bound if batch.terminated[j] else next_value[j])
            losses.append(0.5 * (expert_q[i, j] - bound) ** 2 + 0.5 * (q[i, j] - target) ** 2)
        expected += np.mean(losses)
    found, mean, expert_mean = agent.critic_loss(both)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert expert_mean.item() == pytest.approx(expert_q.mean(), rel=1e-6)
    assert mean.item() == pytest.approx(q.mean(), rel=1e-6)


def test_a_terminal_transition_of_the_mixture_is_worth_the_lower_bound(spec, halves):
    """-2 + gamma * -M = -M: ending an episode does not avoid the cost of its steps."""
    agent, (_, _, both) = make(spec), halves()
    both = both._replace(terminated=torch.ones(64, dtype=torch.bool))
    with torch.no_grad():
        for layer in agent.critic.parameters():
            layer.zero_()
        for m in (0, 1):
            list(agent.critic.parameters())[-1][m] = -200.0
    loss, _, _ = agent.critic_loss(both)
    assert loss.item() == pytest.approx(2 * 0.5 * 400**2)  # only for the expert's half


def test_three_updates_equal_a_plain_step_by_step_implementation(spec, halves):
    """The order is value, actor with the new value, critics with the new value, target critics."""
    agent = make(spec, total_steps=20, temperature=2.0)
    low, high = torch.tensor(spec.action_low).double(), torch.tensor(spec.action_high).double()
    value, policy = leaves(agent.value.parameters()), leaves(agent.actor.net.parameters())
    (log_std,) = leaves([agent.actor.log_std])
    critics, targets = ([member(network, m) for m in (0, 1)] for network in (agent.critic, agent.target_critic))
    value_adam, actor_adam = torch.optim.Adam(value, 3e-4), torch.optim.Adam([*policy, log_std], 3e-4)
    critic_adams = [torch.optim.Adam(critic, 3e-4) for critic in critics]
    for updates in range(3):
        batch, expert_batch, both = halves(updates)
        pairs = torch.cat([batch.obs, batch.action], 1)
        expert = torch.cat([expert_batch.obs, expert_batch.action], 1)
        with torch.no_grad():
            q = torch.minimum(*(forward(target, pairs)[:, 0] for target in targets))
            expert_q = torch.minimum(*(forward(target, expert)[:, 0] for target in targets))
            expert_z = (expert_q - forward(value, expert_batch.obs)[:, 0]) / 2
        z = torch.clamp((q - forward(value, batch.obs)[:, 0]) / 2, max=7)
        scale = torch.exp(-max(torch.tensor(-1.0), z.detach().max(), expert_z.clamp(max=7).max()))
        step(value_adam, (scale * (torch.exp(z) - z - 1)).mean())

        mean = low + (torch.tanh(forward(policy, batch.obs)) + 1) / 2 * (high - low)
        normal = torch.distributions.Normal(mean, log_std.exp() * (high - low) / 2)
        weight = torch.exp(3.0 * (q - forward(value, batch.obs)[:, 0])).clamp(max=100).detach()
        for group in actor_adam.param_groups:
            group["lr"] = 3e-4 * (1 + math.cos(math.pi * updates / 20)) / 2
        step(actor_adam, -(weight * normal.log_prob(batch.action).sum(1)).mean())

        with torch.no_grad():
            next_value = forward(value, batch.next_obs)[:, 0]
        ended = batch.terminated.double()
        target = -2 + 0.99 * (1 - ended) * next_value - 0.99 * 200 * ended
        for critic, target_critic, adam in zip(critics, targets, critic_adams, strict=True):
            of_expert = (forward(critic, expert)[:, 0] - 200).square()
            of_mixture = (forward(critic, pairs)[:, 0] - target).square()
            step(adam, 0.5 * of_expert.mean() + 0.5 * of_mixture.mean())
            soft_update(target_critic, critic, 0.005)
        agent.update(both)
    assert_close(agent.value.parameters(), value)
    assert_close([*agent.actor.net.parameters(), agent.actor.log_std], [*policy, log_std])
    for m in (0, 1):
        assert_close(member(agent.critic, m), critics[m])
        assert_close(member(agent.target_critic, m), targets[m])


def test_without_a_discount_values_have_no_bound():
    with pytest.raises(ValueError, match=r"algo.discount=1.0 must be .* below 1; values are bounded by"):
        Config(discount=1.0)


# --- The expert's data ------------------------------------------------------------------------------------------------


def train(run_dir, dataset, expert, **settings):
    return zoo.train(
        "recoil", env="pendulum", dataset=str(dataset), run_dir=run_dir, algo_config={"expert": str(expert), **SMALL},
        **(SHORT | settings),
    )  # fmt: skip


def test_the_run_records_whose_episodes_it_imitates(tmp_path, pendulum_file):
    run = train(tmp_path / "run", pendulum_file, f"2ep:{pendulum_file}")
    found = json.loads((run.dir / "run.json").read_text())["demonstrations"]
    with h5py.File(pendulum_file) as file:
        length = int(np.flatnonzero(file["timeouts"][()] | file["terminals"][()])[1]) + 1
    assert (found["episodes"], found["transitions"]) == (2, length)
    assert found["fingerprint"] != run.record["dataset"]["fingerprint"]


def test_rewards_are_never_looked_at(tmp_path, pendulum_file):
    """Data with other rewards give the same weights."""
    other = tmp_path / "other.hdf5"
    other.write_bytes(pendulum_file.read_bytes())
    with h5py.File(other, "r+") as file:
        file["rewards"][...] = np.random.default_rng(0).normal(size=len(file["rewards"]))
    policies = []
    for name, data in (("one", pendulum_file), ("two", other)):
        train(tmp_path / name, data, f"1ep:{data}")
        policies.append(zoo.load(tmp_path / name).agent.state_dict())
    for one, two in zip(*(policy.values() for policy in policies), strict=True):
        assert torch.equal(one, two)


def test_an_expert_that_is_not_there_or_of_another_environment_is_refused_by_its_own_setting(tmp_path, pendulum_file):
    with pytest.raises(UsageError, match=r"^algo\.expert=nowhere\.hdf5 is not a file"):
        train(tmp_path / "run", pendulum_file, "nowhere.hdf5")
    with pytest.raises(UsageError, match=r"^algo\.expert=.* does not exist for pendulum"):
        train(tmp_path / "run", pendulum_file, "3ep:best")
    other = tmp_path / "other.hdf5"
    with h5py.File(other, "w") as file:
        file["observations"], file["actions"], file["rewards"] = np.zeros((5, 4)), np.zeros((5, 1)), np.zeros(5)
        file["terminals"], file["timeouts"] = np.arange(5) == 4, np.zeros(5, bool)
        file["next_observations"] = np.zeros((5, 4))
    with pytest.raises(UsageError, match=r"^algo\.expert=.* has observations \(4,\) .* pendulum .* has \(3,\)"):
        train(tmp_path / "run", pendulum_file, other)


def test_an_expert_that_only_the_hub_could_have_is_named_by_its_setting_too(tmp_path, pendulum_file, monkeypatch):
    def offline() -> None:
        raise OSError("no network")

    monkeypatch.setattr(catalog, "_check_reachable", offline)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "store"))
    with pytest.raises(RunError, match=r"^algo\.expert=expert: mujoco/pendulum/expert-v0 .*no network"):
        train(tmp_path / "run", pendulum_file, "1ep:expert")


def test_more_episodes_than_there_are_is_refused(tmp_path, pendulum_file):
    with pytest.raises(UsageError, match="asks for more episodes than there are"):
        train(tmp_path / "run", pendulum_file, f"100000ep:{pendulum_file}")


def test_a_run_is_not_resumed_on_another_expert(tmp_path, pendulum_file, capsys):
    train(tmp_path / "run", pendulum_file, f"1ep:{pendulum_file}")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["config"]["algo"]["expert"], record["config"]["steps"] = f"2ep:{pendulum_file}", 8
    record["status"] = "interrupted"
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    assert main(["run", f"resume={tmp_path / 'run'}"]) == 2
    assert f"algo.expert=2ep:{pendulum_file} is not the data this run began with" in capsys.readouterr().err


def test_its_critics_expect_no_returns(spec):
    assert (
        make(spec).expected_return(torch.randn(4, spec.obs_dim).double(), torch.randn(4, spec.action_dim).double())
        is None
    )


@pytest.mark.slow
def test_finds_the_expert_that_hides_among_those_that_do_the_opposite(tmp_path, falling_file, balancing_file):
    """Three of four transitions push the pole over: cloning all of them fails within some steps."""
    mixture, expert = f"{falling_file}+1ep:{balancing_file}", f"1ep:{balancing_file}"
    returns = {}
    for name, own in {
        "recoil": {"expert": expert, "actor_lr": 1e-3, "critic_lr": 1e-3},
        "bc": {"lr": 1e-3},
    }.items():
        run = zoo.train(
            name, env="inverted_pendulum", dataset=mixture, steps=3_000, eval_every=3_000, eval_episodes=10,
            logger="none", run_dir=tmp_path / name, algo_config={"hidden": [64, 64], **own}, **GYMNASIUM,
        )  # fmt: skip
        ((_, episodes),) = run.evaluations
        returns[name] = episodes.returns.mean()
    assert returns["bc"] < 50
    assert returns["recoil"] > 100
