"""Growing caches rewritten to buffers of fixed length that are updated in place by TensorScatter.

``present = Concat(past, new)`` becomes ``present = TensorScatter(past, new, position)``. Past and present are
``capacity`` long, and consumers of the present read its valid part, a Slice. Only entries from ``position``
on are written, and only entries before it are read from the past: in any order of the nodes, no entry is
overwritten that is still needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.results.rewrites import CacheBuffer, CacheSummary
from memplan_cli.errors import ModelError
from memplan_cli.features.kv_cache.find import GraphIndex, attribute
from memplan_cli.onnx_io.graph_editor import INT64, GraphEditor, rename_reads, with_values
from memplan_cli.onnx_io.load import first_line, standard_opset

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.features.kv_cache.find import CacheMatch, CacheSearch

_TENSOR_SCATTER_OPSET = 24
"""The first opset with TensorScatter."""


def with_tensor_scatter(model: ModelProto) -> ModelProto:
    """Return a copy of a model in an opset with TensorScatter: its own, or the first one.

    Raises:
        ModelError: ONNX's converter refuses the model, or renames its outputs.
    """
    from onnx import helper

    copy = type(model)()
    copy.CopyFrom(model)
    if standard_opset(model) >= _TENSOR_SCATTER_OPSET:
        return copy
    # The converter does not need declared shapes, and refuses wrong ones.
    del copy.graph.value_info[:]
    converted_model = _converted(copy)
    standard = [o for o in converted_model.opset_import if o.domain in STANDARD_DOMAINS]
    converted_model.ir_version = max(
        model.ir_version, helper.find_min_ir_version_for(standard)
    )
    # The model's own metadata, whatever the converter kept of it.
    del converted_model.metadata_props[:]
    converted_model.metadata_props.extend(model.metadata_props)
    return converted_model


def _converted(model: ModelProto) -> ModelProto:
    """Return a model in the first opset with TensorScatter, by ONNX's converter.

    Raises:
        ModelError: the converter refuses the model, or renames its outputs.
    """
    from onnx import version_converter

    own, hint = standard_opset(model), f"export the model with opset {_TENSOR_SCATTER_OPSET}"
    try:
        converted_model = version_converter.convert_version(model, _TENSOR_SCATTER_OPSET)
    except Exception as error:
        raise ModelError(
            f"--kv-cache in-place needs opset {_TENSOR_SCATTER_OPSET}, and ONNX cannot convert the model from "
            f"{own}: {first_line(error)}",
            hint=hint,
        ) from error
    if [v.name for v in converted_model.graph.output] != [v.name for v in model.graph.output]:
        raise ModelError(
            f"ONNX's conversion from opset {own} to {_TENSOR_SCATTER_OPSET} renames outputs of the model",
            hint=hint,
        )
    return converted_model


def with_cache_buffers(
    model: ModelProto, search: CacheSearch, capacity: int
) -> tuple[ModelProto, CacheSummary]:
    """Return a copy of a model whose growing caches are buffers, and the description of all caches.

    The model is in an opset with TensorScatter. At least one of its caches grows: each of these becomes a
    buffer of ``capacity`` entries. Constant caches stay as they are: input and output can share memory already.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]  # shapes that follow from the old lengths
    rewriting = _Rewriting(copy, capacity)
    for cache in search.matches:
        if cache.form != "constant":
            _REWRITES[cache.form](rewriting, cache)
    rewriting.finish()
    buffers = tuple(CacheBuffer(c.input, c.output, c.axis, c.form) for c in search.matches)
    return copy, CacheSummary(
        capacity,
        rewriting.position,
        rewriting.length_output,
        buffers,
        kept=search.kept,
    )


class _ValidLength(NamedTuple):
    """The name of the value with the number of valid entries of a buffer, and the axis that they are on."""

    axis: int
    length: str


