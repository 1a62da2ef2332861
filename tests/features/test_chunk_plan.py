"""Chunks of a plan: the model that has none, and what the report says of a region."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import plan_of_text
from memplan_cli.core.results.rewrites import ChunkedRegion, ChunkingSummary
from memplan_cli.errors import SettingsError
from memplan_cli.features.chunking.report import chunking_section
from memplan_cli.settings.settings import Settings


def test_a_model_without_nodes_is_refused() -> None:
    with pytest.raises(SettingsError, match="the model has no nodes"):
        plan_of_text(
            "g (float[4,8] x) => (float[4,8] x) { }", Settings(chunk="auto", budget=0.5)
        )


@pytest.mark.parametrize(("after", "saved"), [(1 << 20, "2.00 MiB"), (4 << 20, "0 B")])
def test_a_region_saves_what_it_needs_less_than_before(after: int, saved: str) -> None:
    report = plan_of_text("g (float[4,8] x) => (float[4,8] y) { y = Exp(x) }").report
    region = ChunkedRegion("wide", 2, 4, 3, before=3 << 20, after=after, flops_increase=0.0)
    chunked = ChunkingSummary(regions=(region,))
    assert saved in str(list(chunking_section(replace(report, chunked=chunked), 5)))
