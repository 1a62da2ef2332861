"""Give memplan files that nobody should have to read, and see that it says so and stops.

    python -m tests.benchmarks.hostile [--no-table]

Each case is a command in a process of its own with little memory and little time. It must
end with exit code 1 or 2 (or 0 where the file happens to be a valid one), one message, no
traceback, and nothing written.

Guards the claim of docs/measurements/robustness.md: malformed and malicious files end in one message, no
traceback and no output.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from memplan_cli import api

from .cases import asked, cell, publish_check, side_by_side
from .hostile_commands import CASES as COMMANDS
from .hostile_inputs import CASES as INPUTS
from .hostile_proofs import CASES as PROOFS
from .hostile_proofs import LOAD

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_models"
MEMORY = 6 << 30
"""Bytes of address space; importing ONNX Runtime reserves a good part of it."""
SECONDS = 30
"""Of processor time; a busy machine may take four times as long."""

PATIENCE = 4 * SECONDS
LIMITS: Mapping[int, int] = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS}

Make = Callable[[Path], list[str]]
"""Writes files into an empty folder and returns the command's words."""

Command = Callable[[list[str]], subprocess.CompletedProcess[bytes]]
"""Runs memplan with these words."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    message: str
    seconds: float
    written: tuple[str, ...]
    printed: str = ""

    @property
    def faults(self) -> list[str]:
        """Return what is wrong with it."""
        found = []
        if self.code not in (0, 1, 2):
            found.append(f"exit code {self.code}")
        if "Traceback" in self.message:
            found.append("a traceback")
        if "memplan failed:" in self.message:
            found.append("a fault of memplan's own")
        lines = self.message.splitlines()  # progress may stand above the message
        if self.code == 2 and not any(at.startswith(("Error:", "Usage:")) for at in lines):
            found.append("no message")
        if self.code and self.written:
            found.append(f"left {', '.join(self.written)}")
        if any(ord(c) < 32 and c not in "\n\t" for c in self.message + self.printed):
            found.append("control characters on the terminal")
        if len(self.message) > 2000:
            found.append(f"a message of {len(self.message)} characters")
        return found


def _model(
    path: Path, nodes: list[onnx.NodeProto], *extra: object, shape: tuple[object, ...] = (2, 3)
) -> list[str]:
    weights = [e for e in extra if isinstance(e, TensorProto)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "hostile", [x], [y], weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    path.write_bytes(model.SerializeToString())
    return ["optimize", str(path), "--no-validate"]


def _chain(path: Path, name: str) -> list[str]:
    return _model(
        path, [helper.make_node("Relu", ["x"], [name]), helper.make_node("Neg", [name], ["y"])]
    )


def _bytes(content: bytes) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / "m.onnx").write_bytes(content)
        return ["optimize", str(folder / "m.onnx"), "--no-validate"]

    return make


def _flipped(seed: int) -> Make:
    content = bytearray((SAMPLES / "nested_if_loop.onnx").read_bytes())
    rng = random.Random(seed)
    for _ in range(20):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return _bytes(bytes(content))


def _nodes(*nodes: onnx.NodeProto, shape: tuple[object, ...] = (2, 3)) -> Make:
    return lambda folder: _model(folder / "m.onnx", list(nodes), shape=shape)


def _named(name: str) -> Make:
    return lambda folder: _chain(folder / "m.onnx", name)


def _deep(levels: int) -> Make:
    """Nest If bodies by writing protobuf's wire format: no library would build them."""

    def field(number: int, content: bytes) -> bytes:
        return _varint(number << 3 | 2) + _varint(len(content)) + content

    def make(folder: Path) -> list[str]:
        graph = b""
        for _ in range(levels):
            attribute = (
                field(1, b"then_branch") + field(6, graph) + _varint(20 << 3) + _varint(5)
            )
            node = field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute)
            graph = field(1, node) + field(2, b"g")
        content = (
            _varint(1 << 3)
            + _varint(8)
            + field(7, graph)
            + field(8, _varint(2 << 3) + _varint(20))
        )
        (folder / "m.onnx").write_bytes(content)
        return ["optimize", str(folder / "m.onnx"), "--no-validate"]

    return make


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _external(location: str, prepare: Callable[[Path], object] = lambda _: None) -> Make:
    def make(folder: Path) -> list[str]:
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[3, 3])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "36")):
            entry = weight.external_data.add()
            entry.key, entry.value = key, value
        prepare(folder)
        _model(folder / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], weight)
        return ["optimize", str(folder / "m.onnx")]

    return make


