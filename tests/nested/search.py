"""Plans of nested models against a search that knows nothing of how they were made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import onnx

from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.models.plan_files import types_by_block
from memplan_cli.checking.check import compare_plan
from memplan_cli.checking.live_bytes import tensor_storages
from memplan_cli.checking.tensors import check_tensors
from memplan_cli.checking.timeline import build_timeline, planned_model
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.write import written_model
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings
from nested.models import orders, random_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import GraphProto

    from memplan_cli.core.results.plan import Plan

MOST_ORDERS = 400
MOST_STORAGES = 10


@dataclass
class Found:
    """What was shown of a model, and what was wrong."""

    faults: list[str]
    plans: int = 0
    orders: int = 0
    """Orders that were tried, where that was all of them."""
    proved: int = 0
    packed: int = 0
    """Arenas whose least height was found by trying everything."""
    least: int = 0
    """Those of them that are no taller."""


def searched(seed: int, folder: Path) -> Found:
    """Plan a random nested model at each level, and check lifetimes, orders and packings."""
    model = random_model(seed)
    path = folder / "net.onnx"
    onnx.save(model, path)
    found = Found([])
    sizes = sizes_of(model)
    for level in (0, 1, 2):
        made = plan_model(read_model(path), Settings(level=level, alignment=1))
        data = b"".join(written_model(model, made.program, made.plan))
        written = onnx.load_from_string(data)
        plan = checked_plan(json.loads(made.plan.dumps()))
        types = types_by_block(read_program(written))
        compared = compare_plan(written, plan, types, {})
        found.plans += 1
        found.faults += [f"level {level}: {each}" for each in compared.disagreements]
        _check_packing(written, plan, types, found)
        if level == 1:
            _check_order(model.graph, plan, sizes, found)
    return found


def sizes_of(model: onnx.ModelProto) -> Mapping[str, int]:
    """Return the bytes of each tensor by name; no two blocks have one name twice."""
    wide = {"bool": 1, "int64": 8, "float32": 4}
    found = {}
    for block in types_by_block(read_program(model)):
        for name, (dtype, shape) in block.items():
            size = wide[dtype]
            for dim in shape or ():
                assert isinstance(dim, int)
                size *= dim
            found[name] = size
    return found


def peak(graph: GraphProto, sizes: Mapping[str, int]) -> int:
    """Return the most bytes in use at one tick where nothing shares its bytes."""
    timeline = build_timeline(graph)
    live = [0] * (timeline.ticks + 1)
    for value in timeline.intermediates():
        for tick in range(value.first, value.end):
            live[tick] += sizes[value.name]
    return max(live)


def _check_order(
    graph: GraphProto, plan: Plan, sizes: Mapping[str, int], found: Found
) -> None:
    """Try every order of every block."""
    tried = []
    for nodes in islice(orders(graph), MOST_ORDERS + 1):
        other = type(graph)()
        other.CopyFrom(graph)
        del other.node[:]
        other.node.extend(nodes)
        tried.append(peak(other, sizes))
    memory = plan.report.memory
    if len(tried) > MOST_ORDERS or memory.order_bound is None or memory.live_peak is None:
        return
    least = min(tried)
    found.orders, found.proved = len(tried), int(memory.order_proved)
    if memory.order_bound > least:
        found.faults.append(f"bound {memory.order_bound}, and an order needs {least}")
    if memory.live_peak < least:
        found.faults.append(f"live peak {memory.live_peak}, and no order needs under {least}")
    if memory.order_proved and memory.live_peak > least:
        found.faults.append(f"proved at {memory.live_peak}, and an order needs {least}")


def _check_packing(
    written: onnx.ModelProto, plan: Plan, types: Sequence[Mapping[str, object]], found: Found
) -> None:
    """Try every packing of what a plan's arena holds."""
    planned = planned_model(written, plan, types, {})  # type: ignore[arg-type] # names and types
    found.faults += list(check_tensors(planned))
    boxes = [(s.first, s.end, s.bytes) for s in tensor_storages(plan.tensors) if s.bytes]
    if plan.report.level < 2 or len(boxes) > MOST_STORAGES or not plan.arenas:
        return
    (arena,) = plan.arenas
    least = lowest(boxes)
    found.packed += 1
    found.least += arena.height == least
    if arena.height < least:
        found.faults.append(f"an arena is {arena.height} tall, none can be below {least}")
    if arena.lower_bound > least:
        found.faults.append(f"an arena's bound is {arena.lower_bound}, {least} is enough")


def lowest(boxes: Sequence[tuple[int, int, int]]) -> int:
    """Return the least height of boxes ``(first, last, size)``, by every order of placing them.

    Some least packing comes of putting one after the other as low as it goes.
    """
    best = sum(size for _, _, size in boxes)
    ticks = {first for first, _, _ in boxes}
    live = (sum(size for f, e, size in boxes if f <= tick < e) for tick in ticks)
    bound = max(live, default=0)

    def place(left: frozenset[int], there: tuple[tuple[int, int, int, int], ...]) -> None:
        nonlocal best
        top = max((low + size for *_, low, size in there), default=0)
        if top >= best or best == bound:
            return
        if not left:
            best = top
            return
        for box in left:
            first, last, size = boxes[box]
            near = sorted((at, at + s) for f, e, at, s in there if f < last and first < e)
            low = 0
            for start, stop in near:
                if start >= low + size:
                    break
                low = max(low, stop)
            place(left - {box}, (*there, (first, last, low, size)))

    place(frozenset(range(len(boxes))), ())
    return best
