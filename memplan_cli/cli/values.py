"""Values of options and arguments: click types for files and numbers, and parsers of ``NAME=VALUE``.

The parsers check the form only. Whether a model has the name, and whether the value is allowed, is
checked where the settings are used.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memplan_cli.cli.output import Output
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Value = TypeVar("Value")

_STANDARD_STREAM = "-"
"""A file argument that stands for standard input or output; ``./-`` is a file of that name."""

_MAX_DIM = 2**63 - 1
"""The largest dim of an ONNX model."""

_MAX_MODEL_BYTES = 2**31
"""The largest protobuf. A stream may never end, so that no more is read."""


class Finite(click.FloatRange):
    """A range of finite numbers: neither infinity nor NaN."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number, or fail with a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class SourceFile(click.Path):
    """A model or a plan to read; ``-`` reads standard input.

    Standard input is written into a temporary folder, as ``stdin.onnx`` or ``stdin.json``, and
    deleted when the command ends. The folder becomes `Output.stdin_folder`.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path of the file, or of the copy of standard input."""
        from memplan_cli.api.models.file_names import TEMPORARY_PREFIX

        if str(value) != _STANDARD_STREAM or ctx is None:
            return super().convert(value, param, ctx)
        if ctx.resilient_parsing:  # a shell completes the command line: nothing is read
            return Path(_STANDARD_STREAM)
        root = ctx.find_root()
        output = root.ensure_object(Output)
        if output.stdin_folder:
            self.fail(
                "standard input can be read only once, and - is given twice.", param, ctx
            )
        data = _read_standard_input()
        folder = root.with_resource(tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX))
        output.stdin_folder = f"{folder}/"
        # A plan is a JSON object; a serialized model does not begin with a brace.
        path = Path(folder) / ("stdin.json" if data[:1] == b"{" else "stdin.onnx")
        path.write_bytes(data)
        return path


