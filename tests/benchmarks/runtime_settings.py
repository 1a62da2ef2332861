"""Measure what settings, and rewritten files, win over the runtime's defaults.

    python -m tests.benchmarks.runtime_settings                    all of this, in turn
    python -m tests.benchmarks.runtime_settings bytes [MODEL...]   memory; no quiet machine
    python -m tests.benchmarks.runtime_settings times [MODEL...]   milliseconds; a quiet one
    python -m tests.benchmarks.runtime_settings table              into runtime.md

Each model's figures are kept in ``out/runtime_settings/`` as soon as they are there, and are
not measured again: a run that was stopped goes on where it was. Weights are seeded. Three
variants are held against the model under the defaults: its best settings, and what
``optimize --target cpu`` and ``--target portable`` write, each under its report's settings.

Guards the claim of docs/measurements/runtime.md: first-run peak and time under memplan's
settings against the defaults.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collection_inputs import specs_from_json
from memplan_cli import Check, Settings, api
from memplan_cli.analysis.storage import live_peak
from memplan_cli.api.optimizing.candidates import runtime_aliasing
from memplan_cli.core.bindings import Binding
from memplan_cli.core.program import Origin
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.onnx_io.load import load_model
from memplan_cli.ordering.best_order import best_order
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.workers.spec import RunConditions

from .alternating import alternate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memplan_cli.core.bindings import FeedSpec

Row = Mapping[str, Any]
Figures = tuple[float | None, ...]

NAMES = ("first run", "held", "held-w", "time")

TARGETS: Mapping[str, Figures] = {
    "settings": (0.78, None, 0.34, 1.02),
    "cpu": (0.66, 0.45, 0.27, 1.05),
}
"""What each figure's geometric mean has to be at most; None where nothing is asked."""

_EQUAL = 0.005


def tables(rows: Sequence[Row], ratios: Callable[[Row, str], Figures]) -> str:
    """Return the table of a page, and the models that were not measured."""
    left = [row for row in rows if "error" in row.get("default", {"error": ""})]
    rows = [row for row in rows if row not in left]
    parts = [_main(rows, ratios)]
    if left:
        said = "; ".join(f"{row['name']} ({_error(row)})" for row in left)
        parts += ["", f"Not measured: {said}."]
    return "\n".join(parts)


def _error(row: Row) -> str:
    return str(row.get("default", {}).get("error", "nothing there"))


def _main(rows: Sequence[Row], ratios: Callable[[Row, str], Figures]) -> str:
    """Return the table: the ordering alone (`optimize`), the settings, and the target."""
    names = ["optimize", *NAMES, *NAMES]
    text = [
        "| model | " + " | ".join(names) + " | same bits | why not less |",
        "|---|" + "---|" * (len(names) + 2),
    ]

    def figures(row: Row) -> Figures:
        return ratios(row, "portable")[0], *ratios(row, "settings"), *ratios(row, "cpu")

    for row in rows:
        cells = " | ".join(map(_cell, figures(row)))
        text.append(f"| {row['name']} | {cells} | {_bits(row)} | {reason(row, ratios)} |")
    means = [mean(column) for column in zip(*map(figures, rows), strict=True)]
    goals = [None, *TARGETS["settings"], *TARGETS["cpu"]]
    text.append(
        "| **geometric mean** | " + " | ".join(f"**{_cell(m)}**" for m in means) + " | | |"
    )
    text.append("| goal | " + " | ".join(_cell(goal) for goal in goals) + " | | |")
    return "\n".join(text)


def reason(row: Row, ratios: Callable[[Row, str], Figures]) -> str:
    """Say of the written file why its peak and its arena are not smaller, from evidence."""
    part = row.get("cpu", {"error": "not measured"})
    if "error" in part:
        return str(part["error"])[:120]
    observed, bound = part["observed"], part["bound"]
    peak, held = observed["first_run_peak"], observed["held"] - observed["weights"]
    said = []
    if bound and peak <= bound * (1 + _EQUAL):
        said.append("peak: no order of this graph needs less (proved)")
    elif bound:
        said.append(
            f"peak: the bound is {bound / peak:.2f} of it, settings and outputs differ"
        )
    elif part["graph"] == "file's":
        said.append("peak: the file's own graph needs less than the fused one")
    else:
        said.append("peak: sizes depend on data")
    scratch = observed["scratch"] or 0
    if held > peak * (1 + _EQUAL) + 4096:
        said.append(
            f"arena: {held / peak:.2f} of the peak, kernels' workspace {scratch} bytes"
        )
    worst = ratios(row, "cpu")[0]
    if worst is not None and worst > 1 + 1e-9:
        said.append("above the defaults")
    return "; ".join(said)


