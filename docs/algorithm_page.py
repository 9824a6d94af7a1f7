"""The page of one algorithm: made of its file, its presets, and the results that the repository has."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from curves import Panel, draw, panels_of_rows, save
from equations import typeset
from omegaconf import OmegaConf

from zoo.agent import Predictor
from zoo.benchmarks.analysis import Comparison, Row, compare
from zoo.benchmarks.published import builtin
from zoo.benchmarks.records import MEASURES
from zoo.commands.list import what_and_paper
from zoo.copying import NEEDED
from zoo.settings.overrides import as_overrides
from zoo.settings.registry import Algorithm, Setting, folder, settings

DOCS = Path(__file__).resolve().parent


def algorithm_page(algorithm: Algorithm, rows: Sequence[Row], panels: Sequence[Panel], pictures: Path) -> Iterator[str]:
    """The lines of an algorithm's page.

    Args:
        algorithm: the algorithm.
        rows: its runs in suites.
        panels: of its other runs.
        pictures: the folder of the page, for its pictures.
    """
    what, paper = what_and_paper(algorithm.title)
    description, deviations = docstring(algorithm.path)
    facts = (algorithm.setting, f"{' and '.join(algorithm.action_spaces)} actions", needs(algorithm))
    yield f"# {prose(what)}"
    yield ""
    yield f"{prose(paper)}."
    yield ""
    own = f"[`algos/{algorithm.name}.py`]({algorithm.name}.py)"
    yield f"{' · '.join(facts)} · {own} · [a copy that stands alone]({algorithm.name}_alone.py)"
    yield ""
    yield description
    yield ""
    yield "## Run it"
    yield ""
    copy = " ".join(["zoo copy", algorithm.name, "my_project/", *NEEDED.get(algorithm.name, [])])
    for command, comment in (
        *((command, "") for command in first_run(algorithm)),
        (f"zoo run algo={algorithm.name} --help", "# every setting"),
        (copy, "# one file that needs nothing else of the zoo"),
    ):
        yield f"    {command:<39} {comment}".rstrip()
    yield ""
    yield from results(algorithm, rows, panels, pictures)
    yield "## Settings"
    yield ""
    yield "Each is set as `algo.<setting>=<value>`. [Settings of a run](../settings.md) has those of all algorithms."
    yield ""
    yield from settings_table(settings(algorithm.path, "Config"))
    yield from presets(algorithm)
    if deviations:
        yield "## Deviations"
        yield ""
        yield deviations
        yield ""
    yield "## The file"
    yield ""
    yield f'??? example "algos/{algorithm.name}.py"'
    yield ""
    yield from (f"    {line}".rstrip() for line in ("```python", *algorithm.path.read_text().splitlines(), "```"))


def needs(algorithm: Algorithm) -> str:
    """What an algorithm learns from, in words."""
    known = {"required": "learns from a dataset", "none": "learns from its environment"}
    return known.get(algorithm.data, f"learns from a dataset too with `algo.{algorithm.data}`")


def first_run(algorithm: Algorithm) -> list[str]:
    """The commands of a first run, in an environment that suits the algorithm; before it, those that make its data."""
    env, data, more = "hopper", "", ""
    if issubclass(algorithm.agent_class, Predictor):
        env = "series/hopper"
    elif algorithm.takes_goals:
        env, data, more = "pointmaze-medium", "navigate", " dataset=navigate"
    elif "continuous" not in algorithm.action_spaces:
        env = "cartpole"
        if algorithm.data == "required":
            env, data, more = "minatar/breakout", "medium-replay", " dataset=medium-replay"
    elif hasattr(algorithm.module.Config, "expert"):
        data, more = "random expert", " dataset=random+30ep:expert algo.expert=1ep:expert"
    made = [f"zoo data make {env} {data}"] if data else []
    return [*made, f"zoo run algo={algorithm.name} env={env}{more}"]


def docstring(path: Path) -> tuple[str, str]:
    """A docstring as Markdown, without its first line: what is described, and from where on it says what deviates.

    A docstring that is referred to, `The docstring of zoo.streaming lists ...`, follows.
    """
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    _, _, text = text.partition("\n")
    start = re.search(r"(?:^|(?<=[.)] ))(?=Deviat|[A-Z](?:[^.]|\.(?=\w))*?deviat)", text, flags=re.MULTILINE)
    at = start.start() if start else len(text)
    deviations = re.sub(r"\ADeviations?: (.)", lambda match: match[1].upper(), text[at:].strip())
    shown = markdown(deviations)
    for module in re.findall(r"docstring of\s+`([\w.]+)`", deviations):
        other = folder(module.partition(".")[2]).joinpath("__init__.py")
        shown += f"\n\nThe docstring of `{module}`:\n\n" + quoted(
            markdown(ast.get_docstring(ast.parse(other.read_text())) or "")
        )
    return markdown(text[:at].strip()), shown


def quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def markdown(text: str) -> str:
    """Paragraphs of a docstring as Markdown. Of the indented ones equations are typeset; commands and lists stay."""
    parts = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        prose(part) if not part.startswith("    ") else part if re.match(r"\s+(\d|zoo )", part) else typeset(part)
        for part in parts
    )


def prose(text: str) -> str:
    """Text with its papers and repositories linked, and what Markdown would take for its own escaped; not in code."""
    parts = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(parts), 2):
        part = re.sub(r"([\\*_\[\]])", r"\\\1", parts[i]).replace("<", "&lt;").replace("|", "&#124;")
        part = re.sub(r"(arXiv )?\b(\d{4}\.\d{5})\b", r"[\1\2](https://arxiv.org/abs/\2)", part)
        parts[i] = re.sub(r"\bgithub\s+([\w-]+/[\w.\\-]*[\w-])", github, part)
    return "".join(parts)


def github(match: re.Match[str]) -> str:
    repository = match[1].replace("\\", "")
    return f"[github {match[1]}](https://github.com/{repository})"


def results(algorithm: Algorithm, rows: Sequence[Row], panels: Sequence[Panel], pictures: Path) -> Iterator[str]:
    """Curves and figures of the runs that the repository has, and the published figures."""
    pages = measured(algorithm)
    if rows or panels or pages:
        yield "## Results"
        yield ""
    if rows or panels:
        yield "Means over seeds, whose number is behind the name, with the range of the runs. Dashed: other libraries'"
        yield "code. Curves of training episodes are means over a fiftieth of the steps."
        yield ""
    if panels:
        save(draw(panels), pictures / "curves" / f"{algorithm.name}.png")
        yield f"![{algorithm.name}'s learning curves](curves/{algorithm.name}.png)"
        yield ""
    if pages:
        yield f"Commands and figures: {', '.join(pages)}."
        yield ""
    if rows:
        save(draw(panels_of_rows(rows)), pictures / "curves" / f"{algorithm.name}-suites.png")
        yield "### In suites"
        yield ""
        yield f"![{algorithm.name}'s learning curves in suites](curves/{algorithm.name}-suites.png)"
        yield ""
        yield from figures(rows)
        yield '??? note "The command of each method\'s first seed"'
        yield ""
        yield from (
            f"        {one}" for one in dict.fromkeys(row.runs[0].command for row in rows if not row.runs[0].peer)
        )
        yield ""
    yield from published(algorithm)


def measured(algorithm: Algorithm) -> list[str]:
    """Links to the pages of results that have commands of an algorithm, else to those that name it."""
    pages = {path: path.read_text() for path in sorted((DOCS / "results").glob("*.md")) if path.stem != "speed"}
    title = re.escape(algorithm.title.partition(":")[0])
    for pattern in (rf"algo=(?:\w+,)*{algorithm.name}\b", rf"(?<![\w-]){title}(?![\w-])"):
        if found := [path for path, text in pages.items() if re.search(pattern, text)]:
            break
    return [f"[{pages[path].splitlines()[0].removeprefix('# ')}](../results/{path.name})" for path in found]


def figures(rows: Sequence[Row]) -> Iterator[str]:
    """The last evaluations with Student's intervals, and the verdicts beside published figures."""
    published = [compared(row) for row in rows]
    shown = any(published)
    yield "| task | method | seeds | steps | last evaluation, 95 % interval |" + " published |" * shown
    yield "|---|---|--:|--:|---|" + "---|" * shown
    for row, comparisons in zip(rows, published, strict=True):
        verdicts = "; ".join(f"{one.published}: {one}" for one in comparisons)
        steps = f"{int(row.runs[0].steps[-1]):,}"
        yield (
            f"| {prose(row.task)} | {prose(row.method)} | {len(row.runs)} | {steps} | "
            f"{MEASURES[row.measure]} {row.estimate('final')} |" + f" {prose(verdicts)} |" * shown
        )
    yield ""


