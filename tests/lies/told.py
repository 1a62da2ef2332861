"""Written models and plans that somebody has changed, with the digest made good again."""

from __future__ import annotations

import json
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import onnx

from builders import HEAD
from memplan_cli import Check, Settings, optimize, validate
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.core.results.timeline import occupancies
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import MemplanError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.planning.print_log import reuses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memplan_cli.core.results.timeline import Occupancy

SAMPLES = Path(__file__).parents[2] / "sample_models"

FLAT = (
    HEAD
    + """
flat (float[8, 16] x, float[16, 16] w) => (float[8, 16] y)
<float[16] bias = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>
{
    [n_a] a = MatMul(x, w)
    [n_b] b = Relu(a)
    [n_c] c = MatMul(b, w)
    [n_d] d = Add(b, bias)
    [n_e] e = Reshape(d, shape)
    [n_f] f = MatMul(e, w)
    [n_g] g = Softmax(c)
    [n_h] h = MatMul(g, w)
    [n_i] i = ReduceSum <keepdims = 1> (h)
    [n_j] j = Mul(f, i)
    [n_k] k = MatMul(j, w)
    [n_y] y = Add(k, h)
}
"""
)
"""Products, a view, results in place and broadcasts, each node with a name."""

UNNAMED = (
    HEAD
    + """
unnamed (float[8, 16] x) => (float[8, 16] y)
{
    a = Relu(x)
    b = Sigmoid(a)
    c = Exp(a)
    [n_d] d = Add(b, c)
    y = Tanh(d)
}
"""
)


def parsed(text: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text.replace("(d, shape)", "(d, d_shape)"))
    if "d_shape" in text.replace("(d, shape)", "(d, d_shape)"):
        shape = onnx.helper.make_tensor("d_shape", onnx.TensorProto.INT64, [2], [8, 16])
        made.graph.initializer.append(shape)
    return made


BASES: dict[str, tuple[str, Settings]] = {
    "flat": (FLAT, Settings(order="keep")),
    "without notes": (FLAT, Settings(order="keep", notes="plan")),
    "excluded": (FLAT, Settings(order="keep", exclude=("c",))),
    "whole slots": (FLAT, Settings(order="keep", level=0)),
    "slots": (FLAT, Settings(order="keep", level=1)),
    "unnamed": (UNNAMED, Settings(order="keep")),
    "nested": ("nested_if_loop.onnx", Settings(order="keep")),
    "training": ("train_mlp.onnx", Settings(donate={"in.*": "new.*"})),
    "free": ("dynamic_batch.onnx", Settings()),
    "bound": ("dynamic_batch.onnx", Settings(dims={"batch": 5})),
    "bounds": ("dynamic_batch.onnx", Settings(bounds={"batch": DimRange(2, 16)})),
}
"""What lies are told about: a model, or a file of the samples, and how it is planned."""


