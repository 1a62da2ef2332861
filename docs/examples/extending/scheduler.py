"""A scheduler: of the ops that are ready, the one that became ready last comes next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.analysis.phase import find_phases
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.ordering.best_order import simple_orders
from memplan_cli.ordering.list_orders import SCHEDULERS
from memplan_cli.ordering.records import PlannedVars
from memplan_cli.planning.candidate import Candidate
from memplan_cli.planning.choose import choose
from memplan_cli.planning.scope import find_scope
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from memplan_cli.ordering.task_graph import Order, TaskGraph

MODEL = Path(__file__).parents[3] / "sample_models" / "train_mlp.onnx"


def newest_first(graph: TaskGraph) -> Order:
    """Return an order in which the op that became ready last comes next; ties in file order."""
    missing_preds = [len(preds) for preds in graph.preds]
    ready = [op for op in reversed(range(graph.size)) if not missing_preds[op]]
    order: Order = []
    while ready:
        op = ready.pop()
        order.append(op)
        for successor in reversed(graph.succs[op]):
            missing_preds[successor] -= 1
            if not missing_preds[successor]:
                ready.append(successor)
    return order


EXTENDED = {**SCHEDULERS, "newest_first": newest_first}


def planned(model: Path, settings: Settings) -> dict[str, int]:
    """Return the bytes planned for a model in the order of each scheduler."""
    program = read_program(load_model(model), Bindings(dims=settings.dims)).program
    scope = find_scope(program, settings, find_phases(program))
    planned_bytes: dict[str, int] = {}
    for name, ordered in simple_orders(program, PlannedVars(scope.sizes), EXTENDED):
        candidate = Candidate(ordered, scope.sizes, name)
        (evaluated,) = choose([candidate], settings, scope.pinned)
        planned_bytes[name], *_ = evaluated.cost
    return planned_bytes


def main() -> None:
    """Compare the new scheduler with memplan's own."""
    for name, bytes_ in planned(MODEL, Settings(level=1)).items():
        print(f"{name}: {bytes_} bytes at level 1")


if __name__ == "__main__":
    main()
