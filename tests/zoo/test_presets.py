"""Presets: the papers' settings for a task, which the command line overrides."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from zoo.errors import UsageError
from zoo.runs.load import reopen
from zoo.settings.compose import compose
from zoo.settings.overrides import as_overrides
from zoo.settings.presets import preset, short
from zoo.settings.registry import algorithms, folder

FILES = sorted((folder("configs") / "presets").glob("*/*.yaml"))


def settings(*arguments: str):
    return compose(["preset=paper", *arguments])[0]


def test_riql_takes_what_its_table_says_for_the_corruption():
    config = settings("algo=riql", "env=hopper", "corruption=random-obs")
    assert (config.algo.sigma, config.algo.quantile, config.algo.num_critics) == (0.1, 0.25, 3)
    config = settings("algo=riql", "env=halfcheetah", "corruption=random-action")
    assert (config.algo.sigma, config.algo.quantile, config.algo.num_critics) == (0.5, 0.25, 3)


def test_a_task_is_known_however_it_is_named():
    for corruption in ("corruption=random-obs", "corruption.name=random-obs"):
        for env in ("hopper", "Hopper-v5"):
            config = settings("algo=riql", f"env={env}", corruption)
            assert (config.algo.sigma, config.corruption.name) == (0.1, "random-obs")


def test_a_later_entry_that_is_for_fewer_tasks_counts_more():
    assert settings("algo=iql", "env=hopper", "dataset=expert").algo.policy == "gaussian"
    assert settings("algo=iql", "env=hopper", "dataset=medium").algo.policy == "deterministic"


@pytest.mark.parametrize(
    "name", ["medium", "mujoco/hopper/medium-v0", "data/hopper-medium-v2.hdf5", "hopper_medium.hdf5"]
)
def test_a_dataset_is_known_by_any_of_its_names(name):
    assert short(name) == "medium"


def test_the_files_of_d4rl_are_known_by_their_names():
    assert short("hopper_medium_replay-v2.hdf5") == "medium-replay"
    assert short("D4RL/walker2d/medium-expert-v2") == "medium-expert"
    assert short("halfcheetah_full_replay-v2.h5") == "full-replay"


def test_a_mixture_is_known_by_the_names_of_its_parts():
    assert short("90%D4RL/hopper/random-v2+10%hopper_medium-v2.hdf5") == "90%random+10%medium"
    assert short("random+10%zoo/hopper/expert-v0") == "random+10%expert"


@pytest.mark.parametrize("env", ["hopper", "halfcheetah", "walker2d", "ant"])
@pytest.mark.parametrize("share", [1, 5, 10, 50])
@pytest.mark.parametrize("better", ["expert", "medium"])
def test_all_mixtures_of_hong_et_al_take_their_settings(env, share, better):
    """Their table has random-expert and random-medium with four shares for each of four environments."""
    for dataset in (
        f"{100 - share}%random+{share}%{better}",
        f"random+{share}%{better}",
        f"{100 - share}%D4RL/{env}/random-v2+{share}%D4RL/{env}/{better}-v2",
    ):
        cql = settings("algo=cql", f"env={env}", f"dataset={dataset}")
        assert (cql.sampler.alpha, cql.algo.actor_lr, cql.algo.hidden) == (0.2, 3e-4, [256, 256])
        assert (cql.algo.normalize_obs, cql.algo.orthogonal_init) == (False, False)
        iql = settings("algo=iql", f"env={env}", f"dataset={dataset}")
        assert (iql.algo.normalize_obs, iql.algo.normalize_reward) == (False, env != "ant")
        assert (iql.algo.policy, iql.algo.tau) == ("gaussian", 0.005)


@pytest.mark.parametrize(
    ("algo", "nothing", "goal"),
    [("iql", -1, 0), ("awac", -1, 0), ("td3_bc", -1, 0), ("fql", -1, 0), ("cql", -5, 5), ("dql", -2, 2),
     ("rebrac", 0, 100)],
)  # fmt: skip
def test_rewards_of_antmaze_are_what_the_authors_make_of_them(algo, nothing, goal):
    for env, dataset in (("AntMaze_UMaze-v5", "D4RL/antmaze/umaze-v1"), ("AntMaze_Large-v5", "antmaze-large-play-v2")):
        config = settings(f"algo={algo}", f"env={env}", f"dataset={dataset}")
        assert [config.reward_scale * reward + config.reward_shift for reward in (0, 1)] == [nothing, goal]


@pytest.mark.parametrize("algo", ["iql", "fql", "dql", "rebrac"])
def test_rewards_of_dense_antmazes_are_not_those_that_the_settings_are_for(algo):
    with pytest.raises(UsageError, match=f"preset=paper has nothing for {algo} on this task"):
        settings(f"algo={algo}", "env=AntMaze_LargeDense-v5", "dataset=D4RL/antmaze/large-play-v1")


def test_settings_of_kitchen_are_found_by_the_datasets_name_in_either_collection():
    for dataset in ("D4RL/kitchen/complete-v2", "kitchen_complete-v0.hdf5"):
        assert settings("algo=dql", "env=FrankaKitchen-v1", f"dataset={dataset}").steps == 250_000


def test_settings_of_an_antmaze_dataset_are_found_by_its_name_in_either_collection():
    for dataset in ("D4RL/antmaze/large-diverse-v1", "antmaze-large-diverse-v2.hdf5"):
        config = settings("algo=rebrac", "env=AntMaze_Large_Diverse_GR-v5", f"dataset={dataset}").algo
        assert (config.actor_penalty, config.critic_penalty, config.discount) == (0.002, 0.002, 0.999)


def test_a_folder_of_a_dataset_says_nothing_of_its_kind():
    config = settings("algo=gciql", "env=pointmaze-medium", "dataset=explore/noisy/pointmaze-medium-navigate-v0.npz")
    named = settings("algo=gciql", "env=pointmaze-medium", "dataset=pointmaze-medium-navigate-v0.npz")
    assert config.algo == named.algo


def test_dt_is_asked_for_the_authors_return_where_they_asked_for_it():
    assert settings("algo=dt", "env=hopper", "dataset=medium-replay").algo.target_return == 3600
    assert settings("algo=dt", "env=hopper", "dataset=random").algo.target_return is None


def test_sac_has_the_papers_learning_rates_and_those_of_cleanrl_apart():
    assert settings("algo=sac", "env=hopper").algo.critic_lr == 3e-4
    assert compose(["preset=cleanrl", "algo=sac", "env=hopper"])[0].algo.critic_lr == 1e-3


def test_c51_is_cleanrls():
    config = compose(["preset=c51", "algo=dqn", "env=ALE/Pong-v5"])[0].algo
    assert (config.value_head, config.v_min, config.v_max, config.num_bins) == ("c51", -10, 10, 51)
    assert (config.lr, config.adam_eps, config.target_every) == (2.5e-4, 0.01 / 32, 10_000)
    assert config.max_grad_norm is None


def test_a_run_with_a_preset_is_evaluated_and_resumed_with_what_it_set(zoo, tmp_path):
    quick = ("eval_episodes=1", "logger=none", "algo.hidden=[8]", "algo.batch_size=8")
    run = ("run", "algo=riql", "env=hopper", "corruption=random-obs", "preset=paper", "steps=4", "run_dir=run", *quick)
    assert zoo(*run).code == 0
    result = zoo("eval", "run", "--episodes", "1")
    assert result.code == 0, result.err
    assert reopen(tmp_path / "run")[0].algo.sigma == 0.1


def test_the_command_line_counts_more():
    config = settings("algo=iql", "env=hopper", "dataset=medium", "algo.tau=0.5", "steps=7")
    assert (config.algo.tau, config.steps, config.algo.policy) == (0.5, 7, "deterministic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preset=papr", "algo=iql", "env=hopper"], "preset=papr does not exist. Nearest: paper"),
        (["preset=paper", "algo=iql", "env=pendulum"], "preset=paper has nothing for iql on this task"),
    ],
)
def test_what_no_preset_has_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        compose(arguments)


def test_an_algorithm_without_any_is_refused_with_which_have_some():
    with pytest.raises(UsageError, match="preset=paper has nothing for ofql, only for awac, bc"):
        preset("paper", "ofql", {})


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_entry_names_its_source_and_sets_what_there_is(path: Path):
    assert path.stem in algorithms()
    for entry in OmegaConf.to_container(OmegaConf.load(path)):
        assert entry["source"]
        assert set(entry) <= {"env", "dataset", "corruption", "source", "set"}
        env = "pendulum" if "continuous" in algorithms()[path.stem].action_spaces else "cartpole"
        sampler = ["sampler=return"] if any(key.startswith("sampler.") for key in entry["set"]) else []
        compose([f"algo={path.stem}", f"env={env}", *sampler, *as_overrides(entry["set"])])


def test_extreme_q_learning_is_f_dvl_with_the_gumbel_loss_and_its_scripts_temperatures():
    for env, kind, temperature in [("hopper", "medium", 5.0), ("walker2d", "medium", 10.0), ("ant", "medium", None)]:
        task = {"env": {env}, "dataset": {kind}, "corruption": {"none"}}
        if temperature is None:
            with pytest.raises(UsageError, match="preset=xql has nothing for dvl on this task"):
                preset("xql", "dvl", task)
        else:
            found = preset("xql", "dvl", task)
            assert (found["algo.f"], found["algo.temperature"]) == ("reverse_kl", temperature)


def test_a_preset_goes_by_the_name_of_the_algorithm_file(tmp_path):
    text = (folder("algos") / "iql.py").read_text()
    (tmp_path / "iql.py").write_text(text)
    (tmp_path / "mine.py").write_text(text)
    arguments = ["preset=paper", "env=hopper", "dataset=medium"]
    config, _, _ = compose(arguments, tmp_path / "iql.py")
    assert config.algo.policy == "deterministic"
    with pytest.raises(UsageError, match="nothing for mine: settings go by the name of the algorithm's file"):
        compose(arguments, tmp_path / "mine.py")
