"""One sentence for each way in which a GPU fails, in place of ONNX Runtime's own message.

ONNX Runtime reports the error of CUDA with source files, host name and driver calls
(core/providers/cuda/cuda_call.cc), those of the arena with its statistics (core/framework/bfc_arena.cc), and a
provider that could not be started only in its log.
"""

from __future__ import annotations

import re

from memplan_cli.core.quantities import format_size

_SENTENCES = (
    (
        r"driver version is insufficient|CUDA failure 35\b",
        "the NVIDIA driver is too old for the CUDA version of this ONNX Runtime",
    ),
    (r"CUDA failure 100\b|no CUDA-capable device", "the NVIDIA driver finds no GPU"),
    (
        r"CUDA failure 2\b|out of memory|Failed to allocate memory|smaller than requested bytes",
        "out of device memory",
    ),
    (
        r"assigned to the default CPU EP|session is on CPUExecutionProvider",
        "ONNX Runtime lists the provider, but cannot start it",
    ),
)
"""Patterns of messages, and what they mean; the first that fits counts. The numbers are those of ``cudaError``."""

_BUFFER = re.compile(r"requested (?:buffer of size|bytes of) (\d+)")

_NODE = re.compile(r"while running (\w+) node\. Name:'([^']*)'")


def device_failure(message: str) -> str:
    """Return a sentence on why a session on a GPU, or a run of it, failed; other messages are unchanged."""
    sentence = next((text for pattern, text in _SENTENCES if re.search(pattern, message)), "")
    if not sentence:
        return message
    if buffer := _BUFFER.search(message):
        sentence += f": no room for a buffer of {format_size(int(buffer[1]))}"
    if node := _NODE.search(message):
        sentence += f", at node {node[2]!r} ({node[1]})"
    return sentence
