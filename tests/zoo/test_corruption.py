"""Corruption changes the right fields, by the right amount, at transitions that depend on the seed."""

import json
import shutil

import numpy as np
import pytest
import torch

import zoo
from zoo.data.arrays import Arrays
from zoo.data.corruption import PARTS, CorruptionConfig, corrupt
from zoo.data.d4rl import write_d4rl
from zoo.data.load import load_arrays
from zoo.envs import EnvConfig
from zoo.errors import UsageError
from zoo.runs.load import load_adversary

SIZE = 20_000
FIELDS = {"obs": "obs", "action": "action", "reward": "reward", "dynamics": "next_obs"}


def arrays(size: int = SIZE) -> Arrays:
    rng = np.random.default_rng(0)
    obs = (rng.normal(size=(size + 1, 3)) * [1.0, 10.0, 0.1]).astype(np.float32)
    action, reward = rng.uniform(-1, 1, (size, 2)).astype(np.float32), rng.normal(size=size).astype(np.float32)
    truncated = np.arange(1, size + 1) % 100 == 0
    return Arrays(obs[:-1], action, reward, obs[1:], np.zeros(size, dtype=bool), truncated)


@pytest.mark.parametrize("part", PARTS)
def test_random_corruption_adds_uniform_noise_to_that_share_of_one_field(part):
    clean = arrays()
    dirty, changed = corrupt(clean, CorruptionConfig(f"random-{part}", rate=0.3, scale=0.5), seed=1)
    for name in Arrays._fields:
        assert (name == FIELDS[part]) != np.array_equal(getattr(clean, name), getattr(dirty, name))
    before, after = (getattr(x, FIELDS[part]).reshape(SIZE, -1).astype(np.float64) for x in (clean, dirty))
    moved = (before != after).any(1)
    assert moved.sum() == changed
    assert changed == pytest.approx(0.3 * SIZE, rel=0.03)
    noise = after[moved] / 30 if part == "reward" else (after - before)[moved] / before.std(0)
    assert np.abs(noise).max() <= 0.5 + 1e-4
    np.testing.assert_allclose(noise.std(0), 0.5 / np.sqrt(3), rtol=0.03)


def test_noise_is_of_the_fields_spread_however_large_its_mean():
    clean = arrays(300_000)
    far = clean._replace(obs=clean.obs + 1e4)
    dirty, _ = corrupt(far, CorruptionConfig("random-obs"), seed=1)
    moved = (dirty.obs != far.obs).any(1)
    noise = (dirty.obs[moved].astype(np.float64) - far.obs[moved]) / clean.obs.std(0, dtype=np.float64)
    np.testing.assert_allclose(noise.std(0), 1 / np.sqrt(3), rtol=0.03)


def test_mixed_corrupts_every_part_in_transitions_of_its_own():
    clean = arrays()
    dirty, changed = corrupt(clean, CorruptionConfig("random-mixed"), seed=0)
    moved = {
        part: (getattr(clean, name) != getattr(dirty, name)).reshape(SIZE, -1).any(1) for part, name in FIELDS.items()
    }
    assert all(abs(one.mean() - 0.3) < 0.02 for one in moved.values())
    assert np.logical_or.reduce(list(moved.values())).sum() == changed
    assert changed == pytest.approx((1 - 0.7**4) * SIZE, rel=0.03)


def test_the_seed_alone_decides():
    one, two, other = (corrupt(arrays(), CorruptionConfig("random-obs"), seed)[0].obs for seed in (3, 3, 4))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("name", ["random-obs", "random-dynamics", "random-mixed"])
def test_a_successor_that_is_not_known_stays_recognizable(name):
    clean = arrays()
    ended = np.arange(SIZE) % 50 == 49
    clean = clean._replace(terminated=ended, next_obs=np.where(ended[:, None], clean.obs, clean.next_obs))
    dirty, _ = corrupt(clean, CorruptionConfig(name), seed=1)
    np.testing.assert_array_equal(dirty.next_obs[ended], dirty.obs[ended])
    assert (dirty.next_obs[~ended] != clean.next_obs[~ended]).any() == (name != "random-obs")


