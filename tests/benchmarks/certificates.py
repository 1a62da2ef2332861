"""Write the certificate of every plan, check it, and say what both take.

    python -m tests.benchmarks.certificates [--only TEXT] [--no-table]

Models are the samples and those of ../shared/models, their free dims bound; problems are those
of ../shared/instances. Nothing is run. Times are of the processor, in seconds.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli import Settings
from memplan_cli.checking.certificates.verify import verify
from memplan_cli.core.results.certificate import certificate_from_json
from memplan_cli.core.results.certified import VERIFIED
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.checking.plan_file import checked_plan
from memplan_cli.workflows.certificate import certificate_for, model_of, verify_certificate
from memplan_cli.workflows.files.model_file import plan_model, read_model
from memplan_cli.workflows.pack import PackingGoal, pack

from .cases import asked, publish, run_all
from .models import ROOT, SAMPLES, SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from memplan_cli.core.results.certified import Certified

PAGE = ROOT / "docs" / "measurements" / "certificates.md"
INSTANCES = SHARED.parent / "instances"
LARGE = 900_000
"""Bytes of a file above which a model is planned at level 2 alone."""

SECONDS = 20.0
"""Limit of the search for a layout of a problem."""


@dataclass(frozen=True)
class Row:
    """What a certificate shows, what it takes, and how long it is written and checked."""

    bounds: int
    shown: int
    methods: str
    size: int
    writing: float
    checking: float
    left: str


def of_model(model: Path, settings: Settings) -> Row:
    """Plan a model, write the certificate of the plan, and check that."""
    file = read_model(model)
    planned = plan_model(file, settings)
    start = time.process_time()
    text = certificate_for(file, planned).dumps()
    writing = time.process_time() - start
    plan = checked_plan(json.loads(planned.plan.dumps()))
    if plan.report.recompute.nodes:
        raise ValueError("only the written model has the copies")
    subject = model_of(load_model(model), plan, model)
    start = time.process_time()
    found = verify(certificate_from_json(json.loads(text)), plan, subject)
    return _row(found, len(text), writing, time.process_time() - start)


def of_problem(problem: Path) -> Row:
    """Pack a problem, and check the certificate of the layout."""
    with tempfile.TemporaryDirectory() as folder:
        out, proof = Path(folder) / "layout.csv", Path(folder) / "proof.json"
        pack(problem, PackingGoal(time_limit=SECONDS), out=out, certificate=proof)
        start = time.process_time()
        found = verify_certificate(problem, out, proof)
        return _row(found, proof.stat().st_size, 0.0, time.process_time() - start)


def _row(found: Certified, size: int, writing: float, checking: float) -> Row:
    shown = [part for part in found.parts if part.status == VERIFIED]
    methods = dict.fromkeys(part.method for part in shown)
    left = [f"{part.part}: {part.reason}" for part in found.parts if part not in shown]
    return Row(
        len(found.parts),
        len(shown),
        ", ".join(methods),
        size,
        writing,
        checking,
        "; ".join(left),
    )


def cases() -> Mapping[str, Callable[[], Row]]:
    """Return all models at all levels, in both orders, and all problems."""
    found: dict[str, Callable[[], Row]] = {}
    models = [*sorted(SAMPLES.glob("*.onnx")), *sorted(SHARED.glob("*.onnx"), key=_size)]
    for model in models:
        dims = {n: int(v) for n, _, v in (item.partition("=") for item in bindings(model))}
        ways = {"level 2": Settings(dims=dims)}
        if model.stat().st_size < LARGE:
            ways["file's order"] = Settings(dims=dims, order="keep")
            ways |= {f"level {n}": Settings(dims=dims, level=n) for n in (0, 1)}
        for name, settings in ways.items():
            found[f"{model.stem} | {name}"] = partial(of_model, model, settings)
    for problem in sorted(INSTANCES.glob("*.csv")):
        found[f"{problem.stem} | packed"] = partial(of_problem, problem)
    return found


def _size(path: Path) -> int:
    return path.stat().st_size


def page(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the page's lines."""
    bounds, shown = (sum(getattr(r, n) for r in rows.values()) for n in ("bounds", "shown"))
    largest = max(rows.values(), key=lambda row: row.size)
    slowest = max(rows.values(), key=lambda row: row.checking)
    yield "# Certificates\n"
    yield f"Made by `python -m tests.benchmarks.certificates`, Python {platform.python_version()},"
    yield "on a machine that others used too; times are of the processor.\n"
    yield f"Of {bounds} bounds of {len(rows)} plans, {shown} were shown again by"
    yield "`verify-certificate`, without the searches that found them. The largest certificate has"
    yield f"{largest.size:,} bytes, and the slowest check took {slowest.checking:.2f} s. What was"
    yield "not shown, and why, is in the last column.\n"
    yield "| model | plan | bounds | shown | by | bytes | writing, s | checking, s | not shown |"
    yield "|---|---|---:|---:|---|---:|---:|---:|---|"
    for name, row in rows.items():
        yield (
            f"| {name} | {row.bounds} | {row.shown} | {row.methods} | {row.size:,} | "
            f"{row.writing:.2f} | {row.checking:.3f} | {row.left} |"
        )


def main() -> None:
    words = asked(__doc__)
    rows = run_all(cases(), lambda case: case(), words)
    publish(page(rows), PAGE, words)


if __name__ == "__main__":
    main()
