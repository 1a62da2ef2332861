"""What `optimize` is asked for, and the candidate of a model's own graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

from memplan_cli.api.files.assuming import settle
from memplan_cli.api.files.model_file import plan_settled, refuse_caches
from memplan_cli.api.files.rewriting import Rewriting
from memplan_cli.api.profiles import at_largest, plan_profiles

if TYPE_CHECKING:
    from memplan_cli.api.files.assuming import Trust
    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.rewriting import Targets
    from memplan_cli.api.optimized import Optimized
    from memplan_cli.api.profiles import Profiles
    from memplan_cli.api.verification import BackgroundBaseline
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class OptimizeRequest:
    """A model that was read, and what is made of it.

    Attributes:
        file: the model.
        settings: of the plan, bound to the model.
        targets: the files to write.
        check: how the written model is verified; None runs nothing.
        progress: told which stage begins.
        profiles: several numbers for dims, for which one plan is made.
        trust: whether assumed sizes are tried before planning, or believed until the original
            runs.
    """

    file: ModelFile
    settings: Settings
    targets: Targets
    check: Check | None
    progress: Progress
    profiles: Profiles | None = None
    trust: Trust = "tried"


class CandidateRounds(Protocol):
    """Rounds of candidates, planned one after the other; its files last until its block ends."""

    def __enter__(self) -> Self:
        """Use it in a block."""

    def __exit__(self, *_: object) -> None:
        """Remove its files."""

    def plan(self, result: Optimized | None) -> list[Rewriting]:
        """Return the candidates that follow a result, the first ones after None; none if it stands."""


class PortableCandidates:
    """The one candidate of a model's own graph: its nodes in a better order."""

    def __init__(self, request: OptimizeRequest, baseline: BackgroundBaseline) -> None:
        """Plan nothing yet."""
        self._request, self._baseline = request, baseline

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: planning leaves no files."""

    def plan(self, result: Optimized | None) -> list[Rewriting]:
        """Return the candidate, and none once there is a result.

        The original is started as soon as its sizes are known.

        Raises:
            MemplanError: the model or a setting is wrong.
        """
        if result is not None:
            return []
        request = self._request
        file, settings = request.file, request.settings
        if request.profiles:
            # One plan for several sizes is verified at the largest.
            planned = plan_profiles(file, settings, request.profiles, request.progress)
            settings = replace(settings, inputs=planned.settings.inputs)
            settings = at_largest(settings, request.profiles)
        else:
            refuse_caches(settings)
            request.progress("reading")
            found = settle(file.lazy, file.path, settings, request.trust)
            self._baseline.start(file, found.settings)
            planned = plan_settled(file, found, request.progress)
            settings = planned.settings
        return [Rewriting(file, planned, settings, request.targets)]
