"""`zoo bench export`: writes the finished runs of a folder to one CSV file."""

from pathlib import Path

from zoo.benchmarks import archive
from zoo.benchmarks.reading import find
from zoo.commands.parser import Parser
from zoo.errors import UsageError


def main(arguments: list[str]) -> int:
    """Runs the command."""
    parser = Parser(
        prog="zoo bench export",
        description="Writes the finished runs of a folder to one CSV file: settings, seeds, steps and figures. "
        "zoo report reads this file like a folder of runs.",
        epilog="Example: zoo bench export bench/smoke results/smoke.csv",
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="folder with runs, at any depth")
    parser.add_argument("file", type=Path, metavar="FILE", help="CSV file to write; an existing file is replaced")
    args = parser.parse_args(arguments)
    if not args.dir.is_dir():
        raise UsageError(f"{args.dir} is not a folder. Give one that holds runs, such as runs or bench/smoke.")
    if args.file.suffix != ".csv":
        csv = args.file.with_suffix(".csv") if args.file.name else args.file / "runs.csv"
        raise UsageError(f"{args.file} does not end in .csv. Try: {csv}")
    results, notes = find(args.dir)
    results = [one for one in results if one.archive is None or one.archive.resolve() != args.file.resolve()]
    if not results:
        raise UsageError(f"{args.dir} holds no finished run. Run some: zoo bench SUITE, or zoo run.")
    count = archive.save(results, args.dir, args.file)
    for note in notes:
        print(note)
    print(f"{count} runs written to {args.file}")
    return 0
