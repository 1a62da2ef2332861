"""What do weights inside the model file cost while it is loaded? Measured, both ways."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from memplan_cli.core.results.observations import CPU
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.inline import inline_bytes, with_external_data
from memplan_cli.runtime.workers.worker import run_job

WORTH = 1 << 20
"""Bytes of inline weights from which it is worth measuring what they cost."""


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Bytes of the process at its highest while a session is made.

    Attributes:
        weights: what lies in the file itself.
        inline, external: with the weights there, and with them in a file of their own.
    """

    weights: int
    inline: int
    external: int

    def __str__(self) -> str:
        """Say it in one sentence."""
        return (
            f"{self.weights} bytes of weights lie in the model file itself: loading it takes "
            f"{self.inline} bytes at its highest, {self.external} with them as external data"
        )


def load_cost(model: Path, provider: str = CPU) -> LoadCost | None:
    """Measure what inline weights cost at load; None where there are few, or no measure.

    That takes room for a copy of them among the temporary files.

    A model that keeps a part of its weights outside already is left alone.
    """
    loaded = load_model(model)
    weights = inline_bytes(loaded)
    if weights < WORTH or any(t.external_data for t in loaded.graph.initializer):
        return None
    with tempfile.TemporaryDirectory(prefix="memplan-load-") as name:
        outside = Path(name) / "outside.onnx"
        try:
            with_external_data(loaded, outside)
        except OSError:  # a second copy of the weights may have no room: no fault of the model
            return None
        inline, external = (_highest(path, provider) for path in (model, outside))
    return None if inline is None or external is None else LoadCost(weights, inline, external)


def _highest(model: Path, provider: str) -> int | None:
    found = run_job("loading", {"model": str(model), "provider": provider}).result.get("bytes")
    return found if isinstance(found, int) else None
