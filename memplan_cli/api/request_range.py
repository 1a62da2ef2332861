"""Settings for requests of any size within bounds: chosen for a model, and for a written model.

`features.serving` chooses the settings. Here, the model is read and its other dims are bound.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import (
    assumption_notes,
    binding_of,
    require_runs,
    sizes_and_inputs_only,
)
from memplan_cli.api.models.model_file import bind_all_dims, read_model
from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.bindings import Binding
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU, DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.core.results.report import ALL_SIZES, ONE_SIZE
from memplan_cli.core.selection import nearest
from memplan_cli.errors import MemplanError, SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.memory import Memory
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.settings import ServingSettings
    from memplan_cli.settings.settings import Settings

_GRAPH_OPTIONS = ("graph_optimization_level", "execution_order")
"""Session options that decide which graph runs, and in which order."""


@dataclass(frozen=True, slots=True)
class RangeSettings:
    """Settings for all sizes within bounds, and what the arena holds with them.

    Attributes:
        bounds: the numbers that each dim may have.
        notes: what was assumed, and which sizes were simulated.
    """

    serving: ServingSettings
    bounds: Bounds
    notes: tuple[str, ...] = ()


def range_settings(
    model: FilePath,
    settings: Settings,
    timeout: float | None = None,
    fixed_options: RuntimeSettings | None = None,
) -> RangeSettings:
    """Return the runtime options with which a process needs the least memory for requests within bounds.

    A `Service` is the model with the sizes of its requests (``extent``) and the options that stay (``base``).

    Args:
        model: the file; its weights must exist, because an ONNX Runtime session loads it.
        settings: bounds of the dims of requests, and what binds the other dims.
        timeout: seconds for each process that runs the model to confirm the options; None: the options
            are predicted only, without a run.
        fixed_options: runtime options that must not change; None: those recorded in the file.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.features.serving.loads import predict_sizes
    from memplan_cli.features.serving.settings import choose_settings

    if timeout is None:
        service, notes = service_of(Path(model), settings, fixed_options=fixed_options)
        serving = choose_settings(
            predict_sizes(service), size_count=service.extent.count, base=service.base
        )
        notes = (*notes, "predicted, not measured: kernels' workspace is not included")
    else:
        require_runs(settings, "--measure")
        service, notes = service_that_runs(Path(model), settings, timeout, fixed_options)
        serving = measured_settings(service)
    notes = (*notes, *sampling_notes(serving))
    return RangeSettings(serving, service.extent.bounds, notes)


def measured_settings(service: Service) -> ServingSettings:
    """Choose settings with measured workspaces of kernels, and confirm their bound by a run."""
    from memplan_cli.features.serving.loads import measure_sizes
    from memplan_cli.features.serving.settings import choose_settings
    from memplan_cli.features.serving.soak import confirm_bound

    serving = choose_settings(
        measure_sizes(service), size_count=service.extent.count, base=service.base
    )
    return confirm_bound(service, serving)


def sampling_notes(serving: ServingSettings) -> tuple[str, ...]:
    """Return the note that not every size was simulated; empty if every one was."""
    if serving.exhaustive:
        return ()
    simulated = f"{serving.simulated_sizes} of {serving.sizes} sizes were simulated, the corners among them"
    return (f"{simulated}: the bound holds for these",)


def service_of(
    path: Path,
    settings: Settings,
    timeout: float = DEFAULT_TIMEOUT,
    fixed_options: RuntimeSettings | None = None,
) -> tuple[Service, tuple[str, ...]]:
    """Return a `Service`, that is a model with the sizes of its requests, and notes on assumed dims.

    Requests differ in the dims with bounds. Other dims have numbers in the settings, or get assumed numbers at
    which the model runs the largest request. ``fixed_options`` are runtime options that must not change; None:
    those recorded in the file.

    Raises:
        SettingsError: there are no bounds, or bounds of a dim that has a number or is not in the model.
    """
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.sizes import Extent

    file, bounds = read_model(path), settings.bounds
    _refuse_wrong_bounds(file, settings)
    if fixed_options is None:
        fixed_options = _recorded_settings(file)
    # With the bounds, `bind_all_dims` gives each dim of requests its highest number.
    size_settings = replace(sizes_and_inputs_only(settings), bounds=bounds)
    settings_of_largest = bind_all_dims(file, size_settings)
    largest = binding_of(settings_of_largest)
    other_dims = {name: value for name, value in largest.dims.items() if name not in bounds}
    assumed_other_dims = largest.assumed - bounds.keys()
    service = Service(
        model=path,
        extent=Extent(bounds),  # the dims of requests
        binding=Binding(other_dims, largest.feeds, assumed_other_dims),
        timeout=timeout,
        base=fixed_options,
    )
    return service, assumption_notes(settings_of_largest)


