"""External weight files that belong to one output: packed, folded, or moved out of the model file.

A portable output refers to the weight files of its source. Three kinds of weights get a file of
their own beside the output: those that ONNX Runtime packed or fused for a provider, folded
constants, and weights that were stored in the model file itself. The names of these files are
derived from the output's name. When the output is written again, they are replaced or removed with
it. A file of such a name that the earlier output does not refer to is never touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Self, TypeVar

from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.errors import MemplanError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.program import Program
    from memplan_cli.planning.planner import PlannedProgram

Result = TypeVar("Result")

FUSED, UNFUSED, FOLDED, MOVED = "", ".unfused", ".folded", ".weights"
"""What is inserted into the output's name, by the kind of weights."""


def data_name(output: Path, kind: str, taken: Collection[str] = ()) -> str:
    """Return the name of a weight file of one kind beside an output: the first of two if it is not ``taken``.

    For ``net.onnx`` and `FOLDED`, the names are ``net.folded.onnx.data`` and ``net.folded.offline.onnx.data``.
    ``taken`` are weight files of the source, which may be called ``net.onnx`` too, in another folder.
    """
    name = f"{output.stem}{kind}{output.suffix}.data"
    return f"{output.stem}{kind}.offline{output.suffix}.data" if name in taken else name


def possible_weights(output: Path) -> tuple[str, ...]:
    """Return every name that weights of an output can have, sorted: by `data_name`, two of each kind."""
    kinds = (FUSED, UNFUSED, FOLDED, MOVED)
    first_names = {data_name(output, kind) for kind in kinds}
    second_names = {data_name(output, kind, taken=first_names) for kind in kinds}
    return tuple(sorted(first_names | second_names))


def own_weights(output: Path) -> tuple[str, ...]:
    """Return the weight files that belong to an output that was written earlier.

    Empty if the output does not exist, cannot be read, or has none.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.metadata import has_own_weights
    from memplan_cli.onnx_io.weights.external_data import external_tensors, locations

    # The model is parsed only if such files exist: most outputs have none.
    existing = {name for name in possible_weights(output) if output.with_name(name).exists()}
    if not existing or not output.is_file():
        return ()
    try:
        model = load_model(output)
        in_use = locations(external_tensors(model)) if has_own_weights(model) else ()
    except MemplanError:
        return ()
    return tuple(name for name in in_use if name in existing)


def refuse_foreign_weights(output: Path, names: Iterable[str], own: Collection[str]) -> None:
    """Refuse to write weights over a file that is not in ``own``, the `own_weights` of the output."""
    for name in names:
        place = output.with_name(name)
        if name not in own and (place.exists() or place.is_symlink()):
            raise ModelError(
                f"{place} is in the way: the weights of {output.name} have that name",
                hint="move it away, or name another file with -o",
            )


class NewWeights:
    """The weight files of an output that is being written.

    They are created before the output gets its name, so that it can be run under a temporary one. The
    block that uses the object removes them at its end, and restores files that they replaced, unless
    `keep` was called.

    Attributes:
        output: the model file that will refer to them.
        earlier: the `own_weights` of an earlier version of the output, which may be replaced.
    """

    def __init__(self, output: Path, earlier: Collection[str] = ()) -> None:
        """Create no file yet."""
        self.output, self.earlier = output, earlier
        self._created: tuple[Path, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        from memplan_cli.onnx_io.weights.external_data import remove

        remove(self._created)

    def copy(
        self, names: Sequence[str], source: Path, replaceable: Collection[str] = ()
    ) -> None:
        """Copy the weight files of a model in the folder ``source``, unless that is the output's folder.

        Raises:
            ModelError: another file of the name that is not ``replaceable`` is in the way, or a file
                cannot be written.
        """
        from memplan_cli.onnx_io.weights.external_data import copy_along

        copied = copy_along(names, source, self.output.parent, replaceable)
        self._created = (*self._created, *copied)

    def create(self, name: str, write: Callable[[BinaryIO], Result]) -> Result:
        """Create a weight file; return the result of ``write``, which writes the content.

        There is no file if ``write`` writes nothing.

        Raises:
            ModelError: another file is in the way, or the file cannot be written.
        """
        from memplan_cli.onnx_io.weights.external_data import create, remove

        refuse_foreign_weights(self.output, [name], self.earlier)
        place = self.output.with_name(name)
        result = create(place, write, self.earlier)
        if place.stat().st_size:
            self._created = (*self._created, place)
        else:
            remove((place,))
        return result

    def keep(self, in_use: Collection[str] = ()) -> tuple[Path, ...]:
        """Make the new weight files final, once the output is written; return their paths.

        Deletes the files that the new ones replaced, and each earlier weight file that is neither new nor in
        ``in_use``, the names that the written output or its original needs.
        """
        from memplan_cli.onnx_io.weights.external_data import delete_replaced

        new_files = tuple(path for path in self._created if path.is_file())  # no new folders
        delete_replaced(self._created)  # only the backups of replaced files
        self._created = ()  # so that the end of the block removes nothing
        for name in self.earlier:
            place = self.output.with_name(name)
            if name not in in_use and place not in new_files:
                place.unlink(missing_ok=True)
        return new_files


class FoldedModel(NamedTuple):
    """A model with its constants folded, its program, and the file of large folded values, if there are any."""

    model: ModelProto
    program: Program
    data_file: str = ""


def fold_beside(file: ModelFile, planned: PlannedProgram, weights: NewWeights) -> FoldedModel:
    """Fold the constants that a plan names; large values go into a weight file of the output.

    Raises:
        ModelError: a value cannot be computed, or a file is in the way.
    """
    from memplan_cli.onnx_io.weights.folding import Evaluator, folded_model, goes_outside
    from memplan_cli.onnx_io.weights.tensor_data import DataFile, store_inside

    model, evaluator = file.model, Evaluator(file.model, file.path.parent)
    if not goes_outside(model, planned.plan.report.folded.added):
        return FoldedModel(*folded_model(model, planned.program, evaluator, store_inside))
    # The model keeps its references to the file's weights, so the name must be none of theirs.
    name = data_name(weights.output, FOLDED, taken=file.data_files)

    def write(data: BinaryIO) -> FoldedModel:
        store = DataFile(name, data).store
        folded = folded_model(model, planned.program, evaluator, store)
        # `goes_outside` decides for all values together. Single small values, and those of subgraphs, are
        # stored in the model file nevertheless. If there are no others, `create` removes the empty file.
        return FoldedModel(*folded, data_file=name if data.tell() else "")

    return weights.create(name, write)


class MovedModel(NamedTuple):
    """A model without its large weights, and the file into which they were moved, if they were."""

    model: ModelProto
    moved: ExternalWeights = ExternalWeights()


def move_beside(model: ModelProto, weights: NewWeights, taken: Collection[str]) -> MovedModel:
    """Move the weights stored in a model into a file that ``weights`` creates, if they are large in total.

    ONNX Runtime copies weights in the model file into memory of its own; those in another file are
    read one by one, or mapped. The model refers to the weight files in ``taken`` already.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """
    from memplan_cli.onnx_io.weights.inline import MIN_MOVED_BYTES, inline_bytes, moved_outside

    size = inline_bytes(model)
    if size < MIN_MOVED_BYTES:
        return MovedModel(model)
    name = data_name(weights.output, MOVED, taken)
    without_weights = weights.create(name, lambda data: moved_outside(model, name, data))
    return MovedModel(without_weights, ExternalWeights(name, size))
