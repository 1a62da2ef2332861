"""The networks that are compared with msf-CNN's figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.microcontrollers import NETWORKS, multiply_accumulates, write_network

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("mobilenet_v2_w035_int8", 18_909_490),
        ("mcunet_320kb_int8", 81_625_520),
        ("mcunet_v2_vww_int8", 11_578_496),
    ],
)
def test_a_network_has_the_multiply_accumulates_that_msf_cnn_counts(
    name: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / "network.onnx"
    write_network(path, NETWORKS[name].layers, NETWORKS[name].size)
    assert multiply_accumulates(path) == count
