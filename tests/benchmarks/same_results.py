"""Give an old commit and a new one the same command lines, and list what differs.

    python -m tests.benchmarks.same_results --old REV [--new REV] [--quick | --runs] [-o FILE]

Without --new the working tree is compared. Only the command line is used, so the inside may
change at will. Results of a commit are kept in a folder and made once. Words are listed
apart from values; exit code 1 means that a value differs for no reason given in `EXPLAINED`.

Guards every change that promises unchanged results: out/tables/same_results.md lists what differs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime

from .cases import cell
from .models import ROOT
from .pages import FULL_TABLES
from .same_commands import Case, Extent, cases
from .same_differences import Difference, Explanation, Row, differences, folded, rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PAGE = FULL_TABLES / "same_results.md"
CACHE = ROOT / "out" / "same_results"

_SCHEMA = "schemas are generated from the records: shared definitions, ranges, descriptions"
_MEASURED = "contains what making a session took, which differs by pages between two runs"
_UNUSED = "an unused constant of the Loop is no longer created"

_SLOTS = "level 1 tries two strategies for slots instead of seven (removed.md)"
_RECOMPUTE = "fewer starting orders, and one lower bound instead of two (removed.md)"
_REGIONS = "region sizes are searched by a number of trials, not by a work budget (removed.md)"
_NORMALIZATION = "gradients of normalizations: other nodes, the same or a lower peak"
_PACKING = "without ejection chains the arena is 0.001 % higher (removed.md)"
_ORDERS = "another order of nodes: fewer searches compete (removed.md)"

_OTHER_ORDER = (
    "light_densenet121",
    "inception_v3",
    "train_bert_small_adam",
    "train_bert_small_dropout_adam",
    "train_cnn_*",
    "train_gpt2_small_adam",
    "train_lstm_unrolled_128x2",
    "train_mlp_*",
    "train_resnet18_momentum",
)
"""Models that get another order at some level, or copies of other ops."""
_KEYS_OF_ORDER = (
    *(
        "*: order*",
        "*: releases.*",
        "*: tensors.*",
        "*: traceEvents.*",
        "*: sha256",
        "*: reuses",
    ),
    *(
        "*memory.*",
        "*levels.*",
        "*orders.*",
        "*metrics.*",
        "*.plan.*",
        "*arenas.*",
        "*original.planned",
    ),
    *(
        "*peak*",
        "*fallbacks.*",
        "*foldable.*",
        "*recompute.*",
        "*slot_bound",
        "*results.*.actual",
    ),
    *("*: *.first", "*: *.last", "*: *.lower", "*: *.upper", "*: *.offset", "*: *.alias_of"),
    *(
        "*: *.id",
        "*: *.size",
        "*: (order)",
        "*: buffers",
        "*: height",
        "*: lower_bound",
        "*: proved",
    ),
    *(
        "*: bytes",
        "*: node",
        "*: nodes",
        "*: step",
        "*: lowers_most",
        "*phases.*",
        "*model.nodes",
    ),
    *("*model.intermediates", "*: tensors.(order)", "*models.*.tensors.*", "*: words.*"),
)
"""Keys of results that depend on the order: none of them is an exit code, a dtype, or a setting."""


EXPLAINED: tuple[Explanation, ...] = (
    Explanation("schema *", "*", _SCHEMA),
    Explanation("* --help", "*options", "--profile-shapes had no effect and is removed"),
    Explanation(
        "*", "*numbers", "help and messages are worded anew, with other numbers in them"
    ),
    Explanation("sweep", "*rows.*.key", "a digest of the settings, which have one key less"),
    Explanation("train-step*", "*not_trained*", "reworded, and decided before expansion"),
    Explanation("train-step*", "*sha256", _UNUSED),
    Explanation(
        "train-step", "*reuses", "another layout of the same height: fewer packing methods"
    ),
    Explanation("optimize --level 1", "*sha256", _SLOTS),
    Explanation("optimize --level 1", "*tensors.*.offset", _SLOTS),
    Explanation("optimize --level 1", "*tensors.*.slot", _SLOTS),
    Explanation("*", "*levels.1", _SLOTS),
    Explanation("*", "*symbolic.level 1", _SLOTS),
    *(
        Explanation(command, key, _SLOTS)
        for command in ("optimize *", "report *")
        for key in (
            "*memory.planned",
            "*memory.total",
            "*original.planned",
            "*.plan.planned",
            "*.plan.total",
            "*arenas.*.height",
            "*slot_bound",
            "*reuses",
        )
    ),
    *(
        Explanation("train-step*", key, _NORMALIZATION)
        for key in (
            "*memory.naive",
            "*symbolic.naive",
            "*peak.tensors.*",
            "*nodes",
            "*intermediates",
            "*phases.backward",
            "*runtime.predicted.original.*",
            "*original.planned",
            "t.onnx: order",
        )
    ),
    *(
        Explanation("*", key, _ORDERS, subject=model)
        for model in _OTHER_ORDER
        for key in _KEYS_OF_ORDER
    ),
    *(
        Explanation("train-step", key, _PACKING, subject="efficientnet_b0")
        for key in ("*: levels.2", "*: memory.planned", "*: memory.total")
    ),
    Explanation("optimize --recompute auto", "*recompute.bound", _RECOMPUTE),
    Explanation("optimize --recompute auto", "*recompute.curve.*", _RECOMPUTE),
    Explanation("train-step", "*runtime.predicted.optimized.*", _REGIONS),
    Explanation("train-step", "*runtime.settings.arena.*_bytes", _REGIONS),
    Explanation("report *", "*runtime.settings.arena.*_bytes", _REGIONS),
    Explanation("report *", "*predicted.optimized.held_without_weights", _REGIONS),
    Explanation("fit", "*.process", _MEASURED),
    Explanation("fit", "*.total", _MEASURED),
    Explanation("fit", "*.beyond", _MEASURED),
    Explanation("report *", "*.process.*", _MEASURED),
)
"""Differences that are intended, by patterns of commands and keys, and why."""

TOOLS = (platform.python_version(), np.__version__, onnx.__version__, onnxruntime.__version__)


@dataclass(frozen=True)
class Result:
    """What came of a case: an exit code for each step (none if it ran out of time)."""

    codes: tuple[int | None, ...]
    documents: dict[str, str | None]
    seconds: float

    @property
    def ended(self) -> bool:
        """Return whether each step ended in its time."""
        return None not in self.codes


@dataclass(frozen=True)
class Side:
    """The code of one side, and the folder that keeps its results, if they are kept."""

    name: str
    tree: Path
    kept: Path

    def place(self, case: Case) -> Path:
        """Return where the result of a case lies; its name changes with what is read."""
        told = (case.subject, case.command, case.steps, case.texts, case.made, TOOLS)
        digest = hashlib.sha256(repr(told).encode())
        for path in case.files:
            digest.update(path.read_bytes())
        return self.kept / f"{digest.hexdigest()[:24]}.json.gz"


def commit(revision: str, cache: Path) -> Side:
    """Return the side of a commit, its package unpacked once in the cache."""
    name = _git("rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    folder = cache / name
    tree = folder / "tree"
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            with tarfile.open(fileobj=io.BytesIO(_git("archive", name, "memplan_cli"))) as tar:
                tar.extractall(Path(fresh) / "tree", filter="data")
            (Path(fresh) / "tree").rename(tree)
    return Side(name[:7], tree, folder / "results")


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True)
    return done.stdout


def run_all(side: Side, wanted: Sequence[Case], jobs: int, timeout: float) -> None:
    """Make the results that are not there."""
    side.kept.mkdir(parents=True, exist_ok=True)
    missing = [case for case in wanted if not _is_done(side.place(case), timeout)]
    if missing:
        _warm(side)
    started = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        ends = pool.map(lambda case: (case, run(side, case, timeout)), missing)
        for place, (case, result) in enumerate(ends, 1):
            _keep(side.place(case), result)
            if not result.ended or result.seconds > timeout / 4:
                print(f"{side.name}: {case.subject}: {case.command}: {result.seconds:.0f} s")
            if place % 100 == 0 or place == len(missing):
                took = time.perf_counter() - started
                print(f"{side.name}: {place} of {len(missing)} in {took:.0f} s", flush=True)


def _is_done(place: Path, timeout: float) -> bool:
    """Return whether a result is there that more time would not change."""
    if not place.exists():
        return False
    result = _kept(place)
    return result.ended or result.seconds >= timeout


def _warm(side: Side) -> None:
    """See that the side's code is what runs, and compile what is compiled once."""
    where = "import memplan_cli; print(memplan_cli.__file__)"
    words = [sys.executable, "-c", where]
    found = subprocess.run(
        words,
        cwd=side.kept,
        env=_environment(side),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if not Path(found).is_relative_to(side.tree):
        raise SystemExit(f"{found} would run, which is not in {side.tree}")
    for case in cases(Extent.QUICK):
        if case.command == "pack an instance":
            run(side, case, 600.0)


def _environment(side: Side) -> dict[str, str]:
    plain = {"NO_COLOR": "1", "COLUMNS": "100", "ORT_DISABLE_TELEMETRY": "1"}
    return {**os.environ, **plain, "PYTHONPATH": str(side.tree), "LC_ALL": "C.UTF-8"}


def run(side: Side, case: Case, timeout: float) -> Result:
    """Run the steps of a case in a folder of its own, up to the first that fails."""
    codes: list[int | None] = []
    documents: dict[str, str | None] = {}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in case.files:
            (folder / path.name).write_bytes(path.read_bytes())
        for file, text in case.texts:
            (folder / file).write_text(text)
        for step in case.steps:
            code, printed, complaints = _step(side, step, folder, timeout)
            codes.append(code)
            documents["stdout"] = printed.replace(name, "FOLDER")
            documents["stderr"] = complaints.replace(name, "FOLDER")
            if code not in (0, 1):
                break
        for file in case.made:
            documents[file] = _document(folder / file)
    documents["exit"] = json.dumps(codes)
    return Result(tuple(codes), documents, time.perf_counter() - started)


def _step(
    side: Side, words: Iterable[str], folder: Path, timeout: float
) -> tuple[int | None, str, str]:
    with subprocess.Popen(
        [sys.executable, "-m", "memplan_cli", *words], cwd=folder, env=_environment(side),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            printed, complaints = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes it has started
            return None, "", ""
    return process.returncode, printed, complaints


def _document(path: Path) -> str | None:
    if not path.exists():
        return None
    return _model_text(path) if path.suffix == ".onnx" else path.read_text()


def _model_text(path: Path) -> str:
    """Return a written model as JSON: what was noted in it, its order, a digest of the rest."""
    model = onnx.load(path, load_external_data=False)
    notes = {entry.key: _notes(entry.value) for entry in model.metadata_props}
    order = [list(node.output) for node in model.graph.node]
    del model.metadata_props[:]
    model.producer_version = ""
    whole = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()
    found = {"notes": notes, "nodes": len(order), "order": _digest(order), "sha256": whole}
    return json.dumps({"metadata" if key == "notes" else key: v for key, v in found.items()})


def _notes(value: str) -> dict[str, str] | str:
    parts = [part.partition("=") for part in value.split(",")]
    return {key: said for key, _, said in parts} if all(p[1] for p in parts) else value


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _keep(place: Path, result: Result) -> None:
    text = json.dumps([result.codes, result.documents, round(result.seconds, 3)])
    fresh = place.with_suffix(".part")
    fresh.write_bytes(gzip.compress(text.encode(), 3))
    fresh.replace(place)


def _kept(place: Path) -> Result:
    codes, documents, seconds = json.loads(gzip.decompress(place.read_bytes()))
    return Result(tuple(codes), documents, seconds)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found."""

    compared: int
    identical: int
    late: tuple[str, ...]
    found: tuple[Difference, ...]


def compare(old: Side, new: Side, wanted: Iterable[Case]) -> Comparison:
    """Compare the results of two sides; those that ran out of time are only named."""
    compared = identical = 0
    late, found = [], []
    for case in wanted:
        pair = _kept(old.place(case)), _kept(new.place(case))
        if not all(result.ended for result in pair):
            sides = ("old" * (not pair[0].ended), "new" * (not pair[1].ended))
            late.append(f"{case.subject}: {case.command} ({', '.join(filter(None, sides))})")
            continue
        differ = differences(case.subject, case.command, pair[0].documents, pair[1].documents)
        compared += 1
        identical += not differ
        found += folded(differ)
    return Comparison(compared, identical, tuple(late), tuple(found))


def page(old: str, new: str, extent: Extent, said: Comparison, listed: Sequence[Row]) -> str:
    """Return the page of a comparison as Markdown."""
    values = [row for row in listed if not row.words]
    unexplained = sum(not row.reason for row in values)
    lines = [
        "# The same results",
        "",
        (
            f"Commit {old} and {new}, by `python -m tests.benchmarks.same_results` ({extent.value}): "
            f"Python {TOOLS[0]}, numpy {TOOLS[1]}, onnx {TOOLS[2]}, ONNX Runtime {TOOLS[3]}."
        ),
        "",
        (
            f"{said.compared} commands compared, {said.identical} identical, "
            f"{said.compared - said.identical} differ: {len(values)} rows of values, of which "
            f"{unexplained} not explained, and {len(listed) - len(values)} rows of words."
        ),
    ]
    if values:
        lines += ["", "## Values", "", *_table(values)]
    if len(values) < len(listed):
        lines += ["", "## Words", "", *_table([row for row in listed if row.words])]
    if said.late:
        lines += ["", "## Out of time, not compared", "", *(f"- {each}" for each in said.late)]
    return "\n".join(lines) + "\n"


def _table(listed: Iterable[Row]) -> Iterator[str]:
    yield "| document and key | commands | models | differences | numbers | old | new | why |"
    yield "|---|---|---|---:|---|---|---|---|"
    for row in sorted(listed, key=lambda row: row.pattern):
        first = row.differences[0]
        yield (
            f"| `{row.pattern}` | {_some(row.commands)} | {_some(row.subjects)} "
            f"| {row.count} | {row.directions} "
            f"| {_short(first.old)} | {_short(first.new)} "
            f"| {row.reason or ('' if row.words else 'not explained')} |"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return cell(text if len(text) <= 60 else f"{text[:57]}...", 200)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", required=True, help="A commit.")
    parser.add_argument("--new", help="A commit; default: the working tree.")
    parser.add_argument("--only-old", action="store_true", help="Make its results, then stop.")
    extents = parser.add_mutually_exclusive_group()
    extents.add_argument("--quick", action="store_true", help="Small models only.")
    extents.add_argument("--runs", action="store_true", help="Run models too, if they can.")
    parser.add_argument("--only", default="", help="Cases with this text in their name.")
    parser.add_argument("--jobs", type=int, default=2, help="Processes at a time.")
    parser.add_argument("--timeout", type=float, default=120.0, help="Seconds a process.")
    parser.add_argument("--cache", type=Path, default=CACHE, help="Keeps results of commits.")
    parser.add_argument(
        "-o", "--output", type=Path, help=f"Default, where all are run: {PAGE.name}."
    )
    asked = parser.parse_args()
    extent = Extent.QUICK if asked.quick else Extent.RUNS if asked.runs else Extent.ALL
    wanted = [c for c in cases(extent) if asked.only in f"{c.subject}: {c.command}"]
    old = commit(asked.old, asked.cache.resolve())
    run_all(old, wanted, asked.jobs, asked.timeout)
    if asked.only_old:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        new = Side("the working tree", ROOT, Path(folder))
        if asked.new:
            new = commit(asked.new, asked.cache.resolve())
        run_all(new, wanted, asked.jobs, asked.timeout)
        said = compare(old, new, wanted)
    listed = rows(said.found, EXPLAINED)
    text = page(old.name, new.name, extent, said, listed)
    whole = extent is not Extent.QUICK and not asked.only
    output = asked.output or (PAGE if whole else None)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text)
    _write_all(asked.cache / "differences.jsonl", said.found)
    print(text)
    return 1 if any(not row.words and not row.reason for row in listed) else 0


def _write_all(path: Path, found: Iterable[Difference]) -> None:
    """Write the differences of each command on each model, for those who look for a cause."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(astuple(one), default=str) + "\n" for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
