"""Offline algorithms that continue online, and SAC with half of each batch from a dataset."""

import csv
import json

import h5py
import numpy as np
import pytest
import torch

import zoo
from zoo.algos.iql import IQL
from zoo.algos.iql import Config as IQLConfig
from zoo.algos.rebrac import ReBRAC
from zoo.data.batch import Batch, either, mixed
from zoo.runs import online
from zoo.runs.stepper import EnvStepper
from zoo.settings.registry import algorithms

SMALL = {"eval_episodes": 1, "logger": "none", "log_every": 10, "algo_config": {"hidden": [16], "batch_size": 32}}
ABLE = [  # algorithms with a buffer; on-policy algorithms learn only from their latest steps
    name
    for name, algorithm in algorithms().items()
    if algorithm.setting == "offline to online" and algorithm.family != "on-policy"
]


def test_there_are_some():
    assert {"awac", "cql", "iql"} <= set(ABLE)


def batch(value: float, count: int) -> Batch:
    column = torch.full((count,), value)
    return Batch(column[:, None], column[:, None], column, column[:, None], column > 0, column.long())


def test_two_batches_as_one_keep_every_transition_whole():
    both = mixed(batch(0.0, 3), batch(1.0, 5))
    for field in both:
        assert field.flatten().tolist() == [0] * 3 + [1] * 5


@pytest.fixture
def batches(monkeypatch):
    """`batches(algo)`: a list to which every batch of the algorithm's updates is added."""

    def of(algo: str) -> list[Batch]:
        agent_class, seen = algorithms()[algo].agent_class, []
        update = agent_class.update

        def watched(agent, batch, *args, **how):
            seen.append(batch)
            return update(agent, batch, *args, **how)

        monkeypatch.setattr(agent_class, "update", watched)
        return seen

    return of


def test_either_batch_gives_whole_transitions():
    first = torch.tensor([True, False, False, True])
    for field in either(first, batch(1.0, 4), batch(0.0, 4)):
        assert field.flatten().tolist() == first.tolist()


@pytest.fixture
def own_reward(monkeypatch):
    """Marks collected transitions by a reward that no dataset has."""
    step = EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, a: (t := step(envs, a))._replace(reward=1e6 + 0 * t.reward))


def own(batch: Batch) -> int:
    return int((batch.reward > 1e5).sum())


def go_online(algo: str, dataset, run_dir, **settings):
    scales = hasattr(algorithms()[algo].module.Config(), "normalize_reward")
    return zoo.train(
        algo, env="pendulum", dataset=dataset, steps=20, eval_every=10_000, run_dir=run_dir,
        **SMALL | {"algo_config": SMALL["algo_config"] | ({"normalize_reward": False} if scales else {})}, **settings,
    )  # fmt: skip


@pytest.mark.parametrize("algo", ABLE)
def test_online_batches_are_drawn_uniformly_from_dataset_and_own_transitions(
    algo, pendulum_file, tmp_path, batches, own_reward
):
    seen = batches(algo)
    go_online(algo, pendulum_file, tmp_path / "run", online_steps=600)
    with h5py.File(pendulum_file) as file:
        size = len(file["rewards"])
    seen = seen[-600:]  # those before are offline, or of another kind
    assert [len(batch.reward) for batch in seen] == [32] * 600
    shares = [(step + 1) / (step + 1 + size) for step in range(600)]
    found = sum(map(own, seen))
    spread = sum(32 * share * (1 - share) for share in shares) ** 0.5
    assert abs(found - 32 * sum(shares)) < 4 * spread
    assert sum(map(own, seen[:10])) < 8  # far below a quarter: there are only ten such transitions


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.5, 16), (1.0, 32)])
def test_online_fraction_of_every_online_batch_is_of_own_transitions(
    fraction, count, pendulum_file, tmp_path, batches, own_reward
):
    seen = batches("awac")
    go_online("awac", pendulum_file, tmp_path / "run", online_steps=30, online_fraction=fraction)
    assert [own(batch) for batch in seen] == [0] * 20 + [count] * 30


def test_online_starts_collects_before_the_first_online_update(pendulum_file, tmp_path, batches, own_reward):
    seen = batches("awac")
    go_online("awac", pendulum_file, tmp_path / "run", online_steps=30, online_fraction=1.0, online_starts=25)
    assert len(seen) == 20 + 5
    assert len(set(seen[20].index.tolist())) > 10  # of 26 transitions


