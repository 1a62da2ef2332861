"""Declared types that contradict what the nodes compute.

A declared type wins wherever shapes are read, ONNX's inference included, so a tensor that is declared
too small would be planned too small. Therefore ONNX infers each node once more by itself, from the types of
its inputs in the program. Nodes that are equal in all that decides the result (operator, attributes, types,
values of small weights) are inferred once. A shape that the graph computes, such as the target of a Reshape,
is unknown here; of a Reshape the number of elements is compared all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import chain, repeat
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import ML, ONNX, operator
from memplan_cli.core.program import Origin, VarId
from memplan_cli.onnx_io.constants import constant_tensors
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.generated_names import is_generated_name
from memplan_cli.onnx_io.shapes.lattice import (
    common_shape,
    shape_in,
    stacked_shape,
    tensor_type,
)
from memplan_cli.onnx_io.shapes.onnx_inference import WRONG_TYPES, infer_node
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import UNKNOWN, UNKNOWN_DTYPE, element_type, type_name

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

    from memplan_cli.core.program import Block, Dim, Op, Program, Shape, Var
    from memplan_cli.onnx_io.types import DeclaredType

_MAX_NAME = 80
"""Characters of a name in a message."""

_MAX_DIMS = 12
"""Dims of a shape in a message."""

_NOT_INFERRED = frozenset({"Constant", *WRONG_TYPES})
"""Operators that are not compared: the type of a Constant was read from its tensor, and inference errs on others."""

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

    Wrong means another dtype, rank or size of a dim than the node computes. It also means a number where the node
    computes a dim with a name of the model, which may have any size (`_is_wrong_dim`). A node for which inference
    has no answer contradicts nothing. Outputs of control flow are compared with those of their subgraphs.
    """
    vars_ = program.vars
    blocks = tuple(_blocks_with_graphs(model.graph, program.body))
    nodes = _NodeInference.of(blocks, vars_, opset_versions(model))
    # A cache: most ops have the same attributes, inputs and declared types (the same key) as an earlier op.
    wrong_outputs: dict[Hashable, Sequence[_WrongOutput]] = {}
    found: list[Contradiction] = []
    for graph, block in blocks:
        for op in block.ops:
            wrong: Sequence[_WrongOutput] = ()
            if op.bodies:
                wrong = _wrong_outputs(op, vars_, _control_flow_types(op, vars_))
            elif op.domain in (ONNX, ML) and op.type not in _NOT_INFERRED:
                node = graph.node[op.source]
                key = nodes.key(op, node)
                if key not in wrong_outputs:
                    computed = nodes.output_types(op, node)
                    wrong_outputs[key] = _wrong_outputs(op, vars_, computed)
                wrong = wrong_outputs[key]
            found.extend(Contradiction(vars_[op.outputs[w.output]], w.computed) for w in wrong)
    return tuple(found)


# Outputs of control flow.


def _control_flow_types(op: Op, vars_: Mapping[VarId, Var]) -> Sequence[DeclaredType]:
    """Return the types of the outputs of an If, Loop or Scan from those of its subgraphs' outputs.

    The branches of an If keep what their outputs have in common. A Loop or Scan may run any number of times, 0
    included: a final state keeps what its initial value and the subgraph's output have in common, and the length
    of stacked outputs is unknown. Empty for other operators, and for a Scan without its number of scanned inputs.
    """
    if not op.bodies or op.domain:
        return ()
    outputs_by_body = [
        [_declared_type(vars_, var) or UNKNOWN for var in body.outputs] for body in op.bodies
    ]
    if op.type == "If":
        return [reduce(_common, types) for types in zip(*outputs_by_body, strict=False)]
    outputs = outputs_by_body[0]
    scanned = op.attributes.get("num_scan_inputs")
    if op.type == "Loop":
        outputs = outputs[1:]  # without the condition
        states = op.inputs[2:]  # without trip count and condition
    elif op.type == "Scan" and isinstance(scanned, int):
        states = op.inputs[: len(op.inputs) - scanned]
    else:
        return ()
    initial = [_declared_type(vars_, var) or UNKNOWN for var in states]
    final = [_common(a, b) for a, b in zip(initial, outputs, strict=False)]
    rows = outputs[len(initial) :]
    axes = op.attributes.get("scan_output_axes")  # missing ones are 0; a Loop has none
    given_axes = (
        [axis for axis in axes if isinstance(axis, int)] if isinstance(axes, tuple) else []
    )
    stacked = [
        (dtype, stacked_shape(shape, axis, None))
        for (dtype, shape), axis in zip(rows, chain(given_axes, repeat(0)), strict=False)
    ]
    return [*final, *stacked]


def _declared_type(vars_: Mapping[VarId, Var], var: VarId) -> DeclaredType | None:
    """Return dtype and shape of a value; None for ``""``, an omitted input or output."""
    return (vars_[var].dtype, vars_[var].shape) if var else None


