"""``memplan validate``: check a written model against its plan, and run it beside its original."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Literal

from memplan_cli.api.models.binding import binding_of, number_other_than
from memplan_cli.api.models.file_names import default_original, plan_beside
from memplan_cli.api.models.model_file import ModelFile, bind_all_dims
from memplan_cli.api.models.plan_files import (
    compare_with_model,
    planned_dims,
    planned_settings,
)
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import accepts_option_names
from memplan_cli.api.output.rewriting import is_spoiled_by_optimization
from memplan_cli.core.bindings import inputs_of
from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.results.observations import CPU, PROVIDERS, Validation
from memplan_cli.core.results.report import Proof
from memplan_cli.errors import ModelError, PlanError, SettingsError, missing
from memplan_cli.planning.plan_file import bounds_of
from memplan_cli.reporting.hints import path_argument
from memplan_cli.runtime.workers.fork_client import warm_workers
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.bindings import Binding, Inputs
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.runtime.settings_search.written_model import WrittenModel
    from memplan_cli.runtime.verification.verify import Verification

Extra = Literal["replay", "measure"]


@accepts_option_names(replay={"extras": ("replay",)}, measure={"extras": ("measure",)})
def validate(
    planned: ModelSource,
    original: ModelSource | None = None,
    check: Check = DEFAULT_CHECK,
    extras: Collection[Extra] = (),
    inputs: Inputs | Mapping[str, object] | FilePath | None = None,
) -> Proof:
    """Check a written model against its plan, run it and its original, and compare the outputs.

    If the plan beside the model disagrees with the model, nothing is run. Otherwise both models run at the
    dims of the plan, and, if these have bounds, at second ones. Without a plan, dims are assumed. If
    outputs may overwrite inputs, two steps are taken with each such pair in one buffer. Decoders with
    caches in place run a decode loop, and so do their originals.

    Args:
        planned: A model that memplan wrote. The extras need its plan beside it.
        original: The model it was made from; None: ``net.onnx`` beside ``net.memplan.onnx``.
        check: Where to run, and what counts as equal.
        extras: ``replay`` runs it op by op inside the plan's arenas; ``measure`` measures
            both models' memory and run time in ONNX Runtime.
        inputs: Real inputs, of the sizes that the plan was made for; the others are drawn. A file,
            or tensors by name.

    Raises:
        MemplanError: a file is not what it should be, or the original cannot run.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.metadata import recorded_reference

    models = (planned,) if original is None else (planned, original)
    with model_paths(*models) as files:
        written = files.path
        source = _original_of(written) if original is None else files.paths[1]
        _refuse_same_file(written, source)
        file = ModelFile.of(written, load_model(written))
        plan = _plan_of(file, extras)
        comparison = None if plan is None else compare_with_model(file.model, plan, source)
        if comparison is not None and comparison.disagreements:
            reasons = tuple(f"plan: {text}" for text in comparison.disagreements)
            provider = PROVIDERS.get(check.provider, CPU)
            verdict = Validation(status="failed", provider=provider, notes=reasons)
            return files.without_temporary_folder(Proof(verdict))
        check = replace(check, reference=recorded_reference(file.model))
        proof = _run_both(source, file, plan, check, extras, inputs_of(inputs or ()))
        if comparison is not None:
            verdict = proof.validation
            verdict = replace(verdict, notes=(*verdict.notes, comparison.summary()))
            proof = replace(proof, validation=verdict)
        return files.without_temporary_folder(proof)


def _refuse_same_file(written: Path, original: Path) -> None:
    """Raise ModelError if both paths are one file; a missing file is found when it is read."""
    if written.exists() and original.exists() and written.samefile(original):
        raise ModelError(
            f"{original} is the written model itself, not its original",
            hint="name with --original the model that it was made from",
        )


def _original_of(written: Path) -> Path:
    """Return the file that ``optimize`` made this one from, by its default name.

    Raises:
        ModelError: there is no such file, or the name is no default.
    """
    if not written.exists():
        raise missing(written, ModelError)
    original = default_original(written)
    if original is None:
        raise ModelError(
            f"{written} does not say which model it was made from",
            hint="name it with --original",
        )
    if not original.exists():
        raise ModelError(
            f"there is no file {original}, the default for the model that it was made from",
            hint="name that model with --original",
        )
    return original


