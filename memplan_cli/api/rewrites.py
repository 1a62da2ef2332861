"""The table of the features' rewrites that planning applies, one group of rows per feature."""

from __future__ import annotations

from memplan_cli.features.chunking.plan import chunk
from memplan_cli.features.donation.transform import donate, donated_outputs
from memplan_cli.features.folding.transform import fold_constants, foldable_tensors
from memplan_cli.features.recompute.plan import (
    recompute_between_checkpoints,
    recompute_within_budget,
)
from memplan_cli.planning.rewrites import Rewrites

REWRITES = Rewrites(
    fold_constants=fold_constants,
    foldable_tensors=foldable_tensors,
    chunk=chunk,
    recompute={
        "auto": recompute_within_budget,
        "checkpoints": recompute_between_checkpoints,
    },
    donated_outputs=donated_outputs,
    donate=donate,
)
