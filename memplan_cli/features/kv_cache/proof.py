"""Verdicts on decoders with caches in place: the decode loop must equal the original's."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings, Validation
from memplan_cli.features.kv_cache.buffered import branch_choice
from memplan_cli.features.kv_cache.decoded import DecodeLoop, decode_original, decode_written
from memplan_cli.features.kv_cache.merged import unmerged
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.onnx_io.wire_format import scanned_metadata
from memplan_cli.runtime.workers.session import resolve_provider

if TYPE_CHECKING:
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import Caches
    from memplan_cli.features.kv_cache.decoded import DecodeComparison


def validate_decoding(
    models: tuple[Path, Path], caches: Caches, plan: Plan | None, check: Check
) -> Validation:
    """Decode with an original and with the model written from it; return the verdict.

    Args:
        models: the original and the written model.
        caches: what the written model says of its caches.
        plan: its plan, for dims that the user gave.
        check: where both run, and what counts as equal.

    Raises:
        RuntimeUnavailableError: no step of the original runs here.
    """
    original, written = models
    recorded = recorded_settings(scanned_metadata(written))
    settings = (
        RuntimeSettings() if recorded is None else replace(recorded.settings, io_binding={})
    )
    is_unoptimised = UNOPTIMISED.session.items() <= settings.session.items()
    bindings = {} if plan is None else plan.report.bindings
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        loop = DecodeLoop(
            provider=resolve_provider(check.provider),
            folder=Path(folder),
            dims={n: dim.value for n, dim in bindings.items() if dim.source != "assumed"},
            settings=UNOPTIMISED if is_unoptimised else RuntimeSettings(),
            timeout=check.timeout,
            tolerance=(check.rtol, check.atol),
            choosing=branch_choice(unmerged(load_model(original))),
        )
        decoding = decode_original(original, caches, loop)
        comparison = decode_written(
            written, caches, decoding, replace(loop, settings=settings)
        )
    return decoding_verdict(comparison, loop.provider, decoding.steps)


def decoding_verdict(
    comparison: DecodeComparison, provider: str, steps: tuple[int, ...], *notes: str
) -> Validation:
    """Return the verdict of a decode loop, for reports.

    Args:
        comparison: of its outputs with the original's.
        provider: ONNX Runtime's name of the provider that both ran on.
        steps: entries that each step added.
        notes: further notes of the verdict.
    """
    decoded = f"decoded {sum(steps)} entries in {len(steps)} steps, each compared"
    failure = comparison.failure
    failures = [f"decoding with caches in place fails: {failure}"] if failure else []
    max_diff = max((d.max_abs_diff for d in comparison.differences), default=0.0)
    return Validation(
        status="passed" if comparison.passed else "failed",
        provider=provider,
        max_abs_diff=None if failure else max_diff,
        bit_identical=None if failure else not comparison.differences,
        differences=comparison.differences,
        notes=(decoded, *notes, *failures),
    )
