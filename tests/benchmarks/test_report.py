"""The report: which folders are runs, how runs are named and compared, and the page in a real browser."""

import csv
import errno
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote, urlencode

import numpy as np
import pytest

from zoo.benchmarks import plots, published
from zoo.benchmarks.analysis import build
from zoo.benchmarks.markdown import ALWAYS, summary, task_table
from zoo.benchmarks.published import Reference
from zoo.benchmarks.reading import read
from zoo.benchmarks.stats import Published
from zoo.cli import main
from zoo.errors import printable
from zoo.runs.lock import locked
from zoo.settings.compose import compose

VERSIONS = {"zoo": "0.1.0"}


@pytest.fixture
def run(tmp_path):
    """`run(name, overrides, values)`: makes the folder of a finished run; `training`: returns of training episodes."""

    def make(name: str, overrides: str, values: list[float], training: float | None = None, **record: object) -> Path:
        config, algorithm, settings = compose(overrides.split())
        folder = tmp_path / name
        folder.mkdir(parents=True)
        data = {"name": config.dataset, "fingerprint": config.dataset} if algorithm.takes_data(config) else None
        known = {"status": "finished", "config": settings, "versions": VERSIONS, "code": "x"}
        (folder / "run.json").write_text(json.dumps(known | ({"dataset": data} if data else {}) | record))
        steps = np.linspace(0, config.steps + config.online_steps, len(values) + 1)[1:].astype(int)
        with (folder / "evaluations.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["step", "return_mean", "score", "returns"])
            for step, value in zip(steps, values, strict=True):
                score = config.env.normalize(value)
                returns = " ".join([str(value)] * config.eval_episodes)
                rows.writerow([step, value, "" if score is None else score, returns])
        with (folder / "metrics.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["step", "seconds", *([] if training is None else ["episode_return", "episode_length"])])
            rows.writerow([steps[-1], 100.0, *([] if training is None else [training, 1000.0])])
        return folder

    return make


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "report" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_final_best_and_area_are_kept_apart(run, tmp_path):
    run("a", "algo=stream_q env=cartpole steps=40", [10.0, 90.0, 40.0, 20.0])
    (result,), notes = read(tmp_path)
    assert not notes
    assert [result.figure(name) for name in ("final", "best", "area")] == [20, 90, 40]
    np.testing.assert_allclose(result.seconds, [25, 50, 75, 100])


@pytest.mark.parametrize(
    ("overrides", "task", "method"),
    [
        ("algo=ppo env=cartpole", "cartpole", "ppo"),
        ("algo=iql env=hopper dataset=mujoco/hopper/medium-v0", "hopper, medium", "iql"),
        ("algo=iql env=hopper dataset=random+5%expert sampler=top", "hopper, random+5%expert", "iql, top"),
        ("algo=iql env=hopper reward_shift=-1", "hopper, demo", "iql, reward_shift=-1.0"),
        ("algo=bc env=hopper algo.top_fraction=0.1 compile=true", "hopper, demo", "bc, top_fraction=0.1"),
        ("algo=iql env=hopper corruption=random-obs corruption.rate=0.5", "hopper, demo, random-obs, rate=0.5", "iql"),
        ("algo=stream_ac env=hopper preset=stream-barrier", "hopper", "stream_ac, stream-barrier"),
        ("algo=riql env=hopper preset=paper corruption=random-obs", "hopper, demo, random-obs", "riql, paper"),
        ("algo=iql env=hopper preset=paper algo.beta=99", "hopper, demo", "iql, paper, beta=99.0"),
        ("algo=cql env=hopper online_steps=9", "hopper, demo", "cql, online_steps=9"),
        (
            "algo=cql env=hopper online_steps=9 online_fraction=0.5",
            "hopper, demo",
            "cql, online_fraction=0.5, online_steps=9",
        ),
        ("algo=dsrl env=hopper preset=paper", "hopper, demo", "dsrl, paper, online_steps=1000000"),
        ("algo=rlpd env=hopper init_from=runs/cql-seed3-2026", "hopper, demo", "rlpd, init_from=cql"),
        ("algo=sac env=hopper base=runs/bc base_scale=0.2", "hopper", "sac, base=bc, base_scale=0.2"),
        ("algo=ppo env=hopper env.backend=gymnasium", "hopper", "ppo"),
        ("algo=ppo env=hopper env.backend=warp", "hopper", "ppo, env.backend=warp"),
    ],
)
def test_a_run_is_called_by_its_task_and_by_what_was_changed_of_its_method(run, tmp_path, overrides, task, method):
    run("a", overrides, [1.0])
    (result,), _ = read(tmp_path)
    assert (result.task, result.method) == (task, method)


def test_the_summary_names_the_gpus_of_runs_on_one_and_their_memory(run, tmp_path):
    run("a", "algo=iql env=hopper", [1.0], hardware={"gpu": "NVIDIA H100"}, gpu_memory=3 * 2**30)
    run("b", "algo=iql env=hopper seed=1", [1.0], hardware={"gpu": "NVIDIA A100"}, gpu_memory=2**30)
    assert "On NVIDIA A100, NVIDIA H100. A run used at most 3.0 GiB of a GPU's memory." in summary(build(tmp_path))


def test_the_summary_names_no_gpu_that_no_run_used(run, tmp_path):
    run("a", "algo=iql env=hopper", [1.0], hardware={"gpu": "NVIDIA H100"})
    assert "NVIDIA" not in summary(build(tmp_path))


def test_the_summary_names_the_processors_on_which_minutes_are_not_comparable(run, tmp_path):
    run("a", "algo=iql env=hopper", [1.0], hardware={"processor": "AMD EPYC", "gpu": None})
    assert " Processors: AMD EPYC. " in summary(build(tmp_path))
    run("b", "algo=iql env=hopper seed=1", [1.0], hardware={"processor": "Xeon", "gpu": None})
    assert " Processors: AMD EPYC, Xeon; minutes are not comparable across them. " in summary(build(tmp_path))


def test_the_summary_says_what_verdicts_mean_where_there_are_any(run, tmp_path):
    run("a", "algo=sac env=hopper preset=cleanrl steps=1000000", [2000.0])
    assert "reproduced" not in summary(build(tmp_path))
    run("b", "algo=sac env=hopper preset=cleanrl steps=1000000 seed=1", [2000.0], training=2000.0)
    shutil.rmtree(tmp_path / "a")
    assert "reproduced if it contains 0 and no difference of more than 10 %" in summary(build(tmp_path))


def test_a_file_of_ones_own_is_a_method_of_its_own_and_its_command_runs_it(run, tmp_path):
    run("a", "algo=iql env=hopper algo.beta=9 steps=7 seed=3", [1.0], algorithm={"file": "my own/iql.py"})
    run("b", "algo=iql env=hopper steps=7", [1.0])
    mine, theirs = read(tmp_path)[0]
    assert (mine.method, theirs.method) == ("iql.py", "iql")
    assert mine.command.startswith("python 'my own/iql.py' env=hopper ")
    overrides = shlex.split(mine.command)[2:]
    assert {"algo.beta=9.0", "steps=7", "seed=3"} <= set(overrides)
    assert compose(["algo=iql", *overrides])[2] == mine.config


@pytest.mark.parametrize(
    "given",
    [
        "algo=cql dataset=random+5%expert preset=paper",  # whose sampler has settings although it is the default
        "algo=iql sampler=uniform sampler.alpha=0.2",
        "algo=iql corruption=none corruption.rate=0.5",
        "algo=iql sampler=top sampler.fraction=0.5 corruption=random-obs corruption.rate=0.5",
    ],
)
def test_the_command_of_a_run_repeats_it(run, tmp_path, given):
    run("a", f"env=hopper {given}", [1.0])
    (result,), _ = read(tmp_path)
    again = compose(shlex.split(result.command)[2:])[2]
    assert again | {"preset": None} == result.config | {"preset": None}


def test_settings_that_a_sampler_does_not_use_tell_no_methods_apart(run, tmp_path):
    for seed, more in enumerate(("sampler=uniform", "sampler=uniform sampler.alpha=0.2", "sampler=return")):
        run(str(seed), f"algo=iql env=hopper seed={seed} {more}", [1.0])
    run("3", "algo=iql env=hopper seed=3 sampler=return sampler.alpha=0.2 sampler.fraction=0.5", [1.0])
    assert sorted(result.method for result in read(tmp_path)[0]) == [
        "iql", "iql", "iql, return", "iql, sampler.alpha=0.2, return",
    ]  # fmt: skip


def test_settings_that_vary_within_a_task_tell_methods_apart_and_how_a_run_was_run_does_not(run, tmp_path):
    run("a", "algo=iql env=hopper steps=10", [1.0])
    run("b", "algo=iql env=hopper steps=10 seed=1 compile=true device=cpu", [1.0])
    run("c", "algo=iql env=hopper steps=20", [1.0])
    run("d", "algo=iql env=pendulum dataset=x steps=10", [1.0])
    run("e", "algo=iql env=pendulum dataset=x steps=10 seed=1 eval_every=5", [1.0, 2.0])
    run("f", "algo=iql env=pendulum dataset=x steps=10 seed=1 matmul_precision=medium", [1.0])
    results, _ = read(tmp_path)
    assert sorted((result.method, result.seed) for result in results) == [
        ("iql, eval_every=5, steps=10", 1),
        ("iql, matmul_precision=medium, steps=10", 1),
        ("iql, steps=10", 0),
        ("iql, steps=10", 0),
        ("iql, steps=10", 1),
        ("iql, steps=20", 0),
    ]


def test_the_critics_of_a_corruption_tell_runs_apart_whatever_their_seed(run, tmp_path):
    corrupted = "algo=iql env=hopper corruption=adversarial-obs corruption.critic"
    run("a", f"{corrupted}=runs/edac-seed0-2026", [1.0])
    run("b", f"{corrupted}=runs/edac-seed1-2026 seed=1", [1.0])
    run("c", f"{corrupted}=runs/cql-seed0-2026", [9.0])
    assert sorted(result.method for result in read(tmp_path)[0]) == [
        "iql, corruption.critic=cql", "iql, corruption.critic=edac", "iql, corruption.critic=edac",
    ]  # fmt: skip


def test_an_export_names_no_folder_of_the_machine(run, tmp_path):
    data = str(tmp_path / "mine.hdf5")
    sources = {"name": data, "kind": "hdf5", "path": data}
    run(
        "a", f"algo=rlpd env=hopper dataset={data} init_from={tmp_path}/cql-seed3 run_dir={tmp_path}/run", [1.0],
        folder=str(tmp_path), dataset={"name": data, "fingerprint": "x", "sources": [sources]},
        notes=[f"dataset={data}: 3 of 10 actions lie outside", f"10%{data}+{tmp_path}/b.hdf5 was changed"],
    )  # fmt: skip
    run("b", f"algo=recoil env=hopper algo.expert=1ep:{tmp_path}/e.hdf5", [1.0])
    run("c", "algo=iql env=hopper", [1.0], algorithm={"file": f"{tmp_path}/mine/my.py"})
    before = [(result.task, result.method) for result in read(tmp_path)[0]]
    assert main(["bench", "export", str(tmp_path), str(tmp_path / "out" / "a.csv")]) == 0
    text = (tmp_path / "out" / "a.csv").read_text()
    for kept in ("1ep:e.hdf5", "mine/my.py", "dataset=mine.hdf5: 3 of 10 actions", "10%mine.hdf5+b.hdf5 was"):
        assert kept in text
    assert str(tmp_path) not in text
    assert [(result.task, result.method) for result in read(tmp_path / "out")[0]] == before


def test_a_best_figure_is_compared_with_the_best_of_as_many_evaluations(run, tmp_path):
    data = "algo=iql preset=paper env=hopper dataset=D4RL/hopper/medium-v2 steps=1000000"
    for seed, count in enumerate((200, 20)):
        run(str(count), f"{data} seed={seed}", count * [score("hopper", 80.0)])
    results = {result.dir.name: result for result in read(tmp_path)[0]}
    (row,) = [r for r in published.builtin() if r.fits(results["20"]) and r.figure == "best"]
    assert row.differs(results["200"]) == ""
    assert row.differs(results["20"]) == "the best of 20 evaluations, theirs of 200"


@pytest.mark.parametrize(
    ("given", "algorithm"),
    [("algo=dt preset=corl", "DT"), ("algo=edac preset=sac-n", "SAC-N"), ("algo=edac preset=paper", "EDAC")],
)
def test_corls_figures_are_compared_with_corls_settings(run, tmp_path, given, algorithm):
    steps = 100_000 if algorithm == "DT" else 3_000_000
    run("a", f"{given} env=hopper dataset=D4RL/hopper/medium-v2 steps={steps}", [score("hopper", 80.0)])
    (result,), _ = read(tmp_path)
    (row,) = [r for r in published.builtin() if r.fits(result) and r.figure == "final"]
    assert (row.algorithm, row.differs(result)) == (algorithm, "")


def test_datasets_of_one_short_name_are_distinguished(run, tmp_path):
    run("a", "algo=iql env=hopper dataset=D4RL/hopper/medium-v2", [1.0])
    run("b", "algo=iql env=hopper dataset=medium", [1.0])
    assert {result.task for result in read(tmp_path)[0]} == {"hopper, D4RL/hopper/medium-v2", "hopper, medium"}


def test_environments_of_one_short_name_are_distinguished(run, tmp_path):
    run("a", "algo=sac env=Hopper-v4", [1.0])
    run("b", "algo=sac env=hopper", [1.0])
    assert {result.task for result in read(tmp_path)[0]} == {"Hopper-v4", "Hopper-v5"}


def test_the_command_of_a_run_gives_its_settings_again(run, tmp_path):
    given = "algo=riql env=hopper sampler=advantage corruption=random-obs corruption.rate=0.2 preset=paper seed=3"
    run("a", f"{given} dataset=medium-replay algo.hidden=[8,8] steps=7", [1.0])
    (result,), _ = read(tmp_path)
    settings = compose(result.command.split()[2:])[2]
    assert settings | {"preset": "paper"} == result.config
    assert len(result.command) < 400


def test_the_same_run_with_another_result_is_nondeterminism_and_never_averaged(run, tmp_path, capsys):
    for name, value in (("a", 10.0), ("b", 30.0)):
        run(name, "algo=ppo env=cartpole", [value])
    run("c", "algo=ppo env=cartpole seed=1", [20.0])
    assert main(["report", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "nondeterminism" in err
    assert "ppo on cartpole, seed 0: a, b are left out" in err
    (row, *_) = table(tmp_path, "results")
    assert (row["seeds"], float(row["value"])) == ("1", 20)
    assert "nondeterminism" in (tmp_path / "report" / "report.md").read_text()


def test_what_may_differ_to_the_last_bit_is_no_nondeterminism(run, tmp_path):
    run("a", "algo=ppo env=cartpole", [10.0], ended="2026-01-01")
    run("resumed", "algo=ppo env=cartpole", [11.0], resumed="2026-01-02", ended="2026-01-02")
    run("threads", "algo=ppo env=cartpole threads=2", [12.0], ended="2026-01-03")
    for name, value, day in (("once", 13.0, 4), ("twice", 14.0, 5)):  # at different steps
        run(name, "algo=ppo env=cartpole", [value], id=name, resumed="2026-01-04", ended=f"2026-01-0{day}")
    (result,), (note,) = read(tmp_path)
    assert result.figure("final") == 14
    assert "was run more than once" in note


@pytest.mark.parametrize(("gpu", "count"), [("NVIDIA H200", 1), (None, 0)])
def test_warps_steps_on_a_gpu_may_differ(run, tmp_path, gpu, count):
    for name, value in (("a", 10.0), ("b", 11.0)):
        run(name, "algo=ppo env=hopper env.backend=warp", [value], id=name, hardware={"gpu": gpu})
    assert len(read(tmp_path)[0]) == count


@pytest.mark.parametrize(
    "settings",
    ["algo=iql env=hopper dataset=medium online_steps=400", "algo=rlpd env=hopper dataset=medium steps=6000"],
)
def test_a_resumed_run_that_acts_may_differ_though_it_has_data(run, tmp_path, settings):
    data = {"dataset": {"fingerprint": "1"}}
    run("a", settings, [10.0], ended="2026-01-01", **data)
    run("resumed", settings, [11.0], resumed="2026-01-02", ended="2026-01-02", **data)
    (result,), (note,) = read(tmp_path)
    assert result.dir.name == "resumed"
    assert "was run more than once" in note


def test_nondeterminism_is_looked_for_in_every_figure_and_leaves_other_code_alone(run, tmp_path):
    for name, error in (("a", 0.04), ("b", 0.9)):
        folder = run(name, "algo=stream_td env=series/hopper steps=10", [1.0])
        (folder / "evaluations.csv").write_text(f"step,return_mean,value_error\n10,1.0,{error}\n")
    run("new", "algo=stream_td env=series/hopper steps=10", [1.0], code="newer")
    (result,), (note,) = read(tmp_path)
    assert result.dir.name == "new"
    assert note.startswith("nondeterminism")
    assert "a, b are left out" in note


def test_what_a_logger_keeps_inside_of_a_run_is_not_taken_for_one(run, tmp_path):
    inside = run("a", "algo=ppo env=cartpole", [10.0]) / "wandb" / "run-1" / "files"
    inside.mkdir(parents=True)
    (inside / "config.yaml").write_text("x: 1")
    results, notes = read(tmp_path)
    assert (len(results), notes) == (1, [])


def test_a_run_in_the_folder_of_another_is_left_out_and_said(run, tmp_path):
    run("mine/a", "algo=ppo env=cartpole", [10.0])
    run("mine/a/seed1", "algo=ppo env=cartpole seed=1", [10.0])
    results, notes = read(tmp_path)
    assert (len(results), notes) == (1, ["mine/a/seed1 is left out: it is inside the folder of the run a"])


def test_runs_behind_links_are_read_each_once(run, tmp_path):
    run("elsewhere/a", "algo=ppo env=cartpole seed=0", [10.0])
    run("elsewhere/b", "algo=ppo env=cartpole seed=1", [10.0])
    run("mine/c", "algo=ppo env=cartpole seed=2", [10.0])
    assert main(["bench", "export", str(tmp_path / "mine"), str(tmp_path / "archives" / "d.csv")]) == 0
    links = {"all": "elsewhere", "again": "elsewhere/a", "round": "mine", "up": ".", "c2": "mine/c", "old": "archives"}
    for name, target in links.items():
        (tmp_path / "mine" / name).symlink_to(tmp_path / target)
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "mine")
    results, notes = read(tmp_path / "mine")
    assert sorted(result.seed for result in results) == [0, 1, 2]
    assert not notes


def test_the_same_result_twice_counts_once_and_newer_code_more_than_older(run, tmp_path):
    for name in "ab":
        run(name, "algo=ppo env=cartpole", [10.0])
    for name in "cd":
        run(name, "algo=ppo env=cartpole seed=1", [5.0], code="0", ended="2026-01-01")
    run("old", "algo=ppo env=cartpole seed=1", [1.0], code="1", ended="2026-01-01")
    run("new", "algo=ppo env=cartpole seed=1", [3.0], code="2", ended="2026-01-02")
    results, notes = read(tmp_path)
    assert sorted(result.figure("final") for result in results) == [3, 10]
    (note,) = notes
    assert "seed 1 was run more than once (c, d, new, old): the last one counts" in note


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: (d / "run.json").write_text('{"status": "fin'), "half-written"),
        (lambda d: (d / "run.json").unlink(), "half-written"),
        (lambda d: (d / "run.json").write_text((d / "run.json").read_text().replace("versions", "v")), "half-written"),
        (lambda d: (d / "evaluations.csv").unlink(), "half-written"),
        (lambda d: (d / "evaluations.csv").write_text("step,return_mean,score\n"), "half-written"),
        (lambda d: (d / "evaluations.csv").write_text("step,return_mean,score\n5,1e"), "half-written"),
        (lambda d: (d / "evaluations.csv").write_text("step,return_mean,score\n1000000,10.0,"), "half-written"),
        (lambda d: (d / "evaluations.csv").write_text("step,return_mean,score\n1000000,1"), "half-written"),
        (
            lambda d: (d / "evaluations.csv").write_text("step,return_mean,score\n9,10.0,\n"),
            "end at 9 of 1,000,000 steps",
        ),
        (lambda d: (d / "run.json").write_text('{"status": "interrupted"}'), "it is interrupted, not finished"),
        (
            lambda d: (d / "run.json").write_text((d / "run.json").read_text().replace('"sticky"', '"sticki"')),
            "half-written (TypeError: EnvConfig.__init__() got an unexpected keyword argument 'sticki'",
        ),
    ],
)
def test_a_half_written_folder_is_left_out_and_said(run, tmp_path, capsys, damage, says):
    run("whole", "algo=ppo env=cartpole", [10.0])
    damage(run("broken", "algo=ppo env=cartpole seed=1", [20.0]))
    assert main(["report", str(tmp_path)]) == 0
    assert len(table(tmp_path, "runs")) == 1
    text = (tmp_path / "report" / "report.md").read_text()
    assert "broken is left out" in text
    assert says in text
    assert "broken is left out" in capsys.readouterr().out


