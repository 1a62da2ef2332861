"""One model of the collection, given every command: a row of the page."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from .field_collection import VALUES, Member, known_shapes, told_inputs
from .field_hints import Followed, Said, Words, follow
from .field_process import SECONDS, memplan, neutral
from .field_shapes import Drawn, arrays, drawn
from .models import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT = ("--timeout", "60")
NOT_RUN = -1001
"""In place of an exit code: nothing there to be run on."""

COMMANDS: Mapping[str, Words] = {
    "report": ("report", "MODEL"),
    "report, shapes": ("report", "MODEL", "SHAPES"),
    "report, inputs": ("report", "MODEL", "INPUTS"),
    "why": ("why", "MODEL"),
    "gate": ("gate", "MODEL", "--max-memory", "1TiB"),
    "diff": ("diff", "MODEL", "MODEL"),
    "settings": ("settings", "MODEL"),
    "simulate": ("simulate", "MODEL", *LIMIT),
    "fit": ("fit", "MODEL", "--memory", "8GiB", "SOUGHT"),
    "sweep": ("sweep", "MODEL", "--jobs", "1"),
    "optimize": (
        "optimize",
        "MODEL",
        "INPUTS",
        "-o",
        "o.onnx",
        "--certificate",
        "c.json",
        "--format",
        "json",
        *LIMIT,
    ),
    "validate": ("validate", "o.onnx", "--original", "MODEL", "INPUTS", *LIMIT),
    "verify": ("verify-certificate", "MODEL", "o.json", "c.json"),
    "target": (
        "optimize",
        "MODEL",
        "INPUTS",
        "--target",
        "cpu",
        "-o",
        "t.onnx",
        "--format",
        "json",
        *LIMIT,
    ),
    "validate, target": ("validate", "t.onnx", "--original", "MODEL", "INPUTS", *LIMIT),
}
"""What is run, each by itself."""

READERS = ("validate", "verify", "validate, target")
"""Commands that are given what another one wrote."""

PROOFS = ("optimize", "target", *READERS)
"""Commands that run models several times: they come last, as far as the time goes."""

WRITTEN = {"optimize": "proof", "target": "target"}
"""Commands that write and run a model, and where what they say of its runs goes."""

FIGURES = {"report": "free", "report, shapes": "bound", "report, inputs": "fed"}
"""Commands that are asked for JSON too, and where their numbers go."""


@dataclass
class Ending:
    """How a command ended: its exit code, seconds, and what it said when it could not work."""

    command: str
    code: int
    seconds: float
    message: str


@dataclass
class Row:
    """What is known of a model of the collection."""

    name: str
    source: str
    producer: str = ""
    nodes: int = 0
    operators: int = 0
    dtype: str = ""
    opset: str = ""
    shapes: str = ""
    has_free_dims: bool = False
    free: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    fed: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    against: dict[str, Any] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    endings: list[Ending] = field(default_factory=list)
    hints: list[Followed] = field(default_factory=list)

    def ending(self, command: str) -> Ending:
        """Return how a command ended."""
        none = Ending(command, NOT_RUN, 0.0, "")
        return next((at for at in self.endings if at.command == command), none)

    @property
    def key(self) -> tuple[str, str]:
        """Return what tells it from all others."""
        return self.source, self.name

    @property
    def proved(self) -> bool:
        """Whether the proofs had their turn."""
        return any(at.command in PROOFS for at in self.endings)


@dataclass(frozen=True)
class _Case:
    """A model with its inputs, and the folder for what its commands write."""

    model: Path
    inputs: list[Drawn]
    folder: Path


def read_row(data: dict[str, Any]) -> Row:
    """Return a row that was written as JSON."""
    endings = [Ending(**one) for one in data["endings"]]
    hints = [Followed(**{**one, "added": tuple(one["added"])}) for one in data["hints"]]
    return Row(**{**data, "endings": endings, "hints": hints})


def row(member: Member, work: Path) -> Row:
    """Give a model every command but the proofs, and what the hints of each say."""
    started = time.perf_counter()
    model = onnx.load(member.path, load_external_data=False)
    found = Row(member.name, member.source, **_facts(model))
    inputs = _inputs(member, model)
    found.shapes = "; ".join(at.option[1] for at in inputs if at.shape)
    found.has_free_dims = any(at.is_free for at in inputs)
    with tempfile.TemporaryDirectory(dir=work) as name:
        case = _Case(member.path, inputs, Path(name))
        _write_inputs(case)
        found.runtime = _runtime(case)
        for command in COMMANDS:
            if command not in PROOFS:
                _give(found, command, case)
        found.against = _against(found.runtime.pop("tensors"), case)
    found.seconds += time.perf_counter() - started
    return found


def prove(found: Row, member: Member, work: Path) -> None:
    """Add to a row how the proofs ended."""
    started = time.perf_counter()
    inputs = _inputs(member, onnx.load(member.path, load_external_data=False))
    with tempfile.TemporaryDirectory(dir=work) as name:
        case = _Case(member.path, inputs, Path(name))
        _write_inputs(case)
        for command in COMMANDS:
            if command in PROOFS:
                _give(found, command, case)
    found.seconds += time.perf_counter() - started


def _inputs(member: Member, model: onnx.ModelProto) -> list[Drawn]:
    shapes = known_shapes(member.source, member.name)
    return drawn(model, shapes, VALUES, told_inputs(member))


def _write_inputs(case: _Case) -> None:
    with (case.folder / "inputs.npz").open("wb") as file:
        np.savez(file, **dict[str, Any](arrays(case.inputs)))


def _give(found: Row, command: str, case: _Case) -> None:
    words = _filled(COMMANDS[command], case, found.free)
    if words is None:
        found.endings.append(Ending(command, NOT_RUN, 0.0, ""))
        return
    started = time.perf_counter()
    said = memplan(words, case.folder, case.model)
    seconds = time.perf_counter() - started
    found.endings.append(Ending(command, said.code, seconds, said.message))
    if command in FIGURES:
        figures = memplan((*words, "--format", "json"), case.folder, case.model)
        setattr(found, FIGURES[command], _figures(figures))
    if command in WRITTEN:
        setattr(found, WRITTEN[command], _proof(said))
    where = case.folder if command in READERS else Path(tempfile.mkdtemp(dir=case.folder))
    if where != case.folder:
        (where / "inputs.npz").symlink_to(case.folder / "inputs.npz")
    found.hints += follow(
        found.name, command, words, said, lambda more: memplan(more, where, case.model)
    )


def _filled(words: Words, case: _Case, free: dict[str, Any]) -> Words | None:
    """Put a model and its inputs into a command; None where it has no use for them."""
    made = {"o.onnx", "o.json", "c.json", "t.onnx"}.intersection(
        words if "-o" not in words else ()
    )
    if not all((case.folder / name).exists() for name in made):
        return None
    sought = next(iter(free.get("bindings", {})), "")
    if "SOUGHT" in words and not sought:
        return None
    shapes = tuple(word for one in case.inputs if one.shape for word in one.option)
    known: Mapping[str, Words] = {
        "MODEL": (str(case.model),), "SHAPES": shapes,
        "INPUTS": ("--inputs", "inputs.npz") if case.inputs else (),
        "SOUGHT": ("--dim", f"{sought}=?"),
    }  # fmt: skip
    return tuple(new for word in words for new in known.get(word, (word,)))


def _figures(said: Said) -> dict[str, Any]:
    if said.code:
        return {"coverage": None, "total": None, "naive": None}
    data = json.loads(said.out)
    symbolic = data.get("symbolic", {})
    memory = data["memory"]
    return {
        "coverage": data["coverage"],
        "partial": data["partial"],
        "bindings": data.get("bindings", {}),
        "total": memory["total"] if memory["total"] is not None else symbolic.get("total"),
        "naive": memory["naive"],
        "observed": any(" one run on " in at for at in data["warnings"]),
    }


def _proof(said: Said) -> dict[str, Any]:
    """Return what `optimize` says of its runs: how they ended, and each side's peaks."""
    try:
        data = json.loads(said.out)
    except ValueError:
        return {}
    runtime, validation = data["runtime"] or {}, data["validation"] or {}
    return {
        "status": validation.get("status"),
        "identical": validation.get("bit_identical"),
        "sources": sorted({at["source"] for at in data.get("bindings", {}).values()}),
        "predicted": _peaks(runtime.get("predicted")),
        "observed": _peaks(runtime.get("observed")),
        "process": _processes(runtime.get("observed")),
        "warnings": data["warnings"],
    }


