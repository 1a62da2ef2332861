"""Whatever the program and the budget: the same results, the same names, a true peak."""

from __future__ import annotations

import random
from dataclasses import replace
from heapq import heappop, heappush
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from features.recompute_programs import bytes_of, program, same_results, terms
from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.analysis.phase import Phase, Phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Op, Origin, Program, Var, VarId
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.features.recompute.bound import step_bytes
from memplan_cli.features.recompute.checkpoints import recompute_segments
from memplan_cli.features.recompute.search import search_recomputation

KINDS = ("Tanh", "Relu", "Add", "MatMul", "Reshape", "Split", "Concat", "RandomNormalLike")


def some_program(seed: int, length: int) -> Program:
    """Return a program in which values are read soon, late, or never."""
    choose = random.Random(seed)
    made = ["x"]
    lines = []
    for at in range(length):
        kind = choose.choice(KINDS)
        near = choose.sample(made[-4:], min(len(made), choose.randint(1, 2)))
        far = [choose.choice(made)] if choose.random() < 0.4 else []
        reads = [near[0]] if kind == "Reshape" else [*near, *far]
        size = choose.choice((0, 1, 7, 40, 100))
        if kind in ("Reshape", "Relu", "Tanh") and choose.random() < 0.7:
            digits = reads[0].split("_")[0].lstrip("ax")
            size = int(digits) if digits else 1
        names = [f"a{size}_{at}"] + ([f"a{size}_{at}b"] if kind == "Split" else [])
        lines.append((kind, " ".join(reads), " ".join(names)))
        made += names
    results = " ".join(dict.fromkeys([made[-1], choose.choice(made[1:])]))
    return program("x", results, *lines)


def check(before: Program, after: Program, copies: tuple[Op, ...]) -> None:
    assert same_results(before, after)
    assert set(before.vars) <= set(after.vars)
    made = {out for op in after.body.ops for out in op.outputs if out}
    assert made == {var.id for var in after.vars.values() if var.origin is Origin.OP}
    assert {op.source for op in after.body.ops} == {op.source for op in before.body.ops}
    assert all("__recompute" in out for op in copies for out in op.outputs if out)
    assert not any(op.is_random for op in copies)
    assert len(after.body.ops) == len(before.body.ops) + len(copies)


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from((None, 0.9, 0.7, 0.5, 0.3)),
       st.sampled_from(("outputs counted", "outputs left out")))  # fmt: skip
@example(2594, 35, 0.7, "outputs counted")  # a copy left out freed no work, and took bytes
@example(42, 19, 0.7, "outputs counted")  # two programs of equal peak and work
@example(16247, 35, 0.9, "outputs counted")  # as much work and bytes, with one copy fewer
@settings(max_examples=48, deadline=None)
def test_a_budget_changes_no_result(
    seed: int, length: int, share: float | None, how: str
) -> None:
    tested = some_program(seed, length)
    results = (
        {out: Size(bytes_of(out)) for out in tested.body.outputs}
        if how == "outputs counted"
        else {}
    )
    plan = replace(terms(tested), results=results)
    peak = plan.resident.live_peak(tested)
    budget = None if share is None else int(peak * share)
    result = search_recomputation(tested, plan, Phases(), budget)
    check(tested, result.program, result.copies)
    exact = replace(plan, sizes=result.sizes).resident.live_peak(result.program)
    assert exact == result.chosen.peak
    assert max(step_bytes(tested, plan)) <= exact <= peak
    assert result.met == (budget is None or exact <= budget)
    assert result.chosen in result.curve


