"""Where things stand on wide screens and phones, by mouse and by keys; and no view breaks a rule of axe-core.

The main button is in the first screen, the answer comes first on phones, files have names. The rules, which
axe-playwright-python carries, are tried wide and on a phone, light and dark.
"""

import re
from importlib import resources
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, FilePayload, Locator, Page, expect
from tests.web.browser import NAME, NEEDS_BROWSER, Visit, served, settled, visit

pytestmark = NEEDS_BROWSER


# --- layout -----------------------------------------------------------------------------------------------------------


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
        name = link.text_content() or ""
        expect(page.locator("#main h1")).to_have_text(name)
        expect(link).to_be_hidden()
        expect(link).to_have_attribute("aria-current", "page")
        assert page.title() == f"{name} · tokonomics"
        assert f"view={view}" in page.url


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
        settled(page)
        assert page.evaluate(TOO_SMALL, FINGER_PX) == []
        page.get_by_role("button", name="Scenario").click()
        page.get_by_role("button", name="Views").click()
        assert page.evaluate(TOO_SMALL, FINGER_PX) == []


def test_nothing_is_wider_than_a_narrow_screen(narrow: Visit) -> None:
    page = narrow.page
    for view in VIEWS:
        narrow.open(f"?view={view}&gpu=L40S")
        page.locator(READY).first.wait_for()
        if view in ("plan", "batching", "traffic"):
            settled(page)
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
    page = window.load("?view=plan&gpu=L40S")
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
    with page.expect_download() as saved:
        page.keyboard.press("Space")
    report = Path(saved.value.path()).read_text()
    assert report.startswith("<!doctype html>")
    assert "--rate 6 " in report


def test_a_file_is_nowhere_called_by_its_number(window: Visit) -> None:
    page = window.load("?view=traffic")
    rows = "".join(f"{second},{100 + second},20\n" for second in range(60))
    header = "arrival_s,input_tokens,output_tokens\n"
    log = FilePayload(name="march.csv", mimeType="text/csv", buffer=(header + rows).encode())
    page.locator("input[type=file]").set_input_files(log)
    expect(page.locator("input[name=trace]")).to_have_value("march.csv")
    expect(page.locator(".command code")).to_contain_text("tokonomics trace march.csv")
    window.load(page.url.removeprefix(window.address))
    window.shown()
    said = page.evaluate(
        """() => document.body.textContent + document.title
             + [...document.querySelectorAll("input")].map((input) => input.value + input.placeholder)"""
    )
    assert "march.csv" in said
    assert "upload:" not in said
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save report").click()
    report = Path(saved.value.path()).read_text()
    assert report.startswith("<!doctype html>")
    assert "march.csv" in report
    assert "upload:" not in report
    page.evaluate("sessionStorage.clear()")  # as whoever gets the link
    page.reload()
    expect(page.locator("input[name=trace]")).to_have_value("uploaded file")


def test_a_chart_of_rows_of_panels_fits_its_box(window: Visit) -> None:
    page = window.open("?view=benchmark")
    results = Path(__file__).parents[1] / "measure" / "results" / "inferencex.json"
    page.locator("input[type=file]").first.set_input_files(results)
    settled(page)
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
    settled(page)
    assert page.evaluate(CUT) == []


# --- axe --------------------------------------------------------------------------------------------------------------


