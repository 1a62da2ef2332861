"""Prediction of the memory of a process that loads a model into a session and runs it.

The session is simulated in a process (`ProcessMemory`): loading first, then three runs with the
simulated arena, whose regions lie on the heap or in mappings. Resident bytes are attributed to parts.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, ProcessBytes
from memplan_cli.runtime.process.parts import (
    ARENA,
    ARENA_TABLES,
    CODE,
    GRAPH,
    KERNELS,
    WEIGHT_FILES,
    Part,
    PredictedProcess,
    remedy_of,
)
from memplan_cli.runtime.process.session_loading import SessionLoading
from memplan_cli.runtime.process.simulated_memory import (
    LOADED_THRESHOLD,
    LOADING_THRESHOLD,
    SMALL_ALIGNMENT,
    Block,
    ProcessMemory,
)
from memplan_cli.runtime.profile.packed_weights import read_weights, unmeasured_kernels
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import (
    as_requested,
    heap_workspace,
    workspace_by_rule,
)
from memplan_cli.runtime.simulate.arena import Arena, ArenaSettings
from memplan_cli.runtime.simulate.execution import trace_session
from memplan_cli.runtime.simulate.predict import simulated_model
from memplan_cli.runtime.simulate.trace import CHUNK, UnknownBytesError, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.onnx_io.weights.stored import StoredModel, StoredWeight
    from memplan_cli.runtime.profile.workspace import Workspace
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.runtime.simulate.trace import AllocationTrace

_RUNS = 3
"""Runs by the contract: the first grows the arena, the second makes the block of the pattern."""

_MAPPINGS = 1 << 46
"""Mappings lie below this address, far above those of the heap."""

_INDEX = 8
"""Bytes of the index of a row."""


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """What is known of the process that makes the session; the rest is simulated.

    Attributes:
        workspace: measured workspace of kernels, by node. None: by rules.
        loaded: what a real process took that made the session and ran nothing. None: simulated.
        as_loaded: whether `memplan_cli.load` opens the file, which returns free memory to the
            system afterwards.
    """

    workspace: Mapping[str, int] | None = None
    loaded: ProcessBytes | None = None
    as_loaded: bool = False


NOTHING_KNOWN = KnownProcess()


def simulate_process(
    stored: StoredModel,
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    provider: str = CPU,
    known: KnownProcess = NOTHING_KNOWN,
) -> PredictedProcess | None:
    """Return what a process with a session is predicted to take beyond one without.

    None on a provider other than the CPU's, without an arena, with kernels whose packing was not
    measured, or where data decides sizes.

    Args:
        stored: the file as the session finds it.
        executed: the graph that the session runs.
        settings: of the session.
        provider: where it runs.
        known: what is known of the process. The rest is simulated.
    """
    if _unpredictable(executed, settings, provider):
        return None
    memory = ProcessMemory()
    loading = _load(memory, stored, executed.program, known)
    load, load_parts = memory.highest, dict(memory.peak)
    memory.map_file(CODE, PROFILE.run_code)
    memory.add_objects(GRAPH, PROFILE.run_node_heap * stored.nodes)
    read = _mapped_weight_bytes(executed.program, loading.sizes, loading.stored_weights)
    memory.map_file(WEIGHT_FILES, max(read - memory.file[WEIGHT_FILES], 0))
    if known.workspace is None:
        workspace: Workspace = workspace_by_rule(executed.program, executed.dims)
    else:
        workspace = as_requested(executed.program, executed.dims, known.workspace)
    try:
        _run(memory, executed, settings, workspace)
    except UnknownBytesError:
        return None
    file = memory.file.total()
    process = ProcessBytes(load, memory.highest, memory.anonymous, file)
    return PredictedProcess(process, _parts(load_parts, memory))


def predict_process_bytes(
    stored: StoredModel,
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    provider: str = CPU,
    known: KnownProcess = NOTHING_KNOWN,
) -> ProcessBytes | None:
    """Return the bytes of `simulate_process` without their parts."""
    found = simulate_process(stored, executed, settings, provider, known)
    return found.process if found else None


def prediction_obstacle(
    executed: ExecutedGraph, settings: RuntimeSettings, provider: str = CPU
) -> str:
    """Return why the process of a session cannot be predicted, or an empty text."""
    reason = _unpredictable(executed, settings, provider)
    if reason or executed.observed is not None:
        return reason
    known = tensor_bytes(executed.program, executed.dims)
    open_sizes = (
        executed.program.vars[var].name
        for _, op in walk(executed.program.body)
        for var in op.outputs
        if var and var not in known
    )
    name = next(open_sizes, None)
    return "" if name is None else f"data decides the size of {name!r}"


def _unpredictable(executed: ExecutedGraph, settings: RuntimeSettings, provider: str) -> str:
    if provider != CPU:
        return f"it is that of {CPU} that is predicted, not of {provider}"
    if not settings.session.get("enable_cpu_mem_arena", True):
        return "sessions without an arena are not predicted"
    kernels = unmeasured_kernels(executed.program)
    return f"how {', '.join(kernels)} packs its weights was not measured" if kernels else ""


def _load(
    memory: ProcessMemory, stored: StoredModel, program: Program, known: KnownProcess
) -> SessionLoading:
    """Make the session in the simulated process."""
    if known.as_loaded:
        memory.heap.fix_threshold(LOADING_THRESHOLD)
    loading = SessionLoading(memory, stored, program)
    loading.run()
    if known.as_loaded:
        memory.trim()
        memory.heap.fix_threshold(LOADED_THRESHOLD)
    if known.loaded is not None:
        memory.continue_from(known.loaded)
    return loading


def _run(
    memory: ProcessMemory,
    executed: ExecutedGraph,
    settings: RuntimeSettings,
    workspace: Workspace,
) -> None:
    """Run the session in the simulated process.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    traces = trace_session(simulated_model(executed, settings), workspace)
    arena = _ResidentArena(memory, ArenaSettings.from_settings(settings.arena))
    heap_sizes = heap_workspace(executed.program, executed.dims)
    for trace in (traces.first, *[traces.later] * (_RUNS - 1)):
        arena.run(trace)
        for size in heap_sizes:
            memory.free(memory.allocate(KERNELS, size, SMALL_ALIGNMENT))