def test_online_updates_are_counted_from_the_first_step_of_all_environments_that_has_one(
    pendulum_file, tmp_path, monkeypatch
):
    """Four environments reach 8 steps, the first multiple of four from 5 on."""
    counts, update = [], ReBRAC.update
    monkeypatch.setattr(ReBRAC, "update", lambda a, b, **k: (counts.append(k["delayed"]), update(a, b, **k))[1])
    go_online("rebrac", pendulum_file, tmp_path / "run", online_steps=16, online_starts=5, num_envs=4)
    assert counts[20:] == [True, False] * 4


@pytest.mark.parametrize(("algo", "first"), [("td3_bc", 1), ("rebrac", 0)])
def test_every_second_online_update_moves_the_actor(algo, first, pendulum_file, tmp_path, monkeypatch):
    agent_class, moved = algorithms()[algo].agent_class, []
    loss = agent_class.actor_loss
    update = agent_class.update
    monkeypatch.setattr(agent_class, "update", lambda agent, *a, **k: (moved.append(0), update(agent, *a, **k))[1])
    monkeypatch.setattr(agent_class, "actor_loss", lambda agent, *a: (moved.__setitem__(-1, 1), loss(agent, *a))[1])
    go_online(algo, pendulum_file, tmp_path / "run", online_steps=12, online_updates=3, online_starts=4)
    assert moved[20:] == [int(i % 2 == first) for i in range(24)]


def test_iql_learns_online_at_the_learning_rate_it_began_with(pendulum_file, tmp_path):
    """As in the authors' finetune configuration, whose `opt_decay_schedule` is None."""
    run = go_online("iql", pendulum_file, tmp_path / "run", online_steps=5)
    assert run._agent.actor_optimizer.decay_steps is None


@pytest.mark.slow
def test_awac_still_balances_after_its_first_online_updates(balancing_file, tmp_path):
    """When half of every batch was from its first few transitions, the return fell from 1,000 to 7 here."""
    returns = []
    for seed in (0, 1):
        run = zoo.train(
            "awac", env="inverted_pendulum", dataset=balancing_file, steps=300, online_steps=200, eval_every=50,
            eval_episodes=5, seed=seed, logger="none", run_dir=tmp_path / str(seed),
            algo_config={"hidden": [64, 64]},
        )  # fmt: skip
        returns += [episodes.returns.mean() for step, episodes in run.evaluations if step > 300]
    assert np.mean(returns) > 500


def test_fewer_online_steps_than_environments_are_taken(pendulum_file, tmp_path):
    run = zoo.train(
        "awac", env="pendulum", dataset=pendulum_file, steps=1, online_steps=1, num_envs=4, eval_every=9,
        run_dir=tmp_path / "run", **SMALL,
    )  # fmt: skip
    assert run.done >= 2


def test_a_deterministic_policy_explores_with_noise(spec):
    agent = IQL(spec, IQLConfig(policy="deterministic", hidden=[8], exploration_noise=0.1))
    obs = torch.zeros(20_000, 3)
    low, high = torch.tensor(spec.action_low), torch.tensor(spec.action_high)
    noise = (agent.act(obs, explore=True) - agent.act(obs)) / ((high - low) / 2)
    np.testing.assert_allclose(noise.std(0), [0.1, 0.1], rtol=0.05)
    assert (agent.act(obs, explore=True) <= high).all()
    assert torch.equal(agent.act(obs), agent.act(obs))


