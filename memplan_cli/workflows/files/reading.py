"""Programs read with every size that the file, inference or ONNX Runtime can tell.

ONNX Runtime is asked last: for its own inference, from a session that is loaded and never
run; or, where asked for, for one run on drawn inputs. Most models need neither, so what
starts a process is imported where one is started.
"""

from __future__ import annotations

from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding
from memplan_cli.core.program import intermediates
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.core.symbolic.polynomials import format_atom
from memplan_cli.core.symbolic.sizes import BITS, size_of
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.lazy_model import lazy
from memplan_cli.shapes.reading import Loaded, read_checked

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.bindings import Feeds
    from memplan_cli.core.program import Program, VarId
    from memplan_cli.onnx_io.lazy_model import LazyModel
    from memplan_cli.shapes.bindings import Bindings, Known

MOST_NODES = 4000
"""Above this a session takes longer to load than all of the planning."""


def read_completely(model: ModelProto | LazyModel, path: Path, bindings: Bindings) -> Loaded:
    """Read a model; where sizes are missing, ask the runtime's inference for them."""
    source = lazy(model)
    del model
    loaded = read_checked(source, bindings)
    missing = missing_sizes(loaded.program)
    if not missing or len(loaded.program.body.ops) > MOST_NODES:
        return loaded
    from memplan_cli.runtime.shapes import inferred_shapes

    known, failure = inferred_shapes(
        source.model, bindings, {loaded.program.vars[v].name for v in missing}
    )
    if failure:
        note = (
            f"{len(missing)} sizes are unknown and ONNX Runtime cannot load {path.name} to say"
        )
        return replace(loaded, warnings=(*loaded.warnings, f"{note}: {failure}"))
    return _read_with(source, bindings, known, missing, "come from ONNX Runtime's inference")


def read_with_inputs(
    model: ModelProto | LazyModel, path: Path, bindings: Bindings, feeds: Feeds
) -> Loaded:
    """Read a model whose inputs were given; where sizes are missing, run it on them and look.

    Where it cannot be run, for a dim is free or weights are not there, as `read_completely`.

    Raises:
        RuntimeUnavailableError: the model fails on these inputs.
    """
    from memplan_cli.onnx_io.runs.feeds import default_dims
    from memplan_cli.onnx_io.runs.runnable import missing_weights

    source = lazy(model)
    del model
    is_free = not default_dims(source.model).keys() <= bindings.dims.keys()
    if is_free or missing_weights(path):
        return read_completely(source, path, bindings)
    return read_observed(source, path, bindings, feeds)


def read_observed(
    model: ModelProto | LazyModel, path: Path, bindings: Bindings, feeds: Feeds | None = None
) -> Loaded:
    """Read a model; where sizes are missing, run it once and look.

    Raises:
        SettingsError: a dim of the inputs is free: the run would fix it in silence.
        RuntimeUnavailableError: the model cannot run here.
    """
    from memplan_cli.onnx_io.runs.feeds import default_dims
    from memplan_cli.runtime.shapes import observed_shapes

    source = lazy(model)
    del model
    loaded = read_checked(source, bindings)
    unknown = (*missing_sizes(loaded.program), *_unbound(loaded.program))
    if not unknown:
        return loaded
    free = sorted(set(default_dims(source.model)) - set(bindings.dims))
    if free:
        raise SettingsError(
            f"a run has numbers for all dims, and {free[0]!r} has none",
            hint=f"bind it: --dim {quote(f'{free[0]}=8')}",
        )
    known = observed_shapes(source.model, path, Binding(bindings.dims, feeds or {}))
    dims = {**_seen_dims(loaded.program, known), **bindings.dims}
    whose = "the inputs given" if feeds else "drawn inputs"
    text = f"were seen in one run on {whose}; other data may need more"
    found = _read_with(source, replace(bindings, dims=dims), known, unknown, text)
    return replace(found, observed=True)


def _unbound(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates whose size has a symbol in it."""
    return tuple(
        var
        for var in intermediates(program)
        if any(symbols_of(dim) for dim in program.vars[var].shape or ())
    )


def _seen_dims(program: Program, known: Known) -> dict[str, int]:
    """Return the largest number seen for each symbol that data decides (``u0``)."""
    found: dict[str, int] = {}
    for var in program.vars.values():
        seen = known.get(var.id)
        if seen is None or var.shape is None or len(seen[1]) != len(var.shape):
            continue
        for dim, value in zip(var.shape, seen[1], strict=True):
            if isinstance(dim, str) and isinstance(value, int):
                for name in symbols_of(dim):
                    if dim == format_atom(name):
                        found[name] = max(found.get(name, 0), value)
    return found


def _read_with(
    source: LazyModel, bindings: Bindings, known: Known, before: Sequence[VarId], how: str
) -> Loaded:
    loaded = read_checked(source, replace(bindings, known=known))
    after = set(missing_sizes(loaded.program))
    gained = [var for var in before if var not in after]
    if not gained:
        return loaded
    names = ", ".join(gained[:3]) + (", ..." if len(gained) > 3 else "")
    note = f"the shapes of {len(gained)} tensors {how}: {names}"
    return replace(loaded, warnings=(*loaded.warnings, note))


def missing_sizes(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates without a size that a shape could give one."""
    return tuple(
        var
        for var in intermediates(program)
        if (facts := program.vars[var]).dtype in (*BITS, "unknown")
        and size_of(facts.shape, facts.dtype) is None
    )
