"""The table of mutations speaks of the source as it is: each edit can still be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_an_edit_fits_one_place_and_its_tests_are_there(mutation: Mutation) -> None:
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    for path in mutation.tests.split():
        assert path.startswith("tests/")
        assert (ROOT / path.split("::")[0]).exists()
