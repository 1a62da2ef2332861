"""``memplan gate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.outputs import result_option
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.gate import VerdictFile
    from memplan_cli.cli.common import Output

FORMATS = ("text", "json", "markdown", "github", "junit", "sarif")


@click.command()
@click.argument(
    "models", metavar="MODEL|PLAN...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="Baseline file; default: memplan.baseline.json of this folder, if it exists.",
)
@click.option("--max-memory", metavar="SIZE", help="Memory budget: 512MiB, 1.5 GB.")
@click.option("--max-increase", metavar="2%|SIZE", help="Allowed increase over the baseline.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Number of the report to check; repeatable; default: planned.",
)
@click.option(
    "--ratchet",
    is_flag=True,
    default=None,
    help="Fail on an improvement that the baseline does not record.",
)
@click.option(
    "--update-baseline", is_flag=True, help="Write the current numbers into the baseline."
)
@settings_options
@format_option(*FORMATS)
@result_option
@click.option(
    "--write",
    "more",
    multiple=True,
    metavar="FORMAT=FILE",
    help="Write the results in another format too; repeatable.",
)
@output_options
def gate(
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
    from memplan_cli.api.gate import VerdictFile, gate
    from memplan_cli.api.model_or_plan import reject_unused_settings
    from memplan_cli.reporting.commands.gate_report import RENDERERS

    rules: dict[str, object] = {
        "max_memory": max_memory,
        "max_increase": max_increase,
        "metric": list(metrics) or None,
        "ratchet": ratchet,
    }
    # A settings file may hold the gate's own rules, so that one always has an effect.
    reject_unused_settings(models, tuple(name for name in settings.given if name != "config"))
    files = _parse_files(more)
    if out is not None:
        files = (VerdictFile(out, form, "-o"), *files)
    verdicts = gate(
        models,
        rules,
        baseline=baseline,
        mode="update-baseline" if update_baseline else "check",
        files=files,
        **settings.keywords(output),
    )
    for path in dict.fromkeys(file.path for file in files):
        output.note(f"memplan: wrote {path}")
    if out is None:
        say(RENDERERS[form](verdicts))
    raise SystemExit(0 if verdicts.passed else 1)


def _parse_files(texts: tuple[str, ...]) -> tuple[VerdictFile, ...]:
    """Read ``FORMAT=FILE`` words.

    Raises:
        SettingsError: one has no ``=`` or another format.
    """
    from memplan_cli.api.gate import VerdictFile

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
        found.append(VerdictFile(Path(path), form, f"--write {form}={Path(path)}"))
    return tuple(found)
