"""The documents are correct: the README's table of algorithms, the example of an added algorithm, and its page."""

import ast
import html
import inspect
import re
import shutil
import sys
from pathlib import Path

import generate
import numpy as np
import pytest
import test_contract as contract
import yaml
from algorithm_page import docstring, first_run, markdown, measured, prose
from curves import curve, divided, panels_of_archives, panels_of_files
from equations import latex, typeset

import zoo.algos
from zoo.cli import main
from zoo.data.load import load_arrays
from zoo.envs import spec_of
from zoo.settings import registry
from zoo.settings.compose import compose
from zoo.settings.fit import check_spaces

ROOT = Path(__file__).parents[2]


def test_the_readmes_table_of_algorithms_is_generated(capsys):
    assert main(["list", "--markdown"]) == 0
    table = capsys.readouterr().out
    assert table.count("\n") == len(registry.algorithms()) + 2
    assert table in (ROOT / "README.md").read_text()


def test_what_is_cited_is_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", zoo.__version__)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("L2^tau(u) = |tau - 1(u < 0)| u^2", r"L_{2}^{\tau}(u) = |\tau - 1(u < 0)| u^{2}"),
        ("min_i Q_i'(s', a~),  a~ ~ pi(s')", r"\min_{i} Q_{i}'(s', \tilde{a}),\quad \tilde{a} \sim \pi(s')"),
        ("max_a' Q(s', a')", r"\max_{a'} Q(s', a')"),
        ("z <- 0 if a was not greedy", r"z \leftarrow 0\ \text{if}\ a\ \text{was not greedy}"),
        ("g_{t+1} = g_t - r_t", "g_{t+1} = g_{t} - r_{t}"),
    ],
)  # fmt: skip
def test_equations_of_docstrings_as_latex(written, expected):
    assert latex(written) == expected


def rows_of(table):
    """The label of each equation in a page, its MathML, and its number."""
    return re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", table)


def written(table):
    """The equations in a page, as lines of the docstring."""
    of = (
        (of, html.unescape(re.search('alttext="(.*?)"', equation)[1]), number)
        for of, equation, number in rows_of(table)
    )
    return [" ".join(part for part in parts if part) for parts in of]


def test_a_row_an_equation_with_its_number():
    table = typeset("    critic   L_Q  = E[(Q(s, a) - y)^2]     (Eq. 6)\n             y    = r + gamma V(s')")
    rows = rows_of(table)
    assert written(table) == ["critic L_Q  = E[(Q(s, a) - y)^2] (Eq. 6)", "y    = r + gamma V(s')"]
    assert [(of, number) for of, _, number in rows] == [("critic", "(Eq. 6)"), ("", "")]
    assert "<msub><mi>L</mi><mrow><mi>Q</mi></mrow></msub>" in rows[0][1]
    assert "&#x003B3;" in rows[1][1]  # gamma


@pytest.fixture
def added(tmp_path, monkeypatch):
    """The algorithm in `docs/adding-an-algorithm.md`, as a file in a copy of the zoo's folder."""
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adding-an-algorithm.md").read_text(), re.DOTALL)
    folder = tmp_path / "algos"
    shutil.copytree(registry.folder("algos"), folder)
    (folder / "crr.py").write_text(source)
    find = registry.folder
    monkeypatch.setattr(registry, "folder", lambda name: folder if name == "algos" else find(name))
    monkeypatch.setattr(zoo.algos, "__path__", [str(folder)])
    yield registry.algorithms()["crr"]
    sys.modules.pop("zoo.algos.crr", None)


def test_commands_in_docstrings_are_no_equations():
    command = "    zoo run algo=sac env=hopper"
    assert markdown(f"Train it:\n\n{command}\n\n    y = r + gamma V(s')").split("\n\n")[1] == command
    assert "<math" in markdown("    y = r + gamma V(s')")


def test_the_documented_algorithm_is_short_and_complete(added, capsys, tmp_path, monkeypatch, pendulum_file):
    monkeypatch.chdir(tmp_path)
    assert len(added.path.read_text().splitlines()) < 100
    assert main(["list"]) == 0
    assert re.search(r"^ +crr +offline +continuous +CRR:", capsys.readouterr().out, re.MULTILINE)
    run = ["run", "algo=crr", "env=pendulum", f"dataset={pendulum_file}", "logger=none", "algo.hidden=[16]"]
    assert main([*run, "steps=20", "eval_every=10", "eval_episodes=1", "run_dir=run", "sampler=advantage"]) == 0
    assert main(["eval", "run", "--episodes", "1"]) == 0
    capsys.readouterr()
    assert main([*run, "algo.beta=-1"]) == 2
    assert capsys.readouterr().err == "zoo: algo.beta=-1.0 must be above 0.\n"