ODD_RECORDS = {  # a place in run.json, and what stands there instead
    "dataset": [1], "dataset.sources": [1], "algorithm": "x", "algorithm.file": 5, "config.dataset": 5,
    "config.seed": float("inf"), "config.dataset ": "a${b", "config.device": "${",
}  # fmt: skip


def alter(record, place: str) -> None:
    """Puts an odd value in a record."""
    *groups, name = place.strip().split(".")
    for group in groups:
        record = record.setdefault(group, {})
    record[name] = ODD_RECORDS[place]


@pytest.mark.parametrize("place", ODD_RECORDS)
def test_a_record_with_values_of_other_types_is_left_out_and_said(run, tmp_path, place):
    run("whole", "algo=bc env=hopper dataset=medium", [10.0])
    path = run("broken", "algo=bc env=hopper dataset=medium seed=1", [20.0]) / "run.json"
    record = json.loads(path.read_text())
    alter(record, place)
    path.write_text(json.dumps(record))
    assert main(["report", str(tmp_path)]) == 0
    assert "broken is left out: it is half-written" in (tmp_path / "report" / "report.md").read_text()


def test_names_in_records_are_no_html(run, tmp_path):
    path = run("odd", "algo=iql env=hopper dataset=medium", [10.0]) / "run.json"
    record = json.loads(path.read_text())
    record["config"]["dataset"] = "x<script><img src=x>|\nb"
    record["peer"] = "y"  # whose runs have no command, which is code and no HTML
    path.write_text(json.dumps(record))
    assert main(["report", str(tmp_path)]) == 0
    for name in ("report.md", "report.html"):
        assert "<img src=x>" not in (tmp_path / "report" / name).read_text()
    assert "\n## hopper, x&lt;script>&lt;img src=x>| b\n" in (tmp_path / "report" / "report.md").read_text()


