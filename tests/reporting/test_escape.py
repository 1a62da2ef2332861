from __future__ import annotations

import html.parser
import json
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.reporting import document as doc
from memplan_cli.reporting import escape
from memplan_cli.reporting.media.markdown import draw

ANYTHING = st.text(st.characters(codec=None), max_size=60)


@given(ANYTHING)
def test_escaped_terminal_text_is_printable(text: str) -> None:
    assert escape.printable(text).isprintable()


def test_terminal_text_shows_what_was_hidden() -> None:
    assert escape.printable("a\x1b[31m\x9b\u202eb\ud800") == r"a\x1b[31m\x9b\u202eb\ud800"
    assert escape.printable("漢字 é") == "漢字 é"
    assert len(escape.printable("x" * 10**6)) == 1000


def test_a_long_name_keeps_both_ends() -> None:
    assert escape.shortened_name("abcdefghij", 7) == "abc…hij"
    assert escape.shortened_name("abc", 7) == "abc"
    assert escape.shortened_name("\x1b" * 9, 3) == r"\x1"


@given(ANYTHING)
def test_xml_holds_any_text_in_elements_and_attributes(text: str) -> None:
    shown = escape.html(text)
    root = ET.fromstring(f"<a b=\"{shown}\" c='{shown}'>{shown}</a>")  # noqa: S314 - ours
    assert (root.text or "") == escape.printable(text)
    assert len(root) == 0


class _Scripts(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.one_of(ANYTHING, st.sampled_from(["</script>", "<!--", "]]>", "&lt;", "\u2028"])))
def test_a_script_holds_any_json_and_ends_where_it_should(text: str) -> None:
    parser = _Scripts()
    parser.feed(f"<script>{escape.script({'x': text})}</script>")
    assert parser.tags == ["script"]
    assert json.loads(parser.text) == {"x": text}


@given(ANYTHING)
def test_a_markdown_code_span_closes_only_at_its_end(text: str) -> None:
    span = escape.markdown_code(text)
    fence = re.match("`+", span)
    assert fence is not None
    inner = span[len(fence[0]) : -len(fence[0])]
    assert len(fence[0]) not in {len(run) for run in re.findall("`+", inner)}
    assert "\n" not in span
    assert inner.strip(" ") == escape.printable(text).strip(" ")
    cell = escape.markdown_code_in_table(text)
    assert not re.search(r"(?<!\\)\|", cell), "a bar would end the table's cell"
    assert cell.replace(r"\|", "|") == span


def test_a_markdown_code_span_keeps_blanks_at_both_ends() -> None:
    """Markdown removes one at each end."""
    assert escape.markdown_code(" a ") == "`  a  `"
    assert escape.markdown_code(" a") == "` a`"
    assert escape.markdown_code("") == "`  `"


def test_a_bar_is_escaped_in_a_table_only() -> None:
    """Elsewhere a code span would show the backslash."""
    table = doc.Table(doc.columns("name"), ((doc.Name("a|b"),),))
    lines = draw(doc.Document((doc.Name("a|b"),), (table,))).splitlines()
    assert lines[0] == "## `a|b`"
    assert lines[-1] == r"| `a\|b` |"


def test_prose_has_no_links_mentions_or_markup() -> None:
    got = escape.markdown_prose("see: <b> *x* @team #12 https://e.vil www.e.vil [a](b)")
    assert got == (
        r"see: \<b\> \*x\* @<!-- -->team #<!-- -->12 https\://e.vil www\.e.vil \[a\](b)"
    )


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "=cmd|'x'!A"])
def test_a_cell_is_no_formula(text: str) -> None:
    assert escape.csv_row([text])[:2] in ("'" + text[0], "\"'")


@given(ANYTHING)
def test_a_github_command_is_one_line_and_one_command(text: str) -> None:
    assert "\n" not in escape.github(text)
    assert "\r" not in escape.github(text)
    line = f"::error file={escape.github_property(text)}::x"
    assert line.count("::", 2) == 1 + escape.github_property(text).count("::") == 1


def test_github_text_keeps_our_line_breaks_and_percents() -> None:
    assert escape.github("a\nb 5%\r") == r"a%0Ab 5%25\r"
    assert escape.github_property("a:b,c\nd") == r"a%3Ab%2Cc\nd"


@given(ANYTHING)
def test_a_c_string_is_ascii_and_has_no_trigraph(text: str) -> None:
    literal = escape.c_string(text)
    assert literal.isascii()
    assert "??" not in literal
    assert not re.search(r'(?<!\\)(\\\\)*"', literal[1:-1])


@given(ANYTHING)
def test_a_c_identifier_is_one(text: str) -> None:
    assert re.fullmatch("[0-9A-Z_]{1,80}", escape.c_identifier(text))
