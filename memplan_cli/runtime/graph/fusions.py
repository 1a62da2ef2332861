"""Fusions of the runtime that cost memory: what they save in time is little.

A fused kernel may ask for workspace as large as its result, which no plan sees and the
arena has to hold. The session's entry `optimization.disable_specified_optimizers` leaves
single fusions out (ONNX Runtime, ``onnxruntime_session_options_config_keys.h``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Program

FUSIONS: Mapping[str, str] = {"BiasGelu": "BiasGeluFusion"}
"""Fused operator -> the optimizer that makes it; seen to ask for workspace with 1.31.1.

``BiasGelu`` takes as much again as its result: 1.6 MB beside a peak of 3.6 in BERT-base.
"""

_LEFT_OUT = "optimization.disable_specified_optimizers"


def costly_fusions(program: Program) -> tuple[str, ...]:
    """Return the fusions that made ops of a program and that cost workspace."""
    types = {op.type for _, op in walk(program.body)}
    return tuple(fusion for kind, fusion in FUSIONS.items() if kind in types)


def without(fusions: Sequence[str]) -> RuntimeSettings:
    """Return settings under which the runtime leaves fusions out."""
    return RuntimeSettings(session_config={_LEFT_OUT: ";".join(fusions)} if fusions else {})
