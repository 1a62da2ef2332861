"""Caches in place: a model written with them where it decodes as the original does."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.files.binding import binding_of
from memplan_cli.api.files.rewriting import RewrittenFiles
from memplan_cli.api.optimized import Optimized, publish, warned, write_unverified
from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings, Validation
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.features.kv_cache.buffered import Buffered, choosing

if TYPE_CHECKING:
    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.rewriting import Targets
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import Caches
    from memplan_cli.features.kv_cache.buffered import Attempt
    from memplan_cli.features.kv_cache.decoded import (
        DecodeComparison,
        DecodeLoop,
        OriginalDecoding,
    )
    from memplan_cli.settings.settings import Settings

_AS_PLANNED = RuntimeSettings(
    session={"execution_order": "PRIORITY_BASED", "enable_mem_pattern": False}
)
"""A pattern of memory is of one length, and each step has another."""


def optimize_in_place(
    file: ModelFile,
    settings: Settings,
    targets: Targets,
    check: Check | None,
    progress: Progress,
) -> Optimized:
    """Write a model whose caches are buffers of one size, if its decode loop gives the same.

    Raises:
        ModelError: there is no cache that can be in place, or a file cannot be written.
        SettingsError: another setting asks for the graph as it is.
        RuntimeUnavailableError: no step of the original runs here.
    """
    refuse_combined(settings, targets)
    targets.refuse_weights(file)
    progress("looking for caches")
    work = Buffered.of(file, settings)
    if check is None:
        return write_unverified(work.rewriting(work.attempts()[0], None, targets, progress))
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="memplan-decode-"))
        return _proved(work, check, targets, Path(name), progress)


def refuse_combined(settings: Settings, targets: Targets | None = None) -> None:
    """Refuse settings that need the graph as it is, or a graph that is another one again.

    Raises:
        SettingsError: naming one.
    """
    others = {
        "--target": settings.target != "portable",
        "--chunk": settings.chunk != "none",
        "--recompute": settings.recompute != "none",
        "--donate": bool(settings.donate),
        "--expose": settings.expose,
        "--bounds": bool(settings.bounds),
        "--certificate": targets is not None and targets.certificate is not None,
    }
    for option, asked in others.items():
        if asked:
            raise SettingsError(
                f"--kv-cache in-place and {option} cannot be combined yet",
                hint=f"leave one of --kv-cache and {option} out",
            )


def _proved(
    work: Buffered, check: Check, targets: Targets, folder: Path, progress: Progress
) -> Optimized:
    """Try graphs until one decodes as the original does.

    Raises:
        RuntimeUnavailableError: no step of the original runs here.
    """
    from memplan_cli.core.files import staged
    from memplan_cli.features.kv_cache.decoded import decode_original, decode_written

    caches = work.caches_of()[1]
    before: dict[bool, tuple[OriginalDecoding, DecodeLoop]] = {}
    failed: Plan | None = None
    for number, attempt in enumerate(work.attempts()):
        off = attempt.settings == UNOPTIMISED
        if off not in before:
            progress("decoding with the original")
            how = _loop(work, check, folder / f"{number}", attempt.settings)
            before[off] = decode_original(work.file.path, caches, how), how
        first, how = before[off]
        rewriting = work.rewriting(attempt, first, targets, progress)
        assert rewriting.caches is not None  # noqa: S101 - `rewriting` has just made them
        with RewrittenFiles(rewriting) as files:
            progress("decoding with caches in place")
            settings = _AS_PLANNED.updated(attempt.settings)
            with staged(targets.model, files.data) as path:
                found = decode_written(
                    path, rewriting.caches, first, replace(how, settings=settings)
                )
            plan = _judged(rewriting.planned.plan, found, how, attempt)
            if found.passed:
                progress("writing")
                plan = _with_settings(plan, settings, how.provider)
                return publish(
                    replace(rewriting, planned=replace(rewriting.planned, plan=plan)),
                    files,
                    plan,
                )
            failed = failed or plan
    if failed is None:
        raise RuntimeUnavailableError(f"{work.file.path} has no graph to try")
    return Optimized(failed, None, None)


def validate_decoding(
    models: tuple[Path, Path], caches: Caches, plan: Plan | None, check: Check
) -> Validation:
    """Return the verdict on decode loops of an original and of what was written from it.

    Raises:
        RuntimeUnavailableError: no step of the original runs here.
    """
    from memplan_cli.features.kv_cache.decoded import (
        DecodeLoop,
        decode_original,
        decode_written,
    )
    from memplan_cli.features.kv_cache.merged import unmerged
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.settings_metadata import recorded_settings
    from memplan_cli.onnx_io.wire_format import scanned_metadata
    from memplan_cli.runtime.workers.session import resolve_provider

    original, written = models
    recorded = recorded_settings(scanned_metadata(written))
    settings = (
        RuntimeSettings() if recorded is None else replace(recorded.settings, io_binding={})
    )
    as_it_stands = UNOPTIMISED.session.items() <= settings.session.items()
    said = {} if plan is None else plan.report.bindings
    given = {name: dim.value for name, dim in said.items() if dim.source != "assumed"}
    with tempfile.TemporaryDirectory(prefix="memplan-decode-") as folder:
        how = DecodeLoop(
            provider=resolve_provider(check.provider),
            folder=Path(folder),
            dims=given,
            settings=UNOPTIMISED if as_it_stands else RuntimeSettings(),
            timeout=check.timeout,
            tolerance=(check.rtol, check.atol),
            choosing=choosing(unmerged(load_model(original))),
        )
        first = decode_original(original, caches, how)
        found = decode_written(written, caches, first, replace(how, settings=settings))
    return _verdict(found, how.provider, first.steps, ())


def _loop(work: Buffered, check: Check, folder: Path, settings: RuntimeSettings) -> DecodeLoop:
    from memplan_cli.features.kv_cache.decoded import DecodeLoop
    from memplan_cli.onnx_io.runs.random_inputs import feed_specs
    from memplan_cli.runtime.workers.session import resolve_provider

    folder.mkdir()
    binding = binding_of(work.bound)
    given = [name for name, feed in binding.feeds.items() if feed.files]
    specs = feed_specs(work.file.model, binding.dims, binding.feeds) if given else ()
    return DecodeLoop(
        provider=resolve_provider(check.provider),
        folder=folder,
        dims=dict(work.bound.dims),
        specs=tuple(spec for spec in specs if spec.name in given),
        settings=settings,
        timeout=check.timeout,
        tolerance=(check.rtol, check.atol),
        choosing=choosing(work.merged),
    )


def _judged(plan: Plan, found: DecodeComparison, how: DecodeLoop, attempt: Attempt) -> Plan:
    """Return a plan with the verdict of a decode loop."""
    notes = (attempt.note,) if attempt.note else ()
    verdict = _verdict(found, how.provider, plan.report.caches.steps, notes)
    said = [attempt.note] if attempt.note and found.passed else []
    return warned(plan.with_report(replace(plan.report, validation=verdict)), *said)


def _verdict(
    found: DecodeComparison, provider: str, steps: tuple[int, ...], more: tuple[str, ...]
) -> Validation:
    notes = [f"decoded {sum(steps)} entries in {len(steps)} steps, each compared", *more]
    notes += [f"decoding with caches in place fails: {found.failure}"] if found.failure else []
    farthest = max((d.max_abs_diff for d in found.differences), default=0.0)
    return Validation(
        status="passed" if found.passed else "failed",
        provider=provider,
        max_abs_diff=None if found.failure else farthest,
        bit_identical=None if found.failure else not found.differences,
        differences=found.differences,
        notes=tuple(notes),
    )


def _with_settings(plan: Plan, settings: RuntimeSettings, provider: str) -> Plan:
    """Return a plan whose report says how the written model is run, its buffers bound."""
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.runtime.installed import required_version

    bound = {each.output: each.input for each in plan.report.caches.buffers}
    facts = RuntimeFacts(
        "onnxruntime",
        required_version(),
        provider,
        settings=replace(settings, io_binding=bound),
    )
    return plan.with_report(replace(plan.report, runtime=facts))
