"""Plan, rewrite and run every test model of the onnx package, against its own answers.

    python -m tests.benchmarks.suite [--only TEXT] [--no-table]

Each model is written twice: in the order that memplan chooses, and in a random valid order,
so that the rewriting is tried on every operator. Both are run with the suite's own inputs
and compared with the original's outputs, bit for bit, and with the suite's expected ones.
Cases run in batches in processes of their own: a runtime that crashes costs one case.
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
from onnx import numpy_helper

from memplan_cli.errors import MemplanError
from memplan_cli.ir import Block, Op, Program, VarId, captures
from memplan_cli.modelfile import ModelFile, plan_model
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.write import written_model
from memplan_cli.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "measurements" / "suite.md"
DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
BATCH = 350

EQUAL, REFUSED, CANNOT_RUN, WRONG, CRASH = (
    "rewritten and equal",
    "left as it is, with the reason",
    "the runtime itself cannot run it",
    "WRONG",
    "CRASH",
)


@dataclass(frozen=True)
class Case:
    """One test model with its inputs and expected outputs."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    expected: list[Any]
    rtol: float
    atol: float


def names() -> list[str]:
    """Return the names of all cases, in a fixed order."""
    found = [f"node/{case.name}" for case in _node_cases()]
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        found += sorted(
            f"{kind}/{path.parent.name}" for path in (DATA / kind).glob("*/model.onnx")
        )
    return found + sorted(f"light/{path.stem}" for path in (DATA / "light").glob("*.onnx"))


def _node_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases: list[Any] = load_model_tests(kind="node")
    return cases


def cases(wanted: set[str]) -> Iterator[Case]:
    """Yield the cases of these names."""
    if any(name.startswith("node/") for name in wanted):
        for case in _node_cases():
            if f"node/{case.name}" in wanted:
                inputs, outputs = case.data_sets[0]
                yield Case(
                    f"node/{case.name}", case.model, list(inputs), list(outputs),
                    case.rtol, case.atol,
                )  # fmt: skip
    for name in sorted(wanted):
        kind, _, stem = name.partition("/")
        if kind == "light":
            model = onnx.load(DATA / "light" / f"{stem}.onnx")
            yield Case(name, model, _ones(model), [], 1e-3, 1e-7)
        elif kind != "node":
            folder = DATA / kind / stem
            model = onnx.load(folder / "model.onnx")
            data = min(folder.glob("test_data_set_*"))
            inputs = [
                _value(path, i)
                for path, i in zip(_files(data, "input"), model.graph.input, strict=False)
            ]
            outputs = [
                _value(path, o)
                for path, o in zip(_files(data, "output"), model.graph.output, strict=False)
            ]
            yield Case(name, model, inputs, outputs, 1e-3, 1e-7)


def _ones(model: onnx.ModelProto) -> list[Any]:
    weights = {tensor.name for tensor in model.graph.initializer}
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in model.graph.input
        if v.name not in weights
    ]
    return [np.ones(shape, np.float32) for shape in shapes]


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.rpartition("_")[2]))


def _value(path: Path, info: onnx.ValueInfoProto) -> Any:  # noqa: ANN401 - arrays, lists, None
    data = path.read_bytes()
    which = info.type.WhichOneof("value")
    if which == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if which == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def shuffled(program: Program, rng: random.Random) -> Program:
    """Return the program in a random valid order, bodies too."""
    return replace(program, body=_shuffled(program.body, rng))


def _shuffled(block: Block, rng: random.Random) -> Block:
    ops = [replace(op, bodies=tuple(_shuffled(b, rng) for b in op.bodies)) for op in block.ops]
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


