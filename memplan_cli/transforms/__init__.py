"""Program -> Program: rewrites that need less memory for the same results."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Transform = Callable[..., object]


def _order() -> Transform:
    from memplan_cli.transforms.order import best_order

    return best_order


TRANSFORMS: Mapping[str, Callable[[], Transform]] = {
    "order": _order,
}
"""By name, what loads each: a function of a program and the sizes of its planned vars."""