def _settings(text: bytes, name: str = "s.yaml") -> Make:
    def make(folder: Path) -> list[str]:
        (folder / name).write_bytes(text)
        return [
            "optimize",
            str(SAMPLES / "branchy_cnn.onnx"),
            "-o",
            str(folder / "out.onnx"),
            "--no-validate",
            "--config",
            str(folder / name),
        ]

    return make


def _plan(change: Callable[[dict[str, object]], object]) -> Make:
    def make(folder: Path) -> list[str]:
        out = folder / "made" / "m.onnx"
        out.parent.mkdir()
        api.optimize(SAMPLES / "branchy_cnn.onnx", out=out, check=None)
        plan = json.loads(out.with_suffix(".json").read_text())
        shutil.rmtree(out.parent)
        change(plan)
        (folder / "p.memplan.json").write_text(json.dumps(plan))
        return ["report", str(folder / "p.memplan.json")]

    return make


def _tensor(**changes: object) -> Callable[[dict[str, object]], object]:
    """Change the first tensor that shares its bytes with no other."""

    def change(plan: dict[str, object]) -> None:
        tensors: list[dict[str, object]] = plan["tensors"]  # type: ignore[assignment]
        shared = {tensor["alias_of"] for tensor in tensors}
        alone = (t for t in tensors if t["alias_of"] is None and t["name"] not in shared)
        next(alone).update(changes)

    return change


def _text(name: str, text: str, command: str) -> Make:
    def make(folder: Path) -> list[str]:
        (folder / name).write_text(text)
        return [command, str(folder / name)]

    return make


