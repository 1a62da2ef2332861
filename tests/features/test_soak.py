"""A soak of a small model: the job runs in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
import pytest

from builders import parse, read
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.features.serving import soak, soak_job
from memplan_cli.features.serving.loads import SampledSizes, Service
from memplan_cli.features.serving.report import soak_document
from memplan_cli.features.serving.settings import choose_settings
from memplan_cli.features.serving.sizes import Extent
from memplan_cli.features.serving.soak import (
    CHOSEN,
    ConfigurationRun,
    RequestSequence,
    Soak,
    serve,
)
from memplan_cli.reporting.document import Check
from memplan_cli.runtime.simulate.predict import ExecutedGraph
from memplan_cli.runtime.workers.worker import Outcome

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = 40
MODEL = "g (float[batch] x) => (y) { a = Exp(x)  y = Neg(a) }"


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    def run_here(_function: str, job: Any, *, timeout: float) -> Outcome:  # noqa: ANN401
        assert timeout
        return Outcome("ok", soak_job.run(job))

    monkeypatch.setattr(soak, "run_job", run_here)
    path = tmp_path / "model.onnx"
    onnx.save(parse(MODEL), path)
    return Service(path, Extent({"batch": DimRange(1, 4)}), Binding())


def test_outputs_of_requests_spread_over_the_whole_sequence_are_compared(
    service: Service,
) -> None:
    sizes = tuple((1 + at % 4,) for at in range(REQUESTS))
    configurations = {name: RuntimeSettings() for name in ("one", "other")}
    one, other = serve(service, RequestSequence(sizes, seconds=60), configurations)
    assert one.requests == other.requests == REQUESTS
    assert one.digests == other.digests
    compared = sorted(map(int, one.digests))
    assert compared[0] == 0
    assert compared[-1] >= 0.8 * REQUESTS
    assert len(compared) >= 8


def test_no_request_begins_after_the_time_of_a_soak(service: Service) -> None:
    sequence = RequestSequence(((1,),) * REQUESTS, seconds=0)
    (run,) = serve(service, sequence, {"one": RuntimeSettings()})
    assert run.requests == 1


def test_the_arena_held_the_most_of_all_readings(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"milliseconds": [1.0, 2.0], "cpu_milliseconds": [1.0, 2.0]}
    found = {**times, "samples": [[0, 5]], "highest": 7, "held": [3, 9, 4], "digests": {}}
    monkeypatch.setattr(soak, "run_job", lambda *_, **__: Outcome("ok", found))
    sequence = RequestSequence(((1,), (1,)), seconds=1)
    (run,) = serve(service, sequence, {"one": RuntimeSettings()})
    assert run.held == 9


def test_an_arena_stays_within_its_bound_only_if_there_is_one() -> None:
    extent = Extent({"batch": DimRange(1, 1)})
    graph = ExecutedGraph(read(MODEL), dims={"batch": 1})
    bounded = choose_settings(SampledSizes({(1,): graph}), extent.count)
    bound = bounded.chosen.bound
    assert bound is not None
    run = ConfigurationRun(CHOSEN, RuntimeSettings(), 1, (), None, bound, 1.0, 1.0, 1.0, {})
    for serving, is_told in ((bounded, True), (bounded.unbounded(), False)):
        found = Soak("model.onnx", extent.bounds, "random", 0, 1, serving, (run,))
        texts = [part.text for part in soak_document(found).blocks if isinstance(part, Check)]
        assert ("The arena stayed within its bound." in texts) == is_told