def compared(row: Row) -> list[Comparison]:
    """The published figures that a row can be compared with."""
    return [one for one in compare(row, builtin()) if one.compared]


def published(algorithm: Algorithm) -> Iterator[str]:
    """The published figures that reports set beside runs of an algorithm."""
    found = [reference for reference in builtin() if reference.algo == algorithm.name]
    if not found:
        return
    yield '??? note "Published figures that `zoo report` sets beside runs"'
    yield ""
    yield "    | task | algorithm | sampler | evaluation | mean | std | seeds | steps | source |"
    yield "    |---|---|---|---|--:|--:|--:|--:|---|"
    for one in found:
        figure = one.published
        std = "" if figure.std != figure.std else f"{figure.std:g}"
        steps = f"{one.steps:,}" if one.steps else ""
        evaluation = {"final": "last", "last3": "mean of the last three", "best": "best"}[one.figure]
        measure = "training" if one.measure == "training_return" else evaluation
        yield (
            f"    | {one.task} | {prose(one.algorithm)} | {one.sampler} | {measure} | {figure.mean:g} | {std} | "
            f"{figure.seeds or ''} | {steps} | {prose(figure.source)} |"
        )
    yield ""


def presets(algorithm: Algorithm) -> Iterator[str]:
    """What each preset sets, for which tasks, and from which source."""
    paths = sorted((folder("configs") / "presets").glob(f"*/{algorithm.name}.yaml"))
    if not paths:
        return
    yield "## Presets"
    yield ""
    yield "Of all entries that fit a task the later override the earlier: [Presets](../presets.md)."
    yield ""
    yield "| preset | for | sets | source |"
    yield "|---|---|---|---|"
    for path in paths:
        entries: Any = OmegaConf.to_container(OmegaConf.load(path))
        for entry in entries:
            tasks = "; ".join(
                f"{key} {', '.join(entry[key])}" for key in ("env", "dataset", "corruption") if key in entry
            )
            sets = ", ".join(f"`{one}`" for one in as_overrides(entry["set"]))
            cells = (f"`{path.parent.name}`", prose(tasks) or "all", sets, prose(entry["source"]))
            yield "| " + " | ".join(cell.replace("\n", " ") for cell in cells) + " |"
    yield ""


def settings_table(fields: Iterable[Setting], usual: dict[str, str] | None = None) -> Iterator[str]:
    """A row for each setting, with what is `usual` in place of its default."""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for one in fields:
        yield f"| `{one.name}` | `{(usual or {}).get(one.name, one.default)}` | {prose(one.comment)} |"
    yield ""
