"""One model in one process: its outputs kept or compared, and all that was seen of its run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, Peaks, ProcessBytes
from memplan_cli.core.serialization import to_json
from memplan_cli.runtime.graph.executed import shapes_of
from memplan_cli.runtime.workers.bits import differences
from memplan_cli.runtime.workers.worker import start_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.results.observations import Difference
    from memplan_cli.runtime.graph.executed import RuntimeShapes
    from memplan_cli.runtime.workers.examination import Examination
    from memplan_cli.runtime.workers.worker import Job, Json, Outcome


Kind = Literal["examine", "reexamine"]
"""In a process that has done nothing before, or in one that has answered about the model."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How the outputs on one set of inputs differ; ``failure`` where it does not run there."""

    differences: tuple[Difference, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """What one session has shown.

    Attributes:
        outputs: the names that were kept or compared.
        looks: by the inputs, the first those that the rest is about.
        peaks: what the arena and the process took.
        workspace: bytes that a kernel asks for besides, by node.
        nodes: ``[name, read, written, begin]`` of each kernel of the first run, in the order in
            which they were done.
        shapes: what the runtime infers of its own graph.
        graph: the runtime's own graph, if it was asked for.
    """

    outputs: tuple[str, ...]
    looks: tuple[Compared, ...]
    peaks: Peaks
    workspace: Mapping[str, int] = field(repr=False)
    nodes: Sequence[Any] = field(repr=False)
    shapes: RuntimeShapes = field(repr=False)
    graph: Path | None = None

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Return what differs on any inputs."""
        return tuple(each for look in self.looks for each in look.differences)


def start_examination(asked: Examination, timeout: float, kind: Kind = "examine") -> Job:
    """Start an examination of a model, in a process of its own or one that knows it."""
    job = {"examination": to_json(asked)}
    return start_job(kind, job, timeout=timeout, about=asked.session.model)


def examine(
    asked: Examination, timeout: float, kind: Kind = "examine"
) -> tuple[Outcome, Examined | None]:
    """Examine a model in a process of its own, or one that has answered about it.

    Returns:
        What became of the process, and what was seen where it ended well.
    """
    with start_examination(asked, timeout, kind) as job:
        outcome = job.outcome()
        return outcome, examined(outcome, asked)


def examined(outcome: Outcome, asked: Examination) -> Examined | None:
    """Return what was seen by a process that ended well."""
    return _read(outcome.result, asked) if outcome.ok else None


def _read(result: Json, asked: Examination) -> Examined:
    found: Any = result
    process = found["process"]
    # The first run, which grows the arena, counts in no time.
    times, effort = found["milliseconds"][1:], found["effort"][1:]
    peaks = replace(
        from_json(Peaks, found["peaks"], "the job's result"),
        milliseconds=median(times) if times else None,
        effort=median(effort) if effort and asked.session.provider == CPU else None,
        process=from_json(ProcessBytes, process, "the job's result") if process else None,
    )
    return Examined(
        outputs=tuple(found["outputs"]),
        looks=tuple(Compared(differences(look), look["failure"]) for look in found["looks"]),
        peaks=peaks,
        workspace=found["workspace"],
        nodes=found["nodes"],
        shapes=shapes_of(found["types"]),
        graph=asked.graph,
    )
