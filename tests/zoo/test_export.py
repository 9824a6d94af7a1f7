"""Exported policies act like the agent in each format, and policies saved by Stable-Baselines3 can be played here."""

import base64
import io
import json
import pickle
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime
import pytest
import stable_baselines3
import torch

import zoo as package
from zoo.errors import RunError, UsageError
from zoo.export import formats, policy
from zoo.settings.registry import algorithms

ROOT = Path(__file__).parents[2]
SMALL = ("algo.hidden=[16]", "steps=64", "eval_every=64")
ONLINE = {  # short runs of what Stable-Baselines3 has
    "sac": ("sac", "pendulum", *SMALL, "algo.learning_starts=32", "algo.batch_size=8"),
    "td3": ("td3", "pendulum", *SMALL, "algo.learning_starts=32", "algo.batch_size=8"),
    "dqn": ("dqn", "cartpole", *SMALL, "algo.learning_starts=32", "algo.batch_size=8"),
    "ppo": ("ppo", "pendulum", *SMALL, "algo.num_steps=32", "algo.minibatches=2"),
    "discrete ppo": ("ppo", "cartpole", *SMALL, "algo.num_steps=32", "algo.minibatches=2"),
}
OFFLINE = {  # and of others
    "iql": ("algo.hidden=[16]", "algo.normalize_obs=true"),
    "rcsl": ("algo.hidden=[16]", "algo.normalize_obs=true"),
    "dt": ("algo.context=5", "algo.width=16", "algo.layers=2"),
}
FAR = 30.0  # standard deviations: PPO clips what it observes at 10


