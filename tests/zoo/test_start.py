"""`init_from`: a run starts from the agent of a finished run, or one line says why it cannot."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

import zoo
from zoo.algos.dqn import DQN
from zoo.algos.rlpd import RLPD
from zoo.errors import UsageError
from zoo.models.dynamics import EnsembleDynamics
from zoo.runs.load import load_agent
from zoo.runs.stepper import EnvStepper
from zoo.streaming import StreamAgent

NETWORKS = ("actor.", "critic.", "target_critic.", "log_alpha")
OPTIMIZERS = ("actor_optimizer.", "critic_optimizer.", "alpha_optimizer.")
PLAIN = {"hidden": [16], "batch_size": 16, "normalize_obs": False}


def train(algo, run_dir, *, steps=3, env="pendulum", **settings):
    return zoo.train(
        algo, env=env, steps=steps, eval_every=1_000, eval_episodes=1, logger="none", run_dir=run_dir, **settings
    )


@pytest.fixture(scope="module")
def offline(tmp_path_factory, pendulum_file) -> Path:
    """A finished run of CQL."""
    run_dir = tmp_path_factory.mktemp("start") / "cql"
    train("cql", run_dir, dataset=pendulum_file, algo_config=PLAIN)
    return run_dir


def state(run_dir: Path) -> dict[str, torch.Tensor]:
    return load_agent(run_dir)[1].state_dict()


def first_state(monkeypatch, agent_class) -> dict[str, torch.Tensor]:
    """A dictionary that receives the agent's state before its first update."""
    found, update = {}, agent_class.update

    def seen(agent, *batch, **named):
        if not found:
            tensors = {name: value for name, value in agent.state_dict().items() if isinstance(value, torch.Tensor)}
            found.update({name: value.clone() for name, value in tensors.items()})
        return update(agent, *batch, **named)

    monkeypatch.setattr(agent_class, "update", seen)
    return found


@pytest.mark.parametrize("algo", ["sac", "td3", "dsac_t"])
def test_an_actor_that_another_run_has_trained_acts_from_the_first_step_on(algo, tmp_path, monkeypatch):
    settings = {"hidden": [8], "learning_starts": 10, "batch_size": 4}
    train(algo, tmp_path / "one", steps=30, algo_config=settings)
    monkeypatch.delattr(EnvStepper, "random_action")
    train(algo, tmp_path / "other", steps=30, init_from=str(tmp_path / "one"), algo_config=settings)


def test_a_q_network_that_another_run_has_trained_explores_little_from_the_first_step_on(tmp_path, monkeypatch):
    settings = {"hidden": [8], "learning_starts": 10, "batch_size": 4}
    explored, explore = [], DQN.explore
    monkeypatch.setattr(DQN, "explore", lambda agent, action, e: explored.append(e) or explore(agent, action, e))
    train("dqn", tmp_path / "one", steps=30, env="cartpole", algo_config=settings)
    assert explored[0] == 1
    explored.clear()
    train("dqn", tmp_path / "other", steps=30, env="cartpole", init_from=str(tmp_path / "one"), algo_config=settings)
    assert explored == [pytest.approx(0.05)] * 30


def test_the_same_algorithm_begins_with_networks_and_moments(offline, pendulum_file, tmp_path, monkeypatch):
    found = first_state(monkeypatch, type(load_agent(offline)[1]))
    train("cql", tmp_path / "run", dataset=pendulum_file, seed=5, init_from=str(offline), algo_config=PLAIN)
    expected = state(offline)
    assert found.keys() == expected.keys()
    assert {name for name in found if not torch.equal(found[name], expected[name])} == set()
    assert float(found["critic_optimizer.step"]) == 3


def test_what_an_agent_knows_of_running_episodes_is_not_handed_on(pendulum_file, tmp_path):
    short = {"num_steps": 10, "minibatches": 2, "epochs": 1, "hidden": [8]}
    given = {"dataset": pendulum_file, "online_steps": 20, "algo_config": short}
    train("reinflow", tmp_path / "one", **given)
    run = train("reinflow", tmp_path / "other", init_from=str(tmp_path / "one"), **given)
    assert {"flow", "noise", "value"} <= set(run.record["init_from"]["parts"])
    assert "returns_so_far" not in run.record["init_from"]["parts"]


