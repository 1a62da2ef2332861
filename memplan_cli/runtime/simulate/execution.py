"""One run of a graph, op by op: which memory it requests and frees, and in which order.

A frame is one execution of one block. If, Loop and Scan run their bodies in frames of their
own: a branch of an If writes into the outputs of the If, an iteration of a Loop makes the state
that the next iteration (or the concatenation at the end) reads, and an iteration of a Scan
writes into slices of the outputs of the Scan (core/providers/cpu/controlflow).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId, captures
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.simulate.planner import (
    BlockPlan,
    BufferKind,
    MemoryPattern,
    plan_block,
)
from memplan_cli.runtime.simulate.trace import (
    AllocationTrace,
    TraceRecorder,
    UnknownBytesError,
    is_tensor,
    with_kept_outputs,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.runtime.profile.workspace import Workspace
    from memplan_cli.runtime.simulate.observation import RunObservation, WrittenTensor
    from memplan_cli.runtime.simulate.planner import PlannerSettings

OuterResults = Mapping[VarId, VarId]
"""The outputs of a body that are written into an output of its control-flow op, with that output."""

_KEEPING_RUNS = 12
"""Runs with kept outputs that are simulated. Kept outputs move from run to run at first: of twelve models,
one needed a seventh run, and none more, to find the region that fits all further runs."""

Allocations = dict[VarId, int]
"""The allocation of each variable in memory of its own, as an index into `AllocationTrace.sizes`."""

_ITERATIONS_TO_REPEAT = 3
"""Iterations of which further ones would repeat the last: the first one traces a memory pattern, the second
one reads the state that the first has made, later ones request and free the same as the third."""


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """An executed graph, with all that its simulated runs depend on.

    Attributes:
        program: the graph.
        bytes: of each variable whose size is known before a run.
        planner: settings of the allocation planner.
        with_pattern: whether runs use memory patterns (``enable_mem_pattern``).
        observed: data-dependent sizes and iteration counts of one real run.
        packed: weights that are freed once their kernels have packed them.
    """

    program: Program
    bytes: Mapping[VarId, int]
    planner: PlannerSettings
    with_pattern: bool
    observed: RunObservation | None = None
    packed: frozenset[VarId] = frozenset()


@dataclass(frozen=True, slots=True)
class SessionTraces:
    """What the runs of one session request of the arena, and the peaks of their tensors.

    Attributes:
        first, first_peak: the first run.
        later, later_peak: each run after it. With a memory pattern, one block serves most tensors.
    """

    first: AllocationTrace
    first_peak: int
    later: AllocationTrace
    later_peak: int

    @property
    def runs_with_kept_outputs(self) -> AllocationTrace:
        """The first run and later ones as one trace, of a caller that keeps outputs until the next run has ended."""
        return with_kept_outputs((self.first, *[self.later] * (_KEEPING_RUNS - 1)))


def trace_session(model: SimulatedModel, workspace: Workspace) -> SessionTraces:
    """Simulate the first run of a session and a later one; return what each requests of the arena.

    ``workspace`` is allocated by kernels besides their outputs.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    simulator = RunSimulator(model, TraceRecorder(workspace))
    first = simulator.run()
    first_peak = simulator.recorder.peak
    if not model.with_pattern:
        # Only the memory patterns of the first run would make later ones different.
        return SessionTraces(first, first_peak, later=first, later_peak=first_peak)
    simulator.recorder = TraceRecorder(workspace)
    later = simulator.run()
    return SessionTraces(first, first_peak, later, simulator.recorder.peak)


