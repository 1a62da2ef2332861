"""What would it take to train this network? Customised Caffe's dry run.

The forward ops run once and then, backwards, the layers that a gradient flows through. Every
blob's data, and then its gradient, takes a reference-counted slot; a slot is as large as the
largest blob it ever holds, and no size is compared when a free one is taken. Forward data is
held for the backward step that reads it. Source: the `mem_param` of the customised Caffe of
Xiong et al. (Temporal Segment Networks, 2016).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_SAFELY, STANDARD_DOMAINS
from memplan_cli.analysis.dataflow import Dataflow, dataflow
from memplan_cli.analysis.gradients import elements, is_float
from memplan_cli.ir import Origin
from memplan_cli.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.ir import Op, Program, VarId
    from memplan_cli.sizes import Size

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


@dataclass(frozen=True, slots=True)
class DryRun:
    """An estimate of the memory that training takes, in bytes, weights left out."""

    raw: int
    """Data and gradient of every blob, each in memory of its own; views count once."""
    optimised: int
    """The slots."""
    slots: int
    parameter_gradients: int
    """What the gradients of the weights add to either number: they outlive the step."""


def dry_run(program: Program, sizes: Mapping[VarId, Size]) -> DryRun:
    """Estimate the training memory of a forward-only program.

    Args:
        program: The network; an op with bodies is one layer.
        sizes: Bytes of the vars that ops make; what depends on a symbol, or is not in the
            table, counts nothing.
    """
    layers = _Layers(program, sizes)
    run = _Run(layers)
    run.forward()
    run.backward()
    raw = sum(layers.bytes.values()) + sum(layers.bytes[blob] for blob in run.gradients)
    slots = run.slots.sizes
    return DryRun(raw, sum(slots), len(slots), sum(layers.weights.values()))


@dataclass(slots=True)
class _Slots:
    sizes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, size: int) -> int:
        if not self._free:
            self._free.append(len(self.sizes))
            self.sizes.append(0)
        slot = self._free.pop()
        self.sizes[slot] = max(self.sizes[slot], size)
        return slot

    def give(self, slot: int) -> None:
        self._free.append(slot)


class _Layers:
    """The network as blobs: vars that share storage are one, named by the first of them."""

    def __init__(self, program: Program, sizes: Mapping[VarId, Size]) -> None:
        self.program, self.flow = program, dataflow(program.body)
        self.kept = frozenset(program.body.outputs)
        self._sizes = {
            var: sizes[var].coefficient
            for var in self.flow.producer
            if var in sizes and not sizes[var].symbols
        }
        self.trained, self.weights = _trainable(self.program, self.flow)
        self.home: dict[VarId, VarId] = {}
        for op in self.flow.ops:
            for at, var in enumerate(op.outputs):
                if var in self._sizes:
                    self.home[var] = self._shared(op, var) if at == 0 else var
        blobs = dict.fromkeys(self.home.values())
        self.bytes = {blob: self._sizes[blob] for blob in blobs}
        self.read = [self._blobs(reads) for reads in self.flow.reads]
        """The blobs that each op reads."""
        self.made = [self._blobs(op.outputs) for op in self.flow.ops]
        """The blobs that each op writes, those it shares included."""
        self.held = [self._blobs(self._wanted_by(op)) for op in self.flow.ops]
        """The blobs whose data each op's backward step reads."""

    def _blobs(self, vars_: tuple[VarId, ...]) -> tuple[VarId, ...]:
        """Return the blobs of some vars, once each."""
        return tuple(dict.fromkeys([self.home[v] for v in vars_ if v in self.home]))

    def _wanted_by(self, op: Op) -> tuple[VarId, ...]:
        if self.trained.isdisjoint(op.outputs) or op.type in READS_NOTHING:
            return ()
        return op.outputs[:1] if op.type in READS_RESULT else op.inputs

    def _shared(self, op: Op, result: VarId) -> VarId:
        """Return the blob of an op's first result: a view's, or the one it may overwrite."""
        if op.domain not in STANDARD_DOMAINS or result in self.kept:
            return result
        views, in_place = SHARE_SAFELY.views, SHARE_SAFELY.in_place
        positions = (0,) if op.type in views else in_place.get(op.type, ())
        for position in positions[: len(op.inputs)]:
            base = op.inputs[position]
            if self._sizes.get(base) != self._sizes[result] or base in self.kept:
                continue
            if op.type in views or self._may_be_overwritten(op, base):
                return self.home[base]
        return result

    def _may_be_overwritten(self, op: Op, base: VarId) -> bool:
        """Whether only this op reads a value, and no backward step wants it."""
        if len(self.flow.readers[base]) > 1 or op.inputs.count(base) > 1:
            return False
        if op.type not in READS_NOTHING | READS_RESULT:
            return False
        if self.home[base] != base:
            return False
        return self.flow.ops[self.flow.producer[base]].type not in READS_RESULT


@dataclass(slots=True)
class _Run:
    """Forward, then backward: which slot each blob's data and gradient holds."""

    layers: _Layers
    slots: _Slots = field(default_factory=_Slots)
    gradients: dict[VarId, int] = field(default_factory=dict)
    _data: dict[VarId, int] = field(default_factory=dict)
    _wanted: Counter[VarId] = field(default_factory=Counter)

    def forward(self) -> None:
        layers = self.layers
        for blobs in (*layers.read, *layers.held):
            for blob in blobs:
                self._wanted[blob] += 1
        for read, made in zip(layers.read, layers.made, strict=True):
            for blob in made:
                if blob not in self._data:
                    self._data[blob] = self.slots.take(layers.bytes[blob])
            for blob in read:
                self._release(blob)
            for blob in made:
                if blob not in read and not self._wanted[blob]:
                    self._release(blob)

    def backward(self) -> None:
        layers = self.layers
        for at in range(len(layers.flow.ops) - 1, -1, -1):
            op = layers.flow.ops[at]
            if layers.trained.isdisjoint(op.outputs):
                continue
            for var in (*op.outputs, *layers.flow.reads[at]):
                blob = layers.home.get(var)
                if blob and var in layers.trained and blob not in self.gradients:
                    self.gradients[blob] = self.slots.take(layers.bytes[blob])
            for blob in layers.held[at]:
                self._release(blob)
            for var in op.outputs:
                # The gradient of a blob is whole until the layer that opened the blob.
                if layers.home.get(var) == var and self._is_done(var):
                    self.slots.give(self.gradients[var])

    def _is_done(self, var: VarId) -> bool:
        return var in self.layers.trained and var not in self.layers.kept

    def _release(self, blob: VarId) -> None:
        self._wanted[blob] -= 1
        if self._wanted[blob] <= 0 and blob not in self.layers.kept:
            self.slots.give(self._data[blob])


def _trainable(program: Program, flow: Dataflow) -> tuple[frozenset[VarId], dict[VarId, int]]:
    """Return the vars that have a gradient, and the bytes of the weights that have one."""
    weights = {
        var.id: size.coefficient
        for var in program.vars.values()
        if var.origin is Origin.WEIGHT and is_float(var) and elements(var) != 1
        if (size := size_of(var.shape, var.dtype)) is not None
    }
    found: set[VarId] = set(weights)
    used: set[VarId] = set()
    for at, op in enumerate(flow.ops):
        if op.type in WITHOUT_GRADIENT or found.isdisjoint(flow.reads[at]):
            continue
        used.update(flow.reads[at])
        found.update(var for var in op.outputs if var and is_float(program.vars[var]))
    trained = frozenset(found) - frozenset(weights)
    return trained, {var: size for var, size in weights.items() if var in used}
