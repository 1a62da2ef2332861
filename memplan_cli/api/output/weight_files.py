"""External weight files that belong to one output: packed, folded, or moved out of the model file.

A portable output refers to the weight files of its source. Three kinds of weights get a file of
their own beside the output: those that ONNX Runtime packed or fused for a provider, folded
constants, and weights that were stored in the model file itself. The names of these files are
derived from the output's name. When the output is written again, they are replaced or removed with
it. A file of such a name that the earlier output does not refer to is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.errors import MemplanError, ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.planning.planner import PlannedProgram

FUSED, UNFUSED, FOLDED, MOVED = "", ".unfused", ".folded", ".weights"
"""What is inserted into the output's name, by the kind of weights."""


def dump_name(output: Path, taken: Collection[str], kind: str = FUSED) -> str:
    """Return the name of a model whose weights lie beside the output as ``<name>.data``.

    ``taken`` are the names of the source's weight files. If the weights would have one of these,
    the model gets a second name.
    """
    name = f"{output.stem}{kind}{output.suffix}"
    return f"{output.stem}{kind}.offline{output.suffix}" if f"{name}.data" in taken else name


def possible_weights(output: Path) -> tuple[str, ...]:
    """Return every name that weights of an output can have, sorted: by `dump_name`, two of each kind."""
    kinds = (FUSED, UNFUSED, FOLDED, MOVED)
    first_names = {f"{dump_name(output, (), kind)}.data" for kind in kinds}
    second_names = {f"{dump_name(output, first_names, kind)}.data" for kind in kinds}
    return tuple(sorted(first_names | second_names))


def own_weights(output: Path) -> tuple[str, ...]:
    """Return the weight files that belong to an output that was written earlier.

    Empty if the output does not exist, cannot be read, or has none.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.metadata import has_own_weights

    # The model is parsed only if such files exist: most outputs have none.
    existing = {name for name in possible_weights(output) if output.with_name(name).exists()}
    if not existing or not output.is_file():
        return ()
    try:
        model = load_model(output)
        named = weights_of(model) if has_own_weights(model) else ()
    except MemplanError:
        return ()
    return tuple(name for name in named if name in existing)


def weights_of(model: ModelProto) -> tuple[str, ...]:
    """Return the files that hold a model's weights, as the model names them.

    Raises:
        ModelError: a name leads out of the model's folder.
    """
    from memplan_cli.onnx_io.weights.external_data import external_tensors, locations

    return locations(external_tensors(model))


def refuse_foreign_weights(output: Path, names: Iterable[str], own: Collection[str]) -> None:
    """Refuse to write weights over a file that is not in ``own``, the `own_weights` of the output."""
    for name in names:
        place = output.with_name(name)
        if name not in own and (place.exists() or place.is_symlink()):
            raise ModelError(
                f"{place} is in the way: the weights of {output.name} have that name",
                hint="move it away, or name another file with -o",
            )


class FoldedModel(NamedTuple):
    """A model with its constants folded.

    Attributes:
        created: the file of large folded values beside the output, if there are any.
    """

    model: ModelProto
    program: Program
    created: tuple[Path, ...] = ()


def fold_beside(
    file: ModelFile, planned: PlannedProgram, out: Path, own: Collection[str]
) -> FoldedModel:
    """Fold the constants that a plan names; large values are written into a file beside the output.

    The model is returned, and not written to ``out``. Weight files in ``own``, of an earlier
    version of the output, may be replaced.

    Raises:
        ModelError: a value cannot be computed, or a file is in the way.
    """
    from memplan_cli.onnx_io.weights.external_data import create, remove
    from memplan_cli.onnx_io.weights.folding import Evaluator, folded_model, goes_outside
    from memplan_cli.onnx_io.weights.tensor_data import DataFile, store_inside

    model, evaluator = file.model, Evaluator(file.model, file.path.parent)
    if not goes_outside(model, planned.plan.report.folded.added):
        return FoldedModel(*folded_model(model, planned.program, evaluator, store_inside))
    # The model keeps its references to the file's weights, so the name must be none of theirs.
    name = f"{dump_name(out, file.data_files, FOLDED)}.data"
    refuse_foreign_weights(out, [name], own)

    def write(data: BinaryIO) -> FoldedModel:
        store = DataFile(name, data).store
        return FoldedModel(*folded_model(model, planned.program, evaluator, store))

    place = out.with_name(name)
    folded = create(place, write, own)
    # `goes_outside` decides for all values together. Single small values, and those of subgraphs,
    # are stored in the model file nevertheless. If there are no others, the data file is empty.
    if not place.stat().st_size:
        remove((place,))
        return folded
    return folded._replace(created=(place,))


class MovedModel(NamedTuple):
    """A model whose large weights were moved out of its file.

    Attributes:
        created: the weight file, if there is one.
    """

    model: ModelProto
    facts: ExternalWeights = ExternalWeights()
    created: tuple[Path, ...] = ()


def move_beside(
    model: ModelProto, out: Path, taken: Collection[str], own: Collection[str]
) -> MovedModel:
    """Move the weights stored in a model into a file beside the output, if they are large in total.

    ONNX Runtime copies weights in the model file into memory of its own; those in another file are
    read one by one, or mapped.

    The model refers to the weight files in ``taken`` already. Those in ``own``, of an earlier
    version of the output, may be replaced.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """
    from memplan_cli.onnx_io.weights.external_data import create
    from memplan_cli.onnx_io.weights.inline import MIN_MOVED_BYTES, inline_bytes, moved_outside

    size = inline_bytes(model)
    if size < MIN_MOVED_BYTES:
        return MovedModel(model)
    name = f"{dump_name(out, taken, MOVED)}.data"
    refuse_foreign_weights(out, [name], own)
    place = out.with_name(name)
    moved = create(place, lambda data: moved_outside(model, name, data), own)
    return MovedModel(moved, ExternalWeights(name, size), created=(place,))
