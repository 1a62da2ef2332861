"""Lies that a report tells: every number moved, with all that hangs on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lies.told import Lie, Told


def more(name: str, by: int) -> Callable[[Told], None]:
    """Move one of the edges' bytes, and the total with it."""

    def lie(told: Told) -> None:
        told.memory[name] += by
        told.memory["total"] += by
        told.note(total=told.memory["total"])

    return lie


def less_naive(told: Told) -> None:
    told.memory["naive"] -= 8
    told.note(naive=told.memory["naive"])


def less_live(told: Told) -> None:
    told.memory["live_peak"] -= 8
    told.note(live_peak=told.memory["live_peak"])


def resident(by: int) -> Callable[[Told], None]:
    """Move what a runtime holds; the plan keeps the file's order, whose number is the same."""

    def lie(told: Told) -> None:
        told.memory["resident"] += by
        told.report["original"]["resident"] += by

    return lie


def resident_is_live(told: Told) -> None:
    """Say that outputs and what is not written in place take nothing."""
    told.memory["resident"] = told.memory["live_peak"]
    told.report["original"]["resident"] = told.memory["live_peak"]


def original_resident(by: int) -> Callable[[Told], None]:
    """Move what a runtime holds in the file's order, and that alone."""

    def lie(told: Told) -> None:
        told.report["original"]["resident"] += by

    return lie


def no_original_resident(told: Told) -> None:
    told.report["original"]["resident"] = None


def no_resident(told: Told) -> None:
    told.memory["resident"] = told.report["original"]["resident"] = None


def less_planned(told: Told) -> None:
    told.memory["planned"] -= 64
    told.memory["total"] -= 64
    told.report["levels"]["2"] -= 64
    told.note(planned=told.memory["planned"], total=told.memory["total"])


def less_total(told: Told) -> None:
    told.memory["total"] -= 8
    told.note(total=told.memory["total"])


def less_at_level(told: Told) -> None:
    told.report["levels"]["2"] -= 64


def little_at_level(told: Told) -> None:
    """Say of level 1 what no pool of whole slots can take."""
    told.report["levels"]["1"] = told.report["levels"]["0"] = told.memory["planned"]


def more_at_level(told: Told) -> None:
    told.report["levels"]["1"] = told.report["levels"]["0"] + 64


def high_bound(told: Told) -> None:
    told.memory["order_bound"] = told.memory["live_peak"] + 8


def false_proof(told: Told) -> None:
    told.memory["order_bound"], told.memory["order_proved"] = 8, True


def count(name: str, by: int) -> Callable[[Told], None]:
    def lie(told: Told) -> None:
        told.report["model"][name] += by

    return lie


def coverage(told: Told) -> None:
    told.report["coverage"], told.report["partial"] = 0.5, True


def reuses(told: Told) -> None:
    told.report["reuses"] += 1


def peak_step(told: Told) -> None:
    told.report["peak"].update(step=10, node="n_k")


def peak_node(told: Told) -> None:
    told.report["peak"]["node"] = "n_y"


def peak_tensors(told: Told) -> None:
    told.report["peak"]["tensors"][0]["name"] = "y"


def bindings(told: Told) -> None:
    told.report["bindings"]["batch"]["value"] = 6


def dims(told: Told) -> None:
    told.plan["settings"]["dims"] = {"batch": 6}
    told.report["bindings"]["batch"]["value"] = 6


def low_bounds(told: Told) -> None:
    told.plan["settings"]["bounds"] = {"batch": "2..64"}


def arena_bound(told: Told) -> None:
    told.plan["arenas"][0]["lower_bound"] -= 64


def phases(told: Told) -> None:
    told.report["phases"]["backward"] += 1


def donated_bytes(told: Told) -> None:
    told.report["donated"]["bytes"] += 8
    told.memory["total"] -= 8
    told.note(total=told.memory["total"])


def donated_pair(told: Told) -> None:
    """Donate, in the plan and in the model, what later nodes read."""
    pairs = told.report["donated"]["pairs"]
    pairs[0][0], pairs[1][0] = pairs[1][0], pairs[0][0]
    import json

    told.say(told.model, "donated", json.dumps(pairs))


def foldable(told: Told) -> None:
    """Say that what the inputs make is made of weights alone."""
    first = told.report["peak"]["tensors"][0]
    name, size = first["name"], first["bytes"]
    told.report["foldable"] = [{"name": name, "op": "MatMul", "bytes": size, "left": ""}]
    told.memory["foldable"] = size


def recomputed(told: Told) -> None:
    told.report["recompute"]["nodes"] = 2


def model_digest(told: Told) -> None:
    told.report["model"]["sha256"] = told.plan["model"]["sha256"] = "0" * 64


def graph_digest(told: Told) -> None:
    told.plan["model"]["graph_sha256"] = "0" * 64


def stale_digest(told: Told) -> None:
    told.renews = False
    told.plan["settings"]["alignment"] = 64


