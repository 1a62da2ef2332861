"""Compare the decode loop of a model with that of the model with its caches in place.

The original's caches grow and are fed back, as its users do. The written model's caches stay in
their buffers. Both loops begin with empty caches, run a prefill of several entries and then short
steps. All outputs of all steps must have the same bits, and so must the caches at the end.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import (
    DEFAULT_TIMEOUT,
    UNOPTIMIZED,
    Difference,
    RuntimeSettings,
    Validation,
)
from memplan_cli.core.results.rewrites import step_dims
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.runtime.run.run_model import differences_in, require_weights
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.check import Check, Reference
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import CacheSummary


_DECODE_JOB = "memplan_cli.features.kv_cache.decode_job:run"

LENGTHS = (4, 1, 1, 1, 2, 1, 1)
"""New entries of each step; steps that the capacity has no room for are left out."""


@dataclass(frozen=True, slots=True)
class DecodeLoop:
    """How decode loops are run.

    Attributes:
        provider: ONNX Runtime's name of the execution provider.
        folder: the folder for the original's outputs.
        dims: values of dims from the user.
        specs: inputs from the user, used in each step in which their shape fits.
        settings: of the sessions, besides those that make them deterministic.
        timeout: seconds for each process.
        tolerance: ``(rtol, atol)``; two zeros require the same bits.
        lengths: new entries of each step.
    """

    provider: str
    folder: Path
    dims: Mapping[str, int] = field(default_factory=dict)
    specs: tuple[FeedSpec, ...] = ()
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    timeout: float = DEFAULT_TIMEOUT
    tolerance: tuple[float, float] = (0.0, 0.0)
    lengths: tuple[int, ...] = LENGTHS

    @classmethod
    def of_original(
        cls,
        check: Check,
        folder: Path,
        dims: Mapping[str, int],
        specs: tuple[FeedSpec, ...] = (),
    ) -> DecodeLoop:
        """Return how a check decodes with an original; its outputs are saved in ``folder`` as the reference.

        ``dims`` and ``specs``: values of dims and inputs from the user.
        """
        return cls(
            provider=resolve_provider(check.provider),
            folder=folder,
            dims=dims,
            specs=specs,
            settings=UNOPTIMIZED if check.reference == "unoptimized" else RuntimeSettings(),
            timeout=check.timeout,
            tolerance=(check.rtol, check.atol),
        )


@dataclass(frozen=True, slots=True)
class OriginalDecoding:
    """How the original's steps are fed and how its caches grow, observed in its decode loop.

    Attributes:
        model: the original.
        rules: for each dim, how its value follows from past and new entries: a key of
            `STEP_NUMBERS`.
        start: entries in the caches before the first step.
        lengths: new entries that each step was asked for.
        steps: entries that each step added.
        tokens: an input and its axis that is as long as the new entries; empty if there is none.
    """

    model: Path
    rules: Mapping[str, str]
    start: int
    lengths: tuple[int, ...]
    steps: tuple[int, ...]
    tokens: tuple[tuple[str, int], ...]

    def dims_at(self, past: int, new: int) -> dict[str, int]:
        """Return the value of each dim in a step, except the dims along which caches grow."""
        return step_dims(self.rules, past, new)


@dataclass(frozen=True, slots=True)
class DecodeComparison:
    """How the written model's loop differs from the original's.

    Attributes:
        differences: of outputs, named ``name@step``, and of caches.
        failure: why the written model did not run; empty if it did.
    """

    differences: tuple[Difference, ...] = ()
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether the loop ran, and every output of every step equals the original's."""
        return not self.failure and not any(item.beyond for item in self.differences)

    @property
    def max_abs_diff(self) -> float | None:
        """The largest absolute difference of two elements; None if the written model did not run."""
        if self.failure:
            return None
        return max((item.max_abs_diff for item in self.differences), default=0.0)


def decode_original(model: Path, caches: CacheSummary, loop: DecodeLoop) -> OriginalDecoding:
    """Run the original's decode loop, and save its outputs in the loop's folder.

    Raises:
        RuntimeUnavailableError: no step of the model runs, or its weights are missing.
    """
    require_weights(model)
    job = {**_job_settings(_session(model, loop), caches, loop), "role": "original"}
    outcome = run_job(_DECODE_JOB, job, timeout=loop.timeout)
    result = outcome.require(f"{model} cannot be decoded")
    return OriginalDecoding(
        model=model,
        rules=result["rules"],
        start=result["start"],
        lengths=tuple(result["lengths"]),
        steps=tuple(result["steps"]),
        tokens=tuple((name, axis) for name, axis in result["tokens"]),
    )


