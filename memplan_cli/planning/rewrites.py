"""The rewrites of programs that planning applies, without knowledge of the features behind them.

The table of the features' functions is `memplan_cli.api.rewrites`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.rewrites import ChunkingSummary, FoldingSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.report import LiveTensor
    from memplan_cli.core.results.rewrites import ConstantTensor
    from memplan_cli.ordering.records import PlannedVars
    from memplan_cli.planning.candidate import Candidate, PlanningTask, Source
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Folding:
    """A program whose constant expressions are weights: the ops that made them are removed."""

    program: Program
    facts: FoldingSummary = field(default_factory=FoldingSummary)


@dataclass(frozen=True, slots=True)
class Chunking:
    """A program in which regions of ops are computed in chunks.

    Attributes:
        constants: Values of the constants that the chunks read.
    """

    program: Program
    constants: Mapping[VarId, tuple[int, ...]]
    facts: ChunkingSummary = field(default_factory=ChunkingSummary)


@dataclass(frozen=True, slots=True)
class Rewrites:
    """The features' functions that planning calls.

    Attributes:
        fold_constants: Turns constant expressions into weights. Arguments: the program, the
            settings, and the loss if there is one.
        foldable_tensors: Returns which of the tensors live at the peak are constant
            expressions, and whether they can be folded. Arguments: the program, the settings,
            the loss if there is one, and the tensors.
        chunk: Computes regions in chunks until the live peak fits the budget. Arguments: the
            program, its planned vars, the settings, the model file, and a progress callback.
        recompute: By the value of the setting ``recompute``: returns a candidate in which
            values are computed again.
        donated_outputs: Returns the graph outputs that are written over graph inputs.
            Arguments: the program, and globs of outputs by globs of inputs.
        donate: Returns a candidate in an order in which outputs may be written over inputs.
    """

    fold_constants: Callable[[Program, Settings, VarId | None], Folding]
    foldable_tensors: Callable[
        [Program, Settings, VarId | None, Sequence[LiveTensor]], tuple[ConstantTensor, ...]
    ]
    chunk: Callable[[Program, PlannedVars, Settings, Source, Progress], Chunking]
    recompute: Mapping[str, Callable[[PlanningTask], Candidate]]
    donated_outputs: Callable[[Program, Mapping[str, str]], Collection[VarId]]
    donate: Callable[[Candidate, PlanningTask], Candidate]