def test_adversarial_rewards_are_turned_round():
    clean = arrays()
    dirty, _ = corrupt(clean, CorruptionConfig("adversarial-reward", scale=2.0), seed=0)
    moved = clean.reward != dirty.reward
    np.testing.assert_array_equal(dirty.reward[moved], -2 * clean.reward[moved])


@pytest.fixture(scope="module")
def hopper_file(tmp_path_factory):
    rng, size = np.random.default_rng(0), 300
    obs, action = rng.normal(size=(size + 1, 11)).astype(np.float32), rng.uniform(-1, 1, (size, 3)).astype(np.float32)
    flags, reward = np.zeros(size, dtype=bool), rng.normal(size=size).astype(np.float32)
    path = tmp_path_factory.mktemp("data") / "hopper.hdf5"
    write_d4rl(Arrays(obs[:-1], action, reward, obs[1:], flags, np.arange(1, size + 1) == size), path, {})
    return path


@pytest.fixture(scope="module")
def train(hopper_file, tmp_path_factory):
    def run(algo, **algo_config):
        return zoo.train(
            algo, env="hopper", dataset=str(hopper_file), steps=2, eval_every=2, eval_episodes=1, logger="none",
            run_dir=tmp_path_factory.mktemp(algo) / "run", algo_config={"hidden": [16], **algo_config},
        ).dir  # fmt: skip

    return run


@pytest.fixture(scope="module")
def critic(train):
    return train("edac", num_critics=3)


@pytest.fixture
def clean(hopper_file) -> Arrays:
    return load_arrays(EnvConfig("Hopper-v5", "hopper"), str(hopper_file))[0]


@pytest.mark.parametrize("part", ["obs", "action", "dynamics"])
def test_an_adversary_moves_to_where_the_critics_think_less_of_it(part, critic, clean):
    config = CorruptionConfig(f"adversarial-{part}", rate=0.5, critic=str(critic))
    dirty, changed = corrupt(clean, config, seed=0, adversary=load_adversary(config, {}))
    random, _ = corrupt(clean, CorruptionConfig(f"random-{part}", rate=0.5), seed=0)
    agent = zoo.load(critic).agent
    moved = (getattr(clean, FIELDS[part]) != getattr(dirty, FIELDS[part])).any(1)
    assert moved.sum() == changed
    distance = np.abs(getattr(dirty, FIELDS[part]) - getattr(clean, FIELDS[part])) / getattr(clean, FIELDS[part]).std(0)
    assert distance.max() <= 1 + 1e-4

    def value(data: Arrays) -> float:
        if part == "dynamics":
            obs = torch.from_numpy(data.next_obs)
            return float(agent.critic(obs, agent.actor.mode(obs)).mean())
        return float(agent.critic(torch.from_numpy(data.obs), torch.from_numpy(data.action)).detach().mean())

    assert value(dirty) < value(clean)
    assert value(dirty) < value(random)
    again, _ = corrupt(clean, config, seed=0, adversary=load_adversary(config, {}))  # from what was kept
    assert np.array_equal(getattr(again, FIELDS[part]), getattr(dirty, FIELDS[part]))


def test_a_run_has_its_adversary_on_its_own_device(critic, hopper_file, tmp_path, monkeypatch):
    asked = []

    def spy(arrays, config, seed, device, adversary):
        asked.append(device)
        return corrupt(arrays, config, seed, device, adversary)

    monkeypatch.setattr("zoo.runs.dataset.corrupt", spy)
    run = zoo.train(
        "td3_bc", env="hopper", dataset=str(hopper_file), steps=1, eval_episodes=1, logger="none",
        run_dir=tmp_path / "run", corruption="adversarial-action", **{"corruption.critic": str(critic)},
        algo_config={"hidden": [16]},
    )  # fmt: skip
    assert asked == [run.device]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.gpu
