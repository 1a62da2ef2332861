"""What shape has each value? The file's own word, ONNX inference, bindings, repairs.

Inference runs on a light copy of the model: weights are stand-ins without data, except
the few small ones that say shapes. So models of any size are inferred in the memory of
their graph, and no weight is ever read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import graphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.sizes import bind_dim, canonical_dim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from onnx import GraphProto, ModelProto, TensorProto, ValueInfoProto

    from memplan_cli.ir import Dim, Shape

SMALL_WEIGHT = 1024
"""Elements up to which a weight's data may say a shape, so that inference sees it."""

_LIGHT_IR = 8
"""Below IR 4, weights must be inputs and inference then ignores their data."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """What the user knows about shapes.

    ``dims`` gives symbols their values. ``shapes`` gives a value its shape: an input's,
    or any value's whose shape depends on data. ``known`` holds types and shapes found by
    other means (a runtime's inference), used where the file says nothing.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    known: Mapping[str, tuple[str, Shape]] = field(default_factory=dict)


def infer(model: ModelProto, bindings: Bindings) -> tuple[ModelProto, tuple[str, ...]]:
    """Return a light copy of a model with every shape that can be inferred, and warnings.

    Nodes keep their order and index. Big weights appear as graph inputs.
    """
    from onnx import shape_inference  # noqa: PLC0415 - heavy: only where a model is read

    light = _light_copy(model)
    dims = {**bindings.dims, **_dims_from_shapes(light, bindings.shapes)}
    _name_free_dims(light)
    for graph in graphs(light.graph):
        _bind_graph(graph, dims)
    _add_known(light, bindings)
    try:
        inferred = shape_inference.infer_shapes(light, data_prop=True)
        if _repair(inferred):
            inferred = shape_inference.infer_shapes(inferred, data_prop=True)
    except Exception as error:  # noqa: BLE001 - it raises many types; the file's shapes remain
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return light, (
            f"ONNX shape inference failed, the file's own shapes are used: {lines[0][:200]}",
        )
    for graph in graphs(inferred.graph):
        _bind_graph(graph, dims)
    return inferred, ()


def read_shape(value: ValueInfoProto) -> Shape | None:
    """Return a tensor type's dims: numbers, canonical expressions, None where unknown."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value")
        else canonical_dim(dim.dim_param)
        if dim.dim_param
        else None
        for dim in value.type.tensor_type.shape.dim
    )


def _light_copy(model: ModelProto) -> ModelProto:
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
    from onnx import helper  # noqa: PLC0415 - heavy: only where a model is read

    return helper.make_tensor_value_info(name, element, list(shape))


def _dims_from_shapes(model: ModelProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return what ``--shape input=..`` says about the input's symbols.

    Raises:
        SettingsError: the shape contradicts the model's own.
    """
    found: dict[str, int] = {}
    for value in model.graph.input:
        wanted, given = shapes.get(value.name), value.type.tensor_type.shape.dim
        if wanted is None:
            continue
        if value.type.tensor_type.HasField("shape") and len(given) != len(wanted):
            raise SettingsError(
                f"input {value.name!r} has {len(given)} dims, the shape given has {len(wanted)}"
            )
        for mine, theirs in zip(given, wanted, strict=False):
            if (
                mine.HasField("dim_value")
                and isinstance(theirs, int)
                and mine.dim_value != theirs
            ):
                raise SettingsError(
                    f"input {value.name!r} is fixed to {mine.dim_value} where the shape "
                    f"given says {theirs}"
                )
            if mine.dim_param and isinstance(theirs, int):
                if found.setdefault(mine.dim_param, theirs) != theirs:
                    raise SettingsError(
                        f"the shapes given say both {found[mine.dim_param]} and {theirs} "
                        f"for dim {mine.dim_param!r}"
                    )
    return found


def _name_free_dims(model: ModelProto) -> None:
    """Give each unnamed free dim of an input a name, so that it can be bound and shared."""
    for value in model.graph.input:
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{value.name}_dim{index}"
            elif dim.HasField("dim_value") and dim.dim_value < 0:
                dim.dim_param = f"{value.name}_dim{index}"


def _bind_graph(graph: GraphProto, dims: Mapping[str, int]) -> None:
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


def _add_known(model: ModelProto, bindings: Bindings) -> None:
    """Set the shapes the user gave, and add those found by other means where none is said."""
    from onnx import helper  # noqa: PLC0415 - heavy: only where a model is read

    values = {
        v.name: v for v in (*model.graph.input, *model.graph.output, *model.graph.value_info)
    }
    for name, shape in bindings.shapes.items():
        if name in values:
            _set_shape(values[name], shape)
        else:
            model.graph.value_info.append(helper.make_tensor_value_info(name, 0, list(shape)))
    for name, (dtype, shape) in bindings.known.items():
        if name in bindings.shapes or (name in values and _is_complete(values[name])):
            continue
        if name not in values:
            values[name] = model.graph.value_info.add()
            values[name].CopyFrom(_typed(name, element_type(dtype), shape))
        else:
            _set_shape(values[name], shape)


def _set_shape(value: ValueInfoProto, shape: Shape) -> None:
    value.type.tensor_type.ClearField("shape")
    value.type.tensor_type.shape.SetInParent()
    for dim in shape:
        _set_dim(value.type.tensor_type.shape.dim.add(), dim)


def _set_dim(target: object, dim: Dim) -> None:
    if isinstance(dim, int):
        target.dim_value = dim  # type: ignore[attr-defined]
    elif dim is not None:
        target.dim_param = dim  # type: ignore[attr-defined]


def _is_complete(value: ValueInfoProto) -> bool:
    shape = read_shape(value)
    return shape is not None and None not in shape


def _repair(model: ModelProto) -> bool:
    """Add the mask of each Dropout, which inference leaves out; say if anything changed."""
    from onnx import TensorProto  # noqa: PLC0415 - heavy

    changed = False
    old = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0) < 10
    for graph in graphs(model.graph):
        values = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        for data, mask in _unknown_masks(graph, values):
            fixed = graph.value_info.add()
            fixed.CopyFrom(values[data])
            fixed.name = mask
            if not old:
                fixed.type.tensor_type.elem_type = TensorProto.BOOL
            changed = True
    return changed


def _unknown_masks(
    graph: GraphProto, values: Mapping[str, ValueInfoProto]
) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        if node.op_type == "Dropout" and len(node.output) > 1 and node.output[1]:
            if node.output[1] not in values and node.input[0] in values:
                yield node.input[0], node.output[1]
