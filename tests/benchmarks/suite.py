"""Plan, rewrite and run every test model of the onnx package, against its own answers.

    python -m tests.benchmarks.suite [--only TEXT] [--no-table]

Each model is written three times: in the order that memplan chooses, in a random valid
order, and with every value that may be made twice made again before some of its readers.
Each is run with the suite's own inputs and compared with the original's outputs, bit for
bit: by ONNX Runtime, and what that refuses by the onnx package's own evaluator. The
original's outputs are held against the suite's. Cases run in batches in processes of their
own: a runtime that crashes costs one case.

Guards the claim of docs/measurements/suite.md: no rewritten model of the ONNX backend suite
gives other outputs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.analysis.repetition import may_run_twice
from memplan_cli.api.models.model_file import ModelFile, plan_model
from memplan_cli.core.program import Block, Op, Program, VarId, captures, intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import MemplanError
from memplan_cli.features.recompute.build import write_copies
from memplan_cli.features.recompute.values import find_values
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.writing.write import written_model
from memplan_cli.settings.settings import Settings

from .in_process import keep_jobs_here
from .pages import MEASUREMENTS, replace_figures, write_full_table
from .suite_cases import Case, cases, names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.planning.planner import PlannedProgram


def shuffled(program: Program, rng: random.Random) -> Program:
    """Return the program in a random valid order, bodies too."""
    return replace(program, body=_shuffled(program.body, rng))


def _shuffled(block: Block, rng: random.Random) -> Block:
    ops = [op._replace(bodies=tuple(_shuffled(b, rng) for b in op.bodies)) for op in block.ops]
    maker = {var: at for at, op in enumerate(ops) for var in op.outputs if var}
    waits = [
        {maker[var] for var in _reads(op) if var in maker} - {at} for at, op in enumerate(ops)
    ]
    order: list[int] = []
    left = set(range(len(ops)))
    while left:
        ready = sorted(at for at in left if waits[at].isdisjoint(left))
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return replace(block, ops=tuple(ops[at] for at in order))


def _reads(op: Op) -> set[VarId]:
    return {*op.inputs, *(var for body in op.bodies for var in captures(body))}


@dataclass(frozen=True)
class Copies:
    """A program in which ops run again, and how many do.

    With none, an op may still run later than it did: where only copies are read, the first
    goes, and its earliest copy takes its name.
    """

    program: Program
    count: int
    why_none: str = ""


def read_twice(model: ModelProto) -> ModelProto:
    """Return a model whose outputs are made by an Identity each, and by a second one.

    A graph output is always there and never made again; behind an Identity it is an
    intermediate that two nodes read, and the second of them can ask for a copy. Most of
    the suite's models are one node, whose results are all outputs.
    """
    wider = type(model)()
    wider.CopyFrom(model)
    graph = wider.graph
    given = list(graph.output)
    del graph.output[:]
    for value in given:
        for suffix in ("first", "again"):
            name = f"{value.name}.{suffix}"
            graph.node.append(helper.make_node("Identity", [value.name], [name], name=name))
            output = graph.output.add()
            output.CopyFrom(value)
            output.name = name
    if not any(opset.domain in ("", "ai.onnx") for opset in wider.opset_import):
        wider.opset_import.append(helper.make_opsetid("", 16))
    return wider


def copied(program: Program, rng: random.Random) -> Copies:
    """Make each value that may be made twice again before some of its readers."""
    found = ((var, program.vars[var]) for var in intermediates(program))
    sizes = {var: size_of(facts.shape, facts.dtype) for var, facts in found}
    known = {var: size for var, size in sizes.items() if size is not None}
    values = find_values(program, known, frozenset(), SHARE_SAFELY)
    chosen = [
        _some(reads[1:], rng) if work >= 0 else ()
        for reads, work in zip(values.accesses, values.work, strict=True)
    ]
    if not any(chosen):
        return Copies(program, 0, _why_none(program))
    made = write_copies(values, chosen, known)
    return Copies(made.program, len(made.copies))


def _some(reads: tuple[int, ...], rng: random.Random) -> tuple[int, ...]:
    return tuple(at for at in reads if at == reads[-1] or rng.random() < 0.5)


def _why_none(program: Program) -> str:
    ops = [op for op in program.body.ops if op.type != "Identity"]
    for label, kept in (
        ("it draws random numbers", lambda op: op.is_random),
        ("it owns bodies, whose cost is not known", lambda op: op.bodies),
        ("it works on sequences, which may change where they stand",
         lambda op: op.type.startswith("Sequence")),
        ("it may have state, or write over what it reads", lambda op: not may_run_twice(op)),
    ):  # fmt: skip
        if ops and all(kept(op) for op in ops):
            return f"{ops[0].type} never runs twice: {label}"
    return "no node makes a value that may be made twice"


ROOT = Path(__file__).parents[2]
TABLE = MEASUREMENTS / "suite.md"
BATCH = 100
NEWEST_IR = 13
"""The newest IR version that ONNX Runtime 1.31 reads; the suite's models have up to 14."""

