"""Every cell of the documentation's notebook runs, and shows a result."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "notebook.ipynb"


def run_cell(source: str, names: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever it ends with
    """Run a cell as a notebook does; its last expression is its result."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own notebook
    if not isinstance(last, ast.Expr):
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307 - the same


def test_every_cell_of_the_notebook_runs_and_shows_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(NOTEBOOK.parent)
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    names: dict[str, Any] = {}
    shown = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            result = run_cell("".join(cell["source"]), names)
            assert result is not None
            shown += hasattr(result, "_repr_html_")
            assert not hasattr(result, "_repr_html_") or "</" in result._repr_html_()
    assert shown
    assert not list(NOTEBOOK.parent.glob("*.memplan.*"))
