"""Plans, written models and certificates in which one value after the other is forged."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import onnx

from builders import HEAD
from cache_models import Shape, decoder
from lies.leaves import changes, is_in, plan_schema
from lies.told import BASES, SAMPLES, Told, parsed
from memplan_cli import Settings, optimize
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.api.schema import schema
from memplan_cli.core.check import Check
from memplan_cli.errors import MemplanError
from memplan_cli.planning.plan_file import checked_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from lies.leaves import Json
    from lies.leaves import Path as Place

FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"


def unchecked_tables() -> list[dict[str, list[str]]]:
    """Return the tables of unchecked fields in the documentation: kind of fields -> their paths."""
    head = "| not checked | fields |\n|---|---|\n"
    tables = []
    for text in FORMATS.read_text().split(head)[1:]:
        rows = [row.split("|")[1:3] for row in text.partition("\n\n")[0].splitlines()]
        # In parentheses: when a field is not checked, or what of it.
        tables.append(
            {
                kind.strip(): re.findall(r"`([^`]*)`", re.sub(r"\([^)]*\)", "", fields))
                for kind, fields in rows
            }
        )
    return tables


_FIELDS, _CERTIFICATE_FIELDS = (
    [path for paths in table.values() for path in paths] for table in unchecked_tables()
)
PLAN_UNCHECKED = tuple(path for path in _FIELDS if not path.startswith("pkg."))
NOTES_UNCHECKED = tuple(path for path in _FIELDS if path.startswith("pkg."))
CERTIFICATE_UNCHECKED = tuple(_CERTIFICATE_FIELDS)

_FOLDED = f"""{HEAD}
folded (float[64] x) => (float[64] y) <float[64] w = {{{", ".join(["1"] * 64)}}}> {{
    [n_a] a = Neg(w)  [n_b] b = Exp(a)  [n_c] c = Add(x, b)  [n_y] y = Relu(c)
}}"""
_OBSERVED = f"""{HEAD}
observed (float[8] x) => (float[1, n] y) {{
    [n_a] a = NonZero(x)  [n_b] b = Neg(a)  [n_c] c = Cast <to = 1> (b)  [n_y] y = Relu(c)
}}"""
_WIDE = f"""{HEAD}
wide (float[8, 16] x) => (float[8, 16] y) {{
    [n_a] a = Exp(x)  [n_b] b = Concat <axis = 1> (a, a, a)  [n_c] c = Exp(b)  [n_d] d = Relu(c)
    [n_e] e = ReduceSum <keepdims = 0> (d)  [n_y] y = Mul(a, e)
}}"""


_ON_CPU = Check(provider="cpu")


@dataclass(frozen=True)
class Case:
    """A model, a file of the samples or a text, and how it is planned.

    Attributes:
        check: how the plan is validated by a run, so that its report has settings and measurements.
    """

    source: str | onnx.ModelProto
    settings: Settings = field(default_factory=Settings)
    profiles: Mapping[str, tuple[int, ...]] | None = None
    check: Check | None = None


CASES: Mapping[str, Case] = {
    **{name: Case(*base) for name, base in BASES.items()},
    "exposed": Case(BASES["flat"][0], Settings(order="keep", exclude=("c",), expose=True)),
    "profiles": Case("dynamic_batch.onnx", profiles={"batch": (1, 4)}),
    "recomputed": Case(_WIDE, Settings(recompute="auto", budget=3300)),
    "recomputed to a share": Case(_WIDE, Settings(recompute="auto", budget=0.9)),
    "chunked": Case("branchy_cnn.onnx", Settings(chunk="auto", budget=0.6)),
    "folded": Case(_FOLDED, Settings(fold_constants=True)),
    "observed": Case(_OBSERVED),
    "measured": Case(BASES["flat"][0], check=_ON_CPU),
    "measured, unoptimized": Case(
        BASES["flat"][0], check=Check("cpu", reference="unoptimized")
    ),
    "measured, donated": Case(
        "train_mlp.onnx", Settings(donate={"in.*": "new.*"}), check=_ON_CPU
    ),
    "for the CPU": Case("branchy_cnn.onnx", Settings(target="cpu"), check=_ON_CPU),
    "caches": Case(
        decoder(Shape()), Settings(kv_cache="in-place", capacity=16), check=_ON_CPU
    ),
}


@dataclass(frozen=True)
class Files:
    """The original, the plan and the written model of a case."""

    original: bytes
    plan: Json
    written: bytes


@cache
def files_of(name: str) -> Files:
    """Return the files that memplan writes for a case."""
    case = CASES[name]
    with TemporaryDirectory() as folder:
        original = Path(folder) / "net.onnx"
        if isinstance(case.source, onnx.ModelProto):
            onnx.save(case.source, original)
        elif case.source.endswith(".onnx"):
            original.write_bytes((SAMPLES / case.source).read_bytes())
        else:
            onnx.save(parsed(case.source), original)
        optimize(original, case.settings, check=case.check, profiles=case.profiles)
        written = original.with_name("net.memplan.onnx")
        plan = json.loads(written.with_suffix(".json").read_text())
        return Files(original.read_bytes(), plan, written.read_bytes())


class Forger:
    """Writes forged plans and models of one case, and tells whether memplan accepts them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.files = files_of(name)
        self.original = folder / "net.onnx"
        self.original.write_bytes(self.files.original)

    def model(self) -> onnx.ModelProto:
        """Return the written model, as memplan wrote it."""
        return onnx.load_from_string(self.files.written)

    def plan_changes(self, rows: int | None = None) -> Iterator[tuple[Place, Json]]:
        """Yield the place of each value of the plan, with a plan in which it is forged.

        Values that the plan has in two places are forged in both. ``rows`` limits the items of lists.
        """
        for place, plan in changes(self.files.plan, plan_schema(), rows):
            forged = dict(plan)
            if place == ("model", "sha256"):
                model = {**plan["report"]["model"], "sha256": plan["model"]["sha256"]}
                forged["report"] = {**plan["report"], "model": model}
            elif place[0] == "unplanned":
                forged["report"] = {**plan["report"], "unplanned": plan["unplanned"]}
            elif place[:2] == ("report", "unplanned"):
                forged["unplanned"] = plan["report"]["unplanned"]
            yield place, forged

    def accepts_plan(self, plan: Json) -> bool:
        """Whether a plan is accepted, with all notes on it in the model renewed."""
        try:
            digest = checked_plan(plan).digest
        except MemplanError:
            return False
        model = self.model()
        told, report = Told(plan, model), plan["report"]
        totals = ("naive", "live_peak", "planned", "total")
        known = {name: report["memory"][name] for name in totals}
        known = {name: value for name, value in known.items() if value is not None}
        told.note(digest=digest, level=report["level"], **known)
        pairs = report["donated"]["pairs"]
        told.say(model, "donated", json.dumps(pairs) if pairs else None)
        validation = report["validation"] or {}
        is_unoptimized = validation.get("reference") == "unoptimized"
        told.say(model, "reference", "unoptimized" if is_unoptimized else None)
        runtime = report["runtime"]
        if runtime and runtime["settings"]:
            noted = {"provider": runtime["provider"], "settings": runtime["settings"]}
            told.say(model, "settings", json.dumps(noted))
        return self._accepts(plan, model)

    def note_changes(self) -> Iterator[tuple[str, onnx.ModelProto]]:
        """Yield the key of each note of the model, of its nodes and values, with a model that forges it."""
        honest = self.model()
        for index, (_, entry) in enumerate(_items_with_entries(honest)):
            for forged in (*_other_texts(entry.value), None):
                model = self.model()
                item, same_entry = _items_with_entries(model)[index]
                if forged is None:
                    item.metadata_props.remove(same_entry)
                else:
                    same_entry.value = forged
                yield entry.key, model

    def accepts_model(self, model: onnx.ModelProto) -> bool:
        """Whether a written model is accepted with the plan that nobody changed."""
        return self._accepts(self.files.plan, model)

    def _accepts(self, plan: Json, model: onnx.ModelProto) -> bool:
        try:
            found = compare_with_model(model, checked_plan(plan), self.original)
        except MemplanError:
            return False
        return not found.disagreements


