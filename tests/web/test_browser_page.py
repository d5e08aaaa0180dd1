"""The page in a real browser: every view with keyboard and mouse, its address, files dropped on it, dark and narrow."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Error, Locator, Page, Response, Route, expect
from tests.web.browser import NEEDS_BROWSER, PATIENCE_MS, Visit, dollars, settled

pytestmark = NEEDS_BROWSER

RESULTS = Path(__file__).parents[1] / "measure" / "results"
QUICK = "?view=batching"
"""The view that answers fastest: what is tested of every view is tested there."""


def headline(page: Page) -> str:
    return page.locator(".headline .value").first.inner_text()


def fact(page: Page, name: str) -> str:
    """The value below a name, where it first stands."""
    return page.locator(".tiles div", has=page.get_by_text(name, exact=True)).locator("dd").first.inner_text()


def table(page: Page, title: str) -> Locator:
    """The rows below a caption or a heading; what is folded is opened."""
    folded = page.locator("details.part", has_text=title)
    rows = page.locator(".part", has_text=title).first.locator("tbody tr")
    if folded.count():
        folded.locator("summary").first.click()
        expect(rows.first).to_be_visible()  # it is filled when it is opened
    return rows


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def dropped(page: Page, *files: Path | tuple[str, str]) -> None:
    """Lets files fall on the page, as a mouse would."""
    named = [(file.name, file.read_text()) if isinstance(file, Path) else file for file in files]
    page.evaluate(
        """(files) => {
          const data = new DataTransfer();
          for (const [name, text] of files) data.items.add(new File([text], name));
          for (const kind of ["dragenter", "dragover", "drop"])
            document.body.dispatchEvent(new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        [list(each) for each in named],
    )


def test_the_front_page_plans_at_once_and_shows_the_price_that_the_api_gives(window: Visit) -> None:
    page = window.answered()
    asked = {"what": "llama-3.1-8b", "rate": "5", "input": "1000", "output": "300", "quick": True}
    reply = page.request.post(
        f"{window.address}api/v1/answers/plan?charts=false",
        data=json.dumps(asked | {"slo": "ttft_p99=1000ms,tpot_p99=50ms"}),
        headers=window.own,
    )
    best = reply.json()["result"]["best"]
    said = page.locator(".headline .detail").first.inner_text()
    per_mtok = said.partition(" per Mtok")[0].split()[-1]
    for shown, figure in ((headline(page).split()[0], "usd_per_month"), (per_mtok, "usd_per_mtok")):
        known = best[figure]["blended"] if figure == "usd_per_mtok" else best[figure]
        assert dollars(shown) == pytest.approx(known, rel=0.005)
    assert best["gpu"].replace("RTX", "RTX ") in said
    assert page.locator(".command code").inner_text().startswith("tokonomics plan llama-3.1-8b --rate 5")
    checked = "import('/static/views/plan.js').then((view) => view.default.request({ run: '1' }).inputs.deploy)"
    assert page.evaluate(checked) == ["vllm,kubernetes,skypilot"]  # one flag in the command of a simulated plan
    settled(page)


NO_ANSWER = "?view=plan&gpu=L40S&slo=tpot_p99%3D0.001ms"
SHOWN = {
    "plan": "?view=plan",
    "plan without an answer": NO_ANSWER,
    "compare": "?view=rightsize&also=qwen3-8b",
    "curve": "?view=batching",
    "trace": "?view=traffic",
    "breakeven": "?view=own",
    "own-hardware": "?view=own&panel=buy",
    "can-run": "?view=own&panel=run",
}
SIMULATED = {
    "simulate": "?view=traffic&run=1",
    "levers": "?view=levers&run=1&rate=2&input=300&output=100",
    "stack": "?view=levers&panel=stack&run=1&rate=2&input=300&output=100",
    "cache": "?view=levers&panel=cache&run=1",
    "tenants": "?view=levers&panel=tenants&run=1",
    "route": "?view=levers&panel=route&run=1&rate=2&input=300&output=100",
    "fleet": "?view=fleet&run=1",
}
"""Where the page asks each verb."""


def texts_of(sections: list[dict[str, Any]]) -> set[str]:
    """Every fact and every cell; names of inputs, which the page calls by its labels, are left out."""
    blocks = [block for section in sections for block in section["blocks"]]
    facts = [row for block in blocks if block["type"] == "facts" for row in block["rows"]]
    cells = [cell for block in blocks if block["type"] == "table" for row in block["rows"] for cell in row]
    heads = [column["name"] for block in blocks if block["type"] == "table" for column in block["columns"]]
    values = ["".join(span["text"] for span in spans) for spans in [*(row["value"] for row in facts), *cells]]
    said = [*values, *heads, *(row[part] for row in facts for part in ("name", "note"))]
    return {" ".join(text.split()) for text in said if "`" not in text and "--" not in text}


def texts_on(page: Page) -> set[str]:
    """Every fact and every cell that stands on the page, once all of it is opened."""
    for details in page.locator(".pane details.part").all():
        details.evaluate("(details) => (details.open = true)")
    page.wait_for_function("[...document.querySelectorAll('details.part')].every((part) => part.children.length > 1)")
    page.locator(".pane .more").evaluate_all("(all) => all.forEach((more) => more.click())")
    found = page.locator(".pane :is(dt, dd, th, td)").evaluate_all("(all) => all.map((cell) => cell.textContent)")
    return {" ".join(text.split()) for text in found} | {""}


def is_answer(reply: Response) -> bool:
    """Tell whether the page has its answer; what came for a page that was left can no longer be read."""
    try:
        return "/api/v1/answers/" in reply.url and "sections" in reply.json()
    except Error:
        return False


def test_the_page_shows_every_figure_of_the_description(window: Visit) -> None:
    page = window.load("?view=benchmark")  # it remembers no answer
    for verb, query in SHOWN.items():
        # On a busy machine the first reply may say only that the answer is being worked out.
        with page.expect_response(is_answer) as answered:
            window.answered(query)
        assert texts_of(answered.value.json()["sections"]) - texts_on(page) == set(), verb


@pytest.mark.explore
@pytest.mark.parametrize("query", SIMULATED.values(), ids=SIMULATED)
def test_the_page_shows_every_figure_of_a_simulation(window: Visit, query: str) -> None:
    with window.page.expect_request("**/api/v1/jobs") as started:
        window.load(query)
    page = window.shown()
    reply = page.request.post(started.value.url, data=started.value.post_data_json, headers=window.own)
    told = page.request.get(f"{started.value.url}/{reply.json()['id']}/events", timeout=PATIENCE_MS).text()
    answer = json.loads(told.partition("event: answer\ndata: ")[2].partition("\n")[0])
    assert texts_of(answer["sections"]) - texts_on(page) == set()


@pytest.mark.parametrize("what", ["meter", "accuracy"])
def test_the_page_shows_every_figure_it_only_reads(window: Visit, what: str) -> None:
    with window.page.expect_response(f"**/api/v1/{what}*") as read:
        page = window.answered(f"?view={what}")
    assert texts_of(read.value.json()["sections"]) - texts_on(page) == set()


def test_a_moving_slider_changes_the_answer_and_the_address_but_not_the_history(alone: Visit) -> None:
    page = alone.answered(QUICK)
    settled(page)
    before, entries = headline(page), page.evaluate("history.length")
    slider = page.get_by_label("Context of a sequence, slider")
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".headline .value").first).not_to_have_text(before)
    assert int(page.get_by_label("Context of a sequence", exact=False).first.input_value()) > 1024
    assert page.evaluate("history.length") - entries <= 20
    entries, before = page.evaluate("history.length"), page.url
    edges = slider.bounding_box()
    assert edges
    page.mouse.move(edges["x"] + edges["width"] * 0.4, edges["y"] + edges["height"] / 2)
    page.mouse.down()
    for share in (0.5, 0.6, 0.7, 0.8):
        page.mouse.move(edges["x"] + edges["width"] * share, edges["y"] + edges["height"] / 2)
    page.mouse.up()
    assert page.url != before
    assert page.evaluate("history.length") <= entries + 1, "a drag is one entry"


