"""Replay: run a model op by op inside the arenas of its plan, and compare its outputs.

Free bytes are poisoned: they are overwritten with a value that gives wrong outputs if an op still reads
them. The tensors of a subgraph are poisoned after its control-flow node. Pinned tensors, which the user
excluded from sharing memory, are compared again at the end with the values that they had at first.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.problem import align
from memplan_cli.core.program import own_name
from memplan_cli.core.results.observations import UNOPTIMIZED, Difference
from memplan_cli.core.results.plan import check
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.prepared_models import random_ops, write_seeded
from memplan_cli.runtime.replay.placements import arena_heights, bound_placements
from memplan_cli.runtime.run.run_model import differences_in, require_weights, run_model
from memplan_cli.runtime.workers.spec import RunConditions, RunSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.runtime.replay.placements import BoundPlacement
    from memplan_cli.runtime.workers.worker import Outcome

_REPLAY_JOB = "memplan_cli.runtime.replay.job:replay_and_compare"

_ALIGNMENT = 64
"""Kernels add in the same order for all tensors at multiples of this number of bytes."""

_OWN_ARENA = "own"
"""The name of the arena in which no two buffers share bytes."""

_PAGE = 4096
"""The remainder of an address by this number of bytes decides how kernels peel their loops."""

_UNALIGNED = "offsets that are not multiples of 64 make some kernels add in another order"

_16_BIT_FLOATS = frozenset({"float16", "bfloat16"})
"""Types in which few kernels compute. The runtime computes in float32 and rounds in between."""

_ROUNDED = "a whole graph rounds 16-bit floats less often than its ops one by one"

_SEPARATE_MEMORY = "tensors with the same alignment in separate memory"


@dataclass(frozen=True, slots=True)
class ReplayCoverage:
    """How many tensors of a plan a replay covers.

    Attributes:
        placed: tensors of the top block that lay at their offsets.
        pinned: those of them that were compared again at the end.
        in_subgraphs: tensors in subgraphs of If, Loop and Scan. The runtime runs a subgraph in
            memory of its own; the places of its tensors are poisoned afterwards.
        empty: tensors of the top block without bytes.
        unplaced: the reason for each tensor that has no place, by its id.
    """

    placed: int = 0
    pinned: int = 0
    in_subgraphs: int = 0
    empty: int = 0
    unplaced: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def sentences(self) -> Iterator[str]:
        """Yield sentences that tell which tensors the replay covered.

        The text calls pinned tensors "excluded": they lie at their offsets, but share memory with no other tensor.
        """
        total = self.placed + self.in_subgraphs + self.empty + len(self.unplaced)
        pinned = ""
        if self.pinned:
            pinned = f", {self.pinned} excluded ones compared again at the end"
        yield f"{self.placed} of {total} tensors at their offsets{pinned}"
        if self.in_subgraphs:
            yield (
                f"{self.in_subgraphs} tensors in subgraphs of If, Loop or Scan not covered: the "
                "runtime ran each subgraph in memory of its own, and their places were poisoned"
            )
        if self.empty:
            yield f"{self.empty} tensors without bytes"
        yield from (f"{name} has no place: {why}" for name, why in self.unplaced.items())


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        status: ``passed`` or ``failed``.
        differences: outputs that differ from those of the whole graph, and excluded tensors that
            were overwritten.
        reason: why the replay failed without differences; empty otherwise.
        coverage: which tensors the replay covered.
        notes: remarks on the comparison.
    """

    status: str
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    coverage: ReplayCoverage = dataclasses.field(default_factory=ReplayCoverage)
    notes: tuple[str, ...] = ()


def replay(model: Path, plan: Plan, conditions: RunConditions) -> ReplayResult:
    """Check a plan, and then run the model written for it, op by op, with each tensor at its offset.

    The replay fails if the plan is invalid, or if the outputs differ from those of an ordinary run.

    Raises:
        RuntimeUnavailableError: weights or provider are missing, or the model does not run.
    """
    try:
        check(plan)
    except InvalidLayoutError as error:
        return ReplayResult("failed", reason=error.message)
    return replay_unchecked(model, plan, conditions)


