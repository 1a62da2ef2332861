"""Requests to an arena: the bytes of each tensor, and the allocations and frees of a run in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import node_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.program import Op, Program, Shape, Var, VarId
    from memplan_cli.runtime.profile.workspace import Workspace

CHUNK = PROFILE.arena_chunk


class UnknownBytesError(Exception):
    """A tensor's size is not known before the run, so nothing can be predicted."""


def bytes_of(dtype: str, shape: Shape | None, dims: Mapping[str, int]) -> int | None:
    """Return the bytes of a tensor, or None if a dimension is unknown or these ``dims`` make it negative.

    Elements of a string tensor have `PROFILE.string_size` bytes, without the characters of long ones.
    """
    is_text = dtype == "string"
    size = size_of(shape, "uint8" if is_text else dtype)
    if size is None:
        return None
    try:
        bound = size.bind(dims)
    except ValueError:  # such as ``h - 2`` for h = 1
        return None
    return (
        None if bound.symbols else bound.coefficient * (PROFILE.string_size if is_text else 1)
    )


def is_tensor(var: Var) -> bool:
    """Return whether a variable is a tensor, and not a sequence, an optional or a map."""
    return not var.dtype.startswith(("sequence", "optional", "map"))


def tensor_bytes(program: Program, dims: Mapping[str, int]) -> dict[VarId, int]:
    """Return the bytes of each variable whose size is known before the run."""
    sizes = {}
    for var in program.vars.values():
        size = bytes_of(var.dtype, var.shape, dims)
        if size is not None:
            sizes[var.id] = size
    return sizes


def weight_bytes(program: Program, dims: Mapping[str, int]) -> int:
    """Return the total bytes of initializers and Constants of known size."""
    return sum(
        size
        for var, size in tensor_bytes(program, dims).items()
        if program.vars[var].origin is Origin.WEIGHT
    )


