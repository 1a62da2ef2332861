"""``-`` where a command takes a model or a plan: it is read from standard input, once.

What was read lies in a temporary file until the command ends, and is called ``stdin.onnx``
in all that the command says and writes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from memplan_cli.api.models.file_names import TEMPORARY_PREFIX, is_lasting
from memplan_cli.cli.common import Output
from memplan_cli.errors import ModelError, SettingsError

_STDIN = "-"

_LARGEST = 2**31
"""Bytes; no protobuf is larger, and a stream may never end."""


class SourceFile(click.Path):
    """A model or a plan to read; ``-`` is standard input, and ``./-`` a file of that name."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path of a file, or of what standard input gives."""
        if str(value) != _STDIN or ctx is None:
            return super().convert(value, param, ctx)
        if ctx.resilient_parsing:
            return Path(_STDIN)
        root = ctx.find_root()
        output = root.ensure_object(Output)
        if output.unnamed:
            self.fail("standard input is read once, and - is there twice.", param, ctx)
        folder = root.with_resource(tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX))
        output.unnamed = f"{folder}/"
        return _kept(_read(), Path(folder))


def _read() -> bytes:
    """Return all of standard input.

    Raises:
        ModelError: it is closed, cannot be read, or is larger than a model can be.
    """
    if sys.stdin is None:
        raise ModelError("no model can be read: standard input is closed")
    try:
        data = sys.stdin.buffer.read(_LARGEST + 1)
    except OSError as error:
        raise ModelError(f"standard input cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST:
        raise ModelError("standard input is larger than 2 GiB, which no protobuf is")
    return data


def _kept(data: bytes, folder: Path) -> Path:
    # A plan is an object of JSON; no model begins with a brace.
    path = folder / ("stdin.json" if data[:1] == b"{" else "stdin.onnx")
    path.write_bytes(data)
    return path


def refuse_nameless(model: Path, out: Path | None) -> None:
    """Refuse to write beside a model that is in no folder of the user's.

    Raises:
        SettingsError: it came from standard input, and no file to write is named.
    """
    if out is None and not is_lasting(model):
        raise SettingsError(
            "a model from standard input has no folder to write beside",
            hint="name the file with -o",
        )


model_argument = click.argument("model", type=SourceFile())
"""No ``exists``: the library says what is wrong with a path, in one voice."""
