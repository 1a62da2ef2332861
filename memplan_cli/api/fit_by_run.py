"""Memory needs of a model whose sizes data decides, planned at the sizes of runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.api.rewrites import REWRITES
from memplan_cli.core.binding_options import LOOK_AT_A_RUN
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import UnknownSizeError
from memplan_cli.planning.candidate import Source
from memplan_cli.planning.planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.results.memory import Memory
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.settings.settings import Settings

SOURCE = Source(path="", sha256="", graph_sha256="")
"""The plans of a search are only looked at: nobody writes them."""


@dataclass(slots=True)
class SizesOfRuns:
    """A model whose sizes data decides, run on drawn inputs at each binding asked about.

    ``told`` is what the first run warned of, ``failed`` the last binding whose run told no sizes.
    """

    source: LazyModel
    path: Path
    settings: Settings
    told: tuple[str, ...] = ()
    failed: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what the answer hangs on."""
        return (*self.told, *([f"taken not to fit: {self.failed}"] if self.failed else []))

    def memory(self, dims: Mapping[str, int]) -> Memory:
        """Return what the model needs at a binding, as `report` says it.

        Raises:
            UnknownSizeError: a run does not tell its sizes there.
        """
        from memplan_cli.api.files.assuming import settle

        bound = replace(self.settings, dims={**self.settings.dims, **dims})
        found = settle(self.source, self.path, bound)
        report = make_plan(found.loaded.program, found.settings, SOURCE, REWRITES).plan.report
        warnings = found.loaded.warnings
        if report.coverage < 1.0:
            first = next(iter(report.unplanned))
            why = warnings[-1] if self.settings.run and warnings else first.reason
            self.failed = f"{binding_text(dims)}, for {why}"
            raise UnknownSizeError(
                f"the size of {first.name!r} is not known: {why}",
                hint="" if self.settings.run else LOOK_AT_A_RUN,
            )
        self.told = self.told or warnings
        return report.memory
