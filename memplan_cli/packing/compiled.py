"""Compilation of inner loops by numba, cached on disk for later processes.

Without numba the loops run as the Python they are written in: some fifty times slower, with
equal results.

Importing this module imports numba, which takes tenths of a second. Only modules with compiled
loops import it, and those are imported where a search begins: easy problems never need numba.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

try:
    import numba
except ImportError:
    numba = None

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., object])

HAS_NUMBA = numba is not None
"""Whether loops are compiled; numba comes with the extra ``fast``."""


def compiled(function: Function) -> Function:
    """Return a version of a function that numba compiles at the first call; without numba, itself.

    The machine code is cached on disk. If no folder is writable, each process compiles anew.
    """
    if not HAS_NUMBA:
        return function
    default_folder = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_cache_folder(default_folder))
    try:
        return cast("Function", numba.njit(cache=True, no_cfunc_wrapper=True)(function))
    except RuntimeError:  # numba found no folder that is writable
        return cast("Function", numba.njit(no_cfunc_wrapper=True)(function))
    finally:
        numba.config.CACHE_DIR = default_folder


def is_cached(function: Callable[..., object]) -> bool:
    """Return whether the disk cache has machine code of a function and of those that it calls."""
    folder = str(getattr(getattr(function, "stats", None), "cache_path", None) or "")
    return bool(folder) and any(Path(folder).glob(f"*.{function.__name__}-*.nbc"))


@cache
def _cache_folder(default_folder: str) -> Path:
    """Return a cache folder named after the text of all files with compiled loops.

    numba itself uses cached code as long as the file of a function is unchanged, even if a
    function that it calls, or a constant, has changed in another file. So constants of compiled
    loops must be in files with compiled loops too: those with the text ``import compiled``.

    ``default_folder`` is numba's setting CACHE_DIR; empty: it has no value.
    """
    package = Path(__file__).parent
    texts = [path.read_bytes() for path in sorted(package.rglob("*.py"))]
    loops = b"".join(text for text in texts if b"import compiled" in text)
    parent = Path(default_folder) if default_folder else package / "__pycache__"
    return parent / f"memplan-{sha256(loops).hexdigest()[:16]}"
