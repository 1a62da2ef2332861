"""ONNX's message classes and compiled inference, without the rest of the ``onnx`` package.

``import onnx`` also imports numpy, the checker and the helpers: a tenth of a second, more than it takes to
read and write a graph of 5,000 nodes. The generated module of the messages needs protobuf alone. It is
loaded under its own name, so that the package uses these same classes if it is imported later; only the
attribute ``onnx.onnx_ml_pb2`` is missing then. So this is done only in memplan's own process (`ALONE`);
programs that import memplan get the whole package. The same holds for the compiled module.
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
"""Whether this process is memplan's command line, in which no other code uses ``onnx``."""


@cache
def messages() -> ModuleType:
    """Return the module that defines ``ModelProto`` and the other messages."""
    return _import_alone(_MESSAGES)


@cache
def compiled() -> ModuleType:
    """Return onnx's compiled module, whose ``shape_inference`` works on serialized models.

    Loading it takes 3 ms of processor time, the whole package 100 ms (onnx 1.23.2).
    """
    return _import_alone(_COMPILED)


def _import_alone(name: str) -> ModuleType:
    """Import a module of onnx. In memplan's own process (`ALONE`), skip ``onnx/__init__.py``, which is slow.

    A later ``import onnx`` then lacks the module as an attribute of the package, so other programs get the
    usual import. The usual import is also made if the package or the module is imported already, or if the
    module's file is not found.
    """
    if not ALONE.get() or "onnx" in sys.modules or name in sys.modules:
        return import_module(name)
    package = find_spec("onnx")
    folders = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec(name, folders) if folders else None
    if spec is None or spec.loader is None:
        return import_module(name)
    # As import does: the module is registered before it runs, and removed if it fails.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
