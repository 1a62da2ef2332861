"""What a whole process takes: models as people load them, and as memplan writes them.

    python -m tests.benchmarks.process                    all of this, in turn
    python -m tests.benchmarks.process bytes [MODEL...]   load, run, private, file; disk; bits
    python -m tests.benchmarks.process times [MODEL...]   processor time of runs, in turn
    python -m tests.benchmarks.process limits [MODEL...]  smallest limit to load and run three times
    python -m tests.benchmarks.process floor              what a session of one Identity takes
    python -m tests.benchmarks.process table              into docs/measurements/process.md

Figures of a model are kept in ``out/process/`` as soon as they are there, and are not measured
again. Weights are seeded. Four ways: the model as one file under the runtime's defaults (what
people do), the same with its weights as external data, and what ``optimize`` writes for
``portable`` and ``cpu`` from the one file, loaded by `memplan_cli.load`. Each is measured in fresh
processes, three times; the median is kept, and the widest spread. Where weights are beyond what one
file can have, the defaults' are external data too.

Guards the claim of README.md and docs/measurements/process.md: memory, time and memory limit of a process
with the file of `--target cpu` against the original.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from memplan_cli import Check, Settings, api
from memplan_cli.api.models.binding import binding_of
from memplan_cli.api.models.model_file import bind_all_dims, read_model
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all

from .models import ROOT, SHARED
from .process_page import FLOOR
from .runtime_settings import dims_of, specs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OUT = ROOT / "out" / "process"

ROUNDS = 3
ONE_FILE = (1 << 31) - (1 << 20)
"""Bytes of weights that a protobuf message, beside the graph, cannot have."""

HOW = {"default": "plain", "external": "plain", "portable": "load", "cpu": "load"}
KEYS = ("load", "run", "private", "file")

LEAST_ROUNDS, SECONDS = 15, 15.0
_FEW = 3
"""Rounds however long they are."""
TIMED = ("default", "portable", "cpu")

Json = dict[str, Any]


def models() -> dict[str, Path]:
    """Return the shared models by name."""
    found = {path.stem: path for path in sorted(SHARED.glob("*.onnx"))}
    return found | {f"messy_{path.stem}": path for path in sorted(SHARED.glob("messy/*.onnx"))}


def prepare(name: str, source: Path, out: Path = OUT) -> Json:
    """Write the model with its weights filled, inside and outside, and its inputs."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    outside, inside = folder / "external.onnx", folder / "default.onnx"
    fill = [sys.executable, str(SHARED / "fill_weights.py"), str(source), str(outside)]
    subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)
    data = Path(f"{outside}.data")
    within = not data.exists() or data.stat().st_size < ONE_FILE
    onnx.save(onnx.load(outside, load_external_data=within), inside)
    specs = specs_of(name)
    if specs is not None:
        dims = dims_of(outside, specs)
    else:
        settings = bind_all_dims(read_model(inside), Settings())
        dims = dict(binding_of(settings).dims)
        specs = feed_specs(load_model(outside), dims)
    np.savez(folder / "feed.npz", **draw_all(specs))  # type: ignore[arg-type]
    return {"name": name, "dims": dims}


def write(folder: Path, part: str, settings: Settings) -> Json:
    """Optimize a folder's default.onnx; return what the report says of the file and of its process.

    Args:
        folder: of a network.
        part: the name of the written file, without its suffix.
        settings: of `optimize`.
    """
    done = api.optimize(
        folder / "default.onnx",
        settings,
        out=folder / f"{part}.onnx",
        check=Check(provider="cpu"),
    )
    report = done.plan.report
    if done.model is None:
        raise RuntimeError("; ".join(report.validation.notes if report.validation else ()))
    said: Json = {"fallbacks": [f"{f}" for f in report.fallbacks]}
    if (facts := report.runtime) is not None:
        said["predicted"] = to_json(facts.predicted["optimized"].process)
        said["reported"] = to_json(facts.observed["optimized"].process)
    return said


def measured(name: str, part: str) -> Json:
    """Return the median of what fresh processes take."""
    return medians(child(name, part)) | {"disk": disk(name, part)}