@pytest.mark.parametrize("normalized", [True, False])
def test_ppo_goes_on_with_its_running_statistics(tmp_path, monkeypatch, normalized):
    short = {"num_steps": 10, "minibatches": 2, "epochs": 1, "hidden": [8], "normalize_obs": normalized}
    train("ppo", tmp_path / "one", steps=20, algo_config=short)
    found = first_state(monkeypatch, type(load_agent(tmp_path / "one")[1]))
    train("ppo", tmp_path / "other", steps=20, seed=5, init_from=str(tmp_path / "one"), algo_config=short)
    expected = state(tmp_path / "one")
    names = [name for name in expected if name.startswith(("actor.", "value.", "policy.", "normalizer."))]
    assert all(torch.equal(found[name], expected[name]) for name in names)
    assert ("normalizer.mean" in names) == normalized
    assert found["return_normalizer.count"] == expected["return_normalizer.count"] + 10


def test_soft_actor_critic_begins_with_the_parts_of_cql_and_acts_by_them(offline, tmp_path, monkeypatch, capsys):
    found, acted = first_state(monkeypatch, RLPD), []
    act = RLPD.act
    monkeypatch.setattr(
        RLPD, "act", lambda agent, obs, explore=False: (acted.append(explore), act(agent, obs, explore))[1]
    )
    run = train(
        "rlpd", tmp_path / "run", steps=12, init_from=str(offline),
        algo_config={
            "hidden": [16], "num_critics": 2, "critic_layer_norm": False, "offline_fraction": 0.0, "utd_ratio": 1,
            "learning_starts": 10,
        },
    )  # fmt: skip
    expected = state(offline)
    taken = {name for name in found if name.startswith((*NETWORKS, *OPTIMIZERS))}
    assert taken == found.keys()
    for name in taken:
        assert torch.equal(found[name], expected[name]), name
    assert acted[:10] == [True] * 10  # it acts with its own policy, although it does not learn yet
    record = json.loads((run.dir / "run.json").read_text())["init_from"]
    assert record["algorithm"] == "cql"
    assert record["run"] == json.loads((offline / "run.json").read_text())["id"]
    assert {"actor", "critic", "target_critic", "log_alpha", "critic_optimizer"} <= set(record["parts"])
    assert "begins with actor, critic" in capsys.readouterr().out


def test_a_resumed_run_begins_where_it_was_stopped_not_with_the_first_run(offline, pendulum_file, tmp_path, zoo):
    run_dir = tmp_path / "run"
    arguments = ["algo=cql", "env=pendulum", f"dataset={pendulum_file}", "eval_episodes=1", "logger=none"]
    arguments += [f"algo.{key}={value}".replace(" ", "").lower() for key, value in PLAIN.items()]
    assert zoo("run", *arguments, "steps=40", f"init_from={offline}", f"run_dir={tmp_path / 'whole'}").code == 0
    assert zoo("run", *arguments, "steps=20", f"init_from={offline}", f"run_dir={run_dir}").code == 0
    record = json.loads((run_dir / "run.json").read_text())
    record["config"]["steps"] = 40
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "running"}))
    result = zoo("run", f"resume={run_dir}")
    assert result.code == 0, result.err
    whole, resumed = state(tmp_path / "whole"), state(run_dir)
    assert all(torch.equal(value, whole[name]) for name, value in resumed.items())


@pytest.mark.parametrize("algo", ["iql", "td3_bc", "reinflow"])
def test_without_updates_a_run_learns_online_from_what_the_finished_one_was(algo, pendulum_file, tmp_path):
    short = {"num_steps": 10, "minibatches": 2, "epochs": 1} if algo == "reinflow" else {"batch_size": 16}
    settings = {"dataset": pendulum_file, "algo_config": {"hidden": [16], **short}}
    first = train(algo, tmp_path / "first", **settings)
    run = train(algo, tmp_path / "run", steps=0, online_steps=20, init_from=str(tmp_path / "first"), **settings)
    (_, before), (start, begun), (end, _) = *first.evaluations, *run.evaluations
    assert (start, end) == (0, 20)
    np.testing.assert_array_equal(begun.returns, before.returns)


def test_a_learning_rate_that_decays_begins_anew(pendulum_file, tmp_path, monkeypatch):
    settings = {"dataset": pendulum_file, "algo_config": {"hidden": [16], "batch_size": 16}}
    first = train("iql", tmp_path / "first", **settings)
    assert first._agent.actor_optimizer.decay_steps == 3
    found = first_state(monkeypatch, type(first._agent))
    train("iql", tmp_path / "second", init_from=str(first.dir), **settings)
    assert (float(found["actor_optimizer.step"]), float(found["critic_optimizer.step"])) == (0, 3)