EQUAL, EVALUATED, LEFT, CANNOT_RUN, WRONG, CRASH = VERDICTS = (
    "equal in ONNX Runtime",
    "equal in the evaluator",
    "left as it is, with a reason",
    "runs nowhere",
    "WRONG",
    "CRASH",
)


@dataclass(frozen=True)
class Verdict:
    """What became of one way to rewrite one case."""

    case: str
    way: str
    verdict: str
    reason: str = ""
    copies: int = 0


@dataclass(frozen=True)
class Rewritten:
    """A model before and after; no ``after`` where it is left as it is, and why."""

    before: onnx.ModelProto
    after: bytes | None
    reason: str = ""
    copies: int = 0


def _planned(model: onnx.ModelProto) -> tuple[onnx.ModelProto, PlannedProgram]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        loaded = load_model(path)
        return loaded, plan_model(ModelFile.of(path, loaded), Settings(allow_partial=True))


def _in_the_planned_order(model: onnx.ModelProto, rng: random.Random) -> Rewritten:
    del rng
    loaded, planned = _planned(model)
    return Rewritten(model, b"".join(written_model(loaded, planned.program, planned.plan)))


def _in_a_random_order(model: onnx.ModelProto, rng: random.Random) -> Rewritten:
    loaded, planned = _planned(model)
    mixed = shuffled(planned.program, rng)
    return Rewritten(model, b"".join(written_model(loaded, mixed, planned.plan)))


def _with_copies(model: onnx.ModelProto, rng: random.Random) -> Rewritten:
    wider = read_twice(model)
    loaded, planned = _planned(wider)
    forced = copied(planned.program, rng)
    if forced.why_none:
        return Rewritten(wider, None, forced.why_none)
    data = b"".join(written_model(loaded, forced.program, planned.plan))
    return Rewritten(wider, data, copies=forced.count)


WAYS: Mapping[str, Callable[[onnx.ModelProto, random.Random], Rewritten]] = {
    "memplan's order": _in_the_planned_order,
    "a random order": _in_a_random_order,
    "with copies": _with_copies,
}


def judge(case: Case) -> list[Verdict]:
    """Return what became of a case in each way."""
    found = []
    for way, rewrite in WAYS.items():
        try:
            found.append(replace(_judged(case, rewrite), way=way))
        except Exception as error:  # noqa: BLE001 - a traceback here is a fault to report
            reason = f"{type(error).__name__}: {error}"[:300]
            found.append(Verdict(case.name, way, WRONG, reason))
    return found


