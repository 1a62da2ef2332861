"""Constant folding: expressions of constants become initializers, where that is exact.

Nothing is computed here: which values are folded follows from operators and types alone, so
that a plan needs no weights. `onnx_io.weights.folding` computes what is written. An op is folded only if
its result is the same to the bit in every kernel: moved data, whole numbers, comparisons,
and casts without loss. Float arithmetic is left: how it is rounded depends on the kernel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.constant_vars import constants
from memplan_cli.core.operators import Exactness, operator
from memplan_cli.core.program import Origin, VarId, walk
from memplan_cli.core.results.rewrites import ConstantTensor, FoldingSummary, UnfoldedTensor
from memplan_cli.core.selection import select
from memplan_cli.core.symbolic.sizes import BITS, size_of
from memplan_cli.planning.rewrites import Folding

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memplan_cli.core.program import Block, Op, Program, Var
    from memplan_cli.core.results.report import LiveTensor
    from memplan_cli.settings.settings import Settings

_SIGNED = ("int8", "int16", "int32", "int64")
_WHOLE = frozenset({*_SIGNED, "uint8", "uint16", "uint32", "uint64", "bool"})
"""Types of whole numbers."""
_PLAIN = _WHOLE | {"float16", "float32", "float64"}
"""Types of numbers that numpy has."""
_MOVABLE = frozenset(name for name, bits in BITS.items() if bits in (8, 16, 32, 64))
"""Types whose elements can be moved without a look at their bits: smaller ones are packed."""

_EXACT_CASTS: Mapping[str, Collection[str]] = {
    "bool": _PLAIN,
    **{name: {*_WHOLE, "float32", "float64"} for name in _WHOLE - {"bool"}},
    "float16": {"float16", "float32", "float64"},
    "float32": {"float32", "float64"},
    "float64": {"float64"},
}
"""The target types of an exact cast, by source type. Whole numbers round to nearest even."""


def fold_constants(program: Program, settings: Settings, loss: VarId | None) -> Folding:
    """Fold the constant expressions of a program, except those of named tensors and the loss.

    Tensors that the settings exclude or name as checkpoints stay results of ops.
    """
    named = select(program, (*settings.excluded, *settings.checkpoints))
    kept = {var: f"{pattern!r} names it" for var, pattern in named.items()}
    if loss is not None:
        kept[loss] = "the loss"
    return fold(program, kept)


def foldable_tensors(
    program: Program,
    settings: Settings,
    loss: VarId | None,
    tensors: Sequence[LiveTensor],
) -> tuple[ConstantTensor, ...]:
    """Return which tensors are constant expressions, and why some of these cannot be folded."""
    expressions = constants(program)
    sizes = {VarId(tensor.name): tensor.bytes for tensor in tensors}
    constant_vars = [var for var in sizes if var in expressions]
    if not constant_vars:
        return ()
    folding = fold_constants(program, settings, loss)
    refusals = {var.name: var.reason for var in folding.facts.left}
    return tuple(
        ConstantTensor(var, expressions[var].type, sizes[var], refusals.get(var, ""))
        for var in constant_vars
    )


def fold(program: Program, kept: Mapping[VarId, str]) -> Folding:
    """Turn the constant expressions of a program into weights.

    A constant is stored as a weight if an op that is not folded reads it. Other constants are removed,
    and so are weights that only folded ops read.

    Args:
        program: In the order of the file.
        kept: Vars that stay results of ops, each with the reason.
    """
    expressions = constants(program)
    unfolded = _unfolded_vars(program, expressions, kept)
    folded = {var: op for var, op in expressions.items() if var not in unfolded}
    refusals = tuple(
        UnfoldedTensor(var, expressions[var].type, reason) for var, reason in unfolded.items()
    )
    if not folded:
        return Folding(program, FoldingSummary(left=refusals))
    body = _without_ops(program.body, folded.keys())
    read_vars = frozenset(_read_vars(body))
    weights = {var.id for var in program.vars.values() if var.origin is Origin.WEIGHT}
    read_by_folded = {var for op in folded.values() for var in op.inputs}
    dropped_weights = (weights - read_vars) & read_by_folded
    body = _without_ops(body, dropped_weights)  # a weight may be the output of a Constant op
    stored = {var: op for var, op in folded.items() if var in read_vars}
    removed_vars = dropped_weights | (folded.keys() - read_vars)
    vars_ = {
        identity: var._replace(origin=Origin.WEIGHT) if identity in stored else var
        for identity, var in program.vars.items()
        if identity not in removed_vars
    }
    new_weights = tuple(
        ConstantTensor(var, op.type, _bytes(program.vars[var])) for var, op in stored.items()
    )
    facts = FoldingSummary(
        new_weights,
        refusals,
        added=sum(weight.bytes for weight in new_weights),
        dropped=sum(_bytes(program.vars[var]) for var in dropped_weights),
    )
    return Folding(replace(program, body=body, vars=vars_), facts)


def _unfolded_vars(
    program: Program, expressions: Mapping[VarId, Op], kept: Mapping[VarId, str]
) -> dict[VarId, str]:
    """Return the constant vars that are not folded, with the reason.

    An op is folded as a whole or not at all. A var is *inexact* if its bits depend on the kernel that
    computes it (`_why_inexact`), or if its op reads an inexact var. Other vars stay for a reason of their
    own, such as their name in the settings: ops that read these are still folded.

    Args:
        program: the program.
        expressions: the op of each constant var, in the order of the ops.
        kept: vars that stay results of ops, each with the reason.
    """
    stays = {
        **dict.fromkeys(_block_outputs(program), "the graph or a subgraph gives it"),
        **kept,
    }
    inexact: dict[VarId, str] = {}
    unfolded: dict[VarId, str] = {}
    for var, op in expressions.items():
        inexact_input = next((operand for operand in op.inputs if operand in inexact), None)
        if inexact_input is not None:
            reason = f"it reads {inexact_input!r}, which stays"
        else:
            reason = _why_inexact(op, program.vars)
        if reason:
            inexact[var] = unfolded[var] = reason
            continue
        outputs = tuple(filter(None, op.outputs))
        why_kept = (stays[output] for output in outputs if output in stays)
        why_unsized = (_why_unsized(program.vars[output]) for output in outputs)
        reason = next(filter(None, (*why_kept, *why_unsized)), "")
        if reason:
            unfolded[var] = reason
    return unfolded


def _block_outputs(program: Program) -> Iterable[VarId]:
    """Yield the outputs of the graph and of all subgraphs."""
    yield from program.body.outputs
    for _, op in walk(program.body):
        for body in op.bodies:
            yield from body.outputs


def _why_unsized(var: Var) -> str:
    """Return why a var cannot be a weight because of its size; empty if it can."""
    if var.shape is None or not all(isinstance(dim, int) for dim in var.shape):
        return "its size is not known"
    # A branch that is not taken at these sizes may have such vars; with other inputs it may be taken.
    return "it has no elements at these sizes" if 0 in var.shape else ""


def _why_inexact(op: Op, vars_: Mapping[VarId, Var]) -> str:
    """Return why an op's result depends on the kernel, to the bit; empty if it does not."""
    if op.bodies:
        return "control flow is not folded"
    input_types = [vars_[var].dtype for var in op.inputs if var]
    output_types = [vars_[var].dtype for var in op.outputs if var]
    types = dict.fromkeys((*input_types, *output_types))
    if op.type in ("Cast", "CastLike"):
        # From the first input: the second one of a CastLike only gives the type.
        is_exact = output_types[0] in _EXACT_CASTS.get(input_types[0], ())
    else:
        is_exact = set(_EXACT_TYPES[operator(op).exact]).issuperset(types)
    if is_exact:
        return ""
    return f"{op.type} of {', '.join(types)} is left to the runtime: kernels may differ in its bits"


