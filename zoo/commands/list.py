"""`zoo list`: lists the available algorithms, environments and datasets."""

import itertools
import re
from collections.abc import Iterator

from zoo.commands.parser import Parser


def main(arguments: list[str]) -> int:
    parser = Parser(prog="zoo list", description="Algorithms, environments and datasets.")
    parser.add_argument("--markdown", action="store_true", help="the algorithms alone, as the table of the README")
    if parser.parse_args(arguments).markdown:
        print("\n".join(table()))
        return 0
    from zoo.data.catalog import available
    from zoo.settings.registry import by_family, describe_environments, describe_families

    print("algorithms (algo=)")
    for family, members in itertools.groupby(by_family(), key=lambda algorithm: algorithm.family):
        print(f"  {family}")
        for one in members:
            print(f"    {one.name:<16} {one.setting:<17} {'/'.join(one.action_spaces):<19} {one.title}")
    print("\nenvironments (env=), and any other Gymnasium id")
    for name, gymnasium_id, comment in describe_environments():
        print(f"  {name:<18} {gymnasium_id:<20} {comment}")
    for ids, title in describe_families():
        print(f"  {ids:<39} {title}")
    print("\ndatasets (dataset=), for offline algorithms; zoo data --help says how to make or import more")
    for name in available():
        print(f"  {name}")
    return 0


def table() -> Iterator[str]:
    """The lines of a Markdown table of all algorithms, from the first lines of their docstrings."""
    from zoo.settings.registry import by_family

    yield "| family | file | what | paper | actions |"
    yield "|---|---|---|---|---|"
    for one in by_family():
        what, paper = what_and_paper(one.title)
        paper = re.sub(r"arXiv (\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", paper)
        actions = ", ".join(one.action_spaces)
        yield f"| {one.family} | [`{one.name}`](algos/{one.name}.py) | {what} | {paper} | {actions} |"


def what_and_paper(title: str) -> tuple[str, str]:
    """`IQL: Implicit Q-Learning (Kostrikov et al. 2021).` -> what it is, and the paper that it is from."""
    before, paper, after = re.split(r" \(([^()]*\d{4}[^()]*)\)", title)
    return (before + after).rstrip("."), paper
