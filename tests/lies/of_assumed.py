"""Lies about a plan over symbols: what was assumed of dims, the numbers there, the symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lies.told import Lie, Told


def assume(value: int, source: str = "assumed", name: str = "batch") -> Callable[[Told], None]:
    """Say that a dim has a number, and who said it; all figures stay."""

    def lie(told: Told) -> None:
        told.report.setdefault("bindings", {})[name] = {"value": value, "source": source}

    return lie


def assume_nothing(told: Told) -> None:
    told.report["bindings"] = {}


def assume_two(told: Told) -> None:
    """Say all figures but those of the edges at another number."""
    told.report["bindings"]["batch"]["value"] = 2
    memory, report = told.memory, told.report
    for name in ("naive", "live_peak", "resident", "planned"):
        memory[name] *= 2
    memory["total"] += memory["planned"] // 2
    report["levels"] = {level: 2 * size for level, size in report["levels"].items()}
    report["original"] = {name: 2 * size for name, size in report["original"].items()}
    for tensor in report["peak"]["tensors"]:
        tensor["bytes"] *= 2
    told.note(**{name: memory[name] for name in ("naive", "live_peak", "planned", "total")})


def assume_a_given(told: Told) -> None:
    told.plan["settings"]["dims"] = {"batch": 2}


def move(*names: str, by: int = 64) -> Callable[[Told], None]:
    """Move numbers of the report's memory."""

    def lie(told: Told) -> None:
        for name in names:
            told.memory[name] += by
        noted = {"naive", "live_peak", "planned", "total"} & set(names)
        told.note(**{name: told.memory[name] for name in noted})

    return lie


def less_planned(told: Told) -> None:
    move("planned", "total", "live_peak", by=-64)(told)
    told.report["levels"]["2"] -= 64


def level(name: str) -> Callable[[Told], None]:
    def lie(told: Told) -> None:
        told.report["levels"][name] += 64

    return lie


def original(told: Told) -> None:
    told.report["original"]["planned"] += 64


def resident(told: Told) -> None:
    for said in (told.memory, told.report["original"]):
        said["resident"] -= 16384


def peak(told: Told) -> None:
    told.report["peak"]["tensors"][0]["bytes"] += 64


def symbols(name: str, text: str | None) -> Callable[[Told], None]:
    """Say another expression of a number, or none."""

    def lie(told: Told) -> None:
        told.report["symbolic"].pop(name, None)
        if text is not None:
            told.report["symbolic"][name] = text

    return lie


def no_symbols(told: Told) -> None:
    told.report["symbolic"] = {}


LIES: Mapping[str, Lie] = {
    "another number is assumed": (
        "free", assume(2), "inputs is recorded as 3072|naive is recorded as 114816",
    ),
    "all but the edges are at another number": (
        "free", assume_two, "inputs is recorded as 3072, it is 6144",
    ),
    "no number is assumed": (
        "free", assume_nothing, "without dim 'batch'|naive is recorded .* it is nothing",
    ),
    "nothing is assumed to be something": (
        "free", assume(0), "0 for dim 'batch'|naive is recorded .* it is 0",
    ),
    "a dim is assumed that the model has not": (
        "free", assume(1, name="other"), "dim 'other', which is not free",
    ),
    "a dim is bound that is a number": (
        "flat", assume(8), "dim 'batch', which is not free",
    ),
    "a dim is run outside of its bounds": (
        "bounds", assume(64), "64 for dim 'batch', its bounds are 2 to 16",
    ),
    "what was assumed is recorded as given": (
        "free", assume(1, "given"), "'batch' as given, and the settings do not",
    ),
    "what was assumed is recorded as read off inputs": (
        "free", assume(1, "inputs"), "'batch' as inputs, and the settings do not",
    ),
    "the settings give another number than assumed": (
        "free", assume_a_given, "is recorded with the shape",
    ),
    "a given number is left out": (
        "bound", assume_nothing, "without dim 'batch'",
    ),
    "the total is less at the number assumed": (
        "free", move("total", by=-8), "total is recorded as",
    ),
    "inputs are more at the number assumed": (
        "free", move("inputs", "total"), "inputs is recorded as",
    ),
    "outputs are more at the number assumed": (
        "free", move("outputs", "total"), "outputs is recorded as",
    ),
    "weights are fewer than the total in symbols has": (
        "free", move("weights", "total", by=-4), "weights is recorded as|total in symbols",
    ),
    "naive is more at the number assumed": ("free", move("naive"), "naive is recorded as"),
    "live_peak is less at the number assumed": (
        "free", move("live_peak", by=-64), "live_peak is recorded as",
    ),
    "resident is less at the number assumed": (
        "free", resident, "(?<![.])resident is recorded as 32768",
    ),
    "resident is another in symbols": (
        "free", symbols("resident", "49152*batch**2"), "resident in symbols",
    ),
    "planned is less at the number assumed": ("free", less_planned, "planned is recorded as"),
    "a level's bytes are not what its symbols come to": (
        "free", level("1"), "the bytes of level 1 is recorded as",
    ),
    "the file's own order takes more than itself": (
        "free", original, "original.planned is recorded as",
    ),
    "a tensor at the peak is larger at the number assumed": ("free", peak, "peak.tensors"),
    "inputs are others in symbols": (
        "free", symbols("inputs", "3073*batch - 1"), "(inputs|total) in symbols",
    ),
    "outputs are others in symbols": (
        "free", symbols("outputs", "40*batch**2"), "(outputs|total) in symbols",
    ),
    "live_peak is another in symbols": (
        "free", symbols("live_peak", "32768*batch**2"), "live_peak in symbols",
    ),
    "the total is another in symbols": (
        "free", symbols("total", "35879*batch + 20801"), "total in symbols",
    ),
    "the plan's own level is another in symbols": (
        "free", symbols("level 2", "32767*batch + 1"), "level 2 in symbols",
    ),
    "another level is another in symbols": (
        "free", symbols("level 0", "49280*batch + 64"), "the bytes of level 0 is recorded as",
    ),
    "a number has no symbols": ("free", symbols("naive", None), "naive in symbols"),
    "no number has symbols": ("free", no_symbols, "in symbols is recorded as nothing"),
    "an unknown number has symbols": (
        "free", symbols("saved", "8*batch"), "saved in symbols",
    ),
    "a number is symbols": (
        "flat", symbols("naive", "8*batch"), "symbols",
    ),
}  # fmt: skip
"""What is said, and the lie."""
