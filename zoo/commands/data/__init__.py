"""`zoo data`: the available offline datasets, their contents, and how to get more."""

import importlib
import signal

from zoo.errors import UsageError, nearest

USAGE = """\
usage: zoo data COMMAND

  zoo data list                       the datasets at hand
  zoo data show hopper/demo           size, returns, lengths; draws their distribution as a PNG
  zoo data make hopper medium         train the zoo's SAC (DQN) and collect data with it: random, medium,
                                      medium-replay, full-replay, expert, medium-expert
                                      pointmaze-stitch without a kind: the detours of its paper
  zoo data import FILE hopper/NAME    take HDF5 or NumPy files into the local Minari store
  zoo data export hopper/demo FILE    write a dataset as an HDF5 file in D4RL's layout
  zoo data verify hopper/demo         is it whole, finite, and of this environment?

  zoo data COMMAND --help says more about each."""

COMMANDS = {
    "list": "list", "show": "show", "make": "make", "import": "import_file", "export": "export_file",
    "verify": "verify",
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Runs one of the commands; returns its exit code.

    Raises:
        UsageError: the user made a mistake.
        RunError: the command failed.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in COMMANDS:
        raise UsageError(f"data {name} is not a command. {nearest(name, COMMANDS)}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: no temporary folder is left
    code: int = importlib.import_module(f"{__name__}.{COMMANDS[name]}").main(rest)
    return code