def _bits(row: Row) -> str:
    said = []
    for name in VARIANTS:
        part = row.get(name, {})
        said.append("yes" if part.get("bits") else str(part.get("outputs", "-")))
    return said[0] if len(set(said)) == 1 else "/".join(said)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of what is there."""
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
OUT = ROOT / "out" / "runtime_settings"
TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
"""Their weights, optimizer states or runs are beyond two cores and 20 seconds."""

SLOWEST_RUN = 20.0
"""Seconds that a run under the defaults may take."""

PAGE = ROOT / "docs" / "measurements" / "runtime.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

VARIANTS = ("settings", "cpu", "portable")

LEVELS = {"ALL": "ORT_ENABLE_ALL", "OFF": "ORT_DISABLE_ALL"}

Json = dict[str, Any]


def specs_of(name: str) -> tuple[FeedSpec, ...] | None:
    file = MODELS / "inputs" / f"{name}.json"
    return specs_from_json(json.loads(file.read_text())) if file.exists() else None


def dims_of(model: Path, specs: tuple[FeedSpec, ...] | None) -> dict[str, int]:
    """Return the number that each free dim has in the inputs."""
    shapes = {spec.name: spec.shape for spec in specs or ()}
    found: dict[str, int] = {}
    for value in load_model(model).graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, number in zip(dims, shapes.get(value.name, ()), strict=False):
            if dim.dim_param.isidentifier():
                found[dim.dim_param] = number
    return found


def filled(name: str) -> Path:
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / f"{name}.onnx"
    if not model.exists():
        fill = [sys.executable, str(MODELS / "fill_weights.py")]
        source = str(MODELS / f"{name}.onnx")
        subprocess.run([*fill, source, str(model)], check=True, stdout=subprocess.DEVNULL)
    return model


def of_settings(model: Path, trial: RunConditions) -> Json:
    """Return the model as it is under its best settings; they give the bits of the defaults."""
    check = Check("cpu", search="measured")
    found = api.settings(model, Settings(dims=trial.dims), check)
    assert found.observed
    return {
        "observed": to_json(found.observed),
        "settings": to_json(found.settings),
        "outputs": "passed",
        "bits": True,
        "model": model.name,
        "offered": offered(model, trial),
    }


def offered(model: Path, trial: RunConditions) -> Json:
    """Return the first run's peak in each order that the runtime offers, by level.

    Without reuse and with it, the lower. What is live is settled by the graph and the order.
    """
    found: Json = {}
    for level, order in product(("ALL", "OFF"), ("DEFAULT", "PRIORITY_BASED")):
        asked = RuntimeSettings(
            session={"graph_optimization_level": LEVELS[level], "execution_order": order}
        )
        peaks = [
            record_run(
                model, asked.updated(_reuse(reuse=reuse)), trial, "arena", runs=1
            ).peaks.first_run_peak
            or 0
            for reuse in (True, False)
        ]
        found[f"{level} {order}"] = min(peaks)
    return found


def _reuse(*, reuse: bool) -> RuntimeSettings:
    return RuntimeSettings(session={"enable_mem_pattern": False, "enable_mem_reuse": reuse})


def of_target(model: Path, target: str, dims: dict[str, int]) -> Json:
    """Return what ``optimize --target`` writes and reports."""
    out = model.with_name(f"{target}.onnx")
    asked = replace(Settings(), target=target, dims=dims)  # type: ignore[arg-type]
    done = api.optimize(model, asked, out=out, check=Check(provider="cpu"))
    report = done.plan.report
    assert report.validation
    if report.runtime is None or report.runtime.settings is None:
        raise RuntimeError("; ".join((*report.warnings, *report.validation.notes)))
    offline = "pkg.memplan.runtime" in {e.key for e in load_model(out).metadata_props}
    return {
        "observed": to_json(report.runtime.observed["optimized"]),
        "predicted": to_json(report.runtime.predicted["optimized"]),
        "settings": to_json(report.runtime.settings),
        "outputs": report.validation.status,
        "bits": report.validation.bit_identical,
        "notes": [*report.validation.notes, *report.warnings],
        "model": out.name,
        "graph": "runtime's" if offline else "file's",
        "bound": _bound(out, dims) if offline else None,
    }


def _bound(written: Path, dims: dict[str, int]) -> int | None:
    """Return what no order of the written graph can be below, in the runtime's terms."""
    program = offline_program(written, dims, CPU)
    sizes = {
        var.id: size
        for var in program.vars.values()
        if var.origin is Origin.OP and (size := size_of(var.shape, var.dtype))
    }
    if any(size.symbols for size in sizes.values()):
        return None
    aliasing = runtime_aliasing(CPU)
    found = best_order(program, sizes, aliasing=aliasing, time_limit=20)
    peak = live_peak(found.program, sizes, {}, aliasing)
    return found.bound if found.bound is not None else (peak if found.proved else None)