def judge(case: Case) -> tuple[str, str]:
    """Return what became of a case, and the reason where there is one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(case.model.SerializeToString())
        try:
            model = load_model(path)
            planned = plan_model(ModelFile(path, model), Settings(allow_partial=True))
            mixed = replace(
                planned, program=shuffled(planned.program, random.Random(case.name))
            )
            versions = [
                written_model(model, version.program, version.plan)
                for version in (planned, mixed)
            ]
        except MemplanError as error:
            return REFUSED, str(error)
    try:
        original = _run(case.model.SerializeToString(), case)
    except Exception as error:  # noqa: BLE001 - whatever the runtime says
        return CANNOT_RUN, str(error).splitlines()[0][:160]
    if any(_is_random(node) for node in case.model.graph.node):
        for data in versions:
            _run(data, case)
        return EQUAL, "random: runs"
    for label, data in zip(("memplan's order", "a random order"), versions, strict=True):
        found = _run(data, case)
        if not _same(original, found):
            return WRONG, f"{label}: other outputs than the original"
    matches = not case.expected or _close(original, case)
    return EQUAL, "" if matches else "the runtime's own answer is not the suite's"


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
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feeds = {
        info.name: value
        for info, value in zip(session.get_inputs(), case.inputs, strict=False)
    }
    results: list[Any] = session.run(None, feeds)
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


def run_batch(batch: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Judge cases in a process of their own; a crash is charged to the case it hit."""
    left, found = list(batch), {}
    while left:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.suite", "--worker"],
            input=json.dumps(left), capture_output=True, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            name, verdict, reason = json.loads(line)
            found[name] = (verdict, reason)
        rest = [name for name in left if name not in found]
        if rest and rest == left:
            found[rest[0]] = (CRASH, done.stderr.strip()[-300:])
        left = [name for name in left if name not in found]
    return found


def worker() -> None:
    """Judge the cases named on stdin, one JSON line each."""
    for case in cases(set(json.load(sys.stdin))):
        try:
            verdict, reason = judge(case)
        except Exception as error:  # noqa: BLE001 - a traceback here is a fault to report
            verdict, reason = WRONG, f"{type(error).__name__}: {error}"[:300]
        print(json.dumps([case.name, verdict, reason]), flush=True)


def table(found: dict[str, tuple[str, str]]) -> str:
    """Return the counts, and each refusal, as Markdown."""
    kinds = sorted({name.partition("/")[0] for name in found})
    verdicts = (EQUAL, REFUSED, CANNOT_RUN, WRONG, CRASH)
    lines = [
        "# The ONNX backend suite",
        "",
        f"Made by `make test-suite` with onnx {onnx.__version__}: every model planned, written in",
        "memplan's order and in a random valid order, run with the suite's own inputs, compared",
        "with the original bit for bit.",
        "",
        "| folder | cases | " + " | ".join(verdicts) + " |",
        "|---|" + "---:|" * (len(verdicts) + 1),
    ]
    for kind in [*kinds, ""]:
        mine = [v for name, v in found.items() if not kind or name.startswith(f"{kind}/")]
        counts = Counter(verdict for verdict, _ in mine)
        cells = " | ".join(str(counts[verdict]) for verdict in verdicts)
        lines.append(f"| {kind or 'all'} | {len(mine)} | {cells} |")
    other = sum(bool(r) and v == EQUAL and "not the suite's" in r for v, r in found.values())
    lines += [
        "",
        f"In {other} cases the runtime's own answer is not the suite's; the rewritten",
        "model gives the same bits as the original there.",
    ]
    for verdict in (REFUSED, WRONG, CRASH):
        rows = [f"- `{n}`: {r}" for n, (v, r) in sorted(found.items()) if v == verdict]
        if rows:
            lines += ["", f"## {verdict}", "", *rows]
    return "\n".join(lines) + "\n"


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
    found: dict[str, tuple[str, str]] = {}
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(run_batch, batches):
            found.update(part)
            print(f"{len(found)} of {len(wanted)}", file=sys.stderr, flush=True)
    text = table(found)
    if not asked.no_table and not asked.only:
        TABLE.write_text(text)
    print(text)
    return 1 if any(verdict in (WRONG, CRASH) for verdict, _ in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