@dataclass(slots=True)
class RunSimulator:
    """Simulates runs of one model. Plans and memory patterns last from run to run.

    Attributes:
        plans: the planner's decisions, by block.
        patterns: by block and key of the feeds.
        frame_counts: how many frames of each block the current run has had.
        keys: the exclusive or of the dims of each variable as it was last written, if a run was
            observed; else its dims are the same in the whole run.
    """

    model: SimulatedModel
    recorder: TraceRecorder
    plans: dict[str, BlockPlan] = field(default_factory=dict)
    patterns: dict[tuple[str, int], MemoryPattern] = field(default_factory=dict)
    frame_counts: Counter[str] = field(default_factory=Counter)
    keys: dict[VarId, int] = field(default_factory=dict)

    def run(self) -> AllocationTrace:
        """Run the top block once, free its outputs, and return all recorded requests."""
        self.frame_counts.clear()
        self.keys.clear()
        outputs = self.run_block(self.model.program.body, None, {})
        return self.recorder.trace(outputs.values())

    def run_block(
        self,
        block: Block,
        owner: Op | None,
        outer_results: OuterResults,
        outer: Frame | None = None,
    ) -> Allocations:
        """Run a block in a new frame, and return its outputs that the caller has to free.

        ``owner`` is the control-flow op of a body, executed in the frame ``outer``; ``outer_results`` are the
        outputs of the body that are written into outputs of the owner.
        """
        plan = self.plans.get(block.path)
        if plan is None:
            plan = plan_block(self.model.program, block, owner, self.model.planner)
            self.plans[block.path] = plan
        number = self.frame_counts[block.path]
        self.frame_counts[block.path] += 1
        return Frame(self, block, plan, outer_results, outer, number).execute()

    def pattern_key(self, block: Block) -> int | None:
        """Return the key by which ONNX Runtime finds the memory pattern of a block.

        The key is the exclusive or of the dims of all feeds. None if a feed is no tensor: such a block has no pattern.
        """
        # A body is also fed the values that it captures. The "captures" of the main graph, its weights, are no feeds.
        feeds = (*block.inputs, *captures(block)) if block.path else block.inputs
        types, packed = self.model.program.vars, self.model.packed
        # A captured weight in ``packed`` was freed after kernels had packed it, so its feed is no tensor (measured).
        if any(not is_tensor(types[var]) or var in packed for var in feeds):
            return None
        # Keys are only compared within one block, so feeds whose dims never change (not in ``keys``) may count as 0.
        return reduce(xor, (self.keys.get(var, 0) for var in feeds), 0)


