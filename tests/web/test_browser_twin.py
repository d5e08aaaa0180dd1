"""The twin's forecasts on the page, in a real browser: the figures of the report, in a chart without collisions."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, FloatRect
from tests.command import run
from tests.web.browser import NEEDS_BROWSER, served, settled, visit

pytestmark = NEEDS_BROWSER
MORNING = Path(__file__).parents[2] / "docs" / "examples" / "twin-morning.db"


@pytest.fixture(scope="module")
def twin_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("twin-home"), ledger=MORNING) as found:
        yield found


@pytest.mark.parametrize(("width", "theme"), [(1440, "light"), (1440, "dark"), (380, "light"), (380, "dark")])
def test_the_twins_forecasts_are_drawn_below_the_meter(
    browser: Browser, twin_address: str, width: int, theme: Literal["light", "dark"]
) -> None:
    """Every figure of the report is on the page; names of changes and of times keep apart, and nothing is cut off."""
    with visit(browser, twin_address) as made:
        made.page.set_viewport_size({"width": width, "height": 900})
        made.page.emulate_media(color_scheme=theme)
        with made.page.expect_response("**/api/v1/meter") as read:
            page = made.answered("?view=meter")
        settled(page)
        report = json.loads(run("twin", "report", "--ledger", str(MORNING), "--since=2026-11-15", "--json").stdout)
        assert read.value.json()["twin"]["servers"] == report["servers"]
        text = page.locator("#main").inner_text()
        assert "24 windows of 1 server scored, 3 changes" in text
        assert "llama-3.1-8b on http://gpu1:8000" in text
        labels = page.locator("figure.chart .role-mark text")
        assert sorted(labels.all_text_contents()) == ["10:30 traffic", "11:20 cache", "12:10 kernels"]
        for places in (labels, page.locator("figure.chart .role-axis-label text")):
            boxes = [
                box for each in places.all() if each.get_attribute("opacity") != "0" and (box := each.bounding_box())
            ]
            assert boxes
            assert not [(one, two) for one, two in combinations(boxes, 2) if overlap(one, two)]
        drawing = page.locator("figure.chart .drawing").first
        assert drawing.evaluate("(it) => it.scrollWidth <= it.clientWidth")
        assert made.wrong == []


def overlap(one: FloatRect, two: FloatRect) -> bool:
    across = one["x"] < two["x"] + two["width"] and two["x"] < one["x"] + one["width"]
    return across and one["y"] < two["y"] + two["height"] and two["y"] < one["y"] + one["height"]
