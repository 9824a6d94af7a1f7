"""The command line: its output for valid commands, and its error messages."""

import dataclasses
import os
import re
import resource
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import gymnasium
import pytest
import torch

from zoo.commands import run as commands_run
from zoo.envs import EnvConfig
from zoo.errors import UsageError
from zoo.settings import registry
from zoo.settings.compose import compose
from zoo.settings.config import RunConfig, flat
from zoo.settings.registry import algorithms, environments

REFUSED = {
    "unknown algorithm": (["algo=iqll", "env=pendulum"], ["algo=iqll does not exist", "iql"]),
    "no algorithm": (["env=pendulum"], ["algo is missing", "algo=iql"]),
    "unknown environment": (["algo=iql", "env=pendulm"], ["env=pendulm does not exist", "pendulum"]),
    "no environment": (["algo=iql"], ["env is missing", "env=hopper"]),
    "unknown dataset": (["algo=iql", "env=pendulum", "dataset=nowhere"], ["dataset=nowhere", "zoo data"]),
    "dataset file not there": (["algo=iql", "env=pendulum", "dataset=a/b.hdf5"], ["a/b.hdf5 is not a file"]),
    "a setting of the algorithm": (
        ["algo=iql", "env=pendulum", "beta=3"], ["beta is a setting of the algorithm", "algo.beta=3"],
    ),
    "unknown key": (["algo=iql", "env=pendulum", "stepz=3"], ["stepz does not exist", "steps"]),
    "another library's name": (["algo=iql", "env=pendulum", "gamma=0.9"], ["Here it is called algo.discount."]),
    "a name of two settings": (
        ["algo=iql", "env=pendulum", "algo.learning_rate=0.1"], ["Here it is called algo.actor_lr or algo.critic_lr."]
    ),
    "a name of something else": (["algo=td3_bc", "env=pendulum", "algo.ent_coef=1"], ["does not exist. N"]),
    "a name of another setting in CORL": (["algo=iql", "env=pendulum", "algo.iql_tau=0.7"], ["called algo.expectile."]),
    "the inverse of a temperature": (["algo=iql", "env=pendulum", "algo.temperature=3"], ["called algo.beta."]),
    "a temperature where beta is a weight": (["algo=combo", "env=pendulum", "algo.temperature=3"], ["not exist. N"]),
    "a weight by another name": (["algo=cql", "env=pendulum", "algo.cql_alpha=5"], ["Here it is called algo.alpha."]),
    "a weight where alpha is a temperature": (["algo=sac", "env=pendulum", "algo.cql_alpha=5"], ["does not exist. N"]),
    "a batch size where there are minibatches": (
        ["algo=ppo", "env=pendulum", "batch_size=64"],
        ["algo.minibatches = num_envs * algo.num_steps / batch_size", "algo.minibatches=32"],
    ),
    "a weight in another unit": (
        ["algo=ppo", "env=pendulum", "algo.vf_coef=0.5"], ["CleanRL's vf_coef, and twice Stable-Baselines3's"],
    ),
    "activations": (["algo=ppo", "env=pendulum", "algo.activation_fn=relu"], ["MLP(activation=)"]),
    "a name of Stable-Baselines3's PPO": (
        ["algo=ppo", "env=pendulum", "algo.clip_range=0.1"], ["Here it is called algo.clip."],
    ),
    "a name of CleanRL's SAC": (["algo=sac", "env=pendulum", "q_lr=1e-3"], ["Here it is called algo.critic_lr."]),
    "a schedule's start": (["algo=dqn", "env=cartpole", "algo.start_e=0.5"], ["a probability of 1", "algo.epsilon."]),
    "arguments of an environment": (
        ["algo=dqn", "env=cartpole", "env_kwargs.slippery=false"], ["env_kwargs.slippery", "env.kwargs.NAME=VALUE"],
    ),
    "a name where there is a list of names": (
        ["algo=sac", "env=pendulum", "info_keywords=fuel"], ["info_keywords takes a list, such as [fuel]."],
    ),
    "a module's environment": (
        ["algo=sac", "env=mine.envs:Robot-v0"], ["does not exist.", "ZOO_IMPORT=mine.envs zoo ... env=Robot-v0"],
    ),
    "an older name of an Atari game": (["algo=ppo", "env=PongNoFrameskip-v4"], ["Write: env=ALE/Pong-v5"]),
    "letters beyond ASCII": (["algo=bc", "env=pendulum", "dataset=a/dätä.hdf5"], ["a/dätä.hdf5 is not a file"]),
    "a run's setting by another name": (["env=pendulum", "total_timesteps=9"], ["Here it is called steps."]),
    "unknown algorithm's key": (["algo=iql", "env=pendulum", "algo.expectil=1"], ["algo.expectil ", "algo.expectile"]),
    "unknown environment's key": (["algo=iql", "env=pendulum", "env.backen=x"], ["env.backen ", "env.backend"]),
    "word for a whole number": (["algo=iql", "env=pendulum", "steps=abc"], ["steps=abc", "whole number"]),
    "fraction for a whole number": (["algo=iql", "env=pendulum", "seed=1.5"], ["seed=1.5", "whole number"]),
    "word for a number": (["algo=iql", "env=pendulum", "algo.expectile=abc"], ["algo.expectile=abc", "takes a number"]),
    "number for a switch": (["algo=iql", "env=pendulum", "compile=7"], ["compile=7", "auto, true, false, graph"]),
    "number for an algorithm's switch": (
        ["algo=iql", "env=pendulum", "algo.normalize_obs=0.5"], ["algo.normalize_obs=0.5", "true or false"],
    ),
    "word for a switch": (["algo=iql", "env=pendulum", "compile=maybe"], ["compile=maybe", "auto, true, false, graph"]),
    "word in a list of numbers": (["algo=iql", "env=pendulum", "algo.hidden=[a]"], ["algo.hidden=[a]", "whole number"]),
    "null where there is none": (["algo=iql", "env=pendulum", "seed=null"], ["seed=null"]),
    "no steps": (["algo=iql", "env=pendulum", "steps=0"], ["steps=0 must be at least 1"]),
    "a simulator that is not used": (
        ["algo=iql", "env=hopper", "env.gravity=2", "env.changed_in=training"], ["iql learns offline"]
    ),
    "no steps of bc": (["algo=bc", "env=pendulum", "steps=0", "online_steps=9"], ["bc cannot continue online"]),
    "no episodes": (["algo=iql", "env=pendulum", "eval_episodes=0"], ["eval_episodes=0 must be at least 1"]),
    "no environments": (["algo=iql", "env=pendulum", "num_envs=0"], ["num_envs=0 must be at least 1"]),
    "a buffer that is too small": (
        ["algo=sac", "env=pendulum", "preset=stream-barrier", "num_envs=4"],
        ["num_envs=4: algo.buffer_size=1 holds fewer transitions", "Try: num_envs=1"],
    ),
    "no threads": (["algo=iql", "env=pendulum", "threads=0"], ["threads=0 must be at least 1"]),
    "never evaluate": (["algo=iql", "env=pendulum", "eval_every=0"], ["eval_every=0 must be at least 1"]),
    "never save": (["algo=iql", "env=pendulum", "checkpoint_every=-5"], ["checkpoint_every=-5 must be at least 1"]),
    "never log": (["algo=iql", "env=pendulum", "log_every=0"], ["log_every=0 must be at least 1"]),
    "negative seed": (["algo=iql", "env=pendulum", "seed=-1"], ["seed=-1 must lie between 0 and"]),
    "seed beyond 32 bits": (["algo=iql", "env=pendulum", "seed=4294967296"], ["seed=4294967296 must lie between 0"]),
    "expectile beyond one": (["algo=iql", "env=pendulum", "algo.expectile=2"], ["algo.expectile=2.0", "0 and 1"]),
    "fraction beyond one": (["algo=bc", "env=pendulum", "algo.top_fraction=7"], ["algo.top_fraction=7.0", "most 1"]),
    "no equals sign": (["algo=iql", "pendulum"], ["'pendulum' is not key=value"]),
    "an option there is not": (["--algo", "iql"], ["'--algo' is not key=value"]),
    "unbalanced bracket": (["algo=iql", "env=pendulum", "algo.hidden=[1"], ["cannot read algo.hidden=[1"]),
    "sweep without -m": (["algo=iql", "env=pendulum", "seed=0,1"], ["zoo run -m algo=iql env=pendulum seed=0,1"]),
    "an added key": (["algo=iql", "env=pendulum", "+steps=3"], ["write steps=3"]),
    "actions it cannot take": (["algo=sac", "env=cartpole"], ["sac needs continuous actions", "Discrete(2). Try: dqn"]),
    "unknown backend": (["algo=sac", "env=pendulum", "env.backend=foo"], ["env.backend=foo", "gymnasium"]),
    "unknown logger": (["algo=sac", "env=pendulum", "logger=tensorbord"], ["logger=tensorbord", "tensorboard"]),
    "unknown device": (["algo=sac", "env=pendulum", "device=foo"], ["device=foo", "device=cpu"]),
    "device that computes nothing": (["algo=sac", "env=pendulum", "device=meta"], ["device=meta", "device=cpu"]),
    "environment like no other": (["algo=sac", "env=xyzzy"], ["env=xyzzy does not exist. There are: acrobot, ant, "]),
    "unknown sampler": (["algo=iql", "env=pendulum", "sampler=retur"], ["sampler=retur does not exist", "return"]),
    "unknown sampler's key": (["algo=iql", "env=pendulum", "sampler.alpa=1"], ["sampler.alpa ", "sampler.alpha"]),
    "a sampler's share without the sampler": (
        ["algo=iql", "env=pendulum", "sampler.fraction=0.2"], ["sampler.fraction=0.2 does nothing", "advantage"],
    ),
    "a corruption's rate without the corruption": (
        ["algo=iql", "env=pendulum", "corruption.rate=0.2"], ["corruption.rate=0.2 does nothing", "random-obs"],
    ),
    "no temperature": (
        ["algo=iql", "env=pendulum", "sampler=return", "sampler.alpha=0"], ["sampler.alpha=0", "above 0"],
    ),
    "an endless temperature": (
        ["algo=iql", "env=pendulum", "sampler=return", "sampler.alpha=inf"], ["sampler.alpha=inf", "finite"],
    ),
    "an endless corruption": (
        ["algo=iql", "env=pendulum", "corruption=random-obs", "corruption.scale=inf"],
        ["corruption.scale=inf", "finite"],
    ),
    "unknown corruption": (
        ["algo=iql", "env=pendulum", "corruption=random-ob"], ["corruption=random-ob ", "random-obs"],
    ),
    "corruption of more than all": (
        ["algo=iql", "env=pendulum", "corruption=random-obs", "corruption.rate=2"], ["corruption.rate=2.0", "0 and 1"],
    ),
    "adversary without critics": (
        ["algo=iql", "env=pendulum", "corruption=adversarial-obs"], ["zoo run algo=NAME", "corruption.critic=DIR"],
    ),
    "quantile of all": (["algo=riql", "env=pendulum", "algo.quantile=1"], ["algo.quantile=1.0", "between 0 and 1"]),
    "unknown preset": (["algo=iql", "env=hopper", "preset=papr"], ["preset=papr does not exist", "paper"]),
    "a sampler online": (["algo=sac", "env=pendulum", "sampler=top"], ["sac learns online", "algo.offline_fraction"]),
    "online steps of what has none": (
        ["algo=bc", "env=pendulum", "online_steps=9"], ["online_steps=9", "awac, cql, dsrl, expo, famo2o, fql"],
    ),
    "no online step to learn from": (
        ["algo=iql", "env=pendulum", "online_steps=9", "online_starts=9"], ["online_starts=9", "never learn online"],
    ),
    "a warm-up without steps online": (
        ["algo=iql", "env=pendulum", "online_starts=9"], ["online_starts=9", "Add: online_steps=N"],
    ),
    "too many threads": (["algo=iql", "env=pendulum", "threads=100000"], ["threads=100000 must be at most 1,024"]),
    "a run to start from that is not named": (
        ["algo=sac", "env=pendulum", "init_from="], [". is not the folder of a run"],
    ),
    "a folder at home": (
        ["algo=sac", "env=pendulum", "run_dir=~/x", "init_from=~/no"], ["/no is not the folder of a run"],
    ),
    "rewards shifted under returns that are asked for": (
        ["algo=rcsl", "env=pendulum", "reward_shift=-1"], ["reward_shift", "rcsl is conditioned on returns"],
    ),
    "rewards of goals": (["algo=hiql", "env=pointmaze-medium", "reward_shift=-1"], ["reward_shift", "without rewards"]),
    "a number for a list": (["algo=iql", "env=pendulum", "algo.hidden=256"], ["algo.hidden=256", "[256,256]"]),
    "a temperature below zero": (["algo=iql", "env=pendulum", "algo.beta=-3"], ["algo.beta=-3", "at least 0"]),
    "no clipping": (["algo=ppo", "env=pendulum", "algo.clip=0"], ["algo.clip=0", "above 0"]),
    "a simulator without a share of the batch": (
        ["algo=h2o", "env=pendulum", "algo.batch_size=1"], ["algo.batch_size=1", "larger batch"],
    ),
    "what predicts where actions count": (
        ["algo=stream_td", "env=pendulum"], ["stream_td predicts and does not act", "Try: env=series/hopper"],
    ),
    "nothing in place of a number": (["algo=iql", "env=pendulum", "algo.beta=null"], ["algo.beta cannot be null"]),
    "a search that is none": (["algo=ppo", "env=cartpole", "sweeper.n_trials=3"], ["-m sweeper=optuna"]),
    "rewards scaled by nothing": (["algo=iql", "env=pendulum", "reward_scale=0"], ["reward_scale=0.0", "above 0"]),
    "a share of online batches offline": (
        ["algo=iql", "env=pendulum", "online_fraction=0.5"], ["online_fraction=0.5", "online_steps=N"],
    ),
    "online updates of an algorithm that is online only": (
        ["algo=sac", "env=pendulum", "online_updates=4"], ["online_updates=4", "rlpd", "algo.utd_ratio"],
    ),
    "online updates without online steps": (
        ["algo=cql", "env=pendulum", "online_updates=4"], ["online_updates=4", "online_steps=N"],
    ),
    "the scale of no base": (
        ["algo=sac", "env=pendulum", "base_scale=0.5"], ["base_scale", "base=RUN_DIR"],
    ),
    "a share of more than all": (
        ["algo=iql", "env=pendulum", "online_steps=9", "online_fraction=2"], ["online_fraction=2.0", "between 0 and 1"],
    ),
    "steps that end before it learns": (
        ["algo=sac", "env=pendulum", "steps=50"], ["steps=50: learning begins after algo.learning_starts="],
    ),
    "steps of all environments that end before it learns": (
        ["algo=sac", "env=pendulum", "steps=100", "algo.learning_starts=90", "num_envs=64"],
        ["steps=100: learning begins after algo.learning_starts=90; num_envs=64 are taken at once"],
    ),
    "steps too few for an update": (
        ["algo=dqn", "env=cartpole", "steps=100", "algo.learning_starts=0", "algo.train_every=1000"],
        ["steps=100: learning begins after algo.learning_starts=0, at every algo.train_every=1000"],
    ),
    "online steps of all environments that end before it learns": (
        ["algo=cql", "env=pendulum", "online_steps=100", "online_starts=90", "num_envs=64"],
        ["online_starts=90: cql would never learn online. It must be at most 64 for online_steps=100"],
    ),
    "an online share of a batch that is none": (
        ["algo=iql", "env=pendulum", "online_steps=9", "online_fraction=0.001"],
        ["online_fraction=0.001: of a batch of 256 that is no transition"],
    ),
    "steps that make no rollout": (["algo=ppo", "env=pendulum", "steps=50"], ["steps=50 are fewer than one rollout"]),
    "a number that is none": (["algo=iql", "env=pendulum", "algo.beta=nan"], ["algo.beta=nan must be a finite number"]),
    "an environment in another's place": (["algo=sac", "env=hopper", "env.id=Ant-v5"], ["env=Ant-v5"]),
    "a sampler's name": (["algo=iql", "env=pendulum", "sampler.name=foo"], ["sampler=foo does not exist"]),
    "frames for vectors": (
        ["algo=sac", "env=CarRacing-v3", "env.backend=envpool"], ["sac needs", "[3, 96, 96]. Try: ppo, stream_ac."],
    ),
    "a share of the data that is none": (
        ["algo=sac", "env=pendulum", "algo.offline_fraction=0.001"],
        ["algo.offline_fraction=0.001 of algo.batch_size=256 is no transition", "or learn without a dataset"],
    ),
    "a share of the data that is all": (
        ["algo=sac", "env=pendulum", "dataset=demo", "algo.offline_fraction=0.999"],
        ["algo.offline_fraction=0.999 of algo.batch_size=256 is every transition. Take a larger batch"],
    ),
    "a list without its brackets": (
        ["algo=iql", "env=pendulum", "algo.hidden=256,256"], ["algo.hidden takes a list. Write: algo.hidden=[256,256]"],
    ),
    "a file of one's own": (
        ["algo=mine/iql.py", "env=pendulum"], ["algo=mine/iql.py", "run by itself: python mine/iql.py env=..."],
    ),
    "a file of one's own as an argument": (
        ["a/b.py", "env=pendulum"], ["a/b.py: a file of your own is run by itself: python a/b.py env=..."],
    ),
    "several algorithms of several seeds": (
        ["algo=bc,iql", "env=pendulum", "seeds=0-1"], ["zoo run -m algo=bc,iql env=pendulum", "seed=0,1"],
    ),
    "a namespace that is not there": (["algo=sac", "env=gridworld:Foo"], ["env=gridworld:Foo does not exist"]),
    "a folder for a dataset": (["algo=bc", "env=pendulum", "dataset=/tmp"], ["dataset=/tmp does not exist"]),
    "a folder of two names": (["algo=bc", "env=pendulum", "run_dir=a=b,c"], ["run_dir=a=b,c", "commas or ="]),
    "frames for vectors offline": (
        ["algo=cql", "env=CarRacing-v3", "env.backend=envpool"],
        ["cql needs vectors", "continuous actions and observations of shape [3, 96, 96]. No algorithm here learns"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=list(REFUSED))
def test_a_mistake_is_refused_in_one_line_that_says_what_to_type(zoo, tmp_path, pendulum_file, arguments, words):
    dataset = [] if any(a.startswith("dataset=") for a in arguments) else [f"dataset={pendulum_file}"]
    online = {"algo=sac", "algo=ppo", "algo=stream_td", "--algo"} & set(arguments)
    result = zoo("run", *arguments, *([] if online else dataset))
    assert result.code == 2, result
    assert re.fullmatch(r"zoo: [^\n]+\n", result.err), result.err
    for word in words:
        assert word in result.err
    assert not list(tmp_path.iterdir())  # nothing left behind


def test_a_sweep_beside_another_value_of_its_key_is_refused(zoo):
    result = zoo("run", "-m", "algo=sac", "env=pendulum", "seed=0,1", "seed=2")
    assert (result.code, result.err) == (2, "zoo: seed=0,1 and another value of seed are both given. Leave one out\n")


def test_a_run_that_crashes_lets_the_other_runs_of_a_sweep_go_on(zoo, tmp_path, pendulum_file, monkeypatch):
    def crash(config, *_):
        if config.seed == 1:
            raise ValueError("the environment fell over")
        Path("runs/pendulum").mkdir(parents=True, exist_ok=True)
        return 0

    monkeypatch.setattr(commands_run, "_train", crash)
    result = zoo("run", "-m", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "seed=0,1,2", "algo.lr=1e-3")
    assert result.code == 1
    assert result.err.startswith("Traceback")
    assert result.err.endswith("ValueError: the environment fell over\n")
    begun, said = result.out.split("\n\n")
    assert begun.splitlines() == [f"run {seed + 1} of 3: seed={seed}" for seed in range(3)]
    assert said == "all of them: zoo report runs/pendulum\n"


def test_a_sweep_says_which_run_has_which_settings_and_where_they_are(zoo, monkeypatch):
    monkeypatch.setattr(commands_run, "_train", lambda config, *_: Path(config.run_dir).mkdir(parents=True) or 0)
    result = zoo("run", "-m", "algo=sac", "env=pendulum", "seed=3", "run_dir='my runs/a','my runs/b'")
    begun, said = result.out.split("\n\n")
    own = [shlex.split(line.partition(": ")[2]) for line in begun.splitlines()]
    assert own == [["run_dir='my runs/a'"], ["run_dir='my runs/b'"]]
    assert said == "all of them: zoo report 'my runs'\n"
    assert zoo("run", "-m", "algo=sac", "env=pendulum", "run_dir=alone").out == "run 1 of 1\n"


@pytest.mark.parametrize("sweep", ["algo.tau=interval(0.1,0.2)", "env=glob(*)"])
def test_a_sweep_without_values_is_refused_in_one_line(zoo, sweep):
    result = zoo("run", "-m", "algo=sac", *(["env=pendulum"] if "env" not in sweep else []), sweep)
    assert result.code == 2
    assert re.fullmatch(r"zoo: [^\n]+ has no values one after another[^\n]+\n", result.err), result.err


def test_a_folder_that_looks_like_a_number_keeps_its_name(zoo, tmp_path, pendulum_file):
    quick = ("steps=2", "eval_episodes=1", "logger=none", "algo.hidden=[8]")
    assert zoo("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "run_dir=2026_01", *quick).code == 0
    assert (tmp_path / "2026_01" / "run.json").exists()


def test_a_folder_may_have_letters_beyond_ascii(zoo, tmp_path, pendulum_file):
    quick = ("steps=2", "eval_episodes=1", "logger=none", "algo.hidden=[8]")
    assert zoo("run", "algo=bc", "env=pendulum", f"dataset={pendulum_file}", "run_dir=r/münchen", *quick).code == 0
    assert (tmp_path / "r" / "münchen" / "run.json").exists()
    assert zoo("eval", "r/münchen").code == 0


def test_texts_of_a_group_that_look_like_numbers_keep_their_form():
    given = ["algo=recoil", "env=hopper", "corruption=adversarial-obs", "algo.expert=1e3", "env.score_source=2026_01"]
    config, _, _ = compose([*given, "corruption.critic=2026_01"])
    assert (config.corruption.critic, config.env.score_source, config.algo.expert) == ("2026_01", "2026_01", "1e3")


def test_a_setting_below_one_that_has_none_is_refused_in_one_line(zoo):
    result = zoo("run", "algo=bc", "env=hopper", "steps.x=1")
    assert result.code == 2
    assert re.fullmatch(r"zoo: [^\n]*steps[^\n]*\n", result.err), result.err


def test_the_doctor_says_what_is_missing_and_ends(zoo, monkeypatch):
    version = metadata.version

    def found(name):
        if name == "gymnasium":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", found)
    result = zoo("doctor")
    assert result.code == 1
    assert "MISSING: pip install gymnasium" in result.out
    assert "disk" in result.out
    assert "linear" not in result.out


def test_the_doctor_goes_on_where_there_is_no_home_folder(zoo, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    result = zoo("doctor")
    for line in ("linear", "store"):
        assert re.search(rf"^  {line} +this user has no home folder", result.out, re.MULTILINE), result.out
    assert "disk" in result.out


def test_a_home_folder_that_does_not_exist_is_said(zoo):
    result = zoo("run", "resume=~nobody-of-this-name/run")
    assert result.code == 2
    assert "there is no such home folder" in result.err


def test_a_dataset_of_another_environment_is_refused_with_both_shapes(zoo, tmp_path, pendulum_file):
    result = zoo("run", "algo=bc", "env=hopper", f"dataset={pendulum_file}")
    assert result.code == 2
    assert re.fullmatch(r"zoo: [^\n]+\n", result.err), result.err
    for word in ("(3,)", "(11,)", "hopper"):
        assert word in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused(zoo, tmp_path):
    result = zoo("run", "algo=sac", "env=pendulum", "device=cuda")
    assert result.code == 2
    assert re.fullmatch(r"zoo: device=cuda [^\n]+device=cpu[^\n]*\n", result.err), result.err
    assert not list(tmp_path.iterdir())


def test_a_refused_run_leaves_a_folder_that_was_there_before_as_it_was(zoo, tmp_path):
    (tmp_path / "mine").mkdir()
    assert zoo("run", "algo=sac", "env=cartpole", "run_dir=mine").code == 2
    assert (tmp_path / "mine").is_dir()
    assert not list((tmp_path / "mine").iterdir())


def test_a_refused_run_in_the_working_directory_leaves_it_there(zoo, tmp_path):
    result = zoo("run", "algo=sac", "env=cartpole", "run_dir=.")
    assert result.code == 2
    assert re.fullmatch(r"zoo: [^\n]+\n", result.err), result.err
    assert tmp_path.is_dir()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["rum"], ["evl", "x"]])
def test_an_unknown_command_is_refused_with_the_nearest(zoo, arguments):
    result = zoo(*arguments)
    assert result.code == 2
    assert re.fullmatch(r"zoo: \w+ is not a command\. [^\n]*\b(run|eval)\b[^\n]*\n", result.err), result.err


def test_eval_of_no_run_and_of_no_episodes_is_refused(zoo, tmp_path):
    for arguments in (["nowhere"], ["nowhere", "--episodes", "0"], ["nowhere", "episodes=20"]):
        result = zoo("eval", *arguments)
        assert result.code == 2
        assert re.fullmatch(r"zoo: [^\n]+\n", result.err), result.err
    assert "episodes=20 is no run's folder" in result.err
    assert "--episodes 20" in result.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [["-m", "sweeper=optuna", "algo=iql"], ["-m", "sweeper.n_trials=3"]])
def test_a_search_of_a_file_of_ones_own_is_refused(tmp_path, arguments):
    with pytest.raises(UsageError, match=r"algos/ of a checkout, then: zoo run -m sweeper=optuna algo=mine env=\.\.\."):
        commands_run.main([*arguments, "env=pendulum", "algo.beta=1,2"], tmp_path / "mine.py")


def test_a_suite_of_a_file_of_ones_own_is_refused(zoo, tmp_path):
    (tmp_path / "s.yaml").write_text("- {algo: mine/crr.py, env: pendulum}")
    result = zoo("bench", "s.yaml", "--dry-run")
    assert result.code == 2
    assert "algo=mine/crr.py is a file" in result.err
    assert result.err.endswith("Put it into algos/ of a checkout, then: algo=crr\n")


# --- Help ---


def test_run_help_lists_every_key_with_its_default_and_meaning(zoo):
    help_text = zoo("run", "--help").out
    for field in dataclasses.fields(RunConfig):
        line = re.search(rf"^  {field.name} +(\S+) +(\S.*)$", help_text, re.MULTILINE)
        assert line, field.name
        if isinstance(field.default, int | str) and field.name != "algo":
            assert line[1].replace("_", "") == str(field.default).replace("_", "")
    for field in dataclasses.fields(EnvConfig):
        assert re.search(rf"^  env\.{field.name} .* \w.*$", help_text, re.MULTILINE), field.name


@pytest.mark.parametrize("name", list(algorithms()))
def test_help_of_an_algorithm_lists_its_keys_with_default_and_meaning(zoo, name):
    result = zoo("run", f"algo={name}", "--help")
    assert result.code == 0
    for field in dataclasses.fields(algorithms()[name].module.Config):
        line = re.search(rf"^  algo\.{field.name} +(\[.*?\]|\S+) +(\S.*)$", result.out, re.MULTILINE)
        assert line, field.name
        if isinstance(field.default, float):
            assert float(line[1].replace("_", "")) == field.default


def test_help_of_a_file_of_ones_own_is_typed_as_the_file_is(tmp_path):
    (tmp_path / "mine.py").write_text((registry.folder("algos") / "iql.py").read_text())
    command = [sys.executable, "mine.py", "algo=sac", "--help"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert out.startswith("usage: python mine.py env=NAME [key=value ...]  ")
    assert not re.search(r"^  (algo|sweeper\.seeds) ", out, re.MULTILINE)
    assert re.search(r"^  algo\.expectile ", out, re.MULTILINE)


def test_help_with_a_preset_has_its_values_in_place_of_the_defaults(zoo):
    def shown(*arguments):
        out = zoo("run", *arguments, "--help").out
        return {line.split()[0]: line.split()[1] for line in out.splitlines() if line.startswith("  ")}

    given = ("algo=iql", "env=hopper", "dataset=medium", "preset=paper")
    preset, plain = shown(*given), shown("algo=iql")
    _, _, settings = compose(given)
    changed = {key: value for key, value in preset.items() if value != plain[key]}
    assert changed.keys() >= {"preset", "algo.normalize_obs"}
    for key, value in changed.items():
        assert value == str(flat(settings)[key])
    assert shown("preset=paper") == shown()


def test_list_names_every_algorithm_and_environment(zoo):
    out = zoo("list").out
    for name in [*algorithms(), *environments()]:
        assert re.search(rf"^ +{name} ", out, re.MULTILINE), name


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["run", "--help"], ["--version"]])
def test_answers_at_once_without_torch(arguments):
    code = (
        f"import sys; from zoo.cli import main; code = main({arguments}); "
        "assert not {'torch', 'gymnasium', 'hydra', 'numpy'} & set(sys.modules), sorted(sys.modules); sys.exit(code)"
    )
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        assert done.stdout
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 0.5  # of the processor: the machine may be busy with other things


