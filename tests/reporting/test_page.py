"""The pages without a browser: data, expressions, tones, what is left out."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections import Counter
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.api.plan_sections import FEATURE_SECTIONS
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.results.placements import BlockOrder, Placement, PlannedArena
from memplan_cli.core.symbolic.dims import canonical_dim
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.reporting.document import Document, Paragraph
from memplan_cli.reporting.formats import render
from memplan_cli.reporting.media import text
from memplan_cli.reporting.media.html import draw, html_with_breaks
from memplan_cli.reporting.media.text import Screen
from memplan_cli.reporting.pages import plan_page
from memplan_cli.reporting.pages.graph_facts import (
    GraphFacts,
    category,
    region_of,
    regions,
)
from memplan_cli.reporting.pages.page_data import evaluable
from memplan_cli.reporting.plans.report import answer_document

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.core.results.plan import Plan

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"


def plan_named(name: str) -> Plan:
    return read_plan(PLANS / f"{name}.memplan.json")


def tensor(name: str, first: int = 0, last: int = 1, **more: Any) -> Placement:  # noqa: ANN401
    facts = {"bytes": 64, "arena": 0, "offset": 0, "slot": None, **more}
    return Placement(name, "", "float32", (16,), first=first, last=last, **facts)


def data_of(page: str) -> dict[str, Any]:
    ((kind, text),) = re.findall(r'(?s)<script type="([^"]*)" id="data">(.*?)</script>', page)
    if kind == "text/plain":
        text = zlib.decompress(base64.b64decode(text)).decode()
    return dict(json.loads(text))


FUNCTIONS: dict[str, Callable[..., int]] = {
    "floor": lambda a, b: a // b,
    "ceiling": lambda a, b: -(-a // b),
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def value_of(terms: Any, values: list[int]) -> int:  # noqa: ANN401 - what JSON is
    """What the page's script works out."""
    found = 0
    for number, atoms in terms:
        part = number
        for atom in atoms:
            if isinstance(atom, int):
                part *= values[atom]
            else:
                part *= FUNCTIONS[atom[0]](*(value_of(each, values) for each in atom[1]))
        found += part
    return found


