"""Declared types that contradict what the nodes compute.

A declared type wins wherever shapes are read, ONNX's inference included, so a tensor that is declared
too small would be planned too small. Therefore each node is inferred once more, from the types of
its inputs in the program, in a query model whose nodes are not connected. Nodes that are equal in all that
decides the result (operator, attributes, types, values of small weights) are inferred once. Where a
shape is computed by the graph, the nodes that compute it are part of the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import ML, ONNX, SHAPE_QUERIES, operator
from memplan_cli.core.program import Origin, VarId
from memplan_cli.onnx_io.constants import constant_tensors
from memplan_cli.onnx_io.shapes.generated_names import is_generated_name
from memplan_cli.onnx_io.shapes.lattice import common_shape, stacked_shape, tensor_type
from memplan_cli.onnx_io.shapes.light_model import OLDEST_IR
from memplan_cli.onnx_io.shapes.onnx_inference import infer_shapes
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import UNKNOWN, declared_types, element_type

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.core.program import Block, Dim, Op, Program, Shape, Var
    from memplan_cli.onnx_io.types import DeclaredType

    OpNode = tuple[Op, NodeProto]
    """An op of the program and its node in the model."""

_MAX_NAME = 80
"""Characters of a name in a message."""

_MAX_DIMS = 12
"""Dims of a shape in a message."""

_INTEGERS = frozenset({"int64", "int32"})

_MAX_SHAPE_ELEMENTS = 64
"""Elements up to which a tensor may decide a shape."""


class Contradiction(NamedTuple):
    """A value whose type in the program differs from what its node computes.

    Attributes:
        var: the value, with the declared type.
        computed: what the node computes, as text.
    """

    var: Var
    computed: str

    def __str__(self) -> str:
        where = f" in {_short(self.var.block)}" if self.var.block else ""
        declared = _type_text((self.var.dtype, self.var.shape))
        name = _short(self.var.name)
        return f"{name}{where} is declared {declared}, its node makes {self.computed}"


def contradictions(model: ModelProto, program: Program) -> tuple[Contradiction, ...]:
    """Return the node outputs whose type in the program is certainly wrong.

    Wrong means another dtype, rank or number than the node computes, or a number where the node computes
    a name. A node for which inference has no answer contradicts nothing. Outputs of control flow are
    compared with those of their subgraphs.
    """
    index = _OpIndex.of(model.graph, program)
    # The first op of each key is inferred for all of them.
    representatives: dict[Hashable, OpNode] = {}
    for graph, block in index.blocks:
        for key, op in index.keyed_ops(block):
            if key not in representatives:
                representatives[key] = op, graph.node[op.source]
    wrong_outputs = _wrong_outputs(model, index, representatives)
    control_flow = [op for _, block in index.blocks for op in block.ops if op.bodies]
    found = list(_control_flow_contradictions(control_flow, program.vars))
    for _, block in index.blocks if wrong_outputs else ():
        found.extend(
            Contradiction(program.vars[op.outputs[wrong.output]], wrong.computed)
            for key, op in index.keyed_ops(block)
            for wrong in wrong_outputs.get(key, ())
        )
    return tuple(found)


def _control_flow_contradictions(
    ops: Iterable[Op], vars_: Mapping[VarId, Var]
) -> Iterator[Contradiction]:
    """Yield the outputs of If, Loop and Scan that differ from what their subgraphs return.

    Ops whose subgraphs do not tell types yield nothing.
    """
    for op in ops:
        for var, computed in zip(op.outputs, _control_flow_types(op, vars_), strict=False):
            difference = _difference(op, vars_, var, computed)
            if difference:
                yield Contradiction(vars_[var], difference)


# Outputs of control flow.


def _control_flow_types(op: Op, vars_: Mapping[VarId, Var]) -> Sequence[DeclaredType]:
    """Return the types of the outputs of an If, Loop or Scan from those of its subgraphs' outputs.

    A Loop or Scan may run any number of times, 0 included: a final state keeps what its initial value and
    the subgraph's output have in common, and the length of stacked outputs is unknown. Empty for
    other operators, and for a Scan without its number of scanned inputs.
    """

    def type_of(var: VarId) -> DeclaredType:
        return (vars_[var].dtype, vars_[var].shape) if var else UNKNOWN

    if not op.bodies or op.domain:
        return ()
    outputs, *others = [[type_of(var) for var in body.outputs] for body in op.bodies]
    if op.type == "If":
        for other in others:
            outputs = [_common(a, b) for a, b in zip(outputs, other, strict=False)]
        return outputs
    scanned = op.attributes.get("num_scan_inputs")
    if op.type == "Loop":
        outputs = outputs[1:]  # without the condition
        states = op.inputs[2:]  # without trip count and condition
    elif op.type == "Scan" and isinstance(scanned, int):
        states = op.inputs[: len(op.inputs) - scanned]
    else:
        return ()
    initial = [type_of(var) for var in states]
    rows = outputs[len(initial) :]
    axes = op.attributes.get("scan_output_axes")  # a Loop has no such attribute
    given_axes = axes if isinstance(axes, tuple) else ()
    # Axes that are left out are 0.
    stack_axes = [*(axis for axis in given_axes if isinstance(axis, int)), *[0] * len(rows)]
    return (
        *(_common(a, b) for a, b in zip(initial, outputs, strict=False)),
        *(
            (dtype, stacked_shape(shape, axis, None))
            for (dtype, shape), axis in zip(rows, stack_axes, strict=False)
        ),
    )


def _common(one: DeclaredType, other: DeclaredType) -> DeclaredType:
    """Return what two types have in common; a dtype, rank or dim that differs is unknown."""
    dtype = one[0] if one[0] == other[0] else UNKNOWN[0]
    return dtype, common_shape(one[1], other[1])


# Ops that are equal for inference.


def _blocks_with_graphs(graph: GraphProto, block: Block) -> Iterator[tuple[GraphProto, Block]]:
    """Yield every block of the program with its graph, outer ones first."""
    pairs = [(graph, block)]
    for outer_graph, outer_block in pairs:  # the list grows while it is walked
        yield outer_graph, outer_block
        for op in outer_block.ops:
            if op.bodies:
                inner_graphs = (body for _, body in subgraphs(outer_graph.node[op.source]))
                pairs.extend(zip(inner_graphs, op.bodies, strict=True))


@dataclass(frozen=True, slots=True)
class _OpIndex:
    """The ops of a program, with keys by which ops are found for which inference has the same answer.

    Attributes:
        blocks: all blocks with their graphs, outer ones first.
        vars: the program's values.
        contents: small weights, as tensors without names.
        type_numbers: a number for each value; values of equal type have equal numbers. An input or output
            that is left out has -1.
    """

    blocks: Sequence[tuple[GraphProto, Block]]
    vars: Mapping[VarId, Var]
    contents: Mapping[VarId, TensorProto]
    type_numbers: Mapping[VarId, int]

    @classmethod
    def of(cls, graph: GraphProto, program: Program) -> _OpIndex:
        """Number the types of all values, and read the small weights."""
        number_of: dict[tuple[str, Shape | None], int] = {}
        type_numbers, weights = {VarId(""): -1}, []
        for var in program.vars.values():
            type_numbers[var.id] = number_of.setdefault((var.dtype, var.shape), len(number_of))
            if var.origin is Origin.WEIGHT:
                weights.append(var)
        blocks = list(_blocks_with_graphs(graph, program.body))
        return cls(blocks, program.vars, _weight_contents(blocks, weights), type_numbers)

    def keyed_ops(self, block: Block) -> Iterator[tuple[Hashable, Op]]:
        """Yield each op that ONNX's inference may contradict, after its key.

        Only one op of each key needs to be inferred. The others have an equal operator, attributes and types
        of inputs and outputs, and equal values in the inputs that decide the output shape.
        """
        for op in block.ops:
            # Control flow is compared with its subgraphs, and the type of a Constant was read from its tensor.
            if not op.bodies and op.domain in (ONNX, ML) and op.type != "Constant":
                yield self._inference_key(op), op

    def _inference_key(self, op: Op) -> Hashable:
        """Return a key that two ops share only if ONNX's inference has the same answer for both."""
        # Its dtype is that of a tensor, which is not in the op's attributes: a key of its own, by the results.
        if op.type == "ConstantOfShape":
            return op.outputs
        return (
            op.type,
            op.domain,
            tuple(self.type_numbers[var] for var in op.inputs),
            tuple(self.type_numbers[var] for var in op.outputs),
            tuple(op.attributes.items()),
            tuple(self._content_key(var) for var in _shape_inputs(op)),
        )

    def computed_shape_inputs(self, op: Op) -> Iterator[VarId]:
        """Yield the inputs of an op that decide its output shape and are computed by the graph."""
        return filter(self.is_computed, _shape_inputs(op))

    def _content_key(self, var: VarId) -> Hashable:
        """Return what an input that decides the output shape adds to the key of its op.

        For a small weight its bytes; for a computed value its id, since it may differ from any other;
        None for the rest, of which inference knows only the type.
        """
        if var in self.contents:
            return bytes(self.contents[var].SerializeToString())
        return var if self.is_computed(var) else None

    def is_computed(self, var_id: VarId) -> bool:
        """Whether an op computes the value, and it may decide a shape."""
        if not var_id:
            return False
        var = self.vars[var_id]
        return var.origin is Origin.OP and _may_decide_a_shape(var)


