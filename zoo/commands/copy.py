"""`zoo copy`: an algorithm as one file that stands alone."""

import argparse
import difflib
import hashlib
import re
import shlex
import sys
from pathlib import Path

from zoo.commands.parser import Parser
from zoo.errors import UsageError, optional, quoted

HEADER = re.compile(r"^# Copied by `zoo copy ([^`]*)` from rl-zoo (\S+) \(MIT\), content ([0-9a-f]{12})", re.MULTILINE)


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zoo copy",
        usage="zoo copy ALGORITHM DEST [key=value ...] [--force]\n       zoo copy --update FILE [--force]",
        description="Writes an algorithm as one Python file that needs only torch, numpy and gymnasium, and h5py where "
        "it reads a dataset. It learns what `zoo run` learns with the same seed, to the same numbers but for rounding.",
        epilog="Settings are those of `zoo run`: what they rule out is not in the file. Choices among names, such as "
        "algo.value_head=mse, are fixed in the file, and so are switches that you give; numbers stay its settings "
        " (python FILE --help). The file is for environments like env=: continuous or discrete actions.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("algorithm", nargs="?", help="one of `zoo list`: iql or algo=iql")
    parser.add_argument("dest", nargs="?", help="the file to write, or a folder")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="such as env=hopper preset=paper")
    parser.add_argument("--update", type=Path, metavar="FILE", help="show how a copy differs from what it would be now")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    args = parser.parse_intermixed_args(arguments)  # flags may appear anywhere
    if args.update:
        if args.algorithm:
            raise UsageError(f"--update takes the file alone: zoo copy --update {args.update}")
        return update(args.update, args.force)
    if args.algorithm and args.algorithm.endswith(".py"):
        raise UsageError(
            f"{args.algorithm} is a file. zoo copy takes the zoo's algorithms by name: zoo copy iql my_iql.py"
        )
    if args.dest is None:
        raise UsageError("give an algorithm and a file, such as: zoo copy iql my_iql.py")
    algorithm = args.algorithm.removeprefix("algo=")
    file = Path(args.dest)
    if args.dest.endswith("/") and not file.is_dir():
        raise UsageError(f"{args.dest} is not a folder. Make it first: mkdir -p {quoted(args.dest)}")
    file = file / f"{algorithm}.py" if file.is_dir() else file
    if "=" in file.name:
        raise UsageError(f"{file} is a setting, not a file. The file comes first: zoo copy {algorithm} FILE {file}")
    from zoo.files import check_file
    from zoo.settings.registry import algorithms

    check_file(file, args.force)
    text = standalone(algorithm, args.settings)
    write(file, text)
    print(f"{file}: {len(text.splitlines())} lines; python {quoted(file)} --help shows its settings")
    if algorithms()[algorithm].setting == "offline to online" and "def online_steps" not in text:
        print(f"it learns from data alone. To continue online: zoo copy {algorithm} FILE online_steps=50000")
    return 0


def standalone(name: str, settings: list[str]) -> str:
    """The text of an algorithm's copy.

    Args:
        name: the algorithm's name.
        settings: `key=value`, as for `zoo run`.

    Raises:
        UsageError: there is no such algorithm or setting, or a copy cannot have it.
    """
    optional("ruff", "zoo copy", "copy")  # it formats the copy
    copied = optional("zoo.copying", "zoo copy", "copy").copied
    from zoo import __version__

    text = copied(name, settings)
    command = shlex.join([name, *settings])
    header = f"# Copied by `zoo copy {command}` from rl-zoo {__version__} (MIT), content {digest(text)}"
    docstring_end = text.index('"""', 3) + 3
    return f"{text[:docstring_end]}\n\n{header}{text[docstring_end:]}"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def update(file: Path, force: bool) -> int:
    """Prints what has changed since a copy was made, as a diff against the file; with `force`, writes the new one."""
    try:
        text = file.read_text()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        text = ""
    found = HEADER.search(text)
    try:
        name, *settings = shlex.split(found[1] if found else "")
    except ValueError:
        name = ""
    if found is None or not name:
        raise UsageError(f"{file} is not a copy by `zoo copy`: the comment that says what it is of is not there.")
    command, version, content = found.groups()
    new = standalone(name, settings)
    edited = digest(text[: found.start()].rstrip("\n") + text[found.end() :]) != content
    now = HEADER.search(new)
    assert now is not None
    if now[3] == content:
        print(f"{file}: nothing has changed since version {version}" + (" but by your own edits" if edited else ""))
        return 0
    print(
        f"{file}: changed since version {version}" + ("; your own changes are among the lines below" if edited else "")
    )
    names = (str(file), f"zoo copy {command}")
    sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), new.splitlines(True), *names))
    if force:
        write(file, new)
        print(f"{file} is written anew")
    return 0


def write(file: Path, text: str) -> None:
    """Writes a file completely or not at all."""
    from zoo.files import replacing

    with replacing(file) as place:
        place.write(text.encode())