def _common(one: DeclaredType, other: DeclaredType) -> DeclaredType:
    """Return what two types have in common; a dtype, rank or dim that differs is unknown."""
    dtype = one[0] if one[0] == other[0] else UNKNOWN_DTYPE
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
class _NodeInference:
    """ONNX's inference of single nodes, from the types of their inputs in a program.

    Attributes:
        vars: the program's values.
        opsets: the version of each domain.
        contents: small weights, as tensors without names.
    """

    vars: Mapping[VarId, Var]
    opsets: Mapping[str, int]
    contents: Mapping[VarId, TensorProto]

    @classmethod
    def of(
        cls,
        blocks: Iterable[tuple[GraphProto, Block]],
        vars_: Mapping[VarId, Var],
        opsets: Mapping[str, int],
    ) -> _NodeInference:
        """Return the inference for a program, whose small weights are read from its graphs."""
        return cls(vars_, opsets, _weight_contents(blocks, vars_.values()))

    def key(self, op: Op, node: NodeProto) -> Hashable:
        """Return a key that two ops without subgraphs share only if their inferred and declared types are equal.

        The key has all that inference reads, and the declared types. A tensor in an attribute of the node may
        decide a dtype, but ``op.attributes`` has no tensors. So an op with such a node has a key of its own.
        """
        has_tensor_attribute = len(op.attributes) < len(node.attribute)
        if has_tensor_attribute:
            return op.outputs  # no two ops have an output in common
        return (
            op.type,
            op.domain,
            tuple(_declared_type(self.vars, var) for var in op.inputs),
            tuple(_declared_type(self.vars, var) for var in op.outputs),
            tuple(op.attributes.items()),
            tuple(
                (at, bytes(tensor.SerializeToString())) for at, tensor in self._operands(op)
            ),
        )

    def output_types(self, op: Op, node: NodeProto) -> Sequence[DeclaredType]:
        """Return the inferred types of an op's outputs, in order; ``node`` is its node in the model."""
        input_types = {
            name: self._type_of(var)
            for name, var in zip(node.input, op.inputs, strict=True)
            if name
        }
        tensors = {node.input[position]: tensor for position, tensor in self._operands(op)}
        inferred = infer_node(node, input_types, tensors, self.opsets)
        return [
            (type_name(inferred[name]), shape_in(inferred[name]))
            if name in inferred
            else UNKNOWN
            for name in node.output
        ]

    def _type_of(self, var: VarId) -> TypeProto:
        """Return the type of a value; an empty type if its dtype is unknown."""
        dtype, shape = self.vars[var].dtype, self.vars[var].shape
        elem_type = element_type(dtype)
        return tensor_type(elem_type, shape) if elem_type else messages().TypeProto()

    def _operands(self, op: Op) -> Iterator[tuple[int, TensorProto]]:
        """Yield position and value of the small weights that decide the output shape of an op."""
        first = operator(op).shape_from
        if first is None:
            return
        for position, var in enumerate(op.inputs[first:], first):
            # ONNX counts the steps of a Range of floats in another way than ONNX Runtime.
            is_float_step = op.type == "Range" and self.vars[var].dtype not in _INTEGERS
            if var in self.contents and not is_float_step:
                yield position, self.contents[var]


def _may_decide_a_shape(var: Var) -> bool:
    """Whether a var is a weight that may hold dims, or factors of a Resize: few integers or float32 numbers."""
    if var.origin is not Origin.WEIGHT or var.dtype not in {*_INTEGERS, "float32"}:
        return False
    sizes = (dim for dim in var.shape or () if isinstance(dim, int))
    return prod(sizes) <= _MAX_SHAPE_ELEMENTS


def _weight_contents(
    blocks: Iterable[tuple[GraphProto, Block]], vars_: Iterable[Var]
) -> Mapping[VarId, TensorProto]:
    """Return the weights that may decide a shape and are stored in the model, as tensors without names."""
    small = {(var.block, var.name): var.id for var in vars_ if _may_decide_a_shape(var)}
    contents: dict[VarId, TensorProto] = {}
    for graph, block in blocks if small else ():
        for name, tensor in constant_tensors(graph):
            weight = small.get((block.path, name))
            if weight is not None and tensor.data_location != tensor.EXTERNAL:
                content = contents[weight] = type(tensor)()
                content.CopyFrom(tensor)
                content.ClearField("name")  # equal weights have equal bytes
    return contents


# Comparison and text.


class _WrongOutput(NamedTuple):
    """An output position at which an op contradicts its declaration, and what it computes."""

    output: int
    computed: str


def _wrong_outputs(
    op: Op, vars_: Mapping[VarId, Var], computed: Sequence[DeclaredType]
) -> Sequence[_WrongOutput]:
    """Return the outputs of an op whose types in the program differ from those that it computes."""
    wrong = []
    for position, (var, computed_type) in enumerate(zip(op.outputs, computed, strict=False)):
        # An omitted output has no declared type.
        computed_text = _difference(op, vars_, vars_[var], computed_type) if var else ""
        if computed_text:  # empty if the types agree
            wrong.append(_WrongOutput(position, computed_text))
    return wrong


def _difference(
    op: Op, vars_: Mapping[VarId, Var], declared: Var, computed: DeclaredType
) -> str:
    """Return in words the type that an op computes for an output; ``""`` if the declared one agrees with it."""
    dtype, shape = computed
    if dtype != declared.dtype and UNKNOWN_DTYPE not in (dtype, declared.dtype):
        return _type_text(computed)
    if declared.shape is None:
        return ""
    if shape is not None and (
        len(shape) != len(declared.shape) or any(map(_is_wrong_dim, declared.shape, shape))
    ):
        return _type_text(computed)
    # Inference may not know the target of a Reshape, but the number of elements is that of its input.
    if op.type == "Reshape":
        elements = _element_count(vars_[op.inputs[0]].shape)
        declared_elements = _element_count(declared.shape)
        if None not in (elements, declared_elements) and elements != declared_elements:
            return f"{elements} elements of {declared.dtype}"
    return ""


def _is_wrong_dim(declared: Dim, computed: Dim) -> bool:
    """Whether a declared dim is a number, and the computed dim is another number or may be any.

    A computed dim may be any number if it is a name of the model: the declared number holds for one size only.
    A name that inference generates means an unknown dim, as does a negative number, declared or computed.
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
