"""Honest certificates are accepted, and none shows a bound that an order goes below."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from certificate_cases import SAMPLES, case_of, random_case, write_text
from memplan_cli import Settings, optimize
from memplan_cli.api.models.model_file import plan_model, read_model
from memplan_cli.api.schema import schema_text
from memplan_cli.api.verify_certificate import verify_certificate
from memplan_cli.checking.certificates.cuts import check_cuts
from memplan_cli.checking.certificates.groups import (
    BLOCK_END,
    GroupGraph,
    NodeGroup,
    fuse_groups,
)
from memplan_cli.checking.certificates.planned_graph import ProofError
from memplan_cli.checking.certificates.search import check_search
from memplan_cli.cli import main
from memplan_cli.core.results.certificate import (
    NOT_CHECKED,
    VERIFIED,
    Certificate,
    Cut,
    Dual,
    Fusion,
    Hold,
    Move,
    OrderProof,
    Share,
    certificate_from_json,
)
from memplan_cli.features.certificates.certify import certificate_of
from memplan_cli.ordering import witnesses
from memplan_cli.ordering.contraction import contract
from memplan_cli.ordering.cut_bounds import CutBounds
from memplan_cli.ordering.task_graph import TaskGraph, peak
from memplan_cli.ordering.witnesses import order_witness, states_witness
from order_graphs import graph_of, orders, random_graph

if TYPE_CHECKING:
    from pathlib import Path

LEVELS: tuple[Literal[0, 1, 2], ...] = (0, 1, 2)
MODELS = sorted(path.name for path in SAMPLES.glob("*.onnx"))


@pytest.mark.parametrize("order", ["auto", "keep"])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_the_certificate_of_a_sample_model_is_accepted(
    name: str, level: Literal[0, 1, 2], order: Literal["auto", "keep"]
) -> None:
    found = case_of(SAMPLES / name, Settings(level=level, order=order)).verdict()
    said = {part.part: part.status for part in found.parts}
    assert set(said.values()) == {VERIFIED}, found.parts


@pytest.mark.parametrize("seed", range(15))
def test_certificates_of_random_models_are_accepted(seed: int, tmp_path: Path) -> None:
    for level in LEVELS:
        for size in (8, 16):
            case = random_case(seed, size, tmp_path, level, "F F Relu Identity")
            assert case.verdict().passed, case.verdict().parts


def test_the_bound_of_a_plan_with_copies_is_the_step_of_one_node(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21]>\n'
        "g (float[64,64] x) => (float[64,64] y) {\n"
        "a = Relu (x)\ns = ReduceMean (a)\nc = Add (x, s)\n"
        "f = Concat<axis=0> (c, c)\nm = ReduceMean (f)\ny = Add (a, m)\n}"
    )
    settings = Settings(recompute="auto", budget=0.8)
    model, proof = write_text(text, tmp_path / "net.onnx"), tmp_path / "proof.json"
    done = optimize(model, settings, check=None, certificate=proof)
    assert done.plan_file is not None
    assert done.plan.report.recompute.met
    assert done.plan.report.recompute.nodes
    found = verify_certificate(done.model, done.plan_file, proof)
    assert {part.part: part.method for part in found.parts}["recompute"] == "step"
    assert found.passed, found.parts


@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_the_bound_on_recomputation_is_shown_whether_or_not_the_budget_is_met(
    budget: float,
) -> None:
    case = case_of(SAMPLES / "train_mlp.onnx", Settings(recompute="auto", budget=budget))
    assert case.plan.report.recompute.met == (budget == 1.0)
    assert case.verdict().passed, case.verdict().parts


def test_copies_are_left_out_where_a_written_model_has_them(tmp_path: Path) -> None:
    command = [
        "optimize",
        str(SAMPLES / "train_mlp.onnx"),
        "--no-validate",
        "--format",
        "json",
    ]
    out, proof = tmp_path / "out.onnx", tmp_path / "proof.json"
    command += ["--recompute", "checkpoints", "--checkpoint", checkpoint()]
    done = CliRunner().invoke(main, [*command, "-o", str(out), "--certificate", str(proof)])
    assert done.exit_code == 0, done.output
    found = verify_certificate(out, tmp_path / "out.json", proof)
    assert {part.status for part in found.parts} <= {VERIFIED, NOT_CHECKED}, found.parts


def checkpoint() -> str:
    file = read_model(SAMPLES / "train_mlp.onnx")
    plan = plan_model(file, Settings()).plan
    forward = [row.name for row in plan.tensors if row.first < 4]
    return forward[0]


def test_the_same_plan_has_the_same_certificate(tmp_path: Path) -> None:
    one, other = (random_case(3, 14, tmp_path) for _ in range(2))
    assert one.certificate == other.certificate


def test_a_certificate_is_read_as_it_was_written() -> None:
    file = read_model(SAMPLES / "train_mlp.onnx")
    found: Certificate = certificate_of(plan_model(file, Settings()))
    assert certificate_from_json(json.loads(found.dumps())) == found


def tasks_of(graph: TaskGraph) -> GroupGraph:
    """Return a graph as a check sees it: tensors by their numbers, as text."""
    users = {str(t): {BLOCK_END} if kept else set() for t, kept in enumerate(graph.is_result)}
    for op, touched in enumerate(graph.accesses):
        for tensor in touched:
            users[str(tensor)].add(op)
    shared = {t: ops for t, ops in users.items() if len(ops) > 1}
    groups = {
        op: NodeGroup(
            set(graph.preds[op]),
            set(graph.succs[op]),
            {str(t) for t in graph.defines[op] if str(t) in shared},
            {str(t) for t in graph.accesses[op] if str(t) in shared},
            {str(t) for t in graph.in_place_inputs[op]},
            graph.in_place_bytes[op],
            graph.step_bytes[op],
        )
        for op in range(graph.size)
    }
    weight = {str(t): much for t, much in enumerate(graph.tensor_bytes)}
    return GroupGraph(groups, weight, shared, graph.initial_bytes)


def is_shown(graph: TaskGraph, proof: OrderProof) -> bool:
    tasks = tasks_of(graph)
    try:
        fuse_groups(tasks, proof.fusions)
        if proof.method == "search":
            check_search(tasks, proof.states, proof.bound)
        else:
            check_cuts(tasks, proof.cuts, proof.tensors, proof.bound)
    except ProofError:
        return False
    return True


TRAINED_TWICE = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
g (float[64,4] x, float[64,4] z) => (float[4] y{more})
<float[4] b = {{0, 0, 0, 0}}, float[4] m = {{1, 2, 3, 4}}, float[4] v = {{1, 1, 1, 1}},
 float[4] s, float[4] c> {{
    s = local.F (x)
    a, am, av = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    q, qm, qv = BatchNormalization <training_mode = 1> (z, s, b, m, v)
    c = local.F (q)
    y = local.F (a, c)
}}"""


