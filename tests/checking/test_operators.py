"""Two tables of what operators do to memory, written apart, say the same."""

from __future__ import annotations

from memplan_cli.checking import operators
from memplan_cli.core.operators import OPERATORS, names_of
from memplan_cli.core.symbolic.sizes import BITS


def test_the_check_knows_the_sharing_of_the_registry_and_no_more() -> None:
    """An entry that nothing uses would be one that no test has looked at."""
    assert set(names_of(lambda each: each.is_view)) == operators.VIEWS
    assert {
        each.name: each.in_place for each in OPERATORS if each.in_place
    } == operators.IN_PLACE_INPUTS
    assert not operators.VIEWS & operators.IN_PLACE_INPUTS.keys()
    assert set(names_of(lambda each: each.is_random)) == operators.RANDOM | {"Dropout"}
    assert set(names_of(lambda each: each.runs_one_body)) == operators.SELECTED_SUBGRAPH
    assert set(names_of(lambda each: each.repeats_body)) == operators.REPEATED_SUBGRAPH


def test_elements_are_as_wide_in_both() -> None:
    assert dict(operators.ELEMENT_BITS) == dict(BITS)
