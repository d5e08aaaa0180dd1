"""A description is made once; every door shows the same of it, and writes inputs its own way."""

import pytest

from tokonomics.errors import flag, in_python, option
from tokonomics.questions.result import Listing
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.report.html import described
from tokonomics.report.markdown import markdown
from tokonomics.report.terminal import as_text

EVIL = "<b>&\"'|"


def view() -> blocks.View:
    """Every block there is."""
    yield blocks.headline("$1.20 per Mtok", ": 2 × H100")
    yield blocks.line("5 requests/s", kind="asked")
    yield None
    yield blocks.section()
    yield blocks.facts(
        ("TTFT p99", blocks.Span("420 ms", "good"), "SLO 500 ms met", 0.42),
        ("offer", EVIL),
        blocks.fact("load", ["7", blocks.Span("4 %", "warn")], number=0.74, less="worse"),
        None,
    )
    columns = ["!GPU", ">$/month", "because"]
    rows: list[list[blocks.Pieces]] = [
        ["H100", "$876", ""],
        ["L4", "$900", blocks.Span("slow", "bad")],
        ["T4", "$990", EVIL],
    ]
    yield blocks.section(blocks.table(columns, rows, "What it costs", best=0, shown=2), title=f"By {option('gpu')}")
    yield blocks.Bar((blocks.Part("busy", 3, "green", "75 %"), blocks.Part("idle", 1, "grey", "25 %")))
    yield blocks.File("serve.sh", "vllm serve\n  --port 8000")
    yield blocks.hint(f"Give {option('rate', 5)}, or {option('tokens_per_month', '2B')}.")
    yield blocks.note("one", "", "two")
    yield blocks.section(blocks.line("every offer"), title="More", folded=True)


ANSWER = Answer(Listing(rows=(), documents=()), "An answer", view)


def test_a_terminal_shows_what_is_not_folded_with_empty_lines_between_sections() -> None:
    shown = [row.rstrip() for row in as_text(ANSWER.sections()).splitlines()]
    assert shown == [
        "$1.20 per Mtok: 2 × H100",
        "",
        "5 requests/s",
        "",
        "TTFT p99   420 ms  SLO 500 ms met",
        f"offer     {EVIL}",
        "load         74 %",
        "",
        "By --gpu",
        "What it costs",
        "GPU   $/month  because",
        "──────────────────────",
        "H100     $876",
        "L4       $900  slow",
        "",
        "█" * 45 + "▓" * 15,
        "█ busy 75 %   ▓ idle 25 %",
        "",
        "# serve.sh",
        "vllm serve",
        "  --port 8000",
        "",
        "Give --rate 5, or --tokens-per-month 2B.",
        "",
        "one",
        "two",
    ]


def test_html_has_moods_as_classes_and_what_others_wrote_as_text() -> None:
    shown = described(ANSWER.sections(), in_python)
    assert "<p class='headline'><span class='best'>$1.20 per Mtok</span>: 2 × H100</p>" in shown
    assert (
        "<td class='number strong'><span class='good'>420 ms</span></td><td class='soft'>SLO 500 ms met</td>" in shown
    )
    assert "<tr class='best'><td class='whole'>H100</td><td class='number'>$876</td>" in shown
    assert "<span class='bad'>slow</span>" in shown
    assert "&lt;b&gt;&amp;&quot;&#x27;|" in shown
    assert EVIL not in shown
    assert "T4" not in shown, "more rows than are shown at first"
    assert "<span style='flex:3;background:#54a24b'></span>" in shown
    assert "<pre>vllm serve\n  --port 8000</pre>" in shown
    assert "<details><summary>More</summary><p class=''>every offer</p></details>" in shown


def test_markdown_is_paragraphs_and_tables() -> None:
    shown = markdown(ANSWER.sections())
    assert shown.startswith("**$1.20 per Mtok**: 2 × H100\n\n5 requests/s\n\n")
    assert "| TTFT p99 | 420 ms | SLO 500 ms met |" in shown
    assert "| offer | \\<b>&\"'\\| |  |" in shown
    assert "**By --gpu**\n\n**What it costs**\n\n| GPU | $/month | because |\n| :-- | --: | :-- |\n| H100 |" in shown
    assert "busy 75 %, idle 25 %" in shown
    assert "```\nvllm serve\n  --port 8000\n```" in shown
    assert "one  \ntwo" in shown
    assert "every offer" not in shown


