"""What single views do in a real browser: the frontier of Plan, the examples of Levers and Fleet, a run that plays,
prices and comparisons, answers in parts, and the columns of one's own log.
"""

import json
import re
import statistics
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import FilePayload, Locator, Page, Request, expect
from tests.web.browser import NEEDS_BROWSER, Visit, dollars, settled

pytestmark = NEEDS_BROWSER


# --- frontier ---------------------------------------------------------------------------------------------------------


SHORT = "?view=plan&gpu=L40S,H100"
"""Few GPUs: drawn sooner."""


def drawn(page: Page) -> Page:
    page.locator(".hero figure.chart[data-drawn]").wait_for()
    return page


def fleets(page: Page) -> Locator:
    """The points of the first panel."""
    return page.locator(".hero svg .fleets_tps_marks path")


def bottom(part: Locator) -> float:
    box = part.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def test_headline_and_frontier_share_the_first_screen_and_figures_come_after(laptop: Visit) -> None:
    page = drawn(laptop.answered("?view=plan"))
    assert bottom(page.locator(".headline").first) < bottom(page.locator(".hero svg")) <= 900
    tiles = page.locator(".tiles").first.bounding_box()
    assert tiles is not None
    assert tiles["y"] >= bottom(page.locator(".hero"))


def test_a_click_pins_a_deployment_and_its_gpu_becomes_the_scenario_to_compare_with(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    point = fleets(page).last
    words = dict(part.split(": ", 1) for part in str(point.get_attribute("aria-label")).split("; ") if ": " in part)
    point.click()
    card = page.locator(".pins section")
    expect(card.locator("h3")).to_have_text(words["deployment"])
    expect(card).to_contain_text(words["price"])
    expect(card).to_contain_text(words["per user"])
    card.get_by_role("button", name="Compare").click()
    expect(page.locator("#main .column")).to_have_count(2)
    gpu = next(name for name in ("L40S", "H100-SXM") if name in words["deployment"])
    machines = words["deployment"].rpartition(" at ")[2].split(",")[0]
    seller = machines.rpartition(" × ")[2].lower()
    precision = next(name for name in ("bf16", "fp8") if name in words["deployment"])
    assert all(said in page.url for said in (f"b.gpu={gpu}", f"b.provider={seller}", f"b.min_weights={precision}"))


def test_a_pin_stays_when_the_traffic_needs_another_number_of_replicas(laptop: Visit) -> None:
    page = drawn(laptop.answered("?view=plan&gpu=L40S&rate=5"))
    chosen = page.get_by_label("A deployment to pin")
    name = next(name for name in chosen.locator("option").all_inner_texts()[1:] if name.startswith("1 × L40S"))
    chosen.select_option(name)
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.locator(".pins h3")).to_have_text(name)
    rate = page.locator("input[name=rate]").first
    rate.fill("40")
    rate.press("Tab")  # Enter would simulate it
    expect(page.locator(".pins h3")).not_to_have_text(name)
    replicas, _, rest = page.locator(".pins h3").inner_text().partition(" × ")
    assert int(replicas) > 1
    assert rest == name.partition(" × ")[2]


def test_the_keyboard_pins_and_unpins_and_plans_with_the_gpu(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    chosen = page.get_by_label("A deployment to pin")
    names = chosen.locator("option").all_inner_texts()[1:]
    assert len(names) == len(set(names)) > 3
    chosen.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".pins h3")).to_have_text(names[0])
    page.keyboard.press("Enter")
    expect(page.locator(".pins section")).to_have_count(0)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Plan with it").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**min_weights=*")
    assert any(f"gpu={gpu}&" in page.url for gpu in ("L40S", "H100-SXM"))


def test_a_name_in_the_legend_shows_its_gpu_alone(laptop: Visit) -> None:
    page = drawn(laptop.answered(SHORT))
    faint = page.locator(".hero svg .fleets_tps_marks path[opacity='0.05']")
    expect(faint).to_have_count(0)
    page.locator(".hero svg .role-legend text", has_text="H100-SXM").click()
    labels = fleets(page).evaluate_all("all => all.map((one) => [one.getAttribute('opacity'), one.ariaLabel])")
    assert {opacity for opacity, said in labels if "H100-SXM" in said} == {"0.9"}
    assert {opacity for opacity, said in labels if "H100-SXM" not in said} == {"0.05"}