def test_names_in_records_are_no_links_and_no_commands_of_a_terminal(run, tmp_path, capsys):
    path = run("odd", "algo=iql env=hopper dataset=medium", [10.0]) / "run.json"
    record = json.loads(path.read_text())
    record["config"]["dataset"] = "a `` b\\|[c](javascript:x) <img src=x>"
    record["config"]["env"]["score_source"] = "`<img src=x> [c]: javascript:x \x1b[31m"
    path.write_text(json.dumps(record))
    assert main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    (result,), _ = read(tmp_path)
    command = printable(result.command).replace("\\|", "\\ \\|")  # some readers would end the cell at \\|
    assert "``" in command
    assert f"| ``` {command} ``` |" in text
    for written in (text.replace(command, ""), capsys.readouterr().out):
        assert not re.search(r"\x1b|<img|\][(:]\s*javascript", written)


def test_methods_that_ran_for_different_numbers_of_steps_are_not_compared(run, tmp_path):
    for seed in range(3):
        for method, steps in (("bc", 10), ("iql", 10), ("cql", 20)):
            given = f"algo={method} env=hopper dataset=medium seed={seed} steps={steps}"
            run(f"{method}-{seed}", given, [score("hopper", steps)])
    (only,) = build(tmp_path).improvements
    assert {only["method"], only["than"]} == {"bc", "iql"}


def test_methods_that_ran_for_different_numbers_of_steps_have_tables_of_their_own(run, tmp_path):
    budgets = {"bc": ("steps=20", 10), "iql": ("steps=20", 30), "cql": ("steps=40", 50)}
    budgets["td3_bc"] = ("steps=10 online_steps=10", 70)
    for method, (steps, worth) in budgets.items():
        for env in ("hopper", "walker2d"):
            run(f"{method}-{env}", f"algo={method} env={env} dataset=medium {steps}", [score(env, worth)])
    assert main(["report", str(tmp_path)]) == 0
    rows = [row for row in table(tmp_path, "overall") if ";" in row["tasks"] and row["statistic"] == "mean"]
    found = {(row["steps"], row["method"]): float(row["value"]) for row in rows}
    assert found == pytest.approx(
        {("20", "bc"): 10, ("20", "iql"): 30, ("40", "cql"): 50, ("10 + 10 online", "td3_bc, online_steps=10"): 70}
    )
    report = build(tmp_path)
    assert {group.steps: len(group.scores) for group in report.groups} == {"20": 2, "40": 1, "10 + 10 online": 1}
    assert {(one["method"], one["than"]) for one in report.improvements} == {("bc", "iql")}
    text = (tmp_path / "report" / "report.md").read_text()
    _, *parts = text.partition("## Probability")[0].split("## Over tasks: hopper, medium; walker2d, medium ")
    assert [part.partition("\n")[0] for part in parts] == ["(20 steps)", "(40 steps)", "(10 + 10 online steps)"]
    assert [method for method in ("bc", "iql", "cql") if f"| {method} | 1 |" in parts[0]] == ["bc", "iql"]


@pytest.mark.parametrize("name", ["runs", "trials"])
def test_a_report_writes_over_no_archive_and_no_search(run, tmp_path, capsys, name):
    run("a", "algo=stream_q env=cartpole steps=40", [10.0])
    other = tmp_path / f"{name}.csv"
    assert main(["bench", "export", str(tmp_path), str(other)]) == 0
    content = other.read_bytes()
    assert main(["report", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert f"holds {name}.csv, which no report has written. Give another folder: --out" in capsys.readouterr().err
    assert other.read_bytes() == content
    assert not (tmp_path / "report.md").exists()


@pytest.mark.parametrize("name", ["runs.csv", "trials.csv"])
def test_a_report_writes_over_no_archive_in_the_folder_of_an_earlier_report(run, tmp_path, capsys, name):
    run("a", "algo=stream_q env=cartpole steps=40", [10.0])
    assert main(["report", str(tmp_path)]) == 0
    archive = tmp_path / "report" / name
    assert main(["bench", "export", str(tmp_path), str(archive)]) == 0
    content = archive.read_bytes()
    assert main(["report", str(tmp_path)]) == 2
    assert f"holds {name}, which no report has written. Give another folder: --out" in capsys.readouterr().err
    assert archive.read_bytes() == content


@pytest.mark.parametrize("name", ["report.md", "report.html"])
def test_a_report_writes_over_other_reports_alone(run, tmp_path, capsys, name):
    run("a", "algo=stream_q env=cartpole steps=40", [10.0])
    for _ in range(2):
        assert main(["report", str(tmp_path)]) == 0
    notes = tmp_path / "report" / name
    notes.write_text("# My notes")
    assert main(["report", str(tmp_path)]) == 2
    assert f"holds {name}, which no report has written. Give another folder: --out" in capsys.readouterr().err
    assert notes.read_text() == "# My notes"


def test_an_archive_of_runs_gives_the_same_report_as_their_folders(run, tmp_path, capsys):
    for seed in range(3):
        run(
            f"runs/iql-{seed}", f"algo=iql env=hopper dataset=medium steps=40 seed={seed}", [10.1 * seed, 100 / 3, 50.0]
        )
    run("runs/stream_q", "algo=stream_q env=cartpole steps=40", [10.0, 20.0], training=12.5)
    run("runs/unscored", "algo=iql env=pendulum dataset=medium steps=40", [-3.0])
    run("runs/deeper/peer", "algo=stream_ac env=cartpole steps=40", [7.0], peer="SB3")
    run("runs/unfinished", "algo=stream_ac env=cartpole steps=40", [7.0], status="running")
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    printed = capsys.readouterr().out
    assert "unfinished is left out: it was killed, or runs on another machine" in printed
    assert "6 runs written" in printed
    inside = tmp_path / "runs" / "all.csv"
    for _ in range(2):  # it is not read back
        assert main(["bench", "export", str(tmp_path / "runs"), str(inside)]) == 0
        assert "6 runs written" in capsys.readouterr().out
    assert main(["bench", "export", str(tmp_path / "runs"), str(inside.with_name("again.csv"))]) == 0  # beside it
    assert "6 runs written" in capsys.readouterr().out
    inside.with_name("again.csv").unlink()
    inside.unlink()
    shutil.rmtree(tmp_path / "runs" / "unfinished")
    tables = ("results", "published", "overall", "improvement", "speeds")
    for folder in ("runs", "archives"):
        of_an_earlier_report = tmp_path / folder / "report" / "trials.csv"
        of_an_earlier_report.parent.mkdir()
        of_an_earlier_report.touch()
        of_an_earlier_report.with_name("report.md").write_text(ALWAYS)
        assert main(["report", str(tmp_path / folder)]) == 0
        assert {file.stem for file in of_an_earlier_report.parent.glob("*.csv")} == {*tables, "runs"}
    for path in (*(f"report/{name}.csv" for name in tables), "report/curves.svg", "report/curves.png"):
        assert (tmp_path / "archives" / path).read_bytes() == (tmp_path / "runs" / path).read_bytes(), path
    runs, archived = (table(tmp_path / folder, "runs") for folder in ("runs", "archives"))
    assert [row | {"run": f"runs/{row['run']}"} for row in runs] == archived
    assert (
        f"[iql-0]({os.path.relpath(archive, archive.parent / 'report')})"
        in (tmp_path / "archives" / "report" / "report.md").read_text()
    )


def test_a_damaged_archive_is_refused_in_a_line(run, tmp_path, capsys):
    run("runs/a", "algo=stream_q env=cartpole steps=40", [10.0, 20.0])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    archive.write_text(archive.read_text().replace("20.0", "twenty"))
    assert main(["report", str(archive.parent)]) == 1
    assert f"{archive} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("place", ODD_RECORDS)
def test_an_archive_with_values_of_other_types_in_a_record_is_refused_in_a_line(run, tmp_path, capsys, place):
    run("runs/a", "algo=bc env=hopper dataset=medium", [10.0])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    with archive.open(newline="") as file:
        header, first, *others = csv.reader(file)
    record = json.loads(first[1])
    alter(record, place)
    with archive.open("w", newline="") as file:
        csv.writer(file).writerows([header, [first[0], json.dumps(record), *first[2:]], *others])
    assert main(["report", str(archive.parent)]) == 1
    error = capsys.readouterr().err
    assert f"{archive} is damaged" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("folder", "file", "says"),
    [
        ("nowhere", "a.csv", "nowhere is not a folder"),
        ("empty", "a.csv", "holds no finished run"),
        ("empty", "a.json", "does not end in .csv. Try: a.csv"),
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path, monkeypatch, capsys, folder, file, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["bench", "export", folder, file]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / file).exists()


def test_a_folder_without_a_finished_run_is_refused(run, tmp_path, capsys):
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert main(["report", str(tmp_path)]) == 2
    run("a", "algo=ppo env=cartpole", [1.0], status="running")
    with locked(tmp_path / "a"):
        assert main(["report", str(tmp_path)]) == 2
    assert "holds no finished run. a is left out: it is running, not finished." in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "a is left out: it was killed, or runs on another machine." in capsys.readouterr().err
    assert main(["report", str(tmp_path / "a" / "run.json")]) == 2
    assert f"run.json is a file. Give the folder that holds it: zoo report {tmp_path / 'a'}" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_a_killed_run_that_one_may_only_read_is_said_to_be_killed(run, tmp_path, monkeypatch):
    (run("a", "algo=ppo env=cartpole", [1.0], status="running") / ".lock").touch()
    opened = Path.open

    def read_only(path, mode="r", *more, **given):
        if set(mode) & set("aw+"):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, mode, *more, **given)

    monkeypatch.setattr(Path, "open", read_only)
    assert read(tmp_path) == ([], ["a is left out: it was killed, or runs on another machine"])


def test_fewer_than_three_seeds_have_no_interval_and_the_reason_is_said(run, tmp_path, capsys):
    for seed in range(2):
        run(f"ppo-{seed}", f"algo=ppo env=cartpole seed={seed}", [10.0 + seed])
    for seed in range(3):
        run(f"dqn-{seed}", f"algo=dqn env=cartpole seed={seed}", [10.0 + seed])
    assert main(["report", str(tmp_path)]) == 0
    assert "There is no interval for fewer than 3 seeds, which are too few" in capsys.readouterr().out
    rows = {row["method"]: row for row in table(tmp_path, "results") if row["figure"] == "final"}
    assert rows["ppo"]["low"] == rows["ppo"]["high"] == ""
    assert float(rows["dqn"]["low"]) < 11 < float(rows["dqn"]["high"])


def score(env: str, value: float) -> float:
    """The return of a normalized score."""
    settings = compose(["algo=bc", f"env={env}"])[0].env
    return settings.random_score + value / 100 * (settings.expert_score - settings.random_score)


def test_published_figures_stand_beside_runs_of_their_task_and_method_with_a_verdict(run, tmp_path):
    for seed, value in enumerate((48.2, 48.3, 48.4, 48.5)):
        given = f"algo=iql preset=paper env=halfcheetah dataset=D4RL/halfcheetah/medium-v2 seed={seed}"
        run(f"iql-{seed}", given, [score("halfcheetah", value)])
        run(f"bc-{seed}", given.replace("iql", "bc") + " algo.top_fraction=0.1", [score("halfcheetah", value + 9)])
        value = 3134 + 200.0 * (seed - 1.5)
        run(f"td3-{seed}", f"algo=td3 env=hopper steps=1000000 seed={seed}", [9999.0], training=value)
    assert main(["report", str(tmp_path)]) == 0
    rows = [row for row in table(tmp_path, "published") if row["figure"] == "final" and int(row["published_seeds"]) > 2]
    found = {(row["method"], row["published_task"], row["published"]): row["verdict"] for row in rows}
    assert found["iql, paper", "d4rl/halfcheetah-medium-v2", "48.31"] == "reproduced"
    assert found["bc, paper, top_fraction=0.1", "d4rl/halfcheetah-medium-v2", "42.46"] == "above"
    assert found["td3", "Hopper-v4", "3134.61"] == "too few published seeds to say, but in Hopper-v5"
    assert {method for method, *_ in found} == {"iql, paper", "bc, paper, top_fraction=0.1", "td3"}


def test_published_training_returns_are_compared_with_training_returns_alone(run, tmp_path):
    for seed in range(3):
        run(f"a{seed}", f"algo=ppo env=hopper steps=1000000 seed={seed}", [3360.0 + seed], training=2400.0 + 9 * seed)
        run(f"b{seed}", f"algo=td3 env=hopper steps=1000000 seed={seed}", [3134.0 + seed])
    report = build(tmp_path)
    rows = {c.row.method: c for c in report.comparisons if c.reference.task == "Hopper-v4"}
    assert rows["ppo"].ours == pytest.approx(2409)
    assert "ppo_continuous_action.md (return of training episodes)*" in task_table(report.rows, report.comparisons)
    assert rows["ppo"].compared
    assert main(["report", str(tmp_path)]) == 0
    judged, _, rest = (tmp_path / "report" / "report.md").read_text().partition("## hopper")
    assert "| hopper | ppo | 3 | 2409.0 | 2382.9 ± 271.7 | 3 | Hopper-v4: github vwxyzjn/cleanrl" in judged
    assert "td3" not in judged
    assert "not comparable: no return of training episodes is known" in rest
    assert rows["td3"].verdict == "not comparable: no return of training episodes is known"


@pytest.mark.parametrize(
    ("given", "updates", "episodes"),
    [("algo=stream_ac env=hopper steps=1000", 0, 130), ("algo=iql env=hopper steps=5000 online_steps=600", 5000, 90)],
)
def test_a_training_return_is_the_mean_of_the_last_hundred_episodes(run, tmp_path, given, updates, episodes):
    folder = run("a", given, [1.0])
    lengths, returns, rows, step = [5] * 60 + [10] * (episodes - 60), list(range(episodes)), [], updates
    for start in range(0, episodes, 10):  # a row after every ten episodes
        step += sum(lengths[start : start + 10])
        rows.append([step, 1.0, np.mean(returns[start : start + 10]), np.mean(lengths[start : start + 10])])
    with (folder / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["step", "seconds", "episode_return", "episode_length"], *rows])
    (result,), _ = read(tmp_path)
    assert result.figure("final", "training_return") == pytest.approx(np.mean(returns[-100:]))