def measure_bytes(names: list[str]) -> None:
    for name in names:
        file = OUT / f"{name}.json"
        row: Json = json.loads(file.read_text()) if file.exists() else {"name": name}
        began = time.perf_counter()
        for part in ("default", *VARIANTS):
            if "error" not in row.get(part, {"error": ""}):
                continue
            try:
                row[part] = _part(name, part, row)
            except Exception as error:  # noqa: BLE001 - one model's failure is a line
                row[part] = {"error": f"{type(error).__name__}: {error}"[:300]}
            file.write_text(json.dumps(row, indent=1) + "\n")
            if "error" in row["default"]:
                break
        print(name, f"{time.perf_counter() - began:.0f} s", _said(row), flush=True)


def _part(name: str, part: str, row: Json) -> Json:
    model, specs = filled(name), specs_of(name)
    dims = dims_of(model, specs)
    trial = RunConditions(binding=Binding(dims), specs=specs)
    if part == "default":
        row["dims"] = dims
        found = record_run(model, RuntimeSettings(), trial, "arena", "time").peaks
        if (found.milliseconds or 0) > 1000 * SLOWEST_RUN:
            raise RuntimeError(f"a run takes {found.milliseconds:.0f} ms")
        return {
            "observed": to_json(found),
            "settings": to_json(RuntimeSettings()),
            "model": model.name,
        }
    return of_settings(model, trial) if part == "settings" else of_target(model, part, dims)


def measure_times(names: list[str]) -> None:
    """Time every variant that was measured, its runs alternating with the defaults'."""
    for name in names:
        file = OUT / f"{name}.json"
        row: Json = json.loads(file.read_text()) if file.exists() else {"name": name}
        parts = [p for p in ("default", *VARIANTS) if p in row and "error" not in row[p]]
        if "times" in row or len(parts) < 2:
            continue
        specs = specs_of(name)
        trials = {p: (OUT / name / row[p]["model"], row[p]["settings"]) for p in parts}
        row["times"] = alternate(trials, specs, row.get("dims", {}))
        file.write_text(json.dumps(row, indent=1) + "\n")
        print(name, {p: round(t, 3) for p, t in row["times"].items()}, flush=True)


def ratios(row: Mapping[str, Any], part: str) -> tuple[float | None, ...]:
    """Return first run, held, held without weights and time against the defaults."""
    if "error" in row.get(part, {"error": ""}):
        return None, None, None, None
    better, base = (Peaks(**row[p]["observed"]) for p in (part, "default"))
    pairs = [
        (better.first_run_peak, base.first_run_peak),
        (better.held, base.held),
        tuple((p.held or 0) - (p.weights or 0) for p in (better, base)),
    ]
    found = [one / other if one and other else None for one, other in pairs]
    times = row.get("times", {})
    return (*found, times[part] / times["default"] if part in times else None)


def _said(row: Json) -> str:
    texts = []
    for part in VARIANTS:
        cells = ("-" if r is None else f"{r:.3f}" for r in ratios(row, part))
        bits = row.get(part, {}).get("bits")
        texts.append(f"{part} {' '.join(cells)} {'same' if bits else row.get(part)}"[:160])
    return " | ".join(texts)


def main(arguments: list[str]) -> None:
    """Do one stage for the models named, or for all."""
    if not arguments:
        for stage in ("bytes", "times", "table"):
            main([stage])
        return
    stage, *names = arguments
    if stage not in ("bytes", "times", "table", "clean"):
        sys.exit(__doc__)
    names = names or sorted({p.stem for p in MODELS.glob("*.onnx")} - TOO_LARGE)
    OUT.mkdir(parents=True, exist_ok=True)
    if stage == "bytes":
        measure_bytes(names)
    elif stage == "times":
        measure_times(names)
    elif stage == "clean":
        for name in names:
            shutil.rmtree(OUT / name, ignore_errors=True)
    else:
        rows = [json.loads(f.read_text()) for n in names if (f := OUT / f"{n}.json").exists()]
        before, rest = PAGE.read_text().split(BEGIN, 1)
        after = rest.split(END, 1)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{tables(rows, ratios)}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