def rounded_up(size: float) -> int:
    """Return ``size`` rounded up to whole units of the arena, of `CHUNK` bytes."""
    return -(-int(size) // CHUNK) * CHUNK


class TraceStep(NamedTuple):
    """The allocation of a tensor, or its free.

    Attributes:
        units: the units of 256 bytes that are allocated; 0: the allocation is freed.
        allocation: its index in `AllocationTrace.sizes`.
    """

    units: int
    allocation: int

    @property
    def is_free(self) -> bool:
        """Whether this step frees the allocation."""
        return self.units == 0


@dataclass(frozen=True, slots=True)
class AllocationTrace:
    """The allocations and frees of one run, in order.

    Attributes:
        sizes: bytes of each allocation. Its index identifies the allocation.
        steps: allocations and frees in order. Allocations of no bytes have no steps.
        outputs: how many of the last steps free outputs of the run.
    """

    sizes: tuple[int, ...]
    steps: tuple[TraceStep, ...]
    outputs: int = 0

    @property
    def rounded_peak(self) -> int:
        """The most bytes allocated at once, each allocation rounded up to chunks. No arena holds less."""
        return _peak(self.steps, [rounded_up(size) for size in self.sizes])

    @property
    def live_peak(self) -> int:
        """The most bytes allocated at once, not rounded."""
        return _peak(self.steps, self.sizes)


def with_kept_outputs(runs: Sequence[AllocationTrace]) -> AllocationTrace:
    """Return consecutive runs as one trace, in which the outputs of a run are freed after the next run.

    In a loop over ``outputs = session.run(...)``, the variable keeps the outputs of a run, which lie in the arena,
    until the next run has returned.
    """
    sizes: list[int] = []
    steps: list[TraceStep] = []
    output_frees: list[TraceStep] = []  # of the previous run
    for run in runs:
        own = [step._replace(allocation=step.allocation + len(sizes)) for step in run.steps]
        end = len(own) - run.outputs  # the steps from here on free the outputs of this run
        steps += [*own[:end], *output_frees]
        output_frees = own[end:]
        sizes += run.sizes
    return AllocationTrace(tuple(sizes), (*steps, *output_frees), len(output_frees))


def with_copied_inputs(run: AllocationTrace, sizes: Iterable[int]) -> AllocationTrace:
    """Return a run with copies of its inputs, of ``sizes`` bytes each, that live as long as the run.

    A session on another device copies its inputs into the arena of the device before the first node
    (core/framework/utils.cc, ``BatchOrCopyMLValue``). It also copies its outputs to the host.
    """
    recorder = TraceRecorder()
    copies = [recorder.allocate(size) for size in sizes]
    allocated = recorder.trace()
    for copy in copies:
        recorder.free(copy)
    frees = recorder.trace().steps[len(allocated.steps) :]
    # The allocations of the run are numbered after the copies.
    own = (step._replace(allocation=step.allocation + len(copies)) for step in run.steps)
    steps = (*allocated.steps, *own, *frees)
    # The run's own steps free its outputs, of which a caller keeps only the copies on the host.
    return AllocationTrace((*allocated.sizes, *run.sizes), steps, outputs=0)


def _peak(steps: Sequence[TraceStep], sizes: Sequence[int]) -> int:
    """Return the most bytes live after any step, if allocations have these sizes."""
    live = peak = 0
    for step in steps:
        size = sizes[step.allocation]
        live += -size if step.is_free else size
        peak = max(peak, live)
    return peak


@dataclass(slots=True)
class TraceRecorder:
    """Records the requests of a simulated run and samples the bytes of live tensors.

    Attributes:
        workspace: requests of each kernel beside its outputs, by node (`node_key`).
        live: bytes of the tensors that are allocated.
        peak: the largest ``live`` at the end of a kernel, before its inputs are freed, as
            the profile of ONNX Runtime reports it. Workspace is not part of it.
    """

    workspace: Workspace = field(default_factory=dict)
    live: int = 0
    peak: int = 0
    _sizes: list[int] = field(default_factory=list)
    _steps: list[TraceStep] = field(default_factory=list)
    _kernel_start: int = 0
    """The number of steps before the current kernel."""

    def allocate(self, size: int) -> int:
        """Record an allocation and return its index. An allocation of no bytes has no step."""
        self.live += size
        index = len(self._sizes)
        self._sizes.append(size)
        if size:
            self._steps.append(_allocation_step(size, index))
        return index

    def free(self, index: int) -> None:
        """Record the free of an allocation, after which the next kernel begins. One of no bytes has no step."""
        self.live -= self._sizes[index]
        if self._sizes[index]:
            self._steps.append(_free_step(index))
        self._kernel_start = len(self._steps)

    def end_kernel(self, op: Op) -> None:
        """Update ``peak``, and record the allocations and frees of the kernel's workspace.

        Workspace is freed when the kernel ends, and is not part of ``live`` and ``peak``. Some kernels allocate
        workspace before their outputs: the allocations of workspace are then inserted before the steps of the kernel.
        """
        self.peak = max(self.peak, self.live)
        sizes = self.workspace.get(node_key(op), ())
        # A request of 0 bytes has an index in ``_sizes`` too, but no steps.
        indices = [index for index, size in enumerate(sizes, len(self._sizes)) if size]
        self._sizes += sizes
        is_first = op.type in PROFILE.workspace_first
        position = self._kernel_start if is_first else len(self._steps)
        allocations = [_allocation_step(self._sizes[index], index) for index in indices]
        self._steps[position:position] = allocations
        self._steps += [_free_step(index) for index in reversed(indices)]
        self._kernel_start = len(self._steps)

    def trace(self, outputs: Iterable[int] = ()) -> AllocationTrace:
        """Free the outputs of the run, and return all allocations and frees that were recorded."""
        end = len(self._steps)
        for index in outputs:
            self.free(index)
        return AllocationTrace(tuple(self._sizes), tuple(self._steps), len(self._steps) - end)


def _allocation_step(size: int, index: int) -> TraceStep:
    """Return the step that allocates ``size`` bytes, in whole units."""
    return TraceStep(units=-(-size // CHUNK), allocation=index)


def _free_step(index: int) -> TraceStep:
    """Return the step that frees an allocation."""
    return TraceStep(units=0, allocation=index)  # 0 marks a free
