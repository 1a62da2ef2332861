"""Arrays as values of ONNX Runtime and back, with the element types that numpy does not have.

ONNX Runtime's Python interface passes arrays of numpy's own types. Values of other types
(bfloat16, float8, four bits) are passed as bytes, and become float32 arrays of the same numbers.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.type_names import dtype_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NOT_IN_NUMPY: frozenset[str] = frozenset(
    name
    for name in BITS
    if name.startswith(("bfloat", "float8", "float4")) or name.endswith(("int4", "int2"))
)
"""Element types that numpy does not have."""


def run_session(
    session: Any,  # noqa: ANN401 - ONNX Runtime has no types
    names: Sequence[str] | None,
    feed: Mapping[str, Any],
    options: Any = None,  # noqa: ANN401
) -> list[Any]:
    """Run a session and return its outputs.

    If an input or output has a type that numpy does not have, all must be tensors.

    Args:
        session: an ONNX Runtime session.
        names: the outputs to return; None: all.
        feed: an array, or a list of arrays, for each input. Arrays for inputs of types that
            numpy does not have hold numbers that the type can represent.
        options: ONNX Runtime's run options.

    Returns:
        Arrays, or lists of them; outputs of types that numpy does not have are float32.
    """
    dtypes = {value.name: dtype_of(value.type) for value in session.get_inputs()}
    output_dtypes = [dtype_of(value.type) for value in session.get_outputs()]
    if NOT_IN_NUMPY.isdisjoint((*dtypes.values(), *output_dtypes)):
        return list(session.run(names, feed, options))
    values = {name: ort_value(array, dtypes[name]) for name, array in feed.items()}
    all_names = names or [value.name for value in session.get_outputs()]
    outputs = session.run_with_ort_values(all_names, values, options)
    return [array_of(output) for output in outputs]


def ort_value(array: Any, dtype: str, device: str = "cpu") -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return an array as an ``OrtValue`` of an element type.

    Types that numpy does not have can be passed to the CPU only. On another device, the value has the
    array's own type, which a session refuses for an input of such a type.
    """
    import onnxruntime as ort

    if device != "cpu" or dtype not in NOT_IN_NUMPY:
        return ort.OrtValue.ortvalue_from_numpy(array, device, 0)
    # Importing onnx takes a third of the start of a process, and few models have such types.
    from memplan_cli.onnx_io.types import element_type, packed

    # The buffer has the shape of the array, and elements of at least the type's width. The packed values
    # may be shorter: n int4 fill the first n / 2 bytes of n. ONNX Runtime reads only as many as it needs.
    buffer = np.zeros(array.shape, np.uint16 if BITS[dtype] > 8 else np.uint8)
    raw = packed(array, dtype)
    buffer.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(buffer, element_type(dtype))


def array_of(value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return an ``OrtValue`` that is a tensor as an array in host memory.

    Types that numpy does not have become float32.
    """
    dtype = dtype_of(value.data_type())
    if dtype not in NOT_IN_NUMPY:
        return value.numpy()
    from memplan_cli.onnx_io.types import unpacked

    assert value.device_name() == "cpu"  # noqa: S101 - `ort_value` puts such types nowhere else
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return unpacked(raw, dtype, value.shape())
