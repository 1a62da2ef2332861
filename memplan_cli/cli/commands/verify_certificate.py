"""``memplan verify-certificate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import format_option, output_options
from memplan_cli.cli.output import say

if TYPE_CHECKING:
    from memplan_cli.cli.output import Output


@click.command(cls=GroupedCommand)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("certificate", type=click.Path(path_type=Path))
@format_option("text", "json")
@output_options
def verify_certificate(
    model: Path, plan: Path, certificate: Path, *, form: str, output: Output
) -> None:
    """Check that the bounds of PLAN hold for MODEL, without the searches that found them.

    CERTIFICATE is the file of optimize --certificate, with the proof of the bound of the order. The
    other bounds are computed again from MODEL, which is the original or the written model. Exit
    code 1 if a bound is wrong or has no proof.

    \b
    memplan optimize model.onnx --certificate proofs.json
    memplan verify-certificate model.onnx model.memplan.json proofs.json
    """
    from memplan_cli.api.verify_certificate import verify_certificate
    from memplan_cli.features.certificates.report import VERIFY

    output.progress("checking")
    verified = verify_certificate(model, plan, certificate)
    say(VERIFY[form](verified))
    # `validate` takes a written model. If the plan is beside it as `optimize` writes them, the names are
    # net.memplan.onnx and net.memplan.json.
    is_written_model = plan == model.with_suffix(".json")
    if verified.passed and is_written_model:
        say_next(form, next_step("Check the whole plan", "validate", [model]))
    raise SystemExit(0 if verified.passed else 1)