def _plan_of(written: ModelFile, extras: Collection[Extra]) -> Plan | None:
    """Return the plan beside a written model; None if there is none, and no extra needs it.

    Raises:
        ModelError: the model was not written by memplan.
        PlanError: the plan is not valid, or another model's, or is missing although an extra needs it.
    """
    from memplan_cli.onnx_io.metadata import read_notes
    from memplan_cli.planning.plan_file import read_plan

    notes = read_notes(written.model)
    if not notes:
        raise ModelError(
            f"{written.path} contains no plan of memplan",
            hint="name the file that `memplan optimize` wrote",
        )
    plan_file = plan_beside(written.path)
    if not extras and not plan_file.exists():
        return None
    plan = read_plan(plan_file)
    if plan.digest != notes.get("digest"):
        raise PlanError(
            f"the plan beside {written.path} belongs to another model: its digest differs from the one that "
            "the model carries",
            hint="run `memplan optimize` again, or bring the plan that belongs to the model",
        )
    return plan


def _run_both(
    original: Path,
    written: ModelFile,
    plan: Plan | None,
    check: Check,
    extras: Collection[Extra],
    inputs: Inputs,
) -> Proof:
    """Run a written model and its original, and compare their outputs; return verdict and measured facts.

    The extra ``measure`` measures memory, and ``replay`` replays the plan, also if the outputs differ.

    Raises:
        SettingsError: an extra or inputs are given for a decoder, which is run in a loop.
    """
    from memplan_cli.features.donation.proof import (
        donated_steps,
        with_donated_buffers,
        with_donated_steps,
    )
    from memplan_cli.features.kv_cache.decode_loop import validate_decoding
    from memplan_cli.onnx_io.caches_metadata import recorded_caches
    from memplan_cli.onnx_io.metadata import donated_pairs, metadata_of
    from memplan_cli.runtime.verification.verify import compare_models

    caches = recorded_caches(metadata_of(written.model))
    if caches is not None:
        _refuse_for_decoder(extras, inputs)
        return Proof(validate_decoding((original, written.path), caches, plan, check))
    binding = _binding(written, plan, inputs)
    model_to_run = _written_model(written)
    # Extras need a plan: `_plan_of` refuses them without one.
    plan_to_measure = plan if "measure" in extras else None
    plan_to_replay = plan if "replay" in extras else None
    with warm_workers():
        if plan_to_measure is not None:
            report = plan_to_measure.report
            result = _measured(original, model_to_run, report, check, binding)
        else:
            outputs_only = replace(check, depth="outputs")  # without memory and times
            result = compare_models(original, model_to_run, outputs_only, binding)
        verdict = result.verdict
        pairs = donated_pairs(written.model)  # an input, and the output written over it
        if pairs and verdict.passed:
            # Of two steps, the second reads what the first has written over the inputs.
            steps = donated_steps((original, written.path), pairs, check, binding)
            verdict = with_donated_steps(verdict, steps)
        verdict = replace(verdict, notes=(*verdict.notes, *result.warnings))
        if plan_to_replay is not None:
            verdict = _replayed(verdict, written.path, plan_to_replay, check, binding)
    facts = None if result.facts is None else with_donated_buffers(result.facts, pairs)
    return Proof(verdict, facts)


def _refuse_for_decoder(extras: Collection[Extra], inputs: Inputs) -> None:
    """Raise SettingsError for an extra or inputs, which need single runs, while a decoder runs in a loop."""
    options = [f"--{extra}" for extra in extras]
    if inputs.given:
        options.append("--inputs" if inputs.files else "--input")
    if options:
        raise SettingsError(
            f"{options[0]} is for a model that is run on single inputs, and one with caches in place is "
            "decoded",
            hint="remove it",
        )


def _written_model(file: ModelFile) -> WrittenModel:
    """Return how a written model is run: under the settings that it records, except its bindings of outputs."""
    from memplan_cli.onnx_io.metadata import is_offline, metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings
    from memplan_cli.runtime.settings_search.written_model import WrittenModel

    recorded = recorded_settings(metadata_of(file.model))
    return WrittenModel(
        file.path,
        optimized_offline=is_offline(file.model),
        # Bindings write outputs over inputs. The proof of donated buffers tests that in runs of its own.
        recorded_settings=replace(recorded.settings, io_binding={}) if recorded else None,
    )


