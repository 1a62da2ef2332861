"""The searches give the same layouts and plans whether numba compiles them or is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.packing_instances import crowded, mosaic, square, thinned
from builders import block, op, program
from memplan_cli.api.rewrites import REWRITES
from memplan_cli.packing import portfolio
from memplan_cli.planning.candidate import Source
from memplan_cli.planning.planner import make_plan
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.core.problem import Problem

HARD = (square(120, 2), thinned(120, 2), mosaic(60, 3), crowded(120, 3))

WORK = 150_000
"""Units of work for each problem: up to a second without numba."""


def searched_plan(problem: Problem) -> str:
    """Return the plan of a model whose tensors are live when the buffers of a problem are.

    Its layout has to be searched.
    """
    last = max(buffer.live.end for buffer in problem.buffers)
    sizes = {str(buffer.id): buffer.size for buffer in problem.buffers}
    ops = []
    for tick in range(last):
        written = [str(b.id) for b in problem.buffers if b.live.start == tick]
        read = [str(b.id) for b in problem.buffers if b.live.start < tick == b.live.end - 1]
        ops.append(op(f"{' '.join(written)} t{tick} <- {' '.join(read)}"))
    made = program(block("", f"t{last - 1}", *ops), sizes=sizes)
    messages: list[str] = []
    planned = make_plan(
        made,
        Settings(order="keep"),
        Source("model.onnx", "0" * 64, "1" * 64),
        REWRITES,
        progress=messages.append,
    )
    assert any(message.startswith("searching for a lower layout") for message in messages)
    return planned.plan.dumps()


def results() -> list[object]:
    """Return the layouts of hard problems, and the plan of a model that needs a search."""
    found: list[object] = []
    for problem in HARD:
        searches: list[str] = []
        layout = portfolio(problem, work=WORK, progress=searches.append)
        assert len(searches) > 1
        offsets = {str(buffer): offset for buffer, offset in layout.offsets.items()}
        found.append([layout.height, layout.proved, offsets])
    return [*found, searched_plan(square(120, 2))]


def test_layouts_and_plans_are_those_of_compiled_searches() -> None:
    code = (
        "import sys, json; sys.modules['numba'] = None\n"
        "from tests.packing.test_without_numba import results\n"
        "print(json.dumps(results()))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == results()
