"""``optimum-cli memplan``: every command of memplan under the command line of optimum.

``optimum-cli memplan optimize model.onnx`` is ``memplan optimize model.onnx``: the same options,
messages and exit codes. The distribution memplan-optimum makes it known to optimum.
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
    """What comes after ``optimum-cli memplan`` is read by memplan itself."""

    COMMAND = CommandInfo(name="memplan", help=_HELP)

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        """Take all words that follow, options included."""
        parser.description = (
            f"{_HELP} All commands of memplan: `optimum-cli memplan optimize --help`."
        )
        parser.add_argument(
            "words",
            nargs=REMAINDER,
            metavar="COMMAND ...",
            help="A command of memplan and its arguments, as in `optimize model.onnx`.",
        )

    def run(self) -> None:
        """Run memplan's own command line, and end as it ends."""
        from memplan_cli.__main__ import main

        words = list(self.args.words) or ["--help"]
        sys.argv = ["optimum-cli memplan", *words]
        sys.stdout.flush()
        main()
