"""The inputs of a model: which ones are fed, their types, and the names of their free dims."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import InputShape
from memplan_cli.core.operators import canonical_domain
from memplan_cli.core.selection import nearest
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.core.symbolic.polynomials import as_name, quote_name
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.metadata import PREFIX, metadata_of
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.types import (
    container_and_tensor_type,
    read_shape,
    type_name,
    without_container,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from onnx import ModelProto, TypeProto, ValueInfoProto

    from memplan_cli.core.program import Dim, Shape

_MAX_SHOWN = 5
"""Most names in one message: models have up to thousands of inputs."""

_MAX_NAME = 100
"""Most characters of a name in a message."""


def opset_versions(model: ModelProto) -> Mapping[str, int]:
    """Return the opset of each domain that a model imports; ``""`` is the standard domain."""
    versions: dict[str, int] = {}
    for opset in model.opset_import:
        domain = canonical_domain(opset.domain)
        versions[domain] = max(opset.version, versions.get(domain, 0))
    return versions


_OVERRIDING_IR = 4
"""From this IR version on, a weight that is a graph input too may be overridden by the caller."""

_NO_NAME = re.compile(r"\s*(\?|-1|None|unk__\d+)?\s*")
"""What exporters write for a dim without a name."""

_GENERATED_ENDING = re.compile(r"_dim\d+_*$")
"""How the names end that memplan gives to dims without one, such as ``x_dim0``."""


def is_nameless(text: str) -> bool:
    """Whether the text of a dim is no name: dims with the same text are independent of each other."""
    return _NO_NAME.fullmatch(text) is not None


def names_taken(model: ModelProto) -> frozenset[str]:
    """Return the names of a model's dims that end like ``x_dim0`` and must not be given to a nameless dim.

    In a file that memplan wrote, only names of the main graph's inputs count: memplan leaves inputs as they
    are, so their names are the user's. Other values may have names that memplan gave in an earlier run, and
    it gives the same names again.
    """
    is_planned = f"{PREFIX}plan" in metadata_of(model)
    if is_planned:
        values = list(model.graph.input)
    else:
        values = [
            value
            for graph in graphs(model.graph)
            for value in (*graph.input, *graph.output, *graph.value_info)
        ]
    return frozenset(
        str(dim.dim_param)
        for value in values
        for dim in value.type.tensor_type.shape.dim
        if _GENERATED_ENDING.search(dim.dim_param)
    )


def tensor_dims(
    value: ValueInfoProto, tensor: TypeProto.Tensor, taken: Collection[str] = ()
) -> tuple[Dim, ...]:
    """Return the dims of a value: ints, names, or None.

    A nameless dim of a tensor, or one with a negative number, gets a name from the value and axis:
    ``x_dim0``, or ``x_dim0_`` if another dim has that name. In a container it is None: each tensor of a
    sequence may have another size.

    Args:
        value: The value.
        tensor: Its tensor type, or that of the tensors in its container, a sequence or optional.
        taken: Names of other dims (see `names_taken`).
    """
    is_tensor = value.type.HasField("tensor_type")
    dims: list[Dim] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif not is_nameless(dim.dim_param):
            dims.append(str(dim.dim_param))
        elif is_tensor:
            dims.append(_unused_name(f"{value.name}_dim{axis}", taken))
        else:
            dims.append(None)
    return tuple(dims)


def _unused_name(name: str, taken: Collection[str]) -> str:
    """Return a name, with underscores appended until it is not in ``taken``."""
    return _unused_name(f"{name}_", taken) if name in taken else name


def input_symbols(model: ModelProto) -> Mapping[str, frozenset[str]]:
    """Return the symbols of each symbolic dim of the fed tensors, by the text of the dim.

    A text is an expression if all names in it are dims of inputs themselves, and else one symbol. If ``past`` and
    ``seq`` are dims, ``past+seq`` has both symbols, and ``max-length`` is one.
    """
    taken = names_taken(model)  # a dim without a name gets one that is not taken
    texts = {
        dim
        for value in fed_inputs(model)
        for dim in tensor_dims(value, value.type.tensor_type, taken)
        if isinstance(dim, str)
    }
    symbols = {text: symbols_of(text) for text in texts}
    plain_names = frozenset(text for text in texts if symbols[text] == {text})
    return {
        text: names if names <= plain_names else frozenset({as_name(text)})
        for text, names in symbols.items()
    }


def fed_inputs(model: ModelProto) -> tuple[ValueInfoProto, ...]:
    """Return the graph inputs without an initializer, in graph order."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(value for value in model.graph.input if value.name not in weights)