def original_planned(told: Told) -> None:
    told.report["original"]["planned"] *= 2


def certainty(told: Told) -> None:
    """Say of sizes within bounds that they are exact."""
    certainty = told.report["certainty"]
    certainty |= dict.fromkeys(("naive", "live_peak", "planned", "resident", "total"), "exact")


def interface(told: Told) -> None:
    told.report["interface"][0]["bytes"] *= 2


def symbolic(name: str) -> Callable[[Told], None]:
    def lie(told: Told) -> None:
        told.report["symbolic"][name] = "8*batch"

    return lie


LIES: Mapping[str, Lie] = {
    "weights are fewer": ("flat", more("weights", -4), "weights is recorded as"),
    "inputs are fewer": ("flat", more("inputs", -4), "inputs is recorded as"),
    "outputs are fewer": ("flat", more("outputs", -4), "outputs is recorded as"),
    "naive is less": ("flat", less_naive, "naive is recorded as"),
    "live_peak is less": ("flat", less_live, "live_peak is recorded as"),
    "resident is less": ("flat", resident(-4), "(?<![.])resident is recorded as 1536, it is"),
    "resident is more": ("flat", resident(64), "(?<![.])resident is recorded as"),
    "resident is not said": ("flat", no_resident, "(?<![.])resident is recorded as nothing"),
    "resident is the live peak of a training step": (
        "training", resident_is_live, "(?<![.])resident is recorded as 76288, it is",
    ),
    "resident in the file's order is more": (
        "flat", original_resident(512), "original.resident is recorded as",
    ),
    "resident in the file's order is less": (
        "flat", original_resident(-4), "original.resident is recorded as",
    ),
    "resident in the file's order is not said": (
        "flat", no_original_resident, "original.resident is recorded as nothing",
    ),
    "planned is less": ("flat", less_planned, "planned is recorded as"),
    "total is less": ("flat", less_total, "total is recorded as"),
    "the bytes of the plan's own level are less": (
        "flat", less_at_level, "bytes of level 2 (is|are) recorded as",
    ),
    "the bytes of another level are less than what is live": (
        "flat", little_at_level, "bytes of level [01] (is|are) recorded as",
    ),
    "a higher level takes more": ("flat", more_at_level, "bytes of level [01] is recorded as"),
    "the bound of all orders is above the order": ("flat", high_bound, "order_bound is recorded"),
    "an order is proved over a lower bound": ("flat", false_proof, "order is recorded as proved|proved order"),
    "a node more is counted": ("flat", count("nodes", 1), "nodes is recorded as 13"),
    "a block more is counted": ("flat", count("blocks", 1), "blocks is recorded as 2"),
    "fewer tensors are counted": ("flat", count("intermediates", -1), "intermediates is recorded|coverage is"),
    "coverage is less": ("flat", coverage, "coverage is recorded as 0.5"),
    "a reuse more is counted": ("flat", reuses, "reuses is recorded as"),
    "the peak is at another step": ("flat", peak_step, "peak.step is recorded as 10"),
    "the peak of slots is at another step": ("slots", peak_step, "peak.step is recorded as 10"),
    "the peak is at another node": ("flat", peak_node, "peak.node is recorded|peak is recorded at"),
    "another tensor is at the peak": ("flat", peak_tensors, "peak.tensors"),
    "a binding is another than the plan's": ("bound", bindings, "bindings are recorded with 6"),
    "the plan is bound to other dims": ("bound", dims, "is recorded with the shape"),
    "the plan is for wider bounds": ("bounds", low_bounds, "is recorded with"),
    "an arena's bound is another": ("flat", arena_bound, "lower_bound of arena 0"),
    "a phase has a node more": ("flat", phases, "nodes of all phases"),
    "donated bytes are more": ("training", donated_bytes, "donated bytes"),
    "an input is donated to an output of another shape": (
        "training", donated_pair, "is donated to",
    ),
    "what inputs make is recorded as foldable": (
        "flat", foldable, "is recorded as foldable, but is not computed from weights alone",
    ),
    "nodes are recomputed that are not": ("flat", recomputed, "recomputed nodes is recorded as 2"),
    "the plan is of another file": ("flat", model_digest, "another file than the original"),
    "the plan is of another graph": ("flat", graph_digest, "another graph than the original"),
    "the plan is another than the model's": ("flat", stale_digest, "belongs to another model|digest is"),
    "naive is another in symbols": ("free", symbolic("naive"), "naive in symbols"),
    "the file's own order needs twice as much": (
        "flat", original_planned, "original.planned is recorded as",
    ),
    "sizes within bounds are exact": ("bounds", certainty, "certainty of live_peak is recorded as exact"),
    "an input is larger in the table": ("flat", interface, "bytes of input 'x' is recorded as 1024"),
    "planned is another in symbols": ("free", symbolic("planned"), "planned in symbols"),
}  # fmt: skip
"""What is said, and the lie."""
