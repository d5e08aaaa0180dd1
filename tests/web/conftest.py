"""One application with one worker of each kind for all tests of the page; each test asks it as a browser would.

It waits longer for an answer than a person would, so that a busy machine fails no test.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright
from starlette.testclient import TestClient
from tests.web.browser import CHROMIUM, NAME, WIDE, Visit, served, visit

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
    """One that reaches no other machine, by name or by number: it asks for them through a proxy that is not there."""
    flags = [
        "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9", f"--proxy-bypass-list={NAME}",
        f"--host-resolver-rules=MAP {NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ]  # fmt: skip
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield made
        made.close()


@pytest.fixture
def alone(browser: Browser, address: str) -> Iterator[Visit]:
    """A window of its own, for what is told by its history."""
    with visit(browser, address) as made:
        yield made
    assert made.wrong == []


@pytest.fixture(scope="module")
def shared(browser: Browser, address: str) -> Iterator[Visit]:
    with visit(browser, address) as made:
        yield made


@pytest.fixture
def window(shared: Visit, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """The window in which tests go from view to view."""
    failed = request.session.testsfailed
    shared.page.set_viewport_size(WIDE)
    shared.page.emulate_media(color_scheme="light")
    yield shared
    shared.leave(has_failed=request.session.testsfailed > failed)
    wrong, shared.wrong = shared.wrong, []
    assert wrong == []


@pytest.fixture
def narrow(window: Visit) -> Visit:
    window.page.set_viewport_size({"width": 380, "height": 800})
    return window


@pytest.fixture
def laptop(window: Visit) -> Visit:
    window.page.set_viewport_size({"width": 1440, "height": 900})
    return window


@pytest.fixture
def dark(window: Visit) -> Visit:
    window.page.emulate_media(color_scheme="dark")
    return window