_RELU = helper.make_node("Relu", ["x"], ["y"])
_SAMPLE = (SAMPLES / "branchy_cnn.onnx").read_bytes()
_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES: dict[str, Make] = {
    "no such file": lambda folder: ["optimize", str(folder / "absent.onnx")],
    "an empty file": _bytes(b""),
    "a folder": lambda folder: ["optimize", str(folder)],
    "text": _bytes(b"once upon a time"),
    "zeros": _bytes(bytes(4096)),
    "random bytes": _bytes(random.Random(1).randbytes(4096)),
    "a truncated model": _bytes(_SAMPLE[: len(_SAMPLE) // 2]),
    **{f"bits flipped, seed {seed}": _flipped(seed) for seed in range(6)},
    "dims of 2**62": _nodes(_RELU, helper.make_node("Neg", ["y"], ["z"]), shape=(2**62, 2**62)),
    "negative dims": _nodes(_RELU, shape=(-5, 3)),
    "a cycle": _nodes(helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Neg", ["b"], ["y"])),
    "a node that reads itself": _nodes(helper.make_node("Add", ["x", "y"], ["y"])),
    "an undefined input": _nodes(helper.make_node("Add", ["x", "ghost"], ["y"])),
    "an undefined output": _nodes(helper.make_node("Relu", ["x"], ["z"])),
    "a value made twice": _nodes(_RELU, helper.make_node("Neg", ["x"], ["y"])),
    "an unknown operator": _nodes(helper.make_node("Frobnicate", ["x"], ["y"], domain="nobody")),
    "an operator whose input has no type": _nodes(helper.make_node("RegexFullMatch", ["ghost"], ["y"])),
    "100 nested blocks": _deep(100),
    "5000 nested blocks": _deep(5000),
    "a name of 1 MB": _named("n" * 1_000_000),
    "control characters in a name": _named("a\x1b[31mred\x07\x00b"),
    "newlines in a name": _named("a\nError: all is well\n::error::b"),
    "markup in a name": _named("[bold]<script>alert(1)</script>|`=1+1"),
    "a name that is not there, with control characters": lambda _: ["optimize", str(SAMPLES / "branchy_cnn.onnx"), "--no-validate", "--exclude", "\x1b[2Jx"],
    "external data outside": _external("../w.bin"),
    "external data at an absolute path": _external("/etc/passwd"),
    "external data behind a link": _external("w.bin", lambda f: (f / "w.bin").symlink_to("/etc/hostname")),
    "external data missing": _external("w.bin"),
    "external data too short": _external("w.bin", lambda f: (f / "w.bin").write_bytes(b"12")),
    "external data with an empty name": _external(""),
    "a YAML bomb": _settings(_BOMB.encode()),
    "a Python tag": _settings(b'level: !!python/object/apply:os.system ["touch /tmp/pwned"]'),
    "YAML that is not UTF-8": _settings(b"level: \xff\xfe1"),
    "YAML that is no mapping": _settings(b"- 1\n- 2\n"),
    "YAML with an unknown key": _settings(b"levle: 1\n"),
    "YAML with a key twice": _settings(b"level: 1\nlevel: 2\n"),
    "a prototxt that never ends": _settings(b'mem_param { exclude_blob: "', "s.prototxt"),
    "a level of 3": lambda _: ["optimize", str(SAMPLES / "branchy_cnn.onnx"), "--level", "3"],
    "a plan that overlaps": _plan(_tensor(offset=0, first=0, last=20)),
    "a plan out of range": _plan(_tensor(offset=1 << 40)),
    "a plan with a negative offset": _plan(_tensor(offset=-64)),
    "a plan with text for a number": _plan(_tensor(bytes="many")),
    "a plan with a number of 2**80": _plan(_tensor(bytes=2**80)),
    "a plan whose alias is nowhere": _plan(_tensor(alias_of="ghost")),
    "a plan of another schema": _plan(lambda plan: plan.update(schema="memplan.plan/9")),
    "a plan without tensors": _plan(lambda plan: plan.pop("tensors")),
    "a plan that is a list": _text("p.json", "[1]", "report"),
    "a plan of deep JSON": _text("p.json", "[" * 100_000, "report"),
    "a CSV with a negative size": _text("p.csv", "id,lower,upper,size\na,0,1,-4\n", "pack"),
    "a CSV with text for a number": _text("p.csv", "id,lower,upper,size\na,0,one,4\n", "pack"),
    **COMMANDS,
    **INPUTS,
    **PROOFS,
}  # fmt: skip


def _limit() -> None:
    for limited, most in LIMITS.items():
        resource.setrlimit(limited, (most, most))


def started_anew(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run memplan in a Python of its own, within the limits."""
    module = ["memplan_cli"] if words[0] != LOAD else ["tests.benchmarks.hostile_load"]
    return subprocess.run(
        [sys.executable, "-m", *module, *words[words[0] == LOAD :]],
        capture_output=True, timeout=PATIENCE, check=False, cwd=ROOT, preexec_fn=_limit,
    )  # fmt: skip


def run(make: Make, command: Command = started_anew) -> Outcome:
    """Run one case in an empty folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = make(folder)
        before = _files(folder)
        started = time.perf_counter()
        try:
            done = (started_anew if words[0] == LOAD else command)(words)
            code, message = done.returncode, done.stderr.decode("utf-8", "replace")
            printed = done.stdout.decode("utf-8", "replace")
        except subprocess.TimeoutExpired:
            printed = ""
            code, message = -1, f"still running after {PATIENCE} s"
        seconds = time.perf_counter() - started
        fresh = _files(folder) - before
        written = tuple(sorted(p.name for p in fresh))
        for path in fresh:
            if path.is_relative_to(SAMPLES):
                path.unlink()
        clean = message.replace(str(folder), "FOLDER").replace(str(SAMPLES), "sample_models")
        return Outcome(code, clean.strip(), seconds, written, printed)


def _files(folder: Path) -> set[Path]:
    """Return what lies in a folder and beside the samples, less what Python leaves there."""
    found = (path for place in (folder, SAMPLES) for path in place.rglob("*"))
    return {path for path in found if "__pycache__" not in path.parts}


def _outcome(name: str) -> Outcome:
    return run(CASES[name])


def main() -> int:
    words = asked(__doc__)
    rows = side_by_side(CASES, _outcome, words)
    lines = [
        "# Hostile inputs",
        "",
        "Made by `make hostile`: each file given to the command line in a process of its own",
        f"with {MEMORY >> 30} GiB of address space and {SECONDS} seconds of processor time.",
        "",
        "| input | exit | seconds | message |",
        "|---|---:|---:|---|",
    ]
    for name, outcome in rows.items():
        told = outcome.message.splitlines()
        first = next((at for at in told if at.startswith("Error:")), *told[:1] or [""])
        said = cell(first, 200)
        lines.append(f"| {name} | {outcome.code} | {outcome.seconds:.1f} | {said} |")
    faults = [f"- {name}: {', '.join(o.faults)}" for name, o in rows.items() if o.faults]
    sums = f"{len(rows)} inputs, {len(faults)} faults"
    lines += ["", sums, *faults]
    publish_check("make hostile", lines, sums, words)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