def free_dims(model: ModelProto) -> dict[str, bool]:
    """Return the symbols in the dims of the fed inputs, and whether each is a leading dim.

    A leading dim is the first of several dims of some input: usually the batch. A tensor's dim without a name
    is the symbol ``x_dim0`` or the like (see `tensor_dims`).
    """
    is_leading: dict[str, bool] = {}
    symbols_by_text, taken = input_symbols(model), names_taken(model)
    for value in fed_inputs(model):
        _, tensor = container_and_tensor_type(value)
        dims = tensor_dims(value, tensor, taken)
        for axis, dim in enumerate(dims):
            is_first = axis == 0 and len(dims) > 1
            symbols = symbols_by_text.get(str(dim))
            # `input_symbols` has the texts of dims of tensors, but no numbers, and no dims in a sequence or optional.
            if symbols is None:
                symbols = symbols_of(dim)  # none of a number
            for symbol in sorted(symbols):  # the order of a set varies
                is_leading[symbol] = is_first or is_leading.get(symbol, False)
    return is_leading


def open_inputs(model: ModelProto) -> tuple[InputShape, ...]:
    """Return the fed tensors of which a dim is no number; a dim without a name gets one, such as ``x_dim0``."""
    symbols_by_text, taken = input_symbols(model), names_taken(model)
    shapes = (
        InputShape(
            value.name,
            tuple(
                as_expression(dim, symbols_by_text) if isinstance(dim, str) else dim
                for dim in tensor_dims(value, value.type.tensor_type, taken)
            ),
        )
        for value in fed_inputs(model)
        if value.type.HasField("tensor_type")
    )
    return tuple(each for each in shapes if not all(isinstance(d, int) for d in each.shape))


def as_expression(text: str, symbols_by_text: Mapping[str, frozenset[str]]) -> str:
    """Return the text of an input's dim such that a parser of expressions reads it right.

    ``symbols_by_text`` (`input_symbols`) decides whether the text is an expression or one name:

    - ``past+seq`` with the symbols ``past`` and ``seq`` is an expression, and returned as it is.
    - ``max-length`` with the symbol ``max-length`` is a name, and gets backquotes: it would be read as a difference.
    """
    # The text as one symbol. One that looks like a call gets a space: ``min (a, b)``.
    name = as_name(text)
    is_name = symbols_by_text[text] == {name}
    return quote_name(name) if is_name else text


def input_differences(original: ModelProto, rewritten: ModelProto) -> tuple[str, ...]:
    """Describe why feeds of a model may not fit the model that was rewritten from it; empty if they fit.

    Feeds have a tensor for each input without an initializer. An input that lost its initializer counts as
    added. Of the inputs whose types differ, the first `_MAX_SHOWN` are described.
    """
    fed = {value.name: value for value in fed_inputs(original)}
    accepted = {value.name: value for value in rewritten.graph.input}
    removed = [name for name in fed if name not in accepted]
    added = [value.name for value in fed_inputs(rewritten) if value.name not in fed]
    differences = []
    if removed:
        differences.append(f"only the original takes {_quoted_names(removed)}")
    if added:
        differences.append(f"only the written model takes {_quoted_names(added)}")
    changed = [
        f"{name[:_MAX_NAME]!r} is {_type_text(value)} in the original and "
        f"{_type_text(accepted[name])} in the written model"
        for name, value in fed.items()
        if name in accepted and not _accepts_same(value, accepted[name])
    ]
    return (*differences, *changed[:_MAX_SHOWN])


