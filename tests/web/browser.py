"""A page's server, a Chromium, and windows that note whatever goes wrong in them, for the tests in a real browser.

The fixtures are in ``conftest.py``: one server for all, one Chromium for each file of tests. Whatever a test does,
nothing may leave this machine, no script may fail, and the page's own policy (no inline script or style) may not be
broken: each test ends by checking that.
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
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
NEEDS_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]
"""The ``pytestmark`` of every file that uses it."""

LEDGER = Path(__file__).parents[1] / "measure" / "pages" / "week.db"
NAME = "tokonomics.example"
"""Of this machine on its network, as far as the browser knows."""
PATIENCE_MS = 600_000
"""A worker's first answer compiles and loads; on a busy machine that takes a while."""

expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def served(home: Path, *guarded: str) -> Iterator[str]:
    changed = {"HOME": str(home), "TOKONOMICS_TODAY": "2026-11-15", "TOKONOMICS_CACHE": str(home / "prices")}
    command = [sys.executable, str(Path(__file__).with_name("served_page.py")), str(LEDGER), *guarded]
    with subprocess.Popen(command, env={**os.environ, **changed}, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+/", said)
        assert found, said
        try:
            yield found[0]
        finally:
            server.terminate()


@dataclass
class Visit:
    """A fresh window, and what went wrong in it."""

    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)

    def open(self, query: str = "") -> Page:
        self.page.goto(self.address + query)
        self.page.wait_for_selector("#main h1")
        return self.page

    def answered(self, query: str = "") -> Page:
        page = self.open(query)
        page.wait_for_selector(".pane[data-state=shown] .headline", timeout=PATIENCE_MS)
        return page

    @property
    def own(self) -> dict[str, str]:
        """Headers of a request as the page makes it."""
        return {"content-type": "application/json", "origin": self.address.rstrip("/")}

    def hear(self, message: ConsoleMessage) -> None:
        # The browser itself notes every refused request; what the page makes of it is tested.
        refused = "Failed to load resource" in message.text and "/api/v1/" in message.location.get("url", "")
        if message.type == "error" and not refused:
            self.wrong.append(f"console: {message.text}")

    def guard(self, route: Route) -> None:
        if urlsplit(route.request.url).hostname in ("127.0.0.1", "localhost", NAME):
            route.continue_()
        else:
            self.wrong.append(f"request to {route.request.url}")
            route.abort()


def visit(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}, **options})
    made = Visit(context.new_page(), address)
    context.route("**/*", made.guard)
    made.page.on("console", made.hear)
    made.page.on("pageerror", lambda error: made.wrong.append(f"script: {error}"))
    watch = "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective))"
    made.page.add_init_script(watch)
    yield made
    context.close()
    assert made.wrong == []
