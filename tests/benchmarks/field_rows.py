"""One model of the collection, given every command: a row of the page."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import onnx

from memplan_cli.cli import main as entry

from .field_collection import Member, told_inputs
from .field_hints import Followed, Said, follow
from .field_packages import VALUES, known_shapes
from .field_shapes import Drawn, as_json, drawn
from .models import ROOT, SAMPLES

if TYPE_CHECKING:
    from collections.abc import Mapping

SECONDS = 90
"""Until a command must have ended."""
LIMIT = ("--timeout", "60")
STOPPED, NOT_RUN = -1000, -1001
"""In place of an exit code: stopped at the time limit; nothing there to be run on."""

Words = tuple[str, ...]

COMMANDS: Mapping[str, Words] = {
    "report": ("report", "MODEL"),
    "report, shapes": ("report", "MODEL", "SHAPES"),
    "why": ("why", "MODEL"),
    "gate": ("gate", "MODEL", "--max-memory", "1TiB"),
    "diff": ("diff", "MODEL", "MODEL"),
    "optimize": ("optimize", "MODEL", "-o", "o.onnx", *LIMIT),
    "validate": ("validate", "o.onnx", "--original", "MODEL", *LIMIT),
    "settings": ("settings", "MODEL"),
    "simulate": ("simulate", "MODEL", *LIMIT),
    "sweep": ("sweep", "MODEL", "--jobs", "1"),
}
"""What is run, each by itself."""

PROOFS = ("optimize", "validate")
"""Commands that run models several times: they come last, as far as the time goes."""

FIGURES = {"report": "free", "report, shapes": "bound"}
"""Commands that are asked for JSON too, and where their numbers go."""


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

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
    free: dict[str, Any] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    endings: list[Ending] = field(default_factory=list)
    hints: list[Followed] = field(default_factory=list)

    def ending(self, command: str) -> Ending:
        """Return how a command ended."""
        none = Ending(command, NOT_RUN, 0.0, "")
        return next((at for at in self.endings if at.command == command), none)

    @property
    def proved(self) -> bool:
        """Whether the proofs had their turn."""
        return any(at.command in PROOFS for at in self.endings)


def read_row(data: dict[str, Any]) -> Row:
    """Return a row that was written as JSON."""
    endings = [Ending(**one) for one in data["endings"]]
    hints = [Followed(**{**one, "added": tuple(one["added"])}) for one in data["hints"]]
    return Row(**{**data, "endings": endings, "hints": hints})


def row(member: Member, work: Path) -> Row:
    """Give a model every command but the proofs, and what the hints of each say."""
    model = onnx.load(member.path, load_external_data=False)
    found = Row(member.name, member.source, **_facts(model))
    inputs = _inputs(member, model)
    found.shapes = "; ".join(at.option[1] for at in inputs if at.shape)
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        (folder / "inputs.json").write_text(as_json(inputs))
        found.runtime = _runtime(member.path, folder)
        for command in COMMANDS:
            if command not in PROOFS:
                _give(found, command, member.path, inputs, folder)
    return found


def prove(found: Row, member: Member, work: Path) -> None:
    """Add to a row how the proofs ended."""
    inputs = _inputs(member, onnx.load(member.path, load_external_data=False))
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        (folder / "inputs.json").write_text(as_json(inputs))
        for command in PROOFS:
            _give(found, command, member.path, inputs, folder)


def _inputs(member: Member, model: onnx.ModelProto) -> list[Drawn]:
    shapes = known_shapes(member.source, member.name)
    return drawn(model, shapes, VALUES, told_inputs(member))


def _give(found: Row, command: str, model: Path, inputs: list[Drawn], folder: Path) -> None:
    if command == "validate" and not (folder / "o.onnx").exists():
        found.endings.append(Ending(command, NOT_RUN, 0.0, ""))
        return
    words = _filled(COMMANDS[command], model, inputs)
    started = time.perf_counter()
    said = memplan(words, folder, model)
    seconds = time.perf_counter() - started
    found.endings.append(Ending(command, said.code, seconds, said.message))
    if command in FIGURES:
        figures = memplan((*words, "--format", "json"), folder, model)
        setattr(found, FIGURES[command], _figures(figures))
    where = folder if command == "validate" else Path(tempfile.mkdtemp(dir=folder))
    found.hints += follow(
        found.name, command, words, said, lambda more: memplan(more, where, model)
    )


def _filled(words: Words, model: Path, inputs: list[Drawn]) -> Words:
    """Put a model and the shapes of its inputs into a command."""
    shapes = tuple(word for one in inputs if one.shape for word in one.option)
    known: Mapping[str, Words] = {
        "MODEL": (str(model),), "SHAPES": shapes, "INPUTS": ("--inputs", "inputs.json"),
    }  # fmt: skip
    return tuple(new for word in words for new in known.get(word, (word,)))


def warm_up() -> None:
    """Import what commands import late, once for all."""
    sample = str(SAMPLES / "branchy_cnn.onnx")
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        for command in ("report", "why", "diff"):
            words = (command, *(sample,) * (1 + (command == "diff")))
            with suppress(SystemExit):
                entry.main(list(words), prog_name="memplan")


def memplan(words: Words, folder: Path, model: Path) -> Said:
    """Run a command in a process of its own, and say how it ended.

    A fork of this program, which has imported what all commands need: a model gets some
    fifteen of them, and importing would take most of the time.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = os.fork()
        if process == 0:
            _become(words, folder, out.fileno(), err.fileno())
        code = _waited(process)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    if code == STOPPED:
        return Said(code, "", f"Error: still running after {SECONDS} s")
    return Said(code, texts[0], _neutral(texts[1], folder, model))


def _become(words: Words, folder: Path, out: int, err: int) -> NoReturn:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.chdir(folder)
    code = 70
    try:
        entry.main(list(words), prog_name="memplan")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the parent reads the traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited(process: int) -> int:
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return STOPPED


def _neutral(text: str, folder: Path, model: Path) -> str:
    """Take the places of this machine out of a text."""
    for path in (model, folder, ROOT):
        for form in (str(path), os.path.relpath(path, folder)):
            if form not in (".", ""):
                text = text.replace(form, path.name if path == model else "FOLDER")
    return re.sub(r"(?<![\w.])/(?:tmp|usr|opt|home|root|work)/[^\s:'\"]*", "PATH", text)


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
    }


def _runtime(model: Path, folder: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.field_run", str(model),
             str(folder / "inputs.json")],
            capture_output=True, text=True, check=False, cwd=ROOT, timeout=SECONDS,
        )  # fmt: skip
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        answer = {"runs": False, "naive": None, "error": type(error).__name__}
    answer["error"] = _neutral(answer["error"], folder, model)
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
