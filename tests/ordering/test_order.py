"""`best_order` on programs that fit on a page."""

import subprocess
import sys
from collections.abc import Iterable

import pytest

from builders import block, op, program
from memplan_cli.analysis.aliasing import SHARE_NOTHING
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId
from memplan_cli.core.symbolic.sizes import Size, size_of
from memplan_cli.ordering.best_order import best_order, simple_orders
from memplan_cli.ordering.list_orders import SCHEDULERS
from memplan_cli.ordering.records import Ordering, PlannedVars

Sizes = dict[VarId, Size]


def program_of(text: str, results: str) -> Program:
    """Read ``a b = Type c d`` lines; the input is ``x``."""
    ops = []
    for index, line in enumerate(text.strip().splitlines()):
        left, _, right = line.partition("=")
        kind, *inputs = right.split()
        ids = tuple(map(VarId, left.split()))
        ops.append(Op(f"n{index}", kind, tuple(map(VarId, inputs)), ids, source=index))
    made = [VarId("x"), *(var for op in ops for var in op.outputs)]
    vars_ = {
        var: Var(var, "uint8", None, Origin.OP if var != "x" else Origin.INPUT) for var in made
    }
    wanted = tuple(map(VarId, results.split()))
    return Program("page", Block((VarId("x"),), wanted, tuple(ops)), vars_)


def sizes_of(**sizes: int | str) -> Sizes:
    return {
        VarId(name): Size(size) if isinstance(size, int) else Size(1, (size,))
        for name, size in sizes.items()
    }


def names(ops: Iterable[Op]) -> list[str]:
    return [op.name for op in ops]


TWO_BRANCHES = program_of(
    """
    a = Conv x
    b = Conv x
    c = Conv a
    d = Conv b
    y = Sum c d
    """,
    "y",
)
BIG_THEN_SMALL = sizes_of(a=100, b=100, c=1, d=1)


def test_a_branch_is_finished_before_the_next_one_begins() -> None:
    found = best_order(TWO_BRANCHES, BIG_THEN_SMALL)
    assert names(found.program.body.ops) == ["n0", "n2", "n1", "n3", "n4"]
    assert found.peaks["file"] == 201
    assert found.peaks[found.chosen] == 102
    assert found.bound == 102
    assert found.proved


def test_a_tie_goes_to_the_order_of_the_file() -> None:
    found = best_order(TWO_BRANCHES, sizes_of(a=1, b=1, c=1, d=1))
    assert found.program is TWO_BRANCHES
    assert found.chosen == "file"
    assert found.proved


def test_an_empty_program_has_an_order() -> None:
    program = program_of("", "x")
    assert best_order(program, {}) == Ordering(
        program, dict.fromkeys(SCHEDULERS, 0), "file", 0, proved=True
    )


def test_pinned_vars_count_at_every_step() -> None:
    pinned = [VarId("a")]
    found = best_order(TWO_BRANCHES, BIG_THEN_SMALL, pinned=pinned)
    best = live_peak(found.program, BIG_THEN_SMALL, pinned)
    assert best == found.peaks[found.chosen] == found.bound == 201
    assert found.peaks["file"] == 202


@pytest.mark.parametrize(
    ("kind", "fed"), [("RandomNormalLike", "x"), ("SequenceAt", "s"), ("Conv", "x")]
)
def test_random_ops_keep_their_relative_order(kind: str, fed: str) -> None:
    # It would be best to make b and shrink it before a is made.
    program = program_of(
        f"""
        s = SequenceConstruct x
        a = {kind} {fed}
        b = {kind} {fed}
        c = Conv b
        y = Sum a c
        """,
        "y",
    )
    found = best_order(program, sizes_of(a=100, b=100, c=1))
    order = names(found.program.body.ops)
    assert (order.index("n1") < order.index("n2")) == (kind == "RandomNormalLike")
    assert found.peaks[found.chosen] == (201 if kind == "RandomNormalLike" else 101)


NORMALIZED = """
    mean = Conv x
    {a} = BatchNormalization x x x mean x
    {b} = BatchNormalization x x x mean x
    c = Conv b
    y = Sum a c
    """


@pytest.mark.parametrize("trains", [True, False])
def test_ops_that_update_one_statistic_keep_their_relative_order(*, trains: bool) -> None:
    a, b = ("a am av", "b bm bv") if trains else ("a", "b")
    program = program_of(NORMALIZED.format(a=a, b=b), "y")
    found = best_order(program, sizes_of(mean=1, a=100, b=100, c=1))
    order = names(found.program.body.ops)
    assert (order.index("n1") < order.index("n2")) == trains


def test_who_reads_a_statistic_that_is_updated_stays_before_the_update() -> None:
    program = program_of(
        """
        mean = Conv x
        a = Sub mean x
        b bm bv = BatchNormalization x x x mean x
        c = Conv b
        y = Sum a c
        """,
        "y",
    )
    found = best_order(program, sizes_of(mean=1, a=100, b=100, c=1))
    order = names(found.program.body.ops)
    assert order.index("n1") < order.index("n2")


def test_who_reads_an_updated_statistic_stays_before_the_next_update() -> None:
    program = program_of(
        """
        mean = Conv x
        a am av = BatchNormalization x x x mean x
        m = Conv am
        b bm bv = BatchNormalization x x x mean x
        c = Conv b
        y = Sum m c
        """,
        "y",
    )
    found = best_order(program, sizes_of(mean=1, am=1, m=100, b=100, c=1))
    order = names(found.program.body.ops)
    assert order.index("n2") < order.index("n3")


