"""The argument parser that the commands share."""

import argparse
from typing import NoReturn

from zoo.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Reports errors in the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See: {self.prog} --help")
