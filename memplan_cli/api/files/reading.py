"""Programs read with every size that the file, inference or ONNX Runtime can tell.

ONNX Runtime is asked last: for its own inference, from a session that is loaded and never
run. What one run showed is read by `read_seen`. Most models need neither, so what starts a
process is imported where one is started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, Program, VarId, intermediates
from memplan_cli.core.quantities import counted
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.core.symbolic.polynomials import format_atom
from memplan_cli.core.symbolic.sizes import BITS, size_of
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.shapes.reading import Loaded, read_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.program import Var
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Bindings, Known

MOST_NODES = 4000
"""Above this a session takes longer to load than all of the planning."""


def read_completely(model: ModelProto | LazyModel, path: Path, bindings: Bindings) -> Loaded:
    """Read a model; where sizes are missing, ask the runtime's inference for them."""
    source = lazy(model)
    del model
    return completed(source, path, bindings, read_checked(source, bindings))


def completed(source: LazyModel, path: Path, bindings: Bindings, loaded: Loaded) -> Loaded:
    """Return a model that was read with what the runtime's inference adds."""
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


def read_as_inferred(model: ModelProto | LazyModel, bindings: Bindings) -> Loaded:
    """Read a model with what the file and our own inference tell."""
    return read_checked(lazy(model), bindings)


def read_seen(
    source: LazyModel, bindings: Bindings, known: Known, before: Program, whose: str
) -> Loaded:
    """Read a model again with the shapes that a run on ``whose`` inputs showed.

    ``before`` is the program without them, which may be symbolic in what is bound now.
    """
    dims = {**_seen_dims(before, known), **bindings.dims}
    gaps = dict.fromkeys((*missing_sizes(before), *unbound(before, bindings.dims)))
    text = f"were read off one run on {whose}; other data may need more"
    found = _read_with(source, replace(bindings, dims=dims), known, tuple(gaps), text)
    # What was known in numbers before may be hidden again by turns that differ.
    filled = _filled(found.program, {**numbers_in(before), **known})
    absent = _not_run(filled, known)
    if absent:
        note = (
            f"{len(absent)} tensors lie in subgraphs that this run did not take, and count "
            f"as nothing: {_named(absent)}"
        )
        found = replace(found, warnings=(*found.warnings, note))
        filled = _with(filled, {var: filled.vars[var]._replace(shape=(0,)) for var in absent})
    inputs = (var for var, of in before.vars.items() if of.origin is Origin.INPUT)
    unranked = (var for var in inputs if before.vars[var].shape is None)
    return replace(found, program=filled, observed=True, seen=frozenset((*gaps, *unranked)))


def numbers_in(program: Program) -> Known:
    """Return the type and shape of what has a size in numbers."""
    return {
        var: (facts.dtype, facts.shape)
        for var, facts in program.vars.items()
        if facts.shape is not None and all(isinstance(dim, int) for dim in facts.shape)
    }


def _filled(program: Program, known: Known) -> Program:
    """Return a program in which what still has no number has the one that a run showed.

    Declarations that are wrong, and turns that a value grows by, keep inference from it.
    """
    left = (*missing_sizes(program), *unbound(program, ()))
    return _with(
        program,
        {
            var: program.vars[var]._replace(dtype=known[var][0], shape=known[var][1])
            for var in left
            if var in known
        },
    )


def _not_run(program: Program, known: Known) -> tuple[VarId, ...]:
    """Return what still has no size and lies in a block of which a run showed nothing."""
    seen = {program.vars[VarId(var)].block for var in known if var in program.vars}
    left = dict.fromkeys((*missing_sizes(program), *unbound(program, ())))
    vars_ = program.vars
    return tuple(
        var for var in left if vars_[var].block not in seen and vars_[var].dtype in BITS
    )


def _with(program: Program, other: Mapping[VarId, Var]) -> Program:
    """Return a program with other facts of some vars."""
    return Program(program.name, program.body, {**program.vars, **other}) if other else program


def _named(names: Sequence[VarId]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def unbound(program: Program, free: Collection[str]) -> tuple[VarId, ...]:
    """Return what ops make whose size has a symbol in it that is no free dim."""
    decided = frozenset(free)
    return tuple(
        var
        for var in _made(program)
        if any(not symbols_of(dim) <= decided for dim in program.vars[var].shape or ())
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
    note = f"shapes of {counted(len(gained), 'tensor')} {how}: {_named(gained)}"
    return replace(loaded, warnings=(*loaded.warnings, note))


def _made(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates and the graph's outputs."""
    made = (var for var in program.body.outputs if program.vars[var].origin is Origin.OP)
    return (*intermediates(program), *dict.fromkeys(made))


def missing_sizes(program: Program) -> tuple[VarId, ...]:
    """Return what ops make that has no size, and that a shape could give one."""
    return tuple(
        var
        for var in _made(program)
        if (facts := program.vars[var]).dtype in (*BITS, "unknown")
        and size_of(facts.shape, facts.dtype) is None
    )
