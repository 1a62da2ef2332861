"""`Decoder`: sessions for models with caches in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan_cli.loading import load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.api.request import FilePath
    from memplan_cli.runtime import decoding


def Decoder(  # noqa: N802 - what it returns is one
    path: FilePath,
    sess_options: Any = None,  # noqa: ANN401 - ONNX Runtime has no types
    dims: Mapping[str, int] | None = None,
    **kwargs: Any,  # noqa: ANN401
) -> decoding.Decoder:
    """Load a model whose caches are updated in place; return an object that runs it on arrays.

    ``decoder.prefill(inputs)`` begins a sequence and ``decoder.step(inputs)`` continues it;
    both return the outputs by name, and neither takes or returns a cache. ``decoder.position`` is
    the number of valid entries, and ``decoder.reset()`` sets it to 0.

    Args:
        path: What ``memplan optimize --kv-cache in-place`` wrote.
        sess_options: ``SessionOptions`` to set the file's on; new ones by default.
        dims: Values of dims that occur in caches only, and in no other input.
        kwargs: Further arguments of ``InferenceSession``.

    Raises:
        MemplanError: the file has no caches in place, or cannot be loaded.
    """
    from memplan_cli.onnx_io.caches_metadata import recorded_caches
    from memplan_cli.runtime import decoding

    session = load(path, sess_options, **kwargs)
    caches = recorded_caches(session.get_modelmeta().custom_metadata_map)
    return decoding.Decoder(session, caches, dims)
