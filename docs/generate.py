"""Writes the sources of the documentation's site to `build/docs`: `python docs/generate.py`.

Pages that are written by hand are copied from `docs`; those of the algorithms, the settings and the suites are made of
the code and of the results that the repository has. `make docs` builds the site of them.
"""

import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from algorithm_page import algorithm_page, prose, settings_table
from curves import Panel, archived, panels_of_archives, panels_of_files

from zoo.benchmarks.analysis import Row
from zoo.commands.list import table
from zoo.copying import NEEDED, copied
from zoo.settings.registry import algorithms, by_family, folder, settings

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUT = ROOT / "build" / "docs"
FILES = "files"  # where the site has copies of the repository's files that pages link to
COPIED = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
MADE_OF = {"algos": "algorithms/index.md", "zoo/settings/config.py": "settings.md", "configs/suite": "suites.md"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def main() -> None:
    """Writes everything anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    pages, panels = OUT / "pages", panels_of_archives(ROOT) | panels_of_files(ROOT)
    algorithm_pages(pages / "algorithms", archived(ROOT), panels)
    with ProcessPoolExecutor() as pool:
        needed = [NEEDED.get(name, []) for name in algorithms()]
        texts = pool.map(copied, algorithms(), needed)  # as `zoo copy` writes them
        for name, text in zip(algorithms(), texts, strict=True):
            write(pages / "algorithms" / f"{name}_alone.py", text)
    write(pages / "settings.md", settings_page())
    write(pages / "suites.md", suites_page())
    for name, path in written().items():
        write(pages / name, linked(path, pages / name, pages))
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(DOCS / name, pages / name)
    write(OUT / "zensical.toml", site_config())


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n")


def written() -> dict[str, Path]:
    """The pages that are written by hand, by their places in the site."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    return pages | {name: ROOT / path for path, name in COPIED.items()}


def linked(source: Path, page: Path, pages: Path) -> str:
    """A page's text with its links leading to the pages that are made of files, or to copies; folders are named only.

    Args:
        source: where the page was written.
        page: its place in the site.
        pages: the site's folder.

    Raises:
        FileNotFoundError: a link leads nowhere.
    """

    def replaced(match: re.Match[str]) -> str:
        image, label, path, anchor = match[1], match[2], match[3], match[4] or ""
        target = (source.parent / path).resolve()
        if made := made_of(target):
            return f"{image}[{label}]({os.path.relpath(pages / made, page.parent)}{anchor})"
        if target.is_dir():
            return label
        if target.exists():
            return f"{image}[{label}]({os.path.relpath(place(target, pages), page.parent)}{anchor})"
        if not (page.parent / path).exists() and not path.endswith(".md"):  # of pages, the strict build says it
            raise FileNotFoundError(f"{source.relative_to(ROOT)} links to {path}, which does not exist")
        return match[0]

    fenced = re.split(r"(^```.*?^```$)", source.read_text(), flags=re.DOTALL | re.MULTILINE)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(replaced, part) for part in fenced)


def made_of(target: Path) -> str | None:
    """The page that is made of a file or a folder of the repository, if one is."""
    inside = target.relative_to(ROOT)
    if inside.parent == Path("algos") and inside.stem in algorithms():
        return f"algorithms/{inside.stem}.md"
    return MADE_OF.get(inside.as_posix())


def place(target: Path, pages: Path) -> Path:
    """Where the site has a file of the repository. What is no page is copied there."""
    inside = target.relative_to(ROOT).as_posix()
    if inside in COPIED:
        return pages / COPIED[inside]
    if not target.is_relative_to(DOCS):
        copy = pages / FILES / inside
    elif target.suffix == ".md":
        return pages / target.relative_to(DOCS)
    else:
        copy = pages / target.relative_to(DOCS)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(target, copy)
    return copy


def algorithm_pages(folder: Path, rows: Sequence[Row], panels: dict[str, list[Panel]]) -> None:
    """Writes the table of all algorithms and a page for each, with a copy of its file.

    Args:
        folder: for the pages.
        rows: runs of suites.
        panels: of other runs, by algorithm.
    """
    links = re.sub(r"\(algos/(\w+)\.py\)", r"(\1.md)", "\n".join(table()))
    write(folder / "index.md", f"# Algorithms\n\nOne file each, and a page made of it.\n\n{links}")
    for algorithm in by_family():
        own = [row for row in rows if row.runs[0].algo == algorithm.name]
        lines = algorithm_page(algorithm, own, panels.get(algorithm.name, []), folder)
        write(folder / f"{algorithm.name}.md", "\n".join(lines))
        shutil.copyfile(algorithm.path, folder / f"{algorithm.name}.py")


def settings_page() -> str:
    """Every key of `zoo run` that is not an algorithm's own."""
    usual = {"algo": "required", "env": "required", "sampler": "uniform", "corruption": "none"}
    lines = ["# Settings of a run", "", "`zoo run --help` prints them. An algorithm's own are on its page.", ""]
    lines += settings_table(settings(ROOT / "zoo" / "settings" / "config.py", "RunConfig"), usual)
    for group, path in (
        ("env", folder("envs") / "config.py"),
        ("sampler", ROOT / "zoo" / "data" / "samplers.py"),
        ("corruption", ROOT / "zoo" / "data" / "corruption.py"),
    ):
        lines += [f"## `{group}.<setting>`", "", *settings_table(settings(path, f"{group.title()}Config"))]
    return "\n".join(lines)


def suites_page() -> str:
    """Every suite with what it is of, and its file."""
    lines = ["# Suites", "", "`zoo bench SUITE` runs one; [Suites and reports](suites-and-reports.md) says how.", ""]
    for path in sorted((folder("configs") / "suite").glob("*.yaml")):
        text = path.read_text()
        comment = re.match(r"(?:#.*\n)+", text)
        assert comment is not None
        about = " ".join(line.removeprefix("# ") for line in comment[0].splitlines())
        rest = text[comment.end() :].rstrip()
        lines += [f"## {path.stem}", "", prose(about) + ".", "", "```yaml", rest, "```", ""]
    return "\n".join(lines)


def site_config() -> str:
    """`docs/zensical.toml` with the algorithms, by family, and the pages that it does not list, in its navigation."""
    text = (DOCS / "zensical.toml").read_text()
    families: dict[str, list[str]] = {}
    for algorithm in by_family():
        name = algorithm.title.partition(":")[0]
        families.setdefault(algorithm.family, []).append(f'{{ "{name}" = "algorithms/{algorithm.name}.md" }}')
    shown = ", ".join(f'{{ "{family.capitalize()}" = [{", ".join(names)}] }}' for family, names in families.items())
    others = "".join(f'"{name}", ' for name in written() if f'"{name}"' not in text)
    return text.replace('"ALGORITHMS"', shown).replace('"OTHERS", ', others)


if __name__ == "__main__":
    main()