@dataclass(slots=True)
class Frame:
    """One execution of one block.

    Attributes:
        plan: the decisions of the planner for the block.
        outer_results: outputs of the block that are written into outputs of the control-flow op.
        outer: the frame of the control-flow op; None for the top block and for the trial of a branch.
        number: how many frames of this block came before in this run, by which its observed sizes are found.
        key: by which the memory pattern of this frame is found; None: it has no pattern.
        allocations: variables in memory of their own.
        pattern: the memory pattern of an earlier frame with the same key, whose memory this frame
            allocates as a whole; None if there is none.
        traced_pattern: the pattern that this frame makes for later frames; None if it makes none.
    """

    simulator: RunSimulator
    block: Block
    plan: BlockPlan
    outer_results: OuterResults
    outer: Frame | None
    number: int
    key: int | None = None
    allocations: Allocations = field(default_factory=dict)
    pattern: MemoryPattern | None = None
    traced_pattern: MemoryPattern | None = None

    def execute(self) -> Allocations:
        """Run every op, and return the block's outputs, which the caller has to free."""
        recorder = self.simulator.recorder
        pattern_memory = self._start_pattern() if self.simulator.model.with_pattern else None
        for op, freed in zip(self.plan.order, self.plan.freed, strict=True):
            self._run_op(op)
            recorder.end_kernel(op)
            for var in freed:
                self._free(var)
        return self._close(pattern_memory)

    def allocate(self, var: VarId) -> None:
        """Allocate the memory of an output, unless it lies in memory that is allocated otherwise.

        An output lies in one of four places:

        1. in an output of the control-flow op, if it is one of ``outer_results``: the outer frame allocates that;
        2. in the memory of another value, if the planner shares it: nothing is allocated;
        3. in its place in ``pattern``, if there is one for this size: `execute` has allocated all of the pattern;
        4. else in an allocation of its own.
        """
        # The op lacks this optional output, or has bodies, and an earlier call has allocated the output for them.
        if not var or var in self.allocations:
            return
        self._set_key(var)
        if var in self.outer_results:  # 1
            # `_branch_peak` runs a branch without an outer frame, and counts the memory of the branch only.
            if self.outer is not None:
                self.outer.allocate(self.outer_results[var])
            return
        kind = self.plan.kind[var]
        if kind is BufferKind.SHARED:  # 2
            return
        size = self._size(var)
        is_text = self.simulator.model.program.vars[var].dtype == "string"
        if kind is BufferKind.NEW and not is_text:  # only such values have places in patterns
            if self.pattern is not None and self.pattern.holds(var, size):
                return  # 3
            if self.traced_pattern is not None:  # then there is no ``pattern`` yet
                self.traced_pattern.allocate(var, size)  # for later frames
        self.allocations[var] = self.simulator.recorder.allocate(size)  # 4

    def observed_iterations(self, body: Block) -> int | None:
        """Return how often a body ran for its op in this frame, or None if no run was observed."""
        observed = self.simulator.model.observed
        counts = observed.iterations.get(body.path, ()) if observed else ()
        return counts[self.number] if self.number < len(counts) else None

    def _start_pattern(self) -> int | None:
        """Look up the memory pattern that an earlier frame recorded under ``key``, else begin to record one.

        Sets ``key``, and either ``pattern``, if one was found, or ``traced_pattern``. A block without patterns has
        no key, and neither of them.

        Returns:
            The allocation in which all tensors of ``pattern`` lie, of the pattern's height in bytes. None without a
            pattern, or if no tensor lies in it.
        """
        self.key = self.simulator.pattern_key(self.block)
        if self.key is None:
            return None
        self.pattern = self.simulator.patterns.get((self.block.path, self.key))
        if self.pattern is None:
            self.traced_pattern = MemoryPattern()
            return None
        height = self.pattern.height
        return self.simulator.recorder.allocate(height) if height else None

    def _close(self, pattern_memory: int | None) -> Allocations:
        """Free all memory but that of the block's outputs, which are returned.

        A traced memory pattern is kept for later frames. ``pattern_memory`` is the result of `_start_pattern`.
        """
        recorder = self.simulator.recorder
        results: Allocations = {}
        for var, index in list(self.allocations.items()):
            if self.plan.kind[var] is BufferKind.OUTPUT:
                results[var] = index
            else:
                recorder.free(index)
        if pattern_memory is not None:
            recorder.free(pattern_memory)
        if self.traced_pattern is not None and self.key is not None:
            self.simulator.patterns[self.block.path, self.key] = self.traced_pattern
        return results

    def _run_op(self, op: Op) -> None:
        """Allocate the outputs of an op; one with bodies is left to its function in `CONTROL_FLOW`."""
        run = CONTROL_FLOW.get(op.type) if op.bodies else None
        if run is not None:
            run(self, op)
            return
        for var in op.outputs:
            self.allocate(var)

    def _free(self, var: VarId) -> None:
        """Free the memory of a variable, in the traced memory pattern too."""
        index = self.allocations.pop(var, None)
        if index is not None:
            self.simulator.recorder.free(index)
        if self.traced_pattern is not None:
            self.traced_pattern.free(var)

    def _set_key(self, var: VarId) -> None:
        """Set the key of an output's dims, by which frames that read it find their patterns, if a run was observed."""
        written = self._observed_write(var)
        if written is not None:
            self.simulator.keys[var] = written.key

    def _observed_write(self, var: VarId) -> WrittenTensor | None:
        """Return the tensor that the observed run wrote into a variable in the same frame; None if unknown."""
        observed = self.simulator.model.observed
        entries = observed.written.get(var, ()) if observed else ()
        return entries[self.number] if self.number < len(entries) else None

    def _size(self, var: VarId) -> int:
        """Return the bytes of a variable in this frame.

        Raises:
            UnknownBytesError: they depend on data, and no run was observed.
        """
        written = self._observed_write(var)
        size = self.simulator.model.bytes.get(var) if written is None else written.bytes
        if size is None:
            raise UnknownBytesError(str(var))
        return size


def _run_if(frame: Frame, op: Op) -> None:
    """Run one branch. It writes into the outputs of the If.

    Outputs whose shape is known are allocated before the branch, others when the branch writes them.
    """
    body = _branch(frame, op)
    outer_results = dict(zip(body.outputs, op.outputs, strict=True))
    for inner, var in zip(body.outputs, op.outputs, strict=True):
        shape = frame.simulator.model.program.vars[inner].shape
        if shape is not None and all(isinstance(dim, int) for dim in shape):
            frame.allocate(var)
    # All outputs of the branch are written into those of the If, so none is returned to be freed.
    frame.simulator.run_block(body, op, outer_results, frame)
    # Outputs that no op of the branch has written, because it passes on other values. For outputs that
    # have memory by now, `allocate` does nothing.
    for var in op.outputs:
        frame.allocate(var)


