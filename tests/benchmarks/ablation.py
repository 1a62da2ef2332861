"""Each small subsystem switched off in turn, and what is lost without it.

    python -m tests.benchmarks.ablation [--part NAME] [--only NAME] [--kept DIR]

Parts: packers, large, orders, inlining, parsers, symbols. Subsystems are switched off from outside, in
processes of their own; `ablation_modules` says where they live. Prints tables in Markdown; the
page docs/measurements/ablation.md is put together of them, with verdicts, by hand. With `--kept`
the problems of real models and finished variants stay in a folder, so that a run can go on.
Inlining and orders need `PYTHONPATH=tests:tests/e2e`; the columns of ruamel.yaml and SymPy need these.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import ablation_large, ablation_packers, ablation_parsers, ablation_symbols
from .ablation_problems import collected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def packers(kept: Path, only: str) -> Iterator[str]:
    """Yield the tables of the packers, one for each set of problems."""
    problems = kept / "problems.pickle"
    problems.write_bytes(pickle.dumps(collected(kept / "real.pickle")))

    def results(name: str) -> ablation_packers.Results:
        file = kept / f"packers-{name}.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps(ablation_packers.run(name, problems)))
        found: ablation_packers.Results = pickle.loads(file.read_bytes())  # noqa: S301
        return found

    usual, *others = ablation_packers.VARIANTS
    chosen = [name for name in others if only in name]
    before = results(usual)
    yield from table(
        ablation_packers.HEAD,
        (row for name in chosen for row in ablation_packers.rows(name, before, results(name))),
    )


def large(kept: Path, only: str) -> Iterator[str]:
    """Yield the table of what large graphs need."""
    yield from table(ablation_large.HEAD, ablation_large.rows(kept, only))


def orders(_kept: Path, only: str) -> Iterator[str]:
    """Yield the table of the ordering search's methods."""
    from . import ablation_orders  # needs tests on PYTHONPATH

    yield from table(ablation_orders.HEAD, ablation_orders.rows(only))


def inlining(_kept: Path, only: str) -> Iterator[str]:
    """Yield the table of models whose functions the runtime inlines."""
    from . import ablation_inlining  # needs tests and tests/e2e on PYTHONPATH

    yield from table(ablation_inlining.HEAD, ablation_inlining.rows(only))


def parsers(_kept: Path, _only: str) -> Iterator[str]:
    """Yield the table of the settings' readers."""
    yield from table(ablation_parsers.HEAD, ablation_parsers.rows())


def symbols(_kept: Path, _only: str) -> Iterator[str]:
    """Yield the table of symbolic dims."""
    yield from table(ablation_symbols.HEAD, ablation_symbols.rows())


PARTS: Mapping[str, Callable[[Path, str], Iterator[str]]] = {
    "packers": packers,
    "large": large,
    "orders": orders,
    "inlining": inlining,
    "parsers": parsers,
    "symbols": symbols,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--only", default="", help="what has this text in its name")
    parser.add_argument("--kept", type=Path, help="a folder for problems and results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = options.kept or Path(folder)
        for name, lines in PARTS.items():
            if options.part in (None, name):
                print(f"\n## {name.capitalize()}\n", flush=True)
                for line in lines(kept, options.only):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