def test_an_episode_that_ended_at_step_0_has_no_training_return(run, tmp_path):
    folder = run("a", "algo=stream_q env=cartpole steps=10", [1.0])
    (folder / "metrics.csv").write_text("step,seconds,episode_return,episode_length\n0,1.0,5.0,10.0\n")
    (result,), notes = read(tmp_path)
    assert not notes
    assert "training_return" not in result.columns


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ("ALE/Pong-v5", {"ALE/Pong-v5", "PongNoFrameskip-v4", "Pong-v5"}),
        ("dmc/acrobot-swingup_sparse", {"dmc/acrobot-swingup_sparse", "dm_control/acrobot-swingup_sparse-v0"}),
    ],
)
def test_environments_are_known_by_the_names_that_their_figures_were_published_under(run, tmp_path, env, names):
    run("a", f"algo=ppo env={env} steps=10000000 num_envs=8", [1.0])
    (result,), _ = read(tmp_path)
    assert published.tasks(result) == names
    fitting = [one for one in published.builtin() if one.fits(result)]
    assert fitting
    assert {one.aside(result) for one in fitting} == {""}


def test_a_figure_for_other_data_or_another_budget_is_shown_but_not_compared(run, tmp_path):
    run("a", "algo=iql preset=paper env=halfcheetah dataset=medium steps=50000", 200 * [score("halfcheetah", 40.0)])
    assert main(["report", str(tmp_path)]) == 0
    verdicts = {row["verdict"] for row in table(tmp_path, "published") if "CORL" in row["source"]}
    assert verdicts == {"not comparable: other data, 5 % of the steps"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("algo=iql", "other settings"),  # the usual ones are its authors', the figures CORL's
        ("algo=iql algo.normalize_obs=true algo.normalize_reward=false", ""),
        ("algo=iql preset=paper algo.expectile=0.5", "other settings"),
        ("algo=iql preset=paper algo.hidden=[4]", "other settings"),
        ("algo=iql preset=paper reward_shift=-1", "other settings"),
        ("algo=bc algo.top_fraction=0.1 algo.lr=1", "other settings"),
        ("algo=iql preset=paper", ""),
        ("algo=iql preset=paper compile=true", ""),
        ("algo=iql preset=paper sampler=uniform sampler.alpha=0.3", ""),
        ("algo=bc algo.top_fraction=0.1", ""),
    ],
)
def test_other_settings_than_the_papers_are_not_compared(run, tmp_path, given, why):
    data = "env=halfcheetah dataset=D4RL/halfcheetah/medium-v2 steps=1000000"
    run("a", f"{given} {data}", 200 * [score("halfcheetah", 40.0)])
    (result,), _ = read(tmp_path)
    rows = [row for row in published.builtin() if row.fits(result) and "CORL" in row.published.source]
    assert {row.differs(result) for row in rows} == {why}


@pytest.mark.parametrize("dataset", ["D4RL/door/human-v1", "door-human-v1.hdf5"])
@pytest.mark.parametrize("algo", ["awac", "cql", "rebrac", "edac", "td3_bc", "bc", "iql"])
def test_adroits_figures_are_of_corls_settings_for_it(run, tmp_path, algo, dataset):
    pytest.importorskip("gymnasium_robotics")
    for name, preset in (("usual", ""), ("paper", "preset=paper")):
        run(name, f"algo={algo} env=AdroitHandDoor-v1 dataset={dataset} {preset} steps=1000000", [1.0] * 1000)
    results = {result.dir.name: result for result in read(tmp_path)[0]}
    rows = [
        row for row in published.builtin()
        if row.fits(results["paper"]) and "CORL" in row.published.source and row.figure == "final"
    ]  # fmt: skip
    assert rows
    differs = {name: {"other settings" in row.differs(result) for row in rows} for name, result in results.items()}
    usual = algo not in ("td3_bc", "bc")  # whose settings are the same everywhere
    assert differs == {"usual": {usual}, "paper": {algo == "iql"}}  # CORL's has a dropout


def test_a_figure_measured_with_a_preset_is_compared_with_that_presets_settings(run, tmp_path):
    for name, given in (("usual", ""), ("paper", "preset=paper"), ("cleanrl", "preset=cleanrl")):
        run(name, f"algo=sac env=hopper {given} steps=1000000", [2000.0], training=2000.0)
    results, _ = read(tmp_path)
    row = next(r for r in published.builtin() if r.fits(results[0]) and "cleanrl" in r.published.source)
    differs = {result.dir.name: row.differs(result) for result in results}
    assert differs == {"usual": "other settings", "paper": "other settings", "cleanrl": ""}
    (tuned,) = [r for r in published.builtin() if r.fits(results[0]) and "zoo" in r.published.source]
    assert {tuned.differs(result) for result in results} == {"other settings"}


def test_an_option_that_is_newer_than_a_run_has_its_default(run, tmp_path):
    def older(name: str, given: str, option: str) -> None:
        path = run(name, f"algo=sac env=hopper preset=cleanrl steps=1000000 {given}", [1.0], training=1.0) / "run.json"
        record = json.loads(path.read_text())
        del record["config"]["algo"][option]
        path.write_text(json.dumps(record))

    for name, given, option in (
        ("same", "", "alpha"),
        ("other", "algo.tau=0.5", "alpha"),
        ("set", "seed=1", "critic_lr"),
    ):
        older(name, given, option)
    results = {result.dir.name: result for result in read(tmp_path)[0]}
    row = next(r for r in published.builtin() if r.fits(results["same"]) and "cleanrl" in r.published.source)
    differs = {name: row.differs(result) for name, result in results.items()}
    assert differs == {"same": "", "other": "other settings", "set": "other settings"}


def test_a_run_in_another_simulator_is_not_compared(run, tmp_path):
    for name, backend in (("a", "gymnasium"), ("b", "warp")):
        run(name, f"algo=ppo env=hopper preset=paper steps=1000000 env.backend={backend}", [1.0], training=1.0)
    said = {one.row.runs[0].dir.name: one.verdict for one in build(tmp_path).comparisons if "ppo_cont" in one.source}
    assert said == {"a": "too few published seeds to say, but in Hopper-v5", "b": "not comparable: another simulator"}


def test_a_row_is_compared_if_all_of_its_runs_are_comparable(run, tmp_path):
    for seed in range(3):
        given = f"algo=iql preset=paper env=halfcheetah dataset=D4RL/halfcheetah/medium-v2 seed={seed}"
        folder = run(str(seed), given, 2 * [score("halfcheetah", 48.0)], peer="CORL")
    lines = (folder / "evaluations.csv").read_text().splitlines(keepends=True)
    (folder / "evaluations.csv").write_text("".join(lines[:-1]))
    report = build(tmp_path)
    (verdict,) = {one.verdict for one in report.comparisons if one.reference.published.mean == 48.31}
    assert verdict == "not comparable: 50 % of the steps"
    note = "iql, paper (CORL) on halfcheetah, medium: its seeds end at different steps, from 500,000 to 1,000,000"
    assert report.notes == [note]