def replay_unchecked(model: Path, plan: Plan, conditions: RunConditions) -> ReplayResult:
    """Do the run of `replay` without checking the plan first.

    If the model has random ops, a copy with seeds is run, so that the whole graph and each op
    alone draw the same numbers.

    Raises:
        RuntimeUnavailableError: as for `replay`.
    """
    require_weights(model)
    random = random_ops(load_model(model))
    if not random:
        return _replay(model, plan, conditions)
    with tempfile.TemporaryDirectory(prefix="memplan-seeded-") as folder:
        copy = Path(folder) / model.name
        write_seeded(model, copy)
        result = _replay(copy, plan, conditions)
    note = f"random ops ({', '.join(random)}) had seeds in the copy that was run"
    return dataclasses.replace(result, notes=(*result.notes, note))


def _replay(model: Path, plan: Plan, conditions: RunConditions) -> ReplayResult:
    """Run the nodes of a model in the plan's order with tensors at their offsets; compare with an ordinary run.

    The model has no random ops.
    """
    nodes = load_model(model).graph.node
    order = _node_order([node.name for node in nodes], plan)
    if order is None:
        return ReplayResult("failed", reason="the plan's order has other nodes than the model")
    placements, unplaced = bound_placements(plan, conditions.dims)
    # Names of the tensors that must lie at their offsets: those of the main graph.
    expected = {place.name for place in placements if place.bytes and not place.block}
    missing = sorted(expected - {name for node in nodes for name in node.output})
    if missing:
        reason = f"the plan places {missing[0][:120]!r}, which no node of the model computes"
        return ReplayResult("failed", reason=reason)
    outcome, notes = _run_and_compare(model, plan, conditions, placements, order)
    coverage = _planned_coverage(placements, unplaced)
    if not outcome.ok:
        reason = f"{outcome.how}: {outcome.reason}"
        return ReplayResult("failed", reason=reason, coverage=coverage)
    placed = set(outcome.result["bound"])  # names of the tensors at their offsets
    coverage = dataclasses.replace(coverage, placed=len(placed))
    not_placed = expected - placed
    if not_placed:
        reason = f"tensor {min(not_placed)[:120]!r} did not lie where the plan places it"
        return ReplayResult("failed", reason=reason, coverage=coverage)
    differences = differences_in(outcome.result)
    status = "failed" if differences else "passed"
    return ReplayResult(status, differences, coverage=coverage, notes=notes)


def _run_and_compare(
    model: Path,
    plan: Plan,
    conditions: RunConditions,
    placements: Sequence[BoundPlacement],
    order: list[int],
) -> tuple[Outcome, tuple[str, ...]]:
    """Run the whole model, then its nodes in ``order`` at their placements; compare the outputs.

    A replay of a correct plan may round in another way than the whole model. If its outputs differ and
    that is possible (`_rounding_cause`), it is compared once more, with a replay in memory that is not shared.

    Returns:
        The outcome of the last comparison with its differences, and remarks on it.
    """
    session = conditions.session(model, UNOPTIMIZED).deterministic()
    inputs, timeout = conditions.input_set(model), conditions.timeout
    with tempfile.TemporaryDirectory(prefix="memplan-replay-") as folder:
        saved = dataclasses.replace(inputs, save_to=Path(folder))
        spec = RunSpec(session, (saved,), runs=1, compared_runs=1)
        whole = run_model(spec, timeout=timeout).require(f"{model} does not run")
        job: Json = {
            "session": to_json(session),
            "inputs": to_json(inputs),
            "folder": folder,
            "outputs": list(whole.outputs),
            "save": False,  # compare with the outputs in the folder
            "places": to_json(placements),
            "arenas": arena_heights(plan, conditions.dims),
            "order": order,
        }
        outcome = run_job(_REPLAY_JOB, job, timeout=timeout)
        cause = _rounding_cause(placements)
        if not outcome.ok or not outcome.result["differences"] or not cause:
            return outcome, ()
        note = f"{cause}: the outputs were compared with those of {_SEPARATE_MEMORY}"
        return _compare_with_separate_memory(job, placements, timeout), (note,)


