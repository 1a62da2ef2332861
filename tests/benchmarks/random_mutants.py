"""Edit the code at random and see that a test fails: mutants that nobody picked.

    python -m tests.benchmarks.random_mutants [--seed 1] [--count 1000] [--room ROOM]

A sample keeps its mutants while their functions stay: each has a number from the seed and its
own text, and the least of each room are taken. What was run is kept in out/random_mutants and
not run again; --again runs the survivors once more. Mutants judged to be equivalent are in
equivalent_mutants.json, each with its reason.

Guards the claim of docs/measurements/random_mutants.md: tests find nearly every random edit.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from .cases import cell
from .random_edits import Mutant, mutants

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .random_runs import Covered, Ending, Job

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "out" / "random_mutants"
PAGE = ROOT / "docs" / "measurements" / "random_mutants.md"
EQUIVALENT = Path(__file__).parent / "equivalent_mutants.json"
ROOMS = (
    "core",
    "analysis",
    "packing",
    "ordering",
    "planning",
    "onnx_io",
    "features",
    "checking",
)
LEAST = 80
"""Mutants of a room at least, however small it is."""
COLD_FILES = 8
"""Files of tests that a cold process collects at most."""
NO_TEST = "no test"
EFFORT = "effort: "
"""How the reason of a mutant begins that changes how long a search looks, and no promise."""


@dataclass(frozen=True)
class Row:
    """What became of a mutant, as the file of results keeps it."""

    key: str
    verdict: str
    by: str
    seconds: float


def all_mutants(rooms: Iterable[str]) -> Iterator[Mutant]:
    """Yield every mutant of these rooms."""
    for room in rooms:
        for path in sorted((ROOT / "memplan_cli" / room).rglob("*.py")):
            yield from mutants(path.read_text(), path.relative_to(ROOT).as_posix())


def sampled(every: Iterable[Mutant], seed: int, count: int) -> list[Mutant]:
    """Return the sample of a seed: rooms in proportion, none with less than its least."""
    rooms: defaultdict[str, list[Mutant]] = defaultdict(list)
    for mutant in every:
        rooms[mutant.room].append(mutant)
    total = sum(len(own) for own in rooms.values())
    chosen: list[Mutant] = []
    for own in rooms.values():
        share = max(min(LEAST, count // len(rooms)), round(count * len(own) / total))
        chosen += sorted(own, key=lambda each: _drawn(seed, each))[:share]
    return chosen


def _drawn(seed: int, mutant: Mutant) -> str:
    return sha256(f"{seed}|{mutant.name}".encode()).hexdigest()


def importers() -> Mapping[str, frozenset[str]]:
    """Return, by file of the package, the files that import it, late imports included."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "memplan_cli").rglob("*.py"):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "memplan_cli"
            ):
                base = str(node.module).replace(".", "/")
                for name in (base, *(f"{base}/{each.name}" for each in node.names)):
                    for real in (f"{name}.py", f"{name}/__init__.py"):
                        found[real].add(file)
    return {name: frozenset(by) for name, by in found.items()}


def job_of(mutant: Mutant, covered: Covered, most: float, also: Sequence[str]) -> Job:
    """Return the tests of a mutant: those of its lines; for what imports run, those nearby."""
    from .random_runs import Job

    tests = covered.of_lines(mutant.file, mutant.lines)
    if not is_live(mutant) or tests == {""}:
        tests = covered.near(mutant.file)
    first = covered.first(tests, mutant.file, most)
    # What imports run may be seen by tests that run no line of the file: a table's keys.
    known = tests if is_live(mutant) else set(covered.seconds)
    named = {test for test in known if test.split("::")[0] in also}
    if mutant.operator == "entry":  # tests of an entry of a table often have its name
        words = [word for word in re.findall(r"'(\w+)'", mutant.text) if len(word) > 2]
        named |= {test for test in covered.seconds for word in words if f"[{word}" in test}
    chosen = dict.fromkeys([*covered.first(named, mutant.file, most), *first])
    return Job(mutant, tuple(chosen), covered.seconds)


