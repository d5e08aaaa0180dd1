"""How quick the page is: first paint, first answer, and from a slider's move to the numbers and the chart.

Starts ``tokonomics web`` as a user does, opens it in the system's Chromium and moves the slider of the batching view.
Times are the browser's own; what is printed is the median and the slowest of the repeats. The first visit after a
start is cold (workers load); the others are what a reader who stays sees. Targets: usable in 1 s, updated in 0.2 s.

    python benchmarks/bench_page.py --repeats 30
"""

import argparse
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

MOVE = """async (place) => {
  const slider = document.querySelector('input[aria-label="Context of a sequence, slider"]');
  const [number, figure] = [document.querySelector(".pane .before"), document.querySelector("figure.chart")];
  const seen = (target, options) => new SLO((resolve) => {
    const painted = () => requestAnimationFrame(() => resolve(performance.now()));
    const watch = new MutationObserver(() => { watch.disconnect(); painted(); });
    watch.observe(target, options);
  });
  const began = performance.now();
  const both = [seen(number, {childList: true}), seen(figure, {attributes: true, attributeFilter: ["data-drawn"]})];
  slider.value = String(place);
  slider.dispatchEvent(new Event("input", {bubbles: true}));
  const [numbers, chart] = await SLO.all(both);
  return [numbers - began, chart - began];
}"""
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@contextmanager
def served() -> Iterator[str]:
    command = [sys.executable, "-m", "tokonomics", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found
        try:
            yield found[0]
        finally:
            server.terminate()


def opened(page: Page, address: str) -> tuple[float, float, float]:
    """Milliseconds from the start of the visit to the first paint, the answer and its chart."""
    page.goto(f"{address}?view=batching")
    page.wait_for_selector(".headline")
    answer = page.evaluate("performance.now()")
    page.wait_for_selector("figure[data-drawn]")
    return page.evaluate(PAINT), answer, page.evaluate("performance.now()")


def line(what: str, found: list[float]) -> str:
    return f"{what:<28}{statistics.median(found):>10.0f} ms{max(found):>10.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    with served() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        cold = opened(page, address)
        warm = [opened(page, address) for _ in range(max(repeats // 6, 3))]
        page.wait_for_timeout(500)
        moves = [page.evaluate(MOVE, 60 + (place * 37) % 300) for place in range(repeats)]
        browser.close()
    names = ("first paint", "first answer", "its chart")
    print(f"{'':<28}{'median':>13}{'slowest':>13}")
    for name, at in zip(names, range(3), strict=True):
        print(line(f"{name}, cold", [cold[at]]))
        print(line(f"{name}, again", [visit[at] for visit in warm]))
    print(line("slider to numbers", [move[0] for move in moves]))
    print(line("slider to chart", [move[1] for move in moves]))


if __name__ == "__main__":
    main()
