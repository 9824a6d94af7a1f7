"""Residual learning: corrections of a frozen run's actions, which start at zero."""

import json
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FrameStackObservation

import zoo
from zoo import cli
from zoo.agent import Agent
from zoo.algos.sac import SAC
from zoo.data.batch import Transition
from zoo.errors import UsageError
from zoo.runs.evaluation import evaluate
from zoo.runs.load import load_agent
from zoo.runs.residual import Base, ResidualStepper
from zoo.runs.stepper import EnvStepper
from zoo.spec import Spec

SMALL = {"env": "pendulum", "eval_episodes": 2, "eval_every": 10_000, "logger": "none"}
CONFIGS = {
    "ppo": {"hidden": [8], "num_steps": 50, "minibatches": 2, "epochs": 1},
    "sac": {"hidden": [8], "batch_size": 16, "learning_starts": 60},
    "dsac_t": {"hidden": [8], "batch_size": 16, "learning_starts": 60},
    "td3": {"hidden": [8], "batch_size": 16, "learning_starts": 60},
}
STILL = {"ppo": {"lr": 1e-30}, "sac": {"actor_lr": 1e-30}, "dsac_t": {"actor_lr": 1e-30}, "td3": {"actor_lr": 1e-30}}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("base") / "run"
    zoo.train("sac", **SMALL, steps=200, run_dir=folder, algo_config=CONFIGS["sac"])
    return folder


def train(algo, base, run_dir, config=None, **settings):
    return zoo.train(
        algo, **SMALL, steps=100, run_dir=run_dir, base=str(base), algo_config=CONFIGS[algo] | (config or {}),
        **settings,
    )  # fmt: skip


class Halves(Agent):
    """A base policy whose actions are half of the first two observations."""

    spec = Spec((3,), (-2.0, -0.5), (2.0, 0.5))

    def act(self, obs, explore=False):
        return obs[:, :2] / 2


class Ending:
    """Environments whose episodes end at 3 and begin at 1."""

    num_envs, obs = 4, torch.zeros(4, 3)

    def step(self, action):
        before, self.obs, none = self.obs, torch.ones(4, 3), torch.zeros(4)
        return Transition(before, action, none, torch.full((4, 3), 3.0), none.bool(), ~none.bool())


def test_the_last_observation_of_an_episode_stays_with_the_bases_action_for_it():
    base = Base(Halves(), 0.5)
    stepper = ResidualStepper(Ending(), base)
    transition = stepper.step(torch.zeros(4, 2))
    seen = {number: torch.tensor([number] * 3 + [number / 4, number]) for number in (0.0, 1.0, 3.0)}
    for obs, number in ((transition.obs, 0.0), (transition.next_obs, 3.0), (stepper.obs, 1.0)):
        torch.testing.assert_close(obs, seen[number].expand(4, -1))
    drawn = torch.cat([stepper.random_action() for _ in range(200)])
    assert drawn.min() < -0.9
    assert drawn.max() > 0.9


def test_a_correction_is_what_makes_an_action_of_the_bases():
    base = Base(Halves(), 0.2)
    seen, correction = base.seen(torch.rand(6, 3) - 0.5), 2 * torch.rand(6, 2) - 1
    torch.testing.assert_close(base.correction(seen, base.corrected(seen, correction)), correction)


@pytest.mark.parametrize("algo", list(CONFIGS))
def test_a_residual_policy_that_has_not_moved_is_the_base(algo, base, tmp_path):
    run = train(algo, base, tmp_path / "run", STILL[algo])
    _, agent, _ = load_agent(base)
    np.testing.assert_array_equal(run.evaluations[-1][1].returns, evaluate(agent, run._eval_envs, 0).returns)


@pytest.mark.parametrize("algo", list(CONFIGS))
def test_a_residual_policy_that_has_moved_is_not(algo, base, tmp_path):
    run = train(algo, base, tmp_path / "run")
    _, agent, _ = load_agent(base)
    assert not np.array_equal(run.evaluations[-1][1].returns, evaluate(agent, run._eval_envs, 0).returns)