def test_an_address_restores_the_whole_scenario(window: Visit) -> None:
    query = "?view=batching&model=qwen3-8b&gpu=L40S&kv=fp8&context=4096&pace=60"
    page = window.answered(query)
    assert page.get_by_label("Model").input_value() == "qwen3-8b"
    assert page.get_by_label("GPU", exact=True).input_value() == "L40S"
    assert page.get_by_label("KV cache").input_value() == "fp8"
    assert page.locator("input[name=context]").input_value() == "4096"
    page.get_by_label("Weights").select_option("fp8")
    expect(page.locator(".command code")).to_contain_text("--weights fp8")
    first = headline(page)
    page.reload()
    page.wait_for_selector(".pane[data-state=shown] .headline")
    assert "weights=fp8" in page.url
    assert headline(page) == first


def test_back_and_forward_walk_through_what_was_asked(window: Visit) -> None:
    page = window.answered(QUICK)
    first = headline(page)
    gpu = page.get_by_label("GPU", exact=True)
    gpu.fill("L4")
    gpu.press("Enter")
    expect(page.locator(".command code")).to_contain_text("--gpu L4")
    second = headline(page)
    gpu.fill("A100-80GB")  # and it still has the focus
    page.go_back()
    expect(page.get_by_label("GPU", exact=True)).to_have_value("L4")
    page.wait_for_timeout(300)  # what a box says when it goes, it says at once
    expect(page.locator(".command code")).to_contain_text("--gpu L4")
    expect(page.get_by_label("GPU", exact=True)).to_have_value("L4")
    page.go_back()
    expect(page.get_by_label("GPU", exact=True)).to_have_value("H100-SXM")
    expect(page.locator(".headline .value strong")).to_have_text(first.split()[0])
    page.go_forward()
    expect(page.get_by_label("GPU", exact=True)).to_have_value("L4")
    expect(page.locator(".headline .value strong")).to_have_text(second.split()[0])


