"""``optimum-cli memplan``: every command of memplan under the command line of optimum.

``optimum-cli memplan optimize model.onnx`` is ``memplan optimize model.onnx``, with the same options,
messages and exit codes. The distribution memplan-optimum registers the command with optimum.
"""

from __future__ import annotations

import sys
from argparse import REMAINDER
from typing import TYPE_CHECKING

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo

if TYPE_CHECKING:
    from argparse import ArgumentParser

_HELP = "Know the memory of an ONNX model before it runs, and make it smaller."


class MemplanCommand(BaseOptimumCLICommand):  # type: ignore[misc]  # optimum has no types
    """The command ``optimum-cli memplan``, which passes its arguments to memplan unread."""

    COMMAND = CommandInfo(name="memplan", help=_HELP)

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Add one argument to a parser: all following words, options included.

        ``optimum-cli`` calls this method by its name.
        """
        parser.description = (
            f"{_HELP} For the options of a command: `optimum-cli memplan optimize --help`."
        )
        parser.add_argument(
            "words",
            nargs=REMAINDER,
            metavar="COMMAND ...",
            help="A command of memplan and its arguments, for example `optimize model.onnx`.",
        )

    def run(self) -> None:
        """Run memplan's command line, which ends the process with its exit code."""
        from memplan_cli.__main__ import main

        words = list(self.args.words) or ["--help"]
        sys.argv = ["optimum-cli memplan", *words]
        main()
