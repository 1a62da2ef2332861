"""Tell every lie of the table to `memplan validate`, forge every value, then hold real plans against models.

    PYTHONPATH=tests python -m tests.benchmarks.lies [--only TEXT] [--no-table]

No lie may pass, and each must be refused for what it is; a forged value may pass only where it is stated to
be unchecked; nothing that memplan wrote itself may be refused. Nothing is run to find lies.

Guards the claim of docs/measurements/trust.md: `memplan validate` refuses plans that do not describe their
model, and accepts those that do.
"""

from __future__ import annotations

import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from re import search
from typing import TYPE_CHECKING

from lies import of_assumed, of_models, of_numbers, of_plans
from lies.forged import (
    CASES,
    NOTES_UNCHECKED,
    PLAN_UNCHECKED,
    Forger,
    is_unchecked,
    unchecked_notes,
)
from lies.leaves import is_in
from lies.told import disagreement, refusal, tell
from memplan_cli import Settings, optimize
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import MemplanError, SettingsError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import read_plan

from .cases import asked, cell, publish, run_all
from .models import ROOT, SAMPLES, SHARED, bindings
from .scale import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PAGE = ROOT / "docs" / "measurements" / "trust.md"
LIES = {**of_plans.LIES, **of_models.LIES, **of_numbers.LIES, **of_assumed.LIES}
LARGE = 65_000
LONG = 100_000
"""Bytes of a file above which a model is planned in its own order: that takes seconds."""


@dataclass(frozen=True)
class Told:
    """What became of a lie."""

    base: str
    said: str
    right: bool
    """Whether both the command and the check against the model name the reason."""


@dataclass(frozen=True)
class Held:
    """What became of a plan that nobody changed."""

    name: str
    plans: int
    nodes: int = 0
    tensors: int = 0
    believed: int = 0
    seconds: float = 0.0
    faults: tuple[str, ...] = ()


def told(name: str) -> Told:
    """Tell one lie in a folder of its own."""
    base, lie, reason = LIES[name]
    with tempfile.TemporaryDirectory() as folder:
        written = tell(base, lie, Path(folder))
        said, by_model = refusal(written), disagreement(written)
    text = said.replace(f"{written.with_suffix('.json')}: ", "").replace(folder, "FOLDER")
    return Told(base, text, bool(search(reason, said) and search(reason, by_model)))


@dataclass(frozen=True)
class Forged:
    """What became of the values of a case, each forged in turn.

    Attributes:
        tried: forged plans, and models with forged notes.
        refused: those that were refused.
        unchecked: the fields, stated to be unchecked, in which one was accepted.
        wrong: the fields in which one was accepted that are not.
    """

    tried: int
    refused: int
    unchecked: frozenset[str]
    wrong: tuple[str, ...]


def forged(name: str) -> Forged:
    """Forge each value of a case in turn."""
    with tempfile.TemporaryDirectory() as folder:
        forger = Forger(name, Path(folder))
        plan = forger.files.plan
        assert forger.accepts_plan(plan), name
        plans = [(place, forger.accepts_plan(each)) for place, each in forger.plan_changes()]
        notes = [(key, forger.accepts_model(each)) for key, each in forger.note_changes()]
    places = {place for place, is_accepted in plans if is_accepted}
    keys = {key for key, is_accepted in notes if is_accepted}
    wrong = {".".join(map(str, place)) for place in places if not is_unchecked(place, plan)}
    unchecked = {
        field
        for field in PLAN_UNCHECKED
        if any(is_in(place, [field]) and is_unchecked(place, plan) for place in places)
    }
    notes_unchecked = unchecked_notes(plan)
    accepted = [is_accepted for _, is_accepted in (*plans, *notes)]
    return Forged(
        len(accepted),
        accepted.count(False),
        frozenset(unchecked | (keys & notes_unchecked)),
        tuple(sorted(wrong | (keys - notes_unchecked))),
    )


def held(model: Path, variants: Mapping[str, Settings]) -> Held:
    """Plan a model in several ways, and hold each plan against the file that was written."""
    plans, most, faults = 0, Held(model.name, 0), []
    with tempfile.TemporaryDirectory() as folder:
        for label, settings in variants.items():
            # What one plan wrote, a file of weights too, would be in the way of the next.
            for left in Path(folder).iterdir():
                left.unlink()
            out = Path(folder) / "net.memplan.onnx"
            try:
                optimize(model, settings, out=out, check=None)
                if not out.exists():
                    continue  # a budget that nothing meets
                plan, written = read_plan(out.with_suffix(".json")), load_model(out)
                start = time.process_time()
                found = compare_with_model(written, plan, model)
                seconds = time.process_time() - start
            except SettingsError:
                continue  # the model has no such inputs, or sizes that are no numbers
            except MemplanError as error:
                faults.append(f"{label}: {error}")
                continue
            out.unlink()
            plans += 1
            faults += [f"{label}: {each}" for each in found.disagreements]
            believed = max(most.believed, found.unverified_sizes)
            seconds = max(most.seconds, seconds)
            most = Held(model.name, plans, found.nodes, found.tensors, believed, seconds)
    return Held(*_fields(most, plans), faults=tuple(faults))


def _fields(most: Held, plans: int) -> tuple[str, int, int, int, int, float]:
    return most.name, plans, most.nodes, most.tensors, most.believed, most.seconds