def test_a_target_return_is_the_runs_own_and_its_scale_the_networks(pendulum_file, tmp_path):
    first = train("rcsl", tmp_path / "first", dataset=pendulum_file, algo_config=PLAIN)
    train("rcsl", tmp_path / "second", dataset=pendulum_file, init_from=str(first.dir),
          algo_config=PLAIN | {"target_return": -1500.0})  # fmt: skip
    expected, found = state(first.dir), state(tmp_path / "second")
    assert float(expected["goal.target"]) != float(found["goal.target"]) == -1500
    assert torch.equal(expected["goal.scale"], found["goal.scale"])


def test_a_dynamics_model_goes_on_learning_and_a_rate_that_decays_within_a_part_begins_anew(
    pendulum_file, tmp_path, monkeypatch
):
    dynamics = {"dynamics_hidden": [32] * 4, "dynamics_epochs": 20, "dynamics_lr": 3e-3, "members": 2, "elites": 1}
    behavior = {"behavior_hidden": [8], "behavior_epochs": 2, "diffusion_steps": 2, "rollouts": 3, "min_return": -2e3}
    settings = {"dataset": pendulum_file, "algo_config": {"hidden": [8]} | dynamics | behavior}
    train("mbrcsl", tmp_path / "first", **settings)
    begun, epoch = [], EnsembleDynamics.epoch

    def seen(model):
        begun.append((model.least_error.clone(), model.optimizer.step.clone()))
        return epoch(model)

    monkeypatch.setattr(EnsembleDynamics, "epoch", seen)
    train("mbrcsl", tmp_path / "second", init_from=str(tmp_path / "first"), **settings)
    expected, found = state(tmp_path / "first"), state(tmp_path / "second")
    least_error, step = begun[0]
    assert least_error.isinf().all()
    assert step == expected["dynamics.optimizer.step"] > 0
    assert found["behavior.optimizer.step"] == expected["behavior.optimizer.step"] > 0
    assert found["goal.scale"] == expected["goal.scale"]


@pytest.fixture
def refused(pendulum_file, tmp_path):
    def of(algo, init_from, **settings):
        with pytest.raises(UsageError) as error:
            train(
                algo,
                tmp_path / "run",
                **({"dataset": pendulum_file, "algo_config": PLAIN} | settings),
                init_from=str(init_from),
            )
        assert not (tmp_path / "run").exists()
        assert "\n" not in str(error.value)
        return str(error.value)

    return of


