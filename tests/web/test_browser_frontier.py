"""The frontier of Plan in a real browser: on the first screen, pinned by mouse and by keyboard, names that toggle."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit, visit

pytestmark = NEEDS_BROWSER

SHORT = "?view=plan&gpu=L40S,H100"
"""Few GPUs: drawn sooner."""


@pytest.fixture
def laptop(browser: Browser, address: str) -> Iterator[Visit]:
    yield from visit(browser, address, viewport={"width": 1440, "height": 900})


def drawn(page: Page) -> Page:
    page.locator(".hero figure.chart[data-drawn]").wait_for(timeout=PATIENCE_MS)
    return page


def fleets(page: Page) -> Locator:
    """The points of the first panel."""
    return page.locator(".hero svg .fleets_tps_marks path")


def bottom(part: Locator) -> float:
    box = part.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def test_headline_and_frontier_share_the_first_screen_and_figures_come_after(laptop: Visit) -> None:
    page = drawn(laptop.answered("?view=plan"))
    assert bottom(page.locator(".headline").first) < bottom(page.locator(".hero svg")) <= 900
    tiles = page.locator(".tiles").first.bounding_box()
    assert tiles is not None
    assert tiles["y"] >= bottom(page.locator(".hero"))


def test_a_click_pins_a_deployment_and_its_gpu_becomes_the_scenario_to_compare_with(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    point = fleets(page).last
    words = dict(part.split(": ", 1) for part in str(point.get_attribute("aria-label")).split("; ") if ": " in part)
    point.click()
    card = page.locator(".pins section")
    expect(card.locator("h3")).to_have_text(words["deployment"])
    expect(card).to_contain_text(words["price"])
    expect(card).to_contain_text(words["per user"])
    card.get_by_role("button", name="Compare").click()
    expect(page.locator("#main .column")).to_have_count(2)
    gpu = next(name for name in ("L40S", "H100-SXM") if name in words["deployment"])
    seller = words["deployment"].rpartition(" at ")[2].split()[0]
    precision = next(name for name in ("bf16", "fp8") if name in words["deployment"])
    assert all(said in page.url for said in (f"b.gpu={gpu}", f"b.provider={seller}", f"b.min_weights={precision}"))


def test_a_pin_stays_when_the_traffic_needs_another_number_of_replicas(laptop: Visit) -> None:
    page = drawn(laptop.answered("?view=plan&gpu=L40S&rate=5"))
    chosen = page.get_by_label("A deployment to pin")
    name = next(name for name in chosen.locator("option").all_inner_texts()[1:] if name.startswith("1 × L40S"))
    chosen.select_option(name)
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator(".pins h3")).to_have_text(name)
    rate = page.locator("input[name=rate]").first
    rate.fill("40")
    rate.press("Enter")
    expect(page.locator(".pins h3")).not_to_have_text(name)
    replicas, _, rest = page.locator(".pins h3").inner_text().partition(" × ")
    assert int(replicas) > 1
    assert rest == name.partition(" × ")[2]


def test_the_keyboard_pins_and_unpins_and_plans_with_the_gpu(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    chosen = page.get_by_label("A deployment to pin")
    names = chosen.locator("option").all_inner_texts()[1:]
    assert len(names) == len(set(names)) > 3
    chosen.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".pins h3")).to_have_text(names[0])
    page.keyboard.press("Enter")
    expect(page.locator(".pins section")).to_have_count(0)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Plan with it").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**min_weights=*")
    assert any(f"gpu={gpu}&" in page.url for gpu in ("L40S", "H100-SXM"))


def test_a_name_in_the_legend_shows_its_gpu_alone(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    faint = page.locator(".hero svg .fleets_tps_marks path[opacity='0.05']")
    expect(faint).to_have_count(0)
    page.locator(".hero svg .role-legend text", has_text="H100-SXM").click()
    labels = fleets(page).evaluate_all("all => all.map((one) => [one.getAttribute('opacity'), one.ariaLabel])")
    assert {opacity for opacity, said in labels if "H100-SXM" in said} == {"0.9"}
    assert {opacity for opacity, said in labels if "H100-SXM" not in said} == {"0.05"}


def test_several_models_are_answered_without_a_frontier_and_nothing_fails(laptop: Visit) -> None:
    page = laptop.open("?view=plan&gpu=L40S&model=llama-3.1-8b,qwen3-8b")
    page.locator(".charts figure.chart[data-drawn]").wait_for(timeout=PATIENCE_MS)
    expect(page.get_by_label("A deployment to pin")).to_have_count(0)