def test_what_is_learned_from_are_corrections_of_what_the_environment_was_given(base, tmp_path, monkeypatch):
    """An action is the base's action plus a tenth of the correction times half the range, clipped."""
    given, step = [], EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, action: (given.append(step(envs, action)), given[-1])[1])
    seen, update = [], SAC.update
    monkeypatch.setattr(SAC, "update", lambda agent, batch: (seen.append(batch), update(agent, batch))[1])
    train("sac", base, tmp_path / "run", base_scale=0.5)
    _, agent, _ = load_agent(base)
    assert len(seen) > 30
    for batch in seen:
        for place, obs, u, next_obs in zip(batch.index, batch.obs, batch.action, batch.next_obs, strict=True):
            played = given[int(place)]
            of_base = agent.act(played.obs)[0].numpy() / 2  # Pendulum's actions go from -2 to 2
            np.testing.assert_allclose(obs, np.append(played.obs[0], of_base), atol=1e-6)
            np.testing.assert_allclose(played.action[0], 2 * np.clip(of_base + 0.5 * u.numpy(), -1, 1), atol=1e-6)
            np.testing.assert_allclose(next_obs[:3], played.next_obs[0])
            np.testing.assert_allclose(next_obs[3:], agent.act(played.next_obs)[0] / 2, atol=1e-6)


def test_a_run_that_is_loaded_acts_in_the_environment_as_it_was_evaluated(base, tmp_path, capsys):
    run = train("sac", base, tmp_path / "run", base_scale=0.5)
    assert cli.main(["eval", str(tmp_path / "run")]) == 0
    mean = run.evaluations[-1][1].returns.mean()
    assert f"{mean:.2f}" in capsys.readouterr().out
    policy, obs = zoo.load(tmp_path / "run"), np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    action = policy.act(obs)
    assert action.shape == (5, 1)
    assert (np.abs(action - zoo.load(base).act(obs)) <= 2 * 0.5).all()
    assert policy.expected_return(obs, action).shape == (5,)
    assert cli.main(["export", str(tmp_path / "run"), "--format", "sb3"]) == 2
    assert "Stable-Baselines3 has no residual policies" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path / "run"), "--format", "torchscript"]) == 0
    assert "differ from PyTorch's by 0.0e+00 at most" in capsys.readouterr().out


def test_the_base_stays_as_it_is(base, tmp_path):
    before = (base / "checkpoint.pt").read_bytes()
    run = train("td3", base, tmp_path / "run")
    _, agent, _ = load_agent(base)
    for kept, now in zip(agent.parameters(), run._base.agent.parameters(), strict=True):
        assert torch.equal(kept, now)
    assert (base / "checkpoint.pt").read_bytes() == before


def test_a_base_that_is_no_longer_the_same_is_noticed(base, tmp_path, capsys):
    run_dir, copied = tmp_path / "run", tmp_path / "base"
    shutil.copytree(base, copied)
    train("sac", copied, run_dir)
    zoo.train("sac", **SMALL, steps=200, seed=1, run_dir=tmp_path / "other", algo_config=CONFIGS["sac"])
    shutil.copy(tmp_path / "other" / "checkpoint.pt", copied / "checkpoint.pt")
    assert cli.main(["eval", str(run_dir)]) == 2
    assert f"base={copied} is no longer the policy that this run corrects" in capsys.readouterr().err
    record = json.loads((run_dir / "run.json").read_text()) | {"status": "running"}
    (run_dir / "run.json").write_text(json.dumps(record))
    assert cli.main(["run", f"resume={run_dir}"]) == 2
    assert "is no longer the policy" in capsys.readouterr().err
    shutil.copy(base / "checkpoint.pt", copied / "checkpoint.pt")
    assert cli.main(["run", f"resume={run_dir}"]) == 0


