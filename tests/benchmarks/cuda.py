"""The first hour on a GPU: what is predicted for CUDA from sources, measured.

    python -m tests.benchmarks.cuda             every part that has no result yet, then the page
    python -m tests.benchmarks.cuda PART...     these parts again, then the page
    python -m tests.benchmarks.cuda settings    settings of five models into docs/cuda.md; no GPU

Each model of a part keeps its result in ``out/cuda/`` as soon as it is there: a run that was stopped, or whose
time was over (``MINUTES``, 28 by default), goes on where it was. What failed is tried again.

Without a GPU the parts are rehearsed: they run against the simulated device of ``tests/simulated_cuda``, whose
memory is the process's. Its figures stay in ``out/cuda/rehearsal``; the page says which parts ran through.

Guards the claims of docs/cuda.md.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli import Check, api
from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import MemplanError
from memplan_cli.runtime.profile.in_place import load_table
from memplan_cli.runtime.run.run_model import record_of, record_run, start_run
from memplan_cli.runtime.simulate.regions import EXACT, OWN_INITIALIZERS, one_region
from memplan_cli.runtime.workers.session import probe_provider
from memplan_cli.runtime.workers.spec import RunConditions, RunSpec
from memplan_cli.runtime.workers.worker import run_job
from memplan_cli.settings.settings import Settings
from simulated_device import environment

from .in_place import probe_table
from .models import ROOT, SAMPLES, SHARED, bindings
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

Json = dict[str, Any]

IS_REHEARSAL = bool(os.environ.get("SIMULATED_CUDA"))

OUT = ROOT / "out" / "cuda" / ("rehearsal" if IS_REHEARSAL else "measured")

MODELS = ROOT / "out" / "cuda" / "models"

JOBS = "tests.benchmarks.cuda_jobs"

FIVE = ("branchy_cnn", "resnet50", "segformer_b0", "bert_base_sdpa", "train_cnn_adam")
"""Models whose settings docs/cuda.md lists: with and without convolutions, and a training step."""

SAMPLE_MODELS = ("branchy_cnn", "dynamic_batch", "nested_if_loop", "tied_head", "train_mlp")

SHARED_MODELS = (
    "resnet50", "mobilenetv3_large", "efficientnet_b0", "densenet121", "inception_v3",
    "segformer_b0", "swin_tiny", "bert_base_sdpa", "whisper_tiny_encoder", "train_cnn_adam",
)  # fmt: skip

CONVOLUTIONS = (
    (1, 3, 224, 64, 7, 2), (1, 64, 56, 64, 1, 1), (1, 64, 56, 64, 3, 1), (1, 64, 56, 256, 1, 1),
    (1, 128, 28, 128, 3, 1), (1, 256, 14, 256, 3, 1), (1, 512, 7, 512, 3, 1), (8, 64, 56, 64, 3, 1),
    (8, 256, 14, 256, 3, 1), (1, 3, 512, 32, 3, 1),
)  # fmt: skip
"""Batch, channels, height and width, filters, kernel and stride of ten convolutions."""

ALGORITHMS = ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")

ON_CUDA = RunConditions(CUDA, timeout=120)

CHECK = Check("cuda", timeout=120)


def filled(name: str) -> Path:
    """Return a sample model, or a shared model with seeded weights."""
    sample = SAMPLES / f"{name}.onnx"
    if sample.exists():
        return sample
    model = MODELS / f"{name}.onnx"
    if not model.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        fill = [sys.executable, str(SHARED / "fill_weights.py"), str(SHARED / model.name)]
        subprocess.run([*fill, str(model)], check=True, stdout=subprocess.DEVNULL)
    return model


def settings_of(name: str) -> Settings:
    """Return the numbers of a model's free dims."""
    sample = SAMPLES / f"{name}.onnx"
    pairs = bindings(sample if sample.exists() else SHARED / f"{name}.onnx")
    split = (pair.partition("=") for pair in pairs)
    return Settings(dims={dim: int(value) for dim, _, value in split})


def conditions_of(name: str) -> RunConditions:
    """Return where and at which dims a model runs."""
    binding = replace(ON_CUDA.binding, dims=dict(settings_of(name).dims))
    return replace(ON_CUDA, binding=binding)


# ---- settings, without a GPU ----