def test_an_adversary_finds_on_a_gpu_what_it_finds_on_the_cpu(critic, clean):
    config = CorruptionConfig("adversarial-action", rate=0.5, critic=str(critic))
    on_cpu, _ = corrupt(clean, config, 0, torch.device("cpu"), load_adversary(config, {}))
    shutil.rmtree(critic / "adversarial")
    on_gpu, _ = corrupt(clean, config, 0, torch.device("cuda"), load_adversary(config, {}))
    assert (np.abs(on_gpu.action - on_cpu.action) < 0.05).mean() > 0.99


def test_what_an_adversary_found_is_taken_for_the_same_question_alone(critic, clean):
    def found(name: str, seed: int = 0) -> list[np.ndarray]:
        config = CorruptionConfig(name, critic=str(critic))
        return list(corrupt(clean, config, seed, adversary=load_adversary(config, {}))[0])

    kept = critic / "adversarial"
    first = found("adversarial-mixed")
    shutil.rmtree(kept)
    for name in ("adversarial-action", "adversarial-obs", "adversarial-dynamics"):
        found(name)
    for one, other in zip(found("adversarial-mixed"), first, strict=True):
        np.testing.assert_array_equal(one, other)
    before = len(list(kept.iterdir()))
    found("adversarial-action", seed=1)
    assert len(list(kept.iterdir())) == before + 1


@pytest.mark.parametrize("damage", ["empty", "cut short", "of another shape"])
def test_what_an_adversary_found_is_computed_anew_if_its_file_is_damaged(critic, clean, damage):
    def found() -> np.ndarray:
        config = CorruptionConfig("adversarial-action", rate=0.1, critic=str(critic))
        return corrupt(clean, config, 2, adversary=load_adversary(config, {}))[0].action

    shutil.rmtree(critic / "adversarial", ignore_errors=True)
    first = found()
    (file,) = (critic / "adversarial").iterdir()
    content = file.read_bytes()
    if damage == "of another shape":
        np.save(file, np.zeros(3, np.float32))
    else:
        file.write_bytes(content[: -5 if damage == "cut short" else 0])
    np.testing.assert_array_equal(found(), first)
    assert file.read_bytes() == content


def test_critics_that_are_classifiers_are_asked_for_values(train, clean):
    run = train("td3_bc", value_head="hl_gauss", num_bins=21)
    agent = zoo.load(run).agent
    config = CorruptionConfig("adversarial-action", rate=1.0, critic=str(run))
    dirty, _ = corrupt(clean, config, seed=0, adversary=load_adversary(config, {}))
    random, _ = corrupt(clean, CorruptionConfig("random-action", rate=1.0), seed=0)

    def value(data: Arrays) -> float:
        obs = agent.normalizer(torch.from_numpy(data.obs))
        return float(agent.head.value(agent.critic(obs, torch.from_numpy(data.action))).mean())

    assert value(dirty) < value(random)


def attack(critic, dataset, run_dir, env="hopper", algo="td3_bc", **settings):
    """A run on a dataset that is corrupted with another run's critics."""
    return zoo.train(
        algo, env=env, dataset=str(dataset), eval_episodes=1, logger="none", run_dir=run_dir,
        corruption="adversarial-obs", **{"steps": 1, "corruption.critic": str(critic)} | settings,
        algo_config={"hidden": [16]},
    )  # fmt: skip


def test_critics_of_other_data_are_refused(critic, clean, tmp_path):
    write_d4rl(clean._replace(reward=clean.reward + 1), tmp_path / "other.hdf5", {})
    with pytest.raises(UsageError, match="has not learned from this dataset"):
        attack(critic, tmp_path / "other.hdf5", tmp_path / "run")


