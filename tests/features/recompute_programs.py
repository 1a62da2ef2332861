"""Small programs for the tests of recomputation, and what a program computes, as terms."""

from __future__ import annotations

from memplan_cli.analysis.phase import Phases
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, intermediates
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.features.recompute.search import Recomputation, search_recomputation
from memplan_cli.ordering.records import PlannedVars

Line = tuple[str, str, str]


def program(inputs: str, outputs: str, *lines: Line) -> Program:
    """Return a program of ``(type, what it reads, what it makes)``.

    A var named ``a40`` has 40 float32 elements; one without a number has one.
    """
    ops = tuple(
        Op(f"n{at}", kind, _ids(reads), _ids(writes), source=at)
        for at, (kind, reads, writes) in enumerate(lines)
    )
    made = [var for op in ops for var in op.outputs]
    given = _ids(inputs)
    table = {
        var: Var(var, "float32", (_length(var),), origin, var)
        for origin, variables in ((Origin.INPUT, given), (Origin.OP, made))
        for var in variables
        if var
    }
    return Program("test", Block(given, _ids(outputs), ops), table)


def terms(tested: Program, pinned: str = "") -> PlannedVars:
    """Plan every intermediate, one byte an element."""
    sizes = {var: Size(_length(var)) for var in intermediates(tested)}
    return PlannedVars(sizes, _ids(pinned))


def bytes_of(var: str) -> int:
    """Return the bytes of a var, one an element."""
    return _length(var)


def same_results(one: Program, other: Program) -> bool:
    """Whether two programs give the same, each var of the first keeping its meaning."""
    before, after = _both(one, other)
    return all(before[var] == after[var] for var in before if var in after) and all(
        var in after for var in one.body.outputs
    )


def _both(one: Program, other: Program) -> tuple[dict[VarId, object], dict[VarId, object]]:
    """Return the terms of two programs, comparable with each other."""
    table: dict[object, int] = {}
    return _terms(one, table), _terms(other, table)


def _terms(tested: Program, table: dict[object, int]) -> dict[VarId, object]:
    value: dict[VarId, object] = {VarId(""): -1}
    for var in tested.vars.values():
        if var.origin is not Origin.OP:
            value[var.id] = table.setdefault(("given", var.id), len(table))
    for op in tested.body.ops:
        reads = tuple(value[var] for var in op.inputs)
        salt = op.name if op.is_random else ""
        for at, out in enumerate(op.outputs):
            if out:
                assert out not in value, f"{out} is made twice"
                value[out] = table.setdefault((op.source, salt, reads, at), len(table))
    return value


def _ids(words: str) -> tuple[VarId, ...]:
    return tuple(VarId("" if word == "-" else word) for word in words.split())


def _length(var: str) -> int:
    digits = var.split("_", maxsplit=1)[0].lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits else 1


def fitted(tested: Program, budget: int | None, pinned: str = "") -> Recomputation:
    """Fit a forward program into a budget, and see that it still computes the same."""
    found = search_recomputation(tested, terms(tested, pinned), Phases(), budget)
    assert same_results(tested, found.program)
    return found
