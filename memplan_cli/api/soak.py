"""``memplan soak``: serve many requests of changing size, and record the process's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import require_runs
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import RUN_SETTINGS, accepts_option_names
from memplan_cli.api.request import settings_of
from memplan_cli.api.request_range import measured_settings, sampling_notes, service_that_runs
from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT

if TYPE_CHECKING:
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.features.serving.soak import Soak
    from memplan_cli.settings.settings import Settings

_SERVING_SHARE = 0.8
"""Share of a process's time limit for requests; the rest is for creating its session."""


@accepts_option_names(settings=(*RUN_SETTINGS, "bounds"))
def soak(
    model: ModelSource,
    settings: Settings | None = None,
    *,
    requests: int = 1000,
    sequence: str = "random",
    seed: int = 0,
    seconds: float = DEFAULT_TIMEOUT / 2,
    timeout: float = DEFAULT_TIMEOUT,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Soak:
    """Serve requests of changing size with ONNX Runtime's defaults and with chosen settings.

    Args:
        model: A model, as a file or in memory.
        settings: Bounds of the dims of requests, and what binds the others.
        requests: Number of requests under each configuration.
        sequence: The order of their sizes, one of `SEQUENCES`.
        seed: Of sizes and inputs.
        seconds: Time for the requests of the first configuration. The others then serve as many
            requests as the first one did in this time.
        timeout: Seconds for each process that runs the model.
        progress: Called with the name of each stage.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``bounds={"batch": (1, 8)}``.

    Raises:
        MemplanError: the model does not run here, or has no dim of a name.
    """
    from memplan_cli.features.serving.sizes import request_sizes
    from memplan_cli.features.serving.soak import RequestSequence, Soak, configurations, serve

    progress = progress or silent
    with model_paths(model) as files:
        settings = settings_of(files.path, settings, config, options)
        require_runs(settings, "soak")
        progress("choosing settings")
        service, notes = service_that_runs(files.path, settings, timeout)
        serving = measured_settings(service)
        order = request_sizes(service.extent, sequence, requests, seed)
        progress("serving requests")
        # A process that is ended by its time limit has no result.
        limit = min(seconds, _SERVING_SHARE * timeout)
        runs = serve(service, RequestSequence(order, limit), configurations(serving))
        # Other configurations than the first, the runtime's defaults, are ended by the time limit of their
        # process if they are far slower. Their memory may still grow then.
        fewer_requests = [
            f"{run.name}: {run.requests} requests in its time"
            for run in runs[1:]
            if run.requests < runs[0].requests
        ]
        result = Soak(
            model=str(files.path),
            bounds=service.extent.bounds,
            sequence=sequence,
            seed=seed,
            requested=requests,
            serving=serving,
            runs=runs,
            notes=(*notes, *sampling_notes(serving), *fewer_requests),
        )
        return files.without_temporary_folder(result)