def _branch(frame: Frame, op: Op) -> Block:
    """Return the branch that was observed to run in this frame, else the one that needs more memory.

    An If runs once in a frame, so one branch runs. A branch without ops leaves no events that could be
    counted: it ran if the other one did not.
    """
    counts = [frame.observed_iterations(body) for body in op.bodies]
    if None not in counts:  # the If was observed
        ran = [body for body, count in zip(op.bodies, counts, strict=True) if count]
        without_ops = [body for body in op.bodies if not body.ops]
        if ran or without_ops:
            return (ran or without_ops)[0]
    peaks = [_branch_peak(frame, body, op) for body in op.bodies]
    return op.bodies[peaks.index(max(peaks))]


def _branch_peak(frame: Frame, body: Block, op: Op) -> int:
    """Return the most live bytes of a branch, by a trial that leaves the current run unchanged."""
    recorder = TraceRecorder()
    trial = replace(  # all state of the run begins anew
        frame.simulator, recorder=recorder, patterns={}, frame_counts=Counter(), keys={}
    )
    # Both branches need the outputs of the If, so their bytes are left out: outputs in this mapping belong to the
    # outer frame, and there is none.
    outer_results = dict(zip(body.outputs, op.outputs, strict=True))
    trial.run_block(body, op, outer_results, outer=None)
    return recorder.peak


def _run_loop(frame: Frame, op: Op) -> None:
    """Record the memory that a Loop and its iterations request and free. No values are computed.

    A state is the condition and the carried values. With two iterations, the order is:

        iteration 1: read state 0, write state 1
        iteration 2: free the condition of state 0, read state 1, write state 2
        end: allocate the outputs of the Loop, free states 1 and 2 and all scan outputs

    A constant condition that the body returns needs no memory. Then the condition of state 0 is kept until the end.
    """
    (body,) = op.bodies
    recorder = frame.simulator.recorder
    # Inputs of the body: iteration, condition, carried values. Outputs: condition, carried values, scan outputs.
    state_count = _loop_state_count(op)
    counter = recorder.allocate(PROFILE.loop_counter)
    condition = recorder.allocate(PROFILE.loop_condition)
    old_state: Allocations = {}  # the state that the last iteration has read, before it wrote ``state``
    # The state that the next iteration reads. State 0 is only the condition here: its carried values, which are
    # inputs of the Loop, must not be freed.
    state: Allocations = {body.inputs[1]: condition}
    scan_outputs: dict[int, None] = {}  # an ordered set of allocations
    carried_vars = op.inputs[2:]  # the variables whose values the next iteration gets
    for _ in range(_loop_iterations(frame, op)):
        # The body may have passed on a value of the old state, as a new value or as a scan output.
        in_use = {*state.values(), *scan_outputs}
        _free_distinct(recorder, [i for i in old_state.values() if i not in in_use])
        # By the dims of the carried values the body finds its memory pattern.
        _set_carried_keys(frame.simulator.keys, body, carried_vars)
        carried_vars = body.outputs[1:state_count]
        # For outputs that the body does not allocate. An output that is an input of the body keeps the input's allocation,
        # and a constant condition gets that of the first ``condition``.
        known_allocations = {body.outputs[0]: condition} | state
        results = _run_iteration(frame, op, known_allocations)
        old_state = state  # freed in the next iteration
        written = zip(body.inputs[1:], results[:state_count], strict=True)
        state = {var: index for var, index in written if index is not None}
        scan_outputs |= {index: None for index in results[state_count:] if index is not None}
    for var in op.outputs:
        frame.allocate(var)
    _free_distinct(recorder, (*old_state.values(), *state.values(), *scan_outputs, counter))


def _set_carried_keys(keys: dict[VarId, int], body: Block, values: Iterable[VarId]) -> None:
    """Give the carried inputs of a Loop's body the keys of the values that the next iteration gets.

    A key stands for the dims of a value, and decides which memory pattern the body has.
    """
    # All keys are read before one is set: the body may return one of its inputs as another value.
    new_keys = [keys.get(var, 0) for var in values]
    keys.update(zip(body.inputs[2:], new_keys, strict=True))


def _free_distinct(recorder: TraceRecorder, allocations: Iterable[int]) -> None:
    """Free allocations in order, each once: an allocation that was passed on is listed several times."""
    for index in dict.fromkeys(allocations):
        recorder.free(index)