_EXACT_TYPES: Mapping[Exactness, Collection[str]] = {
    Exactness.ALL: _MOVABLE,
    Exactness.NUMBERS: _PLAIN,
    Exactness.INTEGERS: _WHOLE,
    Exactness.NONE: frozenset(),
}
"""The element types for which an operator's results are exact, by the trait of the registry."""


def _without_ops(block: Block, removed: Collection[VarId]) -> Block:
    """Return a block, subgraphs included, without the ops whose outputs are all removed."""
    ops = []
    for op in block.ops:
        outputs = [var for var in op.outputs if var]
        if outputs and all(var in removed for var in outputs):
            continue
        if op.bodies:
            bodies = tuple(_without_ops(body, removed) for body in op.bodies)
            ops.append(op._replace(bodies=bodies))
        else:
            ops.append(op)
    return replace(block, ops=tuple(ops))


def _read_vars(block: Block) -> Iterable[VarId]:
    """Yield the vars that a block needs: its outputs, and all inputs of ops, subgraphs included."""
    yield from block.outputs
    for _, op in walk(block):
        yield from op.inputs
        for body in op.bodies:
            yield from body.outputs


def _bytes(var: Var) -> int:
    """Return the size of a weight, whose dims are numbers; 0 if its dtype has no size."""
    size = size_of(var.shape, var.dtype)
    return 0 if size is None else size.coefficient
