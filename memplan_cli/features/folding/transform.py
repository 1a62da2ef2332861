"""Constant folding: expressions of constants become initializers, where that is exact.

Nothing is computed here: which values are folded follows from operators and types alone, so
that a plan needs no weights. `onnx_io.folding` computes what is written. Folded is what has
one right answer to the bit: data that is moved, whole numbers, comparisons, and casts that
lose nothing. How a sum of floats is rounded is a matter of the kernel, so floats are left.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.constant_vars import constants
from memplan_cli.core.operators import Exactness, operator
from memplan_cli.core.program import Origin, VarId, walk
from memplan_cli.core.results.rewrites import ConstantTensor, Folded, Unfolded
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
_PLAIN = _WHOLE | {"float16", "float32", "float64"}
_MOVABLE = frozenset(name for name, bits in BITS.items() if bits in (8, 16, 32, 64))

_EXACT_CASTS: Mapping[str, Collection[str]] = {
    "bool": _PLAIN,
    **{name: {*_WHOLE, "float32", "float64"} for name in _WHOLE - {"bool"}},
    "float16": {"float16", "float32", "float64"},
    "float32": {"float32", "float64"},
    "float64": {"float64"},
}
"""From which type to which a cast has one right answer; whole numbers round to nearest even."""


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
    """Fold the constant expressions of a program.

    Args:
        program: In the order of the file.
        kept: Vars that stay what a node makes, each with the reason.
    """
    found = constants(program)
    left = _left(program, found, kept)
    folded = {var: op for var, op in found.items() if var not in left}
    if not folded:
        return Folding(program, Folded(left=_unfolded(found, left)))
    rest = _without(program.body, folded.keys())
    read = frozenset(_read(rest))
    dead = {v.id for v in program.vars.values() if v.origin is Origin.WEIGHT} - read
    dead &= set(_read_by(folded.values()))
    rest = _without(rest, dead)
    wanted = {var: op for var, op in folded.items() if var in read}
    vars_ = {
        identity: var._replace(origin=Origin.WEIGHT) if identity in wanted else var
        for identity, var in program.vars.items()
        if identity not in dead and (identity not in folded or identity in wanted)
    }
    facts = Folded(
        tuple(ConstantTensor(var, op.type, _bytes(vars_[var])) for var, op in wanted.items()),
        _unfolded(found, left),
        added=sum(_bytes(vars_[var]) for var in wanted),
        dropped=sum(_bytes(program.vars[var]) for var in dead),
    )
    return Folding(replace(program, body=rest, vars=vars_), facts)


def _unfolded(found: Mapping[VarId, Op], left: Mapping[VarId, str]) -> tuple[Unfolded, ...]:
    return tuple(Unfolded(var, found[var].type, reason) for var, reason in left.items())


def _left(
    program: Program, found: Mapping[VarId, Op], kept: Mapping[VarId, str]
) -> dict[VarId, str]:
    """Return the constant vars that are not folded, with the reason; an op stays as a whole.

    What hangs on a var that is exact and stays nevertheless can be folded: its value is
    known.
    """
    results = dict.fromkeys(_given(program), "the graph or a subgraph gives it")
    stays = {**results, **kept}
    inexact: dict[VarId, str] = {}
    left: dict[VarId, str] = {}
    for var, op in found.items():
        source = next((f"it reads {v!r}, which stays" for v in op.inputs if v in inexact), "")
        reason = source or _why_inexact(op, program.vars)
        if reason:
            inexact[var] = reason
        made = tuple(filter(None, op.outputs))
        whole = next((stays[v] for v in made if v in stays), "")
        whole = whole or next((_why_unsized(program.vars[v]) for v in made), "")
        if reason or whole:
            left[var] = reason or whole
    return left


def _given(program: Program) -> Iterable[VarId]:
    yield from program.body.outputs
    for _, op in walk(program.body):
        for body in op.bodies:
            yield from body.outputs


def _why_unsized(var: Var) -> str:
    known = var.shape is not None and all(isinstance(dim, int) for dim in var.shape)
    if known and 0 in (var.shape or ()):
        # Also what a branch makes that is not taken here: other inputs may take it.
        return "it has no elements at these sizes"
    return "" if known else "its size is not known"


def _why_inexact(op: Op, vars_: Mapping[VarId, Var]) -> str:
    """Return why an op has no answer that is right to the bit, or nothing."""
    if op.bodies:
        return "control flow is not folded"
    reads = [vars_[var].dtype for var in op.inputs if var]
    makes = [vars_[var].dtype for var in op.outputs if var]
    if not _is_exact(op, reads, makes):
        types = ", ".join(dict.fromkeys((*reads, *makes)))
        return f"{op.type} of {types} is left to the runtime: kernels may differ in its bits"
    return ""


_EXACT_TYPES: Mapping[Exactness, Collection[str]] = {
    Exactness.ALL: _MOVABLE,
    Exactness.NUMBERS: _PLAIN,
    Exactness.INTEGERS: _WHOLE,
    Exactness.NONE: frozenset(),
}
"""The element types that results of folding are right for, to the bit."""


def _is_exact(op: Op, reads: Sequence[str], makes: Sequence[str]) -> bool:
    """Whether an op of these types has one right answer."""
    if op.type in ("Cast", "CastLike"):
        return makes[0] in _EXACT_CASTS.get(reads[0], ())
    return set(_EXACT_TYPES[operator(op).exact]).issuperset((*reads, *makes))


def _without(block: Block, gone: Collection[VarId]) -> Block:
    """Return a block, subgraphs included, without the ops whose results are gone."""
    ops = []
    for op in block.ops:
        made = [var for var in op.outputs if var]
        if made and all(var in gone for var in made):
            continue
        if op.bodies:
            op = op._replace(bodies=tuple(_without(body, gone) for body in op.bodies))  # noqa: PLW2901
        ops.append(op)
    return replace(block, ops=tuple(ops))


def _read(block: Block) -> Iterable[VarId]:
    yield from block.outputs
    for _, op in walk(block):
        yield from op.inputs
        for body in op.bodies:
            yield from body.outputs


def _read_by(ops: Iterable[Op]) -> Iterable[VarId]:
    for op in ops:
        yield from op.inputs


def _bytes(var: Var) -> int:
    size = size_of(var.shape, var.dtype)
    return 0 if size is None or size.symbols else size.coefficient
