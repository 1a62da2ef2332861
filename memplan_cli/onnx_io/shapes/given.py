"""What a model says of its shapes before inference: its own annotations, and the user's.

Everything here works on a light copy: weights are stand-ins without data, except the few
small ones that say shapes. So models of any size are inferred in the memory of their
graph, and no weight is ever read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import label, var_id
from memplan_cli.core.selection import nearest
from memplan_cli.core.symbolic.dims import bind_dim, canonical_dim, parse_dim, symbols_of
from memplan_cli.core.symbolic.polynomials import as_name, format_atom, names_in
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import input_dims, input_symbols, names_nothing, names_taken
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.lattice import is_complete, merged, with_shape
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import element_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.bindings import Bindings

SMALL_WEIGHT = 1024
"""Elements up to which a weight's data may say a shape, so that inference sees it."""

_LIGHT_IR = 8
"""Below IR 4, weights must be inputs and inference then ignores their data."""


def light_copy(model: ModelProto) -> ModelProto:
    """Return a copy without the data of weights: the big ones become inputs."""
    light = type(model)()
    light.ir_version = max(model.ir_version, _LIGHT_IR)
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    graph.input.extend(value for value in model.graph.input if value.name not in weights)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    graph.node.extend(model.graph.node)
    for tensor in model.graph.initializer:
        if _says_a_shape(tensor):
            graph.initializer.append(tensor)
        else:
            graph.input.append(_typed(tensor.name, tensor.data_type, tuple(tensor.dims)))
    for sparse in model.graph.sparse_initializer:
        graph.input.append(
            _typed(sparse.values.name, sparse.values.data_type, tuple(sparse.dims))
        )
    return light


def _says_a_shape(tensor: TensorProto) -> bool:
    elements = 1
    for dim in tensor.dims:
        elements *= max(dim, 0)
    return elements <= SMALL_WEIGHT and tensor.data_location != tensor.EXTERNAL


def _typed(name: str, element: int, shape: Shape) -> ValueInfoProto:
    value: ValueInfoProto = messages().ValueInfoProto(name=name)
    value.type.tensor_type.elem_type = element
    value.type.CopyFrom(with_shape(value.type, shape))
    return value


def name_free_dims(model: ModelProto, taken: Collection[str] | None = None) -> None:
    """Give each unnamed free dim of an input a name of its own, so that it can be bound.

    A text that is no name (``?``) says nothing of a result either: there it is taken away.
    ``taken`` names what other dims are called, where the model at hand is not whole.
    """
    taken = names_taken(model) if taken is None else taken
    for value in model.graph.input:
        named = input_dims(value, taken)
        for dim, name in zip(value.type.tensor_type.shape.dim, named, strict=True):
            if isinstance(name, str):
                dim.dim_param = name
    for graph in graphs(model.graph):  # the inputs' own have names by now
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param and names_nothing(dim.dim_param):
                    dim.ClearField("dim_param")
    _quote_names(model)


def _quote_names(model: ModelProto) -> None:
    """Mark names that only look like arithmetic, as ``sequence-length`` does."""
    symbols = input_symbols(model).items()
    odd = {
        text: f"`{as_name(text)}`" for text, inside in symbols if inside != symbols_of(text)
    }
    if not odd:
        return
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param in odd:
                    dim.dim_param = odd[dim.dim_param]


