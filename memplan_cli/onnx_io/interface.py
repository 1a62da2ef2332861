"""A model's inputs, their types, and its free dims."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import InputShape
from memplan_cli.core.operators import canonical_domain
from memplan_cli.core.selection import nearest
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.core.symbolic.polynomials import as_name, quoted
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.metadata import PREFIX
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.types import read_shape, tensor_type, type_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from onnx import ModelProto, TypeProto, ValueInfoProto

    from memplan_cli.core.program import Dim, Shape

_SHOWN = 5
"""Names in one message: models have up to thousands of inputs."""

_LONGEST = 100
"""Characters of a name in a message."""


def opset_versions(model: ModelProto) -> Mapping[str, int]:
    """Return the version of each operator domain that a model uses; ``""`` is the standard one."""
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = canonical_domain(opset.domain)
        versions[domain] = max(opset.version, versions.get(domain, 0))
    return versions


_OVERRIDING_IR = 4
"""From this version of the format on, a weight among the inputs is one that may be fed."""

_NO_NAME = re.compile(r"\s*(\?|-1|None|unk__\d+)?\s*")
"""What exporters write for a dim that they have no name for."""

_OUR_NAME = re.compile(r"_dim\d+_*$")
"""How a dim is called for which there is no name."""


def names_nothing(text: str) -> bool:
    """Whether a dim's name is none: wherever it stands again, it is another dim."""
    return _NO_NAME.fullmatch(text) is not None


def input_dims(value: ValueInfoProto, taken: Collection[str] = ()) -> tuple[Dim, ...]:
    """Return the dims of an input, each free one with a name that it can be bound by."""
    return tensor_dims(value, value.type.tensor_type, taken)


def names_taken(model: ModelProto) -> frozenset[str]:
    """Return the dims' names in a model that could be taken for those of nameless ones.

    In a file that memplan wrote, what stands behind the inputs are our own names for them.
    """
    ours = any(entry.key == f"{PREFIX}plan" for entry in model.metadata_props)
    return frozenset(
        str(dim.dim_param)
        for graph in ([model.graph] if ours else graphs(model.graph))
        for value in (*graph.input, *([] if ours else (*graph.output, *graph.value_info)))
        for dim in value.type.tensor_type.shape.dim
        if _OUR_NAME.search(dim.dim_param)
    )


def tensor_dims(
    value: ValueInfoProto, tensor: TypeProto.Tensor, taken: Collection[str] = ()
) -> tuple[Dim, ...]:
    """Return the dims of a value that is, or is made of, tensors of a type.

    Where the model has no name for a dim of a tensor, it is called after the value:
    ``x_dim0``, or ``x_dim0_`` where that name is ``taken`` by another dim. What is only made
    of tensors may have as many such dims as tensors: None.
    """
    is_tensor = value.type.HasField("tensor_type")
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else str(dim.dim_param)
        if not names_nothing(dim.dim_param)
        else _unlike(f"{value.name}_dim{axis}", taken)
        if is_tensor
        else None
        for axis, dim in enumerate(tensor.shape.dim)
    )


def _unlike(name: str, taken: Collection[str]) -> str:
    return _unlike(f"{name}_", taken) if name in taken else name


def input_symbols(model: ModelProto) -> Mapping[str, frozenset[str]]:
    """Return the symbols in each text that is a dim of an input.

    Dims of inputs are names, whatever their letters (``sequence-length``), unless all that is
    in one is the name of another one: then it is an expression.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    taken = names_taken(model)
    texts = {
        dim
        for value in model.graph.input
        if value.name not in weights
        for dim in input_dims(value, taken)
        if isinstance(dim, str)
    }
    found = {text: symbols_of(text) for text in texts}
    plain = frozenset(text for text in texts if found[text] == {text})
    return {
        text: inside if inside <= plain else frozenset({as_name(text)})
        for text, inside in found.items()
    }


def fed_inputs(model: ModelProto) -> tuple[ValueInfoProto, ...]:
    """Return the graph inputs that have no value in the model, in graph order."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(value for value in model.graph.input if value.name not in weights)


def free_dims(model: ModelProto) -> dict[str, bool]:
    """Return the symbols in the shapes of what a run is fed, each with whether it leads.

    A leading dim comes first in the shape of some input: it counts samples, as a rule.
    """
    found: dict[str, bool] = {}
    symbols, taken = input_symbols(model), names_taken(model)
    for value in fed_inputs(model):
        dims = tensor_dims(value, tensor_type(value)[1], taken)
        for position, dim in enumerate(dims):
            for symbol in sorted(symbols.get(str(dim), symbols_of(dim))):
                found[symbol] = found.get(symbol, False) or (position == 0 and len(dims) > 1)
    return found


