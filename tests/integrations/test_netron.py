"""What the real Netron shows of a plan, in Chromium; skipped where either is missing.

`make test-integrations` makes an environment that has Netron.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser import CHROMIUM
from netron_page import node_properties, shown

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("netron", reason="netron is not installed: make test-integrations")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]


def test_netron_shows_at_a_node_where_its_output_lies(samples: Path, tmp_path: Path) -> None:
    import memplan
    from memplan_cli.core.results.placements import in_words

    out = tmp_path / "out.onnx"
    done = memplan.optimize(samples / "branchy_cnn.onnx", out=out, check=None)
    units = {arena.id: arena.unit for arena in done.plan.arenas}
    row = next(tensor for tensor in done.plan.tensors if tensor.name == "stem")
    with shown(out, tmp_path / "profile") as browser:
        rows = dict(node_properties(browser, "stem/Conv"))
    assert rows["pkg.memplan.step"] == "0"
    assert rows["pkg.memplan.memory"] == in_words(row, units)
