"""Each trick for large graphs off in turn: bytes and seconds of a whole `optimize`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from .ablation_modules import lines, module, put, replace
from .scale import MEMPLAN, ROOT, Cost, compile_everything, cost, synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

NODES = 65_000
ROUNDS = 3

_OFF = "from tests.benchmarks import ablation_large; ablation_large.OFF[{name!r}]();"


def _without_columns() -> None:
    """Keep rows as tuples: each an object of its own, made at once."""

    def table(kind: Any, *fields: Sequence[Any]) -> tuple[Any, ...]:  # noqa: ANN401
        return tuple(map(kind._make, zip(*fields, strict=True)))

    def cells(rows: Sequence[Any], *names: str) -> Iterator[tuple[Any, ...]]:
        return (
            (tuple(getattr(row, name) for name in names) for row in rows)
            if names
            else iter(rows)
        )

    replace("columns", "Columns", table)
    replace("columns", "cells", cells)
    replace("columns", "Made", lambda function, *parts: tuple(map(function, *parts)))
    replace("columns", "Groups", _Groups)
    replace("columns", "column", tuple)
    replace("columns", "numbers", tuple)


class _Groups(tuple[Any, ...]):
    """Groups as tuples, with the one method that callers use beside a tuple's."""

    __slots__ = ()

    def __new__(cls, groups: Iterable[Sequence[Any]]) -> Self:
        return super().__new__(cls, map(tuple, groups))

    def at(self, place: int) -> Any:  # noqa: ANN401
        return self[place]


def _without_spool() -> None:
    put("spool", "MOST_KEPT", 1 << 62)


def _without_release() -> None:
    put("lazy_model", "LazyModel.release", lambda _self: None)


def _without_wire() -> None:
    """Make each entry a message of the protobuf library."""
    head, messages = module("wire").head, module("protobuf").messages

    class Entries:
        def __init__(self, field: int, key: str) -> None:
            self._field, self._key = field, key

        def __call__(self, value: object) -> bytes:
            entry = messages().StringStringEntryProto(key=self._key, value=str(value))
            data: bytes = entry.SerializeToString()
            return bytes(head(self._field, len(data))) + data

        number = __call__

    replace("wire", "Entries", Entries)


def _with_all_of_onnx() -> None:
    import onnx  # noqa: F401 - the whole package, as any other program loads it


OFF: Mapping[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "columns": _without_columns,
    "spool": _without_spool,
    "lazy_model": _without_release,
    "wire": _without_wire,
    "protobuf": _with_all_of_onnx,
}
"""What is switched off before the command line is loaded."""

HEAD = ("off", "lines", "graph", "seconds", "more", "memory", "more", "a node")


def optimized(name: str, model: Path) -> Cost:
    """Plan and write a model with something off; nothing is run."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("optimize", str(model), "--quiet", "--no-validate", "--order", "keep")
        out = str(Path(folder) / "out.onnx")
        return cost(_OFF.format(name=name) + MEMPLAN, *words, "-o", out)


def rows(folder: Path, only: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trick and graph: medians of runs in turn."""
    large = folder / f"{NODES}.onnx"
    synthetic(NODES, large)
    names = ["nothing", *(name for name in OFF if only in name and name != "nothing")]
    compile_everything()
    graphs = ((f"{NODES:,} nodes", large), ("14 nodes", ROOT / "sample_models/train_mlp.onnx"))
    for graph, path in graphs:
        rounds = [[optimized(name, path) for name in names] for _ in range(ROUNDS)]
        found = {
            name: Cost(
                median(c.seconds for c in column), int(median(c.memory for c in column))
            )
            for name, column in zip(names, zip(*rounds, strict=True), strict=True)
        }
        usual = found.pop("nothing")
        yield (
            "nothing",
            "-",
            graph,
            f"{usual.seconds:.2f}",
            "-",
            _mib(usual.memory),
            "-",
            "-",
        )
        for name, off in found.items():
            saved = off.memory - usual.memory
            yield (
                f"`{name}`", str(lines(*name.split(", "))), graph,
                f"{off.seconds:.2f}", f"{off.seconds - usual.seconds:+.2f}",
                _mib(off.memory), f"{saved / 2**20:+.1f} MiB",
                f"{saved / NODES:.0f} B" if path == large else "-",
            )  # fmt: skip


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
