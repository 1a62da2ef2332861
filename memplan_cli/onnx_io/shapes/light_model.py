"""The light copy of a model on which shapes are inferred: without weights, with dims, shapes and values bound.

Weights become inputs, except the few small ones that may decide shapes. So a model of any size is
inferred in the memory of its graph, and no weight data is read.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from memplan_cli.core.program import var_id
from memplan_cli.core.selection import nearest
from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, symbols_of
from memplan_cli.core.symbolic.polynomials import format_atom
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.graph_editor import keep
from memplan_cli.onnx_io.interface import (
    as_expression,
    input_symbols,
    is_nameless,
    names_taken,
    tensor_dims,
)
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.lattice import (
    is_complete,
    merged,
    shape_in,
    tensor_type,
    with_shape,
)
from memplan_cli.onnx_io.traversal import block_paths, graphs
from memplan_cli.onnx_io.types import element_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, TensorProto, TensorShapeProto, ValueInfoProto

    from memplan_cli.core.bindings import Feed, Feeds
    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.bindings import Bindings

MAX_SHAPE_ELEMENTS = 1024
"""Elements up to which a weight, or the value given of an input, may decide a shape."""

OLDEST_IR = 8
"""Least IR version of a model for inference. Below 4 weights must be inputs, and inference ignores their data."""


def light_copy(model: ModelProto) -> ModelProto:
    """Return a copy of a model for type inference: its large weights become graph inputs without data.

    Only what inference reads is copied. The model has no functions: they were inlined when it was read.
    """
    light = type(model)()
    light.ir_version = max(model.ir_version, OLDEST_IR)
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name
    # A file may list its weights as inputs too.
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in weights)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.node.extend(model.graph.node)
    for tensor in model.graph.initializer:
        if _may_decide_a_shape(tensor):
            graph.initializer.append(tensor)
        else:
            graph.input.append(_typed_value(tensor.name, tensor.data_type, tuple(tensor.dims)))
    for sparse in model.graph.sparse_initializer:
        values = sparse.values
        graph.input.append(_typed_value(values.name, values.data_type, tuple(sparse.dims)))
    return light


def _may_decide_a_shape(tensor: TensorProto) -> bool:
    """Whether a weight is small and stored in the model, so that inference may use its values."""
    elements = prod(max(dim, 0) for dim in tensor.dims)
    return elements <= MAX_SHAPE_ELEMENTS and bool(tensor.data_location != tensor.EXTERNAL)


def _typed_value(name: str, elem_type: int, shape: Shape) -> ValueInfoProto:
    value: ValueInfoProto = messages().ValueInfoProto(name=name)
    value.type.CopyFrom(tensor_type(elem_type, shape))
    return value


def name_free_dims(model: ModelProto, taken: Collection[str]) -> None:
    """Give every free dim of the inputs one name by which it can be bound, in place.

    - A dim without a name gets one of its own that is not in ``taken``, such as ``x_dim0``.
    - A negative number, or a text that is no name (``?``), is removed from all other values.
    - A name that looks like arithmetic (``sequence-length``) is quoted in the whole model.
    """
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        names_or_numbers = tensor_dims(value, value.type.tensor_type, taken)  # with new names
        for dim, name_or_number in zip(dims, names_or_numbers, strict=True):
            if isinstance(name_or_number, str):
                dim.dim_param = name_or_number
    for graph in graphs(model.graph):
        for dim in _declared_dims(graph):  # those of the model's inputs have names by now
            has_negative_number = dim.dim_value < 0
            has_text_without_name = dim.dim_param and is_nameless(dim.dim_param)
            if has_negative_number or has_text_without_name:
                dim.Clear()
    _quote_odd_names(model)


def _declared_dims(graph: GraphProto) -> Iterator[TensorShapeProto.Dimension]:
    """Yield the dims of all tensors whose type a graph declares."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim


def _quote_odd_names(model: ModelProto) -> None:
    """Quote dim names of inputs that look like arithmetic (``sequence-length``), in all graphs and in place."""
    symbols_by_text = input_symbols(model)
    # ``past+seq`` stays as it is if ``past`` and ``seq`` are dims of inputs too. Else it is one name, and quoted.
    quoted = {text: as_expression(text, symbols_by_text) for text in symbols_by_text}
    if all(text == expression for text, expression in quoted.items()):
        return
    for graph in graphs(model.graph):
        for dim in _declared_dims(graph):
            if dim.dim_param in quoted:
                dim.dim_param = quoted[dim.dim_param]


