"""Types of values: ONNX's element types, numpy's names for them, and the shapes that graphs declare.

A dtype is a string everywhere in memplan: numpy's name where there is one (``float32``), else ONNX's
in lower case (``bfloat16``, ``int4``).
"""

from __future__ import annotations

import math
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from memplan_cli.core.symbolic.dims import canonical_dim
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.protobuf import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from onnx import GraphProto, TypeProto, ValueInfoProto

    from memplan_cli.core.program import Program, Shape

DeclaredType = tuple[str, "Shape | None"]
"""The dtype of a value (``unknown`` if none is declared) and its dims (None if the rank is unknown)."""

UNKNOWN_DTYPE = "unknown"
UNKNOWN: DeclaredType = (UNKNOWN_DTYPE, None)


def dtype_name(element_type: int) -> str:
    """Return the dtype of a TensorProto.DataType, or ``unknown``."""
    return _dtype_names().get(element_type, "unknown")


def element_type(dtype: str) -> int:
    """Return the TensorProto.DataType of a dtype, or 0 (UNDEFINED)."""
    return next((number for number, name in _dtype_names().items() if name == dtype), 0)


@cache
def _dtype_names() -> dict[int, str]:
    """Return the dtype of each TensorProto.DataType."""
    numpy_names = {"float": "float32", "double": "float64", "undefined": "unknown"}
    return {
        number: numpy_names.get(name.lower(), name.lower())
        for name, number in messages().TensorProto.DataType.items()
    }


def type_name(value_type: TypeProto) -> str:
    """Return a type as text: ``float32``, ``sequence(float32)``, ``optional(float32)``, ``map``."""
    if value_type.HasField("tensor_type"):
        return dtype_name(value_type.tensor_type.elem_type)
    kind = value_type.WhichOneof("value")
    if kind == "sequence_type":
        return f"sequence({type_name(value_type.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_name(value_type.optional_type.elem_type)})"
    if kind == "sparse_tensor_type":
        return f"sparse({dtype_name(value_type.sparse_tensor_type.elem_type)})"
    return "map" if kind == "map_type" else "unknown"


def without_container(value_type: TypeProto) -> TypeProto:
    """Return the type of what is in an optional or a sequence, also if they are nested; else the type itself."""
    if value_type.HasField("optional_type"):
        return without_container(value_type.optional_type.elem_type)
    if value_type.HasField("sequence_type"):
        return without_container(value_type.sequence_type.elem_type)
    return value_type


def container_and_tensor_type(value: ValueInfoProto) -> tuple[str, TypeProto.Tensor]:
    """Return the container that feeds a graph input, and the type of the tensors in it.

    The container is ``tensor`` (none), ``sequence``, ``optional``, ``map of numbers`` or ``map of text``: a
    map is named by its keys. An optional sequence is fed as a sequence.

    Raises:
        ModelError: a run cannot be fed such a type: a sparse tensor, or nested containers other than an
            optional sequence.
    """
    declared = value.type
    is_optional = declared.HasField("optional_type")
    if is_optional:
        declared = declared.optional_type.elem_type
    if declared.HasField("sequence_type"):
        container, element = "sequence", declared.sequence_type.elem_type
    elif declared.HasField("map_type") and not is_optional:
        has_text_keys = dtype_name(declared.map_type.key_type) == "string"
        container = "map of text" if has_text_keys else "map of numbers"
        element = declared.map_type.value_type
    else:
        container, element = "optional" if is_optional else "tensor", declared
    # An input of undeclared type counts as a tensor of undeclared dtype and shape.
    is_undeclared = element.WhichOneof("value") is None
    if not is_undeclared and not element.HasField("tensor_type"):
        raise ModelError(
            f"input {value.name[:100]!r} is a {type_name(value.type)}: it cannot be fed"
        )
    return container, element.tensor_type


