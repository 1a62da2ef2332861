"""What is predicted of a model: its session is made, and run only for sizes that data decides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.core.results.report import RuntimeFacts
from memplan_cli.errors import UnknownSizeError
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.graph.executed import executed_graph, executed_run
from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
from memplan_cli.runtime.graph.seen_graph import reordered
from memplan_cli.runtime.graph.speed import is_slower_as_written
from memplan_cli.runtime.installed import required_version
from memplan_cli.runtime.process.predict import Shown, foresee_process, obstacle, process_of
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.run.run_model import process_of_load
from memplan_cli.runtime.settings_search.predicted import predict_settings, settings_for_sizes
from memplan_cli.runtime.simulate.predict import Executed, predict

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from memplan_cli.core.program import Program
    from memplan_cli.runtime.process.parts import ForeseenProcess
    from memplan_cli.runtime.run.spec import RunConditions
    from memplan_cli.runtime.settings_search.choice import SettingsChoice


_AS_LOADED = Shown(as_loaded=True)


class Run(Enum):
    """When a model is run to predict something of it."""

    NEVER = "never"
    FOR_SIZES = "where data decides sizes"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a process is predicted at, and whether a run may show what data decides."""

    conditions: RunConditions
    run: Run = Run.FOR_SIZES

    @property
    def dims(self) -> Mapping[str, int]:
        """Return the numbers of dims."""
        return self.conditions.dims


def predicted_process(path: Path, settings: RuntimeSettings, at: Sizes) -> ForeseenProcess:
    """Return the process of a model under some settings, attributed.

    The session is made, and what that took is where the prediction goes on from.

    Raises:
        UnknownSizeError: it cannot be predicted; what keeps it is said.
        RuntimeUnavailableError: weights are missing, or it does not load, or not run.
    """
    executed = graph_at(path, settings, at)
    if why := obstacle(executed, settings):
        raise UnknownSizeError(f"the process of {path} cannot be predicted: {why}")
    loaded = process_of_load(path, settings, at.conditions)
    shown = Shown(loaded=loaded, as_loaded=at.conditions.as_loaded)
    found = foresee_process(stored_model(path), executed, settings, shown=shown)
    if found is None:
        raise UnknownSizeError(f"the process of {path} cannot be predicted")
    return found


def graph_at(path: Path, settings: RuntimeSettings, at: Sizes) -> Executed:
    """Return the graph that a session runs; sizes that data decides are those of one run.

    Raises:
        RuntimeUnavailableError: weights are missing, or it does not load, or not run.
    """
    executed = executed_graph(path, settings, at.dims)
    if at.run is Run.NEVER or not obstacle(executed, settings):
        return executed
    return executed_run(path, settings, at.conditions)


def unrun_facts(path: Path, program: Program, at: Sizes, nodes: Sequence[str]) -> RuntimeFacts:
    """Return the report's block for a model and its planned order, nothing observed.

    Processes are by rules alone: one that is made differs from the next by pages, and a
    report is the same whenever it is made.

    Args:
        path: the model, as it is.
        program: in the planned order, as it would be written.
        at: values for symbolic dims, and the run that shows others.
        nodes: names of the nodes at the top of the file, in its order.

    Raises:
        RuntimeUnavailableError: weights are missing, or it does not load.
    """
    before = graph_at(path, DEFAULTS, at)
    written = Executed(program, at.dims)
    choice = _chosen(
        before, reordered(before, nodes, program), written, at.conditions.binding.assumed
    )
    as_it_stands = choice.settings.session.get("graph_optimization_level") is not None
    after = written if as_it_stands else reordered(before, nodes, program)
    nothing = Peaks(None, None)
    stored = stored_model(path)
    return RuntimeFacts(
        name="onnxruntime",
        version=required_version(),
        provider=CPU,
        predicted={
            "original": replace(
                predict(before, DEFAULTS), process=process_of(stored, before, DEFAULTS)
            ),
            "optimized": replace(
                choice.predicted,
                process=process_of(stored, after, choice.settings, shown=_AS_LOADED),
            ),
        },
        observed={"original": nothing, "optimized": nothing},
        settings=choice.settings,
    )


def _chosen(
    before: Executed, optimised: Executed, written: Executed, assumed: Collection[str]
) -> SettingsChoice:
    """Return the settings for the written model: those that a run would be made with."""
    under = predict_settings(optimised, settings_for_sizes(DEFAULTS, assumed))
    if is_slower_as_written(written.program, written.dims, before):
        return under
    stands = predict_settings(written, settings_for_sizes(RUN_AS_WRITTEN, assumed))
    return min((under, stands), key=attrgetter("rank"))