def _judged(
    case: Case, rewrite: Callable[[onnx.ModelProto, random.Random], Rewritten]
) -> Verdict:
    try:
        made = rewrite(case.model, random.Random(case.name))
    except MemplanError as error:
        return Verdict(case.name, "", LEFT, str(error))
    if made.after is None:
        return Verdict(case.name, "", LEFT, made.reason)
    refusals = []
    for run, verdict in ((_run, EQUAL), (_evaluate, EVALUATED)):
        try:
            original = run(made.before.SerializeToString(), case)
        except Exception as error:  # noqa: BLE001 - whatever the runtime says
            refusals.append((str(error).splitlines() or [type(error).__name__])[0][:160])
            continue
        again = run(made.after, case)
        if any(map(_is_random, case.model.graph.node)):
            reason = "random: runs"
        elif not _same(original, again):
            return Verdict(case.name, "", WRONG, "other outputs than the original")
        else:
            # A model whose outputs are read twice gives each of them twice.
            one_each = original[:: max(1, len(original) // max(1, len(case.expected)))]
            matches = not case.expected or _close(one_each, case)
            reason = "" if matches else "the original's own answer is not the suite's"
        return Verdict(case.name, "", verdict, reason, made.copies)
    return Verdict(case.name, "", CANNOT_RUN, "; ".join(refusals), made.copies)


def _is_random(node: onnx.NodeProto) -> bool:
    training = node.op_type == "Dropout" and len(node.input) > 2
    return training or node.op_type in (
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    )  # fmt: skip


def _run(data: bytes, case: Case) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    readable = _of_a_version_that_it_reads(data)
    session = ort.InferenceSession(readable, options, providers=["CPUExecutionProvider"])
    feeds = {
        info.name: value
        for info, value in zip(session.get_inputs(), case.inputs, strict=False)
    }
    results: list[Any] = session.run(None, feeds)
    return results


def _of_a_version_that_it_reads(data: bytes) -> bytes:
    """Lower the IR version: what it adds, these models do not use, and the runtime refuses it."""
    model = onnx.load_from_string(data)
    if model.ir_version <= NEWEST_IR:
        return data
    model.ir_version = NEWEST_IR
    lowered: bytes = model.SerializeToString()
    return lowered


def _evaluate(data: bytes, case: Case) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    model = onnx.load_from_string(data)
    weights = {tensor.name for tensor in model.graph.initializer}
    given = [value.name for value in model.graph.input if value.name not in weights]
    # It runs on whatever it is fed: too few inputs would be other ones.
    feeds = dict(zip(given, case.inputs, strict=True))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        results: list[Any] = ReferenceEvaluator(model).run(None, feeds)
    return results


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - arrays, lists, None
    if isinstance(one, list):
        return (
            isinstance(other, list) and len(one) == len(other) and all(map(_same, one, other))
        )
    if not isinstance(one, np.ndarray) or one.dtype == object:
        return bool(np.array_equal(one, other))
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _close(found: list[Any], case: Case) -> bool:
    try:
        for one, other in zip(found, case.expected, strict=False):
            if isinstance(other, np.ndarray) and other.dtype.kind == "f":
                np.testing.assert_allclose(one, other, case.rtol, case.atol)
    except AssertionError:
        return False
    return True


def run_batch(batch: Sequence[str]) -> list[Verdict]:
    """Judge cases in a process of their own; a crash is charged to the case it hit."""
    left, found = list(batch), list[Verdict]()
    while left:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.suite", "--worker"],
            input=json.dumps(left), capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        judged = dict(map(json.loads, _rows(done.stdout)))
        found += [Verdict(*row) for verdicts in judged.values() for row in verdicts]
        rest = [name for name in left if name not in judged]
        if rest and done.returncode:
            reason = done.stderr.strip()[-300:] or f"exit code {done.returncode}"
            found += [Verdict(rest[0], way, CRASH, reason) for way in WAYS]
            rest = rest[1:]
        elif rest == left:
            raise RuntimeError(f"no case is called {rest[0]}")
        left = rest
    return found


def _rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("[")]


def worker() -> None:
    """Judge the cases named on stdin, one JSON line each, in the order of the names."""
    keep_jobs_here()
    for case in cases(json.load(sys.stdin)):
        rows = [(v.case, v.way, v.verdict, v.reason, v.copies) for v in judge(case)]
        print(json.dumps([case.name, rows]), flush=True)


def table(found: Sequence[Verdict]) -> str:
    """Return the counts as Markdown."""
    kinds = sorted({v.case.partition("/")[0] for v in found})
    lines = [
        "| folder | rewritten | cases | " + " | ".join(VERDICTS) + " | copies |",
        "|---|---|---:|" + "---:|" * len(VERDICTS) + "---:|",
    ]
    for kind in [*kinds, ""]:
        for way in WAYS:
            mine = [v for v in found if v.way == way and v.case.startswith(kind)]
            counts = Counter(v.verdict for v in mine)
            cells = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
            copies = sum(v.copies for v in mine)
            lines.append(f"| {kind or 'all'} | {way} | {len(mine)} | {cells} | {copies} |")
    first = [v for v in found if v.way == next(iter(WAYS))]
    for verdict, who in ((EQUAL, "ONNX Runtime's"), (EVALUATED, "the evaluator's")):
        other = sum("not the suite's" in v.reason and v.verdict == verdict for v in first)
        lines += [
            "",
            f"In {other} cases {who} own answer is not the suite's; the rewritten model gives",
            "the same bits as the original there.",
        ]
    return "\n".join(lines) + "\n"


def _reasons(found: Sequence[Verdict]) -> list[str]:
    """Return what was left and why, counted, then each case that runs nowhere or is wrong."""
    left = Counter((v.way, v.reason) for v in found if v.verdict == LEFT)
    lines = ["", f"{LEFT}:", "", "| rewritten | reason | cases |", "|---|---|---:|"]
    for (way, reason), count in sorted(left.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"| {way} | {_cell(reason)} | {count} |")
    for verdict in (CANNOT_RUN, WRONG, CRASH):
        rows = sorted({(v.case, v.reason) for v in found if v.verdict == verdict})
        lines += [
            "",
            *(f"- `{case}`, {verdict}: {_cell(reason)[:100]}" for case, reason in rows),
        ]
    return lines


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-table", action="store_true")
    parser.add_argument("--worker", action="store_true")
    asked = parser.parse_args()
    if asked.worker:
        worker()
        return 0
    wanted = [name for name in names() if asked.only in name]
    batches = [wanted[at : at + BATCH] for at in range(0, len(wanted), BATCH)]
    found: list[Verdict] = []
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(run_batch, batches):
            found.extend(part)
            print(f"{len(found) // len(WAYS)} of {len(wanted)}", file=sys.stderr, flush=True)
    text = table(found)
    if not asked.no_table and not asked.only:
        replace_figures(TABLE, text)
        write_full_table("suite", _reasons(found))
    print(text)
    return 1 if any(v.verdict in (WRONG, CRASH) for v in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
