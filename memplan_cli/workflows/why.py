"""Why a peak is as high as it is, and why one tensor needs memory of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.reporting.findings import why as findings
from memplan_cli.workflows.report import planned
from memplan_cli.workflows.request import Request

if TYPE_CHECKING:
    from memplan_cli.reporting.findings.why import PeakStory, TensorStory
    from memplan_cli.workflows.request import FilePath


def why_peak(path: FilePath, request: Request | None = None) -> PeakStory:
    """Say what is live at the peak of a model or plan, and who needs it.

    Raises:
        MemplanError: the file or a setting is wrong.
    """
    return findings.why_peak(planned(path, request or Request()))


def why_tensor(path: FilePath, tensor: str, request: Request | None = None) -> TensorStory:
    """Say who keeps one tensor of a model or plan alive.

    Raises:
        MemplanError: the file or a setting is wrong, or there is no such tensor.
    """
    return findings.why_tensor(planned(path, request or Request()), tensor)
