"""``memplan doctor``: what is installed here, and what really works."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.api.models.sources import model_paths

if TYPE_CHECKING:
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.runtime.doctor import Diagnosis


def doctor(file: ModelSource | None = None) -> Diagnosis:
    """Return the installed versions, usable providers and conflicts of wheels.

    Args:
        file: A model that memplan wrote. The result then also has the versions and the processor that the
            model was made for, and names those that differ here as problems.

    Raises:
        ModelError: The file cannot be read.
    """
    from memplan_cli.runtime.doctor import diagnose

    if file is None:
        return diagnose(None)
    with model_paths(file) as files:
        return files.without_temporary_folder(diagnose(files.path))