@pytest.mark.parametrize(
    ("shown", "gpu", "advice"),
    [
        (as_text(ANSWER.sections()), "By --gpu", "Give --rate 5, or --tokens-per-month 2B."),
        (as_text(ANSWER.sections(), in_python), "By gpu", 'Give rate=5, or tokens_per_month="2B".'),
        (markdown(ANSWER.sections()), "**By --gpu**", "Give --rate 5, or --tokens-per-month 2B."),
        (described(ANSWER.sections(), flag), "<h2>By --gpu</h2>", "Give --rate 5, or --tokens-per-month 2B."),
        (ANSWER.html(), "<h2>By gpu</h2>", "Give rate=5, or tokens_per_month=&quot;2B&quot;."),
    ],
)
def test_each_door_spells_the_inputs_its_own_way(shown: str, gpu: str, advice: str) -> None:
    assert gpu in shown
    assert advice in shown


def test_the_page_gets_everything_as_data() -> None:
    document = ANSWER.document(lambda name, value: f"[{name}]")
    blocks_of = [block for section in document for block in section["blocks"]]
    assert {block["type"] for block in blocks_of} == {"line", "facts", "table", "bar", "file"}
    assert [section["title"] for section in document if section["title"]] == ["By [gpu]", "More"]
    facts = next(block for block in blocks_of if block["type"] == "facts")["rows"]
    assert [(fact["name"], fact["number"], fact["less"]) for fact in facts] == [
        ("TTFT p99", 0.42, "better"),
        ("offer", None, "better"),
        ("load", 0.74, "worse"),
    ]
    table = next(block for block in blocks_of if block["type"] == "table")
    assert (len(table["rows"]), table["shown"], table["best"]) == (3, 2, 0)
    assert document[-1]["folded"]


def test_names_in_markdown_mean_themselves() -> None:
    told = [
        blocks.section(
            blocks.line(blocks.Span("met   ", "best"), "  ttft_p99"),
            blocks.line("* fewer bits than published\n- a second line"),
            blocks.table(["name"], [["<img src=x>"], ["a|b\nc"], ["fp8*"], ["run `tokonomics plan a_b`"]]),
        )
    ]
    shown = markdown(told)
    assert shown.startswith("**met**     ttft\\_p99")
    assert "\\* fewer bits than published  \n\\- a second line" in shown
    assert "| \\<img src=x> |\n| a\\|b c |\n| fp8\\* |\n| run `tokonomics plan a_b` |" in shown


def test_brackets_in_names_are_no_markup_on_a_terminal() -> None:
    named = blocks.table(["[v1].toml"], [["a cell that is wide"]], "[/b]title")
    told = [blocks.section(named, blocks.facts(blocks.fact("[red]name", "1")))]
    shown = as_text(told)
    assert "[v1].toml" in shown
    assert "[/b]title" in shown
    assert "[red]name" in shown


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_a_narrow_terminal_gets_lines_that_fit_and_every_cell(columns: int) -> None:
    heads = ["!offer", *(f">figure {place}" for place in range(9)), "because"]
    rows = [[f"cloud-machine-{row}", *(f"${row}{place},000" for place in range(9)), "of all"] for row in range(3)]
    facts = blocks.facts(("80 % interval", "$2,291,210 to $3,779,008", "a month; speed and load as they may turn out"))
    bar = blocks.bar([("busy", 3.0, "green"), ("idle", 1.0, "yellow")], lambda size: f"${size:.2f} an hour")
    text = as_text(blocks.sections([facts, blocks.table(heads, rows), bar]), columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    for cell in ("$2,291,210 to $3,779,008", "speed and load", *heads[1:], *(cell for row in rows for cell in row)):
        assert cell.lstrip(">!") in text


def test_headings_of_numbers_break_in_two_lines_and_are_never_cut() -> None:
    heads = ["!model", *(f">heading number {place}" for place in range(12))]
    text = as_text(blocks.sections([blocks.table(heads, [["llama", *("1" for _ in range(12))]])]), columns=120)
    assert "…" not in text
    assert text.count("heading") == text.count("number") == 12