def test_two_scenarios_stand_side_by_side_with_their_difference(window: Visit) -> None:
    page = window.answered(QUICK)
    page.get_by_role("button", name="Compare with another").click()
    gpu = page.get_by_label("GPU", exact=True)
    gpu.fill("L40S")
    gpu.press("Enter")
    expect(page.locator(".column").nth(1).locator(".command code")).to_contain_text("--gpu L40S")
    expect(page.locator(".column").nth(0).locator(".command code")).not_to_contain_text("L40S")
    assert "b.gpu=L40S" in page.url
    cells = page.locator(".compared tbody tr", has_text="KV limit").locator("td").all_inner_texts()
    assert int(cells[0].replace(",", "")) > int(cells[1].replace(",", "")), "an H100 holds more than an L40S"
    assert cells[2].startswith("−")
    page.reload()
    expect(page.locator(".column .pane[data-state=shown]")).to_have_count(2)


def test_a_heading_sorts_its_column_up_and_down(window: Visit) -> None:
    page = window.answered(QUICK)
    head = page.locator("th", has_text="Batch")
    column = page.locator("table tbody th")
    button = head.get_by_role("button")
    button.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    up = [int(text.replace(",", "")) for text in column.all_inner_texts()]
    button.press("Enter")
    expect(head).to_have_attribute("aria-sort", "descending")
    down = [int(text.replace(",", "")) for text in column.all_inner_texts()]
    assert up == sorted(up)
    assert down == sorted(up, reverse=True)


