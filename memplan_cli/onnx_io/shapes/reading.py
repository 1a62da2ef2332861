"""Reading a model as a program, with declared types where they are right and inferred types elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.read import declared_program, program_of
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.never_run import is_inside, never_run_blocks, without_memory_of
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import declared_types

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from onnx import ModelProto, TensorProto

    from memplan_cli.core.program import Block, Program, VarId
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.contradictions import Contradiction


_MAX_NAME = 80
"""Characters of a name in a message."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program that was read from a model.

    Attributes:
        program: the program.
        warnings: texts for the user.
        observed: whether some shapes are those of one run, or depend on values that were given.
        observed_vars: the vars whose sizes are known from that run only.
        skipped: paths of the blocks that no run under the binding enters.
    """

    program: Program
    warnings: tuple[str, ...] = ()
    observed: bool = False
    observed_vars: frozenset[VarId] = frozenset()
    skipped: tuple[str, ...] = ()


WRONG_DECLARATIONS = "wrong declarations in the model are ignored"
"""Start of the warning about a model whose nodes contradict its declared types."""


def read_program(model: ModelProto | LazyModel, bindings: Bindings | None = None) -> Loaded:
    """Turn a model into a program.

    Nothing is inferred if the model declares numbers for all dims and there are no bindings: ONNX's inference
    would keep the declared types, even where its own result differs. A `LazyModel` is released while types are
    inferred, and then parsed again.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or depends on itself.
        SettingsError: the bindings contradict the model, or name no value of it.
    """
    source, bindings = lazy(model), bindings or Bindings()
    del model  # else it would stay in memory while ``source`` is released by inference
    if bindings == Bindings() and (program := declared_program(source.model)) is not None:
        return Loaded(program)
    from memplan_cli.onnx_io.shapes.infer import infer

    inferred, warnings = infer(source, bindings)
    types = declared_types(inferred.graph)
    skipped = never_run_blocks(inferred.graph)
    # The inferred graph has the nodes of the original, but with bound and inferred types in their subgraphs.
    # Without subgraphs it is not needed any more: its memory is free before the original is parsed again.
    has_subgraphs = any(any(subgraphs(node)) for node in inferred.graph.node if node.attribute)
    typed_graph = inferred.graph if has_subgraphs else None
    del inferred
    model = source.model
    program = program_of(model, model.graph if typed_graph is None else typed_graph, types)
    return Loaded(program, warnings, skipped=skipped)


def read_checked(model: ModelProto | LazyModel, bindings: Bindings) -> Loaded:
    """Turn a model into a program without declared types that its nodes contradict.

    Inferred types replace wrong declared ones, with a warning. A type on which the nodes themselves
    disagree is unknown. If input values were given, and some shapes are different without them, the
    program counts as observed: other values may give other shapes. A warning names them.

    Raises:
        ModelError: as `read_program`.
        SettingsError: a shape was given that the value's node contradicts.
    """
    source = lazy(model)
    loaded = _read_consistent(source, bindings)
    if not bindings.values:
        return loaded
    # Shapes that differ without the given values depend on them.
    vars_ = loaded.program.vars
    unbound_vars = _read_consistent(source, replace(bindings, values={})).program.vars
    dependent = [
        name
        for name, var in vars_.items()
        if var.origin in (Origin.OP, Origin.BODY_INPUT)
        and (name not in unbound_vars or var.shape != unbound_vars[name].shape)
    ]
    if not dependent:
        return loaded
    names = ", ".join(name[:_MAX_NAME] for name in dependent[:3])
    more = ", ..." if len(dependent) > 3 else ""
    note = f"shapes depend on the given input values, other values may need more memory: {names}{more}"
    return replace(loaded, observed=True, warnings=(*loaded.warnings, note))


def _read_consistent(source: LazyModel, bindings: Bindings) -> Loaded:
    """Read a program; while nodes contradict declared types, read it again without these types.

    A warning names the first contradiction. Values on which nodes disagree without any declared types get no
    shape. Blocks that are never run may contradict themselves, and their values take no memory.

    Raises:
        SettingsError: a shape was given that the value's node contradicts.
    """
    loaded = read_program(source, bindings)
    first_found = remaining = _contradictions_in_run_blocks(source, loaded)
    untrusted: frozenset[str] = frozenset()  # names of the values of all contradictions so far
    # A wrong declaration may hide another one, which only the next reading finds.
    while new_names := frozenset(c.var.name for c in remaining) - untrusted:
        untrusted |= new_names
        loaded = read_program(source, replace(bindings, untrusted=untrusted))
        remaining = _contradictions_in_run_blocks(source, loaded)
    # ``skipped`` are blocks that are never run. The last reading is right about them, as types may decide them.
    if loaded.skipped:
        loaded = _without_never_run(loaded, bindings.values)
    if not first_found:
        return loaded
    # Of the values that are still contradicted, no declared type was read any more. So two nodes disagree, or a
    # node and a shape that the user gave.
    _reject_wrong_shapes(remaining, bindings)
    more = f" and {len(untrusted) - 1} more" if len(untrusted) > 1 else ""
    warnings = [f"{WRONG_DECLARATIONS}: {first_found[0]}{more}"]
    program = loaded.program
    if remaining:
        program = without_shapes(program, frozenset(c.var.id for c in remaining))
        warnings.append(f"the nodes do not agree on sizes, which are unknown: {remaining[0]}")
    return replace(loaded, program=program, warnings=(*loaded.warnings, *warnings))


def _contradictions_in_run_blocks(source: LazyModel, loaded: Loaded) -> list[Contradiction]:
    """Return the contradictions in all blocks but those that are never run."""
    from memplan_cli.onnx_io.shapes.contradictions import contradictions

    return [
        contradiction
        for contradiction in contradictions(source.model, loaded.program)
        if not is_inside(contradiction.var.block, loaded.skipped)
    ]


def _without_never_run(loaded: Loaded, input_values: Mapping[str, TensorProto]) -> Loaded:
    """Return a program in which the blocks in ``loaded.skipped``, at least one, take no memory.

    No run enters these blocks. A warning is added if input values were given: with other values the blocks may
    run.
    """
    program = without_memory_of(loaded.program, loaded.skipped)
    if not input_values:
        return replace(loaded, program=program)
    count, first = len(loaded.skipped), loaded.skipped[0][:_MAX_NAME]
    subject = f"{count} subgraphs are" if count > 1 else "one subgraph is"
    verb = "take" if count > 1 else "takes"
    note = f"{subject} never run with the values given, and {verb} no memory: {first!r}"
    return replace(loaded, program=program, warnings=(*loaded.warnings, note))


def _reject_wrong_shapes(contradictions: Sequence[Contradiction], bindings: Bindings) -> None:
    """Raise `SettingsError` if the shape of a contradicted value was given by the user."""
    for contradiction in contradictions:
        var = contradiction.var
        # The user may have given the shape by name or by ``<block path>/<name>``, which is the id.
        if not bindings.shapes.keys().isdisjoint((var.name, var.id)):
            raise SettingsError(
                f"the shape given for {var.name!r} cannot be right: {contradiction}",
                hint="leave it out, or give the one that its node makes",
            )


def without_shapes(program: Program, values: Collection[VarId]) -> Program:
    """Return a program in which these values, and all that are computed from them, have no shape."""
    unknown = set(values)
    _add_dependents(program.body, unknown)
    vars_ = {
        name: var._replace(shape=None) if name in unknown else var
        for name, var in program.vars.items()
    }
    return replace(program, vars=vars_)


def _add_dependents(block: Block, unknown: set[VarId]) -> None:
    """Add to ``unknown`` what the ops of a block, and of its subgraphs, compute from unknown values.

    An op depends on an unknown value if it reads the value, or if a subgraph of the op contains it. Then all
    values of its subgraphs are unknown too: an iteration passes them to the next one.
    """
    for op in block.ops:
        is_dependent = not unknown.isdisjoint(op.inputs)
        for body in op.bodies:
            _add_dependents(body, unknown)
            # A subgraph may return a captured value without an op, so its outputs are tested too.
            body_values = (*body.outputs, *_values_in(body))
            is_dependent = is_dependent or not unknown.isdisjoint(body_values)
        if is_dependent:
            unknown.update(var for var in op.outputs if var)
            for body in op.bodies:
                unknown.update(_values_in(body))


def _values_in(block: Block) -> Iterator[VarId]:
    """Yield the values that a block and its subgraphs, at any depth, define."""
    yield from block.inputs
    for op in block.ops:
        yield from (var for var in op.outputs if var)
        for body in op.bodies:
            yield from _values_in(body)