def test_critics_of_the_same_data_are_taken_where_its_actions_are_of_another_type(tmp_path):
    data = arrays(150)
    path = tmp_path / "cartpole.hdf5"
    obs = np.random.default_rng(0).normal(size=(151, 4)).astype(np.float32)
    write_d4rl(data._replace(obs=obs[:-1], next_obs=obs[1:], action=np.arange(150) % 2.0), path, {})
    critic = zoo.train("iql", env="cartpole", dataset=str(path), steps=1, eval_episodes=1, logger="none",
                       run_dir=tmp_path / "critic", algo_config={"hidden": [16]}).dir  # fmt: skip
    run = attack(critic, path, tmp_path / "run", env="cartpole", algo="iql")
    assert run.record["dataset"]["corrupted"] > 0


def test_critics_must_be_of_a_finished_run_that_stays_the_same(critic, train, hopper_file, tmp_path):
    own = shutil.copytree(critic, tmp_path / "critic")
    config = CorruptionConfig("adversarial-obs", critic=str(own))
    attack(own, hopper_file, tmp_path / "run", steps=4, checkpoint_every=2)
    shutil.copytree(train("edac", num_critics=2), own, dirs_exist_ok=True)
    with pytest.raises(UsageError, match="is no longer the run that corrupted this one's data"):
        load_adversary(config, json.loads((tmp_path / "run" / "run.json").read_text()))
    record = json.loads((own / "run.json").read_text())
    (own / "run.json").write_text(json.dumps(record | {"status": "running"}))
    with pytest.raises(UsageError, match=r"is not finished\. Continue it first: zoo run resume="):
        load_adversary(config, {})


@pytest.mark.parametrize("algo", ["famo2o", "dsrl"])
def test_what_does_not_act_by_its_actor_alone_is_refused_where_its_actions_count(algo, train):
    critic = str(train(algo, **({"normalize_reward": False} if algo == "famo2o" else {})))
    for part in ("dynamics", "mixed"):
        with pytest.raises(UsageError, match="does not act by an actor alone"):
            load_adversary(CorruptionConfig(f"adversarial-{part}", critic=critic), {})
    if algo == "famo2o":
        assert load_adversary(CorruptionConfig("adversarial-obs", critic=critic), {})


@pytest.mark.parametrize("algo", ["awac", "cql", "dvl", "iql", "rebrac", "ro2o", "riql", "td3_bc"])
def test_what_acts_by_its_actor_is_asked_for_its_actions(algo, train):
    critic = train(algo, **({"normalize_reward": False} if algo in ("dvl", "iql") else {}))  # there is one episode
    assert load_adversary(CorruptionConfig("adversarial-mixed", critic=str(critic)), {})


def test_an_adversary_needs_critics():
    with pytest.raises(UsageError, match=r"zoo run algo=NAME .* corruption.critic=DIR"):
        load_adversary(CorruptionConfig("adversarial-obs"), {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "random-ob"}, "corruption=random-ob does not exist. Nearest: random-obs"),
        ({"name": "random-obs", "rate": 1.1}, "rate=1.1 must lie between 0 and 1"),
        ({"name": "random-obs", "scale": 0.0}, "scale=0.0 must be above 0"),
    ],
)
def test_what_cannot_be_done_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CorruptionConfig(**settings)


@pytest.mark.parametrize("part", ["action", "obs", "dynamics"])
def test_noise_is_not_added_to_whole_numbers(part):
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 2, (20, 4, 5, 5), dtype=np.uint8)
    ended = np.arange(20) % 5 == 4
    arrays = Arrays(frames, rng.integers(0, 3, 20), np.ones(20, np.float32), frames, ended, np.zeros(20, bool))
    with pytest.raises(UsageError, match=f"corruption=random-{part}: {part} is integers here"):
        corrupt(arrays, CorruptionConfig(f"random-{part}"), seed=0)
    changed, count = corrupt(arrays, CorruptionConfig("random-reward"), seed=0)
    assert count == (changed.reward != arrays.reward).sum() > 0