def observations(run_dir: Path, count: int) -> np.ndarray:
    """Observations from the environment, and some that are far from these."""
    shape = package.load(run_dir).agent.spec.obs_shape
    obs = np.random.default_rng(1).normal(size=(count, *shape)).astype(np.float32)
    obs[: count // 10] *= FAR
    return obs


@pytest.fixture(scope="module")
def offline(trained, pendulum_file):
    return lambda algo: trained(
        algo, "pendulum", *OFFLINE[algo], f"dataset={pendulum_file}", "steps=20", "eval_every=20", "algo.batch_size=8"
    )


def exported(zoo, run_dir: Path, kind: str, tmp_path: Path) -> Path:
    file = tmp_path / f"policy{ {'onnx': '.onnx', 'torchscript': '.ts', 'sb3': '.zip'}[kind] }"
    result = zoo("export", run_dir, "--format", kind, "--output", file)
    assert result.code == 0, result.err
    assert "1,000 actions" in result.out
    assert "us by zoo.load" in result.out
    assert list(tmp_path.iterdir()) == [file]
    return file


def play(kind: str, file: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Plays a policy with its library alone, without the zoo's code."""
    if kind == "onnx":
        return onnxruntime.InferenceSession(file).run(None, inputs)
    out = torch.jit.load(file)(*map(torch.from_numpy, inputs.values()))
    return [x.numpy() for x in (out if isinstance(out, tuple) else (out,))]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONLINE, "iql"])
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_an_exported_policy_takes_the_same_actions_in_batches_of_any_size(zoo, trained, offline, tmp_path, kind, name):
    run_dir = offline(name) if name == "iql" else trained(*ONLINE[name])
    file = exported(zoo, run_dir, kind, tmp_path)
    for count in (1, 3, 1_000):
        obs = observations(run_dir, count)
        (action,) = play(kind, file, {"obs": obs})
        np.testing.assert_allclose(action, package.load(run_dir).act(obs), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rcsl", "dt", "stream_ac"])
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_memory_goes_in_and_out_of_an_exported_step(zoo, trained, offline, tmp_path, kind, name):
    stream = ("stream_ac", "pendulum", *SMALL)
    run_dir = trained(*stream) if name == "stream_ac" else offline(name)
    file = exported(zoo, run_dir, kind, tmp_path)
    if kind == "onnx":
        import onnx

        (first,) = (entry.value for entry in onnx.load(file).metadata_props if entry.key == "memory")
    else:
        extra = {"memory.json": ""}
        torch.jit.load(file, _extra_files=extra)
        first = extra["memory.json"]
    agent = package.load(run_dir)
    kinds = {key: x.numpy().dtype for key, x in agent.agent.memory().items()}
    memory = {key: np.stack([np.array(value, kinds[key])] * 3) for key, value in json.loads(first).items()}
    agent.begin(3)
    reward, seen = np.zeros(3, np.float32), []
    for t in range(12):  # more than DT's window holds
        obs = np.random.default_rng(t).normal(size=(3, 3)).astype(np.float32)
        action, *after = play(kind, file, {"obs": obs, "reward": reward, **memory})
        memory = dict(zip(memory, after, strict=True))
        np.testing.assert_allclose(action, agent.act(obs), atol=2e-5)
        seen.append(action)
        reward = np.full(3, -50.0 * t, np.float32)
        agent.observe(obs, action, reward)
    assert np.std(seen) > 0


def test_the_check_finds_a_policy_that_plays_something_else(trained):
    agent = package.load(trained(*ONLINE["sac"])).agent
    own = lambda inputs: [agent.act(torch.from_numpy(inputs[0])).numpy()]  # noqa: E731
    assert policy.check(agent, own, "its own") == 0
    for error in (1e-4, np.nan):
        with pytest.raises(RunError, match="other actions than PyTorch"):
            policy.check(agent, lambda inputs, error=error: [own(inputs)[0] + error], "another")


@pytest.mark.slow
def test_every_algorithm_that_acts_exports_its_step(tmp_path):
    from examples import make, specs

    for name, algorithm in algorithms().items():
        for spec in specs(algorithm):
            if name != "stream_td":
                agent = make(algorithm, spec)
                policy.check(agent, formats.write_torchscript(agent, tmp_path / "policy.ts"), name)
                policy.check(agent, formats.write_onnx(agent, tmp_path / "policy.onnx"), name)


# --- Stable-Baselines3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONLINE)
def test_stable_baselines3_takes_an_exported_policy_and_its_critics(zoo, trained, tmp_path, name):
    run_dir = trained(*ONLINE[name])
    file, ours = exported(zoo, run_dir, "sb3", tmp_path), package.load(run_dir)
    model = getattr(stable_baselines3, ONLINE[name][0].upper()).load(file, device="cpu")
    obs = observations(run_dir, 1_000)
    action = ours.act(obs)
    np.testing.assert_allclose(model.predict(obs, deterministic=True)[0], action, atol=1e-5)
    seen, expected = torch.from_numpy(obs), ours.expected_return(obs, action)
    with torch.no_grad():
        if "ppo" in name:
            values = model.policy.predict_values(seen)[:, 0]
        elif name == "dqn":
            assert model.target_update_interval == 250
            values = model.q_net(seen).gather(1, torch.from_numpy(action)[:, None])[:, 0]
        else:
            unit = torch.from_numpy(model.policy.scale_action(action))
            values = torch.stack(model.critic(seen, unit)).amin(0)[:, 0]
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_a_policy_that_samples_has_the_same_distribution_there(zoo, trained, tmp_path, name):
    run_dir = trained(*ONLINE[name])
    model = getattr(stable_baselines3, name.upper()).load(exported(zoo, run_dir, "sb3", tmp_path), device="cpu")
    obs = np.tile(observations(run_dir, 20)[-1:], (20_000, 1))
    torch.manual_seed(0)
    there, here = model.predict(obs, deterministic=False)[0], package.load(run_dir).act(obs, explore=True)
    for share in (0.1, 0.5, 0.9):
        np.testing.assert_allclose(np.quantile(there, share), np.quantile(here, share), atol=0.06)


@pytest.mark.slow
def test_a_file_for_stable_baselines3_needs_nothing_of_the_zoo(zoo, trained, tmp_path):
    run_dir = trained(*ONLINE["ppo"])
    file = exported(zoo, run_dir, "sb3", tmp_path)
    obs = observations(run_dir, 50)
    np.save(tmp_path / "obs.npy", obs)
    code = (
        "import sys; sys.modules['zoo'] = None\n"
        "import numpy as np, stable_baselines3\n"
        f"model = stable_baselines3.PPO.load(r'{file}', device='cpu')\n"
        f"np.save(r'{tmp_path}/there.npy', model.predict(np.load(r'{tmp_path}/obs.npy'), deterministic=True)[0])\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    np.testing.assert_allclose(np.load(tmp_path / "there.npy"), package.load(run_dir).act(obs), atol=1e-5)


@pytest.mark.parametrize("name", ONLINE)
def test_an_exported_file_plays_here_as_its_run_does(zoo, trained, tmp_path, name):
    run_dir = trained(*ONLINE[name])
    file = exported(zoo, run_dir, "sb3", tmp_path)
    again = zoo("eval", file, "--env", ONLINE[name][1], "--episodes", "2", "--seed", "3")
    assert again.code == 0, again.err
    assert again.out == zoo("eval", run_dir, "--episodes", "2", "--seed", "3").out


NETWORKS = {
    "SAC": ("SAC", "Pendulum-v1", {}),
    "TD3": ("TD3", "Pendulum-v1", {"net_arch": [20, 10]}),
    "DDPG": ("DDPG", "Pendulum-v1", {"net_arch": [20]}),
    "PPO": ("PPO", "Pendulum-v1", {"net_arch": {"pi": [8], "vf": [9, 9]}, "activation_fn": torch.nn.ELU}),
    "A2C": ("A2C", "CartPole-v1", {}),
    "a linear policy": ("PPO", "Pendulum-v1", {"net_arch": []}),
    "DQN": ("DQN", "CartPole-v1", {"net_arch": [20]}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_policy_of_stable_baselines3_takes_its_own_actions_here(tmp_path, name):
    from zoo.export import from_sb3

    kind, env_id, policy_kwargs = NETWORKS[name]
    model = getattr(stable_baselines3, kind)("MlpPolicy", env_id, policy_kwargs=policy_kwargs, device="cpu", seed=0)
    model.save(tmp_path / "model.zip")
    _, agent = from_sb3.load(tmp_path / "model.zip", env_id)
    obs = np.random.default_rng(0).normal(size=(1_000, *model.observation_space.shape)).astype(np.float32)
    found = agent.act(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(found, model.predict(obs, deterministic=True)[0], atol=1e-5)


class Squashed(stable_baselines3.common.torch_layers.BaseFeaturesExtractor):
    """A layer without weights, so that a file does not show it."""

    def __init__(self, space):
        super().__init__(space, 3)

    def forward(self, obs):
        return torch.tanh(obs / 10)


class MyFlattenExtractor(Squashed):
    """Its name ends like that of one of Stable-Baselines3's."""


def test_a_features_extractor_without_weights_is_refused_too(zoo, tmp_path):
    for kind, extractor in (("SAC", Squashed), ("PPO", MyFlattenExtractor)):
        policy_kwargs = {"features_extractor_class": extractor}
        model = getattr(stable_baselines3, kind)("MlpPolicy", "Pendulum-v1", policy_kwargs=policy_kwargs, device="cpu")
        model.save(tmp_path / "model.zip")
        refused(zoo("eval", tmp_path / "model.zip", "--env", "pendulum"), "a features extractor")


def test_exploring_it_plays_as_it_was_trained(tmp_path):
    from zoo.export import from_sb3

    noise = stable_baselines3.common.noise.NormalActionNoise(np.zeros(1), np.full(1, 0.25))
    stable_baselines3.TD3("MlpPolicy", "Pendulum-v1", action_noise=noise, device="cpu", seed=0).save(tmp_path / "td3")
    stable_baselines3.DQN("MlpPolicy", "CartPole-v1", exploration_final_eps=0.5, device="cpu", seed=0).save(
        tmp_path / "dqn"
    )
    torch.manual_seed(0)
    obs = 0.05 * torch.randn(4_000, 4)
    _, td3 = from_sb3.load(tmp_path / "td3.zip", "Pendulum-v1")
    away = (td3.act(obs[:, :3], explore=True) - td3.act(obs[:, :3])) / 2  # in units of half the range, [-2, 2]
    assert away.std().item() == pytest.approx(0.25, rel=0.1)
    _, dqn = from_sb3.load(tmp_path / "dqn.zip", "CartPole-v1")
    others = (dqn.act(obs, explore=True) != dqn.act(obs)).float().mean().item()
    assert others == pytest.approx(0.25, abs=0.03)  # half of the random actions are the other one


def test_whole_numbers_are_observed_as_there(tmp_path):
    from zoo.export import from_sb3

    model = stable_baselines3.DQN("MlpPolicy", "FrozenLake-v1", device="cpu", seed=0)
    model.save(tmp_path / "dqn")
    _, agent = from_sb3.load(tmp_path / "dqn.zip", "FrozenLake-v1")
    expected = [int(model.predict(np.array(state), deterministic=True)[0]) for state in range(16)]
    assert agent.act(torch.eye(16)).tolist() == expected


def test_a_replay_buffer_larger_than_the_memory_is_not_made_to_check_a_file(tmp_path):
    from examples import make

    from zoo.export import to_sb3
    from zoo.spec import Spec

    agent = make(algorithms()["dqn"], Spec((4,), num_actions=2))
    agent.config.buffer_size = 10**13
    spaces = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    assert policy.check(agent, to_sb3.write("dqn", agent, spaces, tmp_path / "model.zip"), "dqn") == 0


@pytest.mark.slow
def test_a_network_for_images_goes_there_and_comes_back(tmp_path):
    from examples import make

    from zoo.export import from_sb3, to_sb3
    from zoo.spec import Spec

    spaces = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8), gymnasium.spaces.Discrete(6)
    obs = np.random.default_rng(0).integers(0, 256, (16, 4, 84, 84), dtype=np.uint8)
    for name in ("dqn", "ppo"):
        agent = make(algorithms()[name], Spec((4, 84, 84), num_actions=6, obs_dtype="uint8"))
        run = to_sb3.write(name, agent, spaces, tmp_path / "model.zip")
        assert policy.check(agent, run, name) == 0
        back = from_sb3.Loaded(agent.spec, name, *from_sb3._read(tmp_path / "model.zip"))
        assert torch.equal(back.act(torch.from_numpy(obs)), agent.act(torch.from_numpy(obs)))


def test_frames_of_floats_and_observations_of_two_dimensions_go_there_and_come_back(tmp_path):
    from examples import make

    from zoo.export import from_sb3, to_sb3
    from zoo.spec import Spec

    for shape, names in (((3, 40, 40), ("dqn", "ppo")), ((4, 3), ("ppo",))):
        spaces = gymnasium.spaces.Box(0, 1, shape, np.float32), gymnasium.spaces.Discrete(6)
        obs = torch.rand(16, *shape)
        for name in names:
            agent = make(algorithms()[name], Spec(shape, num_actions=6))
            run = to_sb3.write(name, agent, spaces, tmp_path / "model.zip")
            assert policy.check(agent, run, name) < 1e-5
            back = from_sb3.Loaded(agent.spec, name, *from_sb3._read(tmp_path / "model.zip"))
            assert torch.equal(back.act(obs), agent.act(obs))


class Evil:
    def __init__(self, touched: Path) -> None:
        self.touched = touched

    def __reduce__(self):
        return Path.touch, (self.touched,)


def test_no_pickle_in_a_file_is_run(zoo, trained, tmp_path):
    file = exported(zoo, trained(*ONLINE["sac"]), "sb3", tmp_path)
    touched = tmp_path / "touched"
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(parts["data"])
    evil = base64.b64encode(pickle.dumps(Evil(touched))).decode()
    for entry in data.values():
        if isinstance(entry, dict):
            entry[":serialized:"] = evil

    def with_parts(changed: dict[str, bytes]) -> Path:
        with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
            for name, content in (parts | changed).items():
                archive.writestr(name, content)
        return tmp_path / "evil.zip"

    result = zoo("eval", with_parts({"data": json.dumps(data).encode()}), "--env", "pendulum", "--episodes", "1")
    assert result.code == 0, result.err
    buffer = io.BytesIO()
    torch.save({"actor": Evil(touched)}, buffer)
    result = zoo("eval", with_parts({"policy.pth": buffer.getvalue()}), "--env", "pendulum", "--episodes", "1")
    assert result.code == 1
    assert "not a readable ZIP file" in result.err
    assert not touched.exists()
    with pytest.raises(TypeError):  # the trap is one: Stable-Baselines3 itself walks into it
        stable_baselines3.SAC.load(with_parts({"data": json.dumps(data).encode()}))
    assert touched.exists()


ODD_POLICIES = {
    "module": lambda data, state: data["policy_class"].update(__module__=["a"]),
    "bounds": lambda data, state: data["action_space"].update(low="[-1. foo]"),
    "a number of observations": lambda data, state: data["observation_space"].update(n="x"),
    "numbers": lambda data, state: state.update(dict.fromkeys(state, 1)),
    "names": lambda data, state: state.update({1: torch.zeros(1)}),
    "a bias without a dimension": lambda data, state: state.update({"actor.mu.bias": torch.zeros(())}),
}


@pytest.mark.parametrize("kind", ODD_POLICIES)
def test_an_odd_file_of_stable_baselines3_is_refused_in_one_line(zoo, trained, tmp_path, kind):
    file = exported(zoo, trained(*ONLINE["sac"]), "sb3", tmp_path)
    with zipfile.ZipFile(file) as archive:
        data = json.loads(archive.read("data"))
        state = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    ODD_POLICIES[kind](data, state)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    with zipfile.ZipFile(tmp_path / "odd.zip", "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", buffer.getvalue())
    result = zoo("eval", tmp_path / "odd.zip", "--env", "pendulum", "--episodes", "1")
    assert (result.code, result.err.count("\n")) == (2, 1), result


def test_a_dataset_is_made_by_a_policy_of_stable_baselines3(zoo, trained, tmp_path):
    file = exported(zoo, trained(*ONLINE["sac"]), "sb3", tmp_path)
    arguments = ("data", "make", "pendulum", "--policy", file, "--size", "400", "--out", tmp_path / "made")
    assert "needs a name" in zoo(*arguments).err
    result = zoo(*arguments, "--name", "theirs")
    assert result.code == 0, result.err
    metadata = json.loads((tmp_path / "made" / "data" / "metadata.json").read_text())
    assert metadata["algorithm_name"] == "SAC of Stable-Baselines3"
    assert metadata["total_steps"] == 400  # two episodes
    assert "leave out expert" in zoo(*arguments, "expert", "--name", "theirs").err


# --- What is refused --------------------------------------------------------------------------------------------------


def refused(result, *words: str, code: int = 2) -> None:
    assert result.code == code, result
    assert result.err.startswith("zoo: ")
    assert result.err.count("\n") == 1
    for word in words:
        assert word in result.err


def test_what_cannot_be_exported_is_refused_in_one_line(zoo, trained, offline, tmp_path):
    steps = ("steps=50", "eval_every=50")
    predictor = trained("stream_td", "series/hopper", *steps, "algo.hidden=[16]", "algo.sparsity=0")
    refused(zoo("export", predictor, "--format", "onnx"), "stream_td predicts and has no policy", "stream_ac")
    refused(zoo("export", tmp_path, "--format", "onnx"), "not the folder of a run")
    refused(zoo("export", offline("iql"), "--format", "sb3"), "has no iql", "sac, td3, ppo, dqn")
    sac = trained(*ONLINE["sac"])
    refused(zoo("export", sac, "--format", "onnx", "--output", tmp_path / "x.zip"), "must end in .onnx")
    refused(zoo("export", sac, "--format", "sb3", "--output", tmp_path / "no" / "x.zip"), "no does not exist")
    bins = trained("dqn", "cartpole", *ONLINE["dqn"][2:], "algo.value_head=hl_gauss")
    refused(zoo("export", bins, "--format", "sb3"), "no critics over bins", "hl_gauss")
    dueling = trained("dqn", "cartpole", *ONLINE["dqn"][2:], "algo.dueling=true")
    refused(zoo("export", dueling, "--format", "sb3"), "not dueling")
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_not_finished_is_not_exported(zoo, trained, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for file in ("run.json", "checkpoint.pt"):
        (run_dir / file).write_bytes((trained(*ONLINE["sac"]) / file).read_bytes())
    record = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps(record | {"status": "interrupted"}))
    refused(zoo("export", run_dir, "--format", "torchscript"), "has not finished", f"zoo run resume={run_dir}")
    assert len(list(run_dir.iterdir())) == 2


def test_a_file_that_is_there_is_replaced_only_by_force(zoo, trained, tmp_path):
    file, run_dir = tmp_path / "policy.ts", trained(*ONLINE["sac"])
    file.write_text("precious")
    arguments = ("export", run_dir, "--format", "torchscript", "--output", file)
    refused(zoo(*arguments), "exists", "--force")
    assert file.read_text() == "precious"
    assert zoo(*arguments, "--force").code == 0
    assert torch.jit.load(file) is not None


def test_a_package_that_is_missing_is_named(zoo, trained, monkeypatch):
    for kind, package_name, extra in (("onnx", "onnxruntime", "onnx"), ("sb3", "stable_baselines3", "sb3")):
        monkeypatch.setitem(sys.modules, package_name, None)
        refused(zoo("export", trained(*ONLINE["sac"]), "--format", kind), package_name, f"rl-zoo[{extra}]")


def test_a_file_of_another_environment_is_refused(zoo, trained, tmp_path):
    pendulum = tmp_path / "pendulum.zip"
    stable_baselines3.SAC("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [8]}).save(pendulum)
    refused(zoo("eval", pendulum), "Add: --env ENV")
    refused(zoo("eval", pendulum, "--env", "hopper"), "observes [3]", "hopper has observations [11]")
    refused(zoo("eval", pendulum, "--env", "cartpole"), "observes [3]", "cartpole has observations [4]")
    refused(zoo("eval", tmp_path / "no.zip", "--env", "pendulum"), "is not a file")
    (tmp_path / "text.zip").write_text("no")
    refused(zoo("eval", tmp_path / "text.zip", "--env", "pendulum"), "not a readable ZIP file", code=1)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    refused(zoo("eval", tmp_path / "empty.zip", "--env", "pendulum"), "not a ZIP file of Stable-Baselines3")
    refused(zoo("eval", trained(*ONLINE["sac"]), "--env", "hopper"), "is not what the agent was trained in")
    sde = tmp_path / "sde.zip"
    stable_baselines3.SAC("MlpPolicy", "Pendulum-v1", use_sde=True, policy_kwargs={"net_arch": [8]}).save(sde)
    refused(zoo("eval", sde, "--env", "pendulum"), "use_sde")

    class Wide(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-8, 8, (3,))
        action_space = gymnasium.spaces.Box(-3, 3, (1,))

    policy_kwargs = {"net_arch": [8]}
    stable_baselines3.TD3("MlpPolicy", Wide(), policy_kwargs=policy_kwargs).save(tmp_path / "wide.zip")
    refused(zoo("eval", tmp_path / "wide.zip", "--env", "pendulum"), "[-3.]", "between [-2.0] and [2.0]")


# --- Serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sac", "discrete ppo"])
def test_threads_get_the_results_of_single_calls(trained, name):
    run_dir = trained(*ONLINE[name])
    loaded, obs = package.load(run_dir, device="cpu"), observations(run_dir, 400)
    alone = [loaded.act(each) for each in obs]
    found: dict[int, list[np.ndarray]] = {}

    def client(number: int) -> None:
        found[number] = [loaded.act(each) for each in obs[number::8]]

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(8):
        np.testing.assert_allclose(found[number], alone[number::8], atol=1e-6)


def test_a_policy_is_loaded_to_the_device_that_is_asked_for(trained):
    run_dir = trained(*ONLINE["sac"])
    assert next(package.load(run_dir, device="auto").agent.parameters()).device.type in ("cpu", "cuda")
    with pytest.raises(UsageError, match="device=cuda:77"):
        package.load(run_dir, device="cuda:77")


@pytest.mark.slow
def test_the_example_serves_a_policy_over_http(trained, tmp_path):
    run_dir, port = trained(*ONLINE["sac"]), "18931"
    log = (tmp_path / "log").open("w")
    command = [sys.executable, str(ROOT / "examples" / "serve.py"), str(run_dir), "--port", port]
    server = subprocess.Popen(command, stdout=log, stderr=log)

    def ask(obs: object) -> object:
        body = json.dumps({"obs": obs}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/act", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())["action"]

    try:
        obs = observations(run_dir, 5)
        for _ in range(120):
            try:
                ask(obs[0].tolist())
                break
            except urllib.error.URLError:
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.5)
        expected = package.load(run_dir).act(obs)
        np.testing.assert_allclose(ask(obs.tolist()), expected, atol=1e-6)
        np.testing.assert_allclose(ask(obs[2].tolist()), expected[2], atol=1e-5)
        with pytest.raises(urllib.error.HTTPError, match="422"):
            ask([1.0])
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    ("made_for", "env", "says"),
    [
        ("MountainCar-v0", "MountainCarContinuous-v0", "gives 3 discrete actions; mountaincarcontinuous takes actions"),
        ("MountainCarContinuous-v0", "MountainCar-v0", "mountaincar takes 3 discrete ones"),
    ],
)
def test_a_policy_of_the_other_kind_of_actions_is_refused_in_one_line(zoo, tmp_path, made_for, env, says):
    stable_baselines3.PPO("MlpPolicy", made_for, device="cpu").save(tmp_path / "mc")
    refused(zoo("eval", tmp_path / "mc.zip", "--env", env), says, "Give the environment that it was made for.")
