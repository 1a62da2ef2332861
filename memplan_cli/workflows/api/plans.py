"""The Python API of `memplan optimize`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.check import DEFAULT_CHECK, Check
from memplan_cli.errors import SettingsError
from memplan_cli.workflows.files.sources import is_path, on_files
from memplan_cli.workflows.request import settings_of

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.progress import Progress
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.sources import ModelSource
    from memplan_cli.workflows.optimized import Optimized
    from memplan_cli.workflows.profiles import Profiles
    from memplan_cli.workflows.request import FilePath


def optimize(  # noqa: PLR0913 - what the command takes, by name
    model: ModelSource,
    settings: Settings | None = None,
    *,
    profiles: Profiles | None = None,
    out: FilePath | None = None,
    plan_file: FilePath | None = None,
    settings_out: FilePath | None = None,
    certificate: FilePath | None = None,
    check: Check | None = DEFAULT_CHECK,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Optimized:
    """Plan a model, write it in its new order with its plan, and prove it.

    Args:
        model: The ONNX file, its bytes or a ``ModelProto``; it is never changed.
        settings: What decides the plan.
        profiles: Several values of symbols: one plan that holds for all of them, and a row
            for each in its report. The models are run with the largest.
        out: The file to write; ``<stem>.memplan.onnx`` beside the model by default.
        plan_file: The plan's file; ``out`` with the suffix ``.json`` by default.
        settings_out: Where the runtime's settings go as Python, and as JSON beside it.
        certificate: Where a witness of each bound of the plan goes.
        check: How to compare both models; None leaves the comparison out, and so do
            settings that allow no run.
        progress: Told what is being done.
        config: As for `plan`.
        options: As for `plan`.

    Raises:
        MemplanError: something could not work. Nothing is written then, nor if the
            comparison fails or the budget cannot be met.
    """
    from memplan_cli.workflows.optimize import optimize

    if out is None and not is_path(model):
        raise SettingsError(
            "a model in memory has no folder to write beside", hint="name the file with out="
        )

    def work(path: Path) -> Optimized:
        return optimize(
            path,
            settings_of(path, settings, config, options),
            profiles=profiles,
            out=out,
            plan_file=plan_file,
            settings_out=settings_out,
            certificate=certificate,
            check=check,
            progress=progress,
        )

    return on_files((model,), work)