def test_normalizations_that_update_one_statistic_are_shown_in_the_order_of_the_file(
    tmp_path: Path,
) -> None:
    case = case_of(write_text(TRAINED_TWICE.format(more=""), tmp_path / "net.onnx"))
    assert case.plan.report.memory.order_bound == 2096, "a and q are live together"
    assert case.verdict().passed, case.verdict().parts


def test_updated_statistics_that_are_outputs_of_the_model_put_nothing_in_order(
    tmp_path: Path,
) -> None:
    updates = "".join(f", float[4] {name}" for name in ("am", "av", "qm", "qv"))
    text = TRAINED_TWICE.format(more=updates)
    case = case_of(write_text(text, tmp_path / "net.onnx"), Settings(order="keep"))
    report, forged = case.plan.report, deepcopy(case.certificate)
    forged["order"] = {
        "bound": 2064,
        "method": "cut",
        "tensors": ["s", "a", "q", "c"],
        "cuts": [{"node": 2, "duals": [{"shares": [], "holds": []}]}],
    }
    memory = replace(report.memory, order_bound=2064)
    case = replace(case, plan=case.plan.with_report(replace(report, memory=memory)))
    assert "shows 1040 bytes only" in case.verdict(forged).parts[0].reason


def test_what_is_written_over_no_operand_is_shown(tmp_path: Path) -> None:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'
        "g (int8[1] x) => (int8[1] y) <int8[64] a, int8[64] v, int8[64] b> {\n"
        "a = local.F (x)\nv = Identity (a)\nb = Add (a, v)\ny = local.F (b)\n}"
    )
    case = case_of(write_text(text, tmp_path / "net.onnx"))
    assert case.plan.report.memory.order_bound == 128, "an operand has a view beside it"
    assert case.verdict().passed, case.verdict().parts


def test_a_state_needs_a_move_for_each_group_that_can_run() -> None:
    """Ops 1 and 2 run freely after 0; 3 may run before or after them."""
    tasks = tasks_of(graph_of([[], [0], [1], [], [2, 3]], [4, 1, 0, 1, 20], outlives=[4]))
    first, last = Move((0,), (1, 2), 2), Move((3,), (), 3)
    states = (
        (Move((), (), 1),),
        (first, last),
        (last._replace(to=4),),
        (first._replace(to=4),),
        (),
    )
    check_search(tasks, states, 21)
    with pytest.raises(ProofError, match="no move for 3"):
        check_search(tasks, (states[0], (first,), *states[2:]), 21)


