"""Runs that record what depends on the data of a model: branches, iteration counts, sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import UNOPTIMIZED
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.runtime_query import number_nodes
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.simulate.observation import OpExecution, observation_of
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.program import Program
    from memplan_cli.runtime.simulate.observation import RunObservation
    from memplan_cli.runtime.workers.spec import RunConditions


def observe(model: Path, program: Program, conditions: RunConditions) -> RunObservation:
    """Run a model once, without optimization, and return its branches, iteration counts and sizes.

    Raises:
        RuntimeUnavailableError: the model does not run here.
    """
    input_sets = (conditions.input_set(model).specs,)
    (observation,) = observe_many(model, program, input_sets, conditions)
    return observation


def observe_many(
    model: Path,
    program: Program,
    input_sets: Sequence[Sequence[FeedSpec]],
    conditions: RunConditions,
) -> tuple[RunObservation, ...]:
    """Run a model once on each input set, in one session; return an observation for each.

    The inputs are drawn by ``input_sets``, not by the conditions.

    Raises:
        RuntimeUnavailableError: the model does not run here on one of the input sets.
    """
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
    what = f"{model} could not be run for its sizes{given_text(conditions.binding.feeds)}"
    outputs = copy.writes
    return tuple(
        observation_of(
            program,
            (
                OpExecution(outputs[kernel.node], kernel.read, kernel.wrote)
                for kernel in kernels
                if kernel.node in outputs
            ),
        )
        for kernels in record.require(what).kernels or ()
    )
