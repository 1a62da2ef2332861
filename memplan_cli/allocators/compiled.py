"""How are inner loops made fast? numba compiles them once a machine and caches the result.

Only modules that hold compiled loops import this one, and only strategies that need them
import those: an easy model never pays for numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a loop over arrays at its first call, and cache it on disk if we may write."""
    try:
        return cast("Function", numba.njit(cache=True)(function))
    except RuntimeError:
        # numba found no folder to cache in: correct all the same, compiled in each process.
        return cast("Function", numba.njit(function))
