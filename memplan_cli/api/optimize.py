"""``memplan optimize``: write a model so that it needs the least memory, with unchanged outputs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import bind
from memplan_cli.api.models.model_file import read_model, refuse_unused_capacity
from memplan_cli.api.models.profiles import with_bounds_of
from memplan_cli.api.models.sources import is_path, model_paths
from memplan_cli.api.optimizing.candidates import (
    OptimizeRequest,
    TargetCandidates,
    plainer_settings,
    plan_portable,
)
from memplan_cli.api.optimizing.verification import (
    BackgroundBaseline,
    SizesRefusedError,
    candidate_cost,
    with_all_slower_reported,
    with_rejected,
)
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.output.optimized import (
    Optimized,
    is_verified,
    may_be_written,
    publish,
    write_unverified,
)
from memplan_cli.api.output.rewriting import Targets, rewritten_files
from memplan_cli.api.request import settings_of
from memplan_cli.api.request_range import with_size_that_runs
from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.progress import Progress, silent
from memplan_cli.core.results.observations import PROVIDERS
from memplan_cli.errors import SettingsError
from memplan_cli.runtime.installed import required_version
from memplan_cli.runtime.workers.fork_client import warm_workers
from memplan_cli.settings.fields import READERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.optimizing.verification import Verifier
    from memplan_cli.api.output.rewriting import Rewriting
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.settings.settings import Settings


@accepts_option_names(
    # Options that become fields of ``check``, besides those of every check.
    "validate",
    "reference",
    "idle",
    settings=READERS,
    # Flags that set one of its fields.
    tune={"check": {"search": "measured"}},
    no_validate={"check": {"validate": "none"}},
)
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
    """Plan a model, write it in its new order with its plan, and verify its outputs.

    Sizes are resolved (`_optimize_file`). Candidates are planned while the original runs in the background
    (`_write_best_candidate`). They are then run, and the best one whose outputs are the original's is written
    (`_write_best_of`).

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``; it is never changed.
        settings: What decides the plan.
        profiles: Several values of dims: one plan that holds for all of them, and a row
            for each in its report. The models are run with the largest.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        settings_out: Where the runtime's settings go as Python, and as JSON beside it.
        certificate: Where a certificate of the plan's bounds goes.
        check: How to compare both models; None leaves the comparison out, and so do
            settings that allow no run.
        progress: Called with the name of each stage.
        config: As for `plan`.
        options: As for `plan`, and ``target="cpu"``.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    if out is None and not is_path(model):
        raise SettingsError(
            "a model in memory has no folder to write beside", hint="name the file with out="
        )
    with ExitStack() as stack:
        files = stack.enter_context(model_paths(model))
        settings = settings_of(files.path, settings, config, options)
        check = check if settings.run else None
        targets = Targets.of(files.path, out, plan_file, settings_out, certificate)
        _refuse_combined(settings, targets, profiles, check)
        targets.refuse(files.path)
        if check:
            # Both models will be run: without ONNX Runtime this fails before they are planned.
            required_version(hint="--no-validate leaves it out")
            stack.enter_context(warm_workers())
            if settings.target != "portable":
                check = replace(check, provider=settings.target)
        file, progress = read_model(files.path), progress or silent
        if settings.kv_cache == "in-place":
            from memplan_cli.api.optimizing.in_place_caches import write_with_caches_in_place

            result = write_with_caches_in_place(file, settings, targets, check, progress)
        else:
            result = _optimize_file(file, settings, targets, check, progress, profiles)
        # A model in memory is read from a temporary folder, which the texts of the result must not name.
        return files.without_temporary_folder(result)


def _optimize_file(
    file: ModelFile,
    settings: Settings,
    targets: Targets,
    check: Check | None,
    progress: Progress,
    profiles: Profiles | None,
) -> Optimized:
    """Find values for the free dims of a model, and write its best candidate; without a check, the first one."""
    from memplan_cli.api.models.resolve_sizes import resolve_first_sizes, resolve_sizes

    settings = bind(file.model, settings)
    if profiles:
        settings = with_bounds_of(settings, profiles)
    progress("reading")
    if check is None:  # candidates are not run, so none can be found better
        sizes = resolve_sizes(file.lazy, file.path, settings)
        request = OptimizeRequest(file, sizes, targets, check, progress, profiles)
        return _write_first_candidate(request)
    # The sizes that `resolve_sizes` would try first. The check runs the original anyway, and so tries them.
    first_sizes = resolve_first_sizes(file.lazy, file.path, settings)
    request = OptimizeRequest(file, first_sizes, targets, check, progress, profiles)
    try:
        return _write_best_candidate(request, check)
    except SizesRefusedError:
        progress("trying sizes: the model does not run at the first ones")
    if settings.bounds and not profiles:
        # A dim with bounds had the largest number within them: a smaller one may run.
        settings = with_size_that_runs(file, settings, check.timeout)
    # Tries numbers for the dims that have none. Values of profiles stay: the model has to run with them.
    sizes_that_run = resolve_sizes(file.lazy, file.path, settings)
    return _write_best_candidate(replace(request, resolved=sizes_that_run), check)


def _write_first_candidate(request: OptimizeRequest) -> Optimized:
    """Write the first candidate, if it is within the budget. No candidate is run."""
    if request.settings.target == "portable":
        return write_unverified(plan_portable(request))
    with TemporaryDirectory(prefix="memplan-offline-") as folder:
        return write_unverified(TargetCandidates.of(request, Path(folder)).first_round()[0])