def _measured(
    original: Path, written: WrittenModel, report: Report, check: Check, binding: Binding
) -> Verification:
    """Compare a written model with its original, and measure memory and run time of both.

    Nothing is measured if the comparison fails. ``report`` is that of the written model's plan.
    """
    from memplan_cli.runtime.verification.verify import compare_models, with_time
    from memplan_cli.runtime.workers.spec import RunConditions

    written = replace(written, spoiled_by_optimization=is_spoiled_by_optimization(report))
    recorded = written.recorded_settings
    # The only run option that memplan records releases the arena after each run.
    is_released = recorded is not None and recorded.run_config
    # The depth "full" measures memory too.
    check = replace(check, depth="full", idle="release" if is_released else "keep")
    result = compare_models(original, written, check, binding)
    if result.facts is None:  # the comparison failed
        return result
    conditions = RunConditions.of_check(check, binding)
    facts, time_notes = with_time(result.facts, original, written.path, conditions)
    # The warnings of ``result``, on predicted memory, are left out: `optimize` wrote the same ones into the plan.
    return replace(result, facts=facts, warnings=time_notes)


def _binding(file: ModelFile, plan: Plan | None, inputs: Inputs) -> Binding:
    """Return the inputs and the numbers of dims with which a written model and its original are run.

    A dim has the number of the given inputs, or else an assumed one. With a plan, it has

    - the number in the plan's settings, with which given inputs must agree,
    - or else that of the given inputs,
    - or else the number that was assumed for the plan,
    - or else, if the plan has bounds for the dim, two numbers within these bounds: the models are run with both.

    Raises:
        PlanError: the plan does not contain its sizes, or its bounds are not valid.
        SettingsError: the inputs have other sizes, or are none of the model's.
    """
    from memplan_cli.onnx_io.interface import free_dims

    if plan is None:
        return binding_of(bind_all_dims(file, Settings(inputs=inputs)))
    settings = planned_settings(plan, file.model)
    # With a table of assumed numbers, even an empty one, `bind_all_dims` assumes none of its own.
    inputs = replace(inputs, assumed=settings.inputs.assumed)
    try:
        # Raises if the given inputs and the plan have different numbers.
        binding = binding_of(bind_all_dims(file, replace(settings, inputs=inputs)))
        # The written model may lack dims of the original, as a model in chunks does: they have the plan's numbers.
        dims = planned_dims(plan).items()
        only_in_original = {name: n for name, n in dims if name not in binding.dims}
        binding = binding.at(only_in_original)
        return _within_bounds(binding, bounds_of(plan), free_dims(file.model))
    except SettingsError as error:
        if not inputs.given:  # the inputs are not to blame
            raise
        raise SettingsError(
            f"the inputs are not those of the plan: {error.message}",
            hint=error.hint or _planning_command(plan.report, inputs),
        ) from error


def _planning_command(report: Report, inputs: Inputs) -> str:
    """Return a hint with the command that plans with input files; empty for arrays in memory."""
    files = " ".join(f"--inputs {quote(file)}" for file in inputs.files)
    return (
        f"`memplan optimize {path_argument(report)} {files}` plans with them" if files else ""
    )


def _within_bounds(binding: Binding, bounds: Bounds, names: Collection[str]) -> Binding:
    """Return a binding with two numbers for each of the named dims that has bounds and no number yet.

    Outputs are compared at both numbers, which finds plans that hold for one size only.
    """
    first: dict[str, int] = {}
    second: dict[str, int] = {}
    for name, limits in bounds.items():
        if name in names and name not in binding.dims:
            # Low numbers need little memory. `number_other_than` never returns 0 if the bounds have another number:
            # the two are 1 and 2 for the bounds 0 to 64, and 3 and 3 for the bounds 3 to 3.
            first[name] = number_other_than(0, limits)
            second[name] = number_other_than(first[name], limits)
    return replace(binding.at(first), second_numbers=second)


def _replayed(
    verdict: Validation, written: Path, plan: Plan, check: Check, binding: Binding
) -> Validation:
    """Run a model op by op inside its plan's arenas; return the verdict with the result."""
    from memplan_cli.runtime.replay.replay import replay
    from memplan_cli.runtime.workers.spec import RunConditions

    result = replay(written, plan, RunConditions.of_check(check, binding))
    texts = [*result.coverage.sentences(), *([result.reason] if result.reason else [])]
    notes = [f"replay: {text}" for text in (*texts, *result.notes)]
    return replace(
        verdict,
        replay=result.status,
        differences=(*verdict.differences, *result.differences),
        notes=(*verdict.notes, *notes),
    )
