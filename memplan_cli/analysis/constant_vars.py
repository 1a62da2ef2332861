"""Constant vars: results of ops that depend on initializers and Constant nodes only.

A runtime may compute such a var once, when it loads the model. Without that it is computed in
each run and takes memory among the intermediates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.program import Origin, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Op, Program, VarId


def constants(program: Program) -> Mapping[VarId, Op]:
    """Return the constant vars of all blocks with the op that computes each, producers first.

    An op with subgraphs counts if its captures are constant too. Not constant are initializers
    that are graph inputs too (a caller may override them), results of random ops, and
    results of operators of other domains, which may have side effects.
    """
    constant_vars = {
        var.id
        for var in program.vars.values()
        if var.origin is Origin.WEIGHT and var.id not in program.overridable
    }
    computed: dict[VarId, Op] = {}
    for _, op in walk(program.body):
        if not op.inputs and not op.bodies and constant_vars.issuperset(op.outputs):
            continue  # a Constant: its output counts as an initializer
        if is_repeatable(op) and constant_vars.issuperset(op.reads):
            for var in filter(None, op.outputs):
                constant_vars.add(var)
                computed[var] = op
    return computed


def is_repeatable(op: Op) -> bool:
    """Whether an op is a standard operator without randomness, its subgraphs included."""
    if op.is_random or op.domain not in STANDARD_DOMAINS:
        return False
    return all(is_repeatable(inner) for body in op.bodies for inner in body.ops)