class _Rewriting(GraphEditor):
    """A graph whose caches are replaced one by one; `finish` puts its nodes in order.

    The graph gets an input ``position``, the number of valid entries before a step, and an output
    ``length``, the number after it. Both are int64 tensors of one element, as are all lengths here.
    The *valid part* of a buffer is a Slice: the entries before ``position`` of a past, before ``length``
    of a present.

    Attributes:
        capacity: the length of each buffer.
        index: the graph before it was changed.
        position: the name of the input ``position``.
        length_output: the name of the output ``length``.
        zero: the name of an int64 constant [0].
        axis_constants: axis -> the name of an int64 constant that holds it.
        cache_lengths: the names of the computed lengths of the caches after the step; all are equal.
        removed: indices of nodes to remove.
        redirected: value -> the value that its consumers are to read instead.
        valid_lengths: past or present -> its valid length, so that a Shape need not read the valid part.
        whole_buffer_reads: (index of a node, buffer): this node reads the buffer although other consumers
            are redirected to its valid part.
    """

    def __init__(self, model: ModelProto, capacity: int) -> None:
        """Begin with the graph as it is; the names of the new input and output are chosen."""
        super().__init__(model)
        self.capacity = capacity
        self.index = GraphIndex.of(model.graph)
        self.position = self.fresh("memplan_position")
        self.length_output = self.fresh("memplan_length")
        self.zero = self.add_constant("cache_zero", [0])
        self.axis_constants: dict[int, str] = {}
        # Filled by the rewrite of each cache, used by `finish`. The class says what each is.
        self.cache_lengths: list[str] = []
        self.removed: set[int] = set()
        self.redirected: dict[str, str] = {}
        self.valid_lengths: dict[str, _ValidLength] = {}
        self.whole_buffer_reads: set[tuple[int, str]] = set()

    def axis_constant(self, axis: int) -> str:
        """Return the name of an initializer that holds an axis; it is added for the first cache."""
        if axis not in self.axis_constants:
            self.axis_constants[axis] = self.add_constant(f"cache_axis_{axis}", [axis])
        return self.axis_constants[axis]

    def declare_buffers(self, cache: CacheMatch) -> None:
        """Declare input and output of a cache as buffers of ``capacity`` entries."""
        past = next(v for v in self.graph.input if v.name == cache.input)
        present = next(v for v in self.graph.output if v.name == cache.output)
        dim = past.type.tensor_type.shape.dim[cache.axis]
        dim.Clear()
        dim.dim_value = self.capacity
        present.type.CopyFrom(past.type)

    def add_length_after(self, cache: CacheMatch, new: str, axis: int) -> str:
        """Return the length of the cache after the step: ``position`` plus the dim ``axis`` of ``new``.

        Adds the nodes that compute the length, and records it in `cache_lengths` and `valid_lengths`. ``axis``
        is 0 or more: the axis on which ``new`` has the new entries, which the cache may have on another axis.
        """
        grown = self.add_node("Shape", [new], f"{cache.output}.new", start=axis, end=axis + 1)
        length = self.add_node("Add", [self.position, grown], f"{cache.output}.length")
        self.cache_lengths.append(length)
        self.valid_lengths[cache.output] = _ValidLength(cache.axis, length)
        return length

    def add_scatter(self, cache: CacheMatch, new: str) -> str:
        """Add a TensorScatter of new entries into the buffer; return the length that is valid afterwards.

        The operator takes one position for each row of the batch, so the position is repeated.
        """
        length = self.add_length_after(cache, new, cache.axis)
        rows = self.add_node("Shape", [cache.input], f"{cache.input}.rows", start=0, end=1)
        positions = self.add_node("Expand", [self.position, rows], f"{cache.input}.position")
        inputs = [cache.input, new, positions]
        self.add_named_node("TensorScatter", inputs, cache.output, axis=cache.axis)
        return length

    def add_slice(self, buffer: str, axis: int, span: tuple[str, str]) -> str:
        """Add a Slice of a buffer along an axis, between two lengths; return its result."""
        inputs = [buffer, *span, self.axis_constant(axis)]
        return self.add_node("Slice", inputs, f"{buffer}.valid")

    def add_valid_part(self, buffer: str, axis: int, length: str) -> str:
        """Add a Slice of the first ``length`` entries of a buffer; return its result."""
        return self.add_slice(buffer, axis, (self.zero, length))

    def rename_present(self, cache: CacheMatch) -> str:
        """Rename the value that was the graph output ``cache.output``, and return its new name.

        The buffer takes over the name ``cache.output``. The node that computes the renamed value is changed in
        place, and `redirected` lets the consumers of this value read the new name.
        """
        # ``cache.after`` are the nodes behind the one that extends the cache; the last one makes the output.
        last_node = cache.after[-1] if cache.after else cache.node
        producer = self.index.nodes[last_node]
        new_name = self.fresh(f"{cache.output}.valid")
        position = list(producer.output).index(cache.output)
        producer.output[position] = new_name
        self.redirected[cache.output] = new_name
        return new_name

    def redirect_past(self, cache: CacheMatch) -> None:
        """Let the consumers of a past read its valid part, the entries before ``position``."""
        self.valid_lengths[cache.input] = _ValidLength(cache.axis, self.position)
        valid = self.add_valid_part(cache.input, cache.axis, self.position)
        self.redirected.setdefault(cache.input, valid)

    def finish(self) -> None:
        """Set the nodes of the graph, and add the input ``position`` and the output ``length``.

        These are the numbers of valid entries in the buffers before and after a step. Called once, after one
        or more caches were rewritten. Of the graph's own nodes, those in `removed` are left out. The others
        are changed in place to read the valid part of a buffer instead of the buffer (`redirected`), with
        two exceptions:

        - A Shape of a buffer (a key of `valid_lengths`) is replaced by nodes that compute the shape of the
          valid part.
        - A GroupQueryAttention, which writes into its past, still reads all of it (`whole_buffer_reads`).
        """
        from onnx import helper

        graph = self.graph
        nodes = []
        for index, node in enumerate(self.index.nodes):
            if index in self.removed:
                continue
            is_shape = node.op_type == "Shape" and node.domain in STANDARD_DOMAINS
            if is_shape and node.input[0] in self.valid_lengths:
                nodes.append(self._shape_of_valid_part(node))
                continue
            new_names = {
                old: new
                for old, new in self.redirected.items()
                if (index, old) not in self.whole_buffer_reads
            }
            rename_reads([node], new_names)
            nodes.append(node)
        # Any of the lengths will do: they are equal.
        self.add_named_node("Identity", [self.cache_lengths[0]], self.length_output)
        graph.input.append(helper.make_tensor_value_info(self.position, INT64, [1]))
        graph.output.append(helper.make_tensor_value_info(self.length_output, INT64, [1]))
        self.set_nodes(nodes)  # and the added ones, each producer before its consumers

    def _shape_of_valid_part(self, shape: NodeProto) -> NodeProto:
        """Return a node that computes the shape of the valid part of a past or present, and add its operands.

        ``shape`` is a Shape of the past or present, and is replaced by the new node. The dims are those of the
        buffer, with the number of valid entries on the axis that grows. So no Slice of the buffer is needed.
        """
        from onnx import helper

        buffer, output = shape.input[0], shape.output[0]
        axis, length = self.valid_lengths[buffer]
        first, last = _span(shape, _rank(self.graph, buffer))
        if not first <= axis < last:  # the Shape returns dims of other axes only
            return shape
        parts = []
        if first < axis:
            parts += [self.add_node("Shape", [buffer], like=output, start=first, end=axis)]
        parts += [length]
        if axis + 1 < last:
            parts += [self.add_node("Shape", [buffer], like=output, start=axis + 1, end=last)]
        if len(parts) == 1:
            return helper.make_node("Identity", parts, [output], shape.name)
        return helper.make_node("Concat", parts, [output], shape.name, axis=0)