def settings_table() -> Iterator[str]:
    """Yield the table of the settings of `FIVE` models, as Markdown."""
    yield "| model | arena | first region | later regions | strategy | `max_mem` | reuse | convolutions |"
    yield "|---|--:|--:|--:|---|--:|---|---|"
    for name in FIVE:
        choice = api.settings(filled(name), settings_of(name), provider="cuda")
        arena, provider = choice.settings.arena, choice.settings.provider
        sizes = (
            choice.predicted.held,
            arena.get("initial_chunk_size_bytes"),
            arena.get("max_power_of_two_extend_bytes"),
        )
        arena_bytes, first, later = ("" if size is None else mib(size) for size in sizes)
        row = (
            name,
            arena_bytes,
            first,
            later,
            str(arena["arena_extend_strategy"]).removeprefix("k"),
            mib(arena["max_mem"]),
            "on" if choice.settings.session["enable_mem_reuse"] else "off",
            "HEURISTIC, 0" if provider else "",
        )
        yield f"| {' | '.join(row)} |"


# ---- parts ----


def device() -> Json:
    """Return the names and versions of everything that figures depend on."""
    import onnxruntime as ort
    import pynvml

    pynvml.nvmlInit()
    return {
        "device": pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "ONNX Runtime": ort.__version__,
        "CUDA of its build": getattr(ort, "cuda_version", ""),
        "Python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def tests() -> Json:
    """Return the last line of the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests/cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()])[-1]
    if done.returncode:
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
        raise MemplanError(f"{last}; {'; '.join(failed)}")
    return {"tests": last}


def model(name: str) -> Json:
    """Optimize a model on the device: the verdict on its outputs, and its memory, predicted and measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.onnx"
        done = api.optimize(filled(name), settings_of(name), out=out, check=CHECK)
        report = done.plan.report
        assert report.validation is not None
        assert report.runtime is not None
        replay = ""
        if name in SAMPLE_MODELS and done.passed:
            proof = api.validate(out, filled(name), CHECK, extras=["replay"])
            replay = str(proof.validation.replay)
        return {
            "status": report.validation.status,
            "bits": report.validation.bit_identical,
            "notes": [note for note in report.validation.notes if "tolerance" in note],
            "replay": replay,
            "predicted": {side: to_json(p) for side, p in report.runtime.predicted.items()},
            "observed": {side: to_json(p) for side, p in report.runtime.observed.items()},
        }


def in_place() -> Json:
    """Probe which kernels write in place; the table is kept for the package."""
    table = probe_table(CUDA)
    path = OUT / f"{CUDA}.json"
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    cpu = load_table()
    return {
        "in place": len(table["in_place"]),
        "only on CUDA": sorted(set(table["in_place"]) - set(cpu.in_place)),
        "only on the CPU": sorted(set(cpu.in_place) - set(table["in_place"])),
        "table": str(path.relative_to(ROOT)),
    }


def first_region() -> Json:
    """Return the bytes that arenas hold that were registered with first regions of three sizes."""
    held = {}
    for size in (2 << 20, 3 << 20, 5 << 20):
        settings = RuntimeSettings(
            session={"enable_mem_pattern": False},
            session_config=OWN_INITIALIZERS,
            arena=one_region(size),
        )
        peaks = record_run(filled("branchy_cnn"), settings, ON_CUDA, "arena").peaks
        held[str(size)] = (peaks.held or 0) - (peaks.weights or 0)
    return {"held without weights": held}


def weights() -> Json:
    """Return the bytes of weights and of the arena by the settings that decide how weights are allocated."""
    variants = {
        "defaults": RuntimeSettings(),
        "without pattern": RuntimeSettings(session={"enable_mem_pattern": False}),
        "each by itself": RuntimeSettings(session_config=OWN_INITIALIZERS),
        "each by itself, exact": RuntimeSettings(session_config=OWN_INITIALIZERS, arena=EXACT),
    }
    found = {}
    for name, settings in variants.items():
        peaks = record_run(filled("resnet50"), settings, ON_CUDA, "arena", "process").peaks
        taken = peaks.process.device if peaks.process else None
        found[name] = {"weights": peaks.weights, "held": peaks.held, "device": taken}
    return found


def rounding() -> Json:
    """Return by how much requests lower the free bytes of the device."""
    return run_job(f"{JOBS}:rounding", {"provider": CUDA}).require("rounding")


def context() -> Json:
    """Return the bytes of a process on the device after sessions of one kernel each."""
    return run_job(f"{JOBS}:context", {"provider": CUDA}).require("context")


def convolution(number: str) -> Json:
    """Return the workspace of a convolution, by the options that bound it; no option is overruled."""
    import onnx
    import onnx.parser

    batch, channels, size, filters, kernel, stride = CONVOLUTIONS[int(number)]
    out = (size - 1) // stride + 1
    pad = kernel // 2
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{batch},{channels},{size},{size}] x, float[{filters},{channels},{kernel},{kernel}] w)
        => (float[{batch},{filters},{out},{out}] y)
        {{ y = Conv<pads = [{pad}, {pad}, {pad}, {pad}], strides = [{stride}, {stride}]>(x, w) }}"""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conv.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        for algorithm in ALGORITHMS:
            for most in ("1", "0"):
                options = {
                    "cudnn_conv_algo_search": algorithm,
                    "cudnn_conv_use_max_workspace": most,
                }
                session = ON_CUDA.session(path, RuntimeSettings(provider=options))
                spec = RunSpec(
                    session, (ON_CUDA.input_set(path),), ("arena",), compared_runs=0
                )
                with start_run(spec, timeout=120) as job:
                    record = record_of(spec, job.outcome()).require(path.name)
                found[f"{algorithm} {most}"] = record.peaks.scratch
    return found


def placement(name: str) -> Json:
    """Return which kernels of a model run on the CPU."""
    return _placed(name, RuntimeSettings())


def partition(share: str) -> Json:
    """Return the same of a network, with a limit of that many percent of its weights on the device."""
    limit_kib = (
        filled("resnet50").with_name("resnet50.onnx.data").stat().st_size
        * int(share)
        // 102_400
    )
    key = "session.resource_cuda_partitioning_settings"
    return _placed("resnet50", RuntimeSettings(session_config={key: f"{limit_kib},"}))


def _placed(name: str, settings: RuntimeSettings) -> Json:
    path, conditions = filled(name), conditions_of(name)
    content = {
        "session": to_json(conditions.session(path, settings)),
        "inputs": to_json(conditions.input_set(path)),
    }
    return run_job(f"{JOBS}:placement", content, timeout=120).require(name)


ONCE = ("",)

PARTS: Mapping[str, tuple[str, Callable[..., Json], tuple[str, ...]]] = {
    "device": ("what figures depend on", device, ONCE),
    "tests": ("the tests that need a GPU (`tests/cuda`)", tests, ONCE),
    "models": (
        "validation, and predicted against measured peaks of the arena",
        model,
        (*SAMPLE_MODELS, *SHARED_MODELS),
    ),
    "first-region": ("first regions of a registered arena", first_region, ONCE),
    "weights": ("how weights are allocated", weights, ONCE),
    "rounding": ("blocks that the device gives for a request", rounding, ONCE),
    "context": ("context, and handles of cuBLAS and cuDNN", context, ONCE),
    "in-place": ("kernels that write in place", in_place, ONCE),
    "convolutions": (
        "workspace of ten convolutions by their options",
        convolution,
        tuple(map(str, range(len(CONVOLUTIONS)))),
    ),
    "placement": ("kernels of five models on the CPU", placement, FIVE),
    "partition": (
        "kernels on the CPU under limits of device memory",
        partition,
        ("25", "50", "100"),
    ),
}
"""Part -> what it measures, the function that measures it, and the names that it is called with."""


def result_file(part: str, name: str) -> Path:
    return OUT / part / f"{name or part}.json"


def results(part: str) -> dict[str, Json]:
    """Return the results of a part that are there, by name."""
    files = {name: result_file(part, name) for name in PARTS[part][2]}
    return {
        name: json.loads(file.read_text()) for name, file in files.items() if file.exists()
    }


def measure(part: str, deadline: float) -> None:
    """Measure what a part has no result for; what fails has its reason as result, and is tried again."""
    _, function, names = PARTS[part]
    for name in names:
        known = results(part).get(name)
        if (known and "error" not in known) or time.monotonic() > deadline:
            continue
        print(f"{part} {name}", flush=True)
        start = time.monotonic()
        try:
            found = function(name) if name else function()
        except (MemplanError, OSError, ImportError, subprocess.CalledProcessError) as error:
            found = {"error": f"{error}"}
        file = result_file(part, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        found["seconds"] = round(time.monotonic() - start, 1)
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


# ---- the page ----


def mib(size: Any) -> str:  # noqa: ANN401 - of JSON
    """Return bytes in MiB, with one decimal."""
    return "" if size is None else f"{int(size) / (1 << 20):,.1f}"


def page() -> str:
    """Return the page: first what was not measured, then a section for each part with results."""
    measured = {} if IS_REHEARSAL else {part: results(part) for part in PARTS}
    missing = []
    for part, (_, _, names) in PARTS.items():
        found = measured.get(part, {})
        absent = [name for name in names if name not in found or "error" in found[name]]
        if len(absent) == len(names):
            missing.append(part)
        elif absent:
            missing.append(f"{part} ({', '.join(absent)})")
    what = _NOTHING if len(missing) == len(PARTS) else ", ".join(missing)
    lines = [
        f"**Not measured: {what or 'nothing'}.**",
        "",
        "# On a GPU",
        "",
        _HOW,
        "",
        *overview(),
    ]
    for part, rows in _TABLES.items():
        purpose = PARTS[part][0]
        found = {n: row for n, row in measured.get(part, {}).items() if "error" not in row}
        if found:
            lines += [
                "",
                f"## {part}",
                "",
                f"{purpose[0].upper()}{purpose[1:]}.",
                "",
                *rows(found),
            ]
    for part, found in measured.items():
        errors = [
            f"- `{part} {name}`: {row['error']}"
            for name, row in found.items()
            if "error" in row
        ]
        lines += ["", *errors] if errors else []
    return "\n".join(lines) + "\n"


_NOTHING = "everything, for want of a GPU"

_HOW = (
    "`make measure-cuda` measures in at most 30 minutes what [On CUDA](../cuda.md) says from sources, resumes where it "
    "was stopped, and writes this page.\nWithout a GPU it rehearses: every part runs against a simulated device, whose "
    "memory is the process's. Figures of rehearsals are no measurements and stay in `out/cuda/rehearsal`."
)


def overview() -> Iterator[str]:
    """Yield a table of the parts: what they measure, and whether they ran through."""
    heading = "rehearsed" if IS_REHEARSAL else "measured"
    yield f"| part | what | {heading} | seconds |"
    yield "|---|---|--:|--:|"
    for part, (what, _, names) in PARTS.items():
        found = results(part)
        done = sum("error" not in row for row in found.values())
        seconds = sum(row["seconds"] for row in found.values())
        yield f"| {part} | {what} | {done} of {len(names)} | {seconds:.0f} |"


def _pairs(found: Mapping[str, Json]) -> Iterator[str]:
    """Yield a row for each entry of the results of a part that has no table of its own."""
    yield "| | |"
    yield "|---|---|"
    for name, row in found.items():
        for key, value in row.items():
            if key != "seconds":
                text = (
                    ", ".join(f"{k}: {v}" for k, v in value.items())
                    if isinstance(value, dict)
                    else value
                )
                yield f"| {f'{name} {key}'.strip()} | {text} |"


def _models(found: Mapping[str, Json]) -> Iterator[str]:
    """Yield the table of validated models; MiB, of the written model."""
    yield "| model | outputs | replay | first run: predicted | measured | steady: predicted | measured | arena | device |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for name, row in found.items():
        predicted, observed = row["predicted"]["optimized"], row["observed"]["optimized"]
        outputs = "same bits" if row["bits"] else f"{row['status']}, {'; '.join(row['notes'])}"
        sizes = (
            predicted["first_run_peak"], observed["first_run_peak"],
            predicted["steady_peak"], observed["steady_peak"],
            observed.get("held"), (observed.get("process") or {}).get("device"),
        )  # fmt: skip
        yield f"| {name} | {outputs} | {row['replay']} | {' | '.join(map(mib, sizes))} |"


def _convolutions(found: Mapping[str, Json]) -> Iterator[str]:
    """Yield the workspace of each convolution in MiB; 1 and 0 are ``cudnn_conv_use_max_workspace``."""
    keys = [f"{algorithm} {most}" for algorithm in ALGORITHMS for most in ("1", "0")]
    yield f"| batch, channels, size, filters, kernel, stride | {' | '.join(keys)} |"
    yield f"|---|{'--:|' * len(keys)}"
    for number, row in found.items():
        yield f"| {CONVOLUTIONS[int(number)]} | {' | '.join(mib(row.get(key)) for key in keys)} |"


_TABLES = dict.fromkeys(PARTS, _pairs) | {"models": _models, "convolutions": _convolutions}


def main(arguments: list[str]) -> int:
    """Run the parts that are named, or all; return the exit code."""
    if arguments == ["settings"]:
        replace_figures(ROOT / "docs" / "cuda.md", "\n".join(settings_table()))
        return 0
    probe = probe_provider(CUDA)
    if not probe.works and not IS_REHEARSAL:
        print(f"no GPU ({probe.reason}): a rehearsal with a simulated device", flush=True)
        command = [sys.executable, "-m", "tests.benchmarks.cuda", *arguments]
        return subprocess.run(command, env=environment("works"), check=False).returncode
    for part in arguments:
        shutil.rmtree(OUT / part, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * float(os.environ.get("MINUTES", "28"))
    for part in arguments or PARTS:
        measure(part, deadline)
    path = MEASUREMENTS / "cuda.md"
    if IS_REHEARSAL and path.exists() and _NOTHING not in path.read_text(encoding="utf-8"):
        print(f"{path} has measured figures, and stays as it is")
    else:
        path.write_text(page(), encoding="utf-8")
    errors = [
        f"{part} {name}: {row['error']}"
        for part in PARTS
        for name, row in results(part).items()
        if "error" in row
    ]
    print(*errors, sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
