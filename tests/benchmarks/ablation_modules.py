"""Where the subsystems that `ablation` switches off are: the only table to change on a move.

Every switch replaces by name through `put` or `replace`, which fail where the name is stale.
"""

from __future__ import annotations

import sys
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = {
    "board": "memplan_cli.packing.search.board",
    "bottleneck": "memplan_cli.packing.bottleneck",
    "compiled": "memplan_cli.packing.compiled",
    "composite_blocks": "memplan_cli.packing.reconstruction.composite_blocks",
    "depth_first": "memplan_cli.packing.search.depth_first",
    "ejection_chain": "memplan_cli.packing.repair.ejection_chain",
    "exact": "memplan_cli.packing.search.exact",
    "interval_index": "memplan_cli.packing.repair.interval_index",
    "levels": "memplan_cli.planning.choosing.levels",
    "lowering": "memplan_cli.packing.lowering",
    "portfolio": "memplan_cli.packing.portfolio",
    "repair_state": "memplan_cli.packing.repair.state",
    "series_parallel": "memplan_cli.packing.reconstruction.series_parallel",
    "valleys": "memplan_cli.packing.search.valleys",
    "certify": "memplan_cli.transforms.ordering.bounds.certify",
    "divide": "memplan_cli.transforms.ordering.search.divide",
    "solve": "memplan_cli.transforms.ordering.solve",
    "columns": "memplan_cli.core.compact.columns",
    "spool": "memplan_cli.core.compact.spool",
    "lazy_model": "memplan_cli.onnx_io.lazy_model",
    "protobuf": "memplan_cli.onnx_io.protobuf",
    "wire": "memplan_cli.onnx_io.writing.wire",
    "functions": "memplan_cli.onnx_io.functions",
    "inlining": "memplan_cli.runtime.graph.inlining",
    "prototxt": "memplan_cli.settings.prototxt",
    "yaml": "memplan_cli.settings.yaml_text",
    "polynomials": "memplan_cli.core.symbolic.polynomials",
    "dims": "memplan_cli.core.symbolic.dims",
}

_changed: list[tuple[object, str, object]] = []
"""What was put elsewhere, under which name, in the place of what."""


def module(name: str) -> Any:  # noqa: ANN401 - what is in it is patched by name
    """Return a module of the table, imported."""
    return import_module(MODULES[name])


def lines(*names: str) -> int:
    """Return how many lines the files of some modules have together."""
    return sum(len(source(name).read_text(encoding="utf-8").splitlines()) for name in names)


def source(name: str) -> Path:
    """Return the file of a module, which is not imported for it."""
    spec = find_spec(MODULES[name])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def put(name: str, attribute: str, new: object) -> object:
    """Put something else in a place of a module or of a class in it; return what was there.

    Args:
        name: The module, as the table has it.
        attribute: What is replaced, which must be there: ``portfolio``, ``Lowering._repaired``.
        new: What is in its place until `undo`.
    """
    *outer, last = attribute.split(".")
    owner = reduce(getattr, outer, module(name))
    old = vars(owner)[last]
    _set(owner, last, new)
    return old


def replace(name: str, attribute: str, new: object) -> None:
    """Put something else in a module's place of that name, and wherever it was imported to."""
    old = put(name, attribute, new)
    for other in [each for key, each in sys.modules.items() if key.startswith("memplan_cli")]:
        for found in [key for key, value in vars(other).items() if value is old]:
            _set(other, found, new)


def _set(owner: object, name: str, new: object) -> None:
    _changed.append((owner, name, vars(owner)[name]))
    setattr(owner, name, new)


def undo() -> None:
    """Put everything back that was replaced."""
    while _changed:
        owner, name, old = _changed.pop()
        setattr(owner, name, old)
