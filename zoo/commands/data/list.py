"""`zoo data list`: lists the available datasets."""

import json

from zoo.commands.data.names import print_table
from zoo.commands.parser import Parser
from zoo.data.catalog import UNREADABLE, at_hand, store


def main(arguments: list[str]) -> int:
    Parser(prog="zoo data list", description="The datasets at hand.").parse_args(arguments)
    rows = []
    for source in at_hand():
        size = sum(path.stat().st_size for path in source.path.rglob("*") if path.is_file())
        try:
            metadata = json.loads((source.path / "metadata.json").read_text())
            counts = [f"{int(metadata[key]):,}" for key in ("total_steps", "total_episodes")]
        except UNREADABLE:
            counts = ["unreadable", ""]
        rows.append([source.name, *counts, f"{size / 1e6:.1f} MB", str(source.path.parent)])
    if rows:
        print_table(["dataset", "transitions", "episodes", "size", "where"], rows)
    else:
        print(f"none yet, in the package or in {store()}. zoo data --help says how to make or import one.")
    for partial in sorted(store().rglob(".partial-*")):
        print(f"unfinished, unless a command is writing it: {partial}")
    return 0
