"""No view breaks a rule of axe-core, which axe-playwright-python carries: wide and on a phone, light and dark."""

from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.web.browser import NAME, NEEDS_BROWSER, PATIENCE_MS, Visit, served, visit

pytestmark = NEEDS_BROWSER

AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
RUN = """() => axe.run({resultTypes: ["violations"]}).then(({violations}) => violations.flatMap(({id, nodes}) =>
  nodes.map(({target, failureSummary}) => `${id} at ${target}: ${failureSummary}`)))"""
Look = tuple[int, int, str]
DAILY: tuple[Look, ...] = ((1440, 900, "light"), (380, 800, "dark"))
OTHERS: tuple[Look, ...] = ((1440, 900, "dark"), (820, 1180, "light"), (820, 1180, "dark"), (380, 800, "light"))
LOOKS = [pytest.param(DAILY, id="daily"), pytest.param(OTHERS, id="others", marks=pytest.mark.explore)]
"""Of six sizes and colours, two differ in everything; the others are looked at where there is time."""

READY = ".pane[data-state=shown] .headline, .pane[data-state=refused] h2, .pane[data-state=empty] .empty h2"
VIEWS = {
    "plan": "?view=plan&gpu=L40S",
    "rightsize": "?view=rightsize",
    "batching": "?view=batching",
    "traffic": "?view=traffic&from=made&duration=2m",
    "levers": "?view=levers",
    "own": "?view=own&panel=buy",
    "fleet": "?view=fleet",
    "meter": "?view=meter",
    "accuracy": "?view=accuracy",
    "benchmark": "?view=benchmark",
    "a refusal": "?view=batching&gpu=H1000",
    "a refusal with a hint and an SLO": "?view=traffic&from=made&output=&slo=ttft_p99%3D-1",
    "nothing found": "?view=plan&gpu=L40S&slo=tpot_p99%3D0.001ms",
    "two scenarios": "?view=batching&compare=1&b.gpu=L40S",
}


DRAWN = """() => !document.querySelector(".undrawn, .aside")
  && [...document.querySelectorAll("figure.chart")].every(({dataset}) => dataset.drawn)"""
"""No chart is on its way, or half drawn."""


def broken(page: Page) -> list[str]:
    """What axe objects to: the rule, where, and why."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    return list(page.evaluate(RUN))


def seen_as(page: Page, look: Look) -> str:
    width, height, scheme = look
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_function(DRAWN, timeout=PATIENCE_MS)
    return f"{width}×{height}, {scheme}"


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("query", VIEWS.values(), ids=VIEWS)
def test_no_view_breaks_a_rule(window: Visit, query: str, looks: tuple[Look, ...]) -> None:
    page = window.open(query)
    page.locator(READY).first.wait_for(timeout=PATIENCE_MS)
    found = {seen_as(page, look): broken(page) for look in looks}
    assert {look: rules for look, rules in found.items() if rules} == {}


def test_what_is_folded_breaks_no_rule_when_it_is_opened(window: Visit) -> None:
    page = window.answered("?view=batching&compare=1")
    page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
    open_all = "for (const part of document.querySelectorAll('details')) part.open = true"
    page.evaluate(open_all)
    page.locator(".data .tabled").first.wait_for()
    assert broken(page) == []
    page = window.open("?view=levers")
    page.evaluate(open_all)
    assert broken(page) == []


def test_the_sheet_and_the_menu_of_a_phone_break_no_rule(narrow: Visit) -> None:
    page = narrow.open("?view=levers")
    page.get_by_role("button", name="Scenario").click()
    expect(page.get_by_label("Model")).to_be_visible()
    assert broken(page) == []
    page.get_by_role("button", name="Views").click()
    assert broken(page) == []


def test_the_login_page_breaks_no_rule(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path, "a-token-of-some-length", NAME) as address:
        for window in visit(browser, address):
            page = window.page
            page.goto(address)
            found = {seen_as(page, look): broken(page) for look in (*DAILY, *OTHERS)}
            page.get_by_label("Token").fill("mistyped-token-of-length")
            page.keyboard.press("Enter")
            expect(page.get_by_role("alert")).to_be_visible()
            window.wrong.clear()  # the browser notes the refusal
            found |= {f"refused, {seen_as(page, look)}": broken(page) for look in DAILY}
            assert {look: rules for look, rules in found.items() if rules} == {}
