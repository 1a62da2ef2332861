"""The memory and time of the same networks in several runtimes.

    python -m tests.benchmarks.runtimes [NETWORK...]    measure what is missing, and write the page
    python -m tests.benchmarks.runtimes page            write docs/measurements/runtimes.md only

Each runtime is installed into a virtual environment of its own below ``out/runtimes``, except ONNX Runtime,
which this environment has. All are measured by one program, `process_child`, in fresh processes. Figures
are kept in ``out/runtimes/NETWORK.json`` as soon as they are there, and are not measured again; what a
runtime could not do is kept as its error. Files of a network are removed when it is done.

Guards the claim of docs/measurements/runtimes.md: memory, time and outputs of a file for `--target cpu`
against other runtimes.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from memplan_cli import Settings

from .models import ROOT
from .process import in_turn, medians, models, prepare, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .process import Json

OUT = ROOT / "out" / "runtimes"

TIMEOUT = 300.0
"""Seconds in which a converter has to be done."""

ALIKE = 0.01
"""Outputs that differ by more, as a share of the largest, are wrong."""

NETWORKS = (
    "mobilenetv3_large",
    "mobilenetv2_ts",
    "efficientnet_b0",
    "densenet121",
    "inception_v3",
    "resnet50",
    "hrnet_w18",
    "wiring_unetpp",
    "swin_tiny",
    "segformer_b0",
    "whisper_tiny_encoder",
    "t5_small_decoder",
    "bert_base_dyn_ts",
    "gpt2_small",
    "messy_vit_ts",
    "messy_distilbert_ts",
    "messy_segformer_ts",
    "loop_greedy_gru",
    "scan_lstm",
)
"""Shared models: published networks of each kind, small and large, and two with loops."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime, with the options that it is measured with.

    Attributes:
        file: the model that it opens, in the folder of a network.
        packages: what its environment has; empty for the environment that this program runs in.
        alone: packages that are installed without those that they name as needed.
        python: the version of Python that the packages need.
    """

    title: str
    file: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    python: str = "3.11"


RUNTIMES: Mapping[str, Runtime] = {
    "defaults": Runtime("ONNX Runtime, defaults", "external.onnx"),
    "options": Runtime("ONNX Runtime, copied options", "external.onnx"),
    "memplan": Runtime("memplan, `--target cpu`", "memplan.onnx"),
    "chunks": Runtime("memplan, `--target cpu --chunk auto`", "chunks.onnx"),
    "mnn": Runtime("MNN, low memory, mapped", "mnn.mnn", ("mnn==3.6.1", "numpy")),
    "openvino": Runtime("OpenVINO, f32, cached", "openvino.xml", ("openvino==2026.4.1",)),
    "tract": Runtime("tract", "external.onnx", ("tract==0.23.9", "numpy")),
    "litert": Runtime(
        "LiteRT", "default_float32.tflite", ("onnx2tf==2.6.9",), python="3.12"
    ),
    "ncnn": Runtime(
        "ncnn, light mode", "default.ncnn.param",
        ("ncnn==1.0.20261020", "numpy"), alone=("pnnx==20261020",),
    ),
}  # fmt: skip

SETTINGS: Mapping[str, Settings] = {
    "memplan": Settings(target="cpu", notes="plan"),
    "chunks": Settings(target="cpu", notes="plan", chunk="auto"),
}
"""Of the files that memplan writes. Without a budget, chunks may take 5 % more time, as predicted."""


def environment(name: str) -> Path:
    """Return the interpreter of a runtime's environment, which is made if it is not there.

    Raises:
        RuntimeError: there is no such Python here, or a package cannot be installed.
    """
    runtime = RUNTIMES[name]
    if not runtime.packages:
        return Path(sys.executable)
    folder = OUT / "environments" / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        find = runpy.run_path(str(ROOT / ".ci" / "pythons.py"))["interpreter"]
        if (base := find(runtime.python)) is None:
            raise RuntimeError(f"not installed: there is no Python {runtime.python} here")
        _run([base, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *runtime.packages])
        if runtime.alone:
            _run([*pip, "--no-deps", *runtime.alone])
        ready.touch()
    return python


def _run(command: Sequence[str], timeout: float | None = None) -> None:
    """Run a command at the root of the repository.

    Raises:
        RuntimeError: it failed; the message has the end of its output.
    """
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode:
        raise RuntimeError(f"{done.returncode}: {(done.stderr or done.stdout)[-300:]}")


def make_files(name: str) -> Path:
    """Write a network with fixed dims and filled weights, and its inputs; return their folder."""
    folder = OUT / name
    prepare(name, models()[name], OUT)
    with np.load(folder / "feed.npz") as feed:
        shapes = {key: feed[key].shape for key in feed.files}
    for part in ("default", "external"):
        model = onnx.load(folder / f"{part}.onnx", load_external_data=False)
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, number in zip(dims, shapes.get(value.name, ()), strict=False):
                dim.dim_value = number
        onnx.save(model, folder / f"{part}.onnx")
    names = [value.name for value in model.graph.output]
    (folder / "outputs.txt").write_text("\n".join(names))
    return folder


def convert(name: str, folder: Path) -> list[str]:
    """Write the file that a runtime opens, and return the command that measures it."""
    python = str(environment(name))
    script = [python, "-m", "tests.benchmarks.runtimes_child"]
    if name in SETTINGS:
        write(folder, name, SETTINGS[name])
    elif not (folder / RUNTIMES[name].file).exists():
        _run([*script, "convert", name, str(folder)], TIMEOUT)
    model = folder / RUNTIMES[name].file
    return [*script, str(model), str(folder / "feed.npz"), name]


def measure(network: str) -> None:
    """Measure a network in the runtimes that have no figures of it, and keep them."""
    file = OUT / f"{network}.json"
    row: Json = json.loads(file.read_text()) if file.exists() else {"name": network}
    if "times" in row and row.keys() >= RUNTIMES.keys():
        return
    began = time.perf_counter()
    os.environ |= {"PYTHONNOUSERSITE": "1", "RUST_BACKTRACE": "0"}  # errors of tract are short
    folder = make_files(network)
    commands = {}
    for name in RUNTIMES:
        if "error" in row.get(name, {}):
            continue
        try:
            commands[name] = convert(name, folder)
            # The outputs of the defaults, with which all others are compared, are not kept.
            if name not in row or name == "defaults":
                row[name] = measured(name, commands[name], folder)
        except Exception as error:  # noqa: BLE001 - one runtime's failure is a row
            row[name] = {"error": f"{type(error).__name__}: {error}"[-400:]}
            commands.pop(name, None)
        file.write_text(json.dumps(row, indent=1) + "\n")
        print(network, name, row[name], flush=True)
    row["times"] = in_turn(commands)
    file.write_text(json.dumps(row, indent=1) + "\n")
    shutil.rmtree(folder)
    print(network, f"{time.perf_counter() - began:.0f} s", row["times"], flush=True)


def measured(name: str, command: list[str], folder: Path) -> Json:
    """Return the medians of a runtime, and the difference of its outputs from the defaults'.

    Raises:
        ValueError: the outputs are wrong.
    """
    file = folder / f"{name}.npz"
    row = medians([*command, f"outputs={file}"])
    expected = outputs_of(folder / "defaults.npz")
    row["difference"] = difference(expected, outputs_of(file))
    if not row["difference"] <= ALIKE:
        raise ValueError(f"outputs differ by {row['difference']:.2g} of the largest value")
    return row


def outputs_of(file: Path) -> list[Any]:
    """Return the arrays of an npz file in their order."""
    with np.load(file) as arrays:
        return [arrays[key] for key in arrays.files]


def difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest difference of an output, as a share of the largest value of that output.

    Axes of size one may be missing, and channels may be last.

    Raises:
        ValueError: there are more or fewer outputs, or they have other sizes.
    """
    shares = [0.0]
    for wanted, found in zip(expected, actual, strict=True):
        if found.size != wanted.size:
            raise ValueError(f"an output has the shape {found.shape}, not {wanted.shape}")
        if found.ndim == wanted.ndim > 2 and found.shape != wanted.shape:
            found = np.moveaxis(found, -1, 1)  # noqa: PLW2901
        wide = wanted.astype(np.float64)
        distance = np.abs(found.reshape(wanted.shape) - wide).max(initial=0.0)
        shares.append(distance / (np.abs(wide).max(initial=0.0) or 1.0))
    return float(np.max(shares))


def main(arguments: list[str]) -> None:
    """Measure the networks named, or all, and write the page."""
    OUT.mkdir(parents=True, exist_ok=True)
    for network in arguments or NETWORKS:
        if network != "page":
            measure(network)
    from .runtimes_page import write_page

    write_page(OUT)


if __name__ == "__main__":
    main(sys.argv[1:])
