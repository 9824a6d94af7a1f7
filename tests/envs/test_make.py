"""Every environment of the zoo can be made and stepped; what cannot be made says in one line what to type instead."""

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from gymnasium.vector import AutoresetMode

from zoo.envs import EnvConfig, Spec, make

CONFIGS = {path.stem: path for path in sorted((Path(__file__).parents[2] / "configs" / "env").glob("*.yaml"))}


def _config(name, backend):
    if name == "lunarlander" and backend == "gymnasium":
        pytest.importorskip("Box2D")
    return EnvConfig(**yaml.safe_load(CONFIGS[name].read_text()), backend=backend)


@pytest.mark.parametrize("name", CONFIGS)
def test_environment_of_the_zoo_can_be_made_and_stepped(name, backend):
    envs = make(_config(name, backend), 2)
    assert envs.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=0)
    assert obs.shape == envs.observation_space.shape == (2, *envs.single_observation_space.shape)
    envs.action_space.seed(0)
    for _ in range(3):
        obs, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert obs.shape == envs.observation_space.shape
        assert reward.shape == terminated.shape == truncated.shape == (2,)


@pytest.mark.parametrize("name", CONFIGS)
def test_both_backends_have_the_same_shapes_and_bounds(name):
    pytest.importorskip("envpool")
    ours, theirs = make(_config(name, "gymnasium"), 1), make(_config(name, "envpool"), 1)
    assert Spec.of(ours.single_observation_space, ours.single_action_space) == Spec.of(
        theirs.single_observation_space, theirs.single_action_space
    )
    assert ours.action_space == theirs.action_space


def _refusal(env_id, backend="gymnasium"):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the caller looks at the message
        make(EnvConfig(env_id, backend=backend), 1)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("env_id", "to_type"),
    [
        ("Hoper-v5", "`Hopper`"),
        ("Hopper-v99", "`v5`"),
        ("Nowhere/Hopper-v5", "`zoo list`"),
        ("LunarLander-v1", "`LunarLander-v3`"),  # withdrawn
        ("Hopper-v3", "gymnasium-robotics"),  # moved to another package
        ("two words", "[namespace/](env-name)-v(version)"),
    ],
)
def test_unknown_id_is_refused_with_what_to_type(env_id, to_type):
    message = _refusal(env_id)
    assert message.startswith(f"env={env_id} ")
    assert to_type in message


def test_unknown_backend_is_refused_with_those_there_are():
    assert _refusal("Hopper-v5", "brax") == "env.backend=brax does not exist. There are: envpool, gymnasium."


def test_without_envpool_its_backend_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "pip install 'rl-zoo[envpool]'" in _refusal("Hopper-v5", "envpool")


def test_envpool_is_imported_only_when_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    make(EnvConfig("CartPole-v1"), 1).reset(seed=0)


def test_id_that_envpool_lacks_is_refused_with_the_backend_that_may_have_it():
    pytest.importorskip("envpool")
    message = _refusal("Taxi-v4", "envpool")
    assert message == "env=Taxi-v4 does not exist in EnvPool. Type: env.backend=gymnasium"
