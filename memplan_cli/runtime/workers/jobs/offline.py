"""Have the runtime write its own graph for a provider, and the one without costly fusions."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping  # noqa: TC003 - a type to read by
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.runs.blocks import BLOCKED
from memplan_cli.onnx_io.weights.on_pages import drop_packed
from memplan_cli.onnx_io.writing.columns import cut_columns
from memplan_cli.runtime.graph.fusions import FUSIONS, without
from memplan_cli.runtime.workers.blocks import block_size
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.session_graph import into, types_of

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.session_graph import Types
    from memplan_cli.runtime.workers.worker import Json


@dataclass(frozen=True, slots=True)
class OfflineDump:
    """What is to be dumped.

    Attributes:
        model: the file.
        provider: for which it is optimised.
        settings: of the session: its level, how weights are packed.
        fused: where the graph goes, its weights beside it.
        unfused: where that without costly fusions goes, if there are any.
        dims: values of symbolic dims, by which sizes of results are known.
        cut: whether huge constant operands of products are cut into columns.
    """

    model: Path
    provider: str
    settings: RuntimeSettings
    fused: Path
    unfused: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    cut: bool = False


def run(job: Json) -> Json:
    """Write the graphs; return, by file name, the types that the runtime infers in each.

    And of how many products the operands were cut.
    """
    asked = from_json(OfflineDump, job["dump"], "the job")
    found = {asked.fused.name: _dumped(asked, asked.fused, asked.settings)}
    kinds = {n.op_type for g in graphs(load_model(asked.fused).graph) for n in g.node}
    costly = [fusion for kind, fusion in FUSIONS.items() if kind in kinds]
    if costly and asked.unfused is not None:
        settings = asked.settings.updated(without(costly))
        found[asked.unfused.name] = _dumped(asked, asked.unfused, settings)
    return {"graphs": found, "block": block_size() if _has_blocks(asked.fused) else 0}


def _has_blocks(path: Path) -> bool:
    """Whether a graph has convolutions over blocks of channels."""
    return any(n.domain == BLOCKED for g in graphs(load_model(path).graph) for n in g.node)


def _dumped(asked: OfflineDump, out: Path, settings: RuntimeSettings) -> object:
    """Write one graph; return its types, and how many products of it were cut."""
    _dump(asked.model, asked.provider, out, settings)
    types = types_of(out, asked.provider)
    cut = _cut(asked, out, settings, types) if asked.cut else 0
    return {"types": types_of(out, asked.provider) if cut else types, "cut": cut}


def _cut(asked: OfflineDump, out: Path, settings: RuntimeSettings, types: Types) -> int:
    """Cut huge operands of the graph that was written, and write it anew, packed as before."""
    model = load_model(out)
    whole = out.with_name(f"{out.stem}.columns{out.suffix}")
    pieces = out.with_name(f"{whole.name}.data")
    try:
        found = cut_columns(model, pieces, _bytes(types, asked.dims))
        if found:
            drop_packed(model)
            whole.write_bytes(model.SerializeToString())
            # What is read and what is written have one name, and so two folders.
            with tempfile.TemporaryDirectory(dir=out.parent) as name:
                fresh = Path(name) / out.name
                _dump(whole, asked.provider, fresh, settings.updated(UNOPTIMISED))
                for path in Path(name).iterdir():
                    path.replace(out.parent / path.name)
    finally:
        whole.unlink(missing_ok=True)
        pieces.unlink(missing_ok=True)
    return found


def _bytes(types: Types, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of the values whose dims are known."""
    said, found = cast("Mapping[str, tuple[str, list[int | str | None]]]", types), {}
    for name, (dtype, shape) in said.items():
        known = [dims.get(dim) if isinstance(dim, str) else dim for dim in shape]
        numbers = [number for number in known if number is not None]
        if len(numbers) == len(known):
            found[name] = math.prod(numbers) * BITS.get(dtype, 0) // 8
    return found


def _dump(model: Path, provider: str, out: Path, settings: RuntimeSettings) -> None:
    make_session(model, settings.updated(into(out)), provider)