def test_what_fails_on_a_stream_is_not_compared_with_the_method_as_it_is(run, tmp_path):
    for seed in range(3):
        given = f"algo=sac env=hopper preset=stream-barrier steps=1000000 seed={seed}"
        run(f"sac-{seed}", given, [30.0 + seed], training=20.0)
    (comparison,) = [c for c in build(tmp_path).comparisons if c.reference.task == "Hopper-v4"]
    assert (comparison.verdict, comparison.compared) == ("not comparable: other settings", False)


def test_another_version_of_the_data_is_not_compared_and_a_few_steps_more_are(run, tmp_path):
    for name, version, steps in (("a", 0, 1_000_000), ("b", 2, 1_000_064), ("c", 2, 1_500_000)):
        given = f"algo=iql preset=paper env=halfcheetah dataset=D4RL/halfcheetah/medium-v{version} steps={steps}"
        run(name, given, [score("halfcheetah", 40.0)])
    (row,) = [one for one in published.builtin() if (one.algorithm, one.published.mean) == ("IQL", 48.31)]
    differs = {result.dir.name: row.differs(result) for result in read(tmp_path)[0]}
    assert differs == {"a": "other version of the data", "b": "", "c": "150 % of the steps"}


def test_mixtures_are_compared_where_they_are_as_large_as_the_published_ones(run, tmp_path):
    for name, first in (("a", ""), ("b", "95%")):
        data = f"{first}D4RL/hopper/random-v2+5%D4RL/hopper/expert-v2"
        run(name, f"algo=iql env=hopper dataset={data} steps=1000000", [100.0])
    results = {result.dir.name: result for result in read(tmp_path)[0]}
    row = Reference(
        "d4rl/hopper-random-expert-5%-v2", "IQL", "score", "final", "uniform", 10**6, Published(1, 1, 3, "somewhere")
    )
    assert row.fits(results["a"])
    assert row.fits(results["b"])
    assert (row.differs(results["a"]), row.differs(results["b"])) == ("other mixture", "")


def test_without_a_normalized_score_a_figure_is_shown_and_not_compared(run, tmp_path):
    given = "algo=iql preset=paper env=halfcheetah dataset=D4RL/halfcheetah/medium-v2 env.expert_score=null"
    run("a", given, 200 * [40.0])
    assert main(["report", str(tmp_path)]) == 0
    rows = [row for row in table(tmp_path, "published") if "CORL" in row["source"]]
    assert {row["verdict"] for row in rows} == {"not comparable: no normalized score is known"}
    assert {row["difference_value"] for row in rows} == {""}


def test_samplers_and_mixtures_are_those_of_the_published_row(run, tmp_path):
    for sampler in ("uniform", "advantage", "top", "return"):
        run(sampler, f"algo=iql env=hopper dataset=random+5%expert sampler={sampler} steps=1000000", [100.0])
    assert main(["report", str(tmp_path)]) == 0
    found = {(row["method"], row["published_task"]) for row in table(tmp_path, "published")}
    task = "d4rl/hopper-random-expert-5%-v2"
    assert found == {("iql", task), ("iql, advantage", task), ("iql, top", task)}


@pytest.mark.parametrize(("algo", "published"), [("iql", 2), ("cql", 2), ("td3_bc", 2)])
def test_settings_of_a_papers_mixtures_make_one_method_of_all_environments(run, tmp_path, algo, published):
    for env in ("hopper", "ant"):
        data = "dataset=95%random+5%expert sampler=advantage"
        run(env, f"algo={algo} env={env} {data} preset=paper eval_every=50000", [100.0])
    report = build(tmp_path)
    assert {row.method for row in report.rows} == {f"{algo}, paper, advantage"}
    assert len(report.comparisons) == published
    assert not any("settings" in one.verdict or "steps" in one.verdict for one in report.comparisons)


def test_no_figure_is_set_beside_episodes_of_another_length(run, tmp_path):
    given = "algo=sac env=hopper steps=1000000"
    run("a", given, [100.0])
    run("b", f"{given} env.max_episode_steps=500", [50.0])
    report = build(tmp_path)
    assert [row.task for row in report.rows] == ["hopper", "hopper, max_episode_steps=500"]
    assert {comparison.row.task for comparison in report.comparisons} == {"hopper"}
    assert "env.max_episode_steps=500" in report.rows[1].runs[0].command


def test_other_dynamics_are_another_task(run, tmp_path):
    run("a", "algo=sac env=hopper", [10.0])
    run("b", "algo=sac env=hopper env.gravity=2 env.changed_in=training", [5.0])
    run("c", "algo=sac env=hopper env.kwargs.healthy_reward=0.5", [5.0])
    report = build(tmp_path)
    changed = ["hopper, gravity=2.0, changed_in=training", "hopper, kwargs.healthy_reward=0.5"]
    assert [row.task for row in report.rows] == ["hopper", *changed]
    assert published.tasks(report.rows[1].runs[0]) == set() != published.tasks(report.rows[0].runs[0])


@pytest.mark.parametrize("data", ["navigate", "pointmaze-medium-navigate-v0.npz"])
def test_ogbenchs_successes_stand_beside_runs_on_its_data(run, tmp_path, data):
    """OGBench's published figures are means of the last three evaluations."""
    run("a", f"algo=hiql preset=paper env=pointmaze-medium dataset={data}", [0.1, 0.6, 0.7, 0.8])
    (reference,) = (
        one for one in published.builtin() if (one.task, one.algorithm) == ("ogbench/pointmaze-medium-navigate", "HIQL")
    )
    report = build(tmp_path)
    (row,), (comparison,) = report.rows, report.comparisons
    assert comparison.ours == pytest.approx(70)
    assert reference.published.mean == 79
    text = task_table([row], [comparison])
    assert "| 79.0 |" in text
    assert "means of the last three evaluations" in text
    assert ("other data" in reference.differs(row.runs[0])) == (data == "navigate")
    assert row.runs[0].figure("final", "score") == 80


def test_data_of_another_of_ogbenchs_mazes_has_no_published_figure(run, tmp_path):
    run("a", "algo=hiql preset=paper env=pointmaze-large dataset=pointmaze-medium-navigate-v0.npz", [0.5])
    ((row,), comparisons) = (report := build(tmp_path)).rows, report.comparisons
    assert published.tasks(row.runs[0]) == set()
    assert not comparisons


def test_successes_are_shown_in_all_and_of_each_task(run, tmp_path):
    for seed, (first, second) in enumerate([(0.5, 1.0), (0.7, 0.0)]):
        folder = run(f"a{seed}", f"algo=hiql env=pointmaze-medium dataset=navigate seed={seed}", [0.6])
        (step, *_), line = (text.split(",") for text in (folder / "evaluations.csv").read_text().splitlines())
        text = ",".join([step, "return_mean", "success", "success_task1", "success_task2", "returns"])
        (folder / "evaluations.csv").write_text(f"{text}\n{line[0]},0.6,{(first + second) / 2},{first},{second},1 0\n")
    run("b", "algo=gcbc env=pointmaze-medium dataset=navigate", [0.1])
    text = task_table(build(tmp_path).rows, [])
    assert "| success | of each task |" in text
    assert "| 55% | 60%, 50% |" in text


def test_games_with_sticky_actions_are_another_task_and_evaluated_otherwise_another_method(run, tmp_path):
    run("a", "algo=dqn env=pong", [10.0])
    run("b", "algo=dqn env=pong env.sticky=0.25", [5.0])
    run("c", "algo=dqn env=pong eval_deterministic=true", [0.0])
    report = build(tmp_path)
    assert [(row.task, row.method) for row in report.rows] == [
        ("pong", "dqn"), ("pong", "dqn, eval_deterministic=true"), ("pong, sticky=0.25", "dqn")
    ]  # fmt: skip
    assert published.tasks(report.rows[2].runs[0]) == set() != published.tasks(report.rows[0].runs[0])


def test_no_figure_is_set_beside_data_that_was_tampered_with(run, tmp_path):
    run("a", "algo=iql env=halfcheetah dataset=D4RL/halfcheetah/medium-v2 corruption=random-obs", [1.0])
    assert not build(tmp_path).comparisons


@pytest.mark.parametrize("env", ["pipeline", "dmsd", "safety_halfcheetah", "random_friction_hopper"])
def test_neorl2s_figures_stand_beside_runs_on_its_data_with_settings_that_were_searched_for(run, tmp_path, env):
    known = {reference.task for reference in published.builtin()}
    (name,) = (task for task in known if task.lower() == f"neorl2/{env.replace('_', '')}")
    run("a", f"algo=cql env={env} dataset={name.partition('/')[2]}-train.npz steps=1000000", [100.0])
    run("b", f"algo=bc env={env} dataset=mine steps=1000000", [100.0])
    assert main(["report", str(tmp_path)]) == 0
    verdicts = {row["method"]: row["verdict"] for row in table(tmp_path, "published")}
    assert verdicts == {"cql": "not comparable: other settings", "bc": "not comparable: other data, other settings"}
    assert {row["published_task"] for row in table(tmp_path, "published")} == {name}
    assert "benchmark/task_score.csv" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    ("env", "dataset", "task"),
    [
        ("AntMaze_Large_Diverse_GR-v4", "D4RL/antmaze/large-diverse-v1", "d4rl/antmaze-large-diverse-v"),
        ("AdroitHandDoor-v1", "D4RL/door/human-v2", "d4rl/door-human-v"),
    ],
)
def test_d4rls_figures_of_mazes_and_hands_stand_beside_runs_on_data_collected_anew(run, tmp_path, env, dataset, task):
    run("a", f"algo=iql env={env} dataset={dataset} steps=1000000", [0.5])
    found = build(tmp_path).comparisons
    assert {one.reference.task.rpartition("v")[0] + "v" for one in found} == {task}
    assert any("CORL" in one.source for one in found)
    assert {"other version of the data" in one.verdict for one in found if "CORL" in one.source} == {True}


@pytest.mark.parametrize(
    ("env", "dataset"),
    [
        ("halfcheetah", "D4RL/walker2d/medium-v2"),
        ("halfcheetah", "walker2d_medium-v2.hdf5"),
        ("AntMaze_UMaze-v4", "D4RL/antmaze/large-play-v2"),
    ],
)
def test_data_of_another_environment_has_no_published_figure(run, tmp_path, env, dataset):
    run("a", f"algo=iql env={env} dataset={dataset} preset=paper", [1.0])
    report = build(tmp_path)
    assert published.tasks(report.rows[0].runs[0]) == set()
    assert not report.comparisons


def test_a_part_of_the_data_is_not_the_data(run, tmp_path):
    for name, share in (("whole", ""), ("half", "50%")):
        run(name, f"algo=iql env=halfcheetah dataset={share}D4RL/halfcheetah/medium-v2 preset=paper", [1.0])
    said = {one.row.runs[0].dir.name: one.verdict for one in build(tmp_path).comparisons if "CORL" in one.source}
    assert {name: "a part of the data" in verdict for name, verdict in said.items()} == {"whole": False, "half": True}


