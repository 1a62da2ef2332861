"""The memory that inline weights cost while a session is created."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.inline import WORTH, inline_bytes, with_external_data
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Bytes of the process at its highest while a session is created.

    Attributes:
        weights: bytes of the weights in the model file itself.
        inline, external: with the weights there, and with them in a file of their own.
    """

    weights: int
    inline: int
    external: int

    def __str__(self) -> str:
        """Return the cost in one sentence."""
        return (
            f"{self.weights} bytes of weights lie in the model file itself: loading it takes "
            f"{self.inline} bytes at its highest, {self.external} with them as external data"
        )


def load_cost(model: Path, provider: str = CPU) -> LoadCost | None:
    """Measure what inline weights cost when a session is created.

    A copy of the model with external weights is written among the temporary files.

    Returns:
        None if there are few inline weights, if some weights are external already, if there is
        no room for the copy, or if the system does not provide the memory of a process.
    """
    loaded = load_model(model)
    weights = inline_bytes(loaded)
    if weights < WORTH or any(t.external_data for t in loaded.graph.initializer):
        return None
    with tempfile.TemporaryDirectory(prefix="memplan-load-") as name:
        outside = Path(name) / "outside.onnx"
        try:
            with_external_data(loaded, outside)
        except OSError:  # no room for a second copy of the weights
            return None
        inline, external = (_highest(path, provider) for path in (model, outside))
    return None if inline is None or external is None else LoadCost(weights, inline, external)


def _highest(model: Path, provider: str) -> int | None:
    session = SessionSpec(model, provider, RuntimeSettings())
    record = run_model(RunSpec(session, (InputSet(()),), ("process",), runs=0))
    return record.peaks.process.load if record.peaks.process else None