def _shape_inputs(op: Op) -> tuple[VarId, ...]:
    """Return the inputs of an op whose values, not only their dims, decide its output shape."""
    first = operator(op).shape_from
    return () if first is None else op.inputs[first:]


def _may_decide_a_shape(var: Var) -> bool:
    """Whether a value may hold dims, or factors of a Resize: few integers, or few float32 weights.

    A dim that is not a number counts as 1.
    """
    if var.dtype not in _INTEGERS and (var.dtype, var.origin) != ("float32", Origin.WEIGHT):
        return False
    sizes = (dim for dim in var.shape or () if isinstance(dim, int))
    return prod(sizes) <= _MAX_SHAPE_ELEMENTS


def _weight_contents(
    blocks: Iterable[tuple[GraphProto, Block]], weights: Iterable[Var]
) -> Mapping[VarId, TensorProto]:
    """Return the weights that may decide a shape and are stored in the model, as tensors without names."""
    small = {(var.block, var.name): var.id for var in weights if _may_decide_a_shape(var)}
    contents: dict[VarId, TensorProto] = {}
    for graph, block in blocks if small else ():
        for name, tensor in constant_tensors(graph):
            weight = small.get((block.path, name))
            if weight is not None and tensor.data_location != tensor.EXTERNAL:
                content = contents[weight] = type(tensor)()
                content.CopyFrom(tensor)
                content.ClearField("name")  # equal weights have equal bytes
    return contents