def test_rows_of_ones_own_count_and_those_that_match_nothing_are_said(run, tmp_path, capsys):
    run("a", "algo=ppo env=hopper steps=2048", [1.0])
    own = tmp_path / "own.csv"
    header = "\ufefftask,algorithm,mean,std,seeds,steps,source\n"  # spreadsheets start a file with these bytes
    own.write_text(
        f"{header}Hopper-v5,PPO,2.0,,3,2048,mine\nHoper-v5,PPO,2.0,,3,2.048e3,mine\nHopper-v5,SAC,2.0,,3,2048,mine\n"
    )
    assert main(["report", "--references", str(own), str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "PPO on Hoper-v5 matches no run. Nearest: Hopper-v5" in out
    assert "SAC on Hopper-v5 matches no run. There are: ppo." in out
    assert [row["published"] for row in table(tmp_path, "published") if row["source"] == "mine"] == ["2.0"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task,algorithm,mean\nHopper-v5,PPO,1\n", "line 2: KeyError 'std'"),
        ("task,algorithm,mean,std,seeds,source\nHopper-v5,PPO,x,1,3,me\n", "line 2: ValueError"),
        ("task,algorithm,mean,std,seeds,steps,source\nHopper-v5,PPO,1,1,3,1M,me\n", "line 2: ValueError"),
        ("task,algorithm,mean,std,seeds,steps,source\nHopper-v5,PPO,1,inf,3,1,me\n", "line 2: ValueError"),
        ("task,algorithm,mean,std,seeds,steps,source\nHopper-v5,PPO,1,-1,3,1,me\n", "line 2: ValueError"),
        ("task,algorithm,mean,std,seeds,steps,source\nHopper-v5,PPO,1,1,3,0,me\n", "line 2: ValueError steps 0"),
        ("task,algorithm,mean,std,seeds,sampler,source\nHopper-v5,PPO,1,1,3,topp,me\n", "ValueError sampler topp"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_figures_that_is_none_is_refused(run, tmp_path, capsys, text, says):
    run("a", "algo=ppo env=hopper", [1.0])
    if text:
        (tmp_path / "own.csv").write_text(text)
    assert main(["report", str(tmp_path), "--references", str(tmp_path / "own.csv")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_every_published_row_of_the_zoo_has_a_source():
    references = published.builtin()
    assert len(references) > 1000
    assert all(reference.published.source for reference in references)


def test_a_single_run_has_no_spread_over_runs():
    """rl-baselines3-zoo's tables have the standard deviation of one run's episodes."""
    alone = [one.published for one in published.builtin() if "rl-baselines3-zoo" in one.published.source]
    assert alone
    assert all(np.isnan(one.std) for one in alone)


def test_offlinerl_kits_spread_is_that_of_numpy():
    """Its run_example/plotter.py takes `np.std` over the seeds."""
    kits = [one.published for one in published.builtin() if "OfflineRL-Kit" in one.published.source]
    assert {one.ddof for one in kits} == {0}


def test_a_published_row_fits_its_algorithm_alone(run, tmp_path):
    run("a", "algo=td3_bc env=hopper dataset=D4RL/hopper/medium-v2", [1.0])
    (result,), _ = read(tmp_path)
    row = Published(1.0, 1.0, 3, "somewhere")
    names = ("TD3+BC", "TD3", "BC", "10% BC")
    fits = [
        Reference("d4rl/hopper-medium-v2", name, "score", "final", "uniform", 10, row).fits(result) for name in names
    ]
    assert fits == [True, False, False, False]


def test_small_published_figures_are_not_rounded_away(run, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("task,algorithm,mean,std,seeds,source,steps\nCartPole-v1,stream_q,0.95,0.02,5,me,10\n")
    for seed in range(3):
        run(str(seed), f"algo=stream_q env=cartpole steps=10 seed={seed}", [0.94 + seed / 100])
    assert main(["report", str(tmp_path), "--references", str(own)]) == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| cartpole | stream_q | 3 | 0.950 | 0.950 ± 0.020 | 5 |" in text
    assert '"shown": "0.950 \\u00b1 0.020"' in (tmp_path / "report" / "report.html").read_text()


def test_a_point_is_tolerated_of_normalized_scores_alone(run, tmp_path):
    own = tmp_path / "own.csv"
    own.write_text(
        "task,algorithm,mean,std,seeds,source,steps\n"
        "CartPole-v1,stream_q,2.0,0.01,5,me,10\nd4rl/hopper-medium-v2,BC,2.0,0.01,5,me,10\n"
    )
    for seed, value in enumerate((1.9, 2.0, 2.1)):
        run(f"a{seed}", f"algo=stream_q env=cartpole steps=10 seed={seed}", [value])
        given = f"algo=bc env=hopper dataset=D4RL/hopper/medium-v2 steps=10 seed={seed}"
        run(f"b{seed}", given, [score("hopper", value)])
    verdicts = {one.row.task: one.verdict for one in build(tmp_path, published.read(own)).comparisons if one.compared}
    assert verdicts == {"cartpole": "too few seeds to say", "hopper, medium": "reproduced"}


def test_links_lead_to_folders_of_any_name(run, tmp_path):
    folder = run("random+5%demo (1) #2", "algo=stream_q env=cartpole", [1.0])
    assert main(["report", str(tmp_path)]) == 0
    link = "../random%2B5%25demo%20%281%29%20%232"
    assert unquote(link).removeprefix("../") == folder.name
    assert f"[{folder.name}]({link})" in (tmp_path / "report" / "report.md").read_text()
    assert f'"href": "{link}"' in (tmp_path / "report" / "report.html").read_text()


def test_a_method_needs_the_last_score_alone_and_is_said_where_it_lacks_it(run, tmp_path):
    for method in ("bc", "iql", "cql"):
        for seed in range(3):
            values = [score("hopper", 50.0), score("hopper", 60.0)]
            run(f"{method}{seed}", f"algo={method} env=hopper dataset=medium seed={seed}", values)
    for name, row in (("bc0", 1), ("cql0", 2)):
        file = tmp_path / name / "evaluations.csv"
        rows = list(csv.reader(file.read_text().splitlines()))
        rows[row][2] = "nan"
        file.write_text("".join(",".join(cells) + "\n" for cells in rows))
    report = build(tmp_path)
    assert [sorted(group.scores) for group in report.groups] == [["bc", "iql"]]
    (note,) = report.notes
    assert note == (
        "cql on hopper, medium is left out of comparisons of methods by scores: "
        "1 of its 3 runs have no normalized score of their last evaluation"
    )


def test_tasks_without_normalized_scores_are_said(run, tmp_path):
    for method in ("bc", "iql"):
        run(method, f"algo={method} env=hopper dataset=medium", [score("hopper", 50.0)])
        run(f"{method}2", f"algo={method} env=InvertedDoublePendulum-v5 dataset=medium", [50.0])
    (note,) = build(tmp_path).notes
    assert note == (
        "tasks without normalized scores, which are left out of comparisons of methods: inverteddoublependulum, medium"
    )


def test_the_report_says_where_reference_scores_come_from(run, tmp_path):
    for env, more in (("hopper", ""), ("walker2d", ""), ("pendulum", ""), ("cartpole", "env.expert_score=90")):
        run(env, f"algo=ppo env={env} {more}", [1.0])
    sources = {env: compose(["algo=ppo", f"env={env}"])[0].env.score_source for env in ("hopper", "pendulum")}
    assert main(["report", str(tmp_path)]) == 0
    part = (tmp_path / "report" / "report.md").read_text().partition("## Reference scores")[2].partition("## ")[0]
    for tasks, source in (
        ("hopper; walker2d", sources["hopper"]), ("pendulum", sources["pendulum"]), ("cartpole", "the runs' settings")
    ):  # fmt: skip
        assert f"| {tasks} | {source} |\n" in part


def test_the_number_of_evaluations_stands_beside_the_best_of_them(run, tmp_path):
    for method, count in (("bc", 5), ("iql", 20)):
        run(method, f"algo={method} preset=paper env=hopper dataset=D4RL/hopper/medium-v2", count * [1.0])
    assert main(["report", str(tmp_path)]) == 0
    rows = table(tmp_path, "results")
    assert {(row["method"], row["evaluations"]) for row in rows} == {("bc, paper", "5"), ("iql, paper", "20")}
    assert "| bc, paper | 1 | 1,000,000 | 5 |" in (tmp_path / "report" / "report.md").read_text()


def test_over_tasks_with_other_numbers_of_runs_probabilities_of_improvement_count_all(run, tmp_path):
    scores = {("iql", "hopper"): (10, 20, 30, 90, 100), ("iql", "walker2d"): (50,) * 3}
    scores |= {("bc", "hopper"): (40,) * 5, ("bc", "walker2d"): (60,) * 3}
    for (method, env), values in scores.items():
        for seed, value in enumerate(values):
            given = f"algo={method} env={env} dataset=medium seed={seed}"
            run(f"{method}-{env}-{seed}", given, [score(env, value)])
    report = build(tmp_path)
    found = {one["tasks"]: one["probability"].value for one in report.improvements}
    hopper, walker = "hopper, medium", "walker2d, medium"
    assert found == {(hopper, walker): pytest.approx(0.8), (hopper,): pytest.approx(0.6), (walker,): 1.0}
    assert any("iql counts with 3 runs per task, because one task has no more" in note for note in report.notes)


def test_methods_of_the_same_tasks_are_compared_over_them(run, tmp_path):
    for method in ("bc", "iql"):
        for env in ("hopper", "halfcheetah"):
            for seed in range(3):
                value = score(env, 50 + 20 * (method == "iql") + seed)
                given = f"algo={method} env={env} dataset=medium seed={seed}"
                run(f"{method}-{env}-{seed}", given, [value])
    run("td3_bc", "algo=td3_bc env=hopper dataset=medium", [score("hopper", 10)])
    assert main(["report", str(tmp_path)]) == 0
    overall = {(row["tasks"], row["method"], row["statistic"]): row for row in table(tmp_path, "overall")}
    both = "halfcheetah, medium; hopper, medium"
    assert float(overall[both, "iql", "mean"]["value"]) == pytest.approx(71)
    assert float(overall[both, "bc", "optimality gap"]["value"]) == pytest.approx(49)
    assert float(overall["hopper, medium", "bc", "median"]["value"]) == pytest.approx(51)
    assert float(overall["hopper, medium", "td3_bc", "IQM"]["value"]) == pytest.approx(10)
    assert {method for tasks, method, _ in overall if tasks == both} == {"bc", "iql"}
    text = (tmp_path / "report" / "report.md").read_text()
    assert f"## Over tasks: {both}" in text
    assert "| td3_bc | 1 | 10.0 |" not in text.partition("## Over tasks")[2]


@pytest.mark.slow
def test_methods_are_compared_over_the_tasks_that_both_were_set_and_on_each(run, tmp_path):
    tasks = {"bc": ("hopper", "halfcheetah"), "iql": ("halfcheetah", "walker2d"), "cql": ("hopper", "halfcheetah")}
    for worth, (method, envs) in enumerate(tasks.items()):
        for env in envs:
            for seed in range(3):
                given = f"algo={method} env={env} dataset=medium seed={seed}"
                run(f"{method}-{env}-{seed}", given, [score(env, 20 * worth + seed)])
    assert main(["report", str(tmp_path)]) == 0
    found = {(row["method"], row["than"], row["tasks"]): float(row["value"]) for row in table(tmp_path, "improvement")}
    assert found == {
        ("bc", "iql", "halfcheetah, medium"): 0,
        ("bc", "cql", "halfcheetah, medium; hopper, medium"): 0,
        ("bc", "cql", "halfcheetah, medium"): 0,
        ("bc", "cql", "hopper, medium"): 0,
        ("cql", "iql", "halfcheetah, medium"): 1,
    }
    text = (tmp_path / "report" / "report.md").read_text()
    assert text.count("| bc | cql |") == 1


def test_seeds_of_one_row_that_other_code_ran_are_said(run, tmp_path):
    for seed in range(3):
        run(f"a{seed}", f"algo=ppo env=cartpole seed={seed}", [10.0], code="x" if seed else "y")
    assert "ppo on cartpole: not all of its seeds were run by the same code" in build(tmp_path).notes


def test_pictures_are_pictures(run, tmp_path):
    run("a", "algo=iql env=hopper steps=10", [1.0, 2.0])
    assert main(["report", str(tmp_path)]) == 0
    for name in ("curves", "profiles"):
        assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (tmp_path / "report" / f"{name}.svg").read_text()


def test_settings_that_differ_are_chosen_by_trying_and_seeds_are_policies(run, tmp_path, capsys):
    for seed in range(2):
        for beta, worth in ((3, 20.0), (10, 60.0)):
            given = f"algo=iql env=hopper dataset=medium algo.beta={beta} steps=10 seed={seed}"
            run(f"runs/iql-{beta}-{seed}", given, [0.0, score("hopper", worth)])
        run(f"runs/bc-{seed}", f"algo=bc env=hopper dataset=medium steps=10 seed={seed}", [score("hopper", 50.0)])
        run(f"runs/unscored-{seed}", f"algo=bc env=InvertedDoublePendulum-v5 dataset=medium steps={10 + seed}", [-50.0])
    assert main(["bench", "export", str(tmp_path / "runs"), str(tmp_path / "archives" / "runs.csv")]) == 0
    for folder in ("runs", "archives"):
        assert main(["report", str(tmp_path / folder)]) == 0
        assert "trials.png, trials.svg" in capsys.readouterr().out.splitlines()[-1]
        rows = table(tmp_path / folder, "trials")
        assert {(row["task"], row["algorithm"], row["policies"], row["settings"]) for row in rows} == {
            ("hopper, medium", "iql", "4", "2")
        }
        known = {int(row["episodes"]): float(row["value"]) for row in rows}
        assert known[1] == pytest.approx(40, abs=3)
        assert known[5] == pytest.approx(60)  # each of four policies was played, and none varies
        text = (tmp_path / folder / "report" / "report.md").read_text()
        assert "| hopper, medium | iql | 4 | 2 | " in text.partition("## Settings chosen by a bandit")[2]
        assert (tmp_path / folder / "report" / "trials.png").read_bytes().startswith(b"\x89PNG")
        page = (tmp_path / folder / "report" / "report.html").read_text()
        assert '"lines": [["hopper, medium", "iql", 4, 2, ' in page


def test_what_went_online_is_shown_with_its_dip_and_what_the_critics_say_of_the_data(run, tmp_path):
    command = "algo=iql env=hopper dataset=medium steps=20 online_steps=20"
    for seed, (offline, lowest, final) in enumerate([(50, 20, 80), (40, 60, 70)]):
        values = [score("hopper", value) for value in (10.0, offline, lowest, final)]
        folder = run(f"runs/{seed}", f"{command} seed={seed}", values)
        valued = "".join(f"{step},{step},{value}\n" for step, value in [(20, ""), (25, 9), (30, 2), (40, 5)])
        (folder / "metrics.csv").write_text("step,seconds,data_value\n" + valued)
    run("runs/offline", "algo=bc env=hopper dataset=medium steps=20", [1.0, 2.0])
    assert main(["bench", "export", str(tmp_path / "runs"), str(tmp_path / "archives" / "runs.csv")]) == 0
    for folder in ("runs", "archives"):
        assert main(["report", str(tmp_path / folder)]) == 0
        rows = table(tmp_path / folder, "switches")
        assert {row["method"] for row in rows} == {"iql, online_steps=20"}
        assert {row["figure"]: float(row["value"]) for row in rows} == pytest.approx(
            {"offline": 45, "dip": 15, "online": 57.5, "final": 75}
        )
        text = (tmp_path / folder / "report" / "report.md").read_text()
        start = "| hopper, medium | iql, online_steps=20 | 2 | normalized score |"
        line = f"{start} 45.0 | 15.0 | 57.5 | 75.0 | 2.0, 2.0, 5.0 |"
        assert line in text.partition("## From offline to online")[2]
        page = (tmp_path / folder / "report" / "report.html").read_text()
        assert '"lines": [["hopper, medium", "iql, online_steps=20", 2, "normalized score", "45.0", "15.0", ' in page


def test_seeds_alone_are_not_settings_to_choose_from(run, tmp_path):
    for seed in range(3):
        run(f"{seed}", f"algo=iql env=hopper dataset=medium steps=10 seed={seed}", [1.0])
    assert not build(tmp_path).tried


def test_a_peers_run_is_drawn_in_the_colour_of_ours_with_another_line():
    methods = ["iql", "iql (SB3)", "bc", "iql (CORL)", "bc, top_fraction=0.1 (CORL)"]
    drawn = plots.styles({method: method.partition(" (")[0] for method in methods})
    assert {drawn[f"iql{peer}"].colour for peer in ("", " (CORL)", " (SB3)")} == {drawn["iql"].colour}
    assert [drawn[f"iql{peer}"].dash for peer in ("", " (CORL)", " (SB3)")] == ["solid", "dash", "dashdot"]
    assert drawn["bc, top_fraction=0.1 (CORL)"].dash == "dash"
    assert len({drawn[name].colour for name in ("iql", "bc", "bc, top_fraction=0.1 (CORL)")}) == 3


def test_a_method_may_have_any_name_in_pictures(run, tmp_path):
    for name in ("_mine.py", "a$b^$.py"):
        run(name, "algo=iql env=hopper dataset=medium steps=10", [1.0, 2.0], algorithm={"file": f"x/{name}"})
    report = build(tmp_path)
    for figure in (plots.learning_curves(report.rows, report.styles), plots.profiles(report.groups, report.styles)):
        figure.draw_without_rendering()
        shown = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
        assert shown == [" _mine.py", r"a\$b^\$.py"]


def test_panels_keep_their_size_beside_a_long_legend(run, tmp_path):
    for env in ("hopper", "halfcheetah"):
        for part in range(1, 11):
            run(f"{env}-{part}", f"algo=bc env={env} dataset=medium algo.top_fraction={part / 10}", [1.0, 2.0])
    report = build(tmp_path)
    for figure in (
        plots.learning_curves(report.rows, report.styles),
        plots.profiles(report.groups, report.styles),
    ):
        figure.draw_without_rendering()
        assert all(axis.get_window_extent().width > 3 * figure.dpi for axis in figure.axes)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def seen(page: Path, **view: str | list[str]) -> str:
    """The page as a browser renders it, including errors of its script."""
    address = f"{page.resolve().as_uri()}#{urlencode(view, doseq=True)}"
    shown = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         f"--user-data-dir={page.with_name('profile')}", "--virtual-time-budget=10000", "--dump-dom", address],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return re.sub(r"<script.*?</script>", "", shown.stdout, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_shows_curves_tables_and_filters_in_a_browser_without_a_network(run, tmp_path):
    for seed in range(3):
        run(f"iql-{seed}", f"algo=iql env=hopper dataset=medium seed={seed}", [100.0, 200.0 + seed])
        run(f"bc-{seed}", f"algo=bc env=halfcheetah dataset=medium seed={seed}", [100.0, 200.0 + seed])
        run(f"td3-{seed}", f"algo=td3_bc env=halfcheetah dataset=medium seed={seed}", [100.0, 200.0 + seed])
    run("evil", "algo=ppo env=cartpole", [1.0], peer="</script><!--<script><b>{{plotly}}")
    run("long", "algo=sac env=pendulum env.max_episode_steps=100", [1.0])
    unknown = run("unknown", "algo=stream_td env=series/hopper steps=20", [1.0, 1.0])
    (unknown / "evaluations.csv").write_text("step,return_mean,value_error\n10,1.0,\n20,1.0,0.04\n")
    assert main(["report", str(tmp_path)]) == 0
    page = tmp_path / "report" / "report.html"
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page.read_text())
    whole = seen(page)
    assert whole.count('class="chart js-plotly-plot"') == 5 + 1  # each task, and a profile
    assert whole.count('<details class="run">') == 12
    assert "pendulum, max_episode_steps=100</h2>" in whole
    assert "none</label>" in whole
    assert "max_episode_steps=100</label>" not in whole  # is no dataset
    for text in ("hopper, medium", "corl-team/CORL", "other data", "iql-2/run.json", "zoo run algo=iql env=hopper"):
        assert text in whole
    assert "Settings chosen by a bandit" not in whole
    links = re.findall(r'<a href="(\.\./[^"]+)"', whole)
    assert len(links) == 3 * 12  # run.json, metrics.csv and evaluations.csv: these have no config.yaml
    assert all((page.parent / link).exists() for link in links)
    assert "minutes of training</text>" not in whole
    assert "&lt;/script&gt;&lt;!--&lt;script&gt;&lt;b&gt;{{plotly}}" in whole
    assert '<td class="number">0.040</td>' in whole
    part = seen(page, algo=["bc", "td3_bc", "ppo", "sac", "stream_td"], x="minutes")
    assert part.count('class="chart js-plotly-plot"') == 1
    assert part.count('<details class="run">') == 3
    assert "minutes of training</text>" in part
    assert "halfcheetah, medium" not in part


def test_reading_an_archive_leaves_the_csv_modules_limit_as_it_was(run, tmp_path):
    run("runs/a", "algo=stream_q env=cartpole steps=40", [10.0])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    before = csv.field_size_limit(1_234_567)
    try:
        assert len(read(archive.parent)[0]) == 1
        assert csv.field_size_limit() == 1_234_567
    finally:
        csv.field_size_limit(before)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_has_what_is_reached_by_trying_of_the_tasks_that_it_shows(run, tmp_path):
    for env, beta in (("hopper", 3), ("hopper", 10), ("walker2d", 3), ("walker2d", 10)):
        run(f"{env}-{beta}", f"algo=iql env={env} dataset=medium algo.beta={beta}", [score(env, 50.0)])
    assert main(["report", str(tmp_path)]) == 0
    page = tmp_path / "report" / "report.html"
    for view, count in (({}, 2), ({"env": ["walker2d"]}, 1)):  # what is hidden
        table = seen(page, **view).partition("Settings chosen by a bandit</h2>")[2].partition("</table>")[0]
        assert table.count("<tr") == 1 + count
        assert table.count("50.0 [50.0, 50.0]") == 7 * count


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"seeds": [0, 1]}),
        ({"linear": {"8x8x8": "mkl"}}, {"linear": {"8x8x8": "onednn"}}),
        ({"compiled": True}, {"compiled": False}),
        ({"demonstrations": {"fingerprint": "a"}}, {"demonstrations": {"fingerprint": "b"}}),
        ({"init_from": {"checkpoint": "a"}}, {"init_from": {"checkpoint": "b"}}),
    ],
)
def test_runs_that_need_not_be_equal_to_the_last_bit_contradict_nothing(run, tmp_path, one, other):
    run("a", "algo=recoil env=hopper", [1.0], **one)
    run("b", "algo=recoil env=hopper", [2.0], **other)
    results, (note,) = read(tmp_path)
    assert len(results) == 1
    assert "was run more than once" in note


def test_runs_whose_scores_have_other_references_are_of_other_tasks(run, tmp_path):
    given = "algo=iql env=hopper dataset=D4RL/hopper/medium-v2"
    for seed, more in enumerate(("", "", "env.expert_score=1000", "env.expert_score=null")):
        run(str(seed), f"{given} seed={seed} {more}", [1000.0])
    run("other", f"{given.replace('medium', 'expert')} env.expert_score=1000", [1000.0])
    assert [result.task for result in read(tmp_path)[0]] == [
        *["hopper, expert_score=3234.3, medium"] * 2, "hopper, expert_score=1000.0, medium", "hopper, medium",
        "hopper, expert",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "comparable"),
    [
        ("env=hopper", True),
        ("env=hopper env.expert_score=1000", False),
        ("env=Hopper-v4 env.random_score=-20.272305 env.expert_score=3234.3", True),
        ("env=Hopper-v4 env.random_score=-20.272305 env.expert_score=1000", False),
    ],
)
def test_scores_of_other_references_are_not_compared_with_published_ones(run, tmp_path, given, comparable):
    run("a", f"algo=iql {given} dataset=D4RL/hopper/medium-v2 steps=1000000", [1000.0])
    found = [one for one in build(tmp_path).comparisons if "CORL" in one.source]
    assert found
    assert {"other reference scores" not in one.verdict for one in found} == {comparable}


def test_datasets_of_one_name_and_other_content_are_other_tasks(run, tmp_path):
    for seed, content in enumerate(("aaaaaaaa", "aaaaaaaa", "bbbbbbbb")):
        data = {"name": "medium", "fingerprint": content}
        run(str(seed), f"algo=iql env=hopper dataset=medium seed={seed}", [1.0], dataset=data)
    results, _ = read(tmp_path)
    assert [result.task for result in results] == ["hopper, medium aaaaaa"] * 2 + ["hopper, medium bbbbbb"]


def test_series_of_one_name_and_other_content_are_other_tasks(run, tmp_path):
    for seed, content in enumerate(("aaaaaaaa", "aaaaaaaa", "bbbbbbbb")):
        run(str(seed), f"algo=stream_td env=series/hopper steps=10 seed={seed}", [1.0], series=content)
    assert [result.task for result in read(tmp_path)[0]] == ["series-hopper aaaaaa"] * 2 + ["series-hopper bbbbbb"]


def test_a_file_of_data_that_is_not_here_leaves_its_run_out_if_its_name_says_something_else(run, tmp_path, capsys):
    run("whole", "algo=ppo env=cartpole", [10.0])
    folder = run("other", "algo=iql env=hopper dataset=medium", [1.0])
    (folder / "run.json").write_text((folder / "run.json").read_text().replace('"medium"', '"hopper-10%.hdf5"'))
    assert main(["report", str(tmp_path)]) == 0
    assert "other is left out: dataset=hopper-10%.hdf5: a part of a mixture is a name" in capsys.readouterr().out


def test_runs_that_begin_with_the_seeds_of_other_runs_are_other_methods(run, tmp_path):
    for seed in (0, 1):
        for base in ("runs/cql-expert", "runs/iql-random"):
            run(f"{base[5:]}{seed}", f"algo=rlpd env=hopper init_from={base}/seed{seed} seed={seed}", [1.0])
    results, notes = read(tmp_path)
    assert not notes
    assert {result.method for result in results} == {"rlpd, init_from=cql-expert", "rlpd, init_from=iql-random"}
    assert len(results) == 4


@pytest.mark.parametrize("key", ["init_from", "base"])
def test_runs_that_begin_with_runs_of_one_name_and_other_settings_are_other_methods(run, tmp_path, key):
    for beta in (3.0, 10.0):
        for seed in (0, 1):
            began, given = f"first/iql-seed{seed}-{beta:.0f}{seed}", f"algo=rlpd env=hopper seed={seed}"
            run(began, f"algo=iql env=hopper algo.beta={beta} seed={seed}", [1.0])
            run(f"then/{beta}-{seed}", f"{given} {key}={began}", [2.0], folder=str(tmp_path))
    results, notes = read(tmp_path / "then")
    assert not notes
    assert sorted(result.seed for result in results) == [0, 0, 1, 1]
    by_method = defaultdict(set)
    for result in results:
        by_method[result.method].add(result.dir.name.partition("-")[0])
    assert sorted(map(sorted, by_method.values())) == [["10.0"], ["3.0"]]
    assert all(re.match(rf"rlpd, {key}=iql-\w{{6}}\b", method) for method in by_method)
    assert main(["bench", "export", str(tmp_path / "then"), str(tmp_path / "out" / "a.csv")]) == 0
    shutil.rmtree(tmp_path / "first")
    assert {result.method for result in read(tmp_path / "out")[0]} == set(by_method)
    assert {result.method.partition("=")[2].partition(",")[0] for result in read(tmp_path / "then")[0]} == {"iql"}


def test_runs_of_one_seed_that_began_with_others_say_with_which(run, tmp_path):
    for began in ("iql-seed0-aa", "iql-seed0-bb"):
        run(began[-2:], f"algo=rlpd env=hopper init_from={began}", [float(began.endswith("bb"))])
    (note,) = read(tmp_path)[1]
    assert "was run more than once (aa, bb), beginning with iql-seed0-aa, iql-seed0-bb: the last one counts" in note


def test_files_of_one_name_are_told_apart_by_their_folders(run, tmp_path):
    for folder in ("v1", "v2"):
        run(folder, "algo=iql env=hopper", [1.0], algorithm={"file": f"{folder}/my.py"})
    results, notes = read(tmp_path)
    assert not notes
    assert {result.method for result in results} == {"v1/my.py", "v2/my.py"}


def test_what_continues_online_or_was_set_otherwise_is_not_set_beside_published_figures(run, tmp_path):
    run("offline", "algo=iql env=hopper dataset=D4RL/hopper/medium-v2 preset=paper", [1.0])
    run("on", "algo=iql env=hopper dataset=D4RL/hopper/medium-v2 preset=paper steps=9 online_steps=9", [1.0])
    run("plain", "algo=ppo env=hopper preset=paper", [1.0])
    run("many", "algo=ppo env=hopper preset=paper num_envs=64", [1.0])
    run("chance", "algo=ppo env=hopper preset=paper eval_deterministic=false", [1.0])
    said = defaultdict(list)
    for one in build(tmp_path).comparisons:
        said[one.row.runs[0].dir.name].append(one.verdict)
    assert all("continues online" in verdict for verdict in said["on"])
    assert not any("continues online" in verdict for verdict in said["offline"])
    comparable = {name: any("other settings" not in one for one in said[name]) for name in ("plain", "many", "chance")}
    assert comparable == {"plain": True, "many": False, "chance": False}


def test_a_run_that_is_there_in_its_folder_and_in_an_archive_is_exported_once(run, tmp_path):
    folder = run("bench/smoke/a", "algo=stream_q env=cartpole steps=40", [10.0, 20.0])
    assert main(["bench", "export", str(tmp_path / "bench" / "smoke"), str(tmp_path / "bench" / "smoke.csv")]) == 0
    shutil.rmtree(folder)
    run("bench/smoke/a", "algo=stream_q env=cartpole steps=40", [10.0, 500.0])
    assert main(["bench", "export", str(tmp_path / "bench"), str(tmp_path / "all" / "all.csv")]) == 0
    (result,), _ = read(tmp_path / "all")
    assert result.columns["return_mean"].tolist() == [10.0, 500.0]


def test_an_archive_that_is_cut_off_is_refused(run, tmp_path, capsys):
    run("runs/a", "algo=stream_q env=cartpole steps=40", [10.0, 20.0])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    archive.write_text("".join(archive.read_text().splitlines(keepends=True)[:-1]))
    assert main(["report", str(archive.parent)]) == 1
    assert "a: its evaluations end at 20 of 40 steps" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [1, 2, 4, 7, 9])