def medians(command: list[str]) -> Json:
    """Return the medians of what a program that measures itself prints in fresh processes."""
    found = [asked_child(command) for _ in range(ROUNDS)]
    keys = (*KEYS, "stands", "create", "whole")
    row: Json = {key: median(each[key] for each in found) for key in keys}
    spread = max(
        (max(e[k] for e in found) - min(e[k] for e in found) for k in KEYS), default=0
    )
    row |= {"spread": spread, "bits": found[0]["bits"]}
    row["steady"] = len({each["bits"] for each in found}) == 1
    return row


def child(name: str, part: str, *more: str) -> list[str]:
    folder = OUT / name
    script = [sys.executable, "-m", "tests.benchmarks.process_child"]
    return [*script, f"{folder}/{part}.onnx", f"{folder}/feed.npz", HOW[part], *more]


def asked_child(command: list[str]) -> Json:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {done.stderr[-300:]}")
    answer: Json = json.loads(done.stdout.splitlines()[-1])
    return answer


def disk(name: str, part: str) -> int:
    """Return the blocks that a model and its data take: holes in a file take none."""
    files = {OUT / name / f"{part}.onnx"}
    model = load_model(OUT / name / f"{part}.onnx")
    for tensor in model.graph.initializer:
        files |= {OUT / name / e.value for e in tensor.external_data if e.key == "location"}
    return sum(512 * path.stat().st_blocks for path in files)


def measure_bytes(names: list[str]) -> None:
    for name in names:
        file = OUT / f"{name}.json"
        row: Json = json.loads(file.read_text()) if file.exists() else {}
        began = time.perf_counter()
        if not row:
            row = prepare(name, models()[name])
        for part, how in HOW.items():
            if "error" not in row.get(part, {"error": ""}):
                continue
            try:
                more: Json = {}
                if how != "plain":
                    settings = Settings(target=part, dims=row["dims"], notes="plan")  # type: ignore[arg-type]
                    more = write(OUT / name, part, settings)
                row[part] = measured(name, part) | more
            except Exception as error:  # noqa: BLE001 - one model's failure is a line
                row[part] = {"error": f"{type(error).__name__}: {error}"[:300]}
            file.write_text(json.dumps(row, indent=1) + "\n")
        print(name, f"{time.perf_counter() - began:.0f} s", said(row), flush=True)


def measure_floor() -> None:
    """Measure a session of one Identity on four bytes: no file of any model takes less."""
    folder = OUT / FLOOR
    folder.mkdir(parents=True, exist_ok=True)
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"
    ]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "identity", values[:1], values[1:])
    version = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, opset_imports=[version], ir_version=8)
    onnx.save(model, folder / "default.onnx")
    np.savez(folder / "feed.npz", x=np.ones(1, np.float32))
    row = {"default": measured(FLOOR, "default")}
    (OUT / f"{FLOOR}.json").write_text(json.dumps(row, indent=1) + "\n")
    print({key: row["default"][key] for key in KEYS}, flush=True)


def said(row: Json) -> str:
    texts = []
    for part in HOW:
        found = row[part]
        if "error" in found:
            texts.append(f"{part} {found['error'][:120]}")
            continue
        numbers = " ".join(f"{found[key] / 1e6:.1f}" for key in KEYS)
        same = "same" if found["bits"] == row["default"].get("bits") else "OTHER BITS"
        texts.append(f"{part} {numbers} {same}")
    return " | ".join(texts)


def measure_times(names: list[str]) -> None:
    """Time the ways that were measured, in processes that run in turn."""
    for name in names:
        file = OUT / f"{name}.json"
        if not file.exists():
            continue
        row: Json = json.loads(file.read_text())
        parts = [part for part in TIMED if "error" not in row[part]]
        if "times" in row or len(parts) < 2:
            continue
        row["times"] = in_turn({part: child(name, part) for part in parts})
        file.write_text(json.dumps(row, indent=1) + "\n")
        print(name, {part: round(t, 3) for part, t in row["times"].items()}, flush=True)