def test_what_is_no_run_or_has_not_finished_is_refused(offline, pendulum_file, tmp_path, refused):
    assert "is not the folder of a run" in refused("cql", tmp_path / "none")
    train("cql", tmp_path / "killed", dataset=pendulum_file, algo_config=PLAIN)
    record = json.loads((tmp_path / "killed" / "run.json").read_text())
    (tmp_path / "killed" / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    assert "has not finished. Let it: zoo run resume=" in refused("cql", tmp_path / "killed")


def test_an_algorithm_without_the_networks_is_refused_with_those_that_have_them(pendulum_file, tmp_path, refused):
    train("bc", tmp_path / "bc", dataset=pendulum_file, algo_config=PLAIN)
    message = refused("cql", tmp_path / "bc")
    assert "bc has no actor, critic, target_critic, log_alpha, log_weight such as cql's" in message
    assert message.endswith("Those that could start it: cql")
    message = refused("rlpd", tmp_path / "bc", algo_config={"hidden": [16], "learning_starts": 1})
    able = message.partition("Those that could start it: ")[2].split(", ")
    assert {"cql", "edac", "rlpd", "sac"} <= set(able)
    assert not {"awac", "bc", "iql", "td3"} & set(able)  # no temperature, other policies


def test_a_policy_of_another_meaning_is_refused(pendulum_file, tmp_path, refused):
    """IQL's and AWAC's policies have the same weights, but only one of them squashes the mean."""
    train("iql", tmp_path / "iql", dataset=pendulum_file, algo_config={"hidden": [16, 16], "batch_size": 16})
    assert "iql has no actor such as awac's" in refused("awac", tmp_path / "iql")


def test_parts_of_another_kind_are_refused_with_the_settings_they_have(tmp_path, refused):
    short = {"num_steps": 10, "minibatches": 2, "hidden": [8], "epochs": 1}
    train("ppo", tmp_path / "ppo", steps=20, dataset="demo", algo_config=short | {"normalize_obs": False})
    message = refused("ppo", tmp_path / "ppo", steps=20, dataset="demo", algo_config=short)
    assert "its normalizer is of another kind than this run's" in message
    assert "Build this one alike: " in message
    assert "algo.normalize_obs=False" in message


def test_of_the_settings_that_shape_networks_those_that_differ_are_named(pendulum_file, tmp_path, refused):
    small = {"hidden": [16], "num_steps": 10, "minibatches": 2}
    train("reinflow", tmp_path / "fixed", dataset=pendulum_file, algo_config=small | {"noise": "fixed"})
    message = refused("reinflow", tmp_path / "fixed", algo_config=small)
    assert message.endswith("Build this one alike: algo.noise=fixed")


def test_of_an_algorithm_that_could_not_start_this_one_nothing_is_asked_for_first(pendulum_file, tmp_path, refused):
    train("iql", tmp_path / "iql", dataset=pendulum_file, algo_config={"hidden": [16, 16], "batch_size": 16})
    message = refused("td3_bc", tmp_path / "iql", algo_config={"hidden": [16, 16]})  # normalizes observations
    assert "iql has no actor, target_actor such as td3_bc's" in message
    assert message.startswith("init_from=")
    assert refused("td3_bc", "nowhere").startswith("init_from=nowhere: nowhere is not the folder of a run")


def test_networks_of_other_shapes_are_refused_with_the_settings_they_have(offline, refused):
    message = refused("rlpd", offline, algo_config={"learning_starts": 1})
    assert "its actor has other layers than this run's" in message
    assert "algo.hidden=[16]" in message


def test_a_run_on_another_environment_is_refused(offline, refused):
    assert "has learned on pendulum, where observations or actions have other shapes" in refused(
        "rlpd", offline, env="inverted_pendulum", dataset="demo",
        algo_config={"offline_fraction": 0.0, "learning_starts": 1},
    )  # fmt: skip


def test_other_normalization_and_other_rewards_are_refused(offline, pendulum_file, tmp_path, refused):
    assert "normalized otherwise" in refused("cql", offline, algo_config=PLAIN | {"normalize_obs": True})
    message = refused("cql", offline, reward_scale=10.0)
    assert "those of reward_scale=1.0 reward_shift=0.0 algo.normalize_reward=false" in message
    assert "other rewards" in refused("cql", offline, algo_config=PLAIN | {"normalize_reward": True})


def test_values_of_another_support_and_returns_of_another_scale_are_refused(pendulum_file, tmp_path, refused, capsys):
    given = PLAIN | {"value_head": "hl_gauss", "v_min": -2000.0, "v_max": 100.0}
    train("cql", tmp_path / "cql", dataset=pendulum_file, algo_config=given)
    message = refused("cql", tmp_path / "cql", algo_config=given | {"v_max": 200.0})
    assert message.endswith("or give its own: algo.v_min=-2000 algo.v_max=100")
    train("cql", tmp_path / "without", dataset=pendulum_file, init_from=str(tmp_path / "cql"),
          algo_config=PLAIN | {"value_head": "hl_gauss"})  # fmt: skip
    assert float(state(tmp_path / "without")["head.v_max"]) == 100
    assert "cql: and so with algo.v_min=-2000 algo.v_max=100" in capsys.readouterr().out
    train("rcsl", tmp_path / "rcsl", dataset=pendulum_file, algo_config=PLAIN | {"return_scale": 500.0})
    message = refused("rcsl", tmp_path / "rcsl", algo_config=PLAIN | {"return_scale": 700.0})
    assert message.endswith("Leave it out, or give its own: algo.return_scale=500")


def test_rewards_that_another_dataset_normalizes_otherwise_are_refused_with_the_scale_to_give(
    pendulum_file, tmp_path, refused
):
    normalized = {"hidden": [16], "batch_size": 16, "normalize_reward": True, "normalize_obs": False}
    first = train("awac", tmp_path / "first", dataset=pendulum_file, algo_config=normalized)
    factor = first.record["dataset"]["reward_scale"]
    with h5py.File(pendulum_file) as file:
        returns = file["rewards"][:].reshape(-1, 200).sum(1)
    assert factor == pytest.approx(1000 / np.ptp(returns))
    train("awac", tmp_path / "same", dataset=pendulum_file, init_from=str(first.dir), algo_config=normalized)
    with h5py.File(pendulum_file) as file, h5py.File(tmp_path / "other.hdf5", "w") as other:
        for name in file:
            other[name] = file[name][:] * (np.float32(0.5) if name == "rewards" else 1)
    message = refused("awac", first.dir, dataset=str(tmp_path / "other.hdf5"), algo_config=normalized)
    assert f"those of reward_scale={factor} reward_shift=0.0 algo.normalize_reward=false: so must" in message
    train(
        "awac", tmp_path / "given", dataset=str(tmp_path / "other.hdf5"), init_from=str(first.dir),
        reward_scale=factor, algo_config=normalized | {"normalize_reward": False},
    )  # fmt: skip


@pytest.mark.parametrize(("algo", "env"), [("ppo", "pendulum"), ("dqn", "cartpole")])
def test_other_rewards_are_refused_whatever_the_values_are_called(algo, env, tmp_path, refused):
    short = {"num_steps": 10, "minibatches": 2, "hidden": [8], "epochs": 1}
    short = short if algo == "ppo" else {"hidden": [8], "learning_starts": 5, "batch_size": 4}
    train(algo, tmp_path / "one", env=env, steps=20, algo_config=short)
    assert "other rewards" in refused(
        algo, tmp_path / "one", env=env, dataset="demo", steps=20, reward_scale=100.0, algo_config=short
    )


@pytest.mark.parametrize(
    ("algo", "one", "other", "policy", "scale"),
    [
        ("dsrl", {"flow_steps": 2}, {"flow_steps": 2, "magnitude": 2.0}, "actor", 2.0),
        ("famo2o", {}, {"lowest": 8.0, "highest": 14.0}, "balance", 3.0),
    ],
)
def test_bounds_that_are_settings_are_the_runs_own(pendulum_file, tmp_path, algo, one, other, policy, scale):
    small = {"hidden": [8], "batch_size": 8}
    first = train(algo, tmp_path / "one", dataset=pendulum_file, algo_config=small | one)
    second = train(algo, tmp_path / "two", dataset=pendulum_file, init_from=str(first.dir), algo_config=small | other)
    assert float(getattr(second._agent, policy).scale[0]) == scale


def test_a_policy_that_steers_goes_on_steering(pendulum_file, tmp_path, monkeypatch):
    small = {"hidden": [8], "batch_size": 8, "flow_steps": 2}
    train("dsrl", tmp_path / "one", dataset=pendulum_file, online_steps=5, algo_config=small)
    found = first_state(monkeypatch, type(load_agent(tmp_path / "one")[1]))
    train("dsrl", tmp_path / "two", dataset=pendulum_file, online_steps=5, init_from=str(tmp_path / "one"),
          algo_config=small)  # fmt: skip
    assert bool(found["learns"])


def test_a_stream_has_the_time_limit_of_its_own_run(tmp_path):
    first, second = (
        zoo.train(
            "stream_q", env="cartpole", steps=20, eval_episodes=1, logger="none", run_dir=tmp_path / f"{limit}",
            algo_config={"hidden": [32, 32]}, **{"env.max_episode_steps": limit, **more},
        )
        for limit, more in ((100, {}), (400, {"init_from": str(tmp_path / "100")}))
    )  # fmt: skip
    assert zoo.load(first.dir).agent.normalizer.time_limit == 100
    assert zoo.load(second.dir).agent.normalizer.time_limit == 400


@pytest.mark.parametrize("algo", ["stream_q", "stream_sarsa"])
def test_a_stream_that_starts_from_another_does_not_explore_anew(tmp_path, monkeypatch, algo):
    """Its epsilon depends on the samples seen so far, the other run's included."""
    epsilons, epsilon = [], StreamAgent.epsilon
    monkeypatch.setattr(
        StreamAgent, "epsilon", lambda agent, *a: (epsilons.append(epsilon(agent, *a)), epsilons[-1])[1]
    )
    settings = {"hidden": [32, 32], "exploration_fraction": 1.0, "epsilon": 0.01}
    common = {"env": "cartpole", "compile": False, "algo_config": settings}
    first = train(algo, tmp_path / "first", steps=20, **common)
    assert max(epsilons) > 0.8
    del epsilons[:]
    train(algo, tmp_path / "second", steps=300, init_from=str(first.dir), **common)
    assert len(epsilons) >= 300
    assert [float(x) for x in epsilons] == pytest.approx([0.01] * len(epsilons))
