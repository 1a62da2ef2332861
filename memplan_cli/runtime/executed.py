"""Which graph does the runtime really run? Its own dump, with its own shapes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.evidence import CPU, RuntimeSettings
from memplan_cli.onnx_io.feeds import with_every_output
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.read import read_program
from memplan_cli.onnx_io.shapes import Bindings
from memplan_cli.runtime.compare import require_weights
from memplan_cli.runtime.predict import Executed
from memplan_cli.runtime.worker import DEFAULT_TIMEOUT, run_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.ir import Shape

DISABLED = RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})


def executed_graph(
    model: Path,
    settings: RuntimeSettings,
    dims: Mapping[str, int],
    provider: str = CPU,
) -> Executed:
    """Return the graph that a session with these settings runs, shapes included.

    The dump stands in the order of ``ExecutionOrder.DEFAULT``; under PRIORITY_BASED that
    is not the order of the run, unless the dump itself is loaded.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load.
    """
    require_weights(model)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump = Path(name) / "dump.onnx"
        write_dump(model, dump, settings, provider)
        shapes = runtime_shapes(dump, provider)
        loaded = read_program(load_model(dump), Bindings(dims=dims, known=shapes))
    return Executed(loaded.program, dims, ordered=True)


def write_dump(model: Path, out: Path, settings: RuntimeSettings, provider: str = CPU) -> None:
    """Write the graph after the runtime's optimisation, weights beside it.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    level = settings.session.get("graph_optimization_level", "ORT_ENABLE_ALL")
    wanted = RuntimeSettings(
        session={"graph_optimization_level": level}, session_config=settings.session_config
    )
    job = {
        "model": str(model),
        "settings": wanted.to_json(),
        "provider": provider,
        "out": str(out),
    }
    run_job("dump", job, timeout=DEFAULT_TIMEOUT).require(f"{model} does not load")


def runtime_shapes(model: Path, provider: str = CPU) -> dict[str, tuple[str, Shape]]:
    """Return the shapes that the runtime infers for every value at the top of a model.

    It loads a twin that gives every value as an output; the twin lies beside the model,
    so that it finds the weights, and goes when it was read.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    twin = model.with_name(f"{model.stem}.every-output.onnx")
    try:
        twin.write_bytes(with_every_output(load_model(model)))
        job = {
            "model": str(twin),
            "settings": DISABLED.to_json(),
            "provider": provider,
            "shapes": True,
        }
        result = run_job("dump", job).require(f"{model} does not load")
    finally:
        twin.unlink(missing_ok=True)
    shapes: dict[str, tuple[str, Shape]] = {}
    for name, (dtype, shape) in result["shapes"].items():  # type: ignore[attr-defined]
        if None not in shape:
            shapes[name] = (dtype, tuple(shape))
    return shapes