def test_numbers_sort_by_what_they_mean(window: Visit) -> None:
    """Not by their digits: 900 ms come before 1.2 s, 5 B after 80 M, and what is missing last."""
    page = window.open("?view=accuracy")
    assert page.get_by_role("button", name="Log out").count() == 0, "nobody logged in"
    sort = """async ({ cells, isNumber }) => {
      const { sortKeys } = await import('/static/format.js');
      const keys = sortKeys(cells, isNumber);
      const places = cells.map((_, at) => at).filter((at) => keys[at] !== null);
      return places.sort((one, other) => keys[one] - keys[other]).map((at) => cells[at]);
    }"""
    for cells in (
        ["4 µs", "900 ms", "1.2 s", "119 s", "2.5 min", "3 h"],
        ["$-5.00", "$0.0278*", "$1.50", "$474.50", "$1,226"],
        ["−3 %", "0.5 %", "9 %", "+71 %", "100 %"],
        ["999", "12.3 K", "80 M", "5 B", "1.2 T"],
        ["500 B", "2 KB", "67.1 MB", "80 GB"],
        ["0.5/s", "8.56 requests/s", "1,234 tok/s"],
    ):
        mixed = [*cells[1::2], "–", *cells[::2]]
        assert page.evaluate(sort, {"cells": mixed, "isNumber": True}) == cells


def test_a_wrong_input_is_explained_where_it_was_made(window: Visit) -> None:
    page = window.answered(QUICK)
    gpu = page.get_by_label("GPU", exact=True)
    gpu.fill("H1000")
    gpu.press("Tab")
    trouble = page.locator(".trouble")
    expect(trouble).to_be_visible()
    assert "H1000" in trouble.inner_text()
    expect(gpu).to_have_attribute("aria-invalid", "true")
    why = page.locator(f"#{gpu.get_attribute('aria-errormessage')}")
    expect(why).to_be_visible()
    assert "H1000" in why.inner_text()
    gpu.fill("H200")
    gpu.press("Tab")
    expect(trouble).to_be_hidden()
    expect(gpu).not_to_have_attribute("aria-invalid", "true")
    expect(why).to_have_count(0)


def test_a_volume_between_two_break_evens_is_judged_by_its_own_bill(window: Visit) -> None:
    """A second machine makes hosting dearer again: what is cheaper at one's volume is what its bills say."""
    model, slo = "llama-3.3-70b", "ttft_p99=1000ms,tpot_p99=80ms"
    asked = {"model": model, "slo": slo, "api": "openai:gpt-4o-mini", "provider": "lambda", "tokens_per_month": "12B"}
    page = window.open("?view=own&" + "&".join(f"{name}={value}" for name, value in asked.items()))
    with page.expect_request("**/api/v1/answers/breakeven*") as started:
        page.reload()
    address, inputs = started.value.url.partition("?")[0], started.value.post_data_json
    whole = page.request.post(f"{address}?part=result", data=inputs, headers=window.own, timeout=PATIENCE_MS)
    result = whole.json()["result"]
    found, own = result["found"][0], result["own_tokens_per_month"]
    (bill,) = (each for each in result["bills"] if each["tokens_per_month"] == own)
    assert found["first_tokens_per_month"] < own < found["stays_tokens_per_month"]
    assert min(bill["api_usd"].values()) < bill["hosted_usd"]
    expect(page.locator(".tiles").first).to_contain_text("cheaper to call openai:gpt-4o-mini")
    stays = found["stays_tokens_per_month"] / 1e9
    assert headline(page).split() == f"From {stays:.3g} B tokens a month on,".split()


def test_a_dropped_benchmark_becomes_dollars(window: Visit) -> None:
    page = window.answered(QUICK)
    dropped(page, RESULTS / "vllm.json")
    page.wait_for_selector("#main[data-view=benchmark] .pane[data-state=shown] .headline")
    assert "$" in headline(page)
    measured = json.loads((RESULTS / "vllm.json").read_text())
    shown = fact(page, "output").split()[0].removesuffix("/s")
    assert float(shown.replace(",", "")) == pytest.approx(measured["output_throughput"], rel=0.005)


def test_dark_is_what_the_system_says_until_the_reader_chooses(dark: Visit) -> None:
    page = dark.answered(QUICK)
    settled(page)
    night = background(page)
    assert max(int(part) for part in re.findall(r"\d+", night)[:3]) < 60
    page.get_by_role("button", name="Switch to light colours").click()
    day = background(page)
    assert min(int(part) for part in re.findall(r"\d+", day)[:3]) > 200
    page.reload()
    page.wait_for_selector("#main h1")
    assert background(page) == day, "the choice is remembered"
    settled(page)


