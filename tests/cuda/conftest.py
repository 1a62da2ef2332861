"""Everything here needs a session that really runs on CUDA; elsewhere it is skipped."""

from __future__ import annotations

import pytest

from memplan_cli.core.results.observations import CUDA
from memplan_cli.runtime.workers.session import probe_provider


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if "cuda" in item.path.parts]
    if not here:
        return
    probe = probe_provider(CUDA)
    for item in here:
        item.add_marker(pytest.mark.cuda)
        if not probe.works:
            item.add_marker(pytest.mark.skip(reason=f"no session gets CUDA: {probe.reason}"))
