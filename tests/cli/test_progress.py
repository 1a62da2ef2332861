"""Progress is for people: stages, one line at a time, and nothing where nobody looks."""

from __future__ import annotations

from time import monotonic, sleep
from typing import TYPE_CHECKING

import pytest

from memplan_cli.cli import output as cli_output
from memplan_cli.cli.output import Output, ProgressDisplay
from memplan_cli.core.progress import Counted, Detail

if TYPE_CHECKING:
    from collections.abc import Callable


class Drawn:
    """A live line that writes down what happens to it."""

    def __init__(self, said: Callable[[], str], seen: list[str]) -> None:
        self.said, self.seen = said, seen

    def start(self) -> None:
        self.seen.append(f"on: {self.said()}")

    def stop(self) -> None:
        self.seen.append("off")


def wait_for(lines: list[str]) -> None:
    """Wait until something was written, at most ten seconds."""
    deadline = monotonic() + 10
    while not lines and monotonic() < deadline:
        sleep(0.005)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(cli_output, "PROGRESS_DELAY", 0.0)
    return []


def test_a_log_gets_a_line_a_stage(seen: list[str]) -> None:
    display = ProgressDisplay(seen.append)
    for text in ("planning", "planning", Detail("sweep 7"), "ordering"):
        display.show(text)
    display.stop()
    assert seen == ["memplan: planning (0 s)", "memplan: ordering (0 s)"]


def test_a_log_counts_parts_seldom(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    display = ProgressDisplay(seen.append)
    display.show(Counted("planning models", 1, 9))
    display.show(Counted("planning models", 2, 9))
    monkeypatch.setattr(cli_output, "LOG_INTERVAL", -1.0)
    display.show(Counted("planning models", 3, 9))
    assert [line.removeprefix("memplan: planning models, ") for line in seen] == [
        "1 of 9 (0 s)", "3 of 9 (0 s)"
    ]  # fmt: skip


def test_what_searches_find_is_shown_to_those_who_debug(seen: list[str]) -> None:
    ProgressDisplay(seen.append, details=True).show(Detail("sweep 7"))
    assert seen == ["memplan: sweep 7"]


def test_a_terminal_has_one_line_that_goes(seen: list[str]) -> None:
    display = ProgressDisplay(seen.append, lambda said: Drawn(said, seen))
    display.show("planning")
    display.show(Counted("ordering", 1, 2))
    display.note("warning: a dim is free")
    display.show("packing")
    display.stop()
    assert seen == [
        "on: memplan: planning (0 s)", "off", "warning: a dim is free",
        "on: memplan: packing (0 s)", "off",
    ]  # fmt: skip


def test_a_quick_command_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(cli_output, "PROGRESS_DELAY", 60.0)
    display = ProgressDisplay(seen.append)
    display.show("planning")
    display.stop()
    assert seen == []


def test_a_stage_that_lasts_is_shown_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_output, "PROGRESS_DELAY", 0.05)
    seen: list[str] = []
    display = ProgressDisplay(seen.append)
    display.show("packing")
    wait_for(seen)
    assert len(seen) == 1
    assert seen[0].startswith("memplan: packing")


def test_a_stage_after_an_early_result_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_output, "PROGRESS_DELAY", 0.05)
    seen: list[str] = []
    display = ProgressDisplay(seen.append)
    display.show("planning")
    display.stop()
    display.show("packing")
    wait_for(seen)
    assert len(seen) == 1
    assert seen[0].startswith("memplan: packing")


def test_quiet_hears_no_stage_but_the_reason_of_a_failure(
    seen: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = Output(quiet=True, debug=True)
    output.progress("planning")
    output.note("memplan: wrote a file")
    output.reason("memplan: outputs differ: nothing was written")
    assert seen == []
    assert capsys.readouterr().err == "memplan: outputs differ: nothing was written\n"
