"""The top block of a program with what chunking needs: shapes, bytes and splits of its ops.

Ops are named by their index in the block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.names import node_names, value_names
from memplan_cli.core.operators import NCHWC
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.chunking.axes.split import ModelContext, Node, Role, node_of
from memplan_cli.features.chunking.axes.table import splits_of
from memplan_cli.features.chunking.axes.windows import SPATIAL_AXES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy as np

    from memplan_cli.core.program import Dataflow, Op, Program, VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Dims, Split

    Array = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Graph:
    """The top block of a program, with shapes and splits that are computed once.

    Ops are named by their index in the block. A split is one way to compute an op in chunks
    along an axis (`Split`).

    Attributes:
        context: constants, opset and channel block.
        kept_vars: tensors that stay one tensor: excluded ones, the loss.
        outputs: the graph's outputs.
        blocked_vars: images in the runtime's blocked channel layout. Their dims say
            ``[N, C, H, W]``, but their elements lie as ``[N, C / block, H, W, block]``.
        _nodes: the nodes of ops, by op index; a cache.
        _splits: the splits of ops, by op index; a cache.
    """

    program: Program
    context: ModelContext
    kept_vars: frozenset[VarId]
    outputs: frozenset[VarId]
    weights: frozenset[VarId]
    blocked_vars: frozenset[VarId]
    _nodes: dict[int, Node | None] = field(default_factory=dict, repr=False)
    _splits: dict[int, tuple[Split, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, program: Program, context: ModelContext, kept_vars: Collection[VarId] = ()
    ) -> Graph:
        """Return the graph of a program, in which ``kept_vars`` are never made in slices.

        Its outputs, weights, and vars in the blocked channel layout are taken from the program.
        """
        weights = {var.id for var in program.vars.values() if var.origin is Origin.WEIGHT}
        return cls(
            program,
            context,
            kept_vars=frozenset(kept_vars),
            outputs=frozenset(program.body.outputs),
            weights=frozenset(weights),
            blocked_vars=frozenset(_blocked_vars(program.body.ops)),
        )

    @property
    def dataflow(self) -> Dataflow:
        """The producers and consumers of the top block."""
        return self.program.dataflow

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of the top block."""
        return self.program.body.ops

    @cached_property
    def value_names(self) -> frozenset[str]:
        """The names of the program's vars, which new vars must not have."""
        return frozenset(value_names(self.program))

    @cached_property
    def node_names(self) -> frozenset[str]:
        """The names of the program's ops, which new ops must not have."""
        return frozenset(node_names(self.program))

    def node(self, op_index: int) -> Node | None:
        """Return an op with its shapes; None if a dimension is not a number."""
        if op_index not in self._nodes:
            self._nodes[op_index] = node_of(self.ops[op_index], self.program, self.context)
        return self._nodes[op_index]

    def node_with_shapes(self, op_index: int) -> Node:
        """Return an op whose dimensions are all numbers, as those of every op with splits are."""
        node = self.node(op_index)
        if node is None:
            raise ValueError(f"{self.ops[op_index].label} has dimensions that are not numbers")
        return node

    def splits(self, op_index: int) -> tuple[Split, ...]:
        """Return the ways to compute an op in chunks; empty if it has to stay whole."""
        if op_index not in self._splits:
            node = self.node(op_index)
            makes_kept_var = any(var in self.kept_vars for var in self.ops[op_index].outputs)
            all_splits = () if node is None or makes_kept_var else splits_of(node)
            self._splits[op_index] = tuple(
                split
                for split in all_splits
                if self._may_slice_weights(op_index, split)
                and self._respects_channel_blocks(op_index, split)
            )
        return self._splits[op_index]

    def _respects_channel_blocks(self, op_index: int, split: Split) -> bool:
        """Whether a split slices images in the blocked layout only along samples, rows and columns.

        For rows and columns, the number of channels C must also be a multiple of the block: these are sliced in
        the shape ``[N, C / block, H, W, block]`` of the memory (`ProgramWriter`), which needs full blocks.
        Samples are sliced in the declared shape ``[N, C, H, W]``, as the memory of each is contiguous.
        """
        op, block = self.ops[op_index], self.context.channel_block
        axis_maps = (
            *zip(op.inputs, split.inputs, strict=True),
            *zip(op.outputs, split.outputs, strict=True),
        )
        return all(
            axis_map is None
            or var not in self.blocked_vars
            or axis_map.axis == 0  # samples
            or (axis_map.axis in SPATIAL_AXES and block > 0 and self.dims(var)[1] % block == 0)
            for var, axis_map in axis_maps
        )

    def _may_slice_weights(self, op_index: int, split: Split) -> bool:
        """Whether a split slices no weight, or only weights that are cheap to slice.

        A Slice copies its part of the weight at run time. That is cheap for an operand of an op with
        independent elements or rows (`Role.FREE`), such as the mask in an Add, if the operand is not
        larger than the op's output.
        """
        op = self.ops[op_index]
        sliced_weights = [
            var
            for var, axis_map in zip(op.inputs, split.inputs, strict=True)
            if axis_map is not None and var in self.weights
        ]
        if not sliced_weights:
            return True
        # Of other roles are, for example, the matrix of a product and an operand of an attention.
        if split.role is not Role.FREE:
            return False
        output_bytes = sum(self.bytes(var) for var in op.outputs if var)
        return all(self.bytes(var) <= output_bytes for var in sliced_weights)

    def dims(self, var: VarId) -> Dims:
        """Return the shape of a var whose dimensions are numbers."""
        return tuple(dim for dim in self.program.vars[var].shape or () if isinstance(dim, int))

    def bytes(self, var: VarId) -> int:
        """Return the bytes of a var; 0 if they are not a number."""
        record = self.program.vars[var]
        size = size_of(record.shape, record.dtype)
        return 0 if size is None or size.symbols else size.coefficient

    def producers(self, op_index: int) -> Iterator[int]:
        """Yield the ops that make the inputs of an op."""
        for var in self.dataflow.reads[op_index]:
            if var in self.dataflow.producer:
                yield self.dataflow.producer[var]

    def readers(self, op_index: int) -> Iterator[int]:
        """Yield the ops that read the outputs of an op."""
        for var in self.ops[op_index].outputs:
            yield from self.consumers(var)

    def consumers(self, var: VarId) -> tuple[int, ...]:
        """Return the ops that read a var, in their inputs or in a subgraph."""
        return tuple(self.dataflow.consumers.get(var, ()))

    def output_map(self, op_index: int, split: Split, var: VarId) -> AxisMap | None:
        """Return how a split slices one of the op's outputs; None if each chunk makes it whole."""
        return split.outputs[self.ops[op_index].outputs.index(var)]

    def input_axes(self, op_index: int, var: VarId) -> frozenset[int]:
        """Return the axes along which some split of an op slices one of its inputs."""
        return frozenset(
            axis_map.axis
            for split in self.splits(op_index)
            for name, axis_map in zip(self.ops[op_index].inputs, split.inputs, strict=True)
            if name == var and axis_map is not None
        )

    def output_axes(self, var: VarId) -> frozenset[int]:
        """Return the axes along which the producer of a var can make it in chunks."""
        producer = self.dataflow.producer.get(var)
        if producer is None:
            return frozenset()
        maps = (self.output_map(producer, split, var) for split in self.splits(producer))
        return frozenset(axis_map.axis for axis_map in maps if axis_map is not None)

    def bytes_live_across(self, first: int, last: int, excluded: frozenset[VarId]) -> int:
        """Return the bytes of vars that are made before op ``first`` and read after op ``last``.

        Vars in ``excluded`` do not count.
        """
        table = self._live_spans
        is_live = (table.starts < first) & (table.stops > last)
        excluded_rows = [table.rows[var] for var in excluded if var in table.rows]
        excluded_bytes = table.sizes[excluded_rows][is_live[excluded_rows]].sum()
        return int(table.sizes[is_live].sum()) - int(excluded_bytes)

    @cached_property
    def _live_spans(self) -> _LiveSpans:
        """The lifetimes and sizes of all vars that ops make."""
        import numpy as np

        producer = self.dataflow.producer
        rows = {var: row for row, var in enumerate(producer)}
        return _LiveSpans(
            rows,
            starts=np.array([producer[var] for var in rows], np.int64),
            stops=np.array([self._last_use(var) for var in rows], np.int64),
            sizes=np.array([self.bytes(var) for var in rows], np.int64),
        )

    def _last_use(self, var: VarId) -> int:
        """Return the last op that reads a var: -1 if none, the number of ops for graph outputs."""
        return len(self.ops) if var in self.outputs else max(self.consumers(var), default=-1)


