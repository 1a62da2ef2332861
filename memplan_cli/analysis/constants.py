"""Constants: the vars that hang on initializers and Constants alone, in every block.

A runtime may compute such a var once, when it loads the model; a run without that computes
it again each time and holds it among the intermediates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.program import Origin, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Op, Program, VarId


def constants(program: Program) -> Mapping[VarId, Op]:
    """Return the vars that ops make of constants alone, each with its op, producers first.

    An op with subgraphs is one where what they capture is constant too. An initializer that
    is an input of the graph is a default and no constant; a random op draws anew each time;
    and what an operator of another domain does besides, nobody knows.
    """
    known = {
        var.id
        for var in program.vars.values()
        if var.origin is Origin.WEIGHT and var.id not in program.overridable
    }
    found: dict[VarId, Op] = {}
    for _, op in walk(program.body):
        if not op.inputs and not op.bodies and known.issuperset(op.outputs):
            continue  # a Constant
        if is_repeatable(op) and known.issuperset(op.reads):
            for var in filter(None, op.outputs):
                known.add(var)
                found[var] = op
    return found


def is_repeatable(op: Op) -> bool:
    """Whether a standard op gives the same for the same, its subgraphs included."""
    if op.is_random or op.domain not in STANDARD_DOMAINS:
        return False
    return all(is_repeatable(inner) for body in op.bodies for inner in body.ops)