def _write_best_candidate(request: OptimizeRequest, check: Check) -> Optimized:
    """Plan candidates while the original runs in the background; write the best of them.

    For a provider, a second round of candidates follows if ONNX Runtime cannot run those of the first. If no
    candidate passes the comparison with the original, plainer settings are tried.

    Raises:
        SizesRefusedError: the original does not run at sizes that were assumed.
    """
    with BackgroundBaseline(request.file, check) as baseline:
        if not request.settings.bounds:  # else the size of the run depends on the plan
            baseline.start(request.settings)
        if request.settings.target == "portable":
            result = _write_best_of([plan_portable(request)], request, baseline)
        else:
            with TemporaryDirectory(prefix="memplan-offline-") as folder:
                rounds = TargetCandidates.of(request, Path(folder))
                result = _write_best_of(rounds.first_round(), request, baseline)
                if candidates := rounds.second_round(result):
                    result = _write_best_of(candidates, request, baseline)
        return _retry_with_plainer_settings(result, request, baseline)


def _retry_with_plainer_settings(
    result: Optimized, request: OptimizeRequest, baseline: BackgroundBaseline
) -> Optimized:
    """Return ``result``, or the result of a model with fewer changes if only such a model can be written.

    If the model of ``result`` failed the comparison, `plainer_settings` are tried in turn, until a model is
    written or models with still fewer changes would fail too.
    """
    failed: list[Plan] = []
    last = result
    for settings in plainer_settings(request.settings):
        is_written = last.model is not None
        if is_written or not _may_pass_if_plainer(last, request.settings.target):
            break
        failed.append(last.plan)
        request.progress("planning again: the written model did not pass the comparison")
        plainer = request.with_settings(settings)
        last = _write_best_of([plan_portable(plainer)], plainer, baseline, failed)
    return result if last.model is None else last


def _may_pass_if_plainer(result: Optimized, target: str) -> bool:
    """Return whether a model with fewer changes may pass the comparison that the model of a result failed.

    With fewer changes, outputs may become equal. A model for a ``target`` that does not run at all may run if
    it is portable.
    """
    verdict = result.plan.report.validation
    if verdict is None:  # the model was not run, because it is over the budget
        return False
    return verdict.has_other_outputs or target != "portable"


def _write_best_of(
    candidates: Sequence[Rewriting],
    request: OptimizeRequest,
    baseline: BackgroundBaseline,
    rejected_before: Sequence[Plan] = (),
) -> Optimized:
    """Run the candidates that may be written in their order, and publish the first whose outputs are the original's.

    If the check asks to search by measuring, all of them are run, and the cheapest is published. If none has the
    original's outputs, nothing is written, and the result has the plan of the first that was run. The report of
    a written model names the rejected plans, also those in ``rejected_before``.
    """
    within_budget = [candidate for candidate in candidates if may_be_written(candidate)]
    if not within_budget:
        return Optimized(candidates[0].plan)  # nothing is run
    # All candidates have the same original at the same sizes, with which the verifier compares.
    verifier = baseline.verifier(within_budget[0].settings, request.progress)
    if verifier.check.search == "measured":
        return _write_cheapest(within_budget, verifier, rejected_before)
    rejected: list[Plan] = []
    for candidate in within_budget:
        with rewritten_files(candidate) as files:
            plan = verifier.verify(files)
            if is_verified(plan):
                request.progress("writing")
                return publish(files, with_rejected(plan, (*rejected_before, *rejected)))
        rejected.append(plan)
    return Optimized(rejected[0])


def _write_cheapest(
    candidates: Sequence[Rewriting], verifier: Verifier, rejected_before: Sequence[Plan]
) -> Optimized:
    """Run all candidates; of those with the original's outputs, publish the one of lowest `candidate_cost`.

    If no candidate has them, nothing is written, and the result has the plan of the first.
    """
    verified: list[Rewriting] = []
    rejected: list[Plan] = []
    for candidate in candidates:
        with rewritten_files(candidate) as files:
            plan = verifier.verify(files)
        if is_verified(plan):
            verified.append(candidate.with_plan(plan))
        else:
            rejected.append(plan)
    if not verified:
        return Optimized(rejected[0])
    verifier.progress("writing")
    best = min(verified, key=lambda candidate: candidate_cost(candidate.plan))
    plan = with_rejected(best.plan, (*rejected_before, *rejected))
    # The cost includes the time of a run: if the best is slower than allowed, so are all.
    plan = with_all_slower_reported(plan)
    with rewritten_files(best) as files:
        return publish(files, plan)


def _refuse_combined(
    settings: Settings, targets: Targets, profiles: Profiles | None, check: Check | None
) -> None:
    """Raise SettingsError for settings, output files, profiles and a check that cannot be combined."""
    if targets.certificate and settings.target != "portable":
        raise SettingsError(
            "--certificate needs --target portable: it proves bounds of the model's own graph",
            hint="remove --target or --certificate",
        )
    if profiles and settings.kv_cache == "in-place":
        raise SettingsError(
            "--kv-cache in-place needs one value of each dim, and --dim has several numbers",
            hint="give each dim one number",
        )
    refuse_unused_capacity(settings)
    if check is not None and settings.target != "portable":
        _refuse_check_of_target(settings.target, check)


def _refuse_check_of_target(target: str, check: Check) -> None:
    """Raise SettingsError if a check cannot be made of a model that is optimized for a target."""
    if check.reference == "unoptimized":
        raise SettingsError(
            f"--reference unoptimized needs --target portable: a model for {target} has the runtime's "
            "optimizations in it",
            hint="remove --reference or --target",
        )
    if check.provider not in ("auto", target, PROVIDERS[target]):
        raise SettingsError(
            f"a model for {target} is validated on {target}, not on {check.provider}",
            hint="remove the provider",
        )
