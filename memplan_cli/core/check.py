"""How a written model is validated: where it is run, and which differences are tolerated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import SettingsError

Depth = Literal["outputs", "full"]
"""Compare outputs only, or also measure the memory of the runs."""

Search = Literal["predicted", "measured"]
"""Predict the best runtime settings and confirm them by the validation run, or measure many."""

Idle = Literal["release", "keep"]
"""What the arena does between runs: its memory is given back to the system, or held for the next run."""

Reference = Literal["defaults", "unoptimized"]
"""The run of the original whose outputs a written model must have: under ONNX Runtime's default options, or
with graph optimization disabled. Both have other bits where ONNX Runtime fuses nodes."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two elements are equal if ``|actual - expected| <= atol + rtol * |expected|``.

    If both are zero, the bits must be equal.
    """

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the bits must be equal."""
        return self.rtol == 0 and self.atol == 0


@dataclass(frozen=True, slots=True)
class Check:
    """How a written model is validated: where it is run, and which differences are tolerated.

    Attributes:
        provider: ``auto``, ``cpu`` or ``cuda``.
        runs: the number of runs of each model, on the same inputs.
        rtol, atol: the tolerance of outputs, see `Tolerance`.
        timeout: the time limit in seconds of each process that runs a model.
        reference: the run of the original that outputs are compared with.
        idle: what the arena of the written model does between runs; None: it is released if a run gets at
            most 5 % longer.
    """

    provider: str = "auto"
    runs: int = 2
    rtol: float = 0.0
    atol: float = 0.0
    timeout: float = DEFAULT_TIMEOUT
    depth: Depth = "full"
    search: Search = "predicted"
    reference: Reference = "defaults"
    idle: Idle | None = None

    def __post_init__(self) -> None:
        """Raise a SettingsError if a field has none of its values."""
        for value, choices in (
            (self.depth, get_args(Depth)),
            (self.search, get_args(Search)),
            (self.reference, get_args(Reference)),
            (self.idle, (None, *get_args(Idle))),
        ):
            if value not in choices:
                known = ", ".join(filter(None, choices))
                raise SettingsError(
                    f"there is no choice {value!r}", hint=f"choose one of {known}"
                )

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of outputs."""
        return Tolerance(self.rtol, self.atol)


DEFAULT_CHECK = Check()
"""Two runs of both models on the best available provider, with equal bits."""
