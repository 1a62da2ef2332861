"""Written models checked against their originals: outputs, replay in the plan, real memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from memplan_cli.api.donate import Donation, with_binding, with_donation
from memplan_cli.api.files.agreement import dims_of, held_against, shapes_of
from memplan_cli.api.files.binding import bind, binding_of
from memplan_cli.api.files.file_names import original_of, plan_beside
from memplan_cli.api.files.model_file import ModelFile, bind_whole
from memplan_cli.api.files.sources import on_files
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.results.observations import (
    CPU,
    PROVIDERS,
    Together,
    Validation,
)
from memplan_cli.core.results.report import Proof
from memplan_cli.errors import ModelError, PlanError, SettingsError
from memplan_cli.features.kv_cache.proved import validate_decoding
from memplan_cli.planning.plan_file import bounds_of
from memplan_cli.reporting.hints import path_argument
from memplan_cli.runtime.workers.fork_client import warm_workers
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.checking.check import PlanComparison
    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report, RuntimeFacts

Extra = Literal["replay", "measure"]


def validate(
    planned: ModelSource,
    original: ModelSource | None = None,
    check: Check = DEFAULT_CHECK,
    extras: Collection[Extra] = (),
    inputs: Inputs | None = None,
) -> Proof:
    """Hold a written model against its plan, run it and its original, and compare the outputs.

    Where the plan beside it does not say what the model says, nothing is run. Both run at the
    dims that the plan was made for, at two sets of them where it has bounds, both inside;
    without a plan, at small ones. Where the written model says that outputs may lie where
    inputs were, two steps are taken with each such pair in one buffer.

    Args:
        planned: A model that memplan wrote; its plan beside it, which the extras need.
        original: The model it was made from; None: what its name says.
        check: Where to run, and what counts as equal.
        extras: ``replay`` runs it op by op inside the plan's arenas, ``measure`` measures
            both models' memory in the runtime, of the check's number of processes at once too.
        inputs: Real inputs, of the sizes that the plan was made for; the others are drawn.

    Raises:
        MemplanError: a file is not what it should be, or the original cannot run.
    """

    def work(written: Path, source: Path | None = None) -> Proof:
        return _validate(written, source, check, extras, inputs)

    models = (planned,) if original is None else (planned, original)
    return on_files(models, work)


def _validate(
    planned: Path,
    original: FilePath | None,
    check: Check,
    extras: Collection[Extra],
    inputs: Inputs | None,
) -> Proof:
    from memplan_cli.onnx_io.caches_metadata import recorded_caches
    from memplan_cli.onnx_io.interface import free_dims
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.metadata import donated_pairs, is_offline, read_notes
    from memplan_cli.runtime.settings_search.written_model import WrittenModel
    from memplan_cli.runtime.verification.verify import compare_models, measure_models

    planned, original = _pair(planned, original)
    model = load_model(planned)
    notes = read_notes(model)
    refuse_foreign(notes, planned)
    has_plan = bool(extras) or plan_beside(planned).exists()
    plan = _own_plan(planned, notes.get("digest")) if has_plan else None
    agreed: tuple[str, ...] = ()
    if plan is not None:
        comparison = held_against(model, plan, original)
        if comparison.disagreements:
            return Proof(_refused(comparison, check.provider))
        agreed = (comparison.summary(),)
    caches = recorded_caches({entry.key: entry.value for entry in model.metadata_props})
    if caches is not None:
        _refuse_extras(extras)
        verdict = validate_decoding((original, planned), caches, plan, check)
        return Proof(replace(verdict, notes=(*verdict.notes, *agreed)))
    binding = _bound(ModelFile.of(planned, model), plan, inputs or Inputs())
    first, second = bindings_inside(plan, dict.fromkeys(free_dims(model), 1))
    binding = binding.at(first)
    donation = Donation(donated_pairs(model), offline=is_offline(model))
    written = WrittenModel(planned, offline=donation.offline)
    facts, measured = None, tuple[str, ...]()
    with warm_workers():
        if plan is not None and "measure" in extras:
            # What optimisation would undo or make unsafe runs as it is written.
            moved = (
                donation.pairs or plan.report.recompute.nodes or plan.report.chunked.regions
            )
            as_written = replace(written, as_written=donation.offline or bool(moved))
            found = measure_models(original, as_written, check, binding)
            facts, measured = _measured_further(found.facts, original, planned, check, binding)
        else:
            found = compare_models(original, written, check, binding)
        if second != first and found.verdict.passed:
            other = compare_models(original, written, check, binding.at(second))
            found = other if other.as_written or not other.verdict.passed else found
        verdict = with_donation(found.verdict, (original, planned), donation, check, binding)
        verdict = replace(verdict, notes=(*verdict.notes, *measured, *agreed))
        if plan is not None and "replay" in extras:
            verdict = _replayed(verdict, planned, plan, check, binding)
    return Proof(verdict, facts and with_binding(facts, donation.pairs))


def _refuse_extras(extras: Collection[Extra]) -> None:
    """Refuse what a decode loop cannot tell.

    Raises:
        SettingsError: naming the first.
    """
    for extra in extras:
        raise SettingsError(
            f"--{extra} runs a model on inputs of its own, and one with caches in place is "
            "decoded",
            hint="leave it out",
        )


def _measured_further(
    facts: RuntimeFacts | None,
    original: Path,
    planned: Path,
    check: Check,
    binding: Binding,
) -> tuple[RuntimeFacts | None, tuple[str, ...]]:
    """Return facts with the memory of several processes and with times, and notes on them.

    Raises:
        RuntimeUnavailableError: one of several processes cannot hold a model.
    """
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.several_processes import memory_of_processes
    from memplan_cli.runtime.verification.verify import with_time
    from memplan_cli.runtime.workers.spec import RunConditions

    if facts is None or facts.settings is None:
        return facts, ()
    conditions = RunConditions.of_check(check, binding)
    if check.processes:
        before = memory_of_processes(original, DEFAULTS, conditions, check.processes)
        as_loaded = replace(conditions, as_loaded=True)
        after = memory_of_processes(planned, facts.settings, as_loaded, check.processes)
        facts = replace(facts, processes=Together(check.processes, before, after))
    return with_time(facts, original, planned, conditions)


def _refused(comparison: PlanComparison, provider: str) -> Validation:
    """Return the verdict on a model and a plan that say different things; nothing was run."""
    return Validation(
        status="failed",
        provider=PROVIDERS.get(provider, CPU),
        notes=tuple(f"plan: {text}" for text in comparison.disagreements),
    )


def _pair(planned: Path, original: FilePath | None) -> tuple[Path, Path]:
    """Return a written model and its original, which are two files.

    Raises:
        ModelError: one is missing, or both names are of one file.
    """
    source = _named_by(planned) if original is None else Path(original)
    if planned.exists() and source.exists() and planned.samefile(source):
        raise ModelError(
            f"{source} is the written model itself, which says nothing of its original",
            hint="name with --original the model that it was made from",
        )
    return planned, source


def _named_by(planned: Path) -> Path:
    """Return the file that ``optimize`` made this one from, by its default name.

    Raises:
        ModelError: there is no such file, or its name does not say.
    """
    if not planned.exists():
        raise ModelError(f"there is no file {planned}")
    original = original_of(planned)
    if original is None:
        raise ModelError(
            f"{planned} does not say which model it was made from",
            hint="name it with --original",
        )
    if not original.exists():
        raise ModelError(
            f"there is no file {original}, the default for the model that it was made from",
            hint="name that model with --original",
        )
    return original


def refuse_foreign(notes: Mapping[str, str], planned: Path) -> None:
    """Refuse a model without notes of its plan.

    Raises:
        ModelError: memplan did not write it.
    """
    if not notes:
        raise ModelError(
            f"{planned} carries no plan of memplan",
            hint="name the file that `memplan optimize` wrote",
        )


def _own_plan(planned: Path, digest: str | None) -> Plan:
    """Read the plan beside a written model.

    Raises:
        PlanError: it is not there, not valid, or another model's.
    """
    from memplan_cli.planning.plan_file import read_plan

    plan = read_plan(plan_beside(planned))
    if plan.digest != digest:
        raise PlanError(
            f"the plan beside {planned} is another model's: its digest is not the one that "
            "the model carries",
            hint="run `memplan optimize` again, or bring the plan that belongs to the model",
        )
    return plan


def _bound(file: ModelFile, plan: Plan | None, inputs: Inputs) -> Binding:
    """Return what a plan was made for, and the inputs given, which have the same sizes.

    Raises:
        PlanError: the plan does not say them.
        SettingsError: the inputs are of other sizes, or none that the model takes.
    """
    from memplan_cli.onnx_io.interface import known_dims

    shapes = {} if plan is None else shapes_of(plan)
    # A graph that the runtime made may have lost dims that no input has.
    known = known_dims(file.model, shapes.values())
    said = {} if plan is None else dims_of(plan)
    dims = {name: value for name, value in said.items() if name in known}
    assumed = {name: value for name, value in _assumed(plan).items() if name in known}
    settings = Settings(dims=dims, shapes=shapes, inputs=inputs)
    try:
        settings = bind(file.model, settings)
        own = replace(settings.inputs, assumed=assumed if plan else None)
        return binding_of(bind_whole(file, replace(settings, inputs=own)))
    except SettingsError as error:
        if plan is None or not inputs.given:
            raise
        raise SettingsError(
            f"the inputs are not those of the plan: {error}",
            hint=error.hint or _planned_with(plan.report, inputs),
        ) from error


def _planned_with(report: Report, inputs: Inputs) -> str:
    """Return the command that plans with inputs in files; arrays have no word of their own."""
    files = " ".join(f"--inputs {quote(file)}" for file in inputs.files)
    return (
        f"`memplan optimize {path_argument(report)} {files}` plans with them" if files else ""
    )


def _assumed(plan: Plan | None) -> Mapping[str, int]:
    """Return the numbers of the dims that a plan is symbolic in, as its report assumed them."""
    bindings = {} if plan is None else plan.report.bindings
    return {name: dim.value for name, dim in bindings.items() if dim.source == "assumed"}


def bindings_inside(
    plan: Plan | None, usual: Mapping[str, int]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return two values for each dim that a plan has bounds for, both inside of them.

    The first is the one nearest to the usual value, which is small: the largest may need
    more memory than there is. They are equal where the bounds leave one.

    Raises:
        PlanError: the plan does not say its bounds: settings are free in its schema.
    """
    bounds = {} if plan is None else bounds_of(plan)
    first, second = {}, {}
    for name, (low, high) in bounds.items():
        if name in usual:
            first[name] = at = min(max(usual[name], low), high)
            second[name] = at + 1 if at < high else max(low, at - 1)
    return first, second


def _replayed(
    verdict: Validation, planned: Path, plan: Plan, check: Check, binding: Binding
) -> Validation:
    from memplan_cli.runtime.replay.replay import replay
    from memplan_cli.runtime.workers.spec import RunConditions

    found = replay(planned, plan, RunConditions.of_check(check, binding))
    notes = [f"replay: {said}" for said in found.extent.described()]
    notes += [f"replay: {found.reason}"] if found.reason else []
    notes += [f"replay: {note}" for note in found.notes]
    return replace(
        verdict,
        replay=found.status,
        differences=(*verdict.differences, *found.differences),
        notes=(*verdict.notes, *notes),
    )