def test_a_reader_that_goes_away_early_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m zoo.cli list | head -1", shell=True, capture_output=True, text=True, check=False,
        cwd=Path(os.sep),
    )  # fmt: skip
    assert done.stdout == "algorithms (algo=)\n"
    assert done.stderr == ""


def test_a_run_whose_reader_goes_away_ends_with_a_checkpoint_and_says_so(tmp_path, pendulum_file):
    arguments = f"algo=bc env=pendulum dataset={pendulum_file} steps=100_000_000 eval_every=20 eval_episodes=1"
    done = subprocess.run(
        f"{sys.executable} -m zoo.cli run {arguments} logger=none compile=false run_dir=run | head -2", shell=True,
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 2
    assert "interrupted after step" in done.stderr
    assert "zoo run resume=run" in done.stderr
    assert (tmp_path / "run" / "checkpoint.pt").exists()


def test_without_a_command_it_shows_what_there_is(zoo):
    result = zoo()
    assert result.code == 2
    assert "zoo run algo=iql env=hopper" in result.out


OWN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Imported-v0", CartPoleEnv, max_episode_steps=9)
"""


def test_modules_are_imported_that_register_environments(zoo, tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    train = ("run", "algo=dqn", "env=Imported-v0", "steps=30", "algo.learning_starts=10", "run_dir=run", "logger=none")
    assert "One of your own needs its module: ZOO_IMPORT=MODULE zoo ..." in zoo(*train).err
    monkeypatch.setenv("ZOO_IMPORT", "nothing_here")
    assert zoo(*train).err == "zoo: ZOO_IMPORT=nothing_here: No module named 'nothing_here'.\n"
    monkeypatch.setenv("ZOO_IMPORT", ".x")
    assert zoo(*train).err.startswith("zoo: ZOO_IMPORT=.x: ")
    monkeypatch.setenv("ZOO_IMPORT", "json, of_mine")
    try:
        assert zoo(*train, "eval_episodes=2").code == 0
        assert zoo("eval", "run").out.count("steps     9") == 2
        assert os.environ["PYTHONPATH"] == f"elsewhere{os.pathsep}{tmp_path}"
    finally:
        gymnasium.registry.pop("Imported-v0", None)
        sys.modules.pop("of_mine", None)
