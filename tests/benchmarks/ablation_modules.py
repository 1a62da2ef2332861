"""Where the subsystems that `ablation` switches off live: the only table to change on a move."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MODULES = {
    "board": "memplan_cli.allocators.board",
    "boxes": "memplan_cli.allocators.boxes",
    "compiled": "memplan_cli.allocators.compiled",
    "cores": "memplan_cli.allocators.cores",
    "crowd": "memplan_cli.allocators.crowd",
    "ejecting": "memplan_cli.allocators.ejecting",
    "exact": "memplan_cli.allocators.exact",
    "filling": "memplan_cli.allocators.filling",
    "gluing": "memplan_cli.allocators.gluing",
    "greedy": "memplan_cli.allocators.greedy",
    "holes": "memplan_cli.allocators.holes",
    "lowering": "memplan_cli.allocators.lowering",
    "meeting": "memplan_cli.allocators.meeting",
    "pair": "memplan_cli.allocators.pair",
    "pieces": "memplan_cli.allocators.pieces",
    "placing": "memplan_cli.placing",
    "portfolio": "memplan_cli.allocators.portfolio",
    "search": "memplan_cli.allocators.search",
    "valleys": "memplan_cli.allocators.valleys",
    "columns": "memplan_cli.columns",
    "heap": "memplan_cli.heap",
    "spool": "memplan_cli.spool",
    "messages": "memplan_cli.onnx_io.messages",
    "shelf": "memplan_cli.onnx_io.shelf",
    "wire": "memplan_cli.onnx_io.wire",
    "annotate": "memplan_cli.onnx_io.annotate",
    "definitions": "memplan_cli.onnx_io.definitions",
    "inlining": "memplan_cli.runtime.inlining",
    "node_index": "memplan_cli.runtime.node_index",
    "prototxt": "memplan_cli.settings_prototxt",
    "yaml": "memplan_cli.settings_yaml",
    "toml": "memplan_cli.settings_toml",
    "polynomials": "memplan_cli.polynomials",
    "dims": "memplan_cli.dims",
    "dim_text": "memplan_cli.dim_text",
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