def _peaks(sides: dict[str, Any] | None) -> dict[str, list[int | None]]:
    return {
        side: [peaks["first_run_peak"], peaks["steady_peak"]]
        for side, peaks in (sides or {}).items()
    }


def _processes(sides: dict[str, Any] | None) -> dict[str, dict[str, int | None]]:
    return {side: peaks["process"] for side, peaks in (sides or {}).items()}


def _against(seen: dict[str, int], case: _Case) -> dict[str, Any]:
    """Hold the tensors of a plan, those of the top graph, against what a run made."""
    words = ("report", str(case.model), "--inputs", "inputs.npz", "--format", "csv")
    said = memplan(words, case.folder, case.model)
    rows = csv.DictReader(io.StringIO(said.out)) if said.code == 0 else ()
    planned = {at["name"]: at for at in rows if not at["block"]}
    sizes = {n: int(at["bytes"]) if at["unit"] == "1" else -1 for n, at in planned.items()}
    other = [name for name, size in seen.items() if sizes.get(name) != size]
    return {
        "tensors": len(seen),
        "other": len(other),
        "planned": sum(sizes.values()),
        "run": sum(seen.values()),
        "examples": [f"{n}: {sizes.get(n, 'none')} and {seen[n]}" for n in other[:3]],
    }


def _runtime(case: _Case) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.field_run", str(case.model),
             str(case.folder / "inputs.npz")],
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=SECONDS,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        answer = {"runs": False, "tensors": {}, "outputs": None, "error": type(error).__name__}
    answer["error"] = neutral(answer["error"], case.folder, case.model)
    return answer


def _facts(model: onnx.ModelProto) -> dict[str, Any]:
    graphs = [model.graph]
    for graph in graphs:
        attributes = [at for node in graph.node for at in node.attribute]
        graphs += [at.g for at in attributes if at.type == onnx.AttributeProto.GRAPH]
        graphs += [sub for at in attributes for sub in at.graphs]
    nodes = [node for graph in graphs for node in graph.node]
    dtypes: Counter[int] = Counter()
    for graph in graphs:
        for tensor in graph.initializer:
            dtypes[tensor.data_type] += max(1, prod(tensor.dims))
    dtypes = dtypes or Counter([model.graph.input[0].type.tensor_type.elem_type])
    opsets = {at.domain or "": at.version for at in model.opset_import}
    extra = ", ".join(f"{domain} {version}" for domain, version in opsets.items() if domain)
    return {
        "producer": f"{model.producer_name} {model.producer_version}".strip() or "not said",
        "nodes": len(nodes),
        "operators": len({node.op_type for node in nodes}),
        "dtype": onnx.TensorProto.DataType.Name(dtypes.most_common(1)[0][0]).lower(),
        "opset": f"{opsets.get('', '')}" + (f" + {extra}" if extra else ""),
    }
