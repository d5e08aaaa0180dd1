"""The guide is sound: links lead somewhere, flags exist, figures in the prose stand in an output beside it."""

import math
import re
import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vl_convert
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import document_ledger  # noqa: E402
import document_physics  # noqa: E402
from generate import BLOCK, PAGES, WHOLE  # noqa: E402
from links import anchors, broken_links  # noqa: E402
from pictures import _pixels as pixels  # noqa: E402
from pictures import in_few_colours  # noqa: E402

GUIDE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = [path for path in ROOT.glob("*.md") if path.name != "README.md"]
QUESTIONS = sorted((ROOT / "docs" / "questions").glob("*.md"))
TAUGHT = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *QUESTIONS]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [*GUIDE, *PROJECT], ids=_name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("links.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One two\n\n[a](gone.md) [b](#one-two) [c](#three) `[d](code.md)`\n```\n[e](fence.md)\n```\n")
    assert [link.split(": ")[-1] for link in broken_links(page)] == ["no such file", "no such heading"]


def test_anchors_are_made_as_code_hosts_make_them() -> None:
    text = "# What it *is*\n## `fit`: does it?\n## Twice\n## Twice\n```sh\n# not a heading\n```\n"
    assert anchors(text) == {"what-it-is", "fit-does-it", "twice", "twice-1"}


@pytest.mark.parametrize("page", TAUGHT, ids=_name)
def test_commands_in_the_prose_exist_with_the_flags_they_show(page: Path) -> None:
    helps = _helps()
    everywhere = set().union(*helps.values())
    prose = _prose(page)
    for command in re.findall(r"tokonomics ([a-z][^`\n…]*)", "\n".join(_code(prose))):
        verb = max((each for each in helps if each and f"{command} ".startswith(f"{each} ")), key=len, default=None)
        assert verb, f"`tokonomics {command}` is no verb"
        shown = set(re.findall(r"--[a-z][a-z-]*", command))
        known = helps[verb] | helps.get(f"{verb} watch", set())
        assert shown <= known, f"`{verb}` has no {shown - known}"
    unknown = set(re.findall(r"--[a-z][a-z-]*", "\n".join(_code(prose)))) - everywhere
    assert not unknown


