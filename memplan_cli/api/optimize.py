"""``memplan optimize``: write a model so that it needs the least memory, with unchanged outputs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.api.models.binding import bind
from memplan_cli.api.models.model_file import read_model
from memplan_cli.api.models.profiles import refuse_conflicts_with_profiles
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
    with_fallback_if_slower,
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
from memplan_cli.api.output.rewriting import RewrittenFiles, Targets
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

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.output.rewriting import Rewriting
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.settings.settings import Settings


@accepts_option_names(
    "validate",
    "reference",
    "idle",
    settings=READERS,
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

    Candidates are planned while the original runs in the background (`_write_best_candidate`). They are
    then run, and the best one whose outputs are the original's is written (`_write_best_of`).

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
            required_version(hint="--no-validate leaves it out")
            stack.enter_context(warm_workers())
        file = read_model(files.path)
        request = OptimizeRequest(file, settings, targets, check, progress or silent, profiles)
        # A model in memory is read from a temporary folder, which the texts of the result must not name.
        return files.without_folder(_optimize_file(request))


def _optimize_file(request: OptimizeRequest) -> Optimized:
    """Optimize a model that was read. For a provider, the check runs on it.

    Probing runs find sizes at which the original runs, where sizes are assumed or have bounds. With a check
    they are deferred, because the original is run in any case. If it does not run at the first sizes,
    everything is done again after probing runs.
    """
    settings, check = request.settings, request.check
    if settings.kv_cache == "in-place":
        from memplan_cli.api.optimizing.in_place_caches import write_with_caches_in_place

        return write_with_caches_in_place(request)
    if check and settings.target != "portable":
        check = replace(check, provider=settings.target)
    request = replace(request, settings=bind(request.file.model, settings), check=check)
    # Without a check no later run would refuse the first sizes. With profiles the sizes are known.
    if check is None or request.profiles:
        return _write_best_candidate(request)
    try:
        return _write_best_candidate(replace(request, probing="defer"))
    except SizesRefusedError:
        request.progress("trying sizes: the model does not run at the first ones")
        if request.settings.bounds:  # else sizes are assumed, and planning probes them
            settings = with_size_that_runs(request.file, request.settings, check.timeout)
            request = replace(request, settings=settings)
        return _write_best_candidate(request)


def _write_best_candidate(request: OptimizeRequest) -> Optimized:
    """Plan candidates while the original runs in the background; write the best of them.

    For a provider, a second round of candidates follows if ONNX Runtime cannot run those of the first.

    Raises:
        SizesRefusedError: the original does not run at sizes that were assumed.
    """
    with BackgroundBaseline(request.check) as baseline:
        if request.settings.target == "portable":
            result = _write_best_of([plan_portable(request, baseline)], request, baseline)
        else:
            with TargetCandidates(request, baseline) as rounds:
                result = _write_best_of(rounds.first_round(), request, baseline)
                if candidates := rounds.second_round(result):
                    result = _write_best_of(candidates, request, baseline)
        return _write_plainer(result, request, baseline)


def _write_plainer(
    result: Optimized, request: OptimizeRequest, baseline: BackgroundBaseline
) -> Optimized:
    """Return the result, or that of the first `plainer_settings` with which the comparison passes.

    They are tried if no model was written because its outputs differ. For a target they are also tried
    if it did not run: the written model is portable then, in place of one that is optimized for the target.
    """
    is_for_target = request.settings.target != "portable"
    rejected: list[Plan] = []
    for settings in plainer_settings(request.settings):
        verdict = result.plan.report.validation
        # A plan over the budget has no verdict: its model was not run.
        if result.model is not None or verdict is None:
            break
        is_replaceable = verdict.has_other_outputs or is_for_target
        if not is_replaceable:
            break
        rejected.append(result.plan)
        request.progress("planning again: the written model did not pass the comparison")
        plainer = replace(request, settings=settings)
        candidate = plan_portable(plainer, baseline)
        result = _write_best_of([candidate], plainer, baseline, rejected)
    return result


class _VerifiedCandidate(NamedTuple):
    """A candidate with the outputs of the original, its files, and its plan with what was measured."""

    candidate: Rewriting
    files: RewrittenFiles
    plan: Plan


def _write_best_of(
    candidates: Sequence[Rewriting],
    request: OptimizeRequest,
    baseline: BackgroundBaseline,
    rejected_before: Sequence[Plan] = (),
) -> Optimized:
    """Write, run and compare candidates in their order; publish the best.

    The best is the first one whose outputs are the original's: the candidates after it are not run. If
    ``check`` asks to search by measuring, all candidates are run and timed. The best is then the one with
    the least measured memory, of those that are not slower than allowed, if there are any
    (`candidate_cost`).

    Without a check nothing is run: the first candidate is written if it is within the budget.

    Candidates over the budget are not run. If all are over it, nothing is written, and the result has the
    plan of the first; with ``best_effort``, all are run. If no candidate has the outputs of the original,
    nothing is written either, and the result has the first plan that was rejected, which may be from
    ``rejected_before``.

    ``rejected_before`` are plans that failed earlier. The report names all that were rejected.
    """
    check = request.check
    if check is None:
        return write_unverified(candidates[0])
    within_budget = [candidate for candidate in candidates if may_be_written(candidate)]
    if not within_budget:
        return Optimized(candidates[0].planned.plan, None, None)
    # All candidates have the same original, with which the verifier compares.
    verifier = baseline.verifier(within_budget[0], check, request.progress)
    searches_by_measuring = check.search == "measured"
    all_files: list[RewrittenFiles] = []
    verified: list[_VerifiedCandidate] = []
    rejected = list(rejected_before)
    with ExitStack() as stack:
        for candidate in within_budget:
            files = stack.enter_context(RewrittenFiles(candidate))
            all_files.append(files)
            plan = verifier.verify(candidate, files)
            if not is_verified(plan):
                rejected.append(plan)
                continue
            verified.append(_VerifiedCandidate(candidate, files, plan))
            if not searches_by_measuring:  # the first one is the best
                break
        if not verified:
            return Optimized(rejected[0], None, None)
        request.progress("writing")
        if searches_by_measuring:
            best = min(verified, key=lambda each: candidate_cost(each.plan))
            # All were timed: the report says so if even the best is slower than allowed.
            plan = with_fallback_if_slower(with_rejected(best.plan, rejected))
        else:
            best = verified[0]
            plan = with_rejected(best.plan, rejected)
        result = publish(best.candidate, best.files, plan)
        # The files of each candidate, rejected ones too, may have set weights of the previous output aside,
        # which the end of the block would restore. The previous output is replaced now.
        for files in all_files:
            files.discard_earlier_weights()
        return result


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
    if profiles:
        refuse_conflicts_with_profiles(settings, profiles)
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
