"""The command line. Heavy imports wait until the command is known: `--help` and `list` answer at once."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo import NO_WINDOWS
from zoo.errors import UsageError, guarded, nearest

USAGE = """\
zoo: deep-RL and offline-RL algorithms, one file each

  zoo run algo=iql env=hopper         train, evaluate, log, checkpoint; zoo run --help shows every key
  zoo run -m algo=iql env=hopper seed=0,1,2
                                      several runs, one after the other
  zoo run algo=ppo env=hopper seeds=0-7
                                      several seeds side by side, their updates one program
  zoo run -m sweeper=optuna algo=iql env=hopper 'algo.tau=interval(0.001,0.1)'
                                      a search for settings
  zoo run resume=DIR                  continue a run that was interrupted; with steps=N one that has finished
  zoo eval DIR                        play episodes with a trained policy
  zoo play DIR                        show how it plays, in a window or as a video
  zoo export DIR --format onnx        its policy for elsewhere: ONNX, TorchScript, Stable-Baselines3
  zoo copy iql my_iql.py              an algorithm as one file that stands alone
  zoo bench SUITE                     the runs of a benchmark, as many at a time as there are cores
  zoo report DIR                      tables, curves and a page of the runs in a folder, beside the published figures
  zoo list                            algorithms, environments, datasets, and what works with what
  zoo data list|show|make|import|export|verify
                                      offline datasets
  zoo doctor                          what is installed, what the machine offers, what is missing

  zoo COMMAND --help says more about each. ZOO_IMPORT=MODULE imports a module of yours first."""


COMMANDS = {  # and the modules that hold each one's `main`
    "run": "zoo.commands.run",
    "copy": "zoo.commands.copy",
    "eval": "zoo.commands.eval",
    "play": "zoo.commands.play",
    "export": "zoo.commands.export",
    "list": "zoo.commands.list",
    "data": "zoo.commands.data",
    "bench": "zoo.benchmarks.bench",
    "report": "zoo.benchmarks.report",
    "doctor": "zoo.commands.doctor",
}


def main(argv: Sequence[str] | None = None) -> int:
    if sys.platform == "win32":
        print(f"zoo: {NO_WINDOWS}", file=sys.stderr)
        return 2
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from zoo import __version__

        print(__version__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(f"zoo: {name} is not a command. {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    return guarded(command, COMMANDS[name], rest)


def command(module: str, *arguments: Any) -> int:
    """Calls the `main` of a module, after importing those modules that ZOO_IMPORT names."""
    import_modules()
    return int(importlib.import_module(module).main(*arguments))


def import_modules() -> None:
    """Imports the modules that the environment variable ZOO_IMPORT names, such as `mine,yours.envs`.

    They may register environments, and may be files in the working directory.

    Raises:
        UsageError: one cannot be imported.
    """
    for module in filter(None, map(str.strip, os.environ.get("ZOO_IMPORT", "").split(","))):
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)  # here, and in the processes of a suite
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), here]))
        try:
            importlib.import_module(module)
        except (ImportError, TypeError) as error:
            raise UsageError(f"ZOO_IMPORT={module}: {error}.") from error


def run_file(path: str) -> None:
    """Runs when an algorithm file is executed itself: `zoo run` with this file as the algorithm."""
    if sys.platform == "win32":
        sys.exit(f"zoo: {NO_WINDOWS}")
    sys.exit(guarded(command, COMMANDS["run"], sys.argv[1:], Path(path).resolve()))


if __name__ == "__main__":
    sys.exit(main())
