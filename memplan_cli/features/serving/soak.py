"""Serve requests of changing size, in one process for each configuration of the runtime.

`serve` is used twice: by the soak test, which compares configurations, and by `confirm_bound`,
which tests whether an arena keeps its predicted bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from memplan_cli.core.json_types import one_of
from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import Keys, json_form, to_json
from memplan_cli.core.symbolic.bounds import Bounds  # noqa: TC001 - a type to read by
from memplan_cli.features.serving.settings import (
    DEFAULTS,
    NO_ARENA,
    SHRUNK,
    ServingSettings,
)
from memplan_cli.features.serving.sizes import BOUNDS_FORM, SEQUENCES, request_sizes
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.workers.spec import SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.json_types import Json
    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.sizes import Point

_SOAK_JOB = "memplan_cli.features.serving.soak_job:run"

_MEMORY_SAMPLES = 200
"""Number of memory samples in each process."""

_COMPARED_REQUESTS = 16
"""Number of requests whose outputs are compared between configurations."""

CHOSEN = "chosen"
"""The name of the chosen settings among the configurations."""

_CONFIRMING_DRAWS = 24
"""Number of drawn sizes with which a bound is confirmed."""

_CONFIRMING_CORNERS = 8
"""Number of corners of the bounds with which a bound is confirmed."""

_CONFIRMING_SECONDS = 60.0
"""Seconds after which no request of a confirmation starts."""

_LATER_RUNS_SHARE = 0.9
"""Share of the process's time limit in which later configurations serve what the first served."""

_ENLARGEMENTS = (1.0, 1.03, 1.08, 1.15, 1.3)
"""Sizes of the region to try, as multiples of the predicted size."""

_ONE_THREAD = RuntimeSettings(session={"intra_op_num_threads": 1, "inter_op_num_threads": 1})


@dataclass(frozen=True, slots=True)
class Sample:
    """Private bytes after a request, beyond those of the process with its session."""

    request: int
    private: int


_PAIRS = json_form(
    type_hint=tuple[tuple[int, int], ...],
    write=lambda samples: [(sample.request, sample.private) for sample in samples],
)


@dataclass(frozen=True, slots=True)
class ConfigurationRun:
    """Memory and time of a process that served all requests under one configuration.

    Attributes:
        requests: how many were served.
        samples: private memory over the requests; empty if unknown.
        highest: the most resident bytes at any time, beyond those of the process with its
            session; null if unknown.
        held: the most bytes that the arena held after a request, without weights; null if the
            arena is private to the session.
        median_ms: the median time of a request in milliseconds.
        p99_ms: the 99th percentile of the time of a request in milliseconds.
        cpu_ms: the median processor time of a request in milliseconds.
        digests: digests of the outputs of some requests, by number.
    """

    json_keys: ClassVar[Keys] = (
        "name",
        "settings",
        "growth",
        "highest",
        "held",
        ("milliseconds.median", "median_ms"),
        ("milliseconds.p99", "p99_ms"),
        ("milliseconds.cpu", "cpu_ms"),
        "samples",
    )

    name: str
    settings: RuntimeSettings
    requests: int
    samples: tuple[Sample, ...] = field(metadata=_PAIRS)
    highest: int | None
    held: int | None
    median_ms: float
    p99_ms: float
    cpu_ms: float
    digests: Mapping[str, str]

    @property
    def growth(self) -> int | None:
        """The largest growth of private memory after a request; None if it was not sampled."""
        return max((sample.private for sample in self.samples), default=None)


