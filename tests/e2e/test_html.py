"""The page in a real browser: no complaint, no request, and everything one can do with it."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import CHROMIUM, Browser
from memplan_cli.core.results.placements import ArenaFacts, BlockOrder, Placement
from memplan_cli.planning.checking.plan_file import read_plan
from memplan_cli.reporting.plans import html

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.plan import Plan

PLANS = Path(__file__).parents[1] / "golden" / "renderers" / "plans"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on this machine"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def plan_named(name: str) -> Plan:
    return read_plan(PLANS / f"{name}.memplan.json")


def staircase(count: int) -> Plan:
    """A plan of many tensors: each lives ten steps, in one of ten places."""
    tensors = tuple(
        Placement(
            f"layer_{n}/output_of_some_node_with_a_name", "", "float32", (64, n % 7), 4096, 0,
            4096 * (n % 10), None, n, n + 10,
        )
        for n in range(count)
    )  # fmt: skip
    order = (BlockOrder("", tuple(f"node_{n}" for n in range(count + 9))),)
    arena = ArenaFacts(0, "1", 40960, 40960, 64)
    return replace(plan_named("branchy"), tensors=tensors, arenas=(arena,), order=order)


def shown(browser: Browser, tmp_path: Path, page: str) -> Browser:
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path)
    return browser


def centre_of_map(browser: Browser) -> tuple[float, float]:
    box = browser.run(
        "(() => { const r = document.getElementById('map').getBoundingClientRect();"
        " return [r.left + 76 + (r.width - 84) * 0.3, r.top + r.height * 0.9]; })()"
    )
    return box[0], box[1]


def names_in_table(browser: Browser) -> list[str]:
    rows = "[...document.querySelectorAll('#rows tr[data-tensor] td:first-child')]"
    return list(browser.run(f"{rows}.map(cell => cell.textContent)"))


def picture(browser: Browser) -> str:
    return str(browser.run("document.getElementById('map').toDataURL()"))


@pytest.mark.parametrize("name", ["branchy", "train_level1", "nested", "dynamic", "hostile"])
def test_a_page_opens_without_a_complaint_and_asks_no_network(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    plan = plan_named(name)
    shown(browser, tmp_path, html.render(plan))
    assert browser.complaints() == []
    assert set(names_in_table(browser)) <= {json.loads(n) for n in names(plan)}
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.querySelectorAll('img, iframe, object, base').length") == 0


def names(plan: Plan) -> list[str]:
    from memplan_cli.reporting.escape import terminal

    return [json.dumps(terminal(tensor.id)) for tensor in plan.tensors]


def test_hovering_names_the_tensor_the_step_and_the_live_bytes(
    browser: Browser, tmp_path: Path
) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    assert browser.run("document.getElementById('about').textContent") == ""
    x, y = centre_of_map(browser)
    browser.mouse("mouseMoved", x, y)
    about = browser.run("document.getElementById('about').textContent")
    assert "128.00 KiB at offset" in about
    assert "made by b" in about
    assert "KiB live" in about


def test_searching_leaves_the_matching_rows_and_dims_the_rest(
    browser: Browser, tmp_path: Path
) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    before = picture(browser)
    browser.press("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.call("Input.insertText", text="B0_relu float32")
    assert {"b0_relu", "b0_conv"} <= set(names_in_table(browser)), "nodes are searched too"
    assert "fc1" not in names_in_table(browser)
    found = browser.run("document.getElementById('found').textContent")
    assert found.endswith("of 20 tensors")
    assert browser.run("new Promise(done => requestAnimationFrame(() => done(1)))") == 1
    assert picture(browser) != before
    browser.press("Enter")
    assert browser.run("document.querySelectorAll('#rows tr.on').length") == 1


def test_the_map_zooms_moves_and_comes_back(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    settle = "new Promise(done => setTimeout(done, 60))"
    browser.run(settle)
    whole = picture(browser)
    browser.run("document.getElementById('map').focus()")
    browser.press("+")
    browser.run(settle)
    near = picture(browser)
    assert near != whole
    browser.press("ArrowRight")
    browser.run(settle)
    assert picture(browser) not in {near, whole}
    browser.press("0")
    browser.run(settle)
    assert picture(browser) == whole
    x, y = centre_of_map(browser)
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    browser.run(settle)
    assert picture(browser) != whole


def test_a_click_on_a_heading_sorts_and_a_second_one_turns_it(
    browser: Browser, tmp_path: Path
) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    head = "document.querySelector('#rows th[data-key=name]')"
    browser.run(f"{head}.firstChild.click()")
    up = names_in_table(browser)
    assert up == sorted(up)
    assert browser.run(f"{head}.getAttribute('aria-sort')") == "ascending"
    browser.run(f"{head}.firstChild.click()")
    assert names_in_table(browser) == up[::-1]


def test_only_what_is_live_at_the_peak_can_be_asked_for(
    browser: Browser, tmp_path: Path
) -> None:
    plan = plan_named("branchy")
    shown(browser, tmp_path, html.render(plan))
    browser.run("document.getElementById('only').click()")
    assert plan.report.peak is not None
    assert {name for name, _ in plan.report.peak.tensors} <= set(names_in_table(browser))
    assert len(names_in_table(browser)) < len(plan.tensors)


def test_dark_and_light_are_two_pictures_of_one_page(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colour) != light
    browser.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    browser.open(tmp_path / "page.html")
    assert browser.run(colour) != light
    browser.call("Emulation.setEmulatedMedia", features=[])


def test_the_page_prints_with_its_tables_and_without_its_controls(
    browser: Browser, tmp_path: Path
) -> None:
    shown(browser, tmp_path, html.render(plan_named("branchy")))
    printed = base64.b64decode(browser.call("Page.printToPDF")["data"])
    assert printed.startswith(b"%PDF")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.complaints() == []


def test_another_order_is_laid_over_the_live_bytes(browser: Browser, tmp_path: Path) -> None:
    plan = plan_named("branchy")
    beside = html.Beside("the <b>other</b> order", plan_named("train_level1"))
    shown(browser, tmp_path, html.render(plan))
    alone = browser.run("document.getElementById('live').toDataURL()")
    shown(browser, tmp_path, html.render(plan, beside))
    assert browser.run("document.getElementById('live').toDataURL()") != alone
    assert "the <b>other</b> order" in browser.run("document.body.innerText")


def test_a_thousand_tensors_are_less_than_a_megabyte() -> None:
    assert len(html.render(staircase(1_000)).encode()) < 1_000_000


def test_twenty_thousand_tensors_are_usable(browser: Browser, tmp_path: Path) -> None:
    shown(browser, tmp_path, html.render(staircase(20_000)))
    assert browser.complaints() == []
    assert len(names_in_table(browser)) < 100, "only the rows in sight exist"
    seconds = browser.run(
        "(async () => { const search = document.getElementById('search');"
        " const start = performance.now(); search.value = 'layer_19';"
        " search.dispatchEvent(new Event('input'));"
        " await new Promise(done => requestAnimationFrame(() => setTimeout(done)));"
        " return (performance.now() - start) / 1000; })()"
    )
    # A share of a second on a quiet machine; this one may be very busy.
    assert seconds < 30
    assert names_in_table(browser)[0].startswith("layer_19")