@dataclass(slots=True)
class _ResidentArena:
    """An arena whose regions lie in a simulated process. All allocated memory is written.

    Attributes:
        memory: the process.
        settings: of the arena.
    """

    memory: ProcessMemory
    settings: ArenaSettings
    _arena: Arena = field(init=False)
    _starts: list[int] = field(default_factory=list)
    _regions: dict[int, Block] = field(default_factory=dict)
    _lowest_mapping: int = _MAPPINGS // CHUNK

    def __post_init__(self) -> None:
        self._arena = Arena(self.settings, place_region=self._place_region)

    def run(self, trace: AllocationTrace) -> None:
        """Serve one run, and touch the pages of everything that it allocates."""
        self._arena.run(trace)
        for address, size in zip(self._arena.addresses, trace.sizes, strict=True):
            if size:
                start = self._starts[bisect_right(self._starts, address) - 1]
                self.memory.touch(self._regions[start], (address - start) * CHUNK, size)

    def _place_region(self, chunks: int) -> int:
        """Reserve a region on the heap or as a mapping. Each mapping lies below the one before."""
        size = chunks * CHUNK
        block = self.memory.reserve(ARENA, size)
        self.memory.allocate(ARENA_TABLES, size // PROFILE.arena_handle_ratio, SMALL_ALIGNMENT)
        if block.address is None:
            self._lowest_mapping -= chunks + 1
            start = self._lowest_mapping
        else:
            start = block.address // CHUNK
        insort(self._starts, start)
        self._regions[start] = block
        return start


def _mapped_weight_bytes(
    program: Program, sizes: Mapping[VarId, int], stored: Mapping[str, StoredWeight]
) -> int:
    """Return the bytes of weights beside the model file that runs read from mapped pages.

    Of a table whose rows are looked up, only the pages around them are read.
    """
    read: dict[VarId, int] = {}
    for op, var, packed in read_weights(program):
        weight = stored.get(program.vars[var].name)
        if weight is None or weight.inside or (packed and not weight.packed):
            continue
        size = weight.packed or weight.size
        if op.type == "Gather" and var == op.inputs[0]:
            rows = sizes.get(op.inputs[1], size) // _INDEX
            size = min(size, rows * PROFILE.row_pages)
        read[var] = max(read.get(var, 0), size)
    return sum(read.values())


def _parts(load_parts: Mapping[str, int], memory: ProcessMemory) -> tuple[Part, ...]:
    """Return the parts of the process at its peaks and after the runs, the largest first."""
    run_parts, after = memory.peak, memory.anonymous_parts()
    names = {**load_parts, **run_parts, **after}
    parts = (
        Part(n, load_parts.get(n, 0), run_parts.get(n, 0), after.get(n, 0), remedy_of(n))
        for n in names
    )
    kept = (part for part in parts if part.load or part.run or part.private)
    return tuple(sorted(kept, key=lambda part: (-part.run, -part.load, part.name)))
