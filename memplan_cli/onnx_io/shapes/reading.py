"""Programs read with every type that the file declares truly or inference finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.read import declared_program, program_of
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import declared_types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from onnx import ModelProto

    from memplan_cli.core.program import Block, Program, VarId
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.contradictions import Contradiction


_LONGEST = 80
"""Characters of a name in a message."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program, and what was noticed while reading it."""

    program: Program
    warnings: tuple[str, ...] = ()
    observed: bool = False
    """Whether some shapes are those of one run, or hang on values that were given."""
    seen: frozenset[VarId] = frozenset()
    """The vars whose sizes nothing but that run told."""
    skipped: tuple[str, ...] = ()
    """The paths of the blocks that no run under the binding enters."""


NOT_BELIEVED = "wrong declarations of the model are not believed"
"""How the warning begins of a model whose nodes contradict what it declares."""


def read_program(model: ModelProto | LazyModel, bindings: Bindings | None = None) -> Loaded:
    """Turn a model into a program.

    Where the file gives every value numbers for dims, ONNX inference is left out: it keeps
    what is declared, even where its own result is other dims.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or needs itself.
    """
    source, bindings = lazy(model), bindings or Bindings()
    del model
    if bindings == Bindings() and (program := declared_program(source.model)) is not None:
        return Loaded(program)
    from memplan_cli.onnx_io.shapes.infer import infer
    from memplan_cli.onnx_io.shapes.skipped import skipped_blocks

    inferred, warnings = infer(source, bindings)
    types = declared_types(inferred.graph)
    # Inference leaves nodes alone but for the types in their subgraphs: without any, a large
    # graph need not be there twice while it is read.
    nested = any(any(subgraphs(node)) for node in inferred.graph.node if node.attribute)
    graph = inferred.graph if nested else None
    skipped = skipped_blocks(graph) if graph is not None else ()
    del inferred
    model = source.model
    return Loaded(program_of(model, graph or model.graph, types), warnings, skipped=skipped)


def read_checked(model: ModelProto | LazyModel, bindings: Bindings) -> Loaded:
    """Turn a model into a program that goes by no type which its nodes contradict.

    Where a declared type is wrong, what inference makes of the nodes is right, and a warning
    says so once. A type that not even inference is of one mind about is unknown.

    Raises:
        ModelError: as `read_program`.
        SettingsError: a shape is given that its node contradicts.
    """
    source = lazy(model)
    loaded = _read_checked(source, bindings)
    if not bindings.values:
        return loaded
    # What is not so without the values holds for them alone.
    plain = _read_checked(source, replace(bindings, values={})).program.vars
    found = loaded.program.vars
    hanging = [
        var for var in found if var not in plain or found[var].shape != plain[var].shape
    ]
    made = [var for var in hanging if found[var].origin in (Origin.OP, Origin.BODY_INPUT)]
    if not made:
        return loaded
    names = ", ".join(var[:_LONGEST] for var in made[:3]) + (", ..." if len(made) > 3 else "")
    note = f"shapes hang on the values given, others may need more: {names}"
    return replace(loaded, observed=True, warnings=(*loaded.warnings, note))


def _read_checked(source: LazyModel, bindings: Bindings) -> Loaded:
    from memplan_cli.onnx_io.shapes.contradictions import contradictions

    loaded = read_program(source, bindings)
    wrong = left = _reached(contradictions(source.model, loaded.program), loaded)
    untrusted: frozenset[str] = frozenset()
    # What one wrong declaration hid, the next round finds: names never come back.
    while left and not (names := frozenset(found.var.name for found in left)) <= untrusted:
        untrusted |= names
        known = {var: facts for var, facts in bindings.known.items() if var not in untrusted}
        loaded = read_program(source, replace(bindings, known=known, untrusted=untrusted))
        left = _reached(contradictions(source.model, loaded.program), loaded)
    if loaded.skipped:
        loaded = _without_skipped(loaded, bindings)
    if not wrong:
        return loaded
    _reject_given(left, bindings)
    more = f" and {len(untrusted) - 1} more" if len(untrusted) > 1 else ""
    said = [f"{NOT_BELIEVED}: {wrong[0]}{more}"]
    program = loaded.program
    if left:
        program = forgotten(program, frozenset(found.var.id for found in left))
        said.append(f"the nodes do not agree on sizes, which are unknown: {left[0]}")
    return replace(loaded, program=program, warnings=(*loaded.warnings, *said))


def _without_skipped(loaded: Loaded, bindings: Bindings) -> Loaded:
    """Take the memory from what is never run; say so where values that were given decide it."""
    from memplan_cli.onnx_io.shapes.skipped import without_memory

    program = without_memory(loaded.program, loaded.skipped)
    if not bindings.values:
        return replace(loaded, program=program)
    count, first = len(loaded.skipped), loaded.skipped[0][:_LONGEST]
    what = f"{count} subgraphs are" if count > 1 else "one subgraph is"
    note = f"{what} never run with the values given, and {'take' if count > 1 else 'takes'} no memory: {first!r}"
    return replace(loaded, program=program, warnings=(*loaded.warnings, note))


def _reached(found: Sequence[Contradiction], loaded: Loaded) -> Sequence[Contradiction]:
    """Return the contradictions in blocks that are run: what others make, nobody sees."""
    from memplan_cli.onnx_io.shapes.skipped import is_inside

    return [one for one in found if not is_inside(one.var.block, loaded.skipped)]


def _reject_given(left: Sequence[Contradiction], bindings: Bindings) -> None:
    for found in left:
        if not bindings.shapes.keys().isdisjoint((found.var.name, found.var.id)):
            raise SettingsError(
                f"the shape given for {found.var.name!r} cannot be right: {found}",
                hint="leave it out, or give the one that its node makes",
            )


def forgotten(program: Program, doubtful: Collection[VarId]) -> Program:
    """Return a program without the shapes of some values and of all that hangs on them."""
    unknown = set(doubtful)
    _spread(program.body, unknown)
    vars_ = {
        identity: var._replace(shape=None) if identity in unknown else var
        for identity, var in program.vars.items()
    }
    return replace(program, vars=vars_)


def _spread(block: Block, unknown: set[VarId]) -> None:
    """Add what the ops of a block make of unknown values, inside of their subgraphs too."""
    for op in block.ops:
        reached = not unknown.isdisjoint(op.inputs)
        for body in op.bodies:
            _spread(body, unknown)
            reached = reached or not unknown.isdisjoint((*body.outputs, *_inside(body)))
        if reached:
            unknown.update(var for var in op.outputs if var)
            for body in op.bodies:  # what a turn gives, the next one takes
                unknown.update(_inside(body))


def _inside(block: Block) -> Iterator[VarId]:
    """Yield the values that a block defines, those of its own subgraphs too."""
    yield from block.inputs
    for op in block.ops:
        yield from (var for var in op.outputs if var)
        for body in op.bodies:
            yield from _inside(body)
