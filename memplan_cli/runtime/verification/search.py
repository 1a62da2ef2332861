"""The search for the settings of a written model, with predicted or with measured scores."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.runtime.run.timing import SLOWEST, is_slower, time_ratio
from memplan_cli.runtime.settings_search.choice import total_of
from memplan_cli.runtime.verification.confirm import Confirmation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memplan_cli.core.check import Search
    from memplan_cli.core.progress import Progress
    from memplan_cli.runtime.settings_search.choice import SettingsChoice
    from memplan_cli.runtime.settings_search.written_model import Prediction


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """Settings with their cost; the confirmation is the runs that the cost was measured in."""

    choice: SettingsChoice
    cost: tuple[float, ...]
    confirmation: Confirmation | None = None


def search_settings(
    choices: Iterable[SettingsChoice], score: Callable[[SettingsChoice], ScoredChoice]
) -> ScoredChoice:
    """Return the choice of the lowest cost; of equal ones, the first."""
    return min(map(score, choices), key=attrgetter("cost"))


def confirmed_settings(
    prediction: Prediction, search: Search, progress: Progress
) -> Confirmation:
    """Search the settings of a written model, and return its runs under the best.

    With predicted scores only the best choice is run; with measured scores, each is.

    Args:
        prediction: of the written model.
        search: how settings are scored.
        progress: told which run begins.

    Raises:
        RuntimeUnavailableError: the written model's weights are missing.
    """
    if search == "measured":
        choices = prediction.choices_to_measure()

        def measured(choice: SettingsChoice) -> ScoredChoice:
            number = choices.index(choice) + 1
            progress(f"running the written model, settings {number} of {len(choices)}")
            return measured_score(prediction, choice, progress)

        found = search_settings(choices, measured).confirmation
        assert found is not None  # noqa: S101 - a measured score has one
        return found
    progress("running the written model")
    confirmation = Confirmation(prediction, prediction.best())
    confirmation.confirm(progress)
    return confirmation


def measured_score(
    prediction: Prediction, choice: SettingsChoice, progress: Progress
) -> ScoredChoice:
    """Run a written model under a choice and return what it took.

    Settings under which outputs differ cost most; then those with which a run takes more than
    five per cent longer than the original's, by their time; the others cost their memory.
    """
    found = Confirmation(prediction, choice)
    found.confirm_at_level(progress)
    if not found.passed:
        return ScoredChoice(choice, (2, 0.0), found)
    before, after = prediction.baseline.record, found.run.record
    if is_slower(after.peaks, before.peaks):
        specs = before.spec.session, after.spec.session
        ratio = time_ratio(*specs, before.spec.inputs[0], prediction.baseline.check.timeout)
        if ratio is None or ratio.median > SLOWEST:
            return ScoredChoice(choice, (1, after.peaks.effort or 0.0), found)
    return ScoredChoice(choice, (0, float(total_of(after.peaks))), found)
