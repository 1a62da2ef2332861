"""Runs that record what depends on the data of a model: branches, iteration counts, sizes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import UNOPTIMIZED
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.numbered_nodes import number_nodes
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.simulate.observation import executions_of, observation_of
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.program import Program
    from memplan_cli.runtime.simulate.observation import RunObservation
    from memplan_cli.runtime.workers.spec import RunConditions


def observe(
    model: Path, program: Program, conditions: RunConditions, original: Path | None = None
) -> RunObservation:
    """Run a model once, without optimization, and return its branches, iteration counts and sizes.

    Error messages name the file ``original``, if it is given: ``model`` may be a dump of it.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    input_sets = (conditions.input_set(model).specs,)
    where = f" at {binding_text(conditions.dims)}" if conditions.dims else ""
    subject = f"{original or model}{where}"
    (observation,) = observe_many(model, program, input_sets, conditions, subject)
    return observation


def observe_many(
    model: Path,
    program: Program,
    input_sets: Sequence[Sequence[FeedSpec]],
    conditions: RunConditions,
    subject: str,
) -> tuple[RunObservation, ...]:
    """Run a model once on each input set, without optimization; return what its kernels reported in each run.

    That is the size of each tensor that an op wrote, how often subgraphs ran, and which weights were packed.

    Args:
        model: the file; it may be a dump of the user's model.
        program: its graph.
        input_sets: the inputs of each run, which replace those of ``conditions``.
        conditions: the provider and the time limit. Feeds that users gave are named in error messages.
        subject: the user's model with the sizes that it runs at, for error messages, such as
            ``model.onnx at batch=4``.

    Raises:
        RuntimeUnavailableError: the model does not run here on one of the input sets.
    """
    # Kernels are assigned to ops by the names of nodes, which must be distinct.
    copy = number_nodes(load_model(model))
    with tempfile.TemporaryDirectory(prefix="memplan-observed-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(copy.data)
        session = SessionSpec(
            file, conditions.provider, UNOPTIMIZED, weights_folder=model.absolute().parent
        )
        inputs = tuple(InputSet(tuple(specs)) for specs in input_sets)
        spec = RunSpec(session, inputs, ("kernels",), runs=1)
        record = run_model(spec, timeout=conditions.timeout)
    if record.failure is not None:
        reason = copy.with_original_names(record.failure.reason)
        record = replace(record, failure=replace(record.failure, reason=reason))
    given = given_text(conditions.binding.feeds)
    record.require(f"{subject} could not be run for its sizes{given}")
    return tuple(
        observation_of(program, executions_of(kernels, copy.writes))
        for kernels in record.kernels or ()
    )
