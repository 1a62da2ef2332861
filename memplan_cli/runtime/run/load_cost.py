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
    """The memory that inline weights cost, in bytes.

    Attributes:
        weights: the weights in the model file itself.
        inline: peak of the process while a session of the model is created.
        external: the same with the weights as external data.
    """

    weights: int
    inline: int
    external: int

    def __str__(self) -> str:
        """Return the cost in one sentence."""
        return (
            f"{self.weights} bytes of weights are stored in the model file itself: loading it takes "
            f"{self.inline} bytes at its peak, {self.external} with external data"
        )


def load_cost(model: Path, provider: str = CPU) -> LoadCost | None:
    """Measure what inline weights cost when a session is created.

    A temporary copy of the model with external weights is written.

    Returns:
        None if there are few inline weights, if some weights are external already, if there is
        no room for the copy, or if the system does not provide the memory of a process.
    """
    loaded = load_model(model)
    weights = inline_bytes(loaded)
    if weights < WORTH or any(t.external_data for t in loaded.graph.initializer):
        return None
    with tempfile.TemporaryDirectory(prefix="memplan-load-") as name:
        copy = Path(name) / "outside.onnx"
        try:
            with_external_data(loaded, copy)
        except OSError:  # no room for a second copy of the weights
            return None
        inline, external = (_load_peak(path, provider) for path in (model, copy))
    return None if inline is None or external is None else LoadCost(weights, inline, external)


def _load_peak(model: Path, provider: str) -> int | None:
    """Return the peak bytes of a process that creates a session; None if it is not reported."""
    session = SessionSpec(model, provider, RuntimeSettings())
    record = run_model(RunSpec(session, (InputSet(()),), ("process",), runs=0))
    return record.peaks.process.load if record.peaks.process else None
