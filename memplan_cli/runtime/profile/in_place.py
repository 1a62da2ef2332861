"""Which ops a provider's kernels run in place: tables that a probe of the runtime has written.

``python -m tests.benchmarks.in_place`` writes the table of one provider. The tables are data of the
package and name the versions that they were probed on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.runtime.installed import runtime_version

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = Path(__file__).parent / "tables"


@dataclass(frozen=True, slots=True)
class InPlaceTable:
    """The inputs whose buffers kernels use for their outputs.

    Attributes:
        versions: the versions of the runtime that were probed, all with these answers.
        alias: op -> inputs that the first output shares, whether or not others read the input.
        in_place: op -> inputs that the first output overwrites if the op is their last reader and
            element size and shape are the same.
        allocates: op -> dtypes for which its kernel overwrites no input nevertheless.
        later_aliases: op -> pairs of an input and a later output that shares it like an alias.
    """

    versions: tuple[str, ...]
    alias: Mapping[str, tuple[int, ...]]
    in_place: Mapping[str, tuple[int, ...]]
    allocates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    later_aliases: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)


@lru_cache(maxsize=4)
def load_table(provider: str) -> InPlaceTable:
    """Return the table of which inputs a provider's kernels overwrite or share; empty if it was never probed."""
    path = TABLES / f"{provider}.json"
    if not path.exists():
        return InPlaceTable(versions=(), alias={}, in_place={})
    data = json.loads(path.read_text(encoding="utf-8"))
    return InPlaceTable(
        versions=tuple(data["versions"]),
        alias={op: tuple(inputs) for op, inputs in data["alias"].items()},
        in_place={op: tuple(inputs) for op, inputs in data["in_place"].items()},
        allocates={op: tuple(dtypes) for op, dtypes in data["allocates"].items()},
        later_aliases={
            op: tuple((source, output) for source, output in pairs)
            for op, pairs in data["later"].items()
        },
    )


def version_warning(provider: str) -> str | None:
    """Return a warning if the installed runtime is not the one that was probed."""
    table = load_table(provider)
    installed = runtime_version() or "none"
    if not table.versions:
        return f"no in-place table was probed for {provider}: predictions assume that all ops allocate"
    if installed not in table.versions:
        return (
            f"predictions use the in-place table of onnxruntime {table.versions[-1]}, installed "
            f"is {installed}: predicted peaks may be off"
        )
    return None