def test_what_is_collected_is_normalized_and_scaled_as_the_dataset_was(pendulum_file, tmp_path, batches, monkeypatch):
    seen, steps, step = batches("iql"), [], EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, action: (steps.append(step(envs, action)), steps[-1])[1])
    zoo.train(
        "iql", env="pendulum", dataset=pendulum_file, steps=1, online_steps=250, online_fraction=0.5, eval_every=500,
        run_dir=tmp_path / "run",
        **SMALL | {"algo_config": SMALL["algo_config"] | {"normalize_obs": True, "normalize_reward": True}},
    )  # fmt: skip
    with h5py.File(pendulum_file) as file:
        obs, reward = file["observations"][()], file["rewards"][()]
        ends = np.flatnonzero(file["terminals"][()].astype(bool) | file["timeouts"][()].astype(bool)) + 1
    returns = [part.sum() for part in np.split(reward, ends) if len(part)]
    mean, std, scale = obs.mean(0), obs.std(0), 1000 / (max(returns) - min(returns))
    for batch in seen[1:]:
        for place, got_obs, got_reward in zip(batch.index[16:], batch.obs[16:], batch.reward[16:], strict=True):
            given = steps[int(place) - len(obs)]
            np.testing.assert_allclose(got_obs, (given.obs[0].numpy() - mean) / std, rtol=0.01, atol=0.01)
            np.testing.assert_allclose(got_reward, float(given.reward[0]) * scale, rtol=1e-4)


def test_sac_takes_the_share_that_was_set_from_the_dataset(pendulum_file, tmp_path, batches):
    seen = batches("sac")
    zoo.train(
        "sac", env="pendulum", dataset=pendulum_file, steps=40, eval_every=40, run_dir=tmp_path / "run",
        eval_episodes=1, logger="none",
        algo_config={"hidden": [16], "batch_size": 32, "learning_starts": 20, "offline_fraction": 0.25},
    )  # fmt: skip
    assert {len(batch.index) for batch in seen} == {32}
    assert max(int(batch.index[:24].max()) for batch in seen) < 40  # its own
    assert max(int(batch.index[24:].max()) for batch in seen) > 40  # the dataset's
    assert json.loads((tmp_path / "run" / "run.json").read_text())["dataset"]["transitions"] > 40


def test_indices_of_own_transitions_follow_the_datasets(pendulum_file, tmp_path, batches, own_reward):
    seen = batches("awac")
    go_online("awac", pendulum_file, tmp_path / "run", online_steps=300)
    with h5py.File(pendulum_file) as file:
        size = len(file["rewards"])
    for batch in seen[20:]:
        assert torch.equal(batch.index >= size, batch.reward > 1e5)


def test_as_many_updates_as_asked_for_follow_an_online_step(pendulum_file, tmp_path, batches):
    seen = batches("awac")
    run = go_online("awac", pendulum_file, tmp_path / "run", online_steps=30, online_starts=10, online_updates=4)
    assert len(seen) == 20 + 20 * 4
    assert not run.record.get("notes"), "nothing of it is out of the ordinary"


def test_the_value_of_the_dataset_is_computed_every_hundred_steps_however_many_environments(
    pendulum_file, tmp_path, monkeypatch
):
    steps = []
    monkeypatch.setattr(online, "data_value", lambda *_: steps.append(len(steps)) or {})
    go_online("awac", pendulum_file, tmp_path / "run", online_steps=420, num_envs=3)
    assert len(steps) == 5  # steps 0, 102, 201, 300 and 402


def test_retaining_nothing_without_collecting_first_says_what_it_did(pendulum_file, tmp_path):
    for name, settings in {"none": {}, "first": {"online_starts": 10}, "half": {"online_fraction": 0.5}}.items():
        run = go_online("awac", pendulum_file, tmp_path / name, online_steps=20, **{"online_fraction": 1.0} | settings)
        assert any("online_starts=5000" in note for note in run.record.get("notes", [])) == (name == "none")


@pytest.mark.parametrize("algo", ABLE)
def test_the_value_of_a_fixed_part_of_the_dataset_is_among_the_metrics(algo, pendulum_file, tmp_path, batches):
    batches(algo)
    run = go_online(algo, pendulum_file, tmp_path / "run", online_steps=101)
    with (run.dir / "metrics.csv").open(newline="") as file:
        rows = {int(row["step"]): row["data_value"] for row in csv.DictReader(file)}
    assert {step for step, value in rows.items() if value} == set(range(30, 130, 10)) | {121}
    with h5py.File(pendulum_file) as file:
        obs, action = (torch.from_numpy(file[name][()]).float() for name in ("observations", "actions"))
    spread = torch.linspace(0, len(obs) - 1, 256).long()  # as the last of the updates has left the critics
    agent = run._agent
    values = agent.critic(agent.normalizer(obs[spread]), action[spread])
    assert float(rows[121]) == pytest.approx(values.mean().item(), rel=1e-4)
