"""Training loops: the number of updates per step, their data, and their settings."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from plain import GYMNASIUM

import zoo
from zoo.agent import Agent
from zoo.algos import dql, dqn, ofql, ppo, sac, td3
from zoo.algos.dsac_t import DSACT
from zoo.algos.h2o import H2O
from zoo.data.buffers import ReplayBuffer, RolloutBuffer
from zoo.data.dataset import Dataset
from zoo.data.goals import Goals
from zoo.nn.heads import ValueHead
from zoo.runs.run import Run
from zoo.runs.stepper import EnvStepper
from zoo.settings.registry import Algorithm, algorithms, settings

SMALL = {"hidden": [16], "batch_size": 32}


@pytest.fixture
def calls(monkeypatch):
    """`calls(owner, "name")`: records a method's calls from then on, each as its positional and named arguments."""

    def of(owner: type, name: str) -> list[tuple[Any, ...]]:
        seen, original = [], getattr(owner, name)

        def method(self, *args, **settings):
            seen.append((*args, *settings.values()))
            return original(self, *args, **settings)

        monkeypatch.setattr(owner, name, method)
        return seen

    return of


@pytest.fixture
def marked(monkeypatch):
    """Rewards of the training environments are higher by a million than any dataset's."""
    step = EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, a: (t := step(envs, a))._replace(reward=1e6 + t.reward))


def train(algo: str, tmp_path, steps: int, config: dict[str, Any], **settings: Any) -> None:
    zoo.train(
        algo, steps=steps, eval_every=steps, eval_episodes=1, logger="none", run_dir=tmp_path / "run",
        algo_config=config, **settings, **GYMNASIUM,
    )  # fmt: skip


def test_sac_and_td3_take_an_update_an_environment_step_and_td3_moves_its_actor_at_every_third(tmp_path, calls):
    of_sac, of_td3 = calls(sac.SAC, "update"), calls(td3.TD3, "update")
    for algo, more in (("sac", {}), ("td3", {"policy_delay": 3})):
        config = SMALL | {"learning_starts": 20} | more
        train(algo, tmp_path / algo, 40, config, env="pendulum", num_envs=2)
    assert [len(batch.reward) for (batch,) in of_sac] == [32] * 20
    assert [delayed for _, delayed in of_td3] == [step % 3 == 0 for step in range(20, 40)]


@pytest.mark.parametrize("num_envs", [1, 8])
def test_dsac_t_learns_at_every_tenth_step_and_moves_its_actor_at_every_second_update(tmp_path, calls, num_envs):
    updates = calls(DSACT, "update")
    config = SMALL | {"learning_starts": 16, "train_every": 10, "policy_delay": 2}
    train("dsac_t", tmp_path, 96, config, env="pendulum", num_envs=num_envs)
    assert [delayed for _, delayed in updates] == [False, True, False, True, False, True, False, True]


@pytest.mark.parametrize(("name", "uniform"), [("sac", 10), ("td3", 10), ("rlpd", 10), ("h2o", 0)])
def test_actions_are_uniform_until_it_learns_and_explore_then(tmp_path, calls, pendulum_file, name, uniform):
    acted, random = calls(algorithms()[name].agent_class, "act"), calls(EnvStepper, "random_action")
    own = {"rlpd": {"offline_fraction": 0.0, "utd_ratio": 1}}.get(name, {})
    data = {"dataset": pendulum_file} if name == "h2o" else {}
    train(name, tmp_path, 40, SMALL | {"learning_starts": 20} | own, env="pendulum", num_envs=2, **data)
    assert len(random) == uniform
    assert [len(obs) for obs, *explore in acted if explore == [True]] == [2] * (20 - uniform)


@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "ppo"])
def test_a_value_head_gets_all_rewards_and_ends_and_the_critics_to_move(tmp_path, calls, name):
    given, tracked = calls(ValueHead, "update_support"), calls(Run, "track")
    stored = calls(RolloutBuffer, "append") if name == "ppo" else calls(ReplayBuffer, "add")
    rollouts = {"num_steps": 20, "minibatches": 4, "normalize_reward": False}
    config = {"hidden": [16]} | (rollouts if name == "ppo" else {"learning_starts": 100})
    env = "cartpole" if name == "dqn" else "pendulum"
    train(name, tmp_path, 120, config, env=env, num_envs=2, **{"env.max_episode_steps": 7})
    steps, (agent, *_) = [step for step, *_ in stored], tracked[0]
    ended = torch.stack([step.terminated | step.truncated for step in steps])
    assert ended.any()
    assert torch.equal(torch.cat([end for _, end, *_ in given]), ended)
    assert torch.equal(torch.cat([reward for reward, *_ in given]), torch.stack([step.reward for step in steps]))
    names = {"dqn": ("network", "target_network"), "ppo": ("value",)}.get(name, ("critic", "target_critic"))
    for _, _, *critics in given:
        assert [id(critic) for critic in critics] == [id(getattr(agent, one)) for one in names]