@dataclass
class Told:
    """A plan and its written model, to be changed."""

    plan: dict[str, Any]
    model: onnx.ModelProto
    renews: bool = True
    """Whether the model's note gets the digest of the plan as it is then."""

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = self.plan["report"]
        return found

    @property
    def memory(self) -> dict[str, Any]:
        found: dict[str, Any] = self.report["memory"]
        return found

    def tensor(self, name: str) -> dict[str, Any]:
        (found,) = (row for row in self.plan["tensors"] if row["name"] == name)
        assert isinstance(found, dict)
        return found

    def node(self, name: str) -> onnx.NodeProto:
        (found,) = (node for node in _nodes(self.model.graph) if node.name == name)
        return found

    def value(self, name: str) -> onnx.ValueInfoProto:
        values = (
            *self.model.graph.value_info,
            *self.model.graph.input,
            *self.model.graph.output,
        )
        return next(value for value in values if value.name == name)

    def say(self, item: Any, key: str, value: object) -> None:  # noqa: ANN401 - any message
        """Write an entry of the plan's into a message's metadata, or drop it for None."""
        kept = [entry for entry in item.metadata_props if entry.key != f"pkg.memplan.{key}"]
        kept = deepcopy(kept)
        del item.metadata_props[:]
        item.metadata_props.extend(kept)
        if value is not None:
            item.metadata_props.add(key=f"pkg.memplan.{key}", value=str(value))

    def note(self, **said: object) -> None:
        """Say something else in the model's own note."""
        entry = next(e for e in self.model.metadata_props if e.key == "pkg.memplan.plan")
        pairs = dict(pair.split("=") for pair in entry.value.split(","))
        pairs |= {key: str(value) for key, value in said.items()}
        entry.value = ",".join(f"{key}={value}" for key, value in pairs.items())

    def settle(self) -> None:
        """Count all numbers of a flat plan again from its rows, and note them in the model."""
        self._settle_arena()
        rows, memory = self.plan["tensors"], self.memory
        releases: defaultdict[int, list[str]] = defaultdict(list)
        for row in rows:
            if row["pinned"] is None:
                releases[row["last"] - 1].append(row["name"])
        names = self.plan["order"][0]["nodes"]
        self.plan["releases"] = [
            {"step": step, "node": names[step], "tensors": sorted(dying)}
            for step, dying in sorted(releases.items())
        ]
        memory["naive"] = sum(row["bytes"] for row in rows)
        memory["planned"] = self.plan["arenas"][0]["height"]
        apart = _most([{**row, "alias_of": None} for row in rows], 1)
        levels, least = self.report["levels"], max(apart, memory["planned"])
        levels |= {name: max(levels[name], least) for name in "01" if name in levels}
        levels[str(self.report["level"])] = memory["planned"]
        edges = memory["weights"] + memory["inputs"] + memory["outputs"]
        memory["total"] = edges + memory["planned"]
        live = _most(rows, 1)
        memory["live_peak"], memory["order_bound"] = live, None
        memory["order_proved"] = False
        plan = plan_from_json(self.plan)
        storages = [each for each in occupancies(plan) if each.bytes]
        sums = [
            sum(each.bytes for each in storages if each.live_at(tick))
            for tick in range(len(names))
        ]
        step = sums.index(live)
        live_at_peak = sorted(
            (-each.bytes, _youngest(each, step)) for each in storages if each.live_at(step)
        )
        tensors = [{"name": name, "bytes": -size} for size, name in live_at_peak]
        self.report["peak"] = {"step": step, "node": names[step], "tensors": tensors}
        self.report["reuses"] = sum(reuse.donor is not None for reuse in reuses(plan.tensors))
        totals = ("naive", "live_peak", "planned", "total")
        self.note(**{name: memory[name] for name in totals})
        self.renote()

    def _settle_arena(self) -> None:
        arena, rows = self.plan["arenas"][0], self.plan["tensors"]
        top = max(row["offset"] + row["bytes"] for row in rows)
        arena["height"] = -(-top // arena["alignment"]) * arena["alignment"]
        arena["lower_bound"] = _most(rows, arena["alignment"])

    def renote(self) -> None:
        """Write the notes of a flat plan on nodes and values again."""
        placed = {row["name"]: row for row in self.plan["tensors"]}
        for value in self.model.graph.value_info:
            row = placed.get(value.name)
            for key in ("arena", "offset", "bytes", "first", "last", "alias_of"):
                self.say(value, key, None if row is None else row[key])
        released = {item["step"]: item["tensors"] for item in self.plan["releases"]}
        for step, node in enumerate(self.model.graph.node):
            self.say(node, "step", step)
            dying = released.get(step)
            self.say(node, "release", None if dying is None else json.dumps(dying))


Lie = tuple[str, "Callable[[Told], object]", str]
"""The base that it is said of, what is changed, and why that is refused."""


def nothing(told: Told) -> None:
    """Change nothing."""
    del told


def _most(rows: list[dict[str, Any]], alignment: int) -> int:
    """Return the most bytes live at one tick, what shares them counted once."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        size = -(-row["bytes"] // alignment) * alignment
        spans = groups.setdefault(row["alias_of"] or row["name"], [1 << 60, 0, size])
        spans[:2] = min(spans[0], row["first"]), max(spans[1], row["last"])
    changes: defaultdict[int, int] = defaultdict(int)
    for first, last, size in groups.values():
        changes[first] += size
        changes[last] -= size
    return max(accumulate(changes[tick] for tick in sorted(changes)))


def _youngest(storage: Occupancy, tick: int) -> str:
    """Return the tensor that was written last of those that need a storage at a tick."""
    ages = ((t.first if t.first <= tick < t.last else -1, t.id) for t in storage.members)
    return max(ages)[1]


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


@cache
def honest(base: str) -> tuple[bytes, str, bytes]:
    """Return the original, the plan and the written model of a base, as they are in files."""
    source, settings = BASES[base]
    with TemporaryDirectory() as name:
        folder = Path(name)
        original = folder / "net.onnx"
        if source.endswith(".onnx"):
            original.write_bytes((SAMPLES / source).read_bytes())
        else:
            onnx.save(parsed(source), original)
        # Donated pairs need a run without optimization, of which the bits of this step differ from a default run.
        check = Check("cpu", depth="outputs", reference="unoptimized")
        optimize(original, settings, check=check if settings.donate else None)
        written = original.with_name("net.memplan.onnx")
        plan = written.with_suffix(".json").read_text()
        return original.read_bytes(), plan, written.read_bytes()


def tell(base: str, lie: Callable[[Told], object], folder: Path) -> Path:
    """Write a base into a folder with a lie in it; return the written model."""
    source, plan, data = honest(base)
    told = Told(json.loads(plan), onnx.load_from_string(data))
    lie(told)
    (folder / "net.onnx").write_bytes(source)
    written = folder / "net.memplan.onnx"
    if told.renews:
        told.note(digest=plan_from_json(told.plan).digest)
    onnx.save(told.model, written)
    written.with_suffix(".json").write_text(json.dumps(told.plan))
    return written


def refusal(written: Path) -> str:
    """Return why `memplan validate` refuses a written model; empty where it does not."""
    try:
        proof = validate(written, written.with_name("net.onnx"))
    except MemplanError as error:
        return str(error)
    if proof.passed:
        return ""
    return "; ".join(proof.validation.notes)


def disagreement(written: Path) -> str:
    """Return where the model and the plan disagree, the plan read without a count of it."""
    plan = plan_from_json(json.loads(written.with_suffix(".json").read_text()))
    original = written.with_name("net.onnx")
    try:
        return "; ".join(compare_with_model(load_model(written), plan, original).disagreements)
    except MemplanError as error:
        return str(error)
