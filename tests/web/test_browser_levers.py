"""Levers, Fleet and Own in a real browser: examples that open the views, what folds, and progress that is counted."""

import re

from playwright.sync_api import Page, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit

pytestmark = NEEDS_BROWSER


def example(page: Page) -> str:
    """What is said of the example, once its chart is drawn."""
    page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
    return page.locator(".said.example").inner_text()


def jobs_of(page: Page) -> list[str]:
    """Fills with the addresses of jobs that the page starts."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/v1/jobs" in request.url else None)
    return asked


def test_levers_open_with_an_example_that_goes_when_the_scenario_changes(window: Visit) -> None:
    asked = jobs_of(window.page)
    page = window.open("?view=levers")
    said = example(page)
    assert re.search(r"computed on 20\d\d-\d\d-\d\d by tokonomics \d", said)
    assert said.endswith("Press Simulate for yours.")
    expect(page.get_by_role("button", name="Save report")).to_have_count(0)
    page.get_by_text("Waterfall").click()
    expect(page.locator("figure.chart h2").first).to_contain_text("From naive to optimised")
    assert example(page).startswith("An example: all optimisations of")
    rate = page.locator("input[name=rate]").first
    rate.fill("6")
    rate.blur()
    expect(page.locator(".empty h2")).to_have_text("Say what runs today")
    expect(page.locator(".said.example, .headline, figure.chart")).to_have_count(0)
    rate.fill("5")
    rate.blur()
    expect(page.locator(".said.example")).to_be_visible()
    assert asked == [], "nothing was simulated"


def test_levers_that_do_not_apply_fold_and_open_with_their_reasons(window: Visit) -> None:
    page = window.open("?view=levers")
    example(page)
    folded = page.locator("details.part", has_text="levers do not apply")
    expect(folded.get_by_text("the traffic has no sessions")).to_have_count(0)
    number = int(folded.locator("summary").inner_text().split()[0])
    folded.locator("summary").click()
    expect(folded.get_by_text("the traffic has no sessions")).to_be_visible()
    expect(folded.locator("tbody tr")).to_have_count(number)


def test_a_fleet_opens_with_an_example_whose_figure_and_chart_agree(narrow: Visit) -> None:
    page = narrow.open("?view=fleet")
    assert example(page).endswith("Press Find the fleet for yours.")
    tile = page.locator(".tiles div", has=page.get_by_text("saves", exact=True))
    share, against = tile.locator("dd").first.inner_text(), tile.inner_text().split("against ")[-1].strip()
    expect(page.locator("figure.chart h2").first).to_contain_text(f"{share} below {against}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_levers_job_says_which_lever_of_how_many(window: Visit) -> None:
    page = window.open("?view=levers&rate=2&input=300&output=100")
    expect(page.locator(".empty")).to_be_visible()
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator(".progress .what")).to_have_text(re.compile(r"^\d+ of \d+ levers: "))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".progress")).to_be_hidden()
