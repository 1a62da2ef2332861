"""The constants of a model folded for one output, their data in a file beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from memplan_cli.api.files.own_weights import (
    FOLDED,
    dump_name,
    refuse_foreign_weights,
)

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.planning.planner import PlannedProgram


class FoldedFile(NamedTuple):
    """A model with its constants folded, its program, and what was created beside it."""

    model: ModelProto
    program: Program
    created: tuple[Path, ...] = ()


def fold_beside(
    file: ModelFile, planned: PlannedProgram, out: Path, own: Collection[str]
) -> FoldedFile:
    """Fold what a plan says; large values go straight into a file beside the output.

    Args:
        file: The model that was planned.
        planned: Its plan, and its program without what was folded.
        out: The model to write.
        own: Files of weights that belong to an earlier version of it.

    Raises:
        ModelError: a value cannot be computed, or a file is in the way.
    """
    from memplan_cli.onnx_io.weights.external_data import create, remove
    from memplan_cli.onnx_io.weights.folding import Evaluator, folded_model, goes_outside
    from memplan_cli.onnx_io.weights.tensor_data import DataFile, store_inside

    model, evaluator = file.model, Evaluator(file.model, file.path.parent)
    if not goes_outside(model, planned.plan.report.folded.added):
        return FoldedFile(*folded_model(model, planned.program, evaluator, store_inside))
    name = f"{dump_name(out, file.data_files, FOLDED)}.data"
    refuse_foreign_weights(out, [name])
    found: list[FoldedFile] = []

    def write(data: BinaryIO) -> None:
        store = DataFile(name, data).store
        found.append(FoldedFile(*folded_model(model, planned.program, evaluator, store)))

    place = out.with_name(name)
    created = create(place, write, own)
    if not place.stat().st_size:  # all are small, or in subgraphs
        remove(created)
        created = ()
    return found[0]._replace(created=created)