def _rewrite_concat(edit: _Rewriting, cache: CacheMatch) -> None:
    """Replace a Concat of past and new entries by two nodes: a TensorScatter, and a Slice of the valid entries.

        original   present = Concat(past, new), read by other nodes
        rewritten  present = TensorScatter(past, new), and these nodes read Slice(present, 0, length)

    ``past`` and ``present`` are the buffer, as graph input and output. With a Transpose T and its inverse U:

        original   joined = Concat(T(past), new), present = U(joined)
        rewritten  present = TensorScatter(past, U(new)), valid = T(Slice(present, 0, length))
                   present.valid = U(valid), read by the nodes that read present

    ``valid`` is a new value, which the nodes that read ``joined`` read. Other nodes that read ``past`` read its valid
    entries.
    """
    index = edit.index
    rank = index.ranks[cache.input]
    perm = index.permutation(cache.before, rank)  # of T
    is_transposed = perm != tuple(range(rank))
    new = _new_entries(edit, cache)
    if is_transposed:
        inverse = [perm.index(axis) for axis in range(rank)]  # of U
        # ``like`` is only the name from which the name of the new value is made.
        new = edit.add_node("Transpose", [new], like=f"{cache.output}.new", perm=inverse)
    edit.declare_buffers(cache)
    length = edit.add_scatter(cache, new)  # along ``cache.axis``, an axis of the buffer
    valid = edit.add_valid_part(cache.output, cache.axis, length)
    if is_transposed:
        valid = edit.add_node("Transpose", [valid], like=valid, perm=list(perm))
    edit.redirect_past(cache)  # other consumers of the past read the entries before this step
    edit.removed.add(cache.node)
    concat_output = index.nodes[cache.node].output[0]  # ``joined``, or ``present`` itself
    edit.redirected[concat_output] = valid
    # Nodes such as U, or an Identity, from ``joined`` to ``present`` stay. Their result becomes ``present.valid``.
    if cache.after:
        edit.rename_present(cache)


