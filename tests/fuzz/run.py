"""Feed every reader of untrusted bytes with mutated files, guided by coverage (atheris).

    python -m tests.fuzz.run [--seconds 60] [--only TARGET] [--write-table]

A reader may refuse with a `MemplanError`; anything else is a crash. Each target runs in a
process of its own, time-boxed, from the corpus beside this file. `--write-table` adds to what
`docs/measurements/fuzz.md` says of earlier runs. An input that crashes is
saved as `tests/fuzz/crashes/<target>-<digest>` and belongs into a test.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TABLE = ROOT / "docs" / "measurements" / "fuzz.md"
LARGEST_SEED = 4096
"""Bytes; a fuzzer gets nowhere in large files."""


def read_model(data: bytes) -> None:
    """Load, plan and rewrite what parses; the runtime, a process of its own, is not asked."""
    from memplan_cli.api.models.model_file import read_model as read
    from memplan_cli.api.models.model_file import source_of
    from memplan_cli.api.rewrites import REWRITES
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_checked
    from memplan_cli.onnx_io.writing.write import written_model
    from memplan_cli.planning.planner import make_plan
    from memplan_cli.settings.settings import Settings

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        file = read(path)
        loaded = read_checked(file.model, Bindings())
        source = source_of(file)
        planned = make_plan(loaded.program, Settings(allow_partial=True), source, REWRITES)
        written_model(file.model, planned.program, planned.plan)


def read_settings(data: bytes) -> None:
    from memplan_cli.settings.sources import read_yaml

    read_yaml(data.decode("utf-8", "replace"), "fuzz.yaml")


def read_prototxt(data: bytes) -> None:
    from memplan_cli.settings.sources import read_prototxt as read

    read(data.decode("utf-8", "replace"), "fuzz.prototxt")


def read_toml(data: bytes) -> None:
    from memplan_cli.settings.sources import read_pyproject

    read_pyproject(data.decode("utf-8", "replace"), "pyproject.toml")


def read_plan(data: bytes) -> None:
    """Read a plan, and draw what is accepted in every format."""
    from memplan_cli.errors import MemplanError
    from memplan_cli.planning.plan_file import read_plan as read
    from memplan_cli.planning.print_log import log_lines
    from memplan_cli.reporting.formats import FORMATS, render

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_bytes(data)
        plan = read(path)
    for _ in log_lines(plan):
        pass
    for form in FORMATS:
        with contextlib.suppress(MemplanError):  # not every plan has every form
            render(plan, form)


def read_baseline(data: bytes) -> None:
    """Read a baseline, and write what is accepted again."""
    from memplan_cli.reporting.snapshot import baseline_text
    from memplan_cli.reporting.snapshot import read_baseline as read

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.json"
        path.write_bytes(data)
        baseline_text(read(path))


def read_csv(data: bytes) -> None:
    from memplan_cli.packing import problem_file as pack

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.csv"
        path.write_bytes(data)
        pack.read_problem(path)


def read_inputs(data: bytes) -> None:
    """Read inputs of a model, as an archive, as JSON and as a tensor."""
    import onnx.parser

    from memplan_cli.core.bindings import Inputs
    from memplan_cli.errors import MemplanError
    from memplan_cli.onnx_io.runs.given_inputs import read_given

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        "net (int64[n, 4] ids, float[n] x, string[m] words) => (y) { y = Relu(x) }"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in ("i.npz", "i.json", "input_0.pb"):
            path = Path(folder) / name
            path.write_bytes(data)
            given = folder if path.suffix == ".pb" else str(path)
            with contextlib.suppress(MemplanError):
                read_given(Inputs((given,)), model)


def read_member(data: bytes) -> None:
    """Read inputs of a model from an archive whose one member is whatever comes."""
    import io
    import zipfile

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ids.npy", data)
    read_inputs(packed.getvalue())


def read_metadata(data: bytes) -> None:
    """Find the settings of a model in its bytes, and judge them, and what is no more than them."""
    from contextlib import suppress

    from memplan_cli.errors import MemplanError
    from memplan_cli.loading.metadata import scanned_metadata
    from memplan_cli.loading.settings import SETTINGS, file_settings

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(data)
        with suppress(MemplanError):
            file_settings(scanned_metadata(path))
    file_settings({SETTINGS: data.decode("utf-8", "replace")})


def read_certificate(data: bytes) -> None:
    """Read a certificate, and check what is accepted against the model that it names, or not."""
    from dataclasses import replace

    from memplan_cli import Settings
    from memplan_cli.api.models.model_file import plan_model
    from memplan_cli.api.models.model_file import read_model as read_file
    from memplan_cli.api.verify_certificate import certified_model
    from memplan_cli.checking.certificates.verify import verify
    from memplan_cli.core.results.certificate import read_certificate as read
    from memplan_cli.onnx_io.load import load_model

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.json"
        path.write_bytes(data)
        found = read(path)
    model = HERE.parents[1] / "sample_models" / "branchy_cnn.onnx"
    plan = plan_model(read_file(model), Settings(order="keep", level=1)).plan
    found = replace(found, plan_sha256=plan.digest, graph_sha256=plan.graph_sha256)
    memory = replace(
        plan.report.memory, order_bound=found.order.bound if found.order else None
    )
    plan = plan.with_report(replace(plan.report, memory=memory))
    verify(found, plan, certified_model(load_model(model), plan, model))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "model": read_model,
    "settings": read_settings,
    "prototxt": read_prototxt,
    "toml": read_toml,
    "plan": read_plan,
    "baseline": read_baseline,
    "csv": read_csv,
    "inputs": read_inputs,
    "member": read_member,
    "metadata": read_metadata,
    "certificate": read_certificate,
}


def safely(target: Callable[[bytes], None], data: bytes) -> None:
    """Run a reader; a refusal is what we want."""
    from memplan_cli.errors import MemplanError

    try:
        target(data)
    except MemplanError:
        return


def fuzz(name: str, seconds: int, corpus: Path) -> None:
    """Fuzz one target in this process; atheris ends it."""
    import atheris

    with atheris.instrument_imports(include=["memplan_cli"]):
        for module in (
            "api", "planning.planner", "core.results.plan", "packing.problem_file",
            "settings.prototxt", "settings.yaml_text", "onnx_io.writing.write",
            "reporting.snapshot", "planning.print_log", "reporting",
            "onnx_io.runs.given_inputs", "checking.certificates.verify", "core.results.certificate",
            "reporting.media.text", "loading.settings", "loading.metadata",
        ):  # fmt: skip
            import_module(f"memplan_cli.{module}")

    target = TARGETS[name]
    words = [
        sys.argv[0], str(corpus), f"-max_total_time={seconds}", "-timeout=20",
        "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=1",
        f"-artifact_prefix={HERE / 'crashes' / name}-",
    ]  # fmt: skip
    atheris.Setup(words, lambda data: safely(target, data))
    atheris.Fuzz()


def seeds(name: str) -> dict[str, bytes]:
    """Return what a target starts from: the corpus here and, for models, the suite's.

    One small model for each operator of the onnx package's backend suite reaches the rules
    for single operators, which no mutation of a whole network would find.
    """
    found = {seed.name: seed.read_bytes() for seed in (HERE / "corpus" / name).iterdir()}
    if name != "model":
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        cases = load_model_tests(kind="node")
    for case in cases:
        data = case.model.SerializeToString()
        kind = f"suite-{case.model.graph.node[0].op_type}"
        if len(data) < min(LARGEST_SEED, len(found.get(kind, bytes(LARGEST_SEED)))):
            found[kind] = data
    return found


def run(name: str, seconds: int) -> tuple[int, str]:
    """Fuzz one target in a process of its own; return its inputs and what crashed."""
    (HERE / "crashes").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for label, data in seeds(name).items():
            (Path(corpus) / label).write_bytes(data)
        words = [sys.executable, "-m", "tests.fuzz.run", "--inside", name, corpus]
        done = subprocess.run(
            [*words, "--seconds", str(seconds)],
            capture_output=True, text=True, check=False, cwd=ROOT,
            errors="replace",
        )  # fmt: skip
    inputs = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    crashed = "" if done.returncode == 0 else done.stderr[-1500:]
    return int(inputs[1]) if inputs else 0, crashed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", choices=TARGETS)
    parser.add_argument("--write-table", action="store_true")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        fuzz(asked.inside[0], asked.seconds, Path(asked.inside[1]))
        return 0
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: `make fuzz` installs it")
    known = read_table(TABLE.read_text(encoding="utf-8")) if asked.write_table else {}
    failed = False
    for name in [asked.only] if asked.only else TARGETS:
        inputs, crashed = run(name, asked.seconds)
        failed = failed or bool(crashed)
        fresh = Row(asked.seconds, inputs, int(bool(crashed)))
        known[name] = known.get(name, Row(0, 0, 0)).plus(fresh)
        print(name, fresh, crashed, flush=True)
        if asked.write_table:
            TABLE.write_text(with_table(TABLE.read_text(encoding="utf-8"), known))
    return 1 if failed else 0


@dataclass(frozen=True)
class Row:
    """All runs of a reader so far: wall-clock seconds, inputs tried, runs that crashed."""

    seconds: int
    inputs: int
    crashes: int

    def plus(self, other: Row) -> Row:
        """Return both together."""
        return Row(
            self.seconds + other.seconds,
            self.inputs + other.inputs,
            self.crashes + other.crashes,
        )


_HEAD = "| reader | seconds | inputs | crashes |\n|---|---:|---:|---:|\n"


def read_table(text: str) -> dict[str, Row]:
    """Return what a page says of earlier runs."""
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    return {name: Row(*map(int, numbers)) for name, *numbers in rows}


def with_table(text: str, rows: dict[str, Row]) -> str:
    """Return a page with other rows in its table."""
    before, _, rest = text.partition(_HEAD)
    after = rest.partition("\n\n")[2]
    lines = [f"| {n} | {r.seconds} | {r.inputs} | {r.crashes} |" for n, r in rows.items()]
    return f"{before}{_HEAD}{chr(10).join(lines)}\n\n{after}"


if __name__ == "__main__":
    raise SystemExit(main())
