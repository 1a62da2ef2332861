"""The files of weights that are an output's own: packed, folded, or moved out of the model.

A portable output refers to the files of weights of its source; what lay in the source itself
may go into a file of its own. An output for a provider brings weights that are fused and
packed, and constants that were folded may lie in a third one. Under a name made of the
output's they are replaced, or go, with it. A file of that name which no such output refers to
is somebody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import MemplanError, ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

FUSED, UNFUSED, FOLDED, MOVED = "", ".unfused", ".folded", ".weights"
"""The graphs that bring weights for one output, by what is put into its name."""


def dump_name(output: Path, taken: Collection[str], kind: str = FUSED) -> str:
    """Return the name of a dump, whose weights go beside the output as ``<name>.data``.

    Args:
        output: the model to write.
        taken: the files of its source's weights: they may have that name, and all graphs
            compete side by side.
        kind: which graph.
    """
    name = f"{output.stem}{kind}{output.suffix}"
    return f"{output.stem}{kind}.offline{output.suffix}" if f"{name}.data" in taken else name


def possible_weights(output: Path) -> tuple[str, ...]:
    """Return every name that `dump_name` can lead to for the weights of an output, sorted."""
    kinds = (FUSED, UNFUSED, FOLDED, MOVED)
    names = {f"{dump_name(output, (), kind)}.data" for kind in kinds}
    return tuple(sorted(names | {f"{dump_name(output, names, kind)}.data" for kind in kinds}))


def own_weights(output: Path) -> tuple[str, ...]:
    """Return the files beside an output, written earlier, that came and go with it.

    Nothing for what is not there, cannot be read, or came without weights.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.metadata import has_own_weights

    # Reading a large model takes its time, and there is nearly never anything to find.
    there = {name for name in possible_weights(output) if output.with_name(name).exists()}
    if not there or not output.is_file():
        return ()
    try:
        model = load_model(output)
        named = weights_of(model) if has_own_weights(model) else ()
    except MemplanError:
        return ()
    return tuple(name for name in named if name in there)


def weights_of(model: ModelProto) -> tuple[str, ...]:
    """Return the files that hold a model's weights, as it names them.

    Raises:
        ModelError: a name leads out of the model's folder.
    """
    from memplan_cli.onnx_io.weights.external_data import external_tensors, locations

    return locations(external_tensors(model))


def refuse_foreign_weights(output: Path, names: Iterable[str]) -> None:
    """Refuse to write weights over a file that is not an earlier version of them.

    Raises:
        ModelError: naming it.
    """
    own = own_weights(output)
    for name in names:
        place = output.with_name(name)
        if name not in own and (place.exists() or place.is_symlink()):
            raise ModelError(
                f"{place} is in the way: the weights of {output.name} have that name",
                hint="move it away, or name another file with -o",
            )
