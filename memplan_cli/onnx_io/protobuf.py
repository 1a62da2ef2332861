"""ONNX's messages and its inference; for the command line, without the rest of its package.

``import onnx`` brings numpy, the checker and the helpers along, a tenth of a second: more
than to read and write a graph of 5,000 nodes. The generated module of the messages needs
protobuf alone. It is loaded under its own name, so the package takes these very classes
where it is imported afterwards; only ``onnx.onnx_ml_pb2`` is no attribute of it then, which
is why programs that import memplan get the whole package at once. The same holds of the
compiled module, which infers shapes.
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

_MESSAGES = "onnx.onnx_ml_pb2"
_COMPILED = "onnx.onnx_cpp2py_export"

ALONE = ContextVar("ALONE", default=False)
"""Whether this process is memplan's own, and nobody else's code meets its ``onnx``."""


@cache
def messages() -> ModuleType:
    """Return the module that defines ``ModelProto`` and all that is in one."""
    return _alone(_MESSAGES)


@cache
def compiled() -> ModuleType:
    """Return onnx's compiled module, whose ``shape_inference`` works on serialised models.

    It is there in 3 ms of processor time, the whole package in 100 (onnx 1.23.2).
    """
    return _alone(_COMPILED)


def _alone(name: str) -> ModuleType:
    package = find_spec("onnx") if ALONE.get() and "onnx" not in sys.modules else None
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec(name, places) if places else None
    if name in sys.modules or spec is None or spec.loader is None:
        return import_module(name)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
