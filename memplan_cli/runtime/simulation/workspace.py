"""The workspace that kernels ask for: one request or several each, by rules.

Of the arena for graphs that were not run; of the C library for all, since no statistics count that.

Measured on ONNX Runtime 1.31.1, CPU provider, by its own statistics of each node. Kernels
that are not named ask for nothing, or for less than a hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.runtime.simulation.tensor_bytes import bytes_of

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program, Var

Dims = tuple[int, ...]
Operands = tuple[tuple[str, Dims | None], ...]
"""Type and dims of each input, None where they are not known."""

Bytes = tuple[int, ...]
"""Of requests, in the order in which a kernel makes them; all are given back when it is done."""

Workspace = Mapping[str, Bytes]
"""What kernels ask for beside inputs and outputs, by node (`key_of`)."""

_FLOAT = 4

_INDEX = 8

_PIECE = 64 << 10
"""What MLAS takes for a thread that goes through an image piece by piece."""


def _where(_: Op, inputs: Operands, __: Dims) -> Bytes:
    """Each alternative is spread over the condition first, by itself."""
    condition, *others = (dims for _, dims in inputs)
    width = _width(inputs[1][0])
    spread = (_broadcast(condition, other) for other in others)
    return tuple(prod(dims) * width for dims in spread if dims is not None)


def _conv(op: Op, inputs: Operands, output: Dims) -> Bytes:
    """Columns of the image, where filters are more than pixels; else of a piece at a time."""
    filters = inputs[1][1]
    if filters is None or _is_pointwise(op, filters):
        return ()
    pixels = prod(output[2:])
    if filters[0] // _integer(op, "group", 1) <= pixels:
        return (_PIECE,)
    return (prod(filters[1:]) * pixels * _FLOAT,)


def _conv_transpose(_: Op, inputs: Operands, __: Dims) -> Bytes:
    """Columns of one image of one group."""
    image, filters = inputs[0][1], inputs[1][1]
    if image is None or filters is None:
        return ()
    return (prod(filters[1:]) * prod(image[2:]) * _FLOAT,)


def _attention(_: Op, inputs: Operands, __: Dims) -> Bytes:
    """All scores, and a mask of booleans as numbers."""
    query, key = inputs[0][1], inputs[1][1]
    if query is None or key is None or len(query) != 4 or len(key) != 4:
        return ()
    masks = [dims for dtype, dims in inputs[3:4] if dtype == "bool" and dims]
    return ((prod(query[:3]) * key[2] + sum(map(prod, masks))) * _FLOAT,)


def _as_output(_: Op, __: Operands, output: Dims) -> Bytes:
    return (prod(output) * _FLOAT,)


def _per_index(_: Op, inputs: Operands, __: Dims) -> Bytes:
    """A number of eight bytes for each index."""
    return (_INDEX * prod(inputs[1][1] or ()),)


def _per_place(_: Op, inputs: Operands, __: Dims) -> Bytes:
    """A number of eight bytes for each place, which has as many indices as the last axis."""
    return (_INDEX * prod((inputs[1][1] or ())[:-1]),)


def _per_result(_: Op, __: Operands, output: Dims) -> Bytes:
    return (_INDEX * prod(output),)


Rule = Callable[["Op", Operands, Dims], Bytes]

RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Where"): _where,
    ("", "Conv"): _conv,
    ("com.microsoft", "FusedConv"): _conv,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "Attention"): _attention,
    ("com.microsoft", "BiasGelu"): _as_output,
}


HEAP_RULES: Mapping[tuple[str, str], Rule] = {
    ("", "ScatterElements"): _per_index,
    ("", "ScatterND"): _per_place,
    ("", "GatherND"): _per_place,
    ("", "NonZero"): _per_result,
}
"""What kernels take beside the arena while they run."""


def key_of(op: Op) -> str:
    """Return what an op's workspace is found by: its name, or its result where it has none."""
    return op.name or next(iter(op.outputs), "")


def workspace_by_rule(program: Program, dims: Mapping[str, int]) -> dict[str, Bytes]:
    """Return the workspace of the nodes at the top, as the rules have it."""
    return {key_of(op): sizes for op, sizes in _by_rules(program, dims, RULES)}


def as_requested(
    program: Program, dims: Mapping[str, int], totals: Mapping[str, int]
) -> dict[str, Bytes]:
    """Return measured workspace as requests: of the runtime's statistics, which add a node's up.

    They have one line for all nodes of a type that have no name, and its type there: rules
    tell these apart.
    """
    rules = workspace_by_rule(program, dims) if totals else {}
    alike = (key_of(op) for op in program.body.ops if not op.name and op.type in totals)
    return {
        name: sizes if sum(sizes := rules.get(name, ())) == total else (total,)
        for name, total in totals.items()
    } | {key: rules[key] for key in alike if key in rules}


def for_threads(workspace: Workspace, threads: int) -> dict[str, Bytes]:
    """Return the workspace of kernels that go piece by piece, a thread each; measured was one."""
    return {
        name: tuple(threads * size if size == _PIECE else size for size in sizes)
        for name, sizes in workspace.items()
    }


def totals_by_rule(program: Program, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of workspace of the nodes at the top, as the rules have it."""
    return {name: sum(sizes) for name, sizes in workspace_by_rule(program, dims).items()}


def heap_workspace(program: Program, dims: Mapping[str, int]) -> Bytes:
    """Return the bytes that nodes at the top take of the C library, in their order."""
    return tuple(sum(sizes) for _, sizes in _by_rules(program, dims, HEAP_RULES))


def _by_rules(
    program: Program, bound: Mapping[str, int], rules: Mapping[tuple[str, str], Rule]
) -> Iterator[tuple[Op, Bytes]]:
    """Yield the nodes at the top that have workspace, and its requests."""
    for op in program.body.ops:
        rule = rules.get((op.domain, op.type))
        if rule is None:
            continue
        inputs = tuple(
            (program.vars[var].dtype, _dims(program.vars[var], bound)) if var else ("", None)
            for var in op.inputs
        )
        output = _dims(program.vars[op.outputs[0]], bound)
        sizes = tuple(filter(None, rule(op, inputs, output))) if output is not None else ()
        if sizes:
            yield op, sizes


def _dims(var: Var, bound: Mapping[str, int]) -> Dims | None:
    if var.shape is None:
        return None
    dims = tuple(bind_dim(dim, bound) for dim in var.shape)
    known = tuple(dim for dim in dims if isinstance(dim, int))
    return known if len(known) == len(dims) else None


def _broadcast(one: Dims | None, other: Dims | None) -> Dims | None:
    if one is None or other is None:
        return None
    rank = max(len(one), len(other))
    both = ((1,) * (rank - len(dims)) + dims for dims in (one, other))
    return tuple(0 if 0 in pair else max(pair) for pair in zip(*both, strict=True))


def _width(dtype: str) -> int:
    return bytes_of(dtype, (), {}) or _FLOAT


def _integer(op: Op, name: str, default: int) -> int:
    value = op.attributes.get(name, default)
    return value if isinstance(value, int) else default


def _is_pointwise(op: Op, filters: Dims) -> bool:
    """Whether each pixel is computed from one pixel: the image itself is the matrix."""
    pads, strides = op.attributes.get("pads", ()), op.attributes.get("strides", ())
    plain = not any(pads if isinstance(pads, tuple) else ())
    steps = strides if isinstance(strides, tuple) else ()
    return prod(filters[2:]) == 1 and plain and all(step == 1 for step in steps)