def in_turn(commands: Mapping[str, list[str]]) -> dict[str, float]:
    """Return the median processor milliseconds of a run of each child program, by its name."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {n: subprocess.Popen([*c, "serve"], **pipes) for n, c in commands.items()}  # type: ignore[call-overload]
    names = list(workers)
    times: dict[str, list[float]] = {name: [] for name in names}
    try:
        for worker in workers.values():
            worker.stdout.readline()
        began, spent = time.perf_counter(), 0.0
        while (count := len(times[names[0]])) < _FEW or spent < SECONDS:
            if count >= LEAST_ROUNDS and spent > SECONDS / 5:
                break
            shift = count % len(names)
            for name in (*names[shift:], *names[:shift]):
                workers[name].stdin.write("run\n")
                workers[name].stdin.flush()
                times[name].append(float(workers[name].stdout.readline()))
            spent = time.perf_counter() - began
    finally:
        for worker in workers.values():
            worker.kill()
            worker.communicate()
    return {name: median(found) for name, found in times.items()}


CHOSEN = ("bert_base_dyn_ts", "gpt2_small", "resnet50", "swin_tiny", "wiring_unetpp")
LIMITED = ("default", "cpu")

STEP = 2 << 20
"""Bytes to which a limit is found."""

TIMEOUT = 240.0
"""Seconds after which a process that reads its weights again and again counts as failed."""

VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers")
GROUPS = Path("/sys/fs/cgroup") if VERSION_2.exists() else Path("/sys/fs/cgroup/memory")
LIMIT = "memory.max" if VERSION_2.exists() else "memory.limit_in_bytes"


def group_of(limit: int) -> Path | None:
    """Make a control group with a limit; None where the machine does not allow it."""
    group = GROUPS / f"memplan-limit-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        (group / LIMIT).write_text(str(limit))
    except OSError:
        return None
    return group


def survives(name: str, part: str, limit: int) -> bool | None:
    """Run the model under a limit; None where there can be no limit."""
    group = group_of(limit)
    if group is None:
        return None
    for path in files_of(name, part):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    procs = group / "cgroup.procs"
    command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs), *child(name, part)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        group.rmdir()
    return done.returncode == 0


def files_of(name: str, part: str) -> Iterator[Path]:
    """Yield the files that a session reads."""
    model = OUT / name / f"{part}.onnx"
    names = {
        entry.value
        for tensor in load_model(model).graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    yield from (model, *(model.with_name(each) for each in sorted(names)))


def smallest(name: str, part: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return the smallest limit, or the highest resident size where none can be set."""
    high = int(row[part]["run"]) + (120 << 20)
    found = survives(name, part, high)
    if found is None:
        return {"resident": row[part]["run"] + row[part].get("python", 0)}
    low = 20 << 20
    while high - low > STEP:
        middle = (low + high) // 2
        if survives(name, part, middle):
            high = middle
        else:
            low = middle
        print(name, part, f"{low / 1e6:.0f}..{high / 1e6:.0f} MB", flush=True)
    return {"limit": high}


def measure_limits(names: list[str]) -> None:
    """Find the smallest memory limits of models that were measured before."""
    for name in names or CHOSEN:
        file = OUT / f"{name}.json"
        row: dict[str, Any] = json.loads(file.read_text())
        for part in LIMITED:
            if "error" not in row[part]:
                row.setdefault("limits", {})[part] = smallest(name, part, row)
        now = json.loads(file.read_text())
        file.write_text(json.dumps(now | {"limits": row["limits"]}, indent=1) + "\n")


def main(arguments: list[str]) -> None:
    """Do one stage for the models named, or for all."""
    if not arguments:
        for stage in ("floor", "bytes", "times", "limits", "table"):
            main([stage])
        return
    stage, *chosen = arguments
    names = chosen or list(models())
    OUT.mkdir(parents=True, exist_ok=True)
    if stage == "bytes":
        measure_bytes(names)
    elif stage == "floor":
        measure_floor()
    elif stage == "times":
        measure_times(names)
    elif stage == "limits":
        measure_limits(chosen)
    elif stage == "table":
        from .process_page import write_page

        write_page(OUT)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
