"""The classes of ONNX's messages; for the command line, without the rest of its package.

``import onnx`` brings numpy, the checker and the helpers along, a tenth of a second: more
than to read and write a graph of 5,000 nodes. The generated module of the messages needs
protobuf alone. It is loaded under its own name, so the package takes these very classes
where it is imported afterwards; only ``onnx.onnx_ml_pb2`` is no attribute of it then, which
is why programs that import memplan get the whole package at once.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "onnx.onnx_ml_pb2"

ALONE = ContextVar("ALONE", default=False)
"""Whether this process is memplan's own, and nobody else's code meets its ``onnx``."""


@cache
def messages() -> ModuleType:
    """Return the module that defines ``ModelProto`` and all that is in one."""
    package = find_spec("onnx") if ALONE.get() and "onnx" not in sys.modules else None
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec(_NAME, places) if places else None
    if _NAME in sys.modules or spec is None or spec.loader is None:
        return import_module(_NAME)
    module = sys.modules[_NAME] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module