class _LiveSpans(NamedTuple):
    """Vars that ops make, in arrays with one element for each var.

    Attributes:
        rows: the index of each var in the arrays.
        starts: the index of the producer.
        stops: the index of the last consumer (`Graph._last_use`).
        sizes: the bytes.
    """

    rows: Mapping[VarId, int]
    starts: Array
    stops: Array
    sizes: Array


def _blocked_vars(ops: Iterable[Op]) -> set[VarId]:
    """Return the vars in the blocked channel layout.

    Ops of the runtime's NCHWC domain make it, and ReorderOutput ends it. Operators of other
    domains keep the layout of their inputs.
    """
    blocked: set[VarId] = set()
    for op in ops:
        if op.domain == NCHWC:
            blocked.update(() if op.type == "ReorderOutput" else op.outputs)
        elif not blocked.isdisjoint(op.inputs):
            blocked.update(op.outputs)
    return blocked


def run_at_first_use(program: Program) -> Program:
    """Return the program with ops moved down to their first consumer.

    An op is moved only if its inputs are live until there anyway. The order of ONNX Runtime
    starts with ops that depend on graph inputs alone; their results would be live through every
    region before their use.
    """
    dataflow = program.dataflow
    positions = list(range(len(dataflow.ops)))
    # Consumers before their producers: an op moves to where its first consumer has moved.
    for index in reversed(range(len(dataflow.ops))):
        op = dataflow.ops[index]
        consumers = [
            reader for var in op.outputs for reader in dataflow.consumers.get(var, ())
        ]
        if not consumers or op.is_random or op.bodies:
            continue
        first_use = min(positions[reader] for reader in consumers)
        if all(
            _is_live_until(dataflow, var, first_use, without=index)
            for var in dataflow.reads[index]
        ):
            positions[index] = first_use
    # Ops that were moved to the position of another op run before it.
    order = sorted(
        range(len(positions)), key=lambda index: (positions[index], positions[index] == index)
    )
    return program.with_ops(dataflow.ops[index] for index in order)


def _is_live_until(dataflow: Dataflow, var: VarId, op_index: int, *, without: int) -> bool:
    """Whether a var is live at an op even if op ``without`` does not read it.

    Graph inputs and weights always are.
    """
    if var not in dataflow.producer:
        return True
    return any(reader >= op_index for reader in dataflow.consumers[var] if reader != without)