def dims_of_inputs(model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return what shapes of inputs say about the dims of a model, which may be named or not.

    Raises:
        SettingsError: a shape contradicts the model's own.
    """
    if not shapes:
        return {}
    interface = type(model)()
    interface.graph.input.extend(model.graph.input)
    name_free_dims(interface, names_taken(model))
    return dims_from_shapes(interface, shapes)


def dims_from_shapes(model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return what ``--shape input=..`` says about the input's symbols.

    Raises:
        SettingsError: the shape contradicts the model's own.
    """
    found: dict[str, int] = {}
    whose: dict[str, str] = {}
    for value in model.graph.input:
        wanted, given = shapes.get(value.name), value.type.tensor_type.shape.dim
        if wanted is None:
            continue
        if value.type.tensor_type.HasField("shape") and len(given) != len(wanted):
            raise SettingsError(
                f"input {value.name!r} has {len(given)} dims, the shape given has {len(wanted)}"
            )
        for mine, theirs in zip(given, wanted, strict=False):
            if not isinstance(theirs, int):
                continue
            if mine.HasField("dim_value") and mine.dim_value != theirs:
                raise SettingsError(
                    f"input {value.name!r} is fixed to {mine.dim_value} where the shape "
                    f"given says {theirs}"
                )
            for symbol in names_in(parse_dim(mine.dim_param)) if mine.dim_param else ():
                if format_atom(symbol) != canonical_dim(mine.dim_param):
                    continue  # an expression: its symbols are to be bound by name
                first = whose.setdefault(symbol, value.name)
                if found.setdefault(symbol, theirs) != theirs:
                    raise SettingsError(
                        f"dim {symbol!r} is {found[symbol]} in input {first!r} and {theirs} in "
                        f"input {value.name!r}",
                        hint="give both one size; if they are two dims, rename one in the model",
                    )
    return found


def bind_graph(graph: GraphProto, dims: Mapping[str, int]) -> None:
    """Put numbers in for the symbols that are known, in one graph, subgraphs left out."""
    if not dims:
        return
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                bound = bind_dim(canonical_dim(dim.dim_param), dims)
                if isinstance(bound, int):
                    dim.dim_value = bound
                elif bound is not None:
                    dim.dim_param = bound


def add_known(model: ModelProto, bindings: Bindings, dims: Mapping[str, int]) -> None:
    """Set the shapes the user gave, and add those found by other means where none is said.

    The user's shapes may be of any value in any block, by its name or by
    ``<block path>/<name>``.

    Raises:
        SettingsError: a shape is given for what the model does not have.
    """
    wanted = {
        name: tuple(bind_dim(dim, dims) for dim in shape)
        for name, shape in bindings.shapes.items()
    }
    if wanted:
        _add_given(model.graph, wanted)
    if bindings.known:
        _add_found(model.graph, bindings)


def _add_found(top: GraphProto, bindings: Bindings) -> None:
    for path, graph in block_paths(top, ""):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        names = dict.fromkeys(v.name for v in graph.input)
        names |= dict.fromkeys(name for node in graph.node for name in node.output if name)
        for name in names:
            found = bindings.known.get(var_id(path, name))
            if found is None or name in bindings.shapes:
                continue
            kind = _typed(name, element_type(found[0]), found[1]).type
            if name not in values:
                values[name] = graph.value_info.add()
                values[name].name = name
                values[name].type.CopyFrom(kind)
            elif not is_complete(values[name].type):
                values[name].type.CopyFrom(merged(values[name].type, kind))


def _add_given(top: GraphProto, wanted: Mapping[str, Shape]) -> None:
    left, known = dict.fromkeys(wanted), set()
    for path, graph in block_paths(top, ""):
        here = {v.name for v in graph.input}
        here.update(name for node in graph.node for name in node.output if name)
        for word, shape in wanted.items():
            name = word.removeprefix(f"{path}/") if path else word
            if name in here:
                _set_shape(graph, name, shape)
                left.pop(word, None)
        known |= here
    for word in left:
        raise SettingsError(
            f"a shape is given for {word!r}, which is no value of the model",
            hint=nearest(word, known),
        )


def block_paths(graph: GraphProto, path: str) -> Iterator[tuple[str, GraphProto]]:
    """Yield a graph and all below it with their block paths, as the reader names them."""
    yield path, graph
    for index, node in enumerate(graph.node):
        for attribute, body in subgraphs(node):
            step = f"{label(node.name, node.op_type, index)}.{attribute}"
            yield from block_paths(body, f"{path}/{step}" if path else step)


def _set_shape(graph: GraphProto, name: str, shape: Shape) -> None:
    values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
    value: ValueInfoProto | None = values.get(name)
    if value is None:
        value = graph.value_info.add()
        value.name = name
        value.type.tensor_type.SetInParent()
    value.type.CopyFrom(with_shape(value.type, shape))
