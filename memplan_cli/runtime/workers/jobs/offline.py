"""Have the runtime write its own graph for a provider, and the one without costly fusions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - a type to read by
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.load import graphs, load_model
from memplan_cli.onnx_io.runs.blocks import BLOCKED
from memplan_cli.runtime.graph.fusions import FUSIONS, without
from memplan_cli.runtime.workers.blocks import block_size
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.session_graph import OUTSIDE, types_of

if TYPE_CHECKING:
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
    """

    model: Path
    provider: str
    settings: RuntimeSettings
    fused: Path
    unfused: Path | None = None


def run(job: Json) -> Json:
    """Write the graphs; return the types that the runtime infers in each, by file name."""
    asked = from_json(OfflineDump, job["dump"], "the job")
    found = {asked.fused.name: _dumped(asked, asked.fused, asked.settings)}
    kinds = {n.op_type for g in graphs(load_model(asked.fused).graph) for n in g.node}
    costly = [fusion for kind, fusion in FUSIONS.items() if kind in kinds]
    if costly and asked.unfused is not None:
        settings = asked.settings.updated(without(costly))
        found[asked.unfused.name] = _dumped(asked, asked.unfused, settings)
    return {"types": found, "block": block_size() if _has_blocks(asked.fused) else 0}


def _has_blocks(path: Path) -> bool:
    """Whether a graph has convolutions over blocks of channels."""
    return any(n.domain == BLOCKED for g in graphs(load_model(path).graph) for n in g.node)


def _dumped(asked: OfflineDump, out: Path, settings: RuntimeSettings) -> object:
    weights = RuntimeSettings(
        session={"optimized_model_filepath": str(out)},
        session_config={
            "session.optimized_model_external_initializers_file_name": f"{out.name}.data",
            "session.optimized_model_external_initializers_min_size_in_bytes": OUTSIDE,
        },
    )
    make_session(asked.model, settings.updated(weights), asked.provider)
    return types_of(out, asked.provider)