def _is_observed(plan: Json) -> bool:
    return bool(plan["settings"]["profile_shapes"])


def _has_other_order(plan: Json) -> bool:
    report = plan["report"]
    has_copies = report["recompute"]["nodes"] or "chunked" in report
    return report["orders"]["chosen"] != "file" or bool(has_copies)


def _is_budget_a_share(plan: Json) -> bool:
    return isinstance(plan["settings"]["budget"], float)


ONLY_IF: Mapping[str, Callable[[Json], bool]] = {
    "report.original": _has_other_order,
    "report.recompute.budget": _is_budget_a_share,
    "report.chunked.budget": _is_budget_a_share,
    "report.runtime.version": lambda plan: plan["report"].get("target") is None,
    "settings.budget": _is_budget_a_share,
    "settings.dims": _is_observed,
    "settings.shapes": _is_observed,
    "settings.expose": lambda plan: not any(row["pinned"] for row in plan["tensors"]),
    "report.certainty.inputs": _is_observed,
    "report.certainty.outputs": _is_observed,
    "report.interface": _is_observed,
}
"""Fields that are unchecked in some plans -> whether they are in a plan."""


def is_unchecked(place: Place, plan: Json) -> bool:
    """Whether a value of a plan is stated to be unchecked."""
    if place[:2] == ("report", "levels"):
        return place[2:] != (str(plan["report"]["level"]),)
    if is_in(place, ["unplanned.*.reason", "report.unplanned.*.reason"]):
        rows = plan["report"]["unplanned"]
        return rows[place[-2]]["name"] not in {row["name"] for row in plan["tensors"]}
    return any(
        is_in(place, [path]) and ONLY_IF.get(path, lambda _: True)(plan)
        for path in PLAN_UNCHECKED
    )


def unchecked_notes(plan: Json) -> set[str]:
    """Return the keys of the model's notes that are stated to be unchecked beside a plan."""
    has_settings = bool((plan["report"]["runtime"] or {}).get("settings"))
    return {
        key for key in NOTES_UNCHECKED if key != "pkg.memplan.settings" or not has_settings
    }


def certificate_changes(certificate: Json) -> Iterator[tuple[Place, Json]]:
    """Yield the place of each value of a certificate, with a certificate in which it is forged."""
    return changes(certificate, schema("certificate"))


def _items_with_entries(model: onnx.ModelProto) -> list[tuple[Any, Any]]:
    """Return each metadata entry of memplan's with the message that has it."""
    graph = model.graph
    items = (model, *graph.node, *graph.value_info, *graph.input, *graph.output)
    return [
        (item, entry)
        for item in items
        for entry in item.metadata_props
        if entry.key.startswith("pkg.memplan.") or entry.key == "ort_config"
    ]


def _other_texts(text: str) -> Iterator[str]:
    """Yield other texts for a note: of JSON with each value forged, else with other words or numbers."""
    if text[:1] in ("{", "["):
        for _, forged in changes(json.loads(text), {}):
            yield json.dumps(forged)
    else:
        yield str(int(text) + 1) if text.isdecimal() else f"{text}x"
