"""``memplan verify-certificate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import format_option, output_options, say

if TYPE_CHECKING:
    from memplan_cli.cli.common import Output


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("certificate", type=click.Path(path_type=Path))
@format_option("text", "json")
@output_options
def verify_certificate(
    model: Path, plan: Path, certificate: Path, *, form: str, output: Output
) -> None:
    """Check CERTIFICATE, written with --certificate, against PLAN and MODEL.

    MODEL is the model that was planned, or the one written with the plan. Every bound of the
    plan is shown again from the model, without the searches that found it. Exit code 1: a
    bound is refused, or has no witness.

    For memplan pack, MODEL is its CSV file and PLAN the one that it wrote.

    \b
    memplan optimize model.onnx --certificate model.certificate.json
    memplan verify-certificate model.onnx model.memplan.json model.certificate.json
    """
    from memplan_cli.api.verify_certificate import verify_certificate
    from memplan_cli.features.certificates.report import VERIFY

    output.progress("checking")
    found = verify_certificate(model, plan, certificate)
    say(VERIFY[form](found))
    raise SystemExit(0 if found.passed else 1)
