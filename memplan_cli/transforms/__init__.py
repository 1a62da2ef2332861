"""Program -> Program: rewrites that need less memory for the same results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.transforms.order import best_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TRANSFORMS: Mapping[str, Callable[..., object]] = {
    "order": best_order,
}
"""Each takes a program and the sizes of its planned vars; what it returns has `program`."""
