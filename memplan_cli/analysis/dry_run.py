"""Estimate of a network's training memory by the dry run of customised Caffe.

The forward ops run once and then, backwards, the layers that a gradient flows through. Every
blob's data, and then its gradient, takes a reference-counted slot; a slot is as large as the
largest blob it ever gets, and no size is compared when a free one is taken. Forward data is
kept for the backward step that reads it. Source: the `mem_param` of the customised Caffe of
Xiong et al. (Temporal Segment Networks, 2016).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_SAFELY, STANDARD_DOMAINS
from memplan_cli.analysis.dataflow import Dataflow, dataflow
from memplan_cli.analysis.gradients import elements, is_float
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.core.symbolic.sizes import Size

READS_NOTHING = frozenset(
    {
        "Add", "AveragePool", "Cast", "Concat", "Expand", "Flatten", "Gather",
        "GlobalAveragePool", "Identity", "Neg", "Pad", "ReduceMean", "ReduceSum", "Reshape",
        "Resize", "Slice", "Split", "Squeeze", "Sub", "Sum", "Transpose", "Unsqueeze",
        "Upsample", "Where",
    }
)  # fmt: skip
"""Ops whose backward step needs the gradient alone (and indices, which are small)."""

READS_RESULT = frozenset(
    {
        "Dropout", "Elu", "Exp", "LeakyRelu", "LogSoftmax", "Reciprocal", "Relu", "Sigmoid",
        "Softmax", "Sqrt", "Tanh",
    }
)  # fmt: skip
"""Ops whose backward step needs what they made; all others need what they read."""

WITHOUT_GRADIENT = frozenset(
    {
        "ArgMax", "ArgMin", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less",
        "LessOrEqual", "NonMaxSuppression", "NonZero", "Not", "OneHot", "Round", "Shape",
        "Sign", "Size",
    }
)  # fmt: skip


_SHARING = SHARE_SAFELY.views | SHARE_SAFELY.in_place.keys()
"""Ops whose first result may share the memory of an input."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """An estimate of the memory that training takes, in bytes.

    The weights and their gradients, which outlive the step, are left out.
    """

    raw: int
    """Data and gradient of every blob, each in memory of its own; views count once."""
    optimised: int
    """The slots."""
    slots: int


def dry_run(
    program: Program, sizes: Mapping[VarId, Size], flow: Dataflow | None = None
) -> DryRun:
    """Estimate the training memory of a forward-only program.

    Args:
        program: The network; a control-flow op is one layer.
        sizes: Bytes of the vars that ops make; what depends on a symbol, or is not in the
            table, counts nothing.
        flow: The edges of the top block, if the caller has them.
    """
    layers = _Layers(program, sizes, flow or dataflow(program.body))
    run = _Run(layers)
    run.forward()
    run.backward()
    blobs = layers.bytes
    raw = sum(blobs) + sum(blobs[blob] for blob, slot in enumerate(run.gradients) if slot >= 0)
    slots = run.slots.sizes
    return DryRun(raw, sum(slots), len(slots))


@dataclass(slots=True)
class _Slots:
    sizes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, size: int) -> int:
        if not self._free:
            self.sizes.append(size)
            return len(self.sizes) - 1
        slot = self._free.pop()
        self.sizes[slot] = max(self.sizes[slot], size)
        return slot

    def give(self, slot: int) -> None:
        self._free.append(slot)


_Blobs = tuple[int, ...]


class _Layers:
    """The network as blobs: vars that share storage are one. A blob is a number."""

    def __init__(self, program: Program, sizes: Mapping[VarId, Size], flow: Dataflow) -> None:
        self.flow = flow
        self._readers = Counter(chain.from_iterable(flow.reads))
        self.kept = frozenset(program.body.outputs)
        known = sizes.get
        self._sizes = {
            var: size.coefficient
            for var in flow.producer
            if (size := known(var)) is not None and not size.symbols
        }
        self.trained = _trainable(program, flow)
        self.bytes: list[int] = []
        """The size of each blob."""
        self.opened_by: list[VarId] = []
        """The first var of each blob."""
        self.blob_of: dict[VarId, int] = {}
        self.made = [self._written(op) for op in flow.ops]
        """The blobs that each op writes, those it shares included."""
        self.read = list(map(self._blobs, flow.reads))
        """The blobs that each op reads."""
        self.backward_reads = list(
            map(self._backward_reads, flow.ops, flow.reads, self.made, self.read)
        )
        """The blobs whose data each op's backward step reads."""

    def _written(self, op: Op) -> _Blobs:
        """Return the blobs that an op writes: one that its first result shares, and new ones."""
        made = []
        for var in op.outputs:
            if var not in self._sizes:
                continue
            blob = None
            if op.type in _SHARING and var == op.outputs[0]:
                blob = self._shared(op)
            if blob is None:
                blob = len(self.bytes)
                self.bytes.append(self._sizes[var])
                self.opened_by.append(var)
            self.blob_of[var] = blob
            made.append(blob)
        return tuple(made)

    def _blobs(self, vars_: tuple[VarId, ...]) -> _Blobs:
        """Return the blobs of some vars, once each."""
        found = tuple(map(self.blob_of.get, vars_))
        if len(set(found)) == len(found) and None not in found:  # nearly always
            return found  # type: ignore[return-value]
        return tuple(dict.fromkeys(blob for blob in found if blob is not None))

    def _backward_reads(
        self, op: Op, reads: tuple[VarId, ...], made: _Blobs, read: _Blobs
    ) -> _Blobs:
        if op.type in READS_NOTHING or self.trained.isdisjoint(op.outputs):
            return ()
        if op.type in READS_RESULT:
            return made if len(op.outputs) == 1 else self._blobs(op.outputs[:1])
        return read if op.inputs is reads else self._blobs(op.inputs)

    def _shared(self, op: Op) -> int | None:
        """Return the blob that a sharing op's first result shares: a view's, an overwritten one."""
        result = op.outputs[0]
        is_view = op.type in SHARE_SAFELY.views
        positions = (0,) if is_view else SHARE_SAFELY.in_place[op.type]
        if op.domain not in STANDARD_DOMAINS or result in self.kept:
            return None
        reads_no_input = op.type in READS_NOTHING or op.type in READS_RESULT
        for position in positions[: len(op.inputs)]:
            base = op.inputs[position]
            if self._sizes.get(base) != self._sizes[result] or base in self.kept:
                continue
            if is_view or (reads_no_input and self._may_be_overwritten(op, base)):
                return self.blob_of[base]
        return None

    def _may_be_overwritten(self, op: Op, base: VarId) -> bool:
        """Whether only this op reads a value, and no backward step wants it."""
        if self._readers[base] > 1 or op.inputs.count(base) > 1:
            return False
        if self.opened_by[self.blob_of[base]] != base:
            return False
        return self.flow.ops[self.flow.producer[base]].type not in READS_RESULT