@pytest.mark.parametrize("seed", range(50))
def test_no_certificate_goes_above_what_an_order_reaches(seed: int) -> None:
    """The least peak of all orders is shown; a byte more is not, however it is forged."""
    graph = random_graph(seed)
    least = min(peak(graph, order) for order in orders(graph))
    names = [str(tensor) for tensor in range(len(graph.tensor_bytes))]
    proof = order_witness(graph, names, least)
    assert is_shown(graph, proof)
    assert not is_shown(graph, replace(proof, bound=least + 1))
    draw = random.Random(seed)
    for _ in range(40):
        assert not is_shown(graph, replace(forged(proof, graph, draw), bound=least + 1))


def test_cuts_of_clusters_name_the_ops_that_lead_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large graphs have cuts of clusters alone: here what whole graphs have is left out."""
    cuts, shown = witnesses._cuts, 0
    for seed in range(120):
        draw = random.Random(seed)
        reads = [
            draw.sample(range(max(op - 6, 0), op), min(op, draw.randint(0, 3)))
            for op in range(draw.randint(8, 30))
        ]
        graph = graph_of(reads, [draw.choice((1, 2, 3, 5, 8)) for _ in reads])
        small = contract(graph).graph
        if small.size in {1, graph.size}:
            continue
        steps = range(small.size)
        least = max(CutBounds(small).lowest_cut(op, 10**6).bound for op in steps)
        monkeypatch.setattr(
            witnesses,
            "_cuts",
            lambda of, bound, size=graph.size: () if of.size == size else cuts(of, bound),
        )
        names = [str(tensor) for tensor in range(len(graph.tensor_bytes))]
        proof = order_witness(graph, names, least)
        assert is_shown(graph, proof)
        shown += bool(
            proof.fusions and any(dual.shares for c in proof.cuts for dual in c.duals)
        )
    assert shown > 20


def forged(proof: OrderProof, graph: TaskGraph, draw: random.Random) -> OrderProof:
    """Change something at random."""
    ops = range(graph.size)
    if proof.states:
        states = [list(moves) for moves in proof.states]
        victim = draw.choice(states)
        if victim and draw.random() < 0.5:
            victim.pop(draw.randrange(len(victim)))
        elif victim:
            at = draw.randrange(len(victim))
            free = tuple(draw.sample(ops, draw.randint(0, graph.size)))
            victim[at] = victim[at]._replace(free=free)
        return replace(proof, states=tuple(map(tuple, states)))
    cut = draw.choice(proof.cuts)
    duals = tuple(changed(dual, draw, graph) for dual in cut.duals)
    other = Cut(draw.choice([cut.node, *ops]), duals, cut.before, cut.after)
    return replace(proof, cuts=tuple(other if each is cut else each for each in proof.cuts))


def changed(dual: Dual, draw: random.Random, graph: TaskGraph) -> Dual:
    ops = range(graph.size)
    shares, holds = list(dual.shares), list(dual.holds)
    for _ in range(draw.randint(1, 3)):
        share = Share(draw.randrange(graph.size), draw.choice(ops), draw.randint(1, 8))
        shares.insert(0, share)
        if draw.random() < 0.5:
            holds.append(Hold(draw.choice(ops), draw.choice(ops), draw.randint(1, 8)))
    return Dual(tuple(shares), tuple(holds), dual.replaced)


@pytest.mark.parametrize("name", ["cut", "pair", "search"])
def test_what_is_written_is_valid_against_the_schema(name: str, tmp_path: Path) -> None:
    made = {
        "cut": lambda: random_case(4, 8, tmp_path),
        "pair": lambda: random_case(3, 8, tmp_path),
        "search": lambda: random_case(12, 8, tmp_path),
    }
    validator = Draft202012Validator(json.loads(schema_text("certificate")))
    data = made[name]().certificate
    assert list(validator.iter_errors(data)) == []
    data["order"]["bound"] = -1
    assert list(validator.iter_errors(data))


def test_the_order_around_a_branch_is_shown(tmp_path: Path) -> None:
    """What is live around the node reaches the bound, whatever is inside of it."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'
        "g (bool c, int8[1] x) => (int8[1] y) <int8[512] a, int8[512] b, int8[64] d> {\n"
        "a = local.F (x)\nb = local.F (a)\n"
        "d = If (c) <then_branch = t () => (int8[64] u) { u = local.F (b) }, "
        "else_branch = e () => (int8[64] v) { v = local.F (b) }>\n"
        "y = local.F (d)\n}"
    )
    case = case_of(write_text(text, tmp_path / "branch.onnx"))
    assert case.verdict().passed, case.verdict().parts
    assert case.certificate["order"]["method"] == "cut"


