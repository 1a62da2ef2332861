"""Models planned, written in the order that needs least memory, and proved."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.core.progress import Progress, silent
from memplan_cli.errors import SettingsError
from memplan_cli.runtime.workers.warm import warm_workers
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.ahead import Ahead, SizesRefusedError
from memplan_cli.workflows.best import write_proved
from memplan_cli.workflows.candidates import Optimized, write_unproved
from memplan_cli.workflows.files.binding import bind
from memplan_cli.workflows.files.model_file import (
    Early,
    bind_whole,
    plan_model,
    read_model,
)
from memplan_cli.workflows.files.rewriting import Rewriting, Targets
from memplan_cli.workflows.profiles import at_largest, plan_profiles

if TYPE_CHECKING:
    from memplan_cli.planning.planner import Planned
    from memplan_cli.workflows.files.assuming import Trust
    from memplan_cli.workflows.files.model_file import ModelFile
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.request import FilePath


def optimize(  # noqa: PLR0913 - what the command takes, by name
    model: FilePath,
    settings: Settings | None = None,
    *,
    profiles: Profiles | None = None,
    out: FilePath | None = None,
    plan_file: FilePath | None = None,
    settings_out: FilePath | None = None,
    certificate: FilePath | None = None,
    check: Check | None = DEFAULT_CHECK,
    progress: Progress | None = None,
) -> Optimized:
    """Plan a model file, write it in its new order with its plan, and prove it.

    All words are those of `memplan_cli.optimize`.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    settings, model = settings or Settings(), Path(model)
    check = check if settings.run else None
    targets = Targets.of(model, out, plan_file, settings_out, certificate)
    if certificate and settings.target != "portable":
        raise SettingsError(
            "a certificate is about the model's own graph, not about what a runtime makes of it",
            hint="leave --target or --certificate out",
        )
    targets.refuse(model)
    with ExitStack() as stack:
        if check:
            stack.enter_context(warm_workers())
        file = read_model(model)
        if settings.kv_cache == "in-place":
            from memplan_cli.workflows.caches.proved import optimize_in_place

            _refuse_profiles(profiles)
            return optimize_in_place(file, settings, targets, check, progress or silent)
        settings = bind(file.model, settings)
        job = _Job(file, settings, targets, check, progress)
        if profiles:
            return job.at_profiles(profiles)
        believes = check is not None
        try:
            return job.done("believed" if believes else "tried")
        except SizesRefusedError:
            if not believes:
                raise
        if progress:
            progress("trying sizes: the model does not run at the least ones")
        return job.done("tried")


@dataclass(frozen=True, slots=True)
class _Job:
    """A model that was read, and what is to be made of it."""

    file: ModelFile
    settings: Settings
    targets: Targets
    check: Check | None
    progress: Progress | None

    def done(self, trust: Trust) -> Optimized:
        """Plan the model, write it and prove it; ``trust`` is about sizes that nobody said.

        Raises:
            SizesRefusedError: the original does not run at sizes that were assumed.
        """
        file, settings = self.file, self.settings
        if settings.target != "portable":
            from memplan_cli.workflows.target import optimize_for_target

            settings = bind_whole(file, settings, trust)
            tell = self.progress or silent
            return optimize_for_target(file, settings, self.targets, self.check, tell)
        with ExitStack() as stack:
            ahead = stack.enter_context(Ahead(self.check)) if self.check else None
            early = Early(trust, ahead.begin if ahead else None)
            planned = plan_model(file, settings, self.progress, early=early)
            return self._written(planned, planned.settings, ahead)

    def at_profiles(self, profiles: Profiles) -> Optimized:
        """Plan the model for several sizes, and prove it at the largest."""
        planned = plan_profiles(self.file, self.settings, profiles, self.progress)
        settings = replace(self.settings, inputs=planned.settings.inputs)
        with ExitStack() as stack:
            ahead = stack.enter_context(Ahead(self.check)) if self.check else None
            return self._written(planned, at_largest(settings, profiles), ahead)

    def _written(self, planned: Planned, settings: Settings, ahead: Ahead | None) -> Optimized:
        written = Rewriting(self.file, planned, settings, self.targets)
        if self.check and ahead:
            return write_proved(written, self.check, self.progress, ahead)
        return write_unproved(written)


def _refuse_profiles(profiles: Profiles | None) -> None:
    if profiles:
        raise SettingsError(
            "--kv-cache in-place is planned for the step that fills a cache, and --dim has "
            "several numbers",
            hint="give each dim one number",
        )
