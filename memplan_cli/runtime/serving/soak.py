"""Soak test: many requests of changing size, served by one process for each configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.run.spec import SessionSpec
from memplan_cli.runtime.serving.settings import DEFAULTS, NO_ARENA, ONE_REGION, SHRUNK
from memplan_cli.runtime.serving.sizes import requests
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.runtime.serving.loads import Service
    from memplan_cli.runtime.serving.settings import ServingSettings
    from memplan_cli.runtime.serving.sizes import Point

_SAMPLES = 200
"""Number of memory samples in each process."""

_COMPARED = 16
"""Requests whose outputs are compared between configurations."""

CHOSEN = "chosen"
"""The name of the chosen settings among the configurations."""

_CONFIRMING, _CORNERS, _CONFIRMING_SECONDS = 24, 8, 60.0
"""A confirmation: number of drawn sizes, number of corners, and seconds after which no request starts."""

_SHARE = 0.9
"""Share of the time limit for serving requests that another process has served already."""

_ROOM = (1.0, 1.03, 1.08, 1.15, 1.3)
"""Sizes of one region to try, as multiples of the predicted size."""

_LITTLE_ROOM = (1.0, 1.08)
"""Sizes of several regions to try. An additional region costs more than a factor."""

_ONE_THREAD = RuntimeSettings(session={"intra_op_num_threads": 1, "inter_op_num_threads": 1})


@dataclass(frozen=True, slots=True)
class Sample:
    """Private bytes after a request, beyond those of the process with its session."""

    request: int
    private: int


@dataclass(frozen=True, slots=True)
class Course:
    """How one configuration served the requests.

    Attributes:
        name: of the configuration.
        settings: the runtime's own.
        requests: number of requests served.
        samples: private memory after requests; empty if the system does not report it.
        highest: the most resident bytes at any time, beyond those of the process with its
            session; None if the system does not report it.
        held: the most bytes that the arena held after a request, without weights; None if the
            arena belongs to the session, which does not report it.
        median, slowest: milliseconds of a request: the median, and the 99th percentile.
        effort: median milliseconds of processor time.
        digests: of the outputs of some requests, by number.
    """

    name: str
    settings: RuntimeSettings
    requests: int
    samples: tuple[Sample, ...]
    highest: int | None
    held: int | None
    median: float
    slowest: float
    effort: float
    digests: Mapping[str, str]

    @property
    def growth(self) -> int | None:
        """The most that private memory had grown after a request, or None without samples."""
        return max((sample.private for sample in self.samples), default=None)


@dataclass(frozen=True, slots=True)
class Requests:
    """The sizes of requests in turn, and the seconds after which no request starts."""

    order: tuple[Point, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    """Many requests served with the defaults, the chosen settings, and some hand-made ones.

    Attributes:
        model: the file.
        bounds: of the dims of requests.
        sequence, seed, asked: order of the requests, its seed, and the wanted number of requests.
        serving: the chosen settings, and what they are predicted to hold.
        courses: how each configuration served the requests, the defaults first.
        notes: remarks for the report.
    """

    model: str
    bounds: Bounds
    sequence: str
    seed: int
    asked: int
    serving: ServingSettings
    courses: tuple[Course, ...]
    notes: tuple[str, ...] = ()

    @property
    def unequal(self) -> tuple[str, ...]:
        """The configurations whose outputs differ from those of the defaults."""
        return unequal(self.courses)

    @property
    def held(self) -> int | None:
        """The most bytes that the arena held with the chosen settings."""
        return next((one.held for one in self.courses if one.name == CHOSEN), None)

    @property
    def exceeded(self) -> bool:
        """Whether the arena held more than the bound of the chosen settings."""
        bound = self.serving.chosen.bound
        return bound is not None and self.held is not None and self.held > bound

    @property
    def passed(self) -> bool:
        """Whether all outputs are equal and the bound was kept."""
        return not self.unequal and not self.exceeded


def configurations(serving: ServingSettings) -> dict[str, RuntimeSettings]:
    """Return the settings to compare: the defaults, the chosen ones, and usual hand-made ones."""
    known = {one.name: one.settings for one in serving.candidates}
    others = {name: known[name] for name in (NO_ARENA, SHRUNK)}
    return {DEFAULTS: known[DEFAULTS], CHOSEN: serving.chosen.settings, **others}


def confirmed(service: Service, serving: ServingSettings) -> ServingSettings:
    """Return the settings with regions in which requests at the corners fit when they are run.

    The order in which a kernel allocates workspace and outputs is unknown before a run, and it can
    add or remove a hole.
    """
    if serving.chosen.bound is None:
        return serving
    corners = (service.extent.largest, *service.extent.corners()[:_CORNERS])
    drawn = requests(service.extent, "alternating", _CONFIRMING, 0)
    wanted = Requests((*corners, *drawn, *reversed(corners)), _CONFIRMING_SECONDS)
    for fitted in rooms(serving):
        (course,) = serve(service, wanted, {CHOSEN: fitted.chosen.settings})
        if course.held is None or course.held <= (fitted.chosen.bound or 0):
            return fitted
    return serving.unbounded()


def rooms(serving: ServingSettings) -> list[ServingSettings]:
    """Return every bounded candidate with regions of several sizes, the lowest bound first.

    A candidate that is slightly better in the simulation may need a third more in a run, and then
    another one that runs as predicted is better.
    """
    found = [
        replace(serving, chosen=one).in_regions(factor)
        for one in serving.candidates
        if one.bound is not None
        for factor in (_ROOM if one.name.startswith(ONE_REGION) else _LITTLE_ROOM)
    ]
    return sorted(found, key=lambda one: one.chosen.bound or 0)


def serve(
    service: Service, wanted: Requests, configurations: Mapping[str, RuntimeSettings]
) -> tuple[Course, ...]:
    """Return how each configuration served the same requests, each in a process of its own.

    If the time was over before the first had served all, the others serve as many as the first.

    Raises:
        RuntimeUnavailableError: weights are missing, or it does not run here.
    """
    require_weights(service.model)
    found: list[Course] = []
    for name, settings in configurations.items():
        course = _served(service, wanted, name, settings)
        if not found:
            wanted = Requests(wanted.order[: course.requests], _SHARE * service.timeout)
        found.append(course)
    return tuple(found)


def unequal(courses: Sequence[Course]) -> tuple[str, ...]:
    """Return the configurations whose outputs differ from those of the first."""
    first = courses[0].digests
    return tuple(
        one.name
        for one in courses[1:]
        if any(one.digests[number] != first[number] for number in one.digests.keys() & first)
    )


def _served(
    service: Service, wanted: Requests, name: str, settings: RuntimeSettings
) -> Course:
    sizes = tuple(dict.fromkeys(wanted.order))
    place = {point: at for at, point in enumerate(sizes)}
    count = len(wanted.order)
    session = SessionSpec(service.model.absolute(), CPU, settings.updated(_ONE_THREAD))
    job = {
        "session": to_json(session),
        "sizes": [[to_json(spec) for spec in specs] for specs in service.specs(sizes)],
        "order": [place[point] for point in wanted.order],
        "every": max(count // _SAMPLES, 1),
        "compared": sorted({at * count // _COMPARED for at in range(_COMPARED)}),
        "seconds": wanted.seconds,
    }
    outcome = run_job("soak", job, timeout=service.timeout)
    result: Any = outcome.require(f"{service.model} could not be served under {name}")
    times = sorted(result["milliseconds"])
    return Course(
        name=name,
        settings=settings,
        requests=len(times),
        samples=tuple(Sample(*sample) for sample in result["samples"]),
        highest=result["highest"],
        held=max(result["held"], default=None),
        median=median(times),
        slowest=times[ceil(0.99 * len(times)) - 1],
        effort=median(result["effort"]),
        digests=result["digests"],
    )
