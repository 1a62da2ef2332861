"""One file of an encoder for every batch and length: peaks, the bound of its arena, bits.

    python -m tests.benchmarks.chunking_loops               measure, and write the page
    python -m tests.benchmarks.chunking_loops --requests N  as many requests; 1,000 by default

The encoder of `chunking_models.bert_of_any_length` is optimised with ``--chunk auto --budget
--bounds``. One process then serves random requests, their sizes drawn log-uniformly, the
largest among them, under settings that `memplan settings --bounds --measure` chooses; what its
arena holds is read after each. Outputs are compared with the original's at sizes that the
original can compute here.
"""

from __future__ import annotations

import argparse
import platform
import random
import tempfile
import time
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime

from memplan_cli import Settings, workflows
from memplan_cli.runtime.serving.choice import choose
from memplan_cli.runtime.serving.served import observed_service
from memplan_cli.runtime.serving.soak import CHOSEN, Requests, confirmed, serve
from memplan_cli.workflows.serving import service_of

from .chunking_models import bert_of_any_length

if TYPE_CHECKING:
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.runtime.serving.choice import ServingSettings
    from memplan_cli.runtime.serving.sequences import Extent, Point
    from memplan_cli.runtime.serving.served import Service

PAGE = Path(__file__).parents[2] / "docs" / "measurements" / "chunking_loops.md"

MIB = 1 << 20

BUDGET = 512 * MIB

BOUNDS = {"batch": (1, 64), "seq": (8, 8192)}

LARGEST = 3
"""Requests of the largest size."""

MOST_COMPARED = 2 << 30
"""Bytes of attention maps up to which the original is run beside the written file."""

SECONDS = 6 * 3600.0


class Served(NamedTuple):
    """What was seen of the requests."""

    plan: Plan
    serving: ServingSettings
    held: int
    highest: int
    requests: int
    effort: float
    seconds: float
    equal: int
    compared: int
    faster: float


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), count)
    text = page(found)
    print(text)
    PAGE.write_text(text, "utf-8")


def measured(folder: Path, count: int) -> Served:
    """Write the model, optimise it, and serve requests."""
    model, written = folder / "encoder.onnx", folder / "loops.onnx"
    bert_of_any_length(model)
    given = Settings(bounds=BOUNDS, chunk="auto", budget=BUDGET)
    done = workflows.optimize(model, given, out=written)
    print(f"resident peak {done.plan.report.memory.resident}", flush=True)
    service, _ = service_of(written, Settings(bounds=BOUNDS), SECONDS)
    seen = observed_service(service)
    serving = confirmed(service, choose(seen, service.extent.count, service.base))
    print(f"bound {serving.chosen.bound}", flush=True)
    order = drawn(service.extent, count)
    begin = time.monotonic()
    (course,) = serve(service, Requests(order, SECONDS), {CHOSEN: serving.chosen.settings})
    seconds = time.monotonic() - begin
    equal, compared, faster = bits(model, written, service, order)
    return Served(
        done.plan,
        serving,
        course.held or 0,
        course.highest or 0,
        course.requests,
        course.effort,
        seconds,
        equal,
        compared,
        faster,
    )


def drawn(extent: Extent, count: int, seed: int = 0) -> tuple[Point, ...]:
    """Return sizes of requests: log-uniform ones, and the largest at places among them."""
    generator = random.Random(seed)
    ends = [extent.bounds[name] for name in extent.names]
    found = [
        tuple(
            min(round(exp(generator.uniform(log(low), log(high + 1)))), high)
            for low, high in ends
        )
        for _ in range(count)
    ]
    for number in range(LARGEST):
        found[(2 * number + 1) * count // (2 * LARGEST)] = extent.largest
    return tuple(found)


def bits(
    model: Path, written: Path, service: Service, order: tuple[Point, ...]
) -> tuple[int, int, float]:
    """Return how many outputs are equal, of how many, and the processor time against the original's."""
    one, other = session(model), session(written)
    generator = np.random.default_rng(1)
    equal = compared = 0
    times = [0.0, 0.0]
    for point in order:
        dims = service.extent.dims(point)
        samples, length = dims["batch"], dims["seq"]
        if 4 * 2 * samples * length * length > MOST_COMPARED:
            continue
        feeds = {
            "input_ids": generator.integers(0, 1000, (samples, length)),
            "mask_ids": generator.integers(0, 2, (samples, length)),
        }
        found = []
        for at, each in enumerate((one, other)):
            begin = time.process_time()
            found.append(np.asarray(each.run(None, feeds)[0]))
            times[at] += time.process_time() - begin
        compared += 1
        equal += found[0].tobytes() == found[1].tobytes()
    return equal, compared, times[1] / times[0]


def session(path: Path) -> onnxruntime.InferenceSession:
    """Return a session of one thread that runs the file as it stands."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def page(found: Served) -> str:
    """Return the page."""
    report, serving = found.plan.report, found.serving
    regions = "\n".join(
        f"| `{each.tensor}` | {each.axis} | {each.pieces} | {each.nodes} | "
        f"{100 * each.flops_increase:.2f} % |"
        for each in report.chunked.regions
    )
    rows = {
        "resident peak as it is, every tensor at its largest": report.original_resident,
        "resident peak in loops, predicted by the plan": report.memory.resident,
        "most in use in the largest single request": serving.live,
        "bound of the arena for every sequence of requests": serving.chosen.bound,
        "most that the arena held": found.held,
    }
    table = "\n".join(f"| {name} | {(size or 0) / MIB:,.1f} |" for name, size in rows.items())
    return f"""# One file for every batch and length, in loops

`python -m tests.benchmarks.chunking_loops`; onnxruntime {onnxruntime.__version__}, {platform.machine()}, CPU, one
thread. MiB are 2^20 bytes.

A BERT encoder of one layer (hidden size 64, two heads, a mask of its tokens; attention of the length
that real ones have) with dynamic axes is optimised with
`--chunk auto --budget 512MiB --bounds batch=1..64 --bounds seq=8..8192`. Its regions are loops whose pieces the
graph sizes by each request.

| around | axis | most pieces | nodes | more work |
|---|---:|---:|---:|---:|
{regions}

| bytes | MiB |
|---|---:|
{table}

{found.requests:,} requests, sizes drawn log-uniformly, {LARGEST} of them of 64 sequences of 8,192, were served by one
process in {found.seconds:,.0f} s (median of processor time {found.effort:.1f} ms), under the settings that
`memplan settings --bounds --measure` chooses; the most that was resident above the process with its session
was {found.highest / MIB:,.1f} MiB. At {found.compared:,} of these sizes, those whose attention maps take no more than 2 GiB, the original
was run beside the file, both without the runtime's optimisation: {found.equal:,} outputs were equal to the bit, and the
file took {found.faster:.2f} times the original's processor time.

What falls short: with the runtime's optimisation on, the original fuses what the file, which has to run as it
stands, does not. The machine was shared with others.
"""


if __name__ == "__main__":
    main()