SYMBOLS = ("batch", "seq", "past.len")
DIMS = st.recursive(
    st.sampled_from([*SYMBOLS, "1", "3", "16"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+*"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(inner, st.integers(1, 5)).map(lambda t: f"floor({t[0]}/{t[1]})"),
        st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
    ),
    max_leaves=6,
)


@given(DIMS, st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_the_script_works_out_what_python_does(dim: str, values: list[int]) -> None:
    unit = str(canonical_dim(dim))
    places = {name: at for at, name in enumerate(SYMBOLS)}
    terms = json.loads(json.dumps(evaluable(unit, places)))
    numbers = dict(zip(SYMBOLS, values, strict=True))
    assert value_of(terms, values) == unit_value(unit, numbers)


def test_an_expression_of_another_symbol_is_not_evaluated() -> None:
    assert evaluable("batch*seq", {"batch": 0}) is None


def test_a_symbolic_page_has_a_field_for_each_symbol_and_bytes_for_each_arena() -> None:
    plan = plan_named("dynamic")
    bound = {"batch": BoundDim(8, "given")}
    data = data_of(
        plan_page.render(replace(plan, report=replace(plan.report, bindings=bound)))
    )
    assert data["symbols"] == [{"name": "batch", "value": 8, "source": "given"}]
    assert [value_of(unit, [8]) for unit in data["units"]] == [8]
    assert value_of(data["figures"]["planned"], [8]) == 8 * 32768
    free = data_of(plan_page.render(plan))["symbols"][0]
    assert free["source"] == "unknown", "nobody said a number: the page must not pretend"


def test_ten_thousand_tensors_are_compressed_to_less_than_half_a_megabyte() -> None:
    names = [f"layer_{n}/output_of_some_node_with_a_name" for n in range(10_000)]
    plan = replace(plan_named("branchy"), tensors=tuple(map(tensor, names)))
    page = plan_page.render(plan)
    assert len(page) < 500_000
    assert data_of(page)["tensors"]["name"] == names


def test_a_page_without_symbols_hides_their_fields() -> None:
    page = plan_page.render(plan_named("branchy"))
    assert re.search(r'<section id="values"[^>]* hidden>', page)
    assert 'data-key="size"' not in page


def test_a_long_expression_breaks_at_operators() -> None:
    plan = plan_named("dynamic")
    expression = "528*(s15 + 1)*s25 + 16*(s48 + s69) + 2048*s25"
    report = replace(plan.report, symbolic={**plan.report.symbolic, "naive": expression})
    page = plan_page.render(replace(plan, report=report))
    assert f"<strong>{html_with_breaks(expression)}</strong>" in page
    assert re.sub("<wbr>", "", html_with_breaks(expression)) == expression
    assert html_with_breaks("a<b*c") == "a&lt;b*<wbr>c"


@pytest.mark.parametrize("name", ["branchy", "dynamic", "nested", "train_level1"])
def test_the_first_screen_of_a_page_says_what_the_text_says(name: str) -> None:
    plan = plan_named(name)
    page = render(plan, "html", sections=FEATURE_SECTIONS)
    head = page[page.index("<header>") : page.index('<section class="cards"')]
    words = unescape(re.sub(r"<[^>]+>", " ", head)).split()
    said = text.draw(answer_document(plan, FEATURE_SECTIONS), Screen(80)).split()
    assert Counter(said) - Counter(words) == Counter()


def test_no_line_of_a_page_ends_within_the_name_of_an_option() -> None:
    document = Document("", (Paragraph("set it with --no-run or a--b"),))
    head, _ = draw(document)
    assert head == '<p>set it with <span class="option">--no-run</span> or a--b</p>'


def test_a_chart_of_known_sizes_alone_says_so_in_every_medium() -> None:
    plan = plan_named("branchy")
    plan = replace(plan, report=replace(plan.report, coverage=0.5))
    for form in ("text", "markdown", "html", "svg"):
        whole = render(plan, form, detail="details" if form == "text" else "answer")
        words = " ".join(whole.split())
        assert "counts only what is known" in words, form
        assert form == "svg" or "At the peak of the sizes that are known" in words
    assert "counts only what is known" not in render(plan_named("branchy"), "html")


class _Outline(HTMLParser):
    """Headings, and controls without a name for those who do not see the page."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.unnamed: list[str] = []
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "h2", "h3"):
            self.headings.append(tag)
        names = {name for name, _ in attrs}
        if tag in ("input", "select", "canvas") and not names & {"aria-label"}:
            self.unnamed += [] if "label" in self.inside else [tag]
        if tag == "label":
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "label":
            self.inside.pop()


@pytest.mark.parametrize("name", ["branchy", "dynamic", "train_level1"])
def test_every_control_has_a_name_and_headings_skip_no_level(name: str) -> None:
    plan = plan_named(name)
    outline = _Outline()
    outline.feed(plan_page.render(plan))
    assert outline.unnamed == []
    assert outline.headings[0] == "h1"
    assert "h3" not in outline.headings[:2]


def chunked_plan(order: tuple[str, ...], tensors: tuple[Placement, ...]) -> Plan:
    arena = PlannedArena(0, "1", 4096, 4096, 1)
    return replace(
        plan_named("branchy"), order=(BlockOrder("", order),), arenas=(arena,), tensors=tensors
    )


def test_the_chunks_of_a_region_are_one_region_in_whatever_order_they_run() -> None:
    order = (
        "a", "m__chunk2", "s__chunk2", "m__chunk1_slice", "m__chunk1", "s__chunks",
        "b", "t__chunk1", "t__chunk2", "t__chunks",
    )  # fmt: skip
    made = tuple(tensor(f"{name}_y", at, at + 1) for at, name in enumerate(order))
    chunks = (tensor("x__chunk2", 1, 2), tensor("x__chunk1", 4, 5), tensor("v__chunk2", 8, 9))
    plan = chunked_plan(order, (*made, *chunks))
    found = regions(plan)
    assert [(each.first, each.last) for each in found] == [(1, 5), (7, 9)]
    assert [region_of(each, found) for each in chunks] == [0, 0, 1]
    assert region_of(tensor("whole", 1, 2), found) == -1


def test_tensors_have_categories_from_the_model_or_from_their_names() -> None:
    none, facts = GraphFacts(), GraphFacts({"n": "Add"}, {"g": "gradients", "u": "optimizer"})
    assert category(tensor("x__chunk1_slice"), none) == "chunks"
    assert category(tensor("g__recompute"), facts) == "activations"
    assert [category(tensor(name), facts) for name in "gux"] == [
        "gradients", "optimizer", "activations",
    ]  # fmt: skip
    assert category(tensor("fc.w_grad"), none) == "gradients"
    for name in ("past_key_values.0.key", "present.1.value", "kv_cache", "layer/cache"):
        assert category(tensor(name), none) == "cache", name
    for name in ("gradual", "represented", "cached_positions_x", "pastel"):
        assert category(tensor(name), none) == "activations", name


def test_copies_and_chunks_have_the_type_of_their_node() -> None:
    facts = GraphFacts({"m": "MatMul", "if/x": "Relu"})
    assert facts.type_of("m__chunk3") == facts.type_of("m__recompute2") == "MatMul"
    assert facts.type_of("m__chunks") == "Concat"
    assert facts.type_of("if/x") == "Relu"
    assert facts.type_of("other") == ""


def test_what_shares_bytes_is_one_group_with_all_its_names() -> None:
    tensors = (tensor("a"), tensor("b", 1, 2, alias_of="a"), tensor("c", 2, 3, alias_of="a"))
    data = data_of(plan_page.render(chunked_plan(("n", "o", "p"), tensors)))
    assert data["tensors"]["alias"] == [-1, 0, 0]