@pytest.mark.usefixtures("marked")
def test_h2o_puts_the_datasets_share_of_a_batch_first(tmp_path, calls, pendulum_file):
    updates = calls(H2O, "update")
    config = SMALL | {"learning_starts": 20, "offline_fraction": 0.25}
    train("h2o", tmp_path, 40, config, env="pendulum", num_envs=2, dataset=pendulum_file)
    assert len(updates) == 20
    for (batch,) in updates:
        assert (batch.reward > 1e5).tolist() == [False] * 8 + [True] * 24


def test_dqn_passes_on_its_steps_its_schedule_and_rewards_that_are_clipped(tmp_path, calls, monkeypatch):
    step = EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, a: (t := step(envs, a))._replace(reward=0.5 * t.reward))
    updates, moves = calls(dqn.DQN, "update"), calls(dqn.DQN, "update_target")
    sampled, explored = calls(ReplayBuffer, "sample_n_step"), calls(dqn.DQN, "explore")
    config = {"train_every": 4, "target_every": 8, "n_step": 3, "discount": 0.9, "clip_reward": True, "epsilon": 0.1}
    config |= SMALL | {"learning_starts": 40, "exploration_fraction": 0.5}
    train("dqn", tmp_path, 96, config, env="cartpole", num_envs=2)
    assert len(updates) == (96 - 40) / 4
    assert len(moves) == (96 - 40) / 8
    assert set(sampled) == {(32, 3, 0.9)}
    largest = max(float(batch.reward.max()) for (batch,) in updates)
    assert largest == pytest.approx(1 + 0.9 + 0.81)
    epsilons = [epsilon for _, epsilon in explored[:48]]  # of training; those of the evaluation follow
    assert epsilons == pytest.approx([1 - 0.9 * min(1, step / 48) for step in range(0, 96, 2)])


def test_dqn_updates_before_its_target_moves(tmp_path, monkeypatch):
    order = []
    for name in ("update", "update_target"):
        original = getattr(dqn.DQN, name)
        monkeypatch.setattr(dqn.DQN, name, lambda *given, n=name, do=original: (order.append(n), do(*given))[1])
    config = SMALL | {"train_every": 4, "target_every": 8, "learning_starts": 16}
    train("dqn", tmp_path, 32, config, env="cartpole")
    assert order == ["update", "update", "update_target"] * 2


@pytest.mark.parametrize("name", ["td3", "dsac_t", "td3_bc", "rebrac"])
def test_the_latest_loss_of_the_actor_stands_beside_a_later_one_of_the_critics(tmp_path, pendulum_file, name):
    own = {"td3": {"learning_starts": 20}, "dsac_t": {"learning_starts": 20, "train_every": 1}}.get(name)
    data = {} if own else {"dataset": pendulum_file}
    config = SMALL | {"policy_delay": 3} | (own or {})
    train(name, tmp_path, 40, config, env="pendulum", log_every=1, **data)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        losses = [(row["critic_loss"], row["actor_loss"]) for row in csv.DictReader(file)]
    critic, actor = map(set, zip(*losses[-18:], strict=True))
    assert len(critic) == 18
    assert len(actor) == 7  # the first from before, then one in three
    assert "" not in actor


@pytest.mark.parametrize("num_envs", [1, 8])
def test_dqns_target_moves_as_often_in_several_environments(tmp_path, calls, num_envs):
    updates, moves = calls(dqn.DQN, "update"), calls(dqn.DQN, "update_target")
    config = SMALL | {"train_every": 1, "target_every": 2, "tau": 0.005, "learning_starts": 16}
    train("dqn", tmp_path, 96, config, env="cartpole", num_envs=num_envs)
    assert len(updates) == 96 - 16
    assert len(moves) == (96 - 16) / 2