def variants(model: Path) -> dict[str, Settings]:
    """Return the ways to plan a model: levels, orders, symbols and what they are bound to."""
    dims = {n: int(v) for n, _, v in (item.partition("=") for item in bindings(model))}
    if model.stat().st_size > LONG and model.parent != SAMPLES:
        keep = {f"order keep, level {n}": Settings(order="keep", level=n) for n in (1, 2)}
        return keep | ({"bound": Settings(order="keep", dims=dims)} if dims else {})
    found = {f"level {level}": Settings(level=level) for level in (0, 1, 2)}
    found["order keep"] = Settings(order="keep")
    found["alignment 1"] = Settings(alignment=1)
    if dims:
        found["bound"] = Settings(dims=dims)
        found["bounds"] = Settings(
            bounds={name: DimRange(1, value) for name, value in dims.items()}
        )
        found["bounds, level 1"] = Settings(
            level=1, bounds={name: DimRange(1, value) for name, value in dims.items()}
        )
    if model.stem.startswith("train_"):
        found["donated"] = Settings(donate={"in.*": "new.*"})
        found["recomputed"] = Settings(recompute="auto", budget=0.9)
    if model.parent == SAMPLES and model.stem != "nested_if_loop":
        found["excluded"] = Settings(exclude=("*1*",))
        found["exposed"] = Settings(exclude=("*1*",), expose=True)
        found["target cpu"] = Settings(target="cpu")
    return found


def real(path: Path) -> Held:
    """Hold all plans of a model, or those of the large one in its own order."""
    if path.name != "large":
        return held(path, variants(path))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{LARGE} nodes"
        synthetic(LARGE, model)
        return held(model, {"order keep": Settings(order="keep")})


def page(
    lies: Mapping[str, Told], forgeries: Mapping[str, Forged], plans: Mapping[str, Held]
) -> Iterator[str]:
    """Yield the page's lines."""
    wrong = [name for name, found in lies.items() if not found.right]
    yield "# Trust"
    yield ""
    yield "Made by `PYTHONPATH=tests python -m tests.benchmarks.lies`, Python"
    yield f"{platform.python_version()}, on a machine that others used too."
    yield ""
    yield f"`memplan validate` was told {len(lies)} lies, without `--replay`, the plan's digest renewed in"
    yield "the model wherever the lie is not the digest itself. It refused"
    yield f"{sum(bool(found.said) for found in lies.values())}, {len(lies) - len(wrong)} of them for"
    yield "what they are, and so did the check against the model alone, without the count of the"
    yield "plan file that comes before it. Nothing was run."
    yield ""
    count = sum(found.plans for found in plans.values())
    refused = sum(len(found.faults) for found in plans.values())
    yield f"Of {count} plans of {len(plans)} models that nobody changed, {refused} were refused: at three"
    yield "levels, with symbols free, bound and bounded, tensors excluded and exposed, inputs donated,"
    yield "nodes recomputed, for the CPU's own graph, as each model allows; files over 100 kB in their"
    yield "own order, at levels 1 and 2."
    yield ""
    yield "## Lies"
    yield ""
    yield "| lie | told of | refused because |"
    yield "|---|---|---|"
    for name, found in lies.items():
        mark = "" if found.right else " **(not for what it is)**"
        yield f"| {name} | {found.base} | {cell(found.said, 150)}{mark} |"
    yield ""
    yield "## Forged values"
    yield ""
    yield "Each value of a plan and of its model's notes was forged in turn: numbers, words, bools, items and keys."
    yield "The digest, the totals in the model and values that the plan has twice were forged alike. *Unchecked* are"
    yield "accepted values of fields that [are stated to be unchecked](../formats.md#what-validate-checks)."
    yield ""
    yield "| plan | forged | refused | unchecked | accepted elsewhere |"
    yield "|---|---:|---:|---:|---|"
    for name, case in forgeries.items():
        # Accepted values are in unchecked fields, but for those in the last column.
        counts = f"{case.tried} | {case.refused} | {case.tried - case.refused}"
        yield f"| {name} | {counts} | {cell(', '.join(case.wrong), 200)} |"
    yield ""
    accepted = frozenset[str]().union(*(case.unchecked for case in forgeries.values()))
    unused = [field for field in (*PLAN_UNCHECKED, *NOTES_UNCHECKED) if field not in accepted]
    yield f"Unchecked fields in which no single forged value was accepted: {', '.join(unused) or 'none'}."
    yield ""
    yield "## Plans that nobody changed"
    yield ""
    yield "*Believed* are tensors whose size the model does not say, only its plan. Seconds are those"
    yield "of processor time that the slowest check of a plan took, once both files were read."
    yield ""
    yield "| model | plans | nodes | tensors | believed | seconds |  |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for each in plans.values():
        cells = [each.name, each.plans, each.nodes, each.tensors, each.believed]
        row = " | ".join(map(str, cells))
        yield f"| {row} | {each.seconds:.2f} | {cell('; '.join(each.faults), 200)} |"


def main() -> None:
    """Tell what is asked for, and write the page if that is all."""
    words = asked(__doc__)
    lies = run_all({name: name for name in LIES}, told, words)
    forgeries = run_all({name: name for name in CASES}, forged, words)
    paths = [*SAMPLES.glob("*.onnx"), *SHARED.glob("*.onnx"), *SHARED.glob("messy/*.onnx")]
    models = {path.stem: path for path in sorted(paths, key=_size)}
    models["large"] = Path("large")
    do: Callable[[Path], Held] = real
    plans = run_all(models, do, words)
    publish(page(lies, forgeries, plans), PAGE, words)
    wrong = [name for name, found in lies.items() if not found.right]
    wrong += [name for name, found in forgeries.items() if found.wrong]
    wrong += [name for name, found in plans.items() if found.faults]
    raise SystemExit(f"faults: {', '.join(wrong)}" if wrong else 0)


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


if __name__ == "__main__":
    main()