def declared_types(graph: GraphProto) -> dict[str, DeclaredType]:
    """Return the types that a graph declares for its own values, without those of its subgraphs.

    If a value is declared twice, its graph input counts before its value_info, and that before its
    graph output.
    """
    type_by_bytes: dict[bytes, DeclaredType] = {}
    types: dict[str, DeclaredType] = {}
    for value in (*graph.output, *graph.value_info, *graph.input):
        # Large graphs have few distinct types: decode each once.
        serialized = value.type.SerializeToString()
        declared = type_by_bytes.get(serialized)
        if declared is None:
            declared = (type_name(value.type), read_shape(value))
            type_by_bytes[serialized] = declared
        types[value.name] = declared
    return types


def read_shape(value: ValueInfoProto) -> Shape | None:
    """Return the declared dims of a tensor: ints, canonical expressions, None for unknown dims.

    Returns None if no shape is declared.
    """
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[int | str | None] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
        else:
            dims.append(canonical_dim(dim.dim_param) if dim.dim_param else None)
    return tuple(dims)


def declares_enough(graph: GraphProto, types: Mapping[str, DeclaredType]) -> bool:
    """Whether shape inference may be unnecessary: as many types as nodes, all fully known.

    This is a cheap test before a program is built; `leaves_nothing_to_infer` is the exact one.
    """
    # `declared_types` returns one object for equal types: each is tested once.
    distinct = {id(declared): declared for declared in types.values()}
    return len(types) >= len(graph.node) and all(map(_is_fully_known, distinct.values()))


def leaves_nothing_to_infer(program: Program) -> bool:
    """Whether every value has a dtype and a fixed shape, and no op has subgraphs."""
    distinct = set(map(itemgetter(1, 2), program.vars.values()))  # (dtype, shape)
    has_subgraphs = any(op.bodies for op in program.body.ops)
    return not has_subgraphs and all(map(_is_fully_known, distinct))


def _is_fully_known(declared: DeclaredType) -> bool:
    dtype, shape = declared
    if dtype == UNKNOWN_DTYPE or shape is None:
        return False
    return all(isinstance(dim, int) and dim >= 0 for dim in shape)


def declared_bytes(
    dtype: str, dims: Sequence[int | str | None], numbers: Mapping[str, int]
) -> int | None:
    """Return the bytes of a tensor, or None if its dtype or one of its dims is unknown.

    Elements of less than 8 bits share bytes, and the sum is rounded up. ``numbers`` are those of the
    symbolic dims.
    """
    bound = [numbers.get(dim) if isinstance(dim, str) else dim for dim in dims]
    fixed = [dim for dim in bound if dim is not None]
    if len(fixed) < len(bound) or dtype not in BITS:
        return None
    return -(-math.prod(fixed) * BITS[dtype] // 8)


def packed(array: NDArray[Any], dtype: str) -> bytes:
    """Return an array's values encoded as ``raw_data`` of a dtype; two int4 share a byte."""
    from onnx import helper, numpy_helper

    values = array.astype(helper.tensor_dtype_to_np_dtype(element_type(dtype)))
    return bytes(numpy_helper.from_array(values).raw_data)


def unpacked(raw: bytes, dtype: str, shape: Sequence[int]) -> NDArray[np.float32]:
    """Decode ``raw_data`` of a dtype that numpy lacks; float32 holds its values exactly."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    tensor = TensorProto(data_type=element_type(dtype), dims=shape, raw_data=raw)
    return np.asarray(numpy_helper.to_array(tensor), np.float32)


def is_extension_dtype(dtype: np.dtype[Any]) -> bool:
    """Whether numpy has a dtype from another package only, such as bfloat16 from ml_dtypes."""
    return dtype.isbuiltin == 2  # as numpy documents it


def array_dtype(array: NDArray[Any]) -> str:
    """Return the dtype of an array."""
    from onnx import helper

    return dtype_name(helper.np_dtype_to_tensor_dtype(array.dtype))