# The query model.


class _WrongOutput(NamedTuple):
    """An output position at which an op contradicts its declaration, and what it computes."""

    output: int
    computed: str


def _wrong_outputs(
    model: ModelProto, index: _OpIndex, op_of_key: Mapping[Hashable, OpNode]
) -> dict[Hashable, list[_WrongOutput]]:
    """Infer the types of ops, and return the outputs whose declared types they contradict, by key of the op.

    ``op_of_key`` has one op for each key of `_OpIndex.keyed_ops`: ops of one key are equal for inference. If
    inference fails, nothing is known to be wrong, and the result is empty.
    """
    query = _QueryModel(model, index.vars, index.contents)
    # Inference propagates values of shapes. So the ops that compute such inputs are added first.
    for op, node in _shape_ops_before(index, (op for op, _ in op_of_key.values())):
        query.add_producer(node, op)
    output_names = {key: query.add(node, op) for key, (op, node) in op_of_key.items()}
    try:
        types = declared_types(infer_shapes(query.data()).graph)
    except Exception:  # noqa: BLE001 - of many types
        return {}
    wrong: dict[Hashable, list[_WrongOutput]] = {}
    for key, (op, _) in op_of_key.items():
        pairs = zip(op.outputs, output_names[key], strict=True)
        for output, (var, name_in_query) in enumerate(pairs):
            computed_type = types.get(name_in_query, UNKNOWN)
            difference = _difference(op, index.vars, var, computed_type)
            if difference:
                wrong.setdefault(key, []).append(_WrongOutput(output, difference))
    return wrong


def _shape_ops_before(index: _OpIndex, ops: Iterable[Op]) -> list[OpNode]:
    """Return the ops that compute the values on which the output shapes of ``ops`` depend, producers first.

    For a Reshape, these are the ops that compute its target. They are standard operators without
    subgraphs; what other operators compute stays unknown.
    """
    waiting = [var for op in ops for var in index.computed_shape_inputs(op)]
    if not waiting:
        return []
    producer: dict[VarId, int] = {}  # value -> index in `candidates`
    # Producers come first: outer blocks precede inner ones, and the ops of a block are in order.
    candidates: list[OpNode] = []
    for graph, block in index.blocks:
        for op in block.ops:
            if not op.bodies and not op.domain:
                producer.update(dict.fromkeys(op.outputs, len(candidates)))
                candidates.append((op, graph.node[op.source]))
    needed: set[int] = set()
    while waiting:
        position = producer.get(waiting.pop())
        if position is None or position in needed:
            continue
        needed.add(position)
        op, _ = candidates[position]
        # Shape and Size depend on the type of their input only.
        if op.type not in SHAPE_QUERIES:
            waiting.extend(var for var in op.inputs if index.is_computed(var))
    return [candidates[position] for position in sorted(needed)]