def test_several_models_are_answered_without_a_frontier_and_nothing_fails(laptop: Visit) -> None:
    page = laptop.open("?view=plan&gpu=L40S&model=llama-3.1-8b,qwen3-8b")
    page.locator(".charts figure.chart[data-drawn]").wait_for()
    expect(page.get_by_label("A deployment to pin")).to_have_count(0)


# --- levers -----------------------------------------------------------------------------------------------------------


def example(page: Page) -> str:
    """What is said of the example, once its chart is drawn."""
    settled(page)
    return page.locator(".said.example").inner_text()


def jobs_of(page: Page) -> list[str]:
    """Fills with the addresses of jobs that the page starts."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/api/v1/jobs" in request.url else None)
    return asked


def test_levers_open_with_an_example_that_goes_when_the_scenario_changes(window: Visit) -> None:
    asked = jobs_of(window.page)
    page = window.open("?view=levers")
    said = example(page)
    assert re.search(r"computed on 20\d\d-\d\d-\d\d by tokonomics \d", said)
    assert said.endswith("Press Simulate for yours.")
    expect(page.get_by_role("button", name="Save report")).to_have_count(0)
    page.get_by_text("Waterfall").click()
    expect(page.locator("figure.chart h2").first).to_contain_text("From naive to optimised")
    assert example(page).startswith("An example: all optimisations of")
    rate = page.locator("input[name=rate]").first
    rate.fill("6")
    rate.blur()
    expect(page.locator(".empty h2")).to_have_text("Say what runs today")
    expect(page.locator(".said.example, .headline, figure.chart")).to_have_count(0)
    rate.fill("5")
    rate.blur()
    expect(page.locator(".said.example")).to_be_visible()
    assert asked == [], "nothing was simulated"


def test_levers_that_do_not_apply_fold_and_open_with_their_reasons(window: Visit) -> None:
    misspelt = window.open("?view=levers&panel=x").locator("main").inner_text()
    assert "undefined" not in misspelt, "a question that a link misspells is the first"
    page = window.open("?view=levers")
    example(page)
    folded = page.locator("details.part", has_text="levers do not apply")
    expect(folded.get_by_text("the traffic has no sessions")).to_have_count(0)
    number = int(folded.locator("summary").inner_text().split()[0])
    folded.locator("summary").click()
    expect(folded.get_by_text("the traffic has no sessions")).to_be_visible()
    expect(folded.locator("tbody tr")).to_have_count(number)


def test_a_fleet_opens_with_an_example_whose_figure_and_chart_agree(narrow: Visit) -> None:
    page = narrow.open("?view=fleet")
    assert example(page).endswith("Press Find the fleet for yours.")
    tile = page.locator(".tiles div", has=page.get_by_text("saves", exact=True))
    share, against = tile.locator("dd").first.inner_text(), tile.inner_text().split("against ")[-1].strip()
    expect(page.locator("figure.chart h2").first).to_contain_text(f"{share} below {against}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_levers_job_says_which_lever_of_how_many(window: Visit) -> None:
    page = window.open("?view=levers&rate=2&input=300&output=100")
    expect(page.locator(".empty")).to_be_visible()
    page.get_by_role("button", name="Simulate").click()
    expect(page.locator(".progress .what")).to_have_text(re.compile(r"^\d+ of \d+ levers: "))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".progress")).to_be_hidden()
    expect(page.locator(".empty")).to_contain_text("Cancelled")


# --- player -----------------------------------------------------------------------------------------------------------


RUN = "?view=traffic&run=1&from=made&rate=26&duration=1m&slo=ttft_p99%3D60ms"
"""A minute at more than most first tokens come in time for."""


def counters(page: Page) -> dict[str, str]:
    names, values = (page.locator(f".player {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip((name.lower() for name in names), values, strict=True))


def moment(page: Page) -> int:
    return int(page.locator(".player input[type=range]").input_value())


def played(visit: Visit) -> Page:
    page = visit.answered(RUN)
    page.wait_for_selector(".player")
    return page


def test_the_end_of_the_run_is_the_answer_and_a_miss_names_who_and_why(window: Visit) -> None:
    page = played(window)
    answered = page.locator(".pane .tiles").filter(has_text="answered").inner_text()
    done, asked = re.findall(r"([\d,]+) of ([\d,]+) answered", answered)[0]
    paid = re.findall(r"replica-hours paid for, (\S+)", page.locator(".pane").inner_text())[0]
    price = page.locator(".headline strong").first.inner_text()
    slider = page.locator(".player input[type=range]")
    slider.focus()
    slider.press("Home")
    assert (moment(page), counters(page)["finished"], counters(page)["paid"]) == (0, "0", "$0.00")
    slider.press("ArrowRight")
    assert moment(page) == 1
    slider.press("End")
    shown = counters(page)
    assert (shown["arrived"], shown["finished"], shown["waiting"], shown["running"]) == (asked, done, "0", "0")
    assert (shown["paid"], shown["$/mtok so far"]) == (paid, price)
    missed = page.locator(".player .misses .said").inner_text()
    assert missed.startswith(f"{shown['missed slo']} of {asked} requests")
    page.get_by_role("button", name="Previous miss").click()
    last = page.locator(".player .who h3").inner_text()
    page.locator(".player svg.marks").click(position={"x": 3, "y": 6})
    first = page.locator(".player .who").inner_text()
    assert last not in first
    assert re.search(r"request [\d,]+: TTFT .*SLO 60 ms; [\d,]+ prompt tokens?, [\d,]+ answer tokens?; it", first)
    reached = moment(page)
    assert 0 < reached < int(slider.get_attribute("max") or 0)
    page.get_by_role("button", name="Next miss").click()
    assert moment(page) > reached


def test_it_plays_when_asked_and_stands_still_when_paused(window: Visit) -> None:
    page = played(window)
    slider = page.locator(".player input[type=range]")
    at_first = moment(page)
    assert at_first == int(slider.get_attribute("max") or 0)
    play = page.locator(".player .play")
    expect(play).to_have_text("Play")
    slider.focus()
    slider.press("Home")
    slider.press(" ")
    expect(play).to_have_text("Pause")
    expect(slider).to_have_value(re.compile(r"^([3-9]|\d\d+)$"))
    play.click()
    expect(play).to_have_text("Play")
    stopped = moment(page)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert moment(page) == stopped
    slider.press("ArrowLeft")
    assert moment(page) == stopped - 1


# --- prices -----------------------------------------------------------------------------------------------------------


RESULTS = Path(__file__).parents[1] / "measure" / "results" / "vllm.json"
PLAN = "?view=plan&gpu=L40S&rate=5&input=1000&output=300"


def tiles(page: Page, answer: int = 0) -> dict[str, str]:
    """The figures of an answer, folded ones too, by name."""
    found = page.locator(".pane").nth(answer).locator(".tiles")
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
    page.get_by_text("The bill in detail").click()
    expect(page.locator(".tiles dt", has_text="cached input")).to_be_visible()
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


def test_a_refused_answer_is_not_compared(window: Visit) -> None:
    page = window.open(f"{PLAN}&b.rate=7")
    expect(page.locator(".compared tbody")).not_to_be_empty()
    page.get_by_role("button", name="Scenario B").click()
    page.get_by_label("Requests").first.fill("no number")
    page.keyboard.press("Tab")  # Enter would simulate both
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
    gpu = str(link.get_attribute("href")).partition("gpu=")[2].partition("&")[0]
    link.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main h1")).to_have_text("Plan")
    expect(page.locator(".pane[data-state=shown] .headline .detail").first).to_contain_text(
        gpu.replace("RTX", "RTX ").replace("-", " ")
    )
    assert f"gpu={gpu}" in page.url
    assert "rate=6" in page.url
    assert "input=900" in page.url


# --- parts ------------------------------------------------------------------------------------------------------------


def parts_asked(page: Page) -> list[list[str]]:
    """The parts of answers that the page asks for from now on, request by request."""
    asked: list[list[str]] = []

    def hear(request: Request) -> None:
        address = urlsplit(request.url)
        if address.path.startswith("/api/v1/answers/"):
            asked.append(parse_qs(address.query)["part"])

    page.on("request", hear)
    return asked


def test_figures_then_charts_and_downloads_when_they_are_taken(window: Visit) -> None:
    asked = parts_asked(window.page)
    window.load("?view=batching")
    page = window.shown()
    page.locator("figure[data-drawn]").first.wait_for()
    assert asked == [["sections"], ["charts"]]
    with page.expect_download() as taken:
        page.get_by_role("button", name="JSON").click()
    saved = json.loads(Path(taken.value.path()).read_text())
    whole = page.request.post(
        f"{window.address}api/v1/answers/curve",
        data=json.dumps({"model": "llama-3.1-8b", "gpu": "H100-SXM", "context": "1024"}),
        headers=window.own,
    ).json()
    assert saved == whole["result"]
    page.locator("details.asText summary").click()
    expect(page.locator("details.asText pre")).to_contain_text(whole["text"].splitlines()[0].strip())
    assert asked == [["sections"], ["charts"], ["result"], ["text"]]
    with page.expect_download() as taken:
        page.get_by_role("button", name="CSV").last.click()
    assert len(Path(taken.value.path()).read_text().splitlines()) > 2
    assert len(asked) == 4, "what came once is not asked for again"


def test_the_view_of_apis_alone_asks_for_them(window: Visit) -> None:
    paths: list[str] = []
    window.page.on("request", lambda request: paths.append(urlsplit(request.url).path))
    window.load("?view=batching")
    page = window.shown()
    assert "/api/v1/catalog" in paths
    assert "/api/v1/catalog/apis" not in paths
    page.locator("#views a[data-view=own]").click()
    expect(page.locator('datalist option[value="groq:llama-3.1-8b-instant"]')).to_have_count(1)
    assert "/api/v1/catalog/apis" in paths


# --- uploads ----------------------------------------------------------------------------------------------------------


REQUESTS = 60
ROWS = "".join(f"{second},m{second},{100 + second},{20},{'x' * 90}\n" for second in range(REQUESTS))
OWN = f"when,note,n_in,made,text\n{ROWS}"
MAPPED = "arrival=when,input=n_in,output=made"


def uploaded(page: Page, content: str, name: str = "mine.csv") -> None:
    """As by the button that opens a file."""
    file: FilePayload = {"name": name, "mimeType": "text/csv", "buffer": content.encode()}
    page.locator("input[type=file]").set_input_files(file)


def select(page: Page, field: str) -> Locator:
    return page.locator(f"dialog select[data-field={field}]")


def asked_with(page: Page, text: str) -> str:
    """The same question on the command line, once the answer is that to ``text``."""
    command = page.locator(".command code")
    expect(command).to_contain_text(text)
    return command.inner_text()


def test_an_unknown_table_is_mapped_and_every_view_with_a_log_asks_so(window: Visit) -> None:
    page = window.load("?view=levers&gpu=L40S")
    uploaded(page, OWN)
    dialog = page.get_by_role("dialog", name="Which column is what?")
    expect(dialog.locator("tbody tr")).to_have_count(5)
    assert dialog.locator("tbody tr").nth(4).locator("td").all_inner_texts()[:4] == ["4", "m4", "104", "20"]
    assert len(dialog.locator("tbody td").nth(4).inner_text()) == 40, "long cells are shortened"
    assert [select(page, field).input_value() for field in ("arrival", "input", "output")] == ["when", "n_in", ""]
    # By keys alone: what is left to say has the focus, and nothing is taken without it.
    expect(select(page, "output")).to_be_focused()
    dialog.get_by_role("button", name="Use these columns").press("Enter")
    expect(select(page, "output")).to_be_focused()
    page.keyboard.press("m")
    expect(select(page, "output")).to_have_value("made")
    dialog.get_by_role("button", name="Use these columns").press("Enter")
    expect(dialog).to_have_count(0)
    assert page.url.endswith(f"&columns={MAPPED}"), page.url
    for view in ("fleet", "accuracy", "levers"):
        page.locator(f"#views a[data-view={view}]").click()
        assert f"columns={MAPPED}" in page.url, view
    page.reload()
    page.locator("#views a[data-view=traffic]").click()
    assert "mine.csv" in asked_with(page, f"--columns {MAPPED}")
    assert f"{REQUESTS} requests" in page.locator(".headline").inner_text().replace("\n", " ")
    page.locator("#views a[data-view=plan]").click()
    assert "--trace mine.csv" in asked_with(page, f"--columns {MAPPED}")


def test_a_mapping_can_be_changed_and_goes_with_its_log(window: Visit) -> None:
    page = window.load("?view=accuracy")
    uploaded(page, "time,prompt_tokens,also_tokens,answer_tokens\n" + "".join(f"{n},{n + 10},7,5\n" for n in range(9)))
    asked_with(page, "mine.csv")
    way_back = page.get_by_role("button", name="Columns", exact=True)
    way_back.press("Enter")
    expect(select(page, "input")).to_have_value("prompt_tokens")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(way_back).to_be_focused()
    assert "columns=" not in page.url
    way_back.click()
    select(page, "input").select_option("also_tokens")
    expect(page.locator("dialog th", has_text="also_tokens")).to_contain_text("Prompt tokens")
    page.get_by_role("button", name="Use these columns").click()
    asked_with(page, "--columns arrival=time,input=also_tokens,output=answer_tokens")
    expect(page.locator(".pane table tbody tr").first).to_contain_text("7")
    way_back.click()
    expect(select(page, "input")).to_have_value("also_tokens")
    page.keyboard.press("Escape")
    page.locator("input[name=trace]").fill("")
    page.locator("input[name=trace]").press("Enter")
    expect(way_back).to_be_hidden()
    assert "columns=" not in page.url


def test_a_narrow_screen_shows_the_whole_dialogue(narrow: Visit) -> None:
    page = narrow.open("?view=accuracy")
    uploaded(page, OWN)
    expect(page.locator("dialog")).to_be_visible()
    edges = page.locator("dialog").bounding_box()
    assert edges
    assert 0 <= edges["x"] < edges["x"] + edges["width"] <= 380
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


SAID_ON_THE_PAGE = {
    "Give `usd_per_hour=2.5`.": "Give --usd-per-hour 2.5 of the command.",
    "See `why`.": "See “Why not the others”.",
    "Say `rate`.": "Say “Requests per second”.",
    'Say which: `columns="arrival=when"`.': "Say which: “Columns”.",
}


def test_inputs_are_called_as_on_the_form_or_as_the_command_has_them(window: Visit) -> None:
    script = """async (texts) => {
      const [{ labelled }, fields] = await Promise.all([import("/static/labels.js"), import("/static/fields.js")]);
      return texts.map((text) => labelled([{ fields: [fields.rate, fields.trace] }]).text(text));
    }"""
    page = window.open("?view=accuracy")
    assert page.evaluate(script, list(SAID_ON_THE_PAGE)) == list(SAID_ON_THE_PAGE.values())


CERTIFICATE = Path(__file__).parents[1] / "golden" / "tune.json"


def test_a_certificate_that_is_dropped_shows_its_search_and_its_best_set(window: Visit) -> None:
    page = window.open("?view=plan")
    uploaded(page, CERTIFICATE.read_text(), "tune.json")
    settled(page)
    assert parse_qs(urlsplit(page.url).query)["view"] == ["benchmark"]
    told = page.locator("main")
    expect(told).to_contain_text("4 loads of 3 trials checked, all agree")
    expect(told).to_contain_text("holds 12.3 requests/s (measured)")
    drawn = page.locator("figure.chart").first
    expect(drawn).to_contain_text("best so far")
    expect(drawn).to_contain_text("trial 3")
    expect(told.locator("tbody tr", has_text="--max-num-seqs 256").first).to_contain_text("12.3")
