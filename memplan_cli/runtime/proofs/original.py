"""The original, run once under the runtime's defaults: all that is asked of it, in one process.

Its outputs lie in files for whoever is held against it, and its graph as the runtime
optimises it is what settings are foreseen on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Self

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.onnx_io.runs.runnable import random_ops
from memplan_cli.runtime.measuring.examine import Examining, examine
from memplan_cli.runtime.proofs.compare import require_weights, second_dims
from memplan_cli.runtime.workers.bits import Tolerance
from memplan_cli.runtime.workers.examination import Examination, Look
from memplan_cli.runtime.workers.session import deterministic, resolve_provider
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.bindings import Feeds
    from memplan_cli.runtime.measuring.examine import Examined

Depth = Literal["outputs", "full"]
"""Outputs alone, or the memory of the same runs too."""

RUNS = 3
"""The first grows the arena, the second makes the memory pattern, the third is steady."""

COMPARED = 2
"""Runs whose outputs are compared: what a run changes shows in the next."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How an original is run, and what it is run for.

    Attributes:
        provider: ``auto``, ``cpu`` or ``cuda``.
        dims: values for symbolic dims.
        feeds: inputs that were given; the others are drawn.
        timeout: seconds for each process.
        tolerance: zero asks for the same bits.
        depth: what is looked at; outputs alone take fewer runs and no graph.
        assumed: the dims whose number nobody said, which are tried at a second one too.
    """

    provider: str = "auto"
    dims: Mapping[str, int] = field(default_factory=dict)
    feeds: Feeds = field(default_factory=dict)
    timeout: float = 600.0
    tolerance: Tolerance = field(default_factory=Tolerance)
    depth: Depth = "full"
    assumed: Collection[str] = ()

    @property
    def runs(self) -> int:
        """Runs of each model."""
        return RUNS if self.depth == "full" else COMPARED


@dataclass(frozen=True, slots=True)
class Original:
    """An original that has run.

    Attributes:
        path: its file.
        provider: where it ran.
        asked: how.
        dims: at which its figures hold.
        looks: its inputs, and where its outputs are.
        seen: what its session has shown.
        repeats: whether its own runs gave the same bits.
        random: the ops that draw numbers, if there are any.
        nodes: names of the nodes at its top, in its order.
        notes: what has to be said of the comparison.
    """

    path: Path
    provider: str
    asked: Asked
    dims: Mapping[str, int]
    looks: tuple[Look, ...]
    seen: Examined = field(repr=False)
    repeats: bool
    random: tuple[str, ...]
    nodes: tuple[str, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    def session(self, model: Path, settings: RuntimeSettings) -> SessionJob:
        """Return how a model is run on the same inputs."""
        exact = settings.updated(deterministic(self.provider))
        return SessionJob(model, self.provider, self.looks[0].specs, exact)


class Running:
    """An original that runs while something else is done, until the block is left."""

    def __init__(
        self,
        path: Path,
        model: ModelProto,
        asked: Asked,
        dims: Mapping[str, int],
        folder: Path,
    ) -> None:
        """Start an original under the defaults, its outputs and its graph in a folder.

        Args:
            path: the file.
            model: what is in it.
            asked: how to run it.
            dims: what each dim of the inputs is at the first inputs.
            folder: is there as long as the result is used.

        Raises:
            RuntimeUnavailableError: weights or the provider are missing.
        """
        require_weights(path, model=model)
        self.path, self.asked, self.dims = path, asked, dims
        self._random = random_ops(model)
        self._nodes = tuple(node.name for node in model.graph.node)
        self._provider = provider = resolve_provider(asked.provider)
        looks = _looks(model, asked, folder)
        defaults = RuntimeSettings().updated(deterministic(provider))
        self._examination = Examination(
            SessionJob(path, provider, looks[0].specs, defaults),
            looks,
            runs=asked.runs,
            compared=COMPARED,
            graph=folder / "original.onnx" if asked.depth == "full" else None,
        )
        self._under_way = Examining(self._examination, asked.timeout)

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it if it runs still."""
        self.end()

    def end(self) -> None:
        """End it if it runs still."""
        self._under_way.end()

    def result(self) -> Original:
        """Wait for it.

        Raises:
            RuntimeUnavailableError: it does not run.
        """
        asked, looks = self.asked, self._examination.looks
        outcome, seen = self._under_way.result()
        if seen is None and len(looks) > 1:
            # Other dims may be what it cannot bear: what was asked for comes first.
            looks = looks[:1]
            outcome, seen = examine(replace(self._examination, looks=looks), asked.timeout)
        if seen is None:
            at = binding_text(dict(sorted(asked.dims.items()))) or "its dims"
            outcome.require(f"{self.path} does not run at {at}{given_text(asked.feeds)}")
            raise RuntimeUnavailableError(f"{self.path} does not run")
        notes = []
        if len(seen.looks) > 1 and seen.looks[1].failure:
            other = binding_text(
                dict(sorted((second_dims(asked.dims, asked.assumed) or {}).items()))
            )
            failure = seen.looks[1].failure
            notes = [f"one shape only: the original does not run at {other} ({failure})"]
            looks = looks[:1]
        return Original(
            path=self.path,
            provider=self._provider,
            asked=asked,
            dims=self.dims,
            looks=looks,
            seen=seen,
            repeats=not seen.differences,
            random=self._random,
            nodes=self._nodes,
            notes=tuple(notes),
        )


def run_original(
    path: Path, model: ModelProto, asked: Asked, dims: Mapping[str, int], folder: Path
) -> Original:
    """Run an original once under the defaults, its outputs and its graph in a folder.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or it does not run.
    """
    with Running(path, model, asked, dims, folder) as running:
        return running.result()


def _looks(model: ModelProto, asked: Asked, folder: Path) -> tuple[Look, ...]:
    """Return the inputs at the dims asked for, and at others where a dim is free."""
    others = second_dims(asked.dims, asked.assumed)
    found = []
    for number, dims in enumerate((asked.dims, *([others] if others else []))):
        place, kept = folder / f"outputs{number}", folder / f"kept{number}"
        place.mkdir()
        kept.mkdir()
        found.append(Look(feed_specs(model, dims, asked.feeds), place, kept))
    return tuple(found)