class _Run:
    """Forward, then backward: which slot each blob's data and gradient takes."""

    def __init__(self, layers: _Layers) -> None:
        count = len(layers.bytes)
        self.layers = layers
        self.slots = _Slots()
        self.gradients = [-1] * count
        self._data = [-1] * count
        self._wanted = [0] * count
        self._kept = {blob for blob, var in enumerate(layers.opened_by) if var in layers.kept}

    def forward(self) -> None:
        layers, wanted, data = self.layers, self._wanted, self._data
        for blob in chain.from_iterable(chain(layers.read, layers.backward_reads)):
            wanted[blob] += 1
        for read, made in zip(layers.read, layers.made, strict=True):
            for blob in made:
                if data[blob] < 0:
                    data[blob] = self.slots.take(layers.bytes[blob])
            self._release(read)
            for blob in made:
                if not wanted[blob] and blob not in read:
                    self._release((blob,))

    def backward(self) -> None:
        layers, gradients, sizes = self.layers, self.gradients, self.layers.bytes
        trained = {var: blob for var, blob in layers.blob_of.items() if var in layers.trained}
        # The gradient of a blob is whole until the layer that opened the blob.
        whole_at = {
            var: blob
            for blob, var in enumerate(layers.opened_by)
            if var in trained and var not in layers.kept
        }
        has_none = layers.trained.isdisjoint
        for op, reads, backward_reads in zip(
            reversed(layers.flow.ops),
            reversed(layers.flow.reads),
            reversed(layers.backward_reads),
            strict=True,
        ):
            if has_none(op.outputs):
                continue
            for var in (*op.outputs, *reads):
                blob = trained.get(var)
                if blob is not None and gradients[blob] < 0:
                    gradients[blob] = self.slots.take(sizes[blob])
            if backward_reads:
                self._release(backward_reads)
            for var in op.outputs:
                if var in whole_at:
                    self.slots.give(gradients[whole_at[var]])

    def _release(self, blobs: _Blobs) -> None:
        wanted = self._wanted
        for blob in blobs:
            wanted[blob] -= 1
            if wanted[blob] <= 0 and blob not in self._kept:
                self.slots.give(self._data[blob])


def _trainable(program: Program, flow: Dataflow) -> AbstractSet[VarId]:
    """Return the vars that ops make and that have a gradient."""
    weights = {
        var.id
        for var in program.vars.values()
        if var.origin is Origin.WEIGHT and is_float(var) and elements(var) != 1
        if size_of(var.shape, var.dtype) is not None
    }
    found, vars_ = set(weights), program.vars
    kinds: dict[str, bool] = {}
    for var in program.vars.values():  # many vars, few types
        if var.dtype not in kinds:
            kinds[var.dtype] = is_float(var)
    for op, reads in zip(flow.ops, flow.reads, strict=True):
        if op.type in WITHOUT_GRADIENT or found.isdisjoint(reads):
            continue
        for made in op.outputs:
            if made and kinds[vars_[made].dtype]:
                found.add(made)
    found -= weights
    return found