def open_inputs(model: ModelProto) -> tuple[InputShape, ...]:
    """Return the tensors that a caller feeds and that have a dim without a number."""
    symbols = input_symbols(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    found = (
        InputShape(value.name, tuple(_written(dim, symbols) for dim in input_dims(value)))
        for value in model.graph.input
        if value.name not in weights and value.type.HasField("tensor_type")
    )
    return tuple(each for each in found if not all(isinstance(d, int) for d in each.shape))


def _written(dim: Dim, symbols: Mapping[str, frozenset[str]]) -> Dim:
    """Return a dim as expressions have it: a name of any letters is quoted there."""
    if not isinstance(dim, str) or symbols.get(dim, {dim}) != {name := as_name(dim)}:
        return dim
    return quoted(name)


def other_inputs(original: ModelProto, rewritten: ModelProto) -> tuple[str, ...]:
    """Say how the inputs of a rewritten model differ from its original's, in words.

    Inputs with a value in the model need not be fed. Types are compared, and dims that
    both models have numbers for; empty where one feed serves both.
    """
    mine, theirs = _inputs(original), _inputs(rewritten)
    fed, wanted = _fed(original), _fed(rewritten)
    words = []
    only_mine = [name for name in fed if name not in theirs]
    only_theirs = [name for name in wanted if name not in mine]
    if only_mine:
        words.append(f"only the original takes {_some(only_mine)}")
    if only_theirs:
        words.append(f"only the written model takes {_some(only_theirs)}")
    changed = [
        f"{name[:_LONGEST]!r} is {_text(mine[name])} in the original and "
        f"{_text(theirs[name])} in the written model"
        for name in fed
        if name in theirs and not _is_alike(mine[name], theirs[name])
    ]
    return (*words, *changed[:_SHOWN])


def value_names(model: ModelProto) -> frozenset[str]:
    """Return the names of all inputs and results, in whatever block they stand."""
    found: set[str] = set()
    for graph in graphs(model.graph):
        found.update(value.name for value in graph.input)
        found.update(name for node in graph.node for name in node.output if name)
    return frozenset(found)


def dim_names(model: ModelProto) -> frozenset[str]:
    """Return the names that dims can be bound by, in whatever block they stand."""
    inputs = input_symbols(model)
    found = set().union(*inputs.values())
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for declared in value.type.tensor_type.shape.dim:
                text = declared.dim_param
                if text not in inputs and not names_nothing(text):
                    found |= symbols_of(text)
    return frozenset(found)


def known_dims(model: ModelProto, shapes: Iterable[Shape]) -> frozenset[str]:
    """Return the names that a model's dims, and those of shapes given for it, are bound by."""
    return dim_names(model).union(*(symbols_of(dim) for shape in shapes for dim in shape))


def reject_unknown_dims(
    model: ModelProto, wanted: Iterable[str], shapes: Iterable[Shape] = ()
) -> None:
    """Reject a binding of a dim that a model does not have: it would bind nothing.

    Args:
        model: The model.
        wanted: Names that values are given for.
        shapes: Shapes given along with them, whose names count too.

    Raises:
        SettingsError: naming the dims there are, and the nearest of them.
    """
    wanted = tuple(wanted)
    if not wanted:
        return
    names = known_dims(model, shapes)
    for name in wanted:
        if name not in names:
            there = f"its dims are {_listed(sorted(names))}" if names else "it has no free dim"
            raise SettingsError(
                f"no dim is called {name!r}: {there}", hint=nearest(name, names)
            )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:_LONGEST] for name in names[:_SHOWN]) + more


def _inputs(model: ModelProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in model.graph.input}


def _fed(model: ModelProto) -> list[str]:
    """Return the inputs that nobody but the caller has a value for, in order."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _some(names: Iterable[str]) -> str:
    listed = [repr(name[:_LONGEST]) for name in names]
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_alike(one: ValueInfoProto, other: ValueInfoProto) -> bool:
    """Whether one tensor can be fed to both."""
    if type_name(one.type) != type_name(other.type):
        return False
    mine, theirs = read_shape(one), read_shape(other)
    if mine is None or theirs is None:
        return True
    return len(mine) == len(theirs) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(mine, theirs, strict=True)
    )


def _text(value: ValueInfoProto) -> str:
    return f"{type_name(value.type)}{_dims(read_shape(value))}"


def _dims(shape: Shape | None) -> str:
    if shape is None:
        return ""
    return f"[{','.join('?' if dim is None else str(dim)[:_LONGEST] for dim in shape)}]"


def forget_constant_inputs(model: ModelProto) -> None:
    """Let a model of before IR 4 have inputs only for what is fed, in place.

    There each weight is an input too, of a subgraph as well, and a constant all the same.
    """
    if model.ir_version >= _OVERRIDING_IR:
        return
    for graph in graphs(model.graph):
        weights = {tensor.name for tensor in graph.initializer}
        fed = [value for value in graph.input if value.name not in weights]
        del graph.input[:]
        graph.input.extend(fed)
    model.ir_version = _OVERRIDING_IR
