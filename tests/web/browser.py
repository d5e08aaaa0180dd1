"""A page's server, a Chromium, and windows that note whatever goes wrong in them, for the tests in a real browser.

The fixtures are in ``conftest.py``: one server for all, one Chromium for each file of tests, and in it one window in
which the tests go from view to view; a test that says so gets one of its own. Whatever a test does, nothing may leave
this machine, no script may fail, and the page's own policy (no inline script or style) may not be broken: each test
ends by checking that.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, ViewportSize, expect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
NEEDS_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium"),
]
"""The ``pytestmark`` of every file that uses it."""

LEDGER = Path(__file__).parents[1] / "measure" / "pages" / "week.db"
NAME = "tokonomics.example"
"""Of this machine on its network, as far as the browser knows."""
WIDE: ViewportSize = {"width": 1280, "height": 860}
PATIENCE_MS = 600_000
"""A worker's first answer compiles and loads; on a busy machine that takes a while."""

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def served(home: Path, *guarded: str, ledger: Path = LEDGER) -> Iterator[str]:
    changed = {"HOME": str(home), "TOKONOMICS_TODAY": "2026-11-15", "TOKONOMICS_CACHE": str(home / "prices")}
    command = [sys.executable, str(Path(__file__).with_name("served_page.py")), str(ledger), *guarded]
    with subprocess.Popen(command, env={**os.environ, **changed}, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+/", said)
        assert found, said
        try:
            yield found[0]
        finally:
            server.terminate()


GO = """(address) => {
  history.pushState(null, "", address);
  dispatchEvent(new PopStateEvent("popstate"));
  scrollTo(0, 0);
}"""
"""To another address without loading the page anew, as its Back button goes: a twentieth of the time."""
FORGET = """() => {
  localStorage.clear();
  sessionStorage.clear();
  delete document.documentElement.dataset.theme;
}"""


@dataclass
class Visit:
    """A window, and what went wrong in it."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)

    def load(self, query: str = "") -> Page:
        """As a new visitor: the page remembers no answers and no files."""
        self.page.goto(self.address + query)
        self.page.wait_for_selector("#main h1")
        return self.page

    def open(self, query: str = "") -> Page:
        if not self.page.url.startswith(self.address):
            return self.load(query)
        self.page.evaluate(GO, self.address + query)
        return self.page

    def answered(self, query: str = "") -> Page:
        self.open(query)
        return self.shown()

    def shown(self) -> Page:
        self.page.wait_for_selector(".pane[data-state=shown] .headline")
        return self.page

    def leave(self, has_failed: bool) -> None:
        """As the next test should find it: nothing is asked or kept, and nothing lies under the mouse."""
        self.page.unroute_all()
        self.page.mouse.move(0, 0)
        self.page.evaluate(FORGET)
        if has_failed:  # who knows what is open: the next test loads the page
            self.page.goto("about:blank")
        else:
            self.open("?view=benchmark")

    @property
    def own(self) -> dict[str, str]:
        """Headers of a request as the page makes it."""
        return {"content-type": "application/json", "origin": self.address.rstrip("/")}

    def hear(self, message: ConsoleMessage) -> None:
        # The browser itself notes every refused request; what the page makes of it is tested.
        refused = "Failed to load resource" in message.text and "/api/v1/" in message.location.get("url", "")
        if message.type == "error" and not refused:
            self.wrong.append(f"console: {message.text}")

    def watch(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and address.hostname not in ("127.0.0.1", "localhost", NAME):
            self.wrong.append(f"request to {request.url}")


def settled(page: Page) -> Locator:
    """The first chart, once it is drawn."""
    chart = page.locator("figure.chart[data-drawn]").first
    chart.wait_for()
    return chart


def dollars(text: str) -> float:
    return float(text.replace("−", "-").strip("$→ *†").replace("$", "").replace(",", ""))


@contextmanager
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """A window that shares nothing with others; what went wrong in it is for who uses it to look at."""
    context = browser.new_context(viewport=WIDE)
    context.set_default_timeout(PATIENCE_MS)
    made = Visit(context.new_page(), address)
    context.on("request", made.watch)
    made.page.on("console", made.hear)
    made.page.on("pageerror", lambda error: made.wrong.append(f"script: {error}"))
    watch = "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
    made.page.add_init_script(watch)
    try:
        yield made
    finally:
        context.close()
