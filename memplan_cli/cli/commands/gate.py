"""``memplan gate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.outputs import refuse_targets, result_option
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.cli.common import Output
    from memplan_cli.reporting.findings.gate import Verdict
    from memplan_cli.workflows.gate import Request

FORMATS = ("text", "json", "markdown", "github", "junit", "sarif")


@click.command()
@click.argument(
    "models", metavar="MODEL|PLAN...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="Earlier numbers; default: memplan.baseline.json of this folder, if it is there.",
)
@click.option("--max-memory", metavar="SIZE", help="Fail above this: 512MiB, 1.5 GB.")
@click.option("--max-increase", metavar="2%|SIZE", help="Allow this much above the baseline.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="What to check; default: planned.",
)
@click.option("--ratchet", is_flag=True, default=None, help="A gain must be recorded.")
@click.option("--update-baseline", is_flag=True, help="Record these numbers.")
@settings_options
@format_option(*FORMATS)
@result_option
@click.option(
    "--write", "more", multiple=True, metavar="FORMAT=FILE", help="Write another format too."
)
@output_options
def gate(  # noqa: PLR0913 - one parameter an option, as click wants it
    models: tuple[Path, ...],
    *,
    baseline: Path | None,
    max_memory: str | None,
    max_increase: str | None,
    metrics: tuple[str, ...],
    ratchet: bool | None,
    update_baseline: bool,
    settings: Chosen,
    form: str,
    out: Path | None,
    more: tuple[str, ...],
    output: Output,
) -> None:
    """Fail when a model needs more memory than a budget or a baseline allows.

    MODEL may be a glob. With --ratchet, --update-baseline records gains only.

    \b
    memplan gate model.onnx --max-memory 512MiB
    memplan gate 'models/*.onnx' --update-baseline
    memplan gate 'models/*.onnx' --max-increase 2% --format github
    """
    from memplan_cli.reporting.commands.gate import RENDERERS
    from memplan_cli.workflows import gate as gating

    given: dict[str, object] = {
        "max_memory": max_memory,
        "max_increase": max_increase,
        "metric": list(metrics) or None,
        "ratchet": ratchet,
    }
    # A settings file may hold the gate's own rules, so that one is never idle.
    gating.refuse_idle(models, tuple(name for name in settings.given if name != "config"))
    request = gating.Request(
        rules=gating.read_rules(given),
        baseline=baseline,
        update=update_baseline,
        config=settings.config,
        overrides=settings.overrides,
    )
    besides = _parse_files(more)
    _refuse_targets(models, out, besides, request)
    files = {out: form} if out is not None else {}
    files.update({each.path: each.form for each in besides})
    verdicts = gating.gate(models, request, output.progress, output.note)
    _write(verdicts, files, output)
    if out is None:
        say(RENDERERS[form](verdicts))
    raise SystemExit(0 if all(verdict.passed for verdict in verdicts) else 1)


def _write(verdicts: tuple[Verdict, ...], files: Mapping[Path, str], output: Output) -> None:
    """Write each file in its format, all or none."""
    if not files:
        return
    from memplan_cli.core.files import write_files
    from memplan_cli.reporting.commands.gate import RENDERERS

    write_files({path: RENDERERS[form](verdicts).encode() for path, form in files.items()})
    for path in files:
        output.note(f"memplan: wrote {path}")


@dataclass(frozen=True, slots=True)
class _More:
    """One ``--write FORMAT=FILE``: results in another format, in a file besides."""

    form: str
    path: Path

    @property
    def word(self) -> str:
        """What the user wrote."""
        return f"--write {self.form}={self.path}"


def _parse_files(texts: tuple[str, ...]) -> tuple[_More, ...]:
    """Read ``FORMAT=FILE`` words.

    Raises:
        SettingsError: one has no ``=`` or another format.
    """
    found = []
    for text in texts:
        form, sign, path = text.partition("=")
        if form not in FORMATS or not sign or not path:
            raise SettingsError(
                f"--write takes FORMAT=FILE and not {text!r}",
                hint=f"the formats are {', '.join(FORMATS)}",
            )
        if path == "-":
            raise SettingsError(
                "--write takes FORMAT=FILE, and '-' is no file",
                hint=f"--format {form} gives it on standard output",
            )
        found.append(_More(form, Path(path)))
    return tuple(found)


def _refuse_targets(
    models: tuple[Path, ...], out: Path | None, more: tuple[_More, ...], request: Request
) -> None:
    """Refuse to write over what is gated, and two results into one file.

    Baselines are read, or written themselves: no result may go where one is.
    """
    from memplan_cli.workflows import gate as gating

    targets = {"-o": out, **{each.word: each.path for each in more}}
    refuse_targets(targets, (*gating.expanded(models), *gating.baselines(models, request)))