@pytest.mark.parametrize("name", ["bcq", "discrete_cql"])
def test_an_offline_target_network_moves_after_every_so_many_updates(tmp_path, monkeypatch, cartpole_file, name):
    order, agent_class = [], algorithms()[name].agent_class
    for method in ("update", "update_target"):
        original = getattr(agent_class, method)
        monkeypatch.setattr(agent_class, method, lambda *given, n=method, do=original: (order.append(n), do(*given))[1])
    train(name, tmp_path, 10, SMALL | {"target_every": 4}, env="cartpole", dataset=cartpole_file)
    assert order == [*["update"] * 4, "update_target"] * 2 + ["update"] * 2


def test_ppo_learns_from_the_actions_that_it_drew_not_from_those_that_were_clipped(tmp_path, calls):
    stored, stepped = calls(RolloutBuffer, "append"), calls(EnvStepper, "step")
    config = {"hidden": [16], "num_steps": 64, "minibatches": 4}
    train("ppo", tmp_path, 128, config, env="pendulum", num_envs=2)
    drawn, taken = torch.cat([one.action for (one,) in stored]), torch.cat([action for (action,) in stepped])
    assert (drawn.abs() > 2).any()
    torch.testing.assert_close(drawn.clamp(-2, 2), taken)


def test_ppos_learning_rate_falls_to_nothing_at_the_runs_end(tmp_path, monkeypatch):
    lengths, begin = [], ppo.PPO.__init__
    monkeypatch.setattr(ppo.PPO, "__init__", lambda agent, *given: (lengths.append(given[2:]), begin(agent, *given))[1])
    config = {"hidden": [16], "num_steps": 32, "minibatches": 4, "epochs": 3}
    train("ppo", tmp_path / "whole", 256, config, env="pendulum", num_envs=2)
    train("ppo", tmp_path / "odd", 255, config, env="pendulum", num_envs=2)  # which takes 256 steps
    assert lengths[0] == lengths[-1] == (256 // (2 * 32) * 3 * 4,)


@pytest.mark.parametrize("module", [dql, ofql], ids=["dql", "ofql"])
def test_the_average_policy_begins_late_and_moves_now_and_then(tmp_path, calls, pendulum_file, module):
    agent, name = (dql.DQL, "dql") if module is dql else (ofql.OFQL, "ofql")
    updates = calls(agent, "update")
    config = SMALL | {"average_start": 4, "average_every": 3}
    train(name, tmp_path, 12, config, env="pendulum", dataset=pendulum_file)
    assert [average for _, average in updates] == [step in (6, 9) for step in range(12)]


@pytest.mark.parametrize("name", ["crl", "gcbc", "gciql", "gcivl", "hiql", "ota", "qrl"])
def test_goals_are_of_the_shares_the_discount_and_the_steps_that_are_set(tmp_path, calls, reach_file, name):
    made = calls(Goals, "__init__")
    sampled = [calls(Goals, method) for method in ("sample", "sample_subgoals", "sample_options")]
    config = {"actor_goals": [0.2, 0.3, 0.5], "batch_size": 32, "hidden": [16]}
    value, actor = [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]
    config |= {} if name == "gcbc" else {"value_goals": value}
    config |= {} if name in ("gcbc", "qrl") else {"discount": 0.9}
    config |= {"subgoal_steps": 4} if name in ("hiql", "ota") else {}
    config |= {"option_steps": 3} if name == "ota" else {}
    train(name, tmp_path, 3, config, env="Reach-v0", dataset=reach_file)
    ((_, *given),) = made
    expected = {"gcbc": ([0.0, 0.0, 1.0], actor), "qrl": (value, actor)}.get(name, (value, actor, 0.9))
    assert tuple(given) == expected
    steps = {"hiql": (32, 4), "ota": (32, 4, 3)}.get(name, (32,))
    outer = {"hiql": sampled[1], "ota": sampled[2]}.get(name, sampled[0])
    assert outer == [steps] * 3


# --- What `train` makes of a dataset ---


class Columns(NamedTuple):
    """A dataset's columns in float64. Continuous actions are different for each transition."""

    path: Path
    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_obs: np.ndarray

    @property
    def returns(self) -> np.ndarray:
        return self.reward.reshape(-1, 5).sum(1)


def write_episodes(path: Path, obs_dim: int, num_actions: int | None = None, seed: int = 0) -> Columns:
    """Writes twelve episodes of five transitions. Entries have different spreads, and means increase over the steps.

    So observations and next observations have different means.
    """
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(12, 6, obs_dim)) * (1 + np.arange(obs_dim)) + 3 + seed + np.arange(6)[:, None]
    states = states.astype(np.float32)
    if num_actions is None:
        action = rng.uniform(-2, 2, (60, 1)).astype(np.float32)
    else:
        action = rng.integers(num_actions, size=60)
    ends = np.arange(60) % 5 == 4
    obs, next_obs = (states[:, part].reshape(60, obs_dim) for part in (slice(5), slice(1, 6)))
    columns = {
        "observations": obs, "actions": action, "rewards": rng.normal(size=60).astype(np.float32),
        "next_observations": next_obs, "terminals": np.zeros(60, bool), "timeouts": ends,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return Columns(path, *(column.astype(float) for column in list(columns.values())[:4]))


class Seen(Exception):
    """Raised at the first batch, to end the run."""


@pytest.fixture
def first_batch(monkeypatch, tmp_path) -> Callable[..., tuple[Agent, Any]]:
    """`first_batch(algorithm, data, config, ...)`: the arguments of a run's first update, and the agent."""

    def of(algorithm: Algorithm, data: Columns, config: dict[str, Any], **more: Any) -> tuple[Agent, Any]:
        def learn(agent: Agent, batch: Any, *args: Any, **how: Any) -> None:
            raise Seen(agent, batch)

        for method in ("clone", "update"):  # `clone` trains a flow before everything else, `update` all
            if hasattr(algorithm.agent_class, method):
                monkeypatch.setattr(algorithm.agent_class, method, learn)
        env = "pendulum" if "continuous" in algorithm.action_spaces else "cartpole"
        config = ({"hidden": [8]} if hasattr(algorithm.module.Config(), "hidden") else {}) | {"batch_size": 64} | config
        with pytest.raises(Seen) as seen:
            train(algorithm.name, tmp_path, 2, config, env=env, dataset=data.path, **more)
        return seen.value.args

    return of


def assert_normalized(batch: Any, data: Columns, mean: np.ndarray, std: np.ndarray, scale: float = 1.0) -> None:
    """Asserts that a batch has rows of the dataset, normalized by the given statistics."""
    row = batch.index.numpy() if "index" in batch._fields else np.abs(batch.action.numpy() - data.action.T).argmin(1)
    assert len(set(row)) > 20
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(batch.action.numpy(), data.action[row], **close)
    np.testing.assert_allclose(batch.obs.numpy(), (data.obs[row] - mean) / std, **close)
    if "next_obs" in batch._fields:
        np.testing.assert_allclose(batch.next_obs.numpy(), (data.next_obs[row] - mean) / std, **close)
    if "reward" in batch._fields:
        np.testing.assert_allclose(batch.reward.numpy(), data.reward[row] * scale, **close)


def assert_holds(agent: Agent, mean: np.ndarray, std: np.ndarray) -> None:
    np.testing.assert_allclose(agent.normalizer.mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(agent.normalizer.std.numpy(), std, rtol=1e-5)


NORMALIZING = [
    file
    for file in algorithms().values()
    if file.data == "required" and "normalize_obs" in {one.name for one in settings(file.path, "Config")}
]


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("algorithm", NORMALIZING, ids=[file.name for file in NORMALIZING])
def test_the_dataset_is_normalized_as_far_as_the_settings_say(tmp_path, first_batch, algorithm, normalized):
    discrete = "continuous" not in algorithm.action_spaces
    data = write_episodes(tmp_path / "data.hdf5", *((4, 2) if discrete else (3,)))
    config = {"normalize_obs": normalized}
    mean, std, scale = np.zeros(data.obs.shape[1]), np.ones(data.obs.shape[1]), 1.0
    if normalized:  # RIQL's statistics are those of both
        states = np.concatenate([data.obs, data.next_obs]) if algorithm.name == "riql" else data.obs
        mean, std = states.mean(0), states.std(0) + 1e-3
    if hasattr(algorithm.module.Config(), "normalize_reward"):
        config["normalize_reward"] = normalized
        scale = 1000 / (data.returns.max() - data.returns.min()) if normalized else 1.0
    if algorithm.name == "recoil":
        config["expert"] = str(data.path)
    agent, batch = first_batch(algorithm, data, config)
    assert_normalized(batch, data, mean, std, scale)
    assert_holds(agent, mean, std)


def test_there_are_algorithms_that_normalize():
    assert {"awac", "bc", "edac", "fql", "iql", "rebrac", "td3_bc"} <= {file.name for file in NORMALIZING}


def test_riqls_statistics_weigh_transitions_by_how_often_they_are_sampled(tmp_path, first_batch):
    data = write_episodes(tmp_path / "data.hdf5", 3)
    best = np.repeat(data.returns >= np.sort(data.returns)[-6], 5)  # six of the twelve episodes
    states = np.concatenate([data.obs[best], data.next_obs[best]])
    mean, std = states.mean(0), states.std(0) + 1e-3
    more = {"sampler.name": "top", "sampler.fraction": 0.5}
    agent, batch = first_batch(algorithms()["riql"], data, {"normalize_obs": True}, **more)
    assert best[batch.index].all()
    assert_normalized(batch, data, mean, std)
    assert_holds(agent, mean, std)


def test_recoil_normalizes_the_experts_observations_as_the_mixtures(tmp_path, first_batch):
    data, expert = write_episodes(tmp_path / "data.hdf5", 3), write_episodes(tmp_path / "expert.hdf5", 3, seed=1)
    mean, std = data.obs.mean(0), data.obs.std(0) + 1e-3
    config = {"normalize_obs": True, "expert": str(expert.path)}
    agent, batch = first_batch(algorithms()["recoil"], data, config)
    for half, of in ((slice(64), data), (slice(64, 128), expert)):
        assert_normalized(type(batch)(*(column[half] for column in batch)), of, mean, std)
    assert_holds(agent, mean, std)


def test_h2os_noise_is_in_units_of_the_datasets_standard_deviation(tmp_path, first_batch):
    data = write_episodes(tmp_path / "data.hdf5", 3)
    agent, batch = first_batch(algorithms()["h2o"], data, {"learning_starts": 1, "offline_fraction": 0.9})
    np.testing.assert_allclose(agent.obs_std.numpy(), data.obs.std(0), rtol=0.01)
    own = type(batch)(*(column[:58] for column in batch))  # of 64 transitions
    assert_normalized(own, data, np.zeros(3), np.ones(3))


def test_rebracs_batches_have_the_actions_that_the_dataset_takes_next(tmp_path, first_batch):
    data = write_episodes(tmp_path / "data.hdf5", 3)
    _, batch = first_batch(algorithms()["rebrac"], data, {})
    row = np.abs(batch.action.numpy() - data.action.T).argmin(1)
    follows = row % 5 != 4
    assert batch.follows.tolist() == follows.tolist()
    np.testing.assert_allclose(batch.next_action.numpy()[follows], data.action[row[follows] + 1])


def test_bc_of_the_best_episodes_normalizes_by_their_statistics(tmp_path, first_batch):
    data = write_episodes(tmp_path / "data.hdf5", 3)
    best = np.repeat(data.returns >= np.sort(data.returns)[-6], 5)
    agent, _ = first_batch(algorithms()["bc"], data, {"top_fraction": 0.5})
    assert_holds(agent, data.obs[best].mean(0), data.obs[best].std(0) + 1e-3)


@pytest.mark.parametrize(("name", "online"), [("ro2o", {"smooth": False}), ("famo2o", {"balanced": True})])
def test_online_updates_differ_as_the_paper_has_it(name, online, pendulum_file, tmp_path, monkeypatch):
    kind, seen = algorithms()[name].agent_class, []
    update = kind.update
    monkeypatch.setattr(kind, "update", lambda agent, batch, **how: (seen.append(how), update(agent, batch, **how))[1])
    config = SMALL | ({"num_critics": 2} if name == "ro2o" else {})
    train(name, tmp_path, 2, config, env="pendulum", dataset=pendulum_file, online_steps=3)
    assert seen == [{}] * 2 + [online] * 3


@pytest.mark.parametrize("name", ["dvl", "iql", "recoil", "riql"])
def test_the_actors_learning_rate_falls_over_the_steps_of_the_run(name, pendulum_file, tmp_path, monkeypatch):
    agents, update = [], algorithms()[name].agent_class.update
    monkeypatch.setattr(
        algorithms()[name].agent_class, "update", lambda agent, batch: (agents.append(agent), update(agent, batch))[1]
    )
    config = SMALL | ({"expert": f"1ep:{pendulum_file}"} if name == "recoil" else {})
    train(name, tmp_path, 3, config, env="pendulum", dataset=pendulum_file)
    assert [agent.actor_optimizer.decay_steps for agent in agents] == [3] * 3


def test_the_bins_of_sacs_values_cover_the_returns_of_its_dataset(tmp_path, calls, pendulum_file):
    prepared = calls(Dataset, "prepare")
    config = SMALL | {"value_head": "two_hot", "offline_fraction": 0.5, "learning_starts": 2}
    train("sac", tmp_path, 4, config, env="pendulum", dataset=pendulum_file)
    assert len(prepared) == 1