def value_names(model: ModelProto) -> frozenset[str]:
    """Return the names of all inputs and results of a model's graphs."""
    names: set[str] = set()
    for graph in graphs(model.graph):
        names.update(value.name for value in graph.input)
        names.update(name for node in graph.node for name in node.output if name)
    return frozenset(names)


def dim_names(model: ModelProto) -> frozenset[str]:
    """Return the symbols of all declared dims of a model's graphs."""
    symbols_by_text = input_symbols(model)
    symbols = set().union(*symbols_by_text.values())
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for declared in without_container(value.type).tensor_type.shape.dim:
                text = declared.dim_param
                # `symbols_of` reads ``sequence-length`` as a difference, but as the dim of an input it may be
                # one name. So texts of inputs are not read again.
                if text not in symbols_by_text and not is_nameless(text):
                    symbols |= symbols_of(text)
    return frozenset(symbols)


def known_dims(model: ModelProto, shapes: Iterable[Shape]) -> frozenset[str]:
    """Return the symbols of a model's dims, and those in shapes given for its inputs."""
    return dim_names(model).union(*(symbols_of(dim) for shape in shapes for dim in shape))


def reject_unknown_dims(
    model: ModelProto, wanted: Iterable[str], shapes: Iterable[Shape] = ()
) -> None:
    """Refuse bindings of dims that a model does not have; symbols in shapes given for inputs may be bound too.

    Raises:
        SettingsError: a name is unknown; the message lists the dims and the nearest name.
    """
    wanted = tuple(wanted)
    if not wanted:
        return
    names = known_dims(model, shapes)
    for name in wanted:
        if name not in names:
            dims = (
                f"its dims are {_listed([each[:_MAX_NAME] for each in sorted(names)])}"
                if names
                else "all its dims are fixed"
            )
            raise SettingsError(
                f"the model has no dim {name!r}: {dims}", hint=nearest(name, names)
            )


def _listed(names: Sequence[str]) -> str:
    """Return the first `_MAX_SHOWN` names as text, and the number of the others."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more


def _quoted_names(names: Iterable[str]) -> str:
    return _listed([repr(name[:_MAX_NAME]) for name in names])


def _accepts_same(one: ValueInfoProto, other: ValueInfoProto) -> bool:
    """Whether some tensor can be fed to both inputs: equal types, ranks and fixed dims."""
    if type_name(one.type) != type_name(other.type):
        return False
    dims, other_dims = read_shape(one), read_shape(other)
    if dims is None or other_dims is None:
        return True
    return len(dims) == len(other_dims) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(dims, other_dims, strict=True)
    )


def _type_text(value: ValueInfoProto) -> str:
    """Return dtype and shape of an input, such as ``float32[1,?,seq]``."""
    shape = read_shape(value)
    if shape is None:
        return type_name(value.type)
    dims = ["?" if dim is None else str(dim)[:_MAX_NAME] for dim in shape]
    return f"{type_name(value.type)}[{','.join(dims)}]"


def forget_constant_inputs(model: ModelProto) -> None:
    """Remove weights from the graph inputs of a model older than IR 4, in place; set its version to 4.

    In such a model each weight must be an input of its graph too, although it is constant.
    """
    if model.ir_version >= _OVERRIDING_IR:
        return
    for graph in graphs(model.graph):
        weights = {tensor.name for tensor in graph.initializer}
        fed = [value for value in graph.input if value.name not in weights]
        del graph.input[:]
        graph.input.extend(fed)
    model.ir_version = _OVERRIDING_IR
