"""Have the runtime write the graph that it would run, and say the shapes it knows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.type_names import dtype_of

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.worker import Json


def run(job: Json) -> Json:
    """Load ``model`` and, with ``out``, write the optimised graph there.

    With ``shapes``, return the type and shape of each output of the session.
    """
    settings = from_json(RuntimeSettings, job["settings"], "the settings")
    if job.get("out"):
        out = Path(str(job["out"]))
        settings = settings.updated(
            RuntimeSettings(
                session={"optimized_model_filepath": str(out)},
                session_config={
                    "session.optimized_model_external_initializers_file_name": f"{out.name}.data",
                    "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
                },
            )
        )
    session = make_session(Path(str(job["model"])), settings, str(job["provider"]))
    found: dict[str, object] = {}
    if job.get("shapes"):
        for output in session.get_outputs():
            if output.type.startswith("tensor("):
                shape = [dim if isinstance(dim, int | str) else None for dim in output.shape]
                found[output.name] = [dtype_of(output.type), shape]
    return {"shapes": found}