class _QueryModel:
    """A model of single nodes, all of which ONNX's inference infers in one call.

    Every value gets a new name in the query: an input with its type in the program, a weight with its values,
    or an output of a node that was added with `add_producer`.
    """

    def __init__(
        self,
        model: ModelProto,
        vars_: Mapping[VarId, Var],
        contents: Mapping[VarId, TensorProto],
    ) -> None:
        """Start a query without nodes, in the opsets of the model.

        Args:
            model: The model that the nodes are from.
            vars_: Its values, with their types.
            contents: Its small weights, see `_OpIndex`.
        """
        self._vars, self._contents = vars_, contents
        self._names: dict[VarId, str] = {}  # the name in the query of each value added so far
        self._name_count = 0
        self._model = type(model)()
        self._model.ir_version = max(model.ir_version, OLDEST_IR)
        self._model.opset_import.extend(model.opset_import)
        self._model.graph.name = "query"

    def add_producer(self, node: NodeProto, op: Op) -> None:
        """Add a node whose outputs are read by nodes added later."""
        self._names.update(zip(op.outputs, self.add(node, op), strict=True))

    def add(self, node: NodeProto, op: Op) -> list[str]:
        """Add a node and return the new names of its outputs in the query; no later node reads them."""
        names = [self._input_name(var) if var else "" for var in op.inputs]
        copy = self._model.graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = names
        copy.output[:] = [self._fresh_name() if var else "" for var in op.outputs]
        return list(copy.output)

    def data(self) -> bytes:
        """Return the serialized query."""
        data: bytes = self._model.SerializeToString()
        return data

    def _fresh_name(self) -> str:
        self._name_count += 1
        return f"v{self._name_count}"

    def _input_name(self, var: VarId) -> str:
        """Return the name of a value in the query; the value is added if no node computes it."""
        name = self._names.get(var)
        if name is not None:
            return name
        name = self._names[var] = self._fresh_name()
        content = self._contents.get(var)
        if content is None:
            self._add_input(name, self._vars[var])
        else:
            tensor = self._model.graph.initializer.add()
            tensor.CopyFrom(content)
            tensor.name = name
        return name

    def _add_input(self, name: str, var: Var) -> None:
        """Add a graph input; without a type if the dtype is unknown."""
        value = self._model.graph.input.add()
        value.name = name
        elem_type = element_type(var.dtype)
        if elem_type:
            value.type.CopyFrom(tensor_type(elem_type, var.shape))


# Comparison and text.


def _difference(op: Op, vars_: Mapping[VarId, Var], var: VarId, computed: DeclaredType) -> str:
    """Return in words what an op computes if it contradicts the declared type, else ``""``.

    ``var`` is one of the op's outputs; an omitted one contradicts nothing.
    """
    if not var:
        return ""
    declared = vars_[var]
    dtype, shape = computed
    if UNKNOWN[0] not in (dtype, declared.dtype) and dtype != declared.dtype:
        return _type_text(computed)
    if declared.shape is None:
        return ""
    if shape is not None and (
        len(shape) != len(declared.shape) or any(map(_is_wrong_dim, declared.shape, shape))
    ):
        return _type_text(computed)
    if op.type == "Reshape":  # whatever its target, which may be unknown to inference
        elements = _element_count(vars_[op.inputs[0]].shape)
        declared_elements = _element_count(declared.shape)
        if None not in (elements, declared_elements) and elements != declared_elements:
            return f"{elements} elements of {declared.dtype}"
    return ""


def _is_wrong_dim(declared: Dim, computed: Dim) -> bool:
    """Whether a declared dim is a number that is certainly wrong.

    It is wrong if the node computes another number, or a name of the model, which stands for any number.
    A name that inference generates only means that the dim is unknown, as does a negative number.
    """
    if not isinstance(declared, int) or declared < 0:
        return False
    if isinstance(computed, str):
        return not is_generated_name(computed)
    return computed is not None and computed >= 0 and computed != declared


def _element_count(shape: Shape | None) -> int | None:
    """Return the number of elements; None unless all dims are numbers from 0 on."""
    sizes = [dim for dim in shape or () if isinstance(dim, int) and dim >= 0]
    return prod(sizes) if shape is not None and len(sizes) == len(shape) else None


def _type_text(declared: DeclaredType) -> str:
    """Return a type as ``float32[n,3]``, shortened for a message."""
    dtype, shape = declared
    if shape is None:
        return f"{dtype} of some rank"
    dims = [_dim_text(dim) for dim in shape[:_MAX_DIMS]]
    return f"{dtype}[{','.join(dims)}{', ..' if len(shape) > _MAX_DIMS else ''}]"


def _dim_text(dim: Dim) -> str:
    """Return a dim, shortened for a message; ``?`` if it is unknown, quoted if it cannot be printed."""
    text = "?" if dim is None else str(dim)
    text = text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."
    return text if text.isprintable() else repr(text)


def _short(name: str) -> str:
    """Return a name in quotes, shortened for a message."""
    return repr(name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}...")