def decode_written(
    model: Path, caches: CacheSummary, original: OriginalDecoding, loop: DecodeLoop
) -> DecodeComparison:
    """Run the written model's decode loop as the original's ran, and compare the outputs of both.

    ``original`` tells how that ran: with ``start`` entries in the caches before the first step, with
    ``lengths[i]`` new entries in step i, and with ``rules`` for the lengths of dims in each step. Its outputs
    are read from the loop's folder, where `decode_original` saved them.
    """
    # Users open a written file with `memplan_cli.load`, and the original with ONNX Runtime.
    session = replace(_session(model, loop), opened_by_memplan=True)
    job = {
        **_job_settings(session, caches, loop),
        "role": "written",
        "original": str(original.model),
        "rules": dict(original.rules),
        "start": original.start,
        "lengths": list(original.lengths),
    }
    outcome = run_job(_DECODE_JOB, job, timeout=loop.timeout)
    return DecodeComparison(differences_in(outcome.result), outcome.reason)


def _session(model: Path, loop: DecodeLoop) -> SessionSpec:
    """Return a session in which equal inputs give equal bits."""
    return SessionSpec(model, loop.provider, loop.settings).deterministic()


def _job_settings(session: SessionSpec, caches: CacheSummary, loop: DecodeLoop) -> Json:
    """Return how a worker process decodes with a model, be it the original or the written one."""
    return {
        "session": to_json(session),
        "inputs": to_json(InputSet(loop.specs)),
        "caches": to_json(caches),
        "dims": dict(loop.dims),
        "lengths": list(loop.lengths),
        "tolerance": list(loop.tolerance),
        "folder": str(loop.folder),
    }


def validate_decoding(
    models: tuple[Path, Path], caches: CacheSummary, plan: Plan | None, check: Check
) -> Validation:
    """Decode with an original and with the model written from it; return the verdict.

    Args:
        models: the original and the written model.
        caches: the description of the caches in the written model's metadata.
        plan: the written model's plan, for the dims that it was made for.
        check: where both run, how the original runs, and what counts as equal.

    Raises:
        RuntimeUnavailableError: no step of the original runs here.
    """
    original, written = models
    recorded = recorded_settings(scanned_metadata(written))
    # The `Decoder` binds the caches itself.
    written_settings = (
        RuntimeSettings() if recorded is None else replace(recorded.settings, io_binding={})
    )
    bindings = {} if plan is None else plan.report.bindings
    # Assumed dims fit one run of the original; the loop finds values that fit each step.
    dims = {name: dim.value for name, dim in bindings.items() if dim.source != "assumed"}
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        loop = DecodeLoop.of_original(check, Path(folder), dims)
        decoding = decode_original(original, caches, loop)
        return decoding_verdict(
            written, caches, decoding, loop, written_settings, check.reference
        )


def decoding_verdict(
    written: Path,
    caches: CacheSummary,
    decoding: OriginalDecoding,
    loop: DecodeLoop,
    written_settings: RuntimeSettings,
    reference: Reference,
) -> Validation:
    """Decode with a written model, and return the verdict on its outputs.

    A written model that passes against the reference ``unoptimized`` is also compared with the original under
    ONNX Runtime's defaults, as users run it (`Validation.diff_from_defaults`). This takes two more loops.

    Args:
        written: the written model.
        caches: the description of its caches.
        decoding: what was observed in the original's decode loop.
        loop: how the original was decoded.
        written_settings: the settings of the written model.
        reference: the name of the settings in ``loop``: ``unoptimized`` or ``defaults``.

    Raises:
        RuntimeUnavailableError: no step of the original runs under the defaults.
    """
    written_loop = replace(loop, settings=written_settings)
    comparison = decode_written(written, caches, decoding, written_loop)
    verdict = _verdict(comparison, loop, decoding, reference)
    if reference == "defaults" or not verdict.passed:
        return verdict
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        default_loop = replace(loop, folder=Path(folder), settings=RuntimeSettings())
        default_decoding = decode_original(decoding.model, caches, default_loop)
        written_loop = replace(written_loop, folder=Path(folder))
        comparison = decode_written(written, caches, default_decoding, written_loop)
    return replace(verdict, diff_from_defaults=comparison.max_abs_diff)


def _verdict(
    comparison: DecodeComparison,
    loop: DecodeLoop,
    decoding: OriginalDecoding,
    reference: Reference,
) -> Validation:
    """Return the verdict on a written model whose decode loop was compared with the original's."""
    steps, failure = decoding.steps, comparison.failure
    decoded = f"decoded {sum(steps)} entries in {len(steps)} steps, each compared"
    failures = [f"decoding with caches in place fails: {failure}"] if failure else []
    return Validation(
        status="passed" if comparison.passed else "failed",
        provider=loop.provider,
        reference=reference,
        max_abs_diff=comparison.max_abs_diff,
        bit_identical=None if failure else not comparison.differences,
        differences=comparison.differences,
        notes=(*failures, decoded),
    )