def service_that_runs(
    path: Path,
    settings: Settings,
    timeout: float = DEFAULT_TIMEOUT,
    fixed_options: RuntimeSettings | None = None,
) -> tuple[Service, tuple[str, ...]]:
    """Return the `Service` of `service_of` without request sizes at which the model fails, and notes.

    The model is run to find these sizes. The arguments are those of `service_of`.

    Raises:
        SettingsError: as for `service_of`.
        RuntimeUnavailableError: the model runs at none of the sizes that were tried.
    """
    from memplan_cli.features.serving.sizes_that_run import with_sizes_that_run
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_checked

    service, notes = service_of(path, settings, timeout, fixed_options)
    program = read_checked(read_model(path).lazy, Bindings(settings.dims)).program
    service, size_notes = with_sizes_that_run(service, program)
    return service, (*notes, *size_notes)


def _recorded_settings(file: ModelFile) -> RuntimeSettings:
    """Return the recorded settings of a file whose graph must run as it is; empty if it may be optimized."""
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings

    recorded = recorded_settings(metadata_of(file.model))
    if recorded is None or not recorded.settings.is_unoptimized:
        return RuntimeSettings()
    # Of options that do not decide how the graph runs, only the outputs that are written over inputs are kept.
    io_binding = recorded.settings.io_binding
    return replace(_graph_settings(recorded.settings), io_binding=io_binding)


def _graph_settings(runtime_settings: RuntimeSettings) -> RuntimeSettings:
    """Return the options that decide how the graph runs: a file needs them at requests of any size."""
    session = {k: v for k, v in runtime_settings.session.items() if k in _GRAPH_OPTIONS}
    return RuntimeSettings(session=session, session_config=runtime_settings.session_config)


def _refuse_wrong_bounds(file: ModelFile, settings: Settings) -> None:
    """Refuse missing bounds, and bounds of dims that have a number or that no request has."""
    from memplan_cli.onnx_io.interface import free_dims

    names = tuple(free_dims(file.model))
    if not settings.bounds:
        options = bounds_options(names)
        raise SettingsError(
            "the sizes of requests have no range",
            hint=options or "the model has no free dim: all its sizes are fixed",
        )
    for name in settings.bounds:
        if name in settings.dims:
            raise SettingsError(f"dim {name!r} has both a number and bounds")
        if name not in names:
            dims = (
                f"the dims of its inputs are {', '.join(names)}"
                if names
                else "all its dims are fixed"
            )
            raise SettingsError(
                f"the model has no dim {name!r}: {dims}", hint=nearest(name, names)
            )


def with_numbers_in_bounds(settings: Settings, memory: Memory) -> Settings:
    """Return settings in which dims with bounds have the numbers at which the model is run.

    These are the numbers that ``settings`` assume, or the lowest numbers within the bounds if the largest
    size needs more than half of the memory of this machine. ``memory`` is that of the plan at the largest size.
    """
    if not settings.bounds or _known_bytes(memory) <= _half_of_machine():
        return settings
    lowest = {name: limits.low for name, limits in settings.bounds.items()}
    assumed = {**(settings.inputs.assumed or {}), **lowest}
    return replace(settings, inputs=replace(settings.inputs, assumed=assumed))


