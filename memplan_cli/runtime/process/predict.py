"""Prediction of the memory of a process that loads a model into a session and runs it.

The session is simulated in a process (`SimulatedMemory`): loading first, then three runs with the
simulated arena, whose regions lie on the heap or in mappings. Resident bytes are attributed to parts.

The runs are simulated twice: a caller that drops the outputs of each run at once, as memplan's own runs
do, and one that keeps them until the next run has returned, as most programs do. Kept outputs lie in the
arena, between the tensors of the next run. They may cost far more than their own bytes: 700 MiB for 393 MiB
of a GPT-2's logits and caches (measured).
"""

from __future__ import annotations

from bisect import bisect_right
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, ProcessBytes
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.loading.heap import LOADING_THRESHOLD, threshold_of_runs
from memplan_cli.runtime.process.parts import (
    ARENA,
    ARENA_TABLES,
    KERNEL_WORKSPACE,
    MAPPED_WEIGHTS,
    RUNTIME_CODE,
    SESSION_GRAPH,
    Part,
    PredictedProcess,
    remedy_of,
)
from memplan_cli.runtime.process.session_loading import SessionLoading
from memplan_cli.runtime.process.simulated_memory import (
    SMALL_ALIGNMENT,
    MemoryBlock,
    SimulatedMemory,
)
from memplan_cli.runtime.profile.packed_weights import unmeasured_kernels, weight_reads
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import (
    heap_workspace,
    requests_from_totals,
    workspace_by_rule,
)
from memplan_cli.runtime.simulate.arena import ArenaSettings, SimulatedArena
from memplan_cli.runtime.simulate.execution import trace_session
from memplan_cli.runtime.simulate.predict import packs_weights, simulated_model
from memplan_cli.runtime.simulate.trace import (
    CHUNK,
    UnknownBytesError,
    tensor_bytes,
    with_kept_outputs,
)
from memplan_cli.runtime.workers.spec import MEASURED_RUNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import VarId
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.onnx_io.weights.stored import StoredModel
    from memplan_cli.runtime.profile.packed_weights import WeightRead
    from memplan_cli.runtime.profile.workspace import Workspace
    from memplan_cli.runtime.simulate.arena import AfterRun
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_MAPPINGS = 1 << 64
"""Mappings lie below this address, far above those of the heap."""


@dataclass(frozen=True, slots=True)
class ProcessMeasurements:
    """Measurements that replace parts of a simulation, and how the file is opened.

    Attributes:
        workspace: bytes that kernels request besides their outputs, by node; None: by rules.
        opened_by_memplan: whether `memplan_cli.load` opens the file, which returns free memory
            to the system afterwards.
    """

    workspace: Mapping[str, int] | None = None
    opened_by_memplan: bool = False


NO_MEASUREMENTS = ProcessMeasurements()


def simulate_process(
    stored: StoredModel,
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    measurements: ProcessMeasurements = NO_MEASUREMENTS,
) -> PredictedProcess | None:
    """Return the predicted bytes of a process that loads a model and runs it `MEASURED_RUNS` times.

    A process with ONNX Runtime imported and no session counts as 0 bytes. None without a prediction: on other
    providers than the CPU, without an arena, with kernels whose packing was not measured, and if sizes depend on data.
    """
    if _setup_obstacle(executed, settings):
        return None
    try:
        traces = trace_session(
            simulated_model(executed, settings), _workspace(executed, measurements)
        )
    except UnknownBytesError:  # a size depends on data
        return None
    memory = SimulatedMemory()
    loading = SessionLoading(
        memory, stored, executed.program, executed.dims, packs_weights(settings)
    )
    _simulate_loading(loading, measurements, settings)
    load_peak, load_parts = memory.peak_bytes, dict(memory.peak_parts)
    _map_for_runs(loading, stored)  # code, objects and mapped weights that runs need
    memory_if_kept = deepcopy(memory)
    runs = (traces.first, *[traces.later] * (MEASURED_RUNS - 1))
    heap_sizes = heap_workspace(executed.program, executed.dims)
    _simulate_runs(memory, runs, settings, heap_sizes)
    # The same runs for a caller that keeps the outputs of a run until the next one has returned, as one trace.
    _simulate_runs(memory_if_kept, (with_kept_outputs(runs),), settings, heap_sizes)
    process = ProcessBytes(
        load=load_peak,
        run=memory.peak_bytes,
        private=memory.anonymous,  # resident after the last run, as are the pages of files
        file=memory.file.total(),
        kept=max(memory_if_kept.peak_bytes - memory.peak_bytes, 0),  # more at the peak
    )
    return PredictedProcess(process, parts=_parts(load_parts, memory))


