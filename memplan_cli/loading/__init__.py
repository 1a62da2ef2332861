"""Sessions for written files, created in the process of the caller.

Everywhere else memplan uses ONNX Runtime in worker processes only. This room is imported by programs that
only run a model, so it imports `errors`, ONNX Runtime and the standard library, and no other room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan_cli.errors import RuntimeMissingError, RuntimeUnavailableError

if TYPE_CHECKING:
    from pathlib import Path


def load(path: Path | str, sess_options: Any = None, **kwargs: Any) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
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
        from memplan_cli.loading.session import load_session
    except ImportError as error:
        if error.name == "onnxruntime":
            raise RuntimeMissingError from error
        raise RuntimeUnavailableError(
            f"ONNX Runtime cannot be imported: {error}", hint="`memplan doctor` says more"
        ) from error
    return load_session(path, sess_options, **kwargs)
