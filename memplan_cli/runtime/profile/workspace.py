"""Workspace: temporary buffers that kernels allocate beside inputs and outputs, by rules.

Rules for the arena serve graphs that were not run. Rules for the C library's heap serve all
graphs, because the runtime's statistics do not count it. Measured by the statistics of each node.
Kernels without a rule allocate nothing, or less than a hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import MICROSOFT, ONNX
from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program, Var

Dims = tuple[int, ...]


class Operand(NamedTuple):
    """An input of an op.

    Attributes:
        dtype: of its elements; empty for an optional input that the op does not have.
        dims: None if they are unknown.
    """

    dtype: str
    dims: Dims | None


Operands = tuple[Operand, ...]

Requests = tuple[int, ...]
"""Bytes of each buffer, in the order in which a kernel allocates them. All are freed at its end."""

Workspace = Mapping[str, Requests]
"""The workspace of kernels, by node (`node_key`)."""

WorkspaceRule = Callable[["Op", Operands, Dims], Requests]
"""Return the workspace of an op, given its operands and the dims of its first output."""

_FLOAT = 4

_INDEX = 8


def _where(_: Op, inputs: Operands, __: Dims) -> Requests:
    """Return a buffer for each alternative, in which it is broadcast to the condition."""
    condition, *others = (operand.dims for operand in inputs)
    width = _element_size(inputs[1].dtype)
    spread = (_broadcast(condition, other) for other in others)
    return tuple(prod(dims) * width for dims in spread if dims is not None)


def _conv(op: Op, inputs: Operands, output: Dims) -> Requests:
    """Return the memory in which the image is laid out as a matrix, with a column for each output pixel (im2col).

    If a group has more filters than there are output pixels, that is the whole matrix of one group. Else
    the kernel lays out one piece after the other. A pointwise convolution needs no such matrix.
    """
    filters = inputs[1].dims
    if filters is None or _is_pointwise(op, filters):
        return ()
    pixels = prod(output[2:])
    groups = op.attributes.get("group", 1)
    filters_of_group = filters[0] // groups if isinstance(groups, int) else filters[0]
    if filters_of_group <= pixels:
        return (PROFILE.image_piece,)
    return (prod(filters[1:]) * pixels * _FLOAT,)


def _conv_transpose(_: Op, inputs: Operands, __: Dims) -> Requests:
    """Return the columns (col2im) of one image of one group."""
    image, filters = inputs[0].dims, inputs[1].dims
    if image is None or filters is None:
        return ()
    return (prod(filters[1:]) * prod(image[2:]) * _FLOAT,)


def _attention(_: Op, inputs: Operands, __: Dims) -> Requests:
    """Return all scores, and a boolean mask converted to floats."""
    query, key = inputs[0].dims, inputs[1].dims
    if query is None or key is None or len(query) != 4 or len(key) != 4:
        return ()
    masks = [dims for dtype, dims in inputs[3:4] if dtype == "bool" and dims]
    return ((prod(query[:3]) * key[2] + sum(map(prod, masks))) * _FLOAT,)


def _floats_like_output(_: Op, __: Operands, output: Dims) -> Requests:
    """Return a float for each element of the output."""
    return (prod(output) * _FLOAT,)


def _index_per_update(_: Op, inputs: Operands, __: Dims) -> Requests:
    """Return eight bytes for each index."""
    return (_INDEX * prod(inputs[1].dims or ()),)


def _index_per_row(_: Op, inputs: Operands, __: Dims) -> Requests:
    """Return eight bytes for each row of indices, where a row is the last axis."""
    return (_INDEX * prod((inputs[1].dims or ())[:-1]),)


def _index_per_result(_: Op, __: Operands, output: Dims) -> Requests:
    """Return eight bytes for each element of the output."""
    return (_INDEX * prod(output),)


ARENA_RULES: Mapping[tuple[str, str], WorkspaceRule] = {
    (ONNX, "Where"): _where,
    (ONNX, "Conv"): _conv,
    (MICROSOFT, "FusedConv"): _conv,
    (ONNX, "ConvTranspose"): _conv_transpose,
    (ONNX, "Attention"): _attention,
    (MICROSOFT, "BiasGelu"): _floats_like_output,
}
"""Workspace in the arena, by domain and operator."""

HEAP_RULES: Mapping[tuple[str, str], WorkspaceRule] = {
    (ONNX, "ScatterElements"): _index_per_update,
    (ONNX, "ScatterND"): _index_per_row,
    (ONNX, "GatherND"): _index_per_row,
    (ONNX, "NonZero"): _index_per_result,
}
"""Workspace on the heap of the C library, by domain and operator."""


def node_key(op: Op) -> str:
    """Return the key of a node's workspace: its name, or its first output if it has no name."""
    return op.name or next(iter(op.outputs), "")