def predict_process_bytes(
    stored: StoredModel,
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    measurements: ProcessMeasurements = NO_MEASUREMENTS,
) -> ProcessBytes | None:
    """Return the bytes of `simulate_process` without their parts."""
    predicted = simulate_process(stored, executed, settings, measurements)
    return predicted.process if predicted else None


def prediction_obstacle(executed: ExecutedGraph, settings: RuntimeSettings) -> str:
    """Return why the process of a session cannot be predicted, or an empty text."""
    reason = _setup_obstacle(executed, settings)
    if reason or executed.observed is not None:  # an observed run has shown all sizes
        return reason
    known_sizes = tensor_bytes(executed.program, executed.dims)
    names_without_size = (
        executed.program.vars[var].name
        for _, op in walk(executed.program.body)
        for var in op.outputs
        if var and var not in known_sizes
    )
    name = next(names_without_size, None)
    return "" if name is None else f"data decides the size of {name!r}"


def _setup_obstacle(executed: ExecutedGraph, settings: RuntimeSettings) -> str:
    """Return why provider, settings or operators prevent a prediction, or an empty text."""
    if executed.provider != CPU:
        return f"only processes on {CPU} are predicted, not on {executed.provider}"
    if not settings.session.get("enable_cpu_mem_arena", True):
        return "sessions without an arena are not predicted"
    kernels = unmeasured_kernels(executed.program)
    return f"how {', '.join(kernels)} packs its weights was not measured" if kernels else ""


def _workspace(executed: ExecutedGraph, measurements: ProcessMeasurements) -> Workspace:
    """Return the workspace that the kernels request: as measured, or else by rule."""
    program, dims = executed.program, executed.dims
    if measurements.workspace is None:
        return workspace_by_rule(program, dims)
    return requests_from_totals(program, dims, measurements.workspace)


def _simulate_loading(
    loading: SessionLoading, measurements: ProcessMeasurements, settings: RuntimeSettings
) -> None:
    """Simulate how the session is created, which changes ``loading`` and its memory.

    If `memplan_cli.load` opens the file, it fixes the size from which glibc maps blocks, returns free memory
    when the session exists, and then fixes another such size for the runs.
    """
    memory = loading.memory
    if measurements.opened_by_memplan:
        memory.heap.fix_threshold(LOADING_THRESHOLD)
    loading.run()
    if measurements.opened_by_memplan:
        memory.trim()
        memory.heap.fix_threshold(threshold_of_runs(settings.run_config))


def _map_for_runs(loading: SessionLoading, stored: StoredModel) -> None:
    """Add the code, objects and mapped weights that runs need to the memory of a loaded session."""
    memory = loading.memory
    memory.map_file(RUNTIME_CODE, PROFILE.run_code)
    memory.add_objects(SESSION_GRAPH, PROFILE.run_node_heap * stored.nodes)
    weights = _mapped_weight_bytes(loading)
    # Pages that loading left resident are not read again.
    memory.map_file(MAPPED_WEIGHTS, max(weights - memory.file[MAPPED_WEIGHTS], 0))


def _simulate_runs(
    memory: SimulatedMemory,
    runs: Sequence[AllocationTrace],
    settings: RuntimeSettings,
    heap_sizes: Sequence[int],
) -> None:
    """Simulate runs of a new session one after the other; ``memory`` is changed.

    Run entries of the settings release the arena after each run. ``heap_sizes`` are bytes that kernels of a
    run allocate on the heap, and free at their end.
    """
    after_run: AfterRun = "shrink" if settings.run_config else "keep"
    arena = _ResidentArena(memory, ArenaSettings.from_settings(settings.arena), after_run)
    for run in runs:
        arena.run(run)
        for size in heap_sizes:
            memory.free(memory.allocate(KERNEL_WORKSPACE, size, SMALL_ALIGNMENT))