def _planned_coverage(
    placements: Sequence[BoundPlacement], unplaced: Mapping[str, str]
) -> ReplayCoverage:
    """Return the numbers of tensors that a replay is to cover; ``unplaced`` are the reasons for the others."""
    top = [place for place in placements if not place.block]
    placed = [place for place in top if place.bytes]
    return ReplayCoverage(
        placed=len(placed),
        pinned=sum(place.pinned for place in placed),
        in_subgraphs=len(placements) - len(top),
        empty=len(top) - len(placed),
        unplaced=unplaced,
    )


def _rounding_cause(placements: Sequence[BoundPlacement]) -> str:
    """Return why a replay of a correct plan may round differently; empty if it may not."""
    if any(place.dtype in _16_BIT_FLOATS for place in placements):
        return _ROUNDED
    is_unaligned = any(place.offset % _ALIGNMENT for place in placements)
    return _UNALIGNED if is_unaligned else ""


def _compare_with_separate_memory(
    job: Json, placements: Sequence[BoundPlacement], timeout: float
) -> Outcome:
    """Run a replay again, and compare its outputs with those of a replay in which no two buffers share bytes.

    ``job`` was compared with a run of the whole model before, whose kernels may round otherwise
    (`_rounding_cause`). Both replays round alike, so if their outputs differ too, a value was overwritten.

    Returns:
        The outcome of the second run of ``job``, or that of the replay without sharing if that fails.
    """
    separate, height = _without_sharing(placements)
    with tempfile.TemporaryDirectory(prefix="memplan-own-") as folder:
        places = {"places": to_json(separate), "arenas": {_OWN_ARENA: height}}
        saving = {**job, **places, "folder": folder, "save": True}  # saves its outputs there
        saved = run_job(_REPLAY_JOB, saving, timeout=timeout)
        if not saved.ok:  # there is nothing to compare with
            return saved
        # As in the first run, ``save`` is False: compare with the outputs in the folder.
        return run_job(_REPLAY_JOB, {**job, "folder": folder}, timeout=timeout)


def _without_sharing(
    placements: Sequence[BoundPlacement],
) -> tuple[list[BoundPlacement], int]:
    """Return the placements with each buffer at bytes of its own in one arena, and the height of this arena.

    The order in which vectorized kernels add depends on the alignment of their operands. So that each buffer keeps
    its alignment, the remainder of its offset by `_PAGE` stays.
    """
    places_of_buffer: dict[tuple[str, str], list[BoundPlacement]] = {}
    for place in placements:
        places_of_buffer.setdefault((place.arena, place.buffer), []).append(place)
    separate: list[BoundPlacement] = []
    height = 0
    for buffer in places_of_buffer.values():
        first_byte = min(place.offset for place in buffer)
        moved = height - first_byte // _PAGE * _PAGE  # a multiple of the page, as `height` is
        separate += (
            dataclasses.replace(place, arena=_OWN_ARENA, offset=place.offset + moved)
            for place in buffer
        )
        end = max(place.offset + place.bytes for place in buffer) + moved
        height = align(end, _PAGE)
    return separate, height


def _node_order(names: Sequence[str], plan: Plan) -> list[int] | None:
    """Return the plan's order of the top block: for each of its entries, the index of the node in the file.

    None if the plan's order has other nodes than the file. An entry is the name of a node, or the index that a node
    without a name of its own had in the original file. The written file lacks this index, so such nodes are assigned
    in order:

        names in the file    "a", "", "b", ""
        plan                 "b", "#7", "a", "#3"
        result               2, 1, 0, 3

    A correct plan gives 0, 1, 2 and so on, because memplan writes a file in the plan's order.
    """
    count = Counter(names)
    # `own_name` is empty for a name such as "#7", which looks like an index.
    index_of_entry = {
        name: index for index, name in enumerate(names) if own_name(name) and count[name] == 1
    }
    nodes_without_name = [
        index for index, name in enumerate(names) if name not in index_of_entry
    ]
    entries = next((order.nodes for order in plan.order if not order.block), ())
    entries_without_name = [entry for entry in entries if entry not in index_of_entry]
    if len(entries_without_name) != len(nodes_without_name):
        return None
    index_of_entry |= zip(entries_without_name, nodes_without_name, strict=True)
    indices = [index_of_entry[entry] for entry in entries]
    return indices if sorted(indices) == list(range(len(names))) else None
