"""Somebody's own table in a real browser: they say which column is what, and every view asks of that log."""

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect
from tests.web.browser import NEEDS_BROWSER, Visit

pytestmark = NEEDS_BROWSER

REQUESTS = 60
ROWS = "".join(f"{second},m{second},{100 + second},{20},{'x' * 90}\n" for second in range(REQUESTS))
OWN = f"when,note,n_in,made,text\n{ROWS}"
MAPPED = "arrival=when,input=n_in,output=made"


def opened(page: Page, content: str, name: str = "mine.csv") -> None:
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
    page = window.open("?view=levers")
    opened(page, OWN)
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
    page = window.open("?view=accuracy")
    opened(page, "time,prompt_tokens,also_tokens,answer_tokens\n" + "".join(f"{n},{n + 10},7,5\n" for n in range(9)))
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


def test_without_a_mapping_the_reader_is_told_why_in_words_of_the_page(window: Visit) -> None:
    page = window.open("?view=accuracy")
    opened(page, "a,b,c\n1,2,3\n")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("its columns: a, b, c")
    expect(notice).to_contain_text("“Columns”")
    assert "--columns" not in notice.inner_text()
    assert "columns=" not in notice.inner_text()


def test_a_narrow_screen_shows_the_whole_dialogue(narrow: Visit) -> None:
    page = narrow.open("?view=accuracy")
    opened(page, OWN)
    expect(page.locator("dialog")).to_be_visible()
    edges = page.locator("dialog").bounding_box()
    assert edges
    assert 0 <= edges["x"] < edges["x"] + edges["width"] <= 380
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Give `usd_per_hour=2.5`.", "Give --usd-per-hour 2.5 of the command."),
        ("See `why`.", "See “Why not the others”."),
        ("Say `rate`.", "Say “Requests per second”."),
        ('Say which: `columns="arrival=when"`.', "Say which: “Columns”."),
    ],
)
def test_inputs_are_called_as_on_the_form_or_as_the_command_has_them(window: Visit, text: str, said: str) -> None:
    script = """async (text) => {
      const [{ labelled }, fields] = await Promise.all([import("/static/labels.js"), import("/static/fields.js")]);
      return labelled([{ fields: [fields.rate, fields.trace] }]).text(text);
    }"""
    assert window.open("?view=accuracy").evaluate(script, text) == said