HELD_TO = [
    test
    for name, test in vars(contract).items()
    if name.startswith("test_") and list(inspect.signature(test).parameters) == ["algorithm"]
]


@pytest.mark.parametrize("test", HELD_TO, ids=lambda test: test.__name__)
def test_the_documented_algorithm_keeps_to_the_pattern(added, test):
    test(added)


# --- The site ---


def page(algorithm, folder):
    """The page of an algorithm, without results."""
    generate.algorithm_pages(folder, [], {})
    return (folder / f"{algorithm.name}.md").read_text()


def test_the_documented_algorithm_gets_its_page_without_another_file(added, tmp_path):
    text = page(added, tmp_path)
    source = added.path.read_text()
    equations = re.findall(
        r"^ *(?:critic|actor|A) +(?:L_Q|L_pi|=) .*$", ast.get_docstring(ast.parse(source)), re.MULTILINE
    )
    assert len(equations) == 3
    assert [line.split() for line in written(text)] == [line.split() for line in equations]
    assert "| `beta` | `1.0` | temperature of the weights |" in text
    assert (tmp_path / "crr.py").read_text() == source
    assert "[`crr`](crr.md)" in (tmp_path / "index.md").read_text()
    assert "## Results" not in text  # nothing has been measured
    assert '{ "CRR" = "algorithms/crr.md" }' in generate.site_config()


@pytest.mark.parametrize("algorithm", registry.algorithms().values(), ids=list(registry.algorithms()))
def test_a_page_says_all_that_the_docstring_says(algorithm):
    def words(text):
        text = re.sub(r"<table.*?</table>", lambda table: " ".join(written(table[0])), text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"\]\([^)]*\)", "", text.replace("\\", "")))
        return re.sub(r"[\[\]]|Deviations?:|,(?=\s{2,}\()", "", text).lower().split()

    text = ast.get_docstring(ast.parse(algorithm.path.read_text()))
    description, deviations = docstring(algorithm.path)
    own, _, _ = deviations.partition("\n\nThe docstring of")  # without the docstring that a whole family shares
    assert words(description + "\n" + own) == words(text.partition("\n")[2])
    assert bool(deviations) == bool(re.search("deviat", text, re.IGNORECASE))


def test_the_deviations_that_streaming_algorithms_share_are_on_their_pages():
    _, deviations = docstring(registry.algorithms()["stream_q"].path)
    assert "> - A truncated episode bootstraps from its last observation." in deviations


@pytest.mark.parametrize("algorithm", registry.algorithms().values(), ids=list(registry.algorithms()))
def test_the_first_command_of_a_page_fits_the_algorithm_and_its_data_are_there_or_made_before(algorithm):
    *made, command = (line.split() for line in first_run(algorithm))
    assert command[:3] == ["zoo", "run", f"algo={algorithm.name}"]
    config, chosen, _ = compose(command[2:])
    check_spaces(chosen, spec_of(config.env), config, config.env.id)
    for line in made:
        assert line[:4] == ["zoo", "data", "make", config.env.argument]
    names = {*re.split(r"\+|\d+ep:", config.dataset), getattr(config.algo, "expert", "").rpartition(":")[2]} - {""}
    if made:
        assert names == set(made[0][4:])
    elif algorithm.takes_data(config):
        assert load_arrays(config.env, config.dataset)


def test_every_algorithm_has_results_and_curves_of_those_that_are_not_in_files_of_one_seed():
    assert all(measured(algorithm) for algorithm in registry.algorithms().values())
    panels = panels_of_archives(ROOT)
    assert "[Goal-conditioned algorithms](../results/goal-conditioned.md)" in measured(registry.algorithms()["qrl"])
    (panel,) = (panel for panel in panels["qrl"] if panel.title == "pointmaze-large, navigate")
    ((method, curves),) = panel.lines.items()
    assert method == "qrl, paper, batch_size=256, hidden=[256,256,256]"
    assert [curve[0].tolist() for curve in curves] == 2 * [[25_000, 50_000, 75_000, 100_000]]
    assert [curve[1][-1] for curve in curves] == [50.0, 58.0]