@dataclass(slots=True)
class _ResidentArena:
    """An arena whose regions lie in a simulated process. All allocated memory is written.

    Attributes:
        memory: the memory of the process.
        settings: of the arena.
        after_run: whether empty regions are given back at the end of a run.
        _arena: which decides where tensors lie. It calls `_place_region` for each region that it needs.
        _regions: the block of each region, by its address in units of `CHUNK` bytes.
        _lowest_mapping: address, in these units, of the mapping that was made last.
    """

    memory: SimulatedMemory
    settings: ArenaSettings
    after_run: AfterRun
    _arena: SimulatedArena = field(init=False)
    _regions: dict[int, MemoryBlock] = field(default_factory=dict)
    _lowest_mapping: int = _MAPPINGS // CHUNK

    def __post_init__(self) -> None:
        self._arena = SimulatedArena(self.settings, place_region=self._place_region)

    def run(self, trace: AllocationTrace) -> None:
        """Simulate one run in ``memory``: its requests to the arena, and writes to all that it allocates.

        The caller of the run frees its outputs later, in the last steps of the trace. With ``after_run`` "shrink",
        empty regions are given back to ``memory`` at the end of the run, before these steps.
        """
        end_of_run = len(trace.steps) - trace.outputs
        # For each region that the arena adds meanwhile, `_place_region` adds an entry to `_regions`.
        self._arena.run(replace(trace, steps=trace.steps[:end_of_run]))
        region_starts = sorted(self._regions)
        for address, size in zip(self._arena.addresses, trace.sizes, strict=True):
            if size:  # addresses are in units, sizes in bytes
                start = region_starts[bisect_right(region_starts, address) - 1]
                self.memory.touch(self._regions[start], (address - start) * CHUNK, size)
        if self.after_run == "shrink":
            for start in self._arena.shrink():
                self.memory.free(self._regions.pop(start))
        self._arena.serve(trace.steps[end_of_run:])  # the frees of the outputs

    def _place_region(self, units: int) -> int:
        """Reserve a region in ``memory``, record it, and return its address in units of `CHUNK` bytes.

        Regions lie on the heap or in mappings; each mapping lies below the one before. ONNX Runtime also
        allocates a table for each region, with a handle for each of its chunks.
        """
        size = units * CHUNK
        block = self.memory.reserve(ARENA, size)
        self.memory.allocate(ARENA_TABLES, size // PROFILE.arena_handle_ratio, SMALL_ALIGNMENT)
        if block.address is None:
            # A mapping begins with a header, for which one unit is left free between two regions.
            self._lowest_mapping -= units + 1
            start = self._lowest_mapping
        else:
            start = block.address // CHUNK
        self._regions[start] = block
        return start


def _mapped_weight_bytes(loading: SessionLoading) -> int:
    """Return the bytes of external weights that runs read, in pages that are mapped from files.

    A kernel that packs a weight reads only its packed copy, which lies in the file if the file has one, else
    on the heap. Other kernels read the weight itself. Several reads may be of different pages, so their
    bytes are added, up to the whole weight or the whole packed copy.
    """
    program = loading.program
    read_of_weight: dict[VarId, int] = {}  # bytes
    read_of_packed_copy: dict[VarId, int] = {}  # bytes
    for read in weight_reads(program):
        weight = loading.stored_weights.get(program.vars[read.weight].name)
        # A weight that optimization made, or one in the model file itself, is not mapped.
        if weight is None or weight.inside:
            continue
        if loading.packs and read.packed_bytes > 0:
            # The kernel reads a packed copy: from the file, or from the heap if the file has none (0 bytes).
            read_of_packed_copy[read.weight] = weight.packed_in_file
            continue
        rows = _looked_up_rows(loading, read)
        # The system maps several pages around each row.
        read_bytes = weight.size if rows is None else rows * PROFILE.mapped_for_row
        earlier_bytes = read_of_weight.get(read.weight, 0)
        read_of_weight[read.weight] = min(earlier_bytes + read_bytes, weight.size)
    return sum(read_of_weight.values()) + sum(read_of_packed_copy.values())


def _looked_up_rows(loading: SessionLoading, read: WeightRead) -> int | None:
    """Return how many rows of a weight a Gather looks up; None if the op may read all of the weight."""
    op = read.op
    if op.type != "Gather" or read.weight != op.inputs[0]:
        return None
    shape = loading.program.vars[read.weight].shape
    first_axis = (0,) if shape is None else (0, -len(shape))
    if op.attributes.get("axis", 0) not in first_axis:
        return None  # other axes have a part of each result in every row
    indices = op.inputs[1]
    size = loading.sizes.get(indices)  # None: it is not known before the run
    return None if size is None else 8 * size // BITS[loading.program.vars[indices].dtype]


def _parts(load_parts: Mapping[str, int], memory: SimulatedMemory) -> tuple[Part, ...]:
    """Return the parts of the process by purpose, the largest first.

    ``load_parts`` are the bytes by purpose at the peak of loading. ``memory`` is that after the runs.
    """
    run_parts, private_parts = memory.peak_parts, memory.anonymous_parts()
    parts = (
        Part(
            name,
            load=load_parts.get(name, 0),
            run=run_parts.get(name, 0),
            private=private_parts.get(name, 0),
            remedy=remedy_of(name),
        )
        for name in {**load_parts, **run_parts, **private_parts}
    )
    not_empty = (part for part in parts if part.load or part.run or part.private)
    return tuple(sorted(not_empty, key=lambda part: (-part.run, -part.load, part.name)))
