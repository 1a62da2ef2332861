"""Soak test: many requests of changing size, served by one process for each configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from memplan_cli.core.json_types import one_of
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import SORTED, Keys, json_form, to_json
from memplan_cli.core.symbolic.bounds import Bounds  # noqa: TC001 - a type to read by
from memplan_cli.features.serving.settings import (
    DEFAULTS,
    NO_ARENA,
    ONE_REGION,
    SHRUNK,
    ServingSettings,
)
from memplan_cli.features.serving.sizes import SEQUENCES, requests
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.workers.spec import SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.features.serving.loads import Service
    from memplan_cli.features.serving.sizes import Point

_SOAK_JOB = "memplan_cli.features.serving.soak_job:run"

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


_PAIRS = json_form(
    type_hint=tuple[tuple[int, int], ...],
    write=lambda samples: [(sample.request, sample.private) for sample in samples],
)


@dataclass(frozen=True, slots=True)
class Course:
    """The memory and the time of one configuration for all requests.

    Attributes:
        name: the name of the configuration.
        settings: the runtime's options.
        requests: how many were served.
        samples: private memory over the requests; empty: unknown.
        highest: the most resident bytes at any time, beyond those of the process with its
            session; null: unknown.
        held: the most bytes that the arena held after a request, without weights; null: the
            arena is private to the session.
        median: the median time of a request in milliseconds.
        slowest: the 99th percentile of the same.
        effort: the median processor time of a request in milliseconds.
        digests: digests of the outputs of some requests, by number.
    """

    json_keys: ClassVar[Keys] = (
        "name",
        "settings",
        "growth",
        "highest",
        "held",
        ("milliseconds.median", "median"),
        ("milliseconds.p99", "slowest"),
        ("milliseconds.cpu", "effort"),
        "samples",
    )

    name: str
    settings: RuntimeSettings
    requests: int
    samples: tuple[Sample, ...] = field(metadata=_PAIRS)
    highest: int | None
    held: int | None
    median: float
    slowest: float
    effort: float
    digests: Mapping[str, str]

    @property
    def growth(self) -> int | None:
        """Return the largest growth of private memory after a request."""
        return max((sample.private for sample in self.samples), default=None)


@dataclass(frozen=True, slots=True)
class Requests:
    """The sizes of requests in turn, and the seconds after which no request starts."""

    order: tuple[Point, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Soak:
    """Many requests of changing size, served under several configurations.

    Attributes:
        model: the model's file.
        bounds: the smallest and the largest number of each dimension of a request.
        sequence: the order of the requests.
        seed: the seed of their sizes.
        asked: how many requests were asked for.
        serving: the chosen settings, and what the arena is predicted to hold.
        courses: the configurations, the runtime's defaults first.
        notes: remarks for the user.
    """

    json_keys: ClassVar[Keys] = (
        "model",
        "bounds",
        "sequence",
        "seed",
        ("requests.asked", "asked"),
        ("requests.served", "served"),
        "passed",
        ("differences", "unequal"),
        "exceeded",
        "serving",
        ("configurations", "courses"),
        "notes",
    )

    model: str
    bounds: Bounds = field(metadata=SORTED)
    sequence: Annotated[str, one_of(*SEQUENCES)]
    seed: int
    asked: int
    serving: ServingSettings
    courses: tuple[Course, ...]
    notes: tuple[str, ...] = ()

    @property
    def served(self) -> int:
        """Return how many requests the first configuration served."""
        return self.courses[0].requests

    @property
    def unequal(self) -> tuple[str, ...]:
        """Return the configurations whose outputs differ from those of the defaults."""
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
    outcome = run_job(_SOAK_JOB, job, timeout=service.timeout)
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
