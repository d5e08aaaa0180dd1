"""A simulated run is scrubbed and played: its figures are those of the answer, and it moves only when asked to."""

import re

from playwright.sync_api import Page, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit

pytestmark = NEEDS_BROWSER

RUN = "?view=traffic&run=1&from=made&rate=26&duration=1m&slo=ttft_p99%3D60ms"
"""A minute at more than most first tokens come in time for."""


def counters(page: Page) -> dict[str, str]:
    names, values = (page.locator(f".player {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip((name.lower() for name in names), values, strict=True))


def moment(page: Page) -> int:
    return int(page.locator(".player input[type=range]").input_value())


def opened(visit: Visit) -> Page:
    page = visit.answered(RUN)
    page.wait_for_selector(".player", timeout=PATIENCE_MS)
    return page


def test_the_end_of_the_run_is_the_answer_and_a_miss_names_who_and_why(window: Visit) -> None:
    page = opened(window)
    answered = page.locator(".pane .tiles").filter(has_text="answered").inner_text()
    done, asked = re.findall(r"([\d,]+) of ([\d,]+) answered", answered)[0]
    paid = re.findall(r"replica-hours paid for, (\S+)", page.locator(".pane").inner_text())[0]
    price = page.locator(".headline strong").first.inner_text()
    slider = page.locator(".player input[type=range]")
    slider.focus()
    slider.press("Home")
    assert (moment(page), counters(page)["finished"], counters(page)["paid"]) == (0, "0", "$0.00")
    slider.press("ArrowRight")
    assert moment(page) == 1
    slider.press("End")
    shown = counters(page)
    assert (shown["arrived"], shown["finished"], shown["waiting"], shown["running"]) == (asked, done, "0", "0")
    assert (shown["paid"], shown["$/mtok so far"]) == (paid, price)
    missed = page.locator(".player .misses .said").inner_text()
    assert missed.startswith(f"{shown['missed slo']} of {asked} requests")
    page.get_by_role("button", name="Previous miss").click()
    last = page.locator(".player .who h3").inner_text()
    page.locator(".player svg.marks").click(position={"x": 3, "y": 6})
    first = page.locator(".player .who").inner_text()
    assert last not in first
    assert re.search(r"request [\d,]+: TTFT .*SLO 60 ms; [\d,]+ prompt tokens?, [\d,]+ answer tokens?; it", first)
    reached = moment(page)
    assert 0 < reached < int(slider.get_attribute("max") or 0)
    page.get_by_role("button", name="Next miss").click()
    assert moment(page) > reached


def test_it_plays_when_asked_and_stands_still_when_paused(window: Visit) -> None:
    page = opened(window)
    slider = page.locator(".player input[type=range]")
    at_first = moment(page)
    assert at_first == int(slider.get_attribute("max") or 0)
    play = page.locator(".player .play")
    expect(play).to_have_text("Play")
    slider.focus()
    slider.press("Home")
    slider.press(" ")
    expect(play).to_have_text("Pause")
    expect(slider).to_have_value(re.compile(r"^([3-9]|\d\d+)$"))
    play.click()
    expect(play).to_have_text("Play")
    stopped = moment(page)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert moment(page) == stopped
    slider.press("ArrowLeft")
    assert moment(page) == stopped - 1
