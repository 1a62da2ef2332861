"""Settings of a written model for all requests within bounds, where its plan has bounds."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.api.optimized import warned
from memplan_cli.api.serving import AS_WRITTEN, range_settings
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.errors import MemplanError

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.files.rewriting import Rewriting
    from memplan_cli.api.serving import RangeSettings
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import RuntimeFacts
    from memplan_cli.settings.settings import Settings


def with_range(
    plan: Plan, rewriting: Rewriting, path: Path, timeout: float, progress: Progress
) -> Plan:
    """Return a plan whose settings suit every request within its bounds; others as they are.

    Args:
        plan: With settings for the one size that was run.
        rewriting: What was verified.
        path: The written model, under whatever name it has now.
        timeout: Seconds for each run that confirms the settings.
        progress: Told when the choice begins.
    """
    facts, settings = plan.report.runtime, rewriting.settings
    if not settings.bounds or facts is None or facts.settings is None:
        return plan
    if facts.provider != CPU:
        return warned(plan, _one_size(f"on {facts.provider} no range is looked at"))
    need = plan.report.memory.total or 0
    if need > _room():
        return warned(
            plan, _one_size(f"the largest takes {format_size(need)}, and was not run")
        )
    progress("choosing settings for the range")
    try:
        found = range_settings(path, _asked(settings), timeout, _kept(facts.settings))
    except MemplanError as error:
        return warned(plan, _one_size(f"{error}"))
    chosen = replace(found.serving.chosen.settings, io_binding=facts.settings.io_binding)
    report = replace(plan.report, runtime=replace(facts, settings=chosen, settings_sources={}))
    return warned(plan.with_report(report), _said(found, facts), *found.notes)


def _room() -> int:
    """Return half the memory of this machine; where the system does not say it, no limit."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):  # no POSIX
        return sys.maxsize


def _asked(settings: Settings) -> Settings:
    """Return what was said of sizes, without what was assumed for a run."""
    return replace(settings, inputs=replace(settings.inputs, feeds=None, assumed=None))


def _kept(settings: RuntimeSettings) -> RuntimeSettings:
    """Return what of settings the written file needs, whatever the size."""
    session = {key: value for key, value in settings.session.items() if key in AS_WRITTEN}
    return RuntimeSettings(session=session, session_config=settings.session_config)


def _one_size(reason: str) -> str:
    return (
        f"the settings are for one size of requests, not for all within the bounds: {reason}"
    )


def _said(found: RangeSettings, facts: RuntimeFacts) -> str:
    sizes = ", ".join(f"{name} {low}..{high}" for name, (low, high) in found.bounds.items())
    bound = found.serving.chosen.bound
    held = (
        "no bound of the arena was found"
        if bound is None
        else f"the arena holds at most {format_size(bound)}, whatever their sequence"
    )
    seen = "; what was observed ran under settings for one size" if facts.observed else ""
    return f"the settings are for all requests with {sizes}: {held}{seen}"
