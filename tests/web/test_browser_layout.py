"""Where things stand: the main button in the first screen, the answer first on phones; keys alone; files by name."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit

pytestmark = NEEDS_BROWSER

SIMULATING = ("plan", "traffic", "levers", "own", "fleet")
VIEWS = ("plan", "rightsize", "batching", "traffic", "levers", "own", "fleet", "meter", "accuracy", "benchmark")
FINGER_PX = 44
"""Apple's Human Interface Guidelines; WCAG 2.2, 2.5.5 (level AAA) asks for the same."""
READY = ".pane[data-state=shown] .headline, .pane[data-state=empty] .empty h2"


def stands_in_view(page: Page, part: Locator) -> bool:
    box, size = part.bounding_box(), page.viewport_size
    assert size
    return bool(box and box["y"] >= 0 and box["y"] + box["height"] <= size["height"])


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (820, 1180), (380, 800)])
def test_the_main_button_is_in_the_first_screen(window: Visit, width: int, height: int) -> None:
    page = window.page
    page.set_viewport_size({"width": width, "height": height})
    window.open("?view=fleet")
    for view in SIMULATING:
        if page.locator("#menu").is_visible():
            page.locator("#menu").click()
        page.locator(f"#views a[data-view={view}]").click()
        expect(page.locator(f"#main[data-view={view}]")).to_be_attached()
        assert page.evaluate("scrollY") == 0
        assert stands_in_view(page, page.locator("button.go")), view


def test_a_phone_shows_the_answer_first_and_reaches_every_view(narrow: Visit) -> None:
    page = narrow.answered("?view=batching")
    assert stands_in_view(page, page.locator(".headline").first)
    expect(page.get_by_label("Model")).to_be_hidden()
    for view in VIEWS:
        page.get_by_role("button", name="Views").click()
        link = page.locator(f"#views a[data-view={view}]")
        assert stands_in_view(page, link), view
        link.click()
        expect(page.locator("#main h1")).to_have_text(link.text_content() or "")
        expect(link).to_be_hidden()


def test_the_headline_stays_in_sight_while_the_form_is_changed(narrow: Visit) -> None:
    page = narrow.answered("?view=batching")
    glance, figure = page.locator("#glance"), page.locator(".headline .value strong").first
    expect(glance).to_be_hidden()  # the headline itself is there
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    expect(glance).to_contain_text(figure.inner_text())
    handle = page.get_by_role("button", name="Scenario")
    handle.click()
    before = glance.inner_text()
    gpu = page.get_by_label("GPU", exact=True)
    gpu.fill("L40S")
    gpu.press("Tab")
    expect(glance).not_to_have_text(before)
    expect(glance).to_contain_text(figure.inner_text())
    assert stands_in_view(page, glance)
    assert stands_in_view(page, gpu)
    page.keyboard.press("Escape")
    expect(gpu).to_be_hidden()
    expect(handle).to_be_focused()


TOO_SMALL = """(least) => {
  const seen = (part) => part.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const pressed = (part) => part.matches("[type=checkbox]") ? part.labels[0] : part;
  const parts = [...document.querySelectorAll("a, button, input, select, summary, .segments span")];
  return parts.filter((part) => seen(part) && !part.matches(".skip, [type=file]")).flatMap((part) => {
    const {width, height} = pressed(part).getBoundingClientRect();
    const what = part.textContent.trim() || part.name || part.type;
    return Math.min(width, height) < least ? [`${what}: ${width} × ${height}`] : [];
  });
}"""


def test_everything_on_a_phone_is_large_enough_for_a_finger(narrow: Visit) -> None:
    for query in ("?view=batching", "?view=plan&gpu=L40S", "?view=traffic&from=made&duration=2m"):
        page = narrow.answered(query)
        page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
        assert page.evaluate(TOO_SMALL, FINGER_PX) == []
        page.get_by_role("button", name="Scenario").click()
        page.get_by_role("button", name="Views").click()
        assert page.evaluate(TOO_SMALL, FINGER_PX) == []


def test_nothing_is_wider_than_a_narrow_screen(narrow: Visit) -> None:
    page = narrow.page
    for view in VIEWS:
        narrow.open(f"?view={view}&gpu=L40S")
        page.locator(READY).first.wait_for(timeout=PATIENCE_MS)
        if view in ("plan", "batching", "traffic"):
            page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
        for width in (380, 320):
            page.set_viewport_size({"width": width, "height": 640})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)


def test_a_wide_table_scrolls_in_its_box_and_keeps_the_names_of_its_rows(narrow: Visit) -> None:
    page = narrow.open("?view=accuracy")
    box = page.locator(".scroll").first
    name, cell = box.locator("tbody th").first, box.locator("tbody tr").first.locator("td").first
    head = box.locator("thead th").first
    before = [part.bounding_box() for part in (name, head, cell)]
    assert box.evaluate("(box) => ((box.scrollLeft = 120), box.scrollLeft)") == 120, "there is something to scroll"
    after = [part.bounding_box() for part in (name, head, cell)]
    moved = [one["x"] - other["x"] for one, other in zip(before, after, strict=True) if one and other]
    assert moved == [0, 0, 120]


