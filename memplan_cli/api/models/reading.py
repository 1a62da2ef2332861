"""Sizes that inference does not find: which they are, and a model read again with those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, Program, VarId, intermediates
from memplan_cli.core.quantities import counted
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.core.symbolic.polynomials import format_atom
from memplan_cli.core.symbolic.sizes import BITS, size_of
from memplan_cli.onnx_io.shapes.reading import Loaded, read_checked

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.onnx_io.shapes.bindings import Bindings, Known


def read_observed(
    source: LazyModel, bindings: Bindings, run_types: Known, before: Program, *, inputs: str
) -> Loaded:
    """Return a model read again with the types and shapes that were observed in one run.

    Results of ops in subgraphs that the run did not enter are made empty. Warnings name these results, and
    those whose size only the run shows.

    Args:
        source: the model.
        bindings: the dims, shapes and input values of the run.
        run_types: the types and shapes of values in the run; of several shapes, the largest.
        before: the program as it was read without the run. It may be symbolic in dims for which
            ``bindings`` has numbers.
        inputs: describes the run's inputs, for the warning.
    """
    # Numbers for the symbols that inference made up, such as the count of a NonZero.
    dims = {**_observed_symbols(before, run_types), **bindings.dims}
    loaded = read_checked(source, replace(bindings, dims=dims, known=run_types))
    # Inference drops some of the observed shapes, such as those of values that grow in a loop.
    program = _with_missing_shapes(loaded.program, run_types)
    results_without_size = unresolved_results(before, bindings.dims)
    warnings = (*loaded.warnings, *_warning_of_learned(results_without_size, program, inputs))
    loaded = replace(loaded, program=program, warnings=warnings)
    loaded = _with_unexecuted_results_empty(loaded, run_types)
    # An input without a rank had no size before the run either.
    inputs_without_rank = (
        identity
        for identity, var in before.vars.items()
        if var.origin is Origin.INPUT and var.shape is None
    )
    observed_vars = frozenset((*results_without_size, *inputs_without_rank))
    return replace(loaded, observed=True, observed_vars=observed_vars)


def _warning_of_learned(
    unresolved: Sequence[VarId], program: Program, inputs: str
) -> tuple[str, ...]:
    """Return a warning that names the results whose sizes come from one run; empty if there are none.

    ``unresolved`` had no size before the run. ``program`` was read with the shapes of the run.
    """
    still_missing = set(missing_sizes(program))
    learned = [var for var in unresolved if var not in still_missing]
    if not learned:
        return ()
    warning = (
        f"shapes of {counted(len(learned), 'tensor')} were learned from one run on {inputs}; other data "
        f"may need more: {_first_names(learned)}"
    )
    return (warning,)


def missing_sizes(program: Program) -> tuple[VarId, ...]:
    """Return the results of ops whose size in bytes is unknown.

    Results of a type that never has a size in bytes, such as strings, are not missing.
    """
    return tuple(
        identity
        for identity in _op_results(program)
        if (var := program.vars[identity]).dtype in (*BITS, "unknown")
        and size_of(var.shape, var.dtype) is None
    )


def unresolved_results(
    program: Program, input_dims: Collection[str] = ()
) -> tuple[VarId, ...]:
    """Return the results of ops whose size stays unknown if the dims in ``input_dims`` get numbers.

    A result's size is missing (`missing_sizes`), or its shape has a symbol that is not in
    ``input_dims``. Without ``input_dims``, these are all results whose size is no number yet.
    """
    input_symbols = frozenset(input_dims)
    symbolic = (
        identity
        for identity in _op_results(program)
        if any(
            not symbols_of(dim) <= input_symbols for dim in program.vars[identity].shape or ()
        )
    )
    return tuple(dict.fromkeys((*missing_sizes(program), *symbolic)))


def _with_missing_shapes(program: Program, observed: Known) -> Program:
    """Return a program in which each result of unknown or symbolic size has the dtype and shape of ``observed``.

    Shape inference, which began with the observed shapes, drops them for values that grow in each iteration of
    a loop, and for values whose shape in the file is wrong.
    """
    changed = {}
    for identity in unresolved_results(program):
        if identity in observed:
            dtype, shape = observed[identity]
            changed[identity] = program.vars[identity]._replace(dtype=dtype, shape=shape)
    return replace(program, vars={**program.vars, **changed})


def _with_unexecuted_results_empty(loaded: Loaded, observed: Known) -> Loaded:
    """Give shape ``(0,)`` to results without a size in numbers in blocks that the run did not enter.

    Nothing was observed in such blocks. A warning names the results. Results of a type without a size
    in bytes, such as strings, stay as they are.
    """
    program = loaded.program
    entered = {program.vars[VarId(var)].block for var in observed if var in program.vars}
    unexecuted = tuple(
        identity
        for identity in unresolved_results(program)
        if (var := program.vars[identity]).block not in entered and var.dtype in BITS
    )
    if not unexecuted:
        return loaded
    warning = (
        f"{len(unexecuted)} tensors are in subgraphs that this run did not execute, and count "
        f"as nothing: {_first_names(unexecuted)}"
    )
    empty = {var: program.vars[var]._replace(shape=(0,)) for var in unexecuted}
    program = replace(program, vars={**program.vars, **empty})
    return replace(loaded, program=program, warnings=(*loaded.warnings, warning))


def _first_names(names: Sequence[VarId]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _observed_symbols(program: Program, observed: Known) -> dict[str, int]:
    """Return the largest number observed for each symbol (``u0``) that is a whole dim of a shape.

    One symbol has several numbers if iterations of a loop differ.
    """
    largest: dict[str, int] = {}
    for var in program.vars.values():
        if var.id not in observed or var.shape is None:
            continue
        _, observed_shape = observed[var.id]
        if len(observed_shape) != len(var.shape):
            continue
        for dim, value in zip(var.shape, observed_shape, strict=True):
            if isinstance(dim, str) and isinstance(value, int):
                for name in symbols_of(dim):
                    if dim == format_atom(name):  # ``u0``, not ``2*u0``
                        largest[name] = max(largest.get(name, 0), value)
    return largest


def _op_results(program: Program) -> tuple[VarId, ...]:
    """Return the intermediates, and the graph outputs that ops produce."""
    outputs = (var for var in program.body.outputs if program.vars[var].origin is Origin.OP)
    return (*intermediates(program), *dict.fromkeys(outputs))
