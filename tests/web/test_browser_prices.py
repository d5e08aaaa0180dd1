"""In a browser: prices by kind of token, two answers compared, predictions against measurements, the way to Plan."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Page, expect
from tests.web.browser import NEEDS_BROWSER, Visit

pytestmark = NEEDS_BROWSER

RESULTS = Path(__file__).parents[1] / "measure" / "results" / "vllm.json"
PLAN = "?view=plan&gpu=L40S&rate=5&input=1000&output=300"


def dollars(text: str) -> float:
    return float(text.replace("−", "-").replace("$", "").replace(",", ""))


def tiles(page: Page, answer: int = 0) -> dict[str, str]:
    """The figures below the first headline, by name."""
    found = page.locator(".pane").nth(answer).locator(".tiles").first
    names, values = found.locator("dt").all_text_contents(), found.locator("dd:not(.note)").all_text_contents()
    return dict(zip(names, values, strict=True))


def rows(page: Page) -> dict[str, list[str]]:
    """The comparison: A, B and the change, by figure."""
    found = page.locator(".compared tbody tr")
    expect(found).not_to_have_count(0)
    heads = found.locator("th").all_text_contents()
    return {name: found.nth(at).locator("td").all_text_contents() for at, name in enumerate(heads)}


def test_input_output_and_cached_prices_stand_side_by_side_with_what_selling_earns(window: Visit) -> None:
    """Three prices are one bill: 1,000 tokens in and 300 out at their prices cost what 1,300 at the blended one do."""
    page = window.answered(f"{PLAN}&sell=0.20/0.80/0.05")
    found = tiles(page)
    blended, computed, cached, output = (
        dollars(found[name]) for name in ("per Mtok", "input", "cached input", "output")
    )
    assert (1000 * computed + 300 * output) / 1300 == pytest.approx(blended, rel=0.01)
    assert 0 < cached < computed < output
    assert found["sold at"] == "$0.200 / $0.800 / $0.0500"
    revenue, profit = dollars(found["revenue"]), dollars(found["profit"])
    assert revenue == pytest.approx(5 * (1000 * 0.20 + 300 * 0.80) / 1e6 * 730 * 3600, rel=0.01)
    assert found["margin"] == f"{profit / revenue * 100:.0f} %"


def test_a_loss_that_becomes_a_profit_rises_and_the_headlines_are_the_first_row(window: Visit) -> None:
    page = window.open(f"{PLAN}&sell=0.001/0.002&b.sell=5/9&b.rate=20")
    expect(page.locator(".column .pane[data-state=shown]")).to_have_count(2)
    found = rows(page)
    before, after, change = found["profit"]
    assert dollars(before) < 0 < dollars(after)
    assert change.startswith("+")
    assert "good" in (page.locator(".compared tr", has_text="profit").locator("td").last.get_attribute("class") or "")
    first = next(iter(found.values()))
    headlines = page.locator(".pane .headline:not(.second) .value").all_text_contents()
    assert [text.split()[0] for text in first[:2]] == [text.split()[0] for text in headlines]
    assert first[2].startswith("+" if dollars(first[1].split()[0]) > dollars(first[0].split()[0]) else "−")


def test_what_does_not_compare_says_so_and_a_refused_answer_is_not_compared(window: Visit) -> None:
    page = window.open("?view=own&panel=buy&b.panel=api")
    expect(page.locator(".compared")).to_contain_text("different questions")
    page = window.open(f"{PLAN}&b.model=qwen3-8b")
    expect(page.locator(".compared")).to_contain_text("A is of llama-3.1-8b, B of qwen3-8b")
    page = window.open(f"{PLAN}&b.rate=7")
    expect(page.locator(".compared tbody")).not_to_be_empty()
    page.get_by_role("button", name="Scenario B").click()
    page.get_by_label("Requests").first.fill("no number")
    page.keyboard.press("Enter")
    expect(page.locator(".pane[data-state=refused]")).to_have_count(1)
    expect(page.locator(".compared")).to_have_count(0)


COMPARED = """async (answers) => {
    const { compared } = await import("/static/compared.js");
    const labels = { nodes: (text) => text, text: (text) => text };
    const [frame] = compared(labels, answers);
    return [...frame.querySelectorAll("tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
}"""


def answer(headline: str, *facts: tuple[str, str, float]) -> dict[str, Any]:
    spans = [{"text": headline, "mood": "best"}, {"text": ": of something", "mood": ""}]
    told = [
        {"name": name, "value": [{"text": text, "mood": ""}], "note": "", "number": number, "less": "better"}
        for name, text, number in facts
    ]
    blocks = [{"type": "line", "kind": "headline", "spans": spans}, {"type": "facts", "rows": told}]
    return {"verb": "levers", "inputs": {}, "sections": [{"title": "", "folded": False, "blocks": blocks}]}


def test_the_difference_is_of_what_both_headlines_say(window: Visit) -> None:
    page = window.open("?view=benchmark")

    def change(one: dict[str, Any], other: dict[str, Any]) -> list[list[str]]:
        found: list[list[str]] = page.evaluate(COMPARED, {"a": one, "b": other})
        return found

    assert change(answer("−51 %"), answer("−40 %")) == [["Headline", "−51 %", "−40 %", "+11 points"]]
    assert change(answer("$2 → $1 an hour"), answer("$2 → $1.5 an hour"))[0][3] == "+50 %"
    month = change(answer("$300 a month", ("load", "300 %", 3.0)), answer("$200 a month", ("load", "50 %", 0.5)))
    assert [row[0] for row in month] == ["Headline", "load"]
    assert month[0][3] == "−33 %"
    units = change(answer("1 B tokens", ("break-even", "88 B", 88e9)), answer("$3", ("break-even", "29 %", 0.29)))
    assert [row[3] for row in units] == ["another unit", "another unit"]


def test_points_are_chosen_above_the_chart_and_your_results_join_them(window: Visit) -> None:
    page = window.answered("?view=accuracy")
    drawn = page.locator("figure.chart figcaption")
    expect(drawn).to_contain_text("TPOT, predicted against measured")
    page.get_by_label("Engine", exact=True).select_option("sglang")
    told = page.request.get(f"{window.address}api/v1/accuracy?metric=TPOT&fit=left+out&engine=sglang").json()
    number = told["charts"][0]["spec"]["title"]["subtitle"][0].split()[0]
    expect(drawn).to_contain_text(f"{number} published figures")
    assert "of_engine=sglang" in page.url
    page.get_by_label("Row", exact=True).select_option("")
    expect(drawn).not_to_contain_text(f"{number} published figures")
    page.reload()
    expect(page.get_by_label("Row", exact=True)).to_have_value("")  # every view is a link
    expect(page.get_by_label("Engine", exact=True)).to_have_value("sglang")
    run = json.loads(RESULTS.read_text()) | {"model_id": "meta-llama/Llama-3.1-8B-Instruct"}
    file: FilePayload = {"name": "mine.json", "mimeType": "application/json", "buffer": json.dumps(run).encode()}
    page.locator("body > input[type=file]").set_input_files(file)
    page.get_by_label("It ran on").select_option("H100-SXM")
    yours = page.locator(".tiles div", has_text="your results")
    expect(yours).to_contain_text("median error")
    upload = next(part for part in page.url.split("&") if part.startswith("files=")).removeprefix("files=")
    body = {"files": [upload], "gpu": "H100-SXM"}
    asked = page.request.post(f"{window.address}api/v1/answers/import", data=body, headers=window.own).json()
    off = [
        max(figure["predicted"]["mid"] / figure["measured"], figure["measured"] / figure["predicted"]["mid"]) - 1
        for point in asked["result"]["points"]
        for figure in point["scored"]
        if figure["metric"] == "tpot_s"
    ]
    shown = float(yours.locator("dd").first.inner_text().removesuffix("%"))
    assert shown == pytest.approx(statistics.median(off) * 100, rel=0.05)
    expect(drawn).to_contain_text(f"and {len(off)} of yours")
    page.get_by_role("button", name="Leave them out").click()
    expect(drawn).not_to_contain_text("of yours")


def test_a_row_of_right_size_opens_the_plan_of_its_gpu_by_the_keyboard(window: Visit) -> None:
    page = window.answered("?view=rightsize&rate=6&input=900")
    page.get_by_text("Every pair, at its cheapest offer").click()
    link = page.locator("details[open] tbody tr").nth(3).get_by_role("link")
    gpu = link.inner_text().split()[-1]
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main h1")).to_have_text("Plan")
    expect(page.locator(".pane[data-state=shown] .headline .detail").first).to_contain_text(gpu)
    assert f"gpu={gpu}" in page.url
    assert "rate=6" in page.url
    assert "input=900" in page.url


def test_the_benchmark_view_is_in_the_navigation_and_says_what_to_drop(window: Visit) -> None:
    page = window.answered(PLAN)
    page.locator("#views").get_by_role("link", name="Benchmark").click()
    expect(page.get_by_role("heading", name="Drop a results file, or choose one")).to_be_visible()
    with page.expect_file_chooser():
        page.get_by_role("button", name="Choose a file").click()