def test_charts_can_be_taken_away(window: Visit) -> None:
    page = window.answered(QUICK)
    chart = settled(page)
    with page.expect_download() as taken:
        chart.get_by_role("button", name="SVG").click()
    assert taken.value.path().read_text().startswith("<svg")
    with page.expect_download() as taken:
        chart.get_by_role("button", name="PNG").click()
    assert taken.value.path().read_bytes().startswith(b"\x89PNG")


def test_a_simulation_answers_and_its_address_is_a_link_to_the_answer(alone: Visit) -> None:
    page = alone.answered("?view=traffic&from=made&duration=2m&input=200&output=50")
    entries = page.evaluate("history.length")
    page.get_by_role("button", name="Simulate serving it").click()
    expect(page.locator(".command code")).to_contain_text("tokonomics simulate")
    assert "run=1" in page.url
    assert page.evaluate("history.length") == entries + 1
    price = headline(page)
    page.goto(page.url)
    expect(page.locator(".command code")).to_contain_text("tokonomics simulate")
    assert headline(page) == price


def test_a_chart_that_left_the_page_is_not_kept(window: Visit) -> None:
    page = window.answered(QUICK)
    settled(page)
    drawn = "import('/static/chart.js').then((charts) => charts.drawnNow())"
    assert page.evaluate(drawn) > 0
    page.locator("#views a[data-view=accuracy]").click()
    page.locator(".pane > *").first.wait_for(state="attached")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(drawn) == page.locator("figure.chart").count()


def test_a_preset_fills_the_form(window: Visit) -> None:
    page = window.answered("?view=plan&gpu=L40S")
    page.get_by_role("button", name="Batch work").click()
    expect(page.get_by_label("Batch work: no SLO")).to_be_checked()
    expect(page.locator(".command code")).to_contain_text("--offline")
    page.go_back()
    expect(page.get_by_label("Batch work: no SLO")).not_to_be_checked()


def test_views_share_one_scenario(window: Visit) -> None:
    page = window.open()
    box(page, "rate").fill("6")
    box(page, "rate").press("Tab")
    for view in ("batching", "traffic", "plan"):
        page.locator(f"#views a[data-view={view}]").click()
        page.wait_for_selector(".pane[data-state=shown] .headline")
        assert "rate=6" in page.url
        if view == "batching":
            expect(box(page, "gpu")).to_have_value("H100-SXM")
        else:
            expect(box(page, "rate")).to_have_value("6")


def test_numbers_stand_where_charts_cannot_be_drawn(window: Visit) -> None:
    page = window.page
    refusal = {"error": {"what": "no charts today", "where": None, "fix": None}}
    page.route("**/api/v1/answers/plan?part=charts", lambda route: route.fulfill(status=503, json=refusal))
    window.load()
    window.shown()
    expect(page.locator(".charts")).to_contain_text("could not be drawn: no charts today")
    assert "$" in headline(page)


def test_what_a_log_says_is_not_asked_for(window: Visit) -> None:
    page = window.open("?trace=azure-conv")
    expect(box(page, "rate")).to_be_disabled()
    assert "as in the log" in page.locator(".field", has=box(page, "rate")).inner_text()


def box(page: Page, name: str) -> Locator:
    return page.locator(f"input[name={name}]")


def test_a_view_that_is_chosen_before_the_page_is_there_is_shown_then(window: Visit) -> None:
    page = window.page
    held: list[Route] = []
    page.route("**/api/v1/catalog", lambda route: held.append(route))  # a bound method is no handler
    with page.expect_request("**/api/v1/catalog"):
        page.goto(f"{window.address}?view=levers&rate=7")
    page.locator("#views a[data-view=batching]").click()
    held[0].continue_()
    expect(page.locator("#main")).to_have_attribute("data-view", "batching")
    assert "rate=7" in page.url
