"""Values of an input that a file does not say but how they are drawn."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.onnx_io.runs.input_files.found import Array


@dataclass(frozen=True, slots=True)
class Draw:
    """The values of one input, the same in every call: the seed is its name.

    Attributes:
        name: of the input.
        shape: of the values.
        draw: what gives them.
    """

    name: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]

    def __call__(self) -> Sequence[Array]:
        """Return them, as the tensors of an input are."""
        generator = np.random.default_rng([0, crc32(self.name.encode(errors="replace"))])
        return (self.draw(generator, self.shape),)


def drawn(
    entry: Mapping[str, Any], where: str
) -> Callable[[np.random.Generator, tuple[int, ...]], Array] | None:
    """Return how to draw values between ``low`` and ``high``, or as ``gen`` says."""
    if "low" in entry or "high" in entry:
        return _between(entry.get("low", 0), entry.get("high"), where)
    if "gen" not in entry:
        return None
    kind, *words = str(entry["gen"]).split() or [""]
    numbers = [float(word) if re.search(r"[.eEn]", word) else int(word) for word in words]
    if kind == "randint" and len(numbers) == 2:
        return _between(numbers[0], numbers[1], where)
    if kind == "normal" and len(numbers) <= 1:
        scale = np.float32(numbers[0] if numbers else 1)
        return lambda g, shape: g.standard_normal(shape, dtype=np.float32) * scale
    said = numbers[0] if kind == "const" and len(numbers) == 1 else None
    constant = {"zeros": 0, "ones": 1}.get(kind, said)
    if constant is None:
        raise SettingsError(
            f"{where}: {str(entry['gen'])[:60]!r} draws nothing",
            hint="normal [SCALE], randint LOW HIGH, zeros, ones and const VALUE do",
        )
    return lambda _, shape: np.full(shape, constant)


def _between(
    low: object, high: object, where: str
) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    match low, high:
        case (int(), int()) if -(2**63) <= low < high <= 2**63:
            return lambda generator, shape: generator.integers(low, high, shape)
        case (int() | float(), int() | float()) if low < high and np.isfinite(high - low):
            return lambda generator, shape: generator.uniform(low, high, shape)
    raise SettingsError(f"{where}: values are drawn from low up to high, without high itself")
