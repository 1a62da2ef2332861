"""The original, run once under the runtime's defaults: all that is asked of it, in one process.

Its outputs lie in files for whoever is held against it, and its graph as the runtime
optimises it is what settings are foreseen on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from memplan_cli.core.bindings import given_text
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.onnx_io.runs.runnable import random_ops
from memplan_cli.runtime.measuring.examine import examine, examined, start_examination
from memplan_cli.runtime.proofs.compare import require_weights, second_dims
from memplan_cli.runtime.workers.examination import Examination, Look
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.session_job import SessionJob

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.bindings import Binding
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.measuring.examine import Examined

RUNS = 3
"""The first grows the arena, the second makes the memory pattern, the third is steady."""

COMPARED = 2
"""Runs whose outputs are compared: what a run changes shows in the next."""

_IN_A_NODE = "while running"
"""What ONNX Runtime says where a kernel fails, and not the loading of a model."""

_DRAWN = "its inputs were drawn: --inputs FILE gives real ones; --no-validate runs nothing"


@dataclass(frozen=True, slots=True)
class Original:
    """An original that has run.

    Attributes:
        path: its file.
        check: how it ran, with ONNX Runtime's name of the provider; where outputs alone are
            looked at, there are fewer runs and no graph.
        binding: the dims at which its figures hold, and inputs that were given.
        looks: its inputs, and where its outputs are.
        seen: what its session has shown.
        repeats: whether its own runs gave the same bits.
        random: the ops that draw numbers, if there are any.
        nodes: names of the nodes at its top, in its order.
        notes: what has to be said of the comparison.
    """

    path: Path
    check: Check
    binding: Binding
    looks: tuple[Look, ...]
    seen: Examined = field(repr=False)
    repeats: bool
    random: tuple[str, ...]
    nodes: tuple[str, ...] = field(repr=False)
    notes: tuple[str, ...] = ()

    @property
    def provider(self) -> str:
        """Where it ran."""
        return self.check.provider

    @property
    def dims(self) -> Mapping[str, int]:
        """The number of each dim."""
        return self.binding.dims

    @property
    def runs(self) -> int:
        """Runs of each model."""
        return _runs(self.check)

    def session(self, model: Path, settings: RuntimeSettings) -> SessionJob:
        """Return how a model is run on the same inputs; one that was written, as it is loaded."""
        session = SessionJob(model, self.provider, self.looks[0].specs, settings).exact()
        return replace(session, as_loaded=model != self.path)


class Running:
    """An original that runs while something else is done, until the block is left."""

    def __init__(
        self, path: Path, model: ModelProto, check: Check, binding: Binding, folder: Path
    ) -> None:
        """Start an original under the defaults, its outputs and its graph in a folder.

        Args:
            path: the file.
            model: what is in it.
            check: where to run it, and what is looked at.
            binding: a number for each dim, and inputs that were given.
            folder: is there as long as the result is used.

        Raises:
            RuntimeUnavailableError: weights or the provider are missing.
        """
        require_weights(path, model=model)
        self.path, self.check, self.binding = path, check, binding
        self._random = random_ops(model)
        self._nodes = tuple(node.name for node in model.graph.node)
        provider = resolve_provider(check.provider)
        looks = _looks(model, binding, folder)
        self._examination = Examination(
            SessionJob(path, provider, looks[0].specs).exact(),
            looks,
            runs=_runs(check),
            compared=COMPARED,
            graph=folder / "original.onnx" if check.depth == "full" else None,
        )
        self._job = start_examination(self._examination, check.timeout)

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it if it runs still."""
        self.end()

    def end(self) -> None:
        """End it if it runs still."""
        self._job.end()

    def result(self) -> Original:
        """Wait for it.

        Raises:
            RuntimeUnavailableError: it does not run.
        """
        binding, looks = self.binding, self._examination.looks
        outcome = self._job.outcome()
        seen = examined(outcome, self._examination)
        if seen is None and len(looks) > 1:
            # Other dims may be what it cannot bear: what was asked for comes first.
            looks = looks[:1]
            outcome, seen = examine(
                replace(self._examination, looks=looks), self.check.timeout
            )
        if seen is None:
            at = binding_text(dict(sorted(binding.dims.items()))) or "its dims"
            what = f"{self.path} does not run at {at}{given_text(binding.feeds)}"
            if _IN_A_NODE in outcome.reason and not binding.feeds:
                raise RuntimeUnavailableError(f"{what}: {outcome.reason}", hint=_DRAWN)
            outcome.require(what)
            raise RuntimeUnavailableError(what)
        notes = []
        if len(seen.looks) > 1 and seen.looks[1].failure:
            other = binding_text(dict(sorted((second_dims(binding) or {}).items())))
            failure = seen.looks[1].failure
            notes = [f"one shape only: the original does not run at {other} ({failure})"]
            looks = looks[:1]
        return Original(
            path=self.path,
            check=replace(self.check, provider=self._examination.session.provider),
            binding=binding,
            looks=looks,
            seen=seen,
            repeats=not seen.differences,
            random=self._random,
            nodes=self._nodes,
            notes=tuple(notes),
        )


def run_original(
    path: Path, model: ModelProto, check: Check, binding: Binding, folder: Path
) -> Original:
    """Run an original once under the defaults, its outputs and its graph in a folder.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, or it does not run.
    """
    with Running(path, model, check, binding, folder) as running:
        return running.result()


def _runs(check: Check) -> int:
    return RUNS if check.depth == "full" else COMPARED


def _looks(model: ModelProto, binding: Binding, folder: Path) -> tuple[Look, ...]:
    """Return the inputs at the dims asked for, and at others where a dim is free."""
    others = second_dims(binding)
    found = []
    for number, dims in enumerate((binding.dims, *([others] if others else []))):
        place, kept = folder / f"outputs{number}", folder / f"kept{number}"
        place.mkdir()
        kept.mkdir()
        found.append(Look(feed_specs(model, dims, binding.feeds), place, kept))
    return tuple(found)