def test_two_views_of_one_input_are_not_replaced() -> None:
    program = program_of("a = Conv x\nv = Reshape a\nb = Add a v\ny = Conv b", "y")
    found = best_order(program, sizes_of(a=4, v=4, b=4))
    assert found.peaks["file"] == live_peak(program, sizes_of(a=4, v=4, b=4)) == 8


def test_symbolic_sizes_are_ordered_by_a_sample_and_report_no_peaks() -> None:
    sizes = sizes_of(a="batch", b="batch", c=1, d=1)
    found = best_order(TWO_BRANCHES, sizes)
    assert names(found.program.body.ops) == ["n0", "n2", "n1", "n3", "n4"]
    assert found.peaks == {}
    assert found.bound is None
    assert not found.proved


def test_an_order_that_is_worse_for_another_value_of_a_symbol_is_refused() -> None:
    # With batch = 64 the branches should be finished in turn; with batch = 1 that is worse.
    program = program_of(
        """
        a = Conv x
        b = Conv x
        d = Conv b
        e = Conv b
        c = Conv a
        y = Sum c d e
        """,
        "y",
    )
    sizes = sizes_of(a="batch", b=10, c=30, d=1, e=1)
    found = best_order(program, sizes, aliasing=SHARE_NOTHING)
    for batch in (1, 64, 1024):
        bound = {var: size.bind({"batch": batch}) for var, size in sizes.items()}
        assert live_peak(found.program, bound, aliasing=SHARE_NOTHING) <= live_peak(
            program, bound, aliasing=SHARE_NOTHING
        )
    assert found.chosen == "file"


def test_equal_numbers_of_different_symbols_are_not_taken_for_equal_sizes() -> None:
    # Both stand for the same sample, but a result of n bytes cannot replace m bytes.
    program = program_of("a = Relu x\nb = Relu a\ny = Conv b", "y")
    found = best_order(program, sizes_of(a="m", b="n"))
    assert found.program is program


def test_without_work_or_time_the_file_is_still_beaten_by_the_simple_orders() -> None:
    for found in (
        best_order(TWO_BRANCHES, BIG_THEN_SMALL, work=0),
        best_order(TWO_BRANCHES, BIG_THEN_SMALL, time_limit=0.0),
    ):
        assert live_peak(found.program, BIG_THEN_SMALL) == 102


def test_progress_of_the_order_search_is_one_line_each() -> None:
    lines: list[str] = []
    wide = program_of(
        "\n".join(
            [
                *(f"a{i} = Conv x" for i in range(6)),
                *(f"b{i} = Conv a{i} a{(i + 1) % 6}" for i in range(6)),
                "y = Sum " + " ".join(f"b{i}" for i in range(6)),
            ]
        ),
        "y",
    )
    sizes = {VarId(f"{kind}{i}"): Size(3 + i) for kind in "ab" for i in range(6)}
    best_order(wide, sizes, progress=lines.append)
    assert lines
    assert all(line.startswith("order: ") for line in lines)


def test_nothing_more_is_tried_once_an_order_is_proved() -> None:
    lines: list[str] = []
    assert best_order(TWO_BRANCHES, BIG_THEN_SMALL, progress=lines.append).proved
    assert lines[-1] == "order: 102 bytes by reverse_post_order, none below 102"
    assert all("none below 101" in line for line in lines[:-1])


def test_each_simple_order_but_the_files_can_be_had() -> None:
    made = dict(simple_orders(TWO_BRANCHES, PlannedVars(BIG_THEN_SMALL), SCHEDULERS))
    assert made.keys() == SCHEDULERS.keys() - {"file"}


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_order_does_not_depend_on_the_hash_seed(seed: str) -> None:
    code = """
from memplan_cli.core.program import *
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.ordering.best_order import best_order
ops, sizes, ids = [], {}, [VarId("x")]
for i in range(120):
    out = VarId(f"v{i}")
    reads = tuple({ids[-1 - (i * 7 + k * 5) % min(len(ids), 9)]: 0 for k in range(1 + i % 3)})
    ops.append(Op(f"n{i}", ("Conv", "Relu", "Add")[i % 3], reads, (out,), source=i))
    sizes[out] = Size(1 + (i * 37) % 11)
    ids.append(out)
vars = {v: Var(v, "uint8", None, Origin.OP) for v in ids}
found = best_order(Program("p", Block((ids[0],), (ids[-1],), tuple(ops)), vars), sizes, work=30000)
print(found.chosen, found.bound, *(op.name for op in found.program.body.ops))
"""
    output = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": value, "PYTHONPATH": "."},
            capture_output=True,
            check=True,
        ).stdout
        for value in ("0", seed)
    ]
    assert output[0] == output[1] != b""


def test_a_length_that_no_sample_reaches_is_ordered_all_the_same() -> None:
    """``n - 1000`` is negative at every sample."""
    made = program(block("x", "z", op("a <- x"), op("b <- x"), op("z <- a b")))
    length = size_of(("n - 1000",), "float32")
    assert length is not None
    found = best_order(made, {VarId("a"): length, VarId("b"): Size(4)})
    assert sorted(o.name for o in found.program.body.ops) == sorted(
        o.name for o in made.body.ops
    )
