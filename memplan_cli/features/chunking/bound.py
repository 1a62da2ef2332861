"""A lower bound of the live peak for all choices of regions.

A need is a set of tensors that are whole and live at once. An op that is not in chunks needs
all its inputs and outputs. An op in chunks needs

- at its first chunk: inputs that every chunk reads whole, and inputs that their producer cannot
  make in slices along the axis of the split;
- at its last chunk: inputs that every chunk reads whole, and outputs that are graph outputs or
  that some consumer cannot read along the axis.

The bound is the largest such need of any op, each in the cheapest of its ways, or the graph's
outputs. Chunks that are cut again (`nested`) read whole the tensors that their region reads whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import operator
from memplan_cli.core.program import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from memplan_cli.analysis.aliasing import Aliasing
    from memplan_cli.core.program import Op, VarId
    from memplan_cli.features.chunking.axes.split import AxisMap, Split
    from memplan_cli.features.chunking.graph import Graph


class Need(NamedTuple):
    """Tensors that are whole and live at once, while an op runs or at the end.

    Attributes:
        bytes: their bytes, less those that an output shares with an input (a view, or in place).
        op: the label of the op that needs them; empty for the graph's outputs.
        tensors: the bytes of each tensor, largest first, without views of one another.
    """

    bytes: int
    op: str
    tensors: Mapping[VarId, int]


def lower_bound(graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> Need:
    """Return the largest need of any op or of the graph's outputs.

    Each op needs its bytes however it is chunked, so no choice of chunks has a lower live peak. Only ``planned`` vars count. Ops with subgraphs are left out: which tensors live while a
    subgraph runs is not known here.
    """
    needs = _Needs(graph, planned, aliasing)
    output_need = needs.of_tensors(graph.program.body.outputs, "")
    op_needs = (needs.of_op(index) for index, op in enumerate(graph.ops) if not op.bodies)
    return max((output_need, *op_needs), key=lambda need: need.bytes)


class _Needs:
    """Computes which whole tensors are live at once while an op runs.

    Attributes:
        _planned: the vars that count.
        _aliasing: which outputs may be written over an input.
    """

    def __init__(self, graph: Graph, planned: Collection[VarId], aliasing: Aliasing) -> None:
        self._graph, self._planned, self._aliasing = graph, planned, aliasing

    def of_op(self, index: int) -> Need:
        """Return the smallest need of an op, whole or split; if equal, the one of fewer tensors."""
        op = self._graph.ops[index]
        whole = self.of_tensors((*op.inputs, *op.outputs), op.label)
        whole = whole._replace(bytes=whole.bytes - self._overwritten_bytes(op))
        in_chunks = (self._of_split(op, split) for split in self._graph.splits(index))
        return min((whole, *in_chunks), key=lambda need: (need.bytes, len(need.tensors)))

    def _of_split(self, op: Op, split: Split) -> Need:
        """Return a lower bound of the whole tensors that are live while an op runs in chunks.

        It is the larger one of these needs; slices are not counted:

        - first chunk: the inputs that every chunk reads whole, and those that their producer cannot
          make in slices. Such an input is whole at first; later it may be cut, and freed by slices.
        - last chunk: the inputs that every chunk reads whole, and the outputs that some consumer
          cannot read in slices. All slices of such an output exist by then.
        """
        reads = [read for read in zip(op.inputs, split.inputs, strict=True) if read[0]]
        whole_inputs = [var for var, axis_map in reads if axis_map is None]
        unsliceable_inputs = [
            var
            for var, axis_map in reads
            if axis_map and axis_map.axis not in self._graph.output_axes(var)
        ]
        unsliceable_outputs = [
            var
            for var, axis_map in zip(op.outputs, split.outputs, strict=True)
            # An output without an axis map is made whole by every chunk, and has no consumer.
            if var and axis_map and not self._is_read_in_slices(var, axis_map)
        ]
        first_need = self.of_tensors((*whole_inputs, *unsliceable_inputs), op.label)
        last_need = self.of_tensors((*whole_inputs, *unsliceable_outputs), op.label)
        if op.outputs[0] in unsliceable_outputs:
            # The first output may be written over an input, and then both are counted once. If that
            # input is not counted above, too much is subtracted: the bound is lower than it could be.
            last_need = last_need._replace(bytes=last_need.bytes - self._overwritten_bytes(op))
        return max(first_need, last_need, key=lambda need: need.bytes)

    def _is_read_in_slices(self, var: VarId, axis_map: AxisMap) -> bool:
        """Whether every consumer of a var can read it in slices along an axis.

        A graph output is read whole by the caller.
        """
        return var not in self._graph.outputs and all(
            axis_map.axis in self._graph.input_axes(index, var)
            for index in self._graph.consumers(var)
        )

    def _overwritten_bytes(self, op: Op) -> int:
        """Return the most bytes of the first output that may lie in the memory of an input.

        That is the case for views and for outputs that may be written in place.
        """
        # Without views in the rules, no vars share bytes at all.
        if not self._aliasing.views or not op.outputs:
            return 0
        bytes_of = self._graph.bytes
        is_view = operator(op).is_view
        # Of a view all inputs are tried: too many shared bytes only make the bound lower.
        positions = range(len(op.inputs)) if is_view else self._aliasing.in_place_inputs(op)
        inputs = {op.inputs[position] for position in positions if position < len(op.inputs)}
        output_bytes = bytes_of(op.outputs[0])
        return max((min(bytes_of(var), output_bytes) for var in inputs if var), default=0)

    def of_tensors(self, variables: Iterable[VarId], label: str) -> Need:
        """Return the need for some vars, without weights and unplanned vars.

        Of several views of the same bytes only the largest counts.
        """
        graph = self._graph
        largest_view: dict[VarId, VarId] = {}  # by the var whose bytes it shows
        for var in variables:
            if var in self._planned and graph.program.vars[var].origin is not Origin.WEIGHT:
                root = self._view_root(var)
                other = largest_view.get(root, var)
                largest_view[root] = max(
                    other, var, key=lambda name: (graph.bytes(name), name)
                )
        largest_first = sorted(largest_view.values(), key=lambda var: (-graph.bytes(var), var))
        tensors = {var: graph.bytes(var) for var in largest_first}
        return Need(sum(tensors.values()), label, tensors)

    def _view_root(self, var: VarId) -> VarId:
        """Return the var whose bytes a chain of views shows."""
        producer = self._graph.dataflow.producer
        while self._aliasing.views and var in producer:
            op = self._graph.ops[producer[var]]
            if not operator(op).is_view or var != op.outputs[0]:
                break
            var = op.inputs[0]
        return var
