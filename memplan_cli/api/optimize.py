"""Models written in the order that needs the least memory, if their outputs stay the same."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.api.candidates import (
    CandidateRounds,
    OptimizeRequest,
    PortableCandidates,
)
from memplan_cli.api.fallbacks import with_rejected, with_slower
from memplan_cli.api.files.binding import bind
from memplan_cli.api.files.model_file import read_model
from memplan_cli.api.files.rewriting import RewrittenFiles, Targets
from memplan_cli.api.files.sources import is_path, on_files
from memplan_cli.api.optimized import Optimized, passed, publish, write_unverified
from memplan_cli.api.profiles import refuse_settings_of_one_size
from memplan_cli.api.request import settings_of
from memplan_cli.api.verification import (
    BackgroundBaseline,
    SizesRefusedError,
    measured_cost,
)
from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.progress import Progress, silent
from memplan_cli.core.results.observations import PROVIDERS
from memplan_cli.errors import SettingsError
from memplan_cli.runtime.workers.fork_client import warm_workers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.api.files.rewriting import Rewriting
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.profiles import Profiles
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.settings.settings import Settings


def optimize(
    model: ModelSource,
    settings: Settings | None = None,
    *,
    profiles: Profiles | None = None,
    out: FilePath | None = None,
    plan_file: FilePath | None = None,
    settings_out: FilePath | None = None,
    certificate: FilePath | None = None,
    check: Check | None = DEFAULT_CHECK,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Optimized:
    """Plan a model, write it in its new order with its plan, and prove it.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``; it is never changed.
        settings: What decides the plan.
        profiles: Several values of symbols: one plan that holds for all of them, and a row
            for each in its report. The models are run with the largest.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        settings_out: Where the runtime's settings go as Python, and as JSON beside it.
        certificate: Where a witness of each bound of the plan goes.
        check: How to compare both models; None leaves the comparison out, and so do
            settings that allow no run.
        progress: Called with the name of each stage.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    if out is None and not is_path(model):
        raise SettingsError(
            "a model in memory has no folder to write beside", hint="name the file with out="
        )

    def work(path: Path) -> Optimized:
        chosen = settings_of(path, settings, config, options)
        targets = Targets.of(path, out, plan_file, settings_out, certificate)
        return _optimize_file(path, chosen, targets, profiles, check, progress or silent)

    return on_files((model,), work)


def _optimize_file(
    path: Path,
    settings: Settings,
    targets: Targets,
    profiles: Profiles | None,
    check: Check | None,
    tell: Progress,
) -> Optimized:
    """Optimize a model file; it is planned again if assumed sizes turn out not to run."""
    check = check if settings.run else None
    _refuse_combined(settings, targets, profiles, check)
    targets.refuse(path)
    with ExitStack() as stack:
        if check:
            stack.enter_context(warm_workers())
        file = read_model(path)
        if settings.kv_cache == "in-place":
            from memplan_cli.features.kv_cache.proved import optimize_in_place

            return optimize_in_place(file, settings, targets, check, tell)
        if check and settings.target != "portable":
            check = replace(check, provider=settings.target)
        settings = bind(file.model, settings)
        request = OptimizeRequest(file, settings, targets, check, tell, profiles)
        if check is None or profiles:
            return _optimize(request)
        try:
            # The original runs in any case: sizes that were assumed need no run of their own.
            return _optimize(replace(request, trust="believed"))
        except SizesRefusedError:
            tell("trying sizes: the model does not run at the least ones")
            return _optimize(request)


def _optimize(request: OptimizeRequest) -> Optimized:
    """Write the candidate that needs the least memory and has the original's outputs.

    The original runs in the background while candidates are planned. A further round of
    candidates follows if the runtime fails with those of the one before.

    Raises:
        SizesRefusedError: the original does not run at sizes that were assumed.
        MemplanError: something else could not work.
    """
    with ExitStack() as stack:
        baseline = stack.enter_context(BackgroundBaseline(request.check))
        rounds = stack.enter_context(_candidates(request, baseline))
        result: Optimized | None = None
        while candidates := rounds.plan(result):
            if request.check is None:
                return write_unverified(candidates[0])
            result = _write_best(candidates, request, request.check, baseline)
        assert result is not None  # noqa: S101 - there is a first round
        return result


def _write_best(
    candidates: Sequence[Rewriting],
    request: OptimizeRequest,
    check: Check,
    baseline: BackgroundBaseline,
) -> Optimized:
    """Write, run and compare candidates in the order of their predicted memory; publish the best.

    The best is the first whose outputs are the original's. Where settings are searched by
    measuring, all candidates are run, and it is the one that was measured to need the least.
    """
    within_budget = [c for c in candidates if c.planned.plan.report.budget_met]
    if not within_budget:
        return Optimized(candidates[0].planned.plan, None, None)
    verifier = baseline.verifier(within_budget[0], check, request.progress)
    verified: list[tuple[Rewriting, RewrittenFiles, Plan]] = []
    rejected: list[Plan] = []
    with ExitStack() as stack:
        for candidate in verifier.by_predicted_memory(within_budget):
            files = stack.enter_context(RewrittenFiles(candidate))
            plan = verifier.verify(candidate, files)
            if not passed(plan):
                rejected.append(plan)
                continue
            verified.append((candidate, files, plan))
            if check.search == "foreseen":
                break
        if not verified:
            return Optimized(rejected[0], None, None)
        request.progress("writing")
        candidate, files, plan = min(verified, key=lambda found: measured_cost(found[2]))
        plan = with_rejected(plan, rejected)
        if check.search == "measured":
            plan = with_slower(plan)
        result = publish(candidate, files, plan)
        for _, other, _ in verified:
            other.forget()
        return result


def _candidates(request: OptimizeRequest, baseline: BackgroundBaseline) -> CandidateRounds:
    if request.settings.target == "portable":
        return PortableCandidates(request, baseline)
    from memplan_cli.api.target import TargetCandidates

    return TargetCandidates(request, baseline)


def _refuse_combined(
    settings: Settings, targets: Targets, profiles: Profiles | None, check: Check | None
) -> None:
    """Refuse settings that cannot be combined.

    Raises:
        SettingsError: naming them.
    """
    if targets.certificate and settings.target != "portable":
        raise SettingsError(
            "a certificate is about the model's own graph, not about what a runtime makes of it",
            hint="leave --target or --certificate out",
        )
    if profiles and settings.kv_cache == "in-place":
        raise SettingsError(
            "--kv-cache in-place is planned for the step that fills a cache, and --dim has "
            "several numbers",
            hint="give each dim one number",
        )
    if profiles:
        refuse_settings_of_one_size(settings, profiles)
    if check is None or settings.target == "portable":
        return
    if check.provider not in ("auto", settings.target, PROVIDERS[settings.target]):
        raise SettingsError(
            f"a model for {settings.target} is proved there, not on {check.provider}",
            hint="leave the provider out",
        )
