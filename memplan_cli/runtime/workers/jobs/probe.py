"""A trial of a provider: a session is made on it and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.runs.prepared_models import smallest_model
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Return the session's providers; any exception says that it does not work."""
    settings = RuntimeSettings(session_config={"session.disable_cpu_ep_fallback": "1"})
    provider = str(job["provider"])
    if provider == "CPUExecutionProvider":
        settings = RuntimeSettings()
    session = make_session(smallest_model(), settings, provider)
    (got,) = session.run(None, {"x": np.ones(4, np.float32)})
    if not np.allclose(got, np.exp(np.ones(4))):
        raise ArithmeticError(f"exp(1) came out as {got[0]}")
    return {"providers": session.get_providers()}
