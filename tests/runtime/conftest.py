"""Small models in ONNX text, written where a test wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a graph given as text and return its path."""

    def write(text: str, name: str = "model") -> Path:
        path = tmp_path / f"{name}.onnx"
        onnx.save(onnx.parser.parse_model(HEAD + text), str(path))
        return path

    return write
