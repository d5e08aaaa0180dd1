"""One application with one worker of each kind for all tests of the page; each test asks it as a browser would.

It waits longer for an answer than a person would, so that a busy machine fails no test.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from starlette.testclient import TestClient
from tests.web.browser import CHROMIUM, NAME, Visit, served, visit

from tokonomics.web.app import make_app
from tokonomics.web.safety import Gate
from tokonomics.web.service import Settings

ADDRESS = "http://127.0.0.1:8321"


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    home = tmp_path_factory.mktemp("page-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("TOKONOMICS_TODAY", "2026-11-15")
        patch.setenv("TOKONOMICS_CACHE", str(home / "prices"))
        patch.setenv("COLUMNS", "140")
        made = make_app(Settings(quick_workers=1, long_workers=1, quick_s=600.0, warm_up=False))
        yield made
        made.service.close()


@pytest.fixture
def page(gate: Gate) -> TestClient:
    """Asks as a page of ours does; no lifespan, so that the application outlives the test."""
    return TestClient(gate, base_url=ADDRESS, raise_server_exceptions=False)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of our own."""
    with served(tmp_path_factory.mktemp("browser-home")) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        here = f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", here])
        yield made
        made.close()


@pytest.fixture
def window(browser: Browser, address: str) -> Iterator[Visit]:
    yield from visit(browser, address)


@pytest.fixture
def narrow(browser: Browser, address: str) -> Iterator[Visit]:
    yield from visit(browser, address, viewport={"width": 380, "height": 800})


@pytest.fixture
def dark(browser: Browser, address: str) -> Iterator[Visit]:
    yield from visit(browser, address, color_scheme="dark")
