"""Compiled inner loops: numba compiles them once a machine and caches the result.

Only modules that hold compiled loops import this one, and only strategies that need them
import those: an easy model never pays for numba.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile a loop over arrays at its first call, and cache it on disk if we may write."""
    usual = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_folder(usual))
    try:
        return cast("Function", numba.njit(cache=True, no_cfunc_wrapper=True)(function))
    except RuntimeError:
        # numba found no folder to cache in: correct all the same, compiled in each process.
        return cast("Function", numba.njit(no_cfunc_wrapper=True)(function))
    finally:
        numba.config.CACHE_DIR = usual


def is_kept(function: Callable[..., object]) -> bool:
    """Whether a loop was compiled on this machine before, those that it calls included."""
    path = str(getattr(getattr(function, "stats", None), "cache_path", None) or "")
    return bool(path) and any(Path(path).glob(f"*.{function.__name__}-*.nbc"))


@cache
def _folder(usual: str) -> Path:
    """Return a cache folder of our own, named after the text of all compiled loops.

    numba takes a cached loop for fresh while the file it is in has not changed, whatever
    happened to the loops it calls in other files.
    """
    here = Path(__file__).parent
    texts = [path.read_bytes() for path in sorted(here.rglob("*.py"))]
    loops = b"".join(text for text in texts if b"\n@compiled\n" in text)
    base = Path(usual) if usual else here / "__pycache__"
    return base / f"memplan-{sha256(loops).hexdigest()[:16]}"