def test_prose_links_papers_and_repositories_and_keeps_what_markdown_would_take_for_its_own():
    assert (
        prose("Q* of arXiv 2110.06169, `a_b*`")
        == r"Q\* of [arXiv 2110.06169](https://arxiv.org/abs/2110.06169), `a_b*`"
    )
    assert prose("a | b < c^2") == "a &#124; b &lt; c^2"
    assert prose("(github a/b_c)") == r"([github a/b\_c](https://github.com/a/b_c))"


def test_a_link_that_leads_nowhere_is_reported_with_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    source = tmp_path / "page.md"
    source.write_text("[data](no.csv)\n")
    with pytest.raises(FileNotFoundError, match=r"page.md links to no.csv, which does not exist"):
        generate.linked(source, tmp_path / "pages" / "page.md", tmp_path / "pages")


def test_a_page_finds_the_files_that_it_links_to_in_the_site(tmp_path):
    text = generate.linked(ROOT / "docs" / "results.md", tmp_path / "results.md", tmp_path)
    assert "[PPO](results/on-policy.md)" in text
    assert "Each page has the commands behind its figures. Most learning curves are in\n`benchmarks/results`" in text
    text = generate.linked(ROOT / "CONTRIBUTING.md", tmp_path / "contributing.md", tmp_path)
    assert "[CHANGELOG.md](changelog.md)" in text
    assert (tmp_path / "files" / "Dockerfile").read_text() == (ROOT / "Dockerfile").read_text()


def test_a_files_name_says_method_and_task():
    assert divided("hl-gauss-minatar-breakout") == ("hl-gauss", "minatar-breakout")
    assert divided("hopper-5-expert-advantage") == ("advantage", "hopper-5-expert")
    assert divided("halfcheetah-1m") == ("", "halfcheetah-1m")
    assert divided("demo") == ("", "demo")


def test_curves_are_those_of_the_files_with_peers_behind_the_zoos_own():
    (panel,) = (panel for panel in panels_of_files(ROOT)["iql"] if panel.title == "hopper, mixed")
    assert {label: len(curves) for label, curves in panel.lines.items()} == {"zoo": 16, "CORL": 16}
    assert list(panel.lines) == ["zoo", "CORL"]
    table = np.genfromtxt(ROOT / "benchmarks/results/corl-iql-hopper-mixed-seed0.csv", delimiter=",", names=True)
    steps, values = panel.lines["CORL"][0]
    np.testing.assert_array_equal(steps, table["step"])
    np.testing.assert_array_equal(values, table["score"])


def test_training_returns_are_averaged_within_bins(tmp_path):
    path = tmp_path / "training.csv"
    path.write_text("step,episode_return\n" + "".join(f"{step},{step % 20}\n" for step in range(10, 1001, 10)))
    measure, (steps, values) = curve(path, training=True, score=False)
    assert measure == "training_return"
    np.testing.assert_array_equal(steps, np.arange(20, 1001, 20))
    np.testing.assert_array_equal(values, np.full(50, 5.0))  # of 10 and 0


# --- Commands and code in the pages ---


@pytest.mark.slow
def test_an_environment_and_data_of_ones_own_are_used_as_documented(tmp_path, monkeypatch):
    corridor, train, data, logged = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs" / "bring-your-own.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("corridor.py").write_text(corridor)
    for script in (train.replace("3_000", "600").replace("1_000", "600"), data, logged):
        exec(compile(script, "script", "exec"), {})
    assert len(list(tmp_path.glob("runs/*/*/evaluations.csv"))) == 2
    rng, ends = np.random.default_rng(0), np.arange(600) % 30 == 29
    obs, action, reward = rng.normal(size=(600, 3)), rng.uniform(-1, 1, (600, 2)), rng.normal(size=600)
    np.savez("mine.npz", observations=obs, actions=action, rewards=reward, terminals=0 * ends, timeouts=ends)
    command = ["run", "algo=iql", "env=Logged-v0", "dataset=mine.npz", "eval_episodes=1", "run_dir=iql", "steps=20"]
    assert main(command) == 0
    assert main(["eval", "iql", "--fqe", "--updates", "5"]) == 0