def _new_entries(edit: _Rewriting, cache: CacheMatch) -> str:
    """Return the name of the tensor that the Concat of a cache appends to it.

    The first operand of the Concat is the cache. If several follow, a new Concat joins them. The axes
    are in the order of the Concat's operands, which may be transposed against the cache's input.
    """
    concat = edit.index.nodes[cache.node]
    appended = concat.input[1:]
    if len(appended) == 1:
        return str(appended[0])
    (axis,) = attribute(concat, "axis")  # ONNX requires it
    return edit.add_node("Concat", appended, f"{cache.output}.new", axis=axis)


def _rewrite_cast(edit: _Rewriting, cache: CacheMatch) -> None:
    """Keep a Concat between Casts, and write the new entries, rounded, into the buffer.

    The Concat stays because its consumers read the new entries before they are rounded:

        original   present = round(Concat(widen(past), new))
        rewritten  present = TensorScatter(past, round(new))
                   present.valid = round(Concat(widen(valid part of past), new))

    ``widen`` and ``round`` are the paths before and behind the Concat: Casts, and maybe Transposes.
    """
    index = edit.index
    new = _new_entries(edit, cache)
    for node_index in cache.after:  # a copy of the path ``round``, for the new entries
        node = index.nodes[node_index]
        output = edit.fresh(f"{cache.output}.new")
        name = edit.fresh(f"{output}/{node.op_type}")
        edit.new_nodes.append(with_values(node, name, [new], [output]))
        new = output
    edit.declare_buffers(cache)
    edit.add_scatter(cache, new)
    edit.redirect_past(cache)  # ``widen`` reads the valid part
    edit.rename_present(cache)  # consumers of present read ``present.valid``


def _rewrite_operator(edit: _Rewriting, cache: CacheMatch) -> None:
    """Let an attention operator read the valid part of the past, and save its new entries.

    The present that the operator returns is the valid past and the new entries behind it. A TensorScatter
    writes these new entries into the buffer.
    """
    edit.declare_buffers(cache)
    edit.redirect_past(cache)
    axis = cache.axis
    present = edit.rename_present(cache)
    end = edit.add_node("Shape", [present], f"{present}.length", start=axis, end=axis + 1)
    new = edit.add_slice(present, axis, (edit.position, end))
    edit.add_scatter(cache, new)


def _rewrite_shared(edit: _Rewriting, cache: CacheMatch) -> None:
    """Let an operator that writes into its past read and write the whole buffer.

    GroupQueryAttention reads the number of valid entries from its other inputs. All other consumers of
    the past and of the present read the valid parts.
    """
    edit.declare_buffers(cache)
    edit.whole_buffer_reads.add((cache.node, cache.input))  # not redirected by the next lines
    query = edit.index.nodes[cache.node].input[0]  # [batch, new entries, ...]
    length = edit.add_length_after(cache, query, axis=1)
    edit.redirect_past(cache)
    edit.redirected[cache.output] = edit.add_valid_part(cache.output, cache.axis, length)


_REWRITES: Mapping[str, Callable[[_Rewriting, CacheMatch], None]] = {
    "concat": _rewrite_concat,
    "cast": _rewrite_cast,
    "operator": _rewrite_operator,
    "shared": _rewrite_shared,
}


def _span(node: NodeProto, rank: int) -> tuple[int, int]:
    """Return the half-open range of axes whose dims a Shape of a tensor of this rank returns."""
    (first,) = attribute(node, "start") or (0,)
    (last,) = attribute(node, "end") or (rank,)
    first, last = (axis + rank if axis < 0 else axis for axis in (first, last))
    return max(first, 0), min(last, rank)


def _rank(graph: GraphProto, name: str) -> int:
    """Return the declared rank of a graph input or output."""
    values = (*graph.input, *graph.output)
    return next(len(v.type.tensor_type.shape.dim) for v in values if v.name == name)