@pytest.mark.parametrize("seed", range(50))
def test_an_exhausted_search_shows_the_least_peak_and_no_more(seed: int) -> None:
    graph = random_graph(seed)
    least = min(peak(graph, order) for order in orders(graph))
    proof = states_witness(contract(graph), least)
    if least > max(graph.step_bytes):  # else nothing can be run below it
        assert proof.method == "search"
    if proof.method == "search":
        assert is_shown(graph, proof)
        assert not is_shown(graph, replace(proof, bound=least + 1))
        draw = random.Random(seed)
        for _ in range(20):
            assert not is_shown(graph, replace(forged(proof, graph, draw), bound=least + 1))
    draw = random.Random(seed)
    for _ in range(60):
        states = pruned(tasks_of(graph), least + 1, draw)
        assert not is_shown(graph, OrderProof(least + 1, "search", states=states))


@dataclass
class Run:
    """What is left to run, and what is live."""

    left: frozenset[int]
    live: int

    def step(self, tasks: GroupGraph, group: int) -> tuple[int, Run]:
        """Return what a group takes while it runs, and what is left after it."""
        task = tasks.groups[group]
        waiting = self.left | {BLOCK_END}
        ends = {t for t in task.used if tasks.users[t] & waiting == {group}}
        need = task.need - (task.saved_bytes if task.replaceable & ends else 0)
        live = self.live + tasks.produced_bytes(group) - sum(tasks.sizes[t] for t in ends)
        return self.live + need, Run(self.left - {group}, live)

    def ready(self, tasks: GroupGraph) -> list[int]:
        return sorted(g for g in self.left if not tasks.groups[g].predecessors & self.left)


def pruned(tasks: GroupGraph, bound: int, draw: random.Random) -> tuple[tuple[Move, ...], ...]:
    """Search below a bound, and leave out what one should not, as if that were allowed."""
    start = Run(frozenset(tasks.groups), tasks.pinned_bytes)
    queue, moves = [start], [[Move((), (), 1)]]
    known = {start.left: 1}
    for run in queue:
        ways = [g for g in run.ready(tasks) if run.step(tasks, g)[0] < bound]
        if ways and draw.random() < 0.6:
            ways = [draw.choice(ways)]
        found = []
        for group in ways:
            _, after = run.step(tasks, group)
            free: list[int] = []
            while draw.random() < 0.5 and (ready := after.ready(tasks)):
                free.append(draw.choice(ready))
                _, after = after.step(tasks, free[-1])
            if after.left not in known:
                known[after.left] = len(known) + 1
                queue.append(after)
            found.append(Move((group,), tuple(free), known[after.left]))
        moves.append(found)
    order = sorted(range(len(queue)), key=lambda at: -len(queue[at].left))
    number = {at + 1: place for place, at in enumerate(order, 1)}
    rows = [moves[0], *(moves[at + 1] for at in order)]
    return tuple(tuple(m._replace(to=number[m.to]) for m in row) for row in rows)


def least_peak(tasks: GroupGraph) -> int:
    """Return the least peak of all orders of some groups."""
    known: dict[frozenset[int], int] = {frozenset(): 0}

    def rest(run: Run) -> int:
        if run.left not in known:
            steps = (run.step(tasks, group) for group in run.ready(tasks))
            known[run.left] = min(max(step, rest(after)) for step, after in steps)
        return known[run.left]

    return rest(Run(frozenset(tasks.groups), tasks.pinned_bytes))


@pytest.mark.parametrize("seed", range(100))
def test_fusions_that_are_allowed_keep_an_optimal_order(seed: int) -> None:
    graph = random_graph(seed)
    draw = random.Random(seed)
    tasks = tasks_of(graph)
    least = least_peak(tasks)
    assert least == min(peak(graph, order) for order in orders(graph))
    for _ in range(60):
        node, into = draw.choice(range(graph.size)), draw.choice(range(graph.size))
        rule = draw.choice(("late", "early"))
        trial = deepcopy(tasks)
        try:
            fuse_groups(trial, [Fusion(node, into, rule)])
        except ProofError:
            continue
        tasks = trial
        assert least_peak(tasks) == least, (node, into, rule)