def _read_standard_input() -> bytes:
    """Return all of standard input.

    Raises:
        ModelError: it is closed, cannot be read, or is larger than a model can be.
    """
    if sys.stdin is None:
        raise ModelError("no model can be read: standard input is closed")
    try:
        data = sys.stdin.buffer.read(_MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise ModelError(f"standard input cannot be read: {error.strerror}") from error
    if len(data) > _MAX_MODEL_BYTES:
        raise ModelError("standard input is larger than 2 GiB, the limit of an ONNX file")
    return data


class TargetFile(click.Path):
    """A file to write, in addition to the result on standard output: ``-`` is an error."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, or fail with a usage error."""
        text = str(value)
        if not text:
            self.fail("the name of the file is empty.", param, ctx)
        if text == _STANDARD_STREAM:
            self.fail(
                "this output needs a file; '-' is not one. ./- names a file called '-'.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class ResultFile(TargetFile):
    """The file that the result of a command goes to: ``-`` is standard output."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, or None for standard output."""
        return None if str(value) == _STANDARD_STREAM else super().convert(value, param, ctx)


def require_output_file(model: Path, out: Path | None) -> None:
    """Refuse to write the default output of a model from standard input, which has no folder.

    Raises:
        SettingsError: the model came from standard input, and ``out`` is None.
    """
    from memplan_cli.api.models.file_names import is_lasting

    if out is None and not is_lasting(model):
        raise SettingsError(
            "a model from standard input needs a name for the output file",
            hint="name the file with -o",
        )


def parse_whole_number(text: str) -> int | None:
    """Return the whole number that a text consists of, or None for any other text.

    Raises:
        SettingsError: the number is larger than a dim can be.
    """
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return None
    # The length first: int() refuses more than 4,300 digits.
    if len(digits) > len(str(_MAX_DIM)) or int(digits) > _MAX_DIM:
        raise SettingsError(f"{text[:20]}... is too large for a dimension")
    return int(text)


def parse_dims(texts: Iterable[str]) -> dict[str, int]:
    """Return the number of each name in ``NAME=N`` texts of ``--dim``. Errors are those of `_table`."""
    return _table(texts, "--dim takes NAME=N, where N is 0 or more", _dim)


def parse_dim_lists(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the different numbers of each name in ``NAME=N,N,..`` texts of ``--dim``. Errors are those of `_table`."""

    def dims(text: str) -> tuple[int, ...] | None:
        """Return the numbers of a list; None if one is no dim, for which `_table` raises."""
        numbers = [_dim(part.strip()) for part in text.split(",")]
        known = tuple(dict.fromkeys(number for number in numbers if number is not None))
        return None if None in numbers else known

    return _table(texts, "--dim takes NAME=N or NAME=N,N,.. here", dims)


def parse_bounds(texts: Iterable[str]) -> dict[str, str]:
    """Return the text of the range of each name in ``NAME=A..B[:STEP]`` texts of ``--bounds``, still unread."""
    return _table(texts, "--bounds takes NAME=A..B or NAME=A..B:STEP", str)


def parse_donations(texts: Iterable[str]) -> dict[str, str]:
    """Return the output of each input in ``INPUT=OUTPUT`` texts of ``--donate``. Errors are those of `_table`."""
    return _table(
        texts, "--donate takes INPUT=OUTPUT", lambda text: text or None, str.partition
    )


def parse_shapes(texts: Iterable[str]) -> dict[str, list[int | str]]:
    """Return the shape of each name in ``NAME=D,D,..`` texts of ``--shape``.

    A dim is a number, or else a symbol. Without any dim (``NAME=``) the shape is that of a scalar.

    Raises:
        SettingsError: a text has another form, such as an empty dim, or a name is given twice.
    """

    def dim(text: str) -> int | str:
        number = parse_whole_number(text)
        return text if number is None else number

    def shape(text: str) -> list[int | str] | None:
        if not text.strip():
            return []
        parts = [part.strip() for part in text.split(",")]
        return [dim(part) for part in parts] if all(parts) else None

    return _table(texts, "--shape takes NAME=D,D,..", shape)


def parse_values(texts: Iterable[str]) -> dict[str, object]:
    """Return the value of each name in ``NAME=VALUE`` texts of ``--input``: as in JSON, text, or a list with commas."""

    def value(text: str) -> object:
        return _parse_value(text) if text else None

    return _table(texts, "--input takes NAME=VALUE", value, str.partition)


def _table(
    texts: Iterable[str],
    form: str,
    parse: Callable[[str], Value | None],
    split: Callable[[str, str], tuple[str, str, str]] = str.rpartition,
) -> dict[str, Value]:
    """Read the ``NAME=VALUE`` texts of an option as a table.

    Args:
        texts: the texts.
        form: the option and what it takes, for errors.
        parse: returns the value of a text, or None if it has another form.
        split: splits a text at its last ``=``, since names may contain the sign, or at its first one.

    Raises:
        SettingsError: a text has another form, or a name is given twice.
    """
    option = form.split(maxsplit=1)[0]
    table: dict[str, Value] = {}
    for text in texts:
        name, sign, value_text = split(text, "=")
        value = parse(value_text) if sign and name else None
        if value is None:
            raise SettingsError(f"{form}, not {text[:100]!r}")
        if name in table:
            raise SettingsError(f"{option} gives {name!r} twice")
        table[name] = value
    return table


def _dim(text: str) -> int | None:
    """Return the number of a dim, or None if the text is no whole number from 0."""
    number = parse_whole_number(text)
    return None if number is None or number < 0 else number


def _parse_value(text: str) -> object:
    """Return the value of a text.

    It is the JSON value of ``1.5``, ``true`` or ``[1,2]``; ``1,2`` and ``[1],[2]`` are lists without
    brackets. A text that is no JSON is a string, or a list of strings if it contains commas.
    """
    in_brackets = f"[{text}]"
    if text.startswith("["):
        json_texts = [text, in_brackets]
    else:
        json_texts = [in_brackets if "," in text else text]
    for json_text in json_texts:
        with suppress(ValueError, RecursionError):
            return json.loads(json_text)
    parts = [part.strip() for part in text.split(",")]
    return parts if len(parts) > 1 else text
