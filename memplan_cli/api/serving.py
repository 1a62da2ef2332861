"""Requests of changing size: settings for all of them, and many of them served."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.files.binding import (
    assumed_in,
    bind,
    binding_alone,
    binding_of,
    refuse_run,
)
from memplan_cli.api.files.model_file import bind_whole, read_model
from memplan_cli.api.files.sources import on_files
from memplan_cli.api.request import settings_of
from memplan_cli.api.settings import runs_as_written
from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT, RuntimeSettings
from memplan_cli.core.selection import nearest
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.progress import Progress
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.settings import ServingSettings
    from memplan_cli.features.serving.soak import Course, Soak
    from memplan_cli.settings.settings import Settings


_SHARE = 0.8
"""Of the time limit of a process, for requests."""

AS_WRITTEN = ("graph_optimization_level", "execution_order")
"""What has to stay of the session of a file that has to run as it stands."""


@dataclass(frozen=True, slots=True)
class SoakTerms:
    """What requests are made.

    Attributes:
        requests: how many, under each configuration.
        sequence: the order of their sizes, one of `SEQUENCES`.
        seed: of sizes and inputs.
        seconds: after so many of the first configuration no further request is begun.
        timeout: seconds for each process.
    """

    requests: int = 1000
    sequence: str = "random"
    seed: int = 0
    seconds: float = DEFAULT_TIMEOUT / 2
    timeout: float = DEFAULT_TIMEOUT


@dataclass(frozen=True, slots=True)
class RangeSettings:
    """Settings for all sizes within bounds, and what has to be said about them."""

    serving: ServingSettings
    bounds: dict[str, tuple[int, int]]
    notes: tuple[str, ...] = ()


def range_settings(
    model: FilePath,
    given: Settings,
    timeout: float | None = None,
    base: RuntimeSettings | None = None,
) -> RangeSettings:
    """Return the runtime options under which a process stays lowest within bounds of dims.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        given: Bounds, and what binds the other dims.
        timeout: Seconds for each run that confirms them; None predicts only.
        base: Settings that have to stay; None leaves those that the file names.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.features.serving.loads import predict_sizes
    from memplan_cli.features.serving.settings import choose

    refuse_run(given, "--measure" if timeout is not None else "")
    service, notes = service_of(Path(model), given, timeout or DEFAULT_TIMEOUT)
    service = service if base is None else replace(service, base=base)
    if timeout is not None:
        found = _measured(service)
    else:
        found = choose(predict_sizes(service), service.extent.count, service.base)
        notes = (*notes, "predicted, not measured: kernels' workspace is not included")
    return RangeSettings(found, dict(service.extent.bounds), (*notes, *_looked_at(found)))


def soak(
    model: ModelSource,
    settings: Settings | None = None,
    *,
    terms: SoakTerms | None = None,
    progress: Progress | None = None,
    config: FilePath | None = None,
    **options: object,
) -> Soak:
    """Serve many requests of changing size under the defaults and under settings for them.

    Args:
        model: A model, as a file or in memory.
        settings: Bounds of the dims of requests, and what binds the others.
        terms: How many requests, in which order, and how long they may take.
        progress: Called with the name of each stage.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``: ``bounds={"batch": (1, 8)}``.

    Raises:
        MemplanError: the model does not run here, or has no dim of a name.
    """

    def work(path: Path) -> Soak:
        return _soak(path, settings_of(path, settings, config, options), terms, progress)

    return on_files((model,), work)


def _soak(
    path: Path, given: Settings, terms: SoakTerms | None, progress: Progress | None
) -> Soak:
    from memplan_cli.features.serving.sizes import requests
    from memplan_cli.features.serving.soak import Requests, Soak, configurations, serve

    terms, tell = terms or SoakTerms(), progress or silent
    refuse_run(given, "soak")
    service, notes = service_of(path, given, terms.timeout)
    tell("choosing settings")
    serving = _measured(service)
    order = requests(service.extent, terms.sequence, terms.requests, terms.seed)
    tell("serving requests")
    # The session has to be made too, and a process that is late is ended.
    seconds = min(terms.seconds, _SHARE * terms.timeout)
    courses = serve(service, Requests(order, seconds), configurations(serving))
    return Soak(
        model=str(path),
        bounds=service.extent.bounds,
        sequence=terms.sequence,
        seed=terms.seed,
        asked=terms.requests,
        serving=serving,
        courses=courses,
        notes=(*notes, *_looked_at(serving), *_fewer(courses)),
    )


def _fewer(courses: Sequence[Course]) -> Iterator[str]:
    """Yield the configurations that had no time for as many requests as the first."""
    for one in courses[1:]:
        if one.requests < courses[0].requests:
            yield f"{one.name}: {one.requests} requests in its time"


def _measured(service: Service) -> ServingSettings:
    from memplan_cli.features.serving.loads import measure_sizes
    from memplan_cli.features.serving.settings import choose
    from memplan_cli.features.serving.soak import confirmed

    return confirmed(
        service, choose(measure_sizes(service), service.extent.count, service.base)
    )


def _looked_at(found: ServingSettings) -> tuple[str, ...]:
    """Say what the bound was found by, where that is not every size."""
    if found.exhaustive:
        return ()
    seen = f"{found.looked_at} of {found.sizes} sizes were simulated, the corners among them"
    return (f"{seen}: the bound is of these",)


def service_of(path: Path, given: Settings, timeout: float) -> tuple[Service, tuple[str, ...]]:
    """Return what is served, and what was assumed of dims without bounds.

    Raises:
        SettingsError: there are no bounds, or they are of no dim.
    """
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.sizes import Extent

    file = read_model(path)
    given = replace(binding_alone(given), bounds=given.bounds)
    _refuse_bounds(file, given)
    bind(file.model, given)
    most = {name: high for name, (_, high) in given.bounds.items()}
    rest = bind_whole(file, replace(given, dims={**given.dims, **most}, bounds={}))
    binding = binding_of(rest)
    dims = {name: value for name, value in binding.dims.items() if name not in given.bounds}
    binding = replace(binding, dims=dims)
    service = Service(path, Extent(given.bounds), binding, timeout, _base(file))
    return service, assumed_in(rest)


def _base(file: ModelFile) -> RuntimeSettings:
    """Return what a file that has to run as it stands says of its settings, nothing of others."""
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings

    recorded = recorded_settings(metadata_of(file.model))
    if recorded is None or not runs_as_written(recorded.settings):
        return RuntimeSettings()
    said = recorded.settings
    session = {key: value for key, value in said.session.items() if key in AS_WRITTEN}
    return RuntimeSettings(
        session=session, session_config=said.session_config, io_binding=said.io_binding
    )


def _refuse_bounds(file: ModelFile, given: Settings) -> None:
    """Refuse bounds that no request could have.

    Raises:
        SettingsError: naming the dim.
    """
    from memplan_cli.onnx_io.interface import free_dims

    names = tuple(free_dims(file.model))
    if not given.bounds:
        some = bounds_options(names)
        raise SettingsError(
            "no size of requests changes without bounds",
            hint=some or "the model has no free dim: one size is all it takes",
        )
    for name in given.bounds:
        if name in given.dims:
            raise SettingsError(f"dim {name!r} has both a number and bounds")
        if name not in names:
            there = (
                f"its inputs' dims are {', '.join(names)}" if names else "it has no free dim"
            )
            raise SettingsError(
                f"no dim is called {name!r}: {there}", hint=nearest(name, names)
            )
