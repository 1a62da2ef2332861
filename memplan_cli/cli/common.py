"""What every command has: output switches, the settings options, progress, parsing."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])
Value = TypeVar("Value")

_LARGEST = 2**63 - 1
"""What a dim of a model can be."""

_QUICK = 1.0
"""Seconds below which progress would only flicker."""


@dataclass(slots=True)
class Output:
    """How to speak to the user: how much, in colour or not, with tracebacks or without."""

    quiet: bool = False
    color: bool = True
    debug: bool = False
    started: float = field(default_factory=time.monotonic)

    def progress(self, text: str) -> None:
        """Say on stderr what is being done, once the work takes longer than a moment."""
        if time.monotonic() - self.started > _QUICK:
            self.note(f"memplan: {text} ...")

    def note(self, text: str) -> None:
        """Say something on stderr that is no result; that it cannot be said stops nothing."""
        if not self.quiet:
            with suppress(OSError):
                click.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Make control characters visible: a name from a file must not steer the terminal."""
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def _wants_color() -> bool:
    """Whether colours reach a terminal that knows them (no-color.org: empty is not set)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()


def output_options(command: Command) -> Command:
    """Add ``--quiet``, ``--no-color`` and ``--debug``, and pass an `Output` as ``output``."""

    @wraps(command)
    def run(*args: object, quiet: bool, no_color: bool, debug: bool, **options: object) -> Any:  # noqa: ANN401 - as the command
        color = not no_color and _wants_color()
        output = Output(quiet, color, debug)
        root = click.get_current_context().find_root().ensure_object(Output)
        root.quiet, root.color, root.debug = quiet, color, debug
        return command(*args, output=output, **options)

    for option in (
        click.option("--debug", is_flag=True, help="Show a traceback when something fails."),
        click.option("--no-color", is_flag=True, help="Plain text (also: NO_COLOR)."),
        click.option("--quiet", "-q", is_flag=True, help="Results only, no progress."),
    ):
        run = option(run)
    return run  # type: ignore[return-value]


_SETTINGS = (
    click.option(
        "--config", type=click.Path(path_type=Path), help="Settings: YAML or prototxt."
    ),
    click.option(
        "--level", type=int, help="0 same shape, 1 same dtype, 2 one arena (default)."
    ),
    click.option(
        "--exclude", multiple=True, metavar="GLOB", help="Leave these tensors alone."
    ),
    click.option(
        "--expose", is_flag=True, default=None, help="Excluded tensors become outputs."
    ),
    click.option(
        "--phase", type=click.Choice(["auto", "train", "test"]), help="Overrule the phase."
    ),
    click.option(
        "--skip-grads/--no-skip-grads", default=None, help="Gradients keep own memory."
    ),
    click.option("--loss", metavar="NAME", help="The value that training minimises."),
    click.option(
        "--dim", "dims", multiple=True, metavar="NAME=N", help="Bind a symbolic dim."
    ),
    click.option(
        "--bounds", multiple=True, metavar="NAME=A..B", help="Plan for all values between."
    ),
    click.option("--shape", "shapes", multiple=True, metavar="NAME=D,D", help="Give a shape."),
    click.option(
        "--profile-shapes", is_flag=True, default=None, help="Run once, see what data decides."
    ),
    click.option(
        "--order", type=click.Choice(["keep", "auto"]), help="Reorder the nodes or not."
    ),
    click.option(
        "--recompute",
        type=click.Choice(["none", "checkpoints", "auto"]),
        help="Run ops again instead of keeping what they gave.",
    ),
    click.option(
        "--checkpoint", "checkpoints", multiple=True, metavar="NAME", help="Tensor to keep."
    ),
    click.option("--budget", metavar="SIZE|N%", help="What --recompute auto has to fit in."),
    click.option(
        "--donate", multiple=True, metavar="INPUT=OUTPUT", help="Output may take its memory."
    ),
    click.option(
        "--alignment", type=int, metavar="N", help="Bytes that offsets are multiples of."
    ),
    click.option("--time-limit", type=float, metavar="S", help="Cut the searches short."),
    click.option("--allow-partial", is_flag=True, default=None, help="Totals despite gaps."),
)


def settings_options(command: Command) -> Command:
    """Add the options that make `Settings`; the command gets them as ``overrides``."""

    @wraps(command)
    def run(*args: object, **options: Any) -> Any:  # noqa: ANN401 - as the command
        names = ("level", "exclude", "expose", "phase", "skip_grads", "loss", "order",
                 "recompute", "checkpoints", "budget", "alignment", "time_limit", "profile_shapes", "allow_partial")  # fmt: skip
        overrides: dict[str, object] = {name: options.pop(name) for name in names}
        overrides["dims"] = parse_dims(options.pop("dims")) or None
        overrides["bounds"] = parse_bounds(options.pop("bounds")) or None
        overrides["shapes"] = parse_shapes(options.pop("shapes")) or None
        overrides["donate"] = parse_pairs(options.pop("donate")) or None
        overrides["checkpoints"] = overrides["checkpoints"] or None
        config = options.pop("config")
        return command(*args, settings=Chosen(config, overrides), **options)

    for option in reversed(_SETTINGS):
        run = option(run)
    return run  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line says about settings; files come in once a model is known."""

    config: Path | None
    overrides: Mapping[str, object]

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given, by name."""
        words = {"config": self.config, **self.overrides}
        return tuple(
            _option(name, value) for name, value in words.items() if value not in (None, ())
        )

    def load(self, model: Path) -> Settings:
        """Return the settings for a model, from files and options together."""
        from memplan_cli.settings_file import load_settings

        return load_settings(model, self.config, self.overrides)


_SINGULAR = {"dims": "dim", "shapes": "shape", "checkpoints": "checkpoint"}
"""Settings that an option gives one by one."""


def _option(name: str, value: object) -> str:
    """Return the option that gives a setting a value, as the user wrote it."""
    word = _SINGULAR.get(name, name).replace("_", "-")
    return f"no-{word}" if value is False else word


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Read ``NAME=N`` words.

    Raises:
        SettingsError: one has no ``=``, or no number from 0 on behind it, or is there twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        value = whole(number) if sign and name else None
        if value is None or value < 0:
            raise SettingsError(f"--dim takes NAME=N with N from 0 on, not {text!r}")
        _put(found, name, value, "--dim")
    return found


def whole(text: str) -> int | None:
    """Return a whole number, None of any other text.

    Raises:
        SettingsError: no dim of a model can be so large.
    """
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return None
    # By its digits first: Python reads no more than 4,300 of them.
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        raise SettingsError(f"{text[:20]}... is more than any machine has")
    return int(text)


def parse_bounds(texts: tuple[str, ...]) -> dict[str, str]:
    """Split ``NAME=A..B`` words; the settings judge what stands behind the sign.

    Raises:
        SettingsError: one has no ``=``, or is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, interval = text.rpartition("=")
        if not sign or not name:
            raise SettingsError(f"--bounds takes NAME=A..B and not {text!r}")
        _put(found, name, interval, "--bounds")
    return found


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``INPUT=OUTPUT`` words.

    Raises:
        SettingsError: one side is missing, or an input is given away twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        given, sign, made = text.partition("=")
        if not (given and sign and made):
            raise SettingsError(f"--donate takes INPUT=OUTPUT, not {text!r}")
        _put(found, given, made, "--donate")
    return found


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Read ``NAME=D,D,..`` words; a dim may be a symbol.

    Raises:
        SettingsError: one has no ``=`` or an empty dim, or is there twice.
    """
    found: dict[str, list[int | str]] = {}
    for text in texts:
        name, sign, dims = text.rpartition("=")
        parts = [part.strip() for part in dims.split(",")] if dims.strip() else []
        if not sign or not name or not all(parts):
            raise SettingsError(f"--shape takes NAME=D,D,.. and not {text!r}")
        numbers = [whole(part) for part in parts]
        shape = [part if n is None else n for part, n in zip(parts, numbers, strict=True)]
        _put(found, name, shape, "--shape")
    return found


def _put(found: dict[str, Value], name: str, value: Value, option: str) -> None:
    """Keep what an option says about a name; of two words, none may be lost silently."""
    if name in found:
        raise SettingsError(f"{option} gives {name!r} twice")
    found[name] = value


model_argument = click.argument("model", type=click.Path(path_type=Path))
"""No ``exists``: the library says what is wrong with a path, in one voice."""

provider_option = click.option(
    "--provider",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where to run; cuda never falls back.",
)


class Finite(click.FloatRange):
    """A range of numbers that compare: neither infinite nor none at all."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number, or fail as click does."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


timeout_option = click.option(
    "--timeout",
    type=Finite(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds a process.",
)


def say(text: str) -> None:
    """Print a result; the text is what a renderer made.

    Raises:
        ModelError: stdout takes no more; a reader that is gone is another matter.
    """
    if sys.stdout is None:
        raise ModelError("the result cannot be written: standard output is closed")
    try:
        click.echo(text, nl=not text.endswith("\n"))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ModelError(f"the result cannot be written: {error.strerror}") from error
