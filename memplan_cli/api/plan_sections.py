"""The sections that features add to the report of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.chunking.report import chunking_section
from memplan_cli.features.donation.report import donation_section
from memplan_cli.features.folding.report import (
    external_weights_section,
    foldable_section,
    folded_section,
)
from memplan_cli.features.kv_cache.report import kv_cache_section
from memplan_cli.features.recompute.report import recompute_section

if TYPE_CHECKING:
    from memplan_cli.reporting.plans.sections import PlanSection

FEATURE_SECTIONS: tuple[PlanSection, ...] = (
    foldable_section,
    folded_section,
    external_weights_section,
    recompute_section,
    chunking_section,
    kv_cache_section,
    donation_section,
)
"""In the order in which a report shows them. A section is empty if its feature is not used."""
