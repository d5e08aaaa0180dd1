"""In a browser: a change is answered in parts, each when it is wanted, and what is taken away is whole."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Request, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit

pytestmark = NEEDS_BROWSER


def parts_asked(page: Page) -> list[list[str]]:
    """The parts of answers that the page asks for from now on, request by request."""
    asked: list[list[str]] = []

    def hear(request: Request) -> None:
        address = urlsplit(request.url)
        if address.path.startswith("/api/v1/answers/"):
            asked.append(parse_qs(address.query)["part"])

    page.on("request", hear)
    return asked


def test_figures_then_charts_and_downloads_when_they_are_taken(window: Visit) -> None:
    asked = parts_asked(window.page)
    page = window.answered("?view=batching")
    page.locator("figure[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
    assert asked == [["sections"], ["charts"]]
    with page.expect_download(timeout=PATIENCE_MS) as taken:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(taken.value.path()).read_text())
    whole = page.request.post(
        f"{window.address}api/v1/answers/curve",
        data=json.dumps({"model": "llama-3.1-8b", "gpu": "H100-SXM", "context": "1024"}),
        headers=window.own,
    ).json()
    assert saved == whole["result"]
    page.locator("details.asText summary").click()
    expect(page.locator("details.asText pre")).to_contain_text(whole["text"].splitlines()[0].strip())
    assert asked == [["sections"], ["charts"], ["result"], ["text"]]
    with page.expect_download(timeout=PATIENCE_MS) as taken:
        page.get_by_role("button", name="CSV").last.click()
    assert len(Path(taken.value.path()).read_text().splitlines()) > 2
    assert len(asked) == 4, "what came once is not asked for again"


def test_the_view_of_apis_alone_asks_for_them(window: Visit) -> None:
    paths: list[str] = []
    window.page.on("request", lambda request: paths.append(urlsplit(request.url).path))
    page = window.answered("?view=batching")
    assert "/api/v1/catalog" in paths
    assert "/api/v1/catalog/apis" not in paths
    page.locator("#views a[data-view=own]").click()
    expect(page.locator('datalist option[value="groq:llama-3.1-8b-instant"]')).to_have_count(1)
    assert "/api/v1/catalog/apis" in paths
