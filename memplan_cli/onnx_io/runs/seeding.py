"""Seeds by which two models draw the same random numbers: by the name of each op's result.

Without a seed a runtime takes another one for each session, or one by the node's place in
the file, which is just what a rewritten model changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from memplan_cli.core.operators import is_random
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.weights.external_data import copy_along, external_tensors, locations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import ModelProto, NodeProto

_EXACT = (1 << 24) - 1
"""Whole numbers up to here are exact in the attribute's single precision."""


def seeded_twins(one: Path, other: Path, folder: Path) -> tuple[Path, Path] | None:
    """Write copies of two models that draw the same numbers in their first run.

    External data goes along. None where the models draw for different results.

    Raises:
        ModelError: a file is no model, or its data cannot be brought along.
    """
    twins, names = [], []
    for number, path in enumerate((one, other)):
        twins.append(folder / f"seeded-{number}.onnx")
        names.append(sorted(write_seeded(path, twins[-1])))
    return (twins[0], twins[1]) if names[0] == names[1] else None


def write_seeded(path: Path, out: Path) -> tuple[str, ...]:
    """Write a copy whose random ops have seeds, and return the names that they go by.

    External data goes along.

    Raises:
        ModelError: the file is no model, or its data cannot be brought along.
    """
    model = load_model(path)
    names = tuple(_seeded(model))
    copy_along(locations(external_tensors(model)), path.parent, out.parent)
    out.write_bytes(model.SerializeToString())
    return names


def _seeded(model: ModelProto) -> Iterator[str]:
    """Give each random op a seed, where it has none, and yield the name it goes by."""
    for graph in graphs(model.graph):
        for node in filter(is_random, graph.node):
            yield f"{node.op_type} {node.output[0]}"
            if not any(attribute.name == "seed" for attribute in node.attribute):
                _add_seed(node, 1 + crc32(node.output[0].encode()) % _EXACT)


def _add_seed(node: NodeProto, seed: int) -> None:
    from onnx import helper

    value = seed if node.op_type == "Dropout" else float(seed)
    node.attribute.append(helper.make_attribute("seed", value))