@given(st.integers(0, 10**6), st.integers(4, 40), st.integers(0, 39), st.integers(0, 39))
@settings(max_examples=48, deadline=None)
def test_checkpoints_change_no_result(seed: int, length: int, one: int, two: int) -> None:
    tested = some_program(seed, length)
    ops = tested.body.ops
    loss = ops[len(ops) // 2].outputs[0]
    ahead = _ancestors(tested, loss)
    of: dict[VarId, Phase] = {
        out: "backward" for op in ops if op.outputs[0] not in ahead for out in op.outputs
    }
    forward = [op.outputs[0] for op in ops if op.outputs[0] not in of]
    names = [forward[at % len(forward)] for at in (one, two)]
    result = recompute_segments(tested, terms(tested), names, Phases("train", loss, of))
    check(tested, result.program, result.copies)
    assert recompute_segments(
        tested, terms(tested), names[::-1], Phases("train", loss, of)
    ).program == (result.program)


@given(st.integers(0, 10**6), st.integers(2, 6))
@example(
    1513, 4
)  # a Relu reads its first input once more, at a place that it cannot overwrite
@settings(max_examples=24, deadline=None)
def test_no_bound_is_above_what_brute_force_reaches(seed: int, length: int) -> None:
    tested = some_program(seed, length)
    plan = terms(tested)
    least = _least_by_brute_force(tested)
    assert max(step_bytes(tested, plan)) <= least


def _least_by_brute_force(tested: Program) -> int:
    """Return the least peak of any order with any copies: Dijkstra's search for a minimax.

    A state is what is there and which ops have run. What may be written in place is, and
    views are free, so this is at most what the planner counts.
    """
    root = _roots(tested)
    queue: list[tuple[int, tuple[VarId, ...], tuple[int, ...]]] = [(0, (), ())]
    seen = set()
    while queue:
        peak, there, run = heappop(queue)
        if len(run) == len(tested.body.ops):
            return peak
        if (there, run) in seen:
            continue
        seen.add((there, run))
        for at, op in enumerate(tested.body.ops):
            if not _is_ready(tested, root, at, {*there}, {*run}):
                continue
            now = {*there, *(root[var] for var in op.outputs)} - {*tested.body.outputs}
            cost = max(peak, sum(map(_bytes, now)) - _overwritten(op, root, now))
            done = tuple(sorted({*run, at}))
            for count in range(len(now) + 1):
                for kept in combinations(sorted(now), count):
                    heappush(queue, (cost, kept, done))
    raise AssertionError("no order at all")


def _roots(tested: Program) -> dict[VarId, VarId]:
    """Map what ops make to the oldest var of its bytes; results of the graph share none."""
    root: dict[VarId, VarId] = {}
    for op in tested.body.ops:
        view = op.type == "Reshape" and op.inputs[0] in root and _same(op, root)
        for out in op.outputs:
            shares = view and not {out, op.inputs[0]} & {*tested.body.outputs}
            root[out] = root[op.inputs[0]] if shares else out
    return root


def _is_ready(
    tested: Program, root: dict[VarId, VarId], at: int, there: set[VarId], run: set[int]
) -> bool:
    op = tested.body.ops[at]
    results = {out for done in run for out in tested.body.ops[done].outputs}
    results &= {*tested.body.outputs}
    reads = {root[var] for var in op.inputs if var in root}
    return reads <= there | results and not (op.is_random and at in run)


def _overwritten(op: Op, root: dict[VarId, VarId], now: set[VarId]) -> int:
    out = root[op.outputs[0]]
    places = SHARE_SAFELY.in_place.get(op.type, ())
    inputs = {root.get(op.inputs[place]) for place in places if place < len(op.inputs)}
    # Bytes that are also read at another place, or by another name, are not overwritten.
    inputs -= {root.get(name) for at, name in enumerate(op.inputs) if at not in places}
    roots = [root.get(name) for name in {*op.inputs}]
    inputs -= {each for each in roots if roots.count(each) > 1}
    fits = any(var in now and _bytes(var) == _bytes(out) for var in inputs if var)
    return _bytes(out) if fits and out in now else 0


def _same(op: Op, root: dict[VarId, VarId]) -> bool:
    return _bytes(op.outputs[0]) == _bytes(root[op.inputs[0]])


def _bytes(var: VarId) -> int:
    digits = var.split("_")[0].lstrip("ax")
    return int(digits) if digits else 1


def _ancestors(tested: Program, var: VarId) -> set[VarId]:
    found, stack = set[VarId](), [var]
    producer = {out: op for op in tested.body.ops for out in op.outputs}
    while stack:
        top = stack.pop()
        if top in producer and top not in found:
            found.update(producer[top].outputs)
            stack.extend(producer[top].inputs)
    return found


def test_the_same_program_gives_the_same_answer() -> None:
    tested = some_program(7, 40)
    budget = live_peak(tested, terms(tested).sizes) // 2
    answers = [search_recomputation(tested, terms(tested), Phases(), budget) for _ in range(2)]
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_ten_thousand_nodes_are_solved_in_half_a_minute() -> None:
    import time

    layers = 2_500
    lines = [("MatMul", f"h{1}_{at} x", f"h{1}_{at + 1}") for at in range(layers)]
    lines += [("Tanh", f"h{1}_{at + 1}", f"t{100}_{at + 1}") for at in range(layers)]
    lines += [("Mul", f"t{100}_{at} x", f"u{1}_{at}") for at in range(layers, 0, -1)]
    tested = program("x h1_0", "u1_1", *lines)
    start = time.process_time()
    peak = live_peak(tested, terms(tested).sizes)
    result = search_recomputation(tested, terms(tested), Phases(), peak // 4)
    assert result.met
    assert time.process_time() - start < 30


def test_vars_of_an_unknown_size_stay_where_they_are() -> None:
    tested = some_program(3, 20)
    unknown = tested.body.ops[2].outputs[0]
    facts = dict(tested.vars)
    facts[unknown] = Var(unknown, "unknown", None, Origin.OP, unknown)
    changed = Program("u", tested.body, facts)
    plan = terms(tested)
    sizes = {var: size for var, size in plan.sizes.items() if var != unknown}
    result = search_recomputation(changed, type(plan)(sizes), Phases(), 50)
    check(changed, result.program, result.copies)
