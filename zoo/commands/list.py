"""`zoo list`: the algorithms, environments and datasets that there are."""

import argparse


def main(arguments: list[str]) -> int:
    argparse.ArgumentParser(prog="zoo list", description="Algorithms, environments and datasets.").parse_args(arguments)
    from zoo.data.catalog import available
    from zoo.settings.registry import algorithms, describe_environments, describe_families

    print("algorithms (algo=)")
    for name, algorithm in algorithms().items():
        print(f"  {name:<18} {algorithm.setting:<17} {'/'.join(algorithm.action_spaces):<19} {algorithm.title}")
    print("\nenvironments (env=), and any other Gymnasium id")
    for name, gymnasium_id, comment in describe_environments():
        print(f"  {name:<18} {gymnasium_id:<20} {comment}")
    for ids, title in describe_families():
        print(f"  {ids:<39} {title}")
    print("\ndatasets (dataset=), for offline algorithms; zoo data --help says how to make or import more")
    for name in available():
        print(f"  {name}")
    return 0
