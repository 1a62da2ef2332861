"""Ops that may run twice, or at another place in the order, without other results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.precedence import overwritten_statistics
from memplan_cli.core.operators import MICROSOFT, ML, NCHWC, STANDARD_DOMAINS

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program

_RUNTIME_DOMAINS = STANDARD_DOMAINS | {MICROSOFT, NCHWC, ML}
"""Domains whose ops are known to have neither side effects nor state, if not random."""


def may_run_twice(op: Op) -> bool:
    """Whether a copy of an op gives the same values and changes nothing else.

    Random ops draw other numbers. Ops on sequences may change them in place, and ``InPlace`` ops of
    onnxruntime-training their input. Ops with subgraphs are excluded because their cost is not
    known, ops of unknown domains because they may have state. ONNX Runtime writes the running
    statistics of a BatchNormalization in training mode over the old ones.
    """
    return not (
        op.is_random
        or op.bodies
        or op.domain not in _RUNTIME_DOMAINS
        or op.type.startswith("Sequence")
        or op.type.startswith("InPlace")
        or (op.type == "BatchNormalization" and len(op.outputs) > 1)
    )


def repeatable(program: Program) -> tuple[bool, ...]:
    """Return for each op of the top block whether it may run twice, or at another place.

    An op that reads a variable that another op overwrites may not.
    """
    changing = overwritten_statistics(program.body).keys()
    return tuple(
        [
            may_run_twice(op) and (not changing or changing.isdisjoint(reads))
            for op, reads in zip(program.body.ops, program.dataflow.reads, strict=True)
        ]
    )
