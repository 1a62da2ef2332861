"""Replay: a model run op by op inside its plan's arenas, its outputs compared.

Freed ranges are poisoned, what a subgraph wrote is poisoned after the op that has it, and
excluded tensors are looked at again in the end. A tensor that was overwritten too early
shows as a wrong output.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.core.program import own_name
from memplan_cli.core.results.observations import UNOPTIMISED, Difference
from memplan_cli.core.results.plan import check
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.prepared_models import random_ops, write_seeded
from memplan_cli.runtime.proofs.places import Place, heights, places_of
from memplan_cli.runtime.run.run_model import differences_in, require_weights, run_model
from memplan_cli.runtime.workers.spec import RunConditions, RunSpec
from memplan_cli.runtime.workers.worker import Outcome, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan


_ALIGNMENT = 64
"""Bytes; at multiples of it kernels add in one order."""

_PAGE = 4096
"""Bytes; what an address is modulo this decides how kernels peel their loops."""

_UNALIGNED = "offsets that are no multiples of 64 make some kernels add in another order"

_NARROW = frozenset({"float16", "bfloat16"})
"""Types in which few kernels compute: the runtime does in float32, and rounds where it must."""

_ROUNDED = "a graph as a whole rounds numbers of 16 bits less often than its ops one by one"

_APART = "tensors aligned alike in memory of their own"


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a plan a replay shows.

    Attributes:
        placed: tensors at the top that lay at their offsets.
        pinned: those of them that last, and were looked at again in the end.
        in_subgraphs: tensors in subgraphs of If, Loop and Scan: the runtime runs a subgraph as a
            whole, in memory of its own, and their places are poisoned after it.
        empty: tensors at the top without bytes, which lie nowhere.
        left_out: tensors that have no place, with the reason.
    """

    placed: int = 0
    pinned: int = 0
    in_subgraphs: int = 0
    empty: int = 0
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def described(self) -> Iterator[str]:
        """Yield what was shown and what was not, a sentence each."""
        everything = self.placed + self.in_subgraphs + self.empty + len(self.left_out)
        again = f", {self.pinned} excluded ones looked at again in the end"
        yield f"{self.placed} of {everything} tensors at their offsets{again * bool(self.pinned)}"
        if self.in_subgraphs:
            yield (
                f"{self.in_subgraphs} tensors in subgraphs of If, Loop or Scan not shown: the runtime "
                "ran each subgraph as a whole, in memory of its own, and their places were poisoned"
            )
        if self.empty:
            yield f"{self.empty} tensors without bytes"
        yield from (f"{name} has no place: {why}" for name, why in self.left_out.items())


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a replay.

    Attributes:
        status: ``passed`` or ``failed``.
        differences: outputs that are not those of the whole graph, excluded tensors that
            were overwritten.
        reason: the rule that the plan breaks, or why the replay could not run.
        extent: which tensors lay where the plan says.
        notes: what else to know.
    """

    status: str
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    extent: Extent = dataclasses.field(default_factory=Extent)
    notes: tuple[str, ...] = ()


def replay(model: Path, plan: Plan, conditions: RunConditions) -> Replayed:
    """Check a plan, then run its model inside it.

    Args:
        model: the written model: its order is the plan's.
        plan: what to prove.
        conditions: where it runs, and on which inputs.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or the whole graph does
            not run.
    """
    try:
        check(plan)
    except InvalidLayoutError as error:
        return Replayed("failed", reason=str(error))
    return replay_unchecked(model, plan, conditions)


def replay_unchecked(model: Path, plan: Plan, conditions: RunConditions) -> Replayed:
    """Run a model inside a plan whatever the static checker would say.

    Random ops get seeds, in a copy: the whole graph and each op alone then draw the same.

    Raises:
        RuntimeUnavailableError: as for `replay`.
    """
    require_weights(model)
    drawn = random_ops(load_model(model))
    if not drawn:
        return _replayed(model, plan, conditions)
    with tempfile.TemporaryDirectory(prefix="memplan-seeded-") as folder:
        copy = Path(folder) / model.name
        write_seeded(model, copy)
        found = _replayed(copy, plan, conditions)
    note = f"random ops ({', '.join(drawn)}) had seeds in the copy that was run"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _replayed(model: Path, plan: Plan, conditions: RunConditions) -> Replayed:
    session = conditions.session(model, UNOPTIMISED).deterministic()
    inputs, timeout = conditions.input_set(model), conditions.timeout
    graph = load_model(model).graph
    order = _order([node.name for node in graph.node], plan)
    if order is None:
        return Replayed("failed", reason="the plan's order is not of the model's nodes")
    places, left_out = places_of(plan, conditions.dims)
    wanted = {place.name for place in places if place.bytes and not place.block}
    lost = sorted(wanted - {name for node in graph.node for name in node.output})
    if lost:
        reason = f"the plan places {lost[0][:120]!r}, which no node of the model makes"
        return Replayed("failed", reason=reason)
    extent = _extent(places, left_out)
    with tempfile.TemporaryDirectory(prefix="memplan-replay-") as folder:
        saved = dataclasses.replace(inputs, save_to=Path(folder))
        spec = RunSpec(session, (saved,), runs=1, compared_runs=1)
        whole = run_model(spec, timeout=timeout).require(f"{model} does not run")
        job: Json = {
            "session": to_json(session),
            "inputs": to_json(inputs),
            "folder": folder,
            "outputs": list(whole.outputs),
            "save": False,
            "places": to_json(places),
            "arenas": dict(heights(plan, conditions.dims)),
            "order": order,
        }
        outcome = run_job("replay", job, timeout=timeout)
        notes: tuple[str, ...] = ()
        why = _rounding(places)
        if outcome.ok and outcome.result["differences"] and why:
            outcome = _against_own_memory(job, places, timeout)
            notes = (f"{why}: the outputs were compared with those of {_APART}",)
    if not outcome.ok:
        return Replayed("failed", reason=f"{outcome.how}: {outcome.reason}", extent=extent)
    bound = set(cast("list[str]", outcome.result["bound"]))
    extent = dataclasses.replace(extent, placed=len(bound))
    if bound != wanted:
        reason = f"tensor {min(bound ^ wanted)[:120]!r} did not lie where the plan places it"
        return Replayed("failed", reason=reason, extent=extent)
    found = differences_in(outcome.result)
    return Replayed("failed" if found else "passed", found, extent=extent, notes=notes)


def _extent(places: Sequence[Place], left_out: Mapping[str, str]) -> Extent:
    top = [place for place in places if not place.block]
    placed = [place for place in top if place.bytes]
    return Extent(
        placed=len(placed),
        pinned=sum(place.pinned for place in placed),
        in_subgraphs=len(places) - len(top),
        empty=len(top) - len(placed),
        left_out=left_out,
    )


def _rounding(places: Sequence[Place]) -> str:
    """Return why other bits need not come from the plan; empty where they do."""
    if any(place.dtype in _NARROW for place in places):
        return _ROUNDED
    return _UNALIGNED if any(place.offset % _ALIGNMENT for place in places) else ""


def _against_own_memory(
    job: Mapping[str, object], places: Sequence[Place], timeout: float
) -> Outcome:
    """Compare with a replay in which no two tensors share bytes, each as aligned as here.

    Kernels that peel loops up to an aligned address add in another order elsewhere: this
    tells such rounding from a value that was overwritten.
    """
    spread: list[Place] = []
    starts: dict[tuple[str, str], int] = {}
    top = 0
    for place in places:
        if (place.arena, place.buffer) not in starts:
            starts[place.arena, place.buffer] = top + place.offset % _PAGE
            top += -(-(place.bytes + _PAGE) // _PAGE) * _PAGE
        start = starts[place.arena, place.buffer]
        spread.append(dataclasses.replace(place, arena="own", offset=start))
    with tempfile.TemporaryDirectory(prefix="memplan-own-") as folder:
        apart = {**job, "places": to_json(spread), "arenas": {"own": top}, "folder": folder}
        first = run_job("replay", {**apart, "save": True}, timeout=timeout)
        if not first.ok:
            return first
        return run_job("replay", {**job, "folder": folder}, timeout=timeout)


def _order(names: Sequence[str], plan: Plan) -> list[int] | None:
    """Return the nodes at the top in the plan's order, by their index in the file.

    A node without a name of its own is in the order by its index in another file, the one
    that was planned: such nodes stand here in the order of this one.

    Returns:
        None where the order has other nodes than the model.
    """
    count = Counter(names)
    named = {n: at for at, n in enumerate(names) if own_name(n) and count[n] == 1}
    others = iter(sorted(set(range(len(names))) - set(named.values())))
    entries = next((order.nodes for order in plan.order if not order.block), ())
    found = [named[entry] if entry in named else next(others, -1) for entry in entries]
    return found if sorted(found) == list(range(len(names))) else None