def is_live(mutant: Mutant) -> bool:
    """Whether a function that is there already can take the mutant's code."""
    return mutant.entry is not None and not mutant.is_compiled


def run(chosen: Sequence[Mutant], most: float, also: Sequence[str]) -> None:
    """Run what has no result yet: first all that a warm process can, then the others.

    A function that imports run may have left its results before it was given its new code:
    where no test fails then, a process that imports anew has the last word.
    """
    from .random_runs import Covered, Ending, few_files, preload, run_cold, run_warm

    covered = Covered(FOLDER, importers())
    warm, cold, again = list["Job"](), list["Job"](), set[str]()
    for mutant in chosen:
        job = job_of(mutant, covered, most, also)
        at_import = "" in covered.of_lines(mutant.file, mutant.lines)
        if not job.tests:
            _keep(mutant, Ending("survived", NO_TEST, 0.0))
        elif is_live(mutant):
            warm.append(job)
            again |= {mutant.key} if at_import else set()
        else:
            cold.append(job)
    print(f"{len(warm)} in warm processes, {len(cold)} in cold ones", flush=True)
    base = FOLDER / "base"
    if warm:
        files = dict.fromkeys(test.split("::")[0] for job in warm for test in job.tests)
        run_warm(warm, tuple(files), base, _keep)
    ends = kept()
    for job in warm:
        verdict = ends[job.mutant.key].verdict
        if verdict == "cold" or (verdict == "survived" and job.mutant.key in again):
            cold.append(job)
    sound = {row.by for row in ends.values() if row.verdict == "killed"}
    interpreted = set[
        str
    ]()  # what passes where loops are compiled may fail where they are not
    preload()
    for job in cold:
        passing = interpreted if job.mutant.is_compiled else sound
        _keep(job.mutant, run_cold(few_files(job, COLD_FILES), base, passing))


def _keep(mutant: Mutant, ending: Ending) -> None:
    row = Row(mutant.key, ending.verdict, ending.by, ending.seconds)
    with (FOLDER / "results.jsonl").open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def kept() -> dict[str, Row]:
    """Return the last result of each mutant that was run."""
    path = FOLDER / "results.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {row.key: row for row in (Row(**json.loads(line)) for line in lines)}


def equivalents() -> dict[str, str]:
    """Return the names of mutants that change nothing a test could see, with the reason of each."""
    found: dict[str, str] = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.exists() else {}
    return found


