"""`zoo list`: the algorithms, environments and datasets that there are."""

import argparse
import re
from collections.abc import Iterator


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="zoo list", description="Algorithms, environments and datasets.")
    parser.add_argument("--markdown", action="store_true", help="the algorithms alone, as the table of the README")
    if parser.parse_args(arguments).markdown:
        print("\n".join(table()))
        return 0
    from zoo.data.catalog import available
    from zoo.settings.registry import FAMILIES, algorithms, describe_environments, describe_families

    print("algorithms (algo=)")
    for family in FAMILIES:
        print(f"  {family}")
        for name, algorithm in algorithms().items():
            if algorithm.family == family:
                print(
                    f"    {name:<16} {algorithm.setting:<17} {'/'.join(algorithm.action_spaces):<19} {algorithm.title}"
                )
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
    from zoo.settings.registry import FAMILIES, algorithms

    yield "| family | file | what | paper | actions |"
    yield "|---|---|---|---|---|"
    for family in FAMILIES:
        for name, algorithm in algorithms().items():
            if algorithm.family == family:
                before, paper, after = re.split(r" \(([^()]*\d{4}[^()]*)\)", algorithm.title)
                paper = re.sub(r"arXiv (\d{4}\.\d{5})", r"[\1](https://arxiv.org/abs/\1)", paper)
                file = f"[`{name}`](algos/{name}.py)"
                what = (before + after).rstrip(".")
                yield f"| {family} | {file} | {what} | {paper} | {', '.join(algorithm.action_spaces)} |"
