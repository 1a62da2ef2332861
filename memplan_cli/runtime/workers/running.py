"""Run a session on arrays, those of types that numpy does not know included.

ONNX Runtime's Python takes and gives arrays of numpy's own types. What is of another type
(bfloat16, float8, four bits) goes in and comes out as bytes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.type_names import dtype_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FOREIGN: frozenset[str] = frozenset(
    name
    for name in BITS
    if name.startswith(("bfloat", "float8", "float4")) or name.endswith(("int4", "int2"))
)
"""Element types that numpy does not know."""


def run(
    session: Any,  # noqa: ANN401 - ONNX Runtime has no types
    names: Sequence[str] | None,
    feed: Mapping[str, Any],
    options: Any = None,  # noqa: ANN401
) -> list[Any]:
    """Run a session and return the outputs asked for, all of them by default.

    Args:
        session: An ONNX Runtime session.
        names: Of outputs.
        feed: Arrays, or lists of them, by input; a foreign input's hold values that its
            type has.
        options: ONNX Runtime's run options.

    Returns:
        Arrays, or lists of them; those of foreign types hold the same values in float32.
    """
    types = {value.name: dtype_of(value.type) for value in session.get_inputs()}
    given = [dtype_of(value.type) for value in session.get_outputs()]
    if FOREIGN.isdisjoint((*types.values(), *given)):
        return list(session.run(names, feed, options))
    values = {name: ort_value(array, types[name]) for name, array in feed.items()}
    wanted = names or [value.name for value in session.get_outputs()]
    return [array_of(value) for value in session.run_with_ort_values(wanted, values, options)]


def ort_value(array: Any, dtype: str) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return an array as the runtime's own value of an element type."""
    import onnxruntime as ort

    if dtype not in FOREIGN:
        return ort.OrtValue.ortvalue_from_numpy(array)
    # Loading onnx takes a third of a process's start, and few models have such types.
    from memplan_cli.onnx_io.types import element_type, packed

    # Elements of the right width, or wider: the runtime reads as many bytes as it needs.
    room = np.zeros(array.shape, np.uint16 if BITS[dtype] > 8 else np.uint8)
    raw = packed(array, dtype)
    room.reshape(-1).view(np.uint8)[: len(raw)] = np.frombuffer(raw, np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(room, element_type(dtype))


def array_of(value: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return a value of the runtime, in host memory, as numpy has it."""
    dtype = dtype_of(value.data_type())
    if dtype not in FOREIGN:
        return value.numpy()
    from memplan_cli.onnx_io.types import unpacked

    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return unpacked(raw, dtype, value.shape())
