"""Fusions of the runtime that cost memory and save little time.

A fused kernel may allocate workspace as large as its result, which no plan has and which the
arena has to hold. The session's entry `optimization.disable_specified_optimizers` leaves
single fusions out (ONNX Runtime, ``onnxruntime_session_options_config_keys.h``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import walk
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.program import Program

_DISABLED = "optimization.disable_specified_optimizers"


def costly_fusions(program: Program) -> tuple[str, ...]:
    """Return the optimizers that made ops of a program whose workspace costs memory."""
    types = {op.type for _, op in walk(program.body)}
    return tuple(
        optimizer for kind, optimizer in PROFILE.costly_fusions.items() if kind in types
    )


def without(fusions: Sequence[str]) -> RuntimeSettings:
    """Return settings that disable optimizers of the runtime."""
    return RuntimeSettings(session_config={_DISABLED: ";".join(fusions)} if fusions else {})
