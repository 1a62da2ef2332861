"""Runs that record what the data of a model decides: branches, iterations, sizes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import given_text
from memplan_cli.core.results.observations import UNOPTIMISED
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.runtime_query import numbered
from memplan_cli.runtime.run.run_model import run_model
from memplan_cli.runtime.simulate.observed import Event, sorted_out
from memplan_cli.runtime.workers.spec import InputSet, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.program import Program
    from memplan_cli.runtime.simulate.observed import Observed
    from memplan_cli.runtime.workers.spec import RunConditions


def observe(
    model: Path, program: Program, conditions: RunConditions, about: Path | None = None
) -> Observed:
    """Run a model once, as it is written, and return what the data decided.

    Args:
        model: a file whose weights are there; no optimisation is applied to it.
        program: the file, as it was read.
        conditions: where it runs, and on which inputs.
        about: the model that it is a graph of, whose process may run it.

    Raises:
        RuntimeUnavailableError: it does not run here.
    """
    (found,) = observe_many(model, program, None, conditions, about)
    return found


def observe_many(
    model: Path,
    program: Program,
    sizes: Sequence[Sequence[FeedSpec]] | None,
    conditions: RunConditions,
    about: Path | None = None,
) -> tuple[Observed, ...]:
    """Run a model once at each of several sizes, in one session; return what each run decided.

    Without sizes the only one is that of the conditions.

    Raises:
        RuntimeUnavailableError: it does not run here at one of them.
    """
    proto = load_model(model)
    copy = numbered(proto)
    if sizes is None:
        sizes = (conditions.input_set(model).specs,)
    with tempfile.TemporaryDirectory(prefix="memplan-observed-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(copy.data)
        session = SessionSpec(
            file, conditions.provider, UNOPTIMISED, weights_folder=model.absolute().parent
        )
        inputs = tuple(InputSet(tuple(specs)) for specs in sizes)
        spec = RunSpec(session, inputs, ("kernels",), runs=1)
        record = run_model(spec, timeout=conditions.timeout, about=about or model)
    what = f"{model} could not be run for its sizes{given_text(conditions.binding.feeds)}"
    known = copy.writes
    return tuple(
        sorted_out(
            program,
            (Event(known[node], *tensors) for node, *tensors, _ in run if node in known),
        )
        for run in record.require(what).kernels or ()
    )