def page(every: Mapping[str, int], chosen: Sequence[Mutant], rows: Mapping[str, Row],
         judged: Mapping[str, str], seed: int) -> list[str]:  # fmt: skip
    """Return the lines of the page: scores by room, by operator, and what survived."""
    lines = [
        "# Random mutants",
        "",
        (
            f"Made by `make random-mutants` (`--seed {seed}`): {len(chosen)} mutants of"
            f" {sum(every.values())}, drawn by the seed, each room in proportion and none with less"
        ),
        f"than {LEAST}. A mutant is one edit of the syntax tree: a comparison, an operator, a",
        "condition, a number, a boolean, an argument, an entry of a table, a filter of a",
        "comprehension, a bound of a slice, or a statement that is left out. Strings, messages,",
        "annotations, decorators and aliases of types are not edited. The fast tests of the",
        "rooms, those that run the line first, must fail or hang. The score is what was killed,",
        "of what is not equivalent. A survivor met the quickest of its tests only, as many as",
        "`--seconds` allows: `--again --seconds 60` runs survivors on more. What was not run yet",
        "is run by the same command, which resumes. Judged equivalent, each with its reason in",
        (
            "`tests/benchmarks/equivalent_mutants.json`, is what nobody could see;"
            f" {sum(why.startswith(EFFORT) for why in judged.values())} of these are"
        ),
        "amounts of effort: how long a search looks, or where first, and not what it may answer.",
        "",
        "| room | mutants | sampled | run | killed | by time-out | equivalent | survived | score |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    survivors: list[Mutant] = []
    total: Counter[str] = Counter()
    for room in every:
        sample = [mutant for mutant in chosen if mutant.room == room]
        own = [mutant for mutant in sample if mutant.key in rows]
        ends = Counter(rows[mutant.key].verdict for mutant in own)
        left = [mutant for mutant in own if rows[mutant.key].verdict == "survived"]
        alike = sum(mutant.name in judged for mutant in left)
        survivors += [mutant for mutant in left if mutant.name not in judged]
        counts = Counter(
            mutants=every[room], sampled=len(sample), run=len(own), killed=ends["killed"] + ends["time-out"],
            slow=ends["time-out"], equivalent=alike, survived=len(left) - alike,
        )  # fmt: skip
        total += counts
        lines.append(_score(room, counts))
    lines.append(_score("all", total))
    lines += ["", "## Survivors", "", "| file | function | edit |", "|---|---|---|"]
    for mutant in sorted(survivors, key=lambda each: each.key):
        where = mutant.file.removeprefix("memplan_cli/")
        edit = cell(mutant.text, 160).replace("`", "'")
        lines.append(
            f"| {where} | `{mutant.place or '(module)'}` | {mutant.operator}: `{edit}` |"
        )
    return lines


def _score(name: str, counts: Counter[str]) -> str:
    of = counts["killed"] + counts["survived"]
    score = f"{100 * counts['killed'] / of:.1f} %" if of else ""
    names = ("mutants", "sampled", "run", "killed", "slow", "equivalent", "survived")
    return f"| {name} | {' | '.join(str(counts[each]) for each in names)} | {score} |"


def _collect(paths: Sequence[str] | None) -> None:
    """Run tests under coverage in a process of their own; all of them anew without names."""
    process = os.fork()
    if not process:
        from .random_runs import collect

        if not paths:
            (FOLDER / "coverage.sqlite").unlink(missing_ok=True)
            (FOLDER / "seconds.json").unlink(missing_ok=True)
        collect(FOLDER, paths or [f"tests/{room}" for room in ROOMS])
        os._exit(0)
    os.waitpid(process, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--room", choices=ROOMS, help="Mutants of this room only; no page.")
    parser.add_argument(
        "--only", default="", help="Mutants with this text in their key; no page."
    )
    parser.add_argument("--again", action="store_true", help="Run the survivors once more.")
    parser.add_argument(
        "--collect",
        nargs="*",
        help="Find out which lines these tests run; all if none is named.",
    )
    parser.add_argument("--tests", nargs="*", default=(), help="Files of tests to run first.")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="Tests of a mutant take at most."
    )
    parser.add_argument("--page", action="store_true", help="Run nothing, write the page.")
    words = parser.parse_args()
    os.nice(15)
    os.chdir(ROOT)
    if words.collect is not None or not (FOLDER / "seconds.json").exists():
        _collect(words.collect)
    every = list(all_mutants(ROOMS))
    chosen = sampled(every, words.seed, words.count)
    judged, done = equivalents(), kept()
    wanted = [
        mutant
        for mutant in chosen
        if (words.room or mutant.room) == mutant.room
        and words.only in mutant.key
        and mutant.name not in judged
        and (
            mutant.key not in done or (words.again and done[mutant.key].verdict == "survived")
        )
    ]
    if wanted and not words.page:
        # Rooms take turns: what was run when somebody stops it is a sample of all.
        at = {mutant.key: rank for rank, mutant in enumerate(wanted)}
        first = {
            room: at[next(m.key for m in wanted if m.room == room)]
            for room in {m.room for m in wanted}
        }
        wanted.sort(key=lambda mutant: at[mutant.key] - first[mutant.room])
        run(wanted, words.seconds, words.tests)
    counts = Counter(mutant.room for mutant in every)
    equivalent = [mutant.key for mutant in chosen if mutant.name in judged]
    rows = kept() | {key: Row(key, "survived", "judged", 0.0) for key in equivalent}
    lines = page(dict(counts), chosen, rows, judged, words.seed)
    print("\n".join(lines))
    if not words.room and not words.only:
        PAGE.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