@pytest.mark.parametrize("page", QUESTIONS, ids=_name)
def test_figures_in_an_answer_stand_in_the_output_below_it_or_on_the_page_it_names(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    answer = " ".join(text.split("<!--")[0].split())
    named = [(page.parent / link).read_text(encoding="utf-8") for link in re.findall(r"\]\(([^)#]+\.md)\)", answer)]
    outputs = " ".join(" ".join(block[0] for each in (text, *named) for block in BLOCK.finditer(each)).split())
    short = answer.replace(" million", " M").replace(" billion", " B")
    figures = re.findall(r"\$\d[\d,.]*\d|\d[\d.]* [%MB]\b|\d[\d.]* %|\d+\.\d+", short)
    assert figures
    assert [figure for figure in figures if figure not in outputs] == []


@pytest.mark.parametrize("page", QUESTIONS, ids=_name)
def test_a_question_is_answered_before_anything_else_and_says_what_would_change_it(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert lines[0].endswith("?")
    assert lines[2].startswith("**")
    assert {"how-to-read-it", "what-would-change-the-answer", "next"} <= anchors("\n".join(lines))


def test_the_step_worked_out_by_hand_is_the_one_that_is_predicted() -> None:
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.layers import Precision
    from tokonomics.catalog.load_models import find_model
    from tokonomics.physics.deployment import deploy
    from tokonomics.physics.steptime import decode_step

    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H200"), find_engine("vllm"), weights=Precision.bf16)
    predicted = float(decode_step(deployment, document_physics.BATCH, document_physics.CONTEXT))
    assert math.isclose(document_physics.step_s(), predicted, rel_tol=1e-9)
    assert document_physics.host_s(document_physics.BATCH) < predicted  # beside the GPU, and not the slower


def test_the_tutorials_week_is_the_ledger_that_is_shipped() -> None:
    with closing(sqlite3.connect(f"file:{document_ledger.LEDGER}?mode=ro&immutable=1", uri=True)) as book:
        paid, tokens = book.execute("select sum(usd), sum(output) from spans").fetchone()
    hours = document_ledger.hours()
    assert math.isclose(paid, sum(hour.usd for hour in hours))
    assert math.isclose(tokens, sum(hour.output for hour in hours))
    busy = [hour for hour in hours if hour.busy_s]
    rate = document_ledger.SERVERS * sum(hour.answered for hour in busy) / (len(busy) * 3600)
    assert math.isclose(rate, 6.0, rel_tol=0.01)


def test_the_first_screen_has_the_headline_then_a_real_engine_then_the_frontier() -> None:
    first = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:60]
    places = [
        next(place for place, line in enumerate(first) if line.startswith(begins))
        for begins in ("Cheapest", "|---", "| a real vLLM on an H200", "![The plan on the page")
    ]
    assert places == sorted(places)
    assert places[2] == places[1] + 1  # the first row


def test_the_accuracy_page_leads_with_what_was_never_seen() -> None:
    text = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == ["What it was not fitted on", "A real engine", "Groups left out of everything"]
    first = next(line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| predicted"))
    assert first.startswith("| a real vLLM")


def test_every_page_has_its_place_in_the_site() -> None:
    placed = set(_pages(_site()["nav"]))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - placed == set()


def test_the_site_asks_no_other_host_for_fonts() -> None:
    assert _site()["theme"]["font"] is False
    assert "offline" not in _site()["plugins"]  # fetches a script from unpkg.com


def test_every_page_with_an_output_is_generated() -> None:
    marked = {_name(page) for page in GUIDE if BLOCK.search(page.read_text(encoding="utf-8"))}
    assert marked <= {*PAGES, *WHOLE}


def _prose(page: Path) -> str:
    """What a person wrote: the page without generated blocks."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def _code(prose: str) -> Iterator[str]:
    for fence in re.findall(r"^```\w*\n(.*?)^```", prose, re.DOTALL | re.MULTILINE):
        yield from (line.partition("  #")[0] for line in fence.splitlines())
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", prose, flags=re.DOTALL | re.MULTILINE))


def _helps() -> dict[str, set[str]]:
    """The flags of every verb, from the reference."""
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    parts = re.split(r"^## tokonomics ?(.*)$", text, flags=re.MULTILINE)
    return {
        verb: set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text))
        for verb, help_text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _site() -> dict[str, Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    site: dict[str, Any] = yaml.safe_load(re.sub(r"!!python\S+", "", text))
    return site


def _pages(nav: Any) -> Iterator[str]:
    for entry in nav:
        for place in entry.values():
            yield from _pages(place) if isinstance(place, list) else [place]


def test_a_picture_of_few_colours_is_packed_pixel_for_pixel() -> None:
    disc = '<rect width="60" height="40" fill="#c00"/><circle cx="30" cy="20" r="15" fill="#06c"/>'
    png = vl_convert.svg_to_png(f'<svg xmlns="http://www.w3.org/2000/svg" width="60" height="40">{disc}</svg>')
    seen = pixels(png)
    assert seen.shape == (40, 60, 4)
    assert (seen[0, 0].tolist(), seen[20, 30].tolist()) == ([204, 0, 0, 255], [0, 102, 204, 255])
    few = in_few_colours(png)
    size, palette, lines = (
        few[place + 4 : place + 4 + struct.unpack(">I", few[place - 4 : place])[0]]
        for place in (few.index(kind) for kind in (b"IHDR", b"PLTE", b"IDAT"))
    )
    assert struct.unpack(">II", size[:8]) == (60, 40)
    numbers = np.frombuffer(zlib.decompress(lines), np.uint8).reshape(40, 61)[:, 1:]
    assert np.array_equal(np.frombuffer(palette, np.uint8).reshape(-1, 3)[numbers], seen[..., :3])