AXE = (resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
RUN = """async () => {
  const told = (node) => node.getAttributeNames().filter((name) => name.startsWith("aria-"));
  const part = (node) => [node.tagName, node.className, node.role, ...told(node)].join();
  const made = (row) => [row, ...row.querySelectorAll("*")].map(part).join(";");
  for (const body of document.querySelectorAll("tbody")) {
    const known = new Set();
    for (const row of body.rows) row.toggleAttribute("data-alike", known.has(made(row)) || !known.add(made(row)));
  }
  const {violations} = await axe.run({exclude: ["[data-alike]"]}, {resultTypes: ["violations"]});
  return violations.flatMap(({id, nodes}) =>
    nodes.map(({target, failureSummary}) => `${id} at ${target}: ${failureSummary}`));
}"""
"""Most of its time goes to the contrast of cells: of the rows of a table that are made alike, one is looked at."""
Look = tuple[int, int, str]
DAILY: tuple[Look, ...] = ((1440, 900, "light"), (380, 800, "dark"))
OTHERS: tuple[Look, ...] = ((1440, 900, "dark"), (820, 1180, "light"), (820, 1180, "dark"), (380, 800, "light"))
LOOKS = [pytest.param(DAILY, id="daily"), pytest.param(OTHERS, id="others", marks=pytest.mark.explore)]
"""Of six sizes and colours, two differ in everything; the others are looked at where there is time."""

ENDED = ".pane[data-state=shown] .headline, .pane[data-state=refused] h2, .pane[data-state=empty] .empty h2"
RULED = {
    "plan": "?view=plan&gpu=L40S",
    "rightsize": "?view=rightsize",
    "batching": "?view=batching",
    "traffic": "?view=traffic&from=made&duration=2m",
    "levers": "?view=levers",
    "own": "?view=own&panel=buy",
    "fleet": "?view=fleet",
    "meter": "?view=meter",
    "accuracy": "?view=accuracy",
    "benchmark": "?view=benchmark",
    "a refusal": "?view=batching&gpu=H1000",
    "a refusal with a hint and an SLO": "?view=traffic&from=made&output=&slo=ttft_p99%3D-1",
    "nothing found": "?view=plan&gpu=L40S&slo=tpot_p99%3D0.001ms",
    "two scenarios": "?view=batching&compare=1&b.gpu=L40S",
}


DRAWN = """() => !document.querySelector(".undrawn, .aside")
  && [...document.querySelectorAll("figure.chart")].every(({dataset}) => dataset.drawn)"""
"""No chart is on its way, or half drawn."""


def broken(page: Page) -> list[str]:
    """What axe objects to: the rule, where, and why."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    return list(page.evaluate(RUN))


def seen_as(page: Page, look: Look) -> str:
    width, height, scheme = look
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_function(DRAWN)
    return f"{width}×{height}, {scheme}"


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("query", RULED.values(), ids=RULED)
def test_no_view_breaks_a_rule(window: Visit, query: str, looks: tuple[Look, ...]) -> None:
    page = window.open(query)
    page.locator(ENDED).first.wait_for()
    found = {seen_as(page, look): broken(page) for look in looks}
    assert {look: rules for look, rules in found.items() if rules} == {}


def test_what_is_folded_breaks_no_rule_when_it_is_opened(window: Visit) -> None:
    page = window.answered("?view=batching&compare=1")
    settled(page)
    open_all = "for (const part of document.querySelectorAll('details')) part.open = true"
    page.evaluate(open_all)
    page.locator(".data .tabled").first.wait_for()
    assert broken(page) == []
    page = window.open("?view=levers")
    page.evaluate(open_all)
    assert broken(page) == []


def test_the_sheet_and_the_menu_of_a_phone_break_no_rule(narrow: Visit) -> None:
    page = narrow.open("?view=levers")
    page.get_by_role("button", name="Scenario").click()
    expect(page.get_by_label("Model")).to_be_visible()
    assert broken(page) == []
    page.get_by_role("button", name="Views").click()
    assert broken(page) == []


def test_a_person_logs_in_and_out_on_a_form_that_breaks_no_rule(browser: Browser, tmp_path: Path) -> None:
    token, found = "a-token-of-some-length", dict[str, list[str]]()
    with served(tmp_path, token, NAME) as local:
        for address in (local, local.replace("127.0.0.1", NAME)):
            looks = (*DAILY, *OTHERS) if address == local else ()
            with visit(browser, address) as window:
                page = window.page
                page.goto(address + "?view=accuracy")
                found |= {seen_as(page, look): broken(page) for look in looks}
                page.get_by_label("Token").fill("mistyped-token-of-length")
                page.get_by_role("button", name="Log in").click()
                expect(page.get_by_role("alert")).to_be_visible()
                found |= {f"refused, {seen_as(page, look)}": broken(page) for look in looks}
                seen_as(page, DAILY[0])  # on a phone the way out is in the menu
                page.get_by_label("Token").fill(token)
                page.get_by_role("button", name="Log in").click()
                expect(page.locator("#main h1")).to_have_text("Accuracy")
                page.get_by_role("button", name="Log out").click()
                expect(page.get_by_label("Token")).to_be_visible()
                page.goto(address)
                expect(page.get_by_label("Token")).to_be_visible()
            assert [said for said in window.wrong if "401" not in said] == []  # the browser notes a refusal
    assert {look: rules for look, rules in found.items() if rules} == {}


def test_a_row_with_a_role_of_its_own_is_not_taken_for_one_like_the_others(window: Visit) -> None:
    page = window.answered("?view=accuracy")
    ends = page.locator("tbody:has(tr + tr) tr:last-child")
    for row, attribute in ((ends.first, "role"), (ends.last, "aria-nonsense")):
        row.locator("td").last.evaluate("(cell, name) => cell.setAttribute(name, 'nonsense')", attribute)
    said = " ".join(broken(page))
    assert "aria-roles at" in said
    assert "aria-valid-attr at" in said


def test_no_other_machine_is_reached_even_by_its_number(browser: Browser, address: str) -> None:
    for other in ("http://192.0.2.1/", "http://[2001:db8::1]/", "http://other.example/"):
        with visit(browser, address) as window, pytest.raises(Error, match="ERR_PROXY_CONNECTION_FAILED"):
            window.page.goto(other)
        assert window.wrong == [f"request to {other}"]
