"""Where the subsystems that `ablation` switches off live: the only table to change on a move."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = {
    "board": "memplan_cli.packing.search.board",
    "boxes": "memplan_cli.packing.reconstruction.composite_blocks",
    "compiled": "memplan_cli.packing.compiled",
    "cores": "memplan_cli.packing.bottleneck",
    "crowd": "memplan_cli.packing.repair.state",
    "ejecting": "memplan_cli.packing.repair.ejection_chain",
    "exact": "memplan_cli.packing.search.exact",
    "filling": "memplan_cli.packing.repair.fill",
    "gluing": "memplan_cli.packing.reconstruction.series_parallel",
    "greedy": "memplan_cli.packing.heuristics.greedy",
    "holes": "memplan_cli.packing.reconstruction.gaps",
    "lowering": "memplan_cli.packing.lowering",
    "meeting": "memplan_cli.packing.repair.interval_index",
    "pair": "memplan_cli.packing.heuristics.pair",
    "pieces": "memplan_cli.packing.pieces",
    "placing": "memplan_cli.planning.levels",
    "portfolio": "memplan_cli.packing.portfolio",
    "search": "memplan_cli.packing.search.depth_first",
    "valleys": "memplan_cli.packing.search.valleys",
    "columns": "memplan_cli.core.compact.columns",
    "heap": "memplan_cli.core.compact.heap",
    "spool": "memplan_cli.core.compact.spool",
    "messages": "memplan_cli.onnx_io.protobuf",
    "shelf": "memplan_cli.onnx_io.lazy_model",
    "wire": "memplan_cli.onnx_io.writing.wire",
    "annotate": "memplan_cli.onnx_io.writing.annotate",
    "definitions": "memplan_cli.onnx_io.functions",
    "inlining": "memplan_cli.runtime.graph.inlining",
    "node_index": "memplan_cli.runtime.graph.node_index",
    "prototxt": "memplan_cli.settings.prototxt",
    "yaml": "memplan_cli.settings.yaml_text",
    "toml": "memplan_cli.settings.toml_text",
    "polynomials": "memplan_cli.core.symbolic.polynomials",
    "dims": "memplan_cli.core.symbolic.dims",
    "dim_text": "memplan_cli.core.symbolic.polynomials",
}


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


def replace(name: str, attribute: str, new: object) -> None:
    """Put something else in a module's place of that name, and wherever it was imported to."""
    home = module(name)
    old = getattr(home, attribute)
    for other in [each for key, each in sys.modules.items() if key.startswith("memplan_cli")]:
        for found in [key for key, value in vars(other).items() if value is old]:
            setattr(other, found, new)
    setattr(home, attribute, new)
