"""The process of a session, foreseen: loaded and run in a simulated one, attributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import CPU, ProcessBytes
from memplan_cli.runtime.process.heap import MAPPED_LOADED, MAPPED_LOADING
from memplan_cli.runtime.process.loading import Loading
from memplan_cli.runtime.process.packing import unknown_kernels
from memplan_cli.runtime.process.parts import (
    CODE,
    GRAPH,
    KERNELS,
    WEIGHT_FILES,
    ForeseenProcess,
    Part,
    remedy_of,
)
from memplan_cli.runtime.process.running import ResidentArena, mapped_bytes
from memplan_cli.runtime.process.space import Space
from memplan_cli.runtime.simulation.bfc import ArenaRules
from memplan_cli.runtime.simulation.ledger import UnknownBytesError
from memplan_cli.runtime.simulation.predict import model_of
from memplan_cli.runtime.simulation.requests import run_of
from memplan_cli.runtime.simulation.tensor_bytes import tensor_bytes
from memplan_cli.runtime.simulation.workspace import (
    as_requested,
    heap_workspace,
    workspace_by_rule,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.onnx_io.weights.stored import StoredModel
    from memplan_cli.runtime.simulation.predict import Executed
    from memplan_cli.runtime.simulation.trace import Request
    from memplan_cli.runtime.simulation.workspace import Workspace

_RUNS = 3
"""The contract's: the first grows the arena, the second makes the pattern."""

_RUN_CODE = 1_100_000
"""Bytes of the runtime's library that the kernels of a run touch."""

_RUN_NODE = 500
"""Bytes on the heap that runs leave for each node."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What is known of the process that makes the session, and what it has shown.

    Attributes:
        workspace: what kernels ask for besides, by node; None: by rules.
        loaded: what a process took that made the session and ran nothing; None: simulated.
        as_loaded: whether `memplan_cli.load` opens the file: what is free then is given back.
    """

    workspace: Mapping[str, int] | None = None
    loaded: ProcessBytes | None = None
    as_loaded: bool = False


NOTHING = Shown()


def foresee_process(
    stored: StoredModel,
    executed: Executed,
    settings: RuntimeSettings,
    provider: str = CPU,
    shown: Shown = NOTHING,
) -> ForeseenProcess | None:
    """Return what a process with a session of a file is predicted to take beyond none.

    None where it cannot be told: on another provider than the CPU's, without its arena,
    with kernels that pack in a way that was not measured, or where data decides sizes.

    Args:
        stored: the file as the session finds it.
        executed: the graph that the session runs.
        settings: of the session.
        provider: where it runs.
        shown: what real sessions have shown; the rest is simulated.
    """
    if _beyond_rules(executed, settings, provider):
        return None
    space = Space()
    if shown.as_loaded:
        space.heap.fix(MAPPED_LOADING)
    loading = Loading(space, stored, executed.program)
    loading.run()
    if shown.as_loaded:
        space.give_back()
        space.heap.fix(MAPPED_LOADED)
    if shown.loaded is not None:
        space.settle(shown.loaded)
    load, at_load = space.highest, dict(space.peak)
    space.map(CODE, _RUN_CODE)
    space.add(GRAPH, _RUN_NODE * stored.nodes)
    read = mapped_bytes(executed.program, loading.sizes, loading.known)
    space.map(WEIGHT_FILES, max(read - space.file[WEIGHT_FILES], 0))
    try:
        if shown.workspace is None:
            scratch = workspace_by_rule(executed.program, executed.dims)
        else:
            scratch = as_requested(executed.program, executed.dims, shown.workspace)
        _run(space, executed, settings, scratch)
    except UnknownBytesError:
        return None
    file = space.file.total()
    process = ProcessBytes(load, space.highest, space.anonymous, file)
    return ForeseenProcess(process, _parts(at_load, space))


def obstacle(executed: Executed, settings: RuntimeSettings, provider: str = CPU) -> str:
    """Return what keeps the process of a session from being foreseen, or nothing."""
    found = _beyond_rules(executed, settings, provider)
    if found or executed.observed is not None:
        return found
    known = tensor_bytes(executed.program, executed.dims)
    open_sizes = (
        executed.program.vars[var].name
        for _, op in walk(executed.program.body)
        for var in op.outputs
        if var and var not in known
    )
    name = next(open_sizes, None)
    return "" if name is None else f"data decides the size of {name!r}"


def _beyond_rules(executed: Executed, settings: RuntimeSettings, provider: str) -> str:
    if provider != CPU:
        return f"it is that of {CPU} that is predicted, not of {provider}"
    if not settings.session.get("enable_cpu_mem_arena", True):
        return "sessions without an arena are not predicted"
    kernels = unknown_kernels(executed.program)
    return f"how {', '.join(kernels)} packs its weights was not measured" if kernels else ""


def process_of(
    stored: StoredModel,
    executed: Executed,
    settings: RuntimeSettings,
    provider: str = CPU,
    shown: Shown = NOTHING,
) -> ProcessBytes | None:
    """Return the numbers of `foresee_process` alone."""
    found = foresee_process(stored, executed, settings, provider, shown)
    return found.process if found else None


def _run(
    space: Space,
    executed: Executed,
    settings: RuntimeSettings,
    workspace: Workspace,
) -> None:
    model = model_of(executed, settings)
    arena = ResidentArena(ArenaRules.from_settings(settings.arena), space=space)
    run = run_of(model, workspace)
    beside = heap_workspace(executed.program, executed.dims)
    for requests in (run.requests, *[run.then] * (_RUNS - 1)):
        _replay(requests, arena)
        for size in beside:
            space.give(space.take(KERNELS, size, 16))


def _replay(requests: Sequence[Request], arena: ResidentArena) -> None:
    """Do what a run asks of an arena; its outputs are given back when it is over."""
    given: dict[int, int | None] = {}
    for request in requests:
        if request.size < 0:
            arena.free(given.pop(request.ticket))
        else:
            given[request.ticket] = arena.allocate(request.size)


def _parts(at_load: Mapping[str, int], space: Space) -> tuple[Part, ...]:
    at_run, after = space.peak, space.anonymous_parts()
    names = {**at_load, **at_run, **after}
    found = (
        Part(n, at_load.get(n, 0), at_run.get(n, 0), after.get(n, 0), remedy_of(n))
        for n in names
    )
    kept = (part for part in found if part.load or part.run or part.private)
    return tuple(sorted(kept, key=lambda part: (-part.run, -part.load, part.name)))
