"""`load` and `Decoder`: sessions of ONNX Runtime for models that memplan wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.errors import RuntimeUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.api.request import FilePath
    from memplan_cli.runtime import decoding


def load(path: FilePath, sess_options: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Create an ``onnxruntime.InferenceSession`` as a file written by memplan says.

    Session options, the arena (registered once for the process), and run options are those
    in the file's metadata. ``session.bound(inputs)`` binds the buffers of donated inputs.

    Args:
        path: The model.
        sess_options: ``SessionOptions`` to set the file's on; new ones by default.
        kwargs: Further arguments of ``InferenceSession``.

    Returns:
        The session. A file that memplan did not write gets the runtime's defaults.

    Raises:
        MemplanError: the file cannot be read, its settings are none of memplan's, or ONNX
            Runtime is not installed.
    """
    try:
        from memplan_cli.runtime.loading import load_session
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"ONNX Runtime cannot be imported: {error}", hint="`memplan doctor` says more"
        ) from error
    return load_session(Path(path), sess_options, **kwargs)


def Decoder(  # noqa: N802 - what it returns is one
    path: FilePath,
    sess_options: Any = None,  # noqa: ANN401 - ONNX Runtime has no types
    dims: Mapping[str, int] | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> decoding.Decoder:
    """Load a model with caches in place as what runs prefill and steps, with arrays.

    ``decoder.prefill(inputs)`` begins a sequence and ``decoder.step(inputs)`` goes on with it;
    both return the outputs by name, and neither takes or gives a cache. ``decoder.position`` is
    how many entries are valid, and ``decoder.reset()`` forgets them.

    Args:
        path: What ``memplan optimize --kv-cache in-place`` wrote.
        sess_options: ``SessionOptions`` to set the file's on; new ones by default.
        dims: Numbers of dims that the caches have and no other input.
        kwargs: Further arguments of ``InferenceSession``.

    Raises:
        MemplanError: the file has no caches in place, or cannot be loaded.
    """
    return load(path, sess_options, **kwargs).decoder(**(dims or {}))  # type: ignore[no-any-return]
