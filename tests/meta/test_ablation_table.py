"""What the ablation benchmark switches off is there, by module and by name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import (
    ablation_inlining,
    ablation_large,
    ablation_orders,
    ablation_packers,
    ablation_symbols,
)
from benchmarks.ablation_modules import MODULES, lines, module, put, source, undo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

SWITCHES: Mapping[str, Callable[[], None]] = {
    **{f"packers: {name}": v.off for name, v in ablation_packers.VARIANTS.items()},
    **{f"large: {name}": off for name, off in ablation_large.OFF.items()},
    **{f"orders: {name}": off for name, off in ablation_orders.OFF.items()},
    "inlining": ablation_inlining.without_bodies,
    "symbols": lambda: ablation_symbols.note_calls(ablation_symbols.Record()),
}


def everything() -> dict[tuple[str, str], object]:
    """Return what each module of the table and each class in it has, by name."""
    found: dict[tuple[str, str], object] = {}
    for name in MODULES:
        for key, value in vars(module(name)).items():
            found[name, key] = value
            if isinstance(value, type):
                found.update({(f"{name}.{key}", k): v for k, v in vars(value).items()})
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_subsystem_is_where_the_table_says(name: str) -> None:
    assert source(name).is_file()
    assert lines(name) > 0


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_finds_what_it_replaces_and_is_undone(name: str) -> None:
    before = everything()
    try:
        SWITCHES[name]()
        during = everything()
    finally:
        undo()
    after = everything()
    replaced = [key for key, value in before.items() if during.get(key) is not value]
    assert all(after[key] is value for key, value in before.items())
    assert bool(replaced) == (
        name.rsplit(": ", maxsplit=1)[-1] not in {"all", "nothing", "protobuf"}
    )


@pytest.mark.parametrize("attribute", ["gone", "Lowering.gone", "Gone.quickly"])
def test_a_switch_of_a_name_that_is_gone_fails(attribute: str) -> None:
    with pytest.raises((KeyError, AttributeError)):
        put("lowering", attribute, None)


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_every_dotted_name_in_a_benchmark_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = set(re.findall(r"\bmemplan_cli(?:\.[A-Za-z_]\w*)+", text))
    assert [name for name in sorted(names) if not _is_there(name)] == []


def _is_there(name: str) -> bool:
    parts = name.split(".")
    found: Any = None
    for at, part in enumerate(parts):
        if hasattr(found, part):
            found = getattr(found, part)
            continue
        try:
            found = import_module(".".join(parts[: at + 1]))
        except ImportError:
            return False
    return True