@dataclass(frozen=True, slots=True)
class RequestSequence:
    """The sizes of requests in the order of arrival, and the seconds after which none starts."""

    sizes: tuple[Point, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    """Many requests of changing size, served under several configurations.

    Attributes:
        sequence: the order of the requests, one of `SEQUENCES`.
        seed: the seed of their sizes.
        requested: how many requests were to be served.
        runs: the configurations, the runtime's defaults first.
        notes: remarks for the user.
    """

    json_keys: ClassVar[Keys] = (
        "model",
        "bounds",
        "sequence",
        "seed",
        ("requests.asked", "requested"),
        ("requests.served", "served"),
        "passed",
        ("differences", "differing"),
        "exceeded",
        "serving",
        ("configurations", "runs"),
        "notes",
    )

    model: str
    bounds: Bounds = field(metadata=BOUNDS_FORM)
    sequence: Annotated[str, one_of(*SEQUENCES)]
    seed: int
    requested: int
    serving: ServingSettings
    runs: tuple[ConfigurationRun, ...]
    notes: tuple[str, ...] = ()

    __repr__ = one_line_repr

    @property
    def served(self) -> int:
        """The number of requests that the first configuration served."""
        return self.runs[0].requests

    @property
    def differing(self) -> tuple[str, ...]:
        """The configurations with outputs that differ from those of the first configuration."""
        expected = self.runs[0].digests
        return tuple(
            run.name
            for run in self.runs[1:]
            if any(
                run.digests[request] != expected[request]
                for request in run.digests.keys() & expected
            )
        )

    @property
    def held(self) -> int | None:
        """The most bytes that the arena held with the chosen settings; None if unknown."""
        return next((run.held for run in self.runs if run.name == CHOSEN), None)

    @property
    def exceeded(self) -> bool:
        """Whether the arena held more than the bound of the chosen settings."""
        bound = self.serving.chosen.bound
        return bound is not None and self.held is not None and self.held > bound

    @property
    def passed(self) -> bool:
        """Whether all outputs are equal and the bound was not exceeded."""
        return not self.differing and not self.exceeded


def configurations(serving: ServingSettings) -> dict[str, RuntimeSettings]:
    """Return the settings to compare: the defaults, the chosen ones, and usual manual ones."""
    settings = {candidate.name: candidate.settings for candidate in serving.candidates}
    return {
        DEFAULTS: settings[DEFAULTS],
        CHOSEN: serving.chosen.settings,
        NO_ARENA: settings[NO_ARENA],
        SHRUNK: settings[SHRUNK],
    }


def confirm_bound(service: Service, serving: ServingSettings) -> ServingSettings:
    """Return settings for which the arena holds no more than its bound when requests are served.

    The bound is the size of the arena's only region. It was predicted, and a request may need more, as the
    order in which a kernel allocates workspace and outputs is unknown before a run. So the predicted size
    and larger ones are tried in runs. If the arena outgrows all of them, the result has no bound.
    """
    if serving.chosen.bound is None:
        return serving
    extremes = (service.extent.largest, *service.extent.corners()[:_CONFIRMING_CORNERS])
    drawn = request_sizes(service.extent, "alternating", _CONFIRMING_DRAWS, seed=0)
    # The extreme sizes are served first, and again after others, in the opposite order.
    sizes = (*extremes, *drawn, *reversed(extremes))
    sequence = RequestSequence(sizes, _CONFIRMING_SECONDS)
    for candidate in enlarged_candidates(serving):  # from the smallest region to the largest
        (run,) = serve(service, sequence, {CHOSEN: candidate.chosen.settings})
        region_bytes = candidate.chosen.held
        # If the arena cannot be read (None), the prediction stands.
        if run.held is None or run.held <= region_bytes:
            return candidate
    return serving.unbounded()


def enlarged_candidates(serving: ServingSettings) -> list[ServingSettings]:
    """Return settings to try in a run: each candidate whose arena is one region, at its predicted size and larger.

    They are sorted by the size of the region, so the first settings that suffice hold the fewest bytes.
    """
    # A bound is the size of an arena's only region; other candidates have none.
    with_region = [item for item in serving.candidates if item.bound is not None]
    enlarged = [
        replace(serving, chosen=candidate).with_larger_region(factor)
        for candidate in with_region
        for factor in _ENLARGEMENTS  # the first is 1: the predicted size
    ]
    return sorted(enlarged, key=lambda settings: settings.chosen.held)  # the region's bytes


def serve(
    service: Service,
    sequence: RequestSequence,
    configurations: Mapping[str, RuntimeSettings],
) -> tuple[ConfigurationRun, ...]:
    """Serve the same requests under each configuration, each in a process of its own.

    If the time ends before the first configuration has served all requests, the others serve only
    as many as the first. They get nearly all of the time that a process may take, because a slower
    configuration needs longer for them. One that is still too slow serves fewer.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not run here.
    """
    require_weights(service.model)
    runs: list[ConfigurationRun] = []
    for name, settings in configurations.items():
        run = _run_configuration(service, sequence, name, settings)
        if not runs:
            seconds = _LATER_RUNS_SHARE * service.timeout  # the process ends in time by itself
            sequence = RequestSequence(sequence.sizes[: run.requests], seconds)
        runs.append(run)
    return tuple(runs)


def _run_configuration(
    service: Service, sequence: RequestSequence, name: str, settings: RuntimeSettings
) -> ConfigurationRun:
    """Serve requests in a worker process, with one thread, and return its memory and times.

    Raises:
        RuntimeUnavailableError: the process failed.
    """
    session = SessionSpec(service.model.absolute(), CPU, settings.updated(_ONE_THREAD))
    job = {"session": to_json(session), **_requests_of_job(service, sequence)}
    outcome = run_job(_SOAK_JOB, job, timeout=service.timeout)
    result: Any = outcome.require(f"{service.model} could not be served under {name}")
    milliseconds = sorted(result["milliseconds"])
    return ConfigurationRun(
        name=name,
        settings=settings,
        requests=len(milliseconds),
        samples=tuple(Sample(*sample) for sample in result["samples"]),
        highest=result["highest"],
        held=max(result["held"], default=None),
        median_ms=median(milliseconds),
        p99_ms=milliseconds[ceil(0.99 * len(milliseconds)) - 1],
        cpu_ms=median(result["cpu_milliseconds"]),
        digests=result["digests"],
    )


def _requests_of_job(service: Service, sequence: RequestSequence) -> Json:
    """Return the entries of a job of `soak_job` that say which requests to serve and what to record.

    ``sizes`` tells how the inputs of each distinct size are drawn, ``order`` the size of each request. After
    each ``every`` requests memory is sampled. The outputs of the requests in ``compared``, evenly spaced from
    the first on, are compared with those of other configurations.
    """
    distinct_sizes = tuple(dict.fromkeys(sequence.sizes))
    index_of_size = {size: index for index, size in enumerate(distinct_sizes)}
    count = len(sequence.sizes)
    compared = {index * count // _COMPARED_REQUESTS for index in range(_COMPARED_REQUESTS)}
    return {
        "sizes": [
            [to_json(spec) for spec in specs] for specs in service.specs(distinct_sizes)
        ],
        "order": [index_of_size[size] for size in sequence.sizes],
        "every": max(count // _MEMORY_SAMPLES, 1),
        "compared": sorted(compared),
        "seconds": sequence.seconds,
    }