def test_a_residual_run_begins_with_another_on_the_same_base(base, tmp_path, capsys):
    first = train("sac", base, tmp_path / "first")
    begun = train("sac", base, tmp_path / "begun", STILL["sac"], init_from=str(tmp_path / "first"))
    for one, other in zip(first._agent.actor.parameters(), begun._agent.actor.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    for changed in ({"base_scale": 0.5}, {"base": None}):
        with pytest.raises(UsageError, match="has learned to correct another policy: so must this one, base="):
            zoo.train(
                "sac", **SMALL | {"base": str(base), "steps": 100} | changed, run_dir=tmp_path / "refused",
                init_from=str(tmp_path / "first"), algo_config=CONFIGS["sac"],
            )  # fmt: skip
    with pytest.raises(UsageError, match=r"corrects no other policy\. Leave out base"):
        train("sac", base, tmp_path / "refused", init_from=str(base))


def refusal(capsys, *arguments):
    assert cli.main(["run", "steps=6000", "logger=none", *arguments]) == 2
    return capsys.readouterr().err


def test_what_cannot_be_a_base_is_refused_in_a_line(base, tmp_path, capsys, monkeypatch, pendulum_file):
    monkeypatch.chdir(tmp_path)
    assert "iql corrects no policy. Those that can: dsac_t, ppo, rlpd, sac, td3" in refusal(
        capsys, "algo=iql", "env=pendulum", f"dataset={pendulum_file}", f"base={base}"
    )
    assert "a dataset has no corrections of it to learn from. Add: algo.offline_fraction=0" in refusal(
        capsys, "algo=sac", "env=pendulum", f"dataset={pendulum_file}", "algo.offline_fraction=0.5", f"base={base}"
    )
    assert "base_scale=0.0 must be above 0" in refusal(
        capsys, "algo=sac", "env=pendulum", f"base={base}", "base_scale=0"
    )
    zoo.train("ppo", **SMALL | {"env": "cartpole"}, steps=100, run_dir=tmp_path / "cart", algo_config=CONFIGS["ppo"])
    assert "base=cart: a policy with continuous actions" in refusal(capsys, "algo=ppo", "env=cartpole", "base=cart")
    stacked = {"entry_point": lambda: FrameStackObservation(gymnasium.make("Pendulum-v1"), 3)}
    monkeypatch.setitem(gymnasium.registry, "Stacked-v0", EnvSpec("Stacked-v0", max_episode_steps=200, **stacked))
    assert "whose observations are vectors, can be corrected; Stacked-v0 has others" in refusal(
        capsys, "algo=ppo", "env=Stacked-v0", f"base={base}"
    )
    assert "base_scale=nan must be above 0" in refusal(capsys, "algo=sac", "env=pendulum", "base=x", "base_scale=nan")
    assert "base=nowhere: nowhere is not the folder of a run" in refusal(
        capsys, "algo=sac", "env=pendulum", "base=nowhere"
    )
    assert "is a policy of pendulum, with other observations or actions than hopper" in refusal(
        capsys, "algo=sac", "env=hopper", f"base={base}"
    )
    zoo.train("rcsl", **SMALL, dataset=pendulum_file, steps=2, run_dir=tmp_path / "rcsl", algo_config={"hidden": [8]})
    assert "has a policy with a memory" in refusal(capsys, "algo=sac", "env=pendulum", "base=rcsl")
    record = json.loads((tmp_path / "rcsl" / "run.json").read_text()) | {"status": "interrupted"}
    (tmp_path / "rcsl" / "run.json").write_text(json.dumps(record))
    assert "base=rcsl is not finished" in refusal(capsys, "algo=sac", "env=pendulum", "base=rcsl")
    assert not (tmp_path / "runs").exists()


@pytest.fixture(scope="module")
def generator(tmp_path_factory, pendulum_file):
    """The folder of a run whose policy turns noise into actions."""
    folder = tmp_path_factory.mktemp("generator") / "run"
    zoo.train(
        "dsrl", **SMALL, dataset=pendulum_file, steps=50, run_dir=folder,
        algo_config={"hidden": [16], "flow_steps": 3, "batch_size": 32},
    )  # fmt: skip
    return folder


def test_noise_that_has_not_been_moved_gives_the_generators_own_actions(generator, tmp_path):
    run = train("td3", generator, tmp_path / "run", STILL["td3"], base_mode="noise", base_scale=1.5)
    _, agent, _ = load_agent(generator)
    np.testing.assert_array_equal(run.evaluations[-1][1].returns, evaluate(agent, run._eval_envs, 0).returns)


def test_of_chosen_noise_the_generator_makes_the_action_that_is_taken(generator, tmp_path, monkeypatch):
    given, step = [], EnvStepper.step
    monkeypatch.setattr(EnvStepper, "step", lambda envs, action: (given.append(step(envs, action)), given[-1])[1])
    seen, update = [], SAC.update
    monkeypatch.setattr(SAC, "update", lambda agent, batch: (seen.append(batch), update(agent, batch))[1])
    train("sac", generator, tmp_path / "run", base_mode="noise", base_scale=1.5)
    _, agent, _ = load_agent(generator)
    for batch in seen:
        assert (batch.action.abs() <= 1).all()
        for place, obs, u in zip(batch.index, batch.obs, batch.action, strict=True):
            played = given[int(place)]
            torch.testing.assert_close(obs, played.obs[0])
            torch.testing.assert_close(played.action[0], agent.generate(obs[None], 1.5 * u[None])[0])


def test_a_policy_that_makes_no_actions_of_noise_is_refused(base, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "makes no actions of noise: base_mode=noise takes runs of dsrl, expo, fql, reinflow" in refusal(
        capsys, "algo=sac", "env=pendulum", f"base={base}", "base_mode=noise"
    )
    assert "base_mode=other does not exist; there are residual, noise" in refusal(
        capsys, "algo=sac", "env=pendulum", f"base={base}", "base_mode=other"
    )
