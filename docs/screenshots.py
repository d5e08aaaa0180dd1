"""Pictures of the page for the README and the docs: docs/img/web-*.png, taken of a server of our own.

Starts ``tokonomics web`` on a fixed day, opens each scenario in the system's Chromium and saves what a reader sees.

    python docs/screenshots.py            # those that the guide shows
    python docs/screenshots.py plan fleet # these
"""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pictures import slim
from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).parent / "img"
LEDGER = Path(__file__).parents[1] / "tests" / "measure" / "pages" / "week.db"
"""Two servers over five days, made up for the meter's tests."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 240_000
"""A plan simulates for a minute on a slow machine."""


@dataclass(frozen=True)
class Shot:
    """One picture: where, how wide, by day or night."""

    query: str
    width: int = 1360
    height: int = 1180
    scheme: str = "light"
    chart: bool = True


SHOWN = ("plan", "compare", "levers", "meter")
SHOTS = {
    "plan": Shot("?view=plan&run=1", height=1560),
    "plan-dark": Shot("?view=plan", height=1560, scheme="dark"),
    "plan-narrow": Shot("?view=plan", width=380, height=1500),
    "rightsize": Shot("?view=rightsize", chart=False),
    "batching": Shot("?view=batching"),
    "compare": Shot("?view=batching&compare=1&b.gpu=L40S", height=1400),
    "traffic": Shot("?view=traffic&run=1", height=1300),
    "levers": Shot("?view=levers&run=1"),
    "own": Shot("?view=own"),
    "fleet": Shot("?view=fleet&run=1", height=1300),
    "meter": Shot("?view=meter", height=1300),
    "accuracy": Shot("?view=accuracy", chart=False),
}


def take(browser: Browser, address: str, name: str, shot: Shot) -> None:
    """Waits for the answer and its chart, then saves the top of the page."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.scheme == "dark" else "light",
        device_scale_factor=1,
    )
    page = context.new_page()
    page.goto(address + shot.query)
    page.wait_for_selector(".pane .headline, .pane[data-state=refused]", timeout=PATIENCE_MS)
    if shot.chart:
        page.wait_for_selector("figure[data-drawn], .pane[data-state=refused]", timeout=PATIENCE_MS)
    page.wait_for_timeout(600)
    if page.locator(".pane[data-state=refused]").count():
        print(f"web-{name}.png: not taken, {page.locator('.trouble h2').first.inner_text()}", file=sys.stderr)
    else:
        page.screenshot(path=IMAGES / f"web-{name}.png")
        slim(IMAGES / f"web-{name}.png")
        print(f"web-{name}.png")
    context.close()


def ledger_until_now(folder: Path) -> Path:
    """The ledger moved in time, so that the afternoon of its last day is now; what would be later is left out.

    Its rows of an hour become rows of five minutes, as the meter itself writes them.
    """
    file = folder / "meter.db"
    shutil.copy(LEDGER, file)
    with closing(sqlite3.connect(file)) as book, book:
        (end,) = book.execute("SELECT max(start + seconds) FROM spans").fetchone()
        book.execute("UPDATE spans SET start = start + ?", (time.time() - (end - 9 * 3600),))
        columns = [name for _, name, *_ in book.execute("PRAGMA table_info(spans)")]
        sums = columns[columns.index("seconds") :]
        kept = ", ".join(columns[1 : columns.index("start")])
        parts = ", ".join(f"{name} / 12" for name in sums)
        recent = book.execute("SELECT id FROM spans WHERE start + seconds > ?", (time.time() - 7200,)).fetchall()
        for (row,) in recent:
            for part in range(12):
                book.execute(
                    f"INSERT INTO spans ({kept}, start, {', '.join(sums)}) "
                    f"SELECT {kept}, start + seconds * ? / 12, {parts} FROM spans WHERE id = ?",
                    (part, row),
                )
            book.execute("DELETE FROM spans WHERE id = ?", (row,))
        book.execute("DELETE FROM spans WHERE start + seconds > ?", (time.time(),))
    return file


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in SHOTS]
    if unknown:
        sys.exit(f"no such picture: {', '.join(unknown)}; there are {', '.join(SHOTS)}")
    day = (Path(__file__).parent / "as-of.txt").read_text().strip()
    folder = TemporaryDirectory()
    ledger = ledger_until_now(Path(folder.name))
    command = [sys.executable, "-m", "tokonomics", "web", "--port", "0", "--no-open", "--ledger", str(ledger)]
    environment = {**os.environ, "TOKONOMICS_TODAY": day}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for name in names or SHOWN:
                take(browser, found[0], name, SHOTS[name])
            browser.close()
        server.terminate()
    folder.cleanup()


if __name__ == "__main__":
    main(sys.argv[1:])
