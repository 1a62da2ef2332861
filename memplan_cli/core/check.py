"""How a written model is proved: where it runs, and what counts as equal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT

Depth = Literal["outputs", "full"]

Search = Literal["foreseen", "measured"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|got - wanted| <= atol + rtol * |wanted|``; zero asks for the same bits."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether only the same bits will do."""
        return self.rtol == 0 and self.atol == 0


@dataclass(frozen=True, slots=True)
class Check:
    """How a written model is proved: where it runs, and what counts as equal.

    Attributes:
        provider: ``auto``, ``cpu`` or ``cuda``.
        runs: of each model, on the same inputs.
        rtol, atol: what is excused, ``|got - wanted| <= atol + rtol * |wanted|``; two zeros
            ask for the same bits.
        timeout: seconds for each process that runs a model.
        depth: ``full`` looks at the memory of the runs too, ``outputs`` compares alone.
        search: settings are ``foreseen``, and confirmed by the run that is made anyway, or
            searched among many that are ``measured``.
        processes: how many hold a model at once where their memory together is measured.
    """

    provider: str = "auto"
    runs: int = 2
    rtol: float = 0.0
    atol: float = 0.0
    timeout: float = DEFAULT_TIMEOUT
    depth: Depth = "full"
    search: Search = "foreseen"
    processes: int = 0

    @property
    def tolerance(self) -> Tolerance:
        """What is excused."""
        return Tolerance(self.rtol, self.atol)


DEFAULT_CHECK = Check()
"""Both models on the best provider there is, two runs, bit for bit."""