def workspace_by_rule(program: Program, dims: Mapping[str, int]) -> dict[str, Requests]:
    """Return the workspace of the top nodes in the arena, by the rules."""
    return {node_key(op): sizes for op, sizes in _by_rules(program, dims, ARENA_RULES)}


def totals_by_rule(program: Program, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the total bytes of workspace of each top node in the arena, by the rules."""
    return {name: sum(sizes) for name, sizes in workspace_by_rule(program, dims).items()}


def heap_workspace(program: Program, dims: Mapping[str, int]) -> Requests:
    """Return the bytes that top nodes allocate on the heap, in the order of the nodes."""
    return tuple(sum(sizes) for _, sizes in _by_rules(program, dims, HEAP_RULES))


def requests_from_totals(
    program: Program, dims: Mapping[str, int], totals: Mapping[str, int]
) -> dict[str, Requests]:
    """Return the sizes of the workspace buffers of each node, by `node_key`, from measured totals.

    If the buffers by the rules have the measured total, they are returned, else one buffer of that total.

    Args:
        program: the graph that was run.
        dims: values of symbolic dims.
        totals: measured bytes of workspace by node name, or by operator for all nodes without a name.
    """
    by_rule = workspace_by_rule(program, dims) if totals else {}
    requests: dict[str, Requests] = {}
    for _, op in walk(program.body):
        total = totals.get(op.name or op.type)
        if total is None:
            continue
        sizes = by_rule.get(node_key(op), ())  # none for nodes in bodies
        # The total of nodes without a name is of several nodes: each keeps the sizes by the rules.
        has_own_total = op.name != ""
        if has_own_total and sum(sizes) != total:
            sizes = (total,)
        if sizes:
            requests[node_key(op)] = sizes
    return requests


def _by_rules(
    program: Program, dims: Mapping[str, int], rules: Mapping[tuple[str, str], WorkspaceRule]
) -> Iterator[tuple[Op, Requests]]:
    """Yield the top nodes that have workspace, with their requests of more than 0 bytes.

    A node whose first output has unknown dims is left out.
    """
    for op in program.body.ops:
        rule = rules.get((op.domain, op.type))
        if rule is None:
            continue
        inputs = tuple(
            Operand(program.vars[var].dtype, _dims(program.vars[var], dims))
            if var
            else Operand("", None)
            for var in op.inputs
        )
        # Ops with a rule must have a first output.
        output = _dims(program.vars[op.outputs[0]], dims)
        sizes = tuple(filter(None, rule(op, inputs, output))) if output is not None else ()
        if sizes:
            yield op, sizes


def _dims(var: Var, bound: Mapping[str, int]) -> Dims | None:
    """Return the dims of a variable; None if one of them is unknown."""
    if var.shape is None:
        return None
    dims = tuple(bind_dim(dim, bound) for dim in var.shape)
    numbers = tuple(dim for dim in dims if isinstance(dim, int))
    return numbers if len(numbers) == len(dims) else None


def _broadcast(left: Dims | None, right: Dims | None) -> Dims | None:
    """Return the dims of two tensors broadcast to each other; None if those of one are unknown."""
    if left is None or right is None:
        return None
    rank = max(len(left), len(right))
    aligned = ((1,) * (rank - len(dims)) + dims for dims in (left, right))
    return tuple(0 if 0 in pair else max(pair) for pair in zip(*aligned, strict=True))


def _element_size(dtype: str) -> int:
    """Return the bytes of one element; unknown types count as float32."""
    if dtype == "string":
        return PROFILE.string_size
    return -(-BITS[dtype] // 8) if dtype in BITS else _FLOAT


def _is_pointwise(op: Op, filters: Dims) -> bool:
    """Whether each pixel is computed from one pixel, so that the image itself is the matrix."""
    pads, strides = op.attributes.get("pads", ()), op.attributes.get("strides", ())
    is_unpadded = not any(pads if isinstance(pads, tuple) else ())
    steps = strides if isinstance(strides, tuple) else ()
    return prod(filters[2:]) == 1 and is_unpadded and all(step == 1 for step in steps)


_DISABLED_OPTIMIZERS = "optimization.disable_specified_optimizers"


def costly_fusions(program: Program) -> tuple[str, ...]:
    """Return ONNX Runtime's optimizers that made those fused ops whose workspace costs memory.

    Such a kernel allocates workspace as large as its result, and saves little time.
    """
    types = {op.type for _, op in walk(program.body)}
    return tuple(
        optimizer for kind, optimizer in PROFILE.costly_fusions.items() if kind in types
    )


def without_fusions(optimizers: Sequence[str]) -> RuntimeSettings:
    """Return settings that disable single optimizers of the runtime; none change nothing."""
    names = ";".join(optimizers)
    return RuntimeSettings(session_config={_DISABLED_OPTIMIZERS: names} if names else {})