def sizes_of_dims(model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes of dims that follow from shapes of inputs, by name, for a model as it was read.

    A dim without a name has the name that `name_free_dims` gives it.

    Raises:
        SettingsError: a shape contradicts the model's own, or two give a dim different sizes.
    """
    if not shapes:
        return {}
    interface = type(model)()  # a copy of the inputs, whose dims get names
    interface.graph.input.extend(model.graph.input)
    name_free_dims(interface, names_taken(model))
    return sizes_of_named_dims(interface, shapes)


def sizes_of_named_dims(model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes of dims that follow from shapes of inputs, after `name_free_dims` has changed the model.

    Raises:
        SettingsError: a shape contradicts the model's own, or two give a dim different sizes.
    """
    sizes: dict[str, int] = {}
    first_input: dict[str, str] = {}
    for value in model.graph.input:
        if value.name not in shapes:
            continue
        for symbol, size in _sizes_of_symbols(value, shapes[value.name]):
            first = first_input.setdefault(symbol, value.name)
            if sizes.setdefault(symbol, size) != size:
                raise SettingsError(
                    f"dim {symbol!r} is {sizes[symbol]} in input {first!r} and {size} in "
                    f"input {value.name!r}",
                    hint="give both one size; if they are two dims, rename one in the model",
                )
    return sizes


def _sizes_of_symbols(value: ValueInfoProto, shape: Shape) -> Iterator[tuple[str, int]]:
    """Yield the named dims of an input, and the size that a given shape has there.

    Expressions are left out: their symbols have to be bound by name.

    Raises:
        SettingsError: the shape contradicts the input's own.
    """
    tensor = value.type.tensor_type
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(shape):
        raise SettingsError(
            f"input {value.name!r} has {len(tensor.shape.dim)} dims, the shape given has {len(shape)}"
        )
    # An input of unknown rank has no dims, and tells nothing.
    for dim, size in zip(tensor.shape.dim, shape, strict=False):
        if not isinstance(size, int):
            continue
        if dim.HasField("dim_value") and dim.dim_value != size:
            raise SettingsError(
                f"input {value.name!r} is fixed to {dim.dim_value} where the shape "
                f"given says {size}"
            )
        symbol = _single_symbol(dim.dim_param)
        if symbol is not None:
            yield symbol, size


def _single_symbol(text: str) -> str | None:
    """Return the symbol that a dim consists of; None for an expression, and for an empty text."""
    symbols = symbols_of(text or None)
    return next((each for each in symbols if format_atom(each) == canonical_dim(text)), None)


def bind_model(
    light: ModelProto, bindings: Bindings, dims: Mapping[str, int]
) -> list[ValueInfoProto]:
    """Apply to a light copy, in place, all that is known about its shapes besides the model.

    Args:
        light: The light copy; its free dims have names (`name_free_dims`).
        bindings: Shapes and values that the user gave, and types that a runtime observed.
        dims: The sizes of dims by name, also of those that follow from given shapes.

    Returns:
        The inputs that became constants; `as_inputs` restores them.

    Raises:
        SettingsError: a shape is given for a name that the model does not have.
    """
    for graph in graphs(light.graph):
        bind_graph(graph, dims)
    shapes = {
        name: tuple(bind_dim(dim, dims) for dim in shape)
        for name, shape in bindings.shapes.items()
    }
    if shapes:
        _set_user_shapes(light.graph, shapes)
    if bindings.known:
        _add_observed_types(light.graph, bindings)
    return _as_constants(light, bindings.values)


def bind_graph(graph: GraphProto, dims: Mapping[str, int]) -> None:
    """Replace bound symbols in the dims of one graph by numbers, in place; subgraphs are left as they are."""
    if not dims:
        return
    for dim in _declared_dims(graph):
        if dim.dim_param:
            bound = bind_dim(canonical_dim(dim.dim_param), dims)
            if isinstance(bound, int):
                dim.dim_value = bound
            elif bound is not None:
                dim.dim_param = bound


def _add_observed_types(top: GraphProto, bindings: Bindings) -> None:
    """Fill in what the model does not declare from the observed types (``bindings.known``), in place.

    Shapes that the user gave are declared already. Untrusted names, whose nodes contradict what was known of
    them, get nothing in any graph.
    """
    for path, graph in block_paths(top):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        names = dict.fromkeys(v.name for v in graph.input)
        names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
        for name in names:
            observed = bindings.known.get(var_id(path, name))
            if observed is None or name in bindings.untrusted:
                continue
            dtype, shape = observed
            value = _typed_value(name, element_type(dtype), shape)
            if name not in values:
                values[name] = graph.value_info.add()
                values[name].CopyFrom(value)
            elif not is_complete(values[name].type):
                values[name].type.CopyFrom(merged(values[name].type, value.type))


def _set_user_shapes(top: GraphProto, wanted: Mapping[str, Shape]) -> None:
    """Set the shapes given for values of a graph and its subgraphs, in place.

    A key ``<block path>/<name>`` stands for the value of one graph, a bare name for the values of
    that name in all graphs.

    Raises:
        SettingsError: a key matches no value.
    """
    unmatched, known_names = dict.fromkeys(wanted), set[str]()
    for path, graph in block_paths(top):
        block_names = {v.name for v in graph.input}
        block_names.update(name for node in graph.node for name in node.output if name)
        for key, shape in wanted.items():
            name = key.removeprefix(f"{path}/") if path else key
            if name in block_names:
                _set_shape(graph, name, shape)
                unmatched.pop(key, None)
        known_names |= block_names
    if unmatched:
        key = next(iter(unmatched))
        raise SettingsError(
            f"a shape is given for {key!r}, which is not a value of the model",
            hint=nearest(key, known_names),
        )


def _set_shape(graph: GraphProto, name: str, shape: Shape) -> None:
    """Set the shape of a value, in place; it is declared if the graph does not do so."""
    values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    value: ValueInfoProto | None = values.get(name)
    if value is None:
        value = graph.value_info.add()
        value.name = name
    if value.type.WhichOneof("value") is None:
        value.type.tensor_type.SetInParent()  # a tensor of unknown element type
    value.type.CopyFrom(with_shape(value.type, shape))


# Values of inputs as constants.


def small_values(feeds: Feeds) -> Mapping[str, TensorProto]:
    """Return the small tensors among feeds, by name.

    A single number that fills an input of any shape is returned as a tensor of rank 0.
    """
    tensors = {name: _small_tensor(feed) for name, feed in feeds.items()}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _small_tensor(feed: Feed) -> TensorProto | None:
    """Return the value of a feed; None unless it is one small tensor of a type that numpy has.

    A feed without a shape is a number that fills an input of any shape; it gets rank 0.
    """
    if (
        feed.container != "tensor"
        or len(feed.files) != 1
        or prod(feed.shape or ()) > MAX_SHAPE_ELEMENTS
    ):
        return None
    import numpy as np
    from onnx import numpy_helper

    array = np.load(feed.files[0], allow_pickle=False)
    if array.dtype.kind == "V":  # a type that numpy does not have, such as bfloat16
        return None
    # `numpy_helper` takes texts only as objects.
    array = array.astype(object) if array.dtype.kind == "U" else array
    return numpy_helper.from_array(array if feed.shape is not None else array.reshape(()))


def _as_constants(
    model: ModelProto, values: Mapping[str, TensorProto]
) -> list[ValueInfoProto]:
    """Turn the inputs with given values into initializers, in place; return the removed inputs.

    Unknown dims of a removed input get the sizes of its value, names of dims are kept. An input whose type or
    shape its value does not fit stays an input.
    """
    graph = model.graph
    removed: dict[str, ValueInfoProto] = {}
    for value in graph.input:
        tensor = _initializer_for(value, values[value.name]) if value.name in values else None
        if tensor is not None:
            graph.initializer.append(tensor)
            shape_of_value = with_shape(value.type, tuple(tensor.dims))
            value.type.CopyFrom(merged(value.type, shape_of_value))
            removed[value.name] = value
    keep(graph.input, lambda value: value.name not in removed)
    return list(removed.values())


def _initializer_for(graph_input: ValueInfoProto, given: TensorProto) -> TensorProto | None:
    """Return a given value as an initializer in place of a graph input; None if type or shape do not fit.

    A value of rank 0 is repeated to fill an input whose dims are all numbers. It does not fit an input of
    more than `MAX_SHAPE_ELEMENTS` elements.
    """
    import numpy as np
    from onnx import numpy_helper

    if graph_input.type.tensor_type.elem_type != given.data_type:
        return None
    array: Any = numpy_helper.to_array(given)
    shape = shape_in(graph_input.type)
    if shape is not None:
        sizes = [dim for dim in shape if isinstance(dim, int)]
        is_fixed = len(sizes) == len(shape)
        if not given.dims and is_fixed and prod(sizes) <= MAX_SHAPE_ELEMENTS:
            array = np.full(sizes, array)
        if len(array.shape) != len(shape) or not all(
            isinstance(dim, str) or dim in (None, length)
            for dim, length in zip(shape, array.shape, strict=True)
        ):
            return None
    return numpy_helper.from_array(array, graph_input.name)


def as_inputs(model: ModelProto, removed: Sequence[ValueInfoProto]) -> ModelProto:
    """Make inputs again of those that `bind_model` turned into initializers, in place; return the model.

    The inputs come after the others, so the order of the inputs may change.
    """
    if not removed:
        return model
    names = {value.name for value in removed}
    keep(model.graph.initializer, lambda tensor: tensor.name not in names)
    model.graph.input.extend(removed)
    return model
