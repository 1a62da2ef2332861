"""Options for the files that results go into.

``-`` is standard output where the result is text, and no file anywhere: nobody who types it
wants a file of that name (``./-`` is one).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan_cli.cli.common import say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output

_STDOUT = "-"


class TargetFile(click.Path):
    """A file to write beside what goes to standard output, so ``-`` is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, or fail as click does."""
        text = str(value)
        if not text:
            self.fail("a file needs a name.", param, ctx)
        if text == _STDOUT:
            self.fail(
                "this goes into a file, and '-' is none (./- is a file of that name).",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class ResultFile(TargetFile):
    """Where the result itself goes: ``-`` is standard output, which None means too."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, None for standard output, or fail as click does."""
        return None if str(value) == _STDOUT else super().convert(value, param, ctx)


result_option = click.option(
    "-o", "--output", "out", type=ResultFile(), help="Output file; - is standard output."
)


def deliver(text: str, out: Path | None, output: Output) -> None:
    """Print a result, or write it into the file that was asked for and name that.

    Raises:
        ModelError: it cannot be written.
    """
    if out is None:
        say(text)
        return
    from memplan_cli.core.files import write_files

    write_files({out: output.named(text).encode()})
    output.note(f"memplan: wrote {out}")
