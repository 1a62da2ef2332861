"""A document is drawn by every medium: each block is there, each name a quotation."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from memplan_cli.reporting.document import (
    Block,
    Chart,
    Check,
    Code,
    Document,
    Heading,
    Items,
    Name,
    NextStep,
    Note,
    Paragraph,
    Table,
    columns,
    first_rows,
    section,
)
from memplan_cli.reporting.media import draw_document, html, markdown, text

EVERYTHING = Document(
    ("about ", Name("model.onnx")),
    (
        Paragraph("a verdict", "verdict"),
        Heading(("at ", Name("node"))),
        Table(columns("tensor", ">bytes"), ((Name("t"), "12 B"),), "and 3 more tensors"),
        Chart(((0, 1), (5, 8), (9, 2)), 10, 5, "highest 8 B at step 5"),
        Items((("shares its bytes with ", Name("u")), "an item")),
        Code(("x = 1", "", "y = 2")),
        Note("error", "something is wrong"),
        Check("the outputs are the same"),
        Check(("the order of ", Name("g")), passed=False),
        NextStep("Write it", "memplan optimize model.onnx"),
    ),
    "ONNX Runtime 1.31.1, CPU",
)
SAID = (
    "model.onnx", "a verdict", "node", "12 B",
    "and 3 more tensors", "highest 8 B at step 5", "an item", "x = 1", "something is wrong",
    "the outputs are the same", "the order of ", "Write it", "memplan optimize model.onnx",
    "ONNX Runtime 1.31.1, CPU",
)  # fmt: skip


def page(document: Document) -> str:
    return f"{document.title}{''.join(html.draw(document))}"


MEDIA = {"text": text.draw, "markdown": markdown.draw, "html": page}


def test_the_document_of_these_tests_holds_every_kind_of_block() -> None:
    assert {type(block) for block in EVERYTHING.blocks} == set(get_args(Block))


@pytest.mark.parametrize("medium", MEDIA)
def test_every_medium_says_everything(medium: str) -> None:
    shown = MEDIA[medium](EVERYTHING)
    assert [words for words in SAID if words not in shown] == []


def test_names_are_quotations_in_markdown() -> None:
    shown = draw_document(EVERYTHING, "markdown")
    assert "## about `model.onnx`\n" in shown
    assert "| `t` | 12 B |" in shown
    assert "- shares its bytes with `u`\n" in shown


def test_a_heading_begins_a_section_of_the_page() -> None:
    head, sections = html.draw(EVERYTHING)
    context = '<p class="soft">ONNX Runtime 1.31.1, CPU</p>'
    assert head == f'{context}<p class="verdict">a verdict</p>'
    assert sections.count("<section") == sections.count("</section>") == 1


def test_markdown_reads_back_as_headings_tables_lists_and_code() -> None:
    tokens = (
        MarkdownIt("commonmark").enable("table").parse(draw_document(EVERYTHING, "markdown"))
    )
    kinds = [token.type for token in tokens]
    assert kinds.count("heading_open") == 2
    assert kinds.count("table_open") == 1
    assert kinds.count("fence") == 3, "the chart, the code and the next step"
    assert [token.content for token in tokens if token.info == "python"] == [
        "x = 1\n\ny = 2\n"
    ]


@pytest.mark.parametrize("line", ["```", "a ```` b"])
def test_no_line_of_code_ends_the_code(line: str) -> None:
    shown = draw_document(Document("", (Code((line,)),)), "markdown")
    (token,) = MarkdownIt("commonmark").parse(shown)
    assert token.content == f"{line}\n"


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_no_name_is_more_than_a_name_in_any_medium(name: str) -> None:
    blocks = (Table(columns("tensor"), ((Name(name),),)), Items((Name(name), name)))
    document = Document(("about ", Name(name)), blocks)
    for medium, draw in MEDIA.items():
        if medium != "html":
            assert [c for c in draw(document) if not c.isprintable() and c != "\n"] == []
    _, sections = html.draw(Document("", (Heading(Name(name)), *blocks)))
    tags = set(re.findall(r"<(\w+)", sections))
    assert tags <= {
        "div",
        "section",
        "h2",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
    }


def test_lines_in_a_pipe_fit_80_columns_and_code_is_never_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = ((Name("tensor" * 9), "12.00 KiB", "grew from 9.00 KiB to 12.00 KiB " * 3),) * 2
    table = Table(columns("tensor", ">size", "why"), rows)
    shown = draw_document(Document("", (Paragraph("word " * 500), table)), "text")
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.count("9.00 KiB") == shown.count("12.00 KiB") - 2 == 6
    code = "f(" + "x, " * 50 + ")"
    assert code in draw_document(Document("", (Code((code,)),)), "text")


def test_a_report_has_a_subject_line_then_parts_with_an_empty_line_between_them() -> None:
    document = Document(
        (Name("a.onnx"), " -> ", Name("b.onnx")),
        (
            Note("warning", "sizes are guessed"),
            Table(columns("Process", ">before"), (("running", "1.00 MiB"),)),
            Check("The outputs are identical."),
            Check("word " * 20, passed=False),
            NextStep("Run it", "memplan.load('b.onnx')"),
        ),
        "ONNX Runtime 1",
    )
    assert text.draw(document, text.Screen(120)) == (
        f"a.onnx -> b.onnx{'ONNX Runtime 1':>64}\n"
        "\n"
        "warning: sizes are guessed\n"
        "\n"
        "Process    before\n"
        "running  1.00 MiB\n"
        "\n"
        "[ok] The outputs are identical.\n"
        f"[failed] {' '.join(['word'] * 14)}\n"
        f"         {' '.join(['word'] * 6)}\n"
        "\n"
        "Run it:  memplan.load('b.onnx')\n"
    )


def test_a_context_without_room_beside_the_title_is_below_it() -> None:
    document = Document(Name("m" * 70), (), "ONNX Runtime 1.31.1")
    assert text.draw(document, text.Screen(80)) == f"{'m' * 70}\nONNX Runtime 1.31.1\n"


@pytest.mark.parametrize("unit", ["B", "KiB", "MB", "GiB", "ms", "s"])
def test_no_line_breaks_inside_a_figure_or_an_option(unit: str) -> None:
    for start in range(60, 80):
        sentence = f"{'x' * start} 12.5 {unit} with --dim batch=1"
        shown = text.draw(Document("", (Paragraph(sentence),)), text.Screen(80))
        assert f"12.5 {unit}" in shown
        assert "--dim batch=1" in shown
        assert all(len(line) <= 80 for line in shown.splitlines())


def test_names_are_cut_so_that_a_heading_is_one_line() -> None:
    document = Document(("about ", Name("n" * 300)), (Heading(("at ", Name("m" * 300))),))
    lines = text.draw(document, text.Screen(50)).splitlines()
    assert [len(line) for line in lines] == [50, 0, 50]


def test_a_name_gets_the_room_that_its_table_has() -> None:
    table = Table(columns("tensor", ">bytes"), ((Name("n" * 200), "1 B"),))
    narrow, wide = (
        text.draw(Document("", (table,)), text.Screen(width)).splitlines()[1]
        for width in (30, 120)
    )
    assert len(narrow) <= 30 < len(wide) <= 120


def test_a_section_of_nothing_is_nothing() -> None:
    assert tuple(section("title", None)) == ()
    assert first_rows(("a",), (), "rows") is None
    assert first_rows(("a",), (("x",),), "rows", max_rows=0) is None


def test_rows_that_are_left_out_are_counted() -> None:
    table = first_rows(("a",), (("x",),) * 5, "rows", max_rows=1)
    assert table is not None
    assert table.rows == (("x",),)
    assert table.caption == "and 4 more rows"
    whole = first_rows(("a",), (("x",),), "rows", max_rows=4)
    assert whole is not None
    assert whole.caption == ""


def test_a_short_column_of_names_leaves_its_room_to_the_others() -> None:
    table = Table(columns("tensor", "node", ">size"), ((Name("n" * 60), Name("Add"), "1 B"),))
    row = text.draw(Document("", (table,)), text.Screen(80)).splitlines()[1]
    assert row.startswith(f"{'n' * 60}  Add ")


def test_a_long_expression_goes_on_below_its_beginning() -> None:
    rows = (("inputs", "8*batch + 4*sequence_length"), ("outputs", "8 B"))
    table = Table(columns("", ""), rows)
    assert text.draw(Document("", (table,)), text.Screen(30)).splitlines() == [
        "inputs   8*batch +",
        "         4*sequence_length",
        "outputs  8 B",
    ]
