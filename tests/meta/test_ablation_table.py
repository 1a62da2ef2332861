"""What the ablation benchmark switches off is where its table says."""

from __future__ import annotations

import pytest

from benchmarks.ablation_modules import MODULES, lines, source


@pytest.mark.parametrize("name", MODULES)
def test_every_subsystem_is_where_the_table_says(name: str) -> None:
    assert source(name).is_file()
    assert lines(name) > 0