def with_size_that_runs(file: ModelFile, settings: Settings, timeout: float) -> Settings:
    """Return settings with numbers for all dims: those of the largest size at which the model runs.

    The model is run to find this size, within the bounds in ``settings``. Numbers in ``settings`` stay.

    Raises:
        RuntimeUnavailableError: the model runs at none of the sizes that were tried.
    """
    # A `Service` is the model with the sizes of its requests, here only sizes at which it runs.
    service, _ = service_that_runs(file.path, settings, timeout)
    dims_of_largest = service.dims(service.extent.largest)  # also the dims without bounds
    assumed = {n: value for n, value in dims_of_largest.items() if n not in settings.dims}
    return replace(settings, inputs=replace(settings.inputs, assumed=assumed))


def with_range_settings(
    plan: Plan, settings: Settings, path: Path, timeout: float, progress: Progress
) -> Plan:
    """Return a plan whose report has runtime settings for every request within its bounds.

    The given plan has settings for the one size that was run. These settings stay if there are no bounds, or
    if no settings for the range are found; then a warning says why. ``settings`` are memplan's settings, with
    the bounds, and ``path`` is the written model.
    """
    facts = plan.report.runtime
    if not settings.bounds or facts is None or facts.settings is None:
        return plan
    obstacle = _range_obstacle(facts, plan.report.memory)
    if obstacle:
        return _for_one_size(plan, obstacle)
    progress("choosing settings for the range")
    # Feeds and assumed dims were resolved for one run: they are resolved again for the largest sizes.
    unbound_inputs = replace(settings.inputs, feeds=None, assumed=None)
    unbound_settings = replace(settings, inputs=unbound_inputs)
    fixed_options = _graph_settings(facts.settings)
    try:
        result = range_settings(path, unbound_settings, timeout, fixed_options)
    except MemplanError as error:
        return _for_one_size(plan, error.message.replace(str(path), "the written model"))
    runtime_for_range = replace(
        result.serving.chosen.settings,
        io_binding=facts.settings.io_binding,  # which outputs overwrite inputs does not depend on sizes
    )
    facts_for_range = replace(
        facts,
        settings=runtime_for_range,
        settings_scope=ALL_SIZES,
        idle=None,  # it was measured with the settings for one size
    )
    plan = plan.with_report(replace(plan.report, runtime=facts_for_range))
    return plan.with_warnings(_range_warning(result, facts), *result.notes)


def _range_obstacle(facts: RuntimeSummary, memory: Memory) -> str:
    """Return why settings for a range are not searched for; empty if they are.

    ``facts`` are of the one size that was run, and ``memory`` is the plan's for the largest size, at
    which the search runs the model: it must not exhaust the machine.
    """
    if facts.provider != CPU:
        return f"on {facts.provider} no range is looked at"
    largest_bytes = _known_bytes(memory)
    if largest_bytes > _half_of_machine():
        return f"the largest takes {format_size(largest_bytes)}, and was not run"
    return ""


def _known_bytes(memory: Memory) -> int:
    """Return the total of a plan, or the sum of the known parts if data decides sizes."""
    if memory.total is not None:
        return memory.total
    parts = (memory.weights, memory.inputs, memory.outputs, memory.planned)
    return sum(part for part in parts if part is not None)


def _half_of_machine() -> int:
    """Return half the memory of this machine in bytes; unlimited if the system does not tell it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # no POSIX
        return sys.maxsize


def _for_one_size(plan: Plan, reason: str) -> Plan:
    """Return a plan whose report says that its settings do not suit all sizes within the bounds."""
    report = plan.report
    if report.runtime is not None:
        report = replace(report, runtime=replace(report.runtime, settings_scope=ONE_SIZE))
    return plan.with_report(report).with_warnings(
        f"the settings are for one size of requests, not for all within the bounds: {reason}"
    )


def _range_warning(result: RangeSettings, facts: RuntimeSummary) -> str:
    """Return for which sizes the settings are, and the most that the arena holds with them."""
    sizes = ", ".join(f"{name} {limits}" for name, limits in result.bounds.items())
    bound = result.serving.chosen.bound
    held = (
        "no bound of the arena was found"
        if bound is None
        else f"in any sequence of them the arena holds at most {format_size(bound)}, if the outputs of "
        "each are released before the next"
    )
    observed = "; the measured run had the settings for one size" if facts.observed else ""
    return f"the settings are for all requests with {sizes}: {held}{observed}"