SHOWN_FOCUS = """() => {
  const part = document.activeElement;
  const marked = part.matches(".segments input") ? part.nextElementSibling : part;
  const {outlineStyle, outlineWidth} = getComputedStyle(marked);
  const {width, height} = marked.getBoundingClientRect();
  return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 && width > 0 && height > 0;
}"""
FOCUSED = """() => {
  const part = document.activeElement;
  if (part === document.body) return "nothing";
  return part.name || part.getAttribute("aria-label") || part.textContent.trim();
}"""


def tabbed_to(page: Page, name: str, key: str = "Tab") -> None:
    """Presses Tab until a control of this name has the focus, which must be seen all the way."""
    for _ in range(150):
        page.keyboard.press(key)
        focused = page.evaluate(FOCUSED)
        assert page.evaluate(SHOWN_FOCUS), f"the focus on {focused!r} cannot be seen"
        if focused == name:
            return
    raise AssertionError(f"{key} never reached {name!r}")


def test_keys_alone_plan_compare_and_save_a_report(window: Visit) -> None:
    page = window.open("?view=plan&gpu=L40S")
    tabbed_to(page, "rate")
    page.keyboard.type("6")
    tabbed_to(page, "input")
    command = page.locator(".command code")
    expect(command.first).to_contain_text("--rate 6")
    tabbed_to(page, "Compare with another", "Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Stop comparing")).to_be_focused()
    tabbed_to(page, "Requests, slider")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".compared")).to_contain_text("B against A")
    assert re.search(r"b\.rate=6\.\d", page.url)
    expect(command.nth(1)).to_contain_text(re.compile(r"--rate 6\.\d"))
    expect(command.nth(0)).to_contain_text("--rate 6 ")
    tabbed_to(page, "Save report")
    with page.expect_download(timeout=PATIENCE_MS) as saved:
        page.keyboard.press("Space")
    report = Path(saved.value.path()).read_text()
    assert report.startswith("<!doctype html>")
    assert "--rate 6 " in report


def test_a_file_is_nowhere_called_by_its_number(window: Visit) -> None:
    page = window.open("?view=traffic")
    rows = "".join(f"{second},{100 + second},20\n" for second in range(60))
    header = "arrival_s,input_tokens,output_tokens\n"
    log = FilePayload(name="march.csv", mimeType="text/csv", buffer=(header + rows).encode())
    page.locator("input[type=file]").set_input_files(log)
    expect(page.locator("input[name=trace]")).to_have_value("march.csv")
    expect(page.locator(".command code")).to_contain_text("tokonomics trace march.csv")
    window.answered(page.url.removeprefix(window.address))
    said = page.evaluate(
        """() => document.body.textContent + document.title
             + [...document.querySelectorAll("input")].map((input) => input.value + input.placeholder)"""
    )
    assert "march.csv" in said
    assert "upload:" not in said
    with page.expect_download(timeout=PATIENCE_MS) as saved:
        page.get_by_role("button", name="Save report").click()
    report = Path(saved.value.path()).read_text()
    assert "march.csv" in report
    assert "upload:" not in report
    page.evaluate("sessionStorage.clear()")  # as whoever gets the link
    page.reload()
    expect(page.locator("input[name=trace]")).to_have_value("uploaded file")


def test_a_chart_of_rows_of_panels_fits_its_box(window: Visit) -> None:
    page = window.open("?view=benchmark")
    results = Path(__file__).parents[1] / "measure" / "results" / "inferencex.json"
    page.locator("input[type=file]").first.set_input_files(results)
    page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
    wide, room = page.locator(".drawing").first.evaluate("({scrollWidth, clientWidth}) => [scrollWidth, clientWidth]")
    assert wide <= room


CUT = """() => {
  const found = [];
  for (const svg of document.querySelectorAll("figure.chart svg")) {
    const box = svg.closest(".drawing").getBoundingClientRect();
    const seen = (text) => text.textContent.trim() && text.getAttribute("opacity") !== "0";
    const texts = (part) => [...svg.querySelectorAll(`${part} text`)].filter(seen);
    for (const text of texts("")) {
      const {left, right} = text.getBoundingClientRect();
      if (left < box.left - 1 || right > box.right + 1) found.push(`cut: ${text.textContent}`);
    }
    for (const text of texts(".role-title")) if (text.textContent.includes("…")) found.push(text.textContent);
    for (const name of texts(".role-axis-label")) {
      const one = name.getBoundingClientRect();
      for (const label of texts(".mark-text.role-mark")) {
        const other = label.getBoundingClientRect();
        const isBeside = one.right <= other.left || other.right <= one.left;
        const isAbove = one.bottom <= other.top + 1 || other.bottom <= one.top + 1;
        if (!isBeside && !isAbove) found.push(`${name.textContent} under ${label.textContent}`);
      }
    }
    const panel = svg.querySelector(".background").getBoundingClientRect();
    if (panel.width < 0.35 * box.width) found.push(`a panel of ${panel.width} of ${box.width} px`);
  }
  return found;
}"""


@pytest.mark.parametrize("query", ["?view=levers", "?view=levers&panel=stack", "?view=fleet", "?view=own"])
def test_no_label_title_or_legend_of_a_chart_is_cut_on_a_phone(narrow: Visit, query: str) -> None:
    """Own is computed; the others are the examples that come with the page."""
    page = narrow.open(query)
    page.locator("figure.chart[data-drawn]").first.wait_for(timeout=PATIENCE_MS)
    assert page.evaluate(CUT) == []