def test_an_archive_that_is_cut_off_within_its_last_line_is_refused(run, tmp_path, capsys, cut):
    run("runs/a", "algo=stream_q env=cartpole steps=40 eval_episodes=2", [11.0, 22.25])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    archive.write_text(archive.read_text()[:-cut])
    assert main(["report", str(archive.parent)]) == 1
    assert f"{archive} is damaged (its last line is cut off)" in capsys.readouterr().err


def test_an_archive_whose_returns_are_not_one_an_episode_is_refused(run, tmp_path, capsys):
    run("runs/a", "algo=stream_q env=cartpole steps=40 eval_episodes=2", [11.0, 22.25])
    archive = tmp_path / "archives" / "runs.csv"
    assert main(["bench", "export", str(tmp_path / "runs"), str(archive)]) == 0
    archive.write_text(archive.read_text().replace("22.25 22.25", "22.25"))
    assert main(["report", str(archive.parent)]) == 1
    assert "a: its last evaluation has 1 returns of 2" in capsys.readouterr().err


def test_other_files_beside_runs_do_not_matter(run, tmp_path):
    run("runs/a", "algo=stream_q env=cartpole steps=40", [10.0])
    assert main(["bench", "export", str(tmp_path / "runs"), str(tmp_path / "mine" / "old.csv")]) == 0
    (tmp_path / "mine" / "config.yaml").write_text("of something else")
    (tmp_path / "mine" / "notes.csv").write_bytes("größe\n".encode("latin-1"))
    results, _ = read(tmp_path / "mine")
    assert len(results) == 1


def test_the_command_of_a_run_is_typed_as_it_stands(run, tmp_path):
    run("a", "algo=iql env=hopper", [1.0])
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    record["config"]["dataset"] = "my data/a,b (1).hdf5"
    (tmp_path / "a" / "run.json").write_text(json.dumps(record))
    (result,), _ = read(tmp_path)
    assert compose(shlex.split(result.command)[2:])[0].dataset == "my data/a,b (1).hdf5"