def _run_iteration(frame: Frame, op: Op, known_allocations: Allocations) -> list[int | None]:
    """Run the body of a Loop once, and return the allocation of each of its outputs.

    An output may be a value that the body passes on. Its allocation is in ``known_allocations``; None if the Loop does
    not have to free it.
    """
    (body,) = op.bodies
    # The body writes nothing into outputs of the Loop, which are made after the last iteration.
    results = frame.simulator.run_block(body, op, outer_results={}, outer=frame)
    # Variables that share memory have one allocation, that of the variable in `buffer`.
    buffer = frame.simulator.plans[body.path].buffer
    allocations = known_allocations | results
    return [allocations.get(buffer.get(var, var)) for var in body.outputs]


def _loop_state_count(op: Op) -> int:
    """Return the number of values in the state of a Loop: the condition and the carried values.

    These are all inputs but the first, which is the number of iterations.
    """
    return len(op.inputs) - 1


def _loop_iterations(frame: Frame, op: Op) -> int:
    """Return how often a Loop iterates, or `_ITERATIONS_TO_REPEAT` if no run was observed.

    Raises:
        UnknownBytesError: no run was observed, and the Loop has scan outputs: their size depends on the iterations.
    """
    iterations = frame.observed_iterations(op.bodies[0])
    # A body returns the next state, of which the condition is one value, and then its scan outputs.
    has_scan_outputs = len(op.bodies[0].outputs) > _loop_state_count(op)
    if iterations is None and has_scan_outputs:
        raise UnknownBytesError(f"iterations of {op.label}")
    return _ITERATIONS_TO_REPEAT if iterations is None else iterations


def _run_scan(frame: Frame, op: Op) -> None:
    """Record the memory that a Scan and its iterations request. No values are computed.

    The first iteration reads each state from an input of the Scan, and the last one writes it into an output
    of the Scan. States between iterations lie in two buffers in turn. The outputs and the buffers are allocated
    before the first iteration.
    """
    (body,) = op.bodies
    recorder = frame.simulator.recorder
    for var in op.outputs:
        frame.allocate(var)
    state_count = len(op.inputs) - int(str(op.attributes["num_scan_inputs"]))
    iterations = _scan_iterations(frame, op)
    buffers_of_state = min(max(iterations - 1, 0), 2)  # one iteration needs none
    buffers = [
        recorder.allocate(_state_bytes(frame, var))
        for var in body.outputs[:state_count]
        for _ in range(buffers_of_state)
    ]
    # All outputs of the body count as outputs of the Scan, which have memory: `run_block` allocates none.
    # States between iterations are written into the buffers instead, which have memory too.
    outer_results = dict(zip(body.outputs, op.outputs, strict=True))
    for _ in range(iterations):
        frame.simulator.run_block(body, op, outer_results, frame)
    _free_distinct(recorder, buffers)


def _scan_iterations(frame: Frame, op: Op) -> int:
    """Return how often a Scan iterates: the length of the axis that it scans.

    If no run was observed and the length is no number, it is `_ITERATIONS_TO_REPEAT`: more iterations
    would repeat the requests of the last one.
    """
    observed = frame.observed_iterations(op.bodies[0])
    if observed is not None:
        return observed
    # All scanned inputs have the same length; the last input of a Scan is one of them.
    axes = op.attributes.get("scan_input_axes", (0,))
    axis = axes[-1] if isinstance(axes, tuple) and axes else 0
    shape = frame.simulator.model.program.vars[op.inputs[-1]].shape
    length = shape[int(axis)] if shape is not None else None
    return length if isinstance(length, int) else _ITERATIONS_TO_REPEAT


def _state_bytes(frame: Frame, var: VarId) -> int:
    """Return the bytes of a state, whose shape is the same in every iteration.

    Raises:
        UnknownBytesError: they depend on data, and no run was observed.
    """
    model = frame.simulator.model
    if var in model.bytes:
        return model.bytes[var]
    writes = model.observed.written.get(var, ()) if model.observed else ()
    if not writes:
        raise UnknownBytesError(str(var))
    return writes[0].bytes


CONTROL_FLOW: Mapping[str, Callable[[Frame, Op], None]] = {
    "If": _run_if,
    "Loop": _run_loop,
    "Scan": _run_scan,
}
"""Functions that simulate an op with bodies in a frame, by operator."""
