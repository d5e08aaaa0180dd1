"""The page's colours can be read: contrast as WCAG 2.2 defines it, computed from the style sheet, light and dark."""

import re
from pathlib import Path

import pytest

import tokonomics.web

SHEET = Path(tokonomics.web.__file__).with_name("page") / "base.css"
TEXT, PARTS = 4.5, 3.0
"""Level AA: of text with its ground, and of what must be seen to use a control."""
GROUNDS = ("paper", "card", "sunk")
BADGES = (("accent", "accent-wash"), ("good", "good-wash"), ("bad", "bad-wash"), ("warn", "warn-wash"))


def palettes() -> dict[str, dict[str, str]]:
    """Every colour stands in both, side by side."""
    colours = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", SHEET.read_text())
    assert colours
    return {
        "light": {name: light for name, light, _ in colours},
        "dark": {name: dark for name, _, dark in colours},
    }


def luminance(colour: str) -> float:
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_is_the_largest_contrast() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("palette", palettes().values(), ids=palettes())
def test_every_text_can_be_read_on_every_ground(palette: dict[str, str]) -> None:
    pairs = [(ink, ground) for ink in ("ink", "soft", "accent", "good", "bad", "warn") for ground in GROUNDS]
    pairs += [*BADGES, ("ink", "accent-wash"), ("ink", "bad-wash"), ("ink", "warn-wash"), ("soft", "accent-wash")]
    pairs += [("accent-ink", "accent")]
    weak = {pair: contrast(*(palette[name] for name in pair)) for pair in pairs}
    assert {pair: found for pair, found in weak.items() if found < TEXT} == {}


@pytest.mark.parametrize("palette", palettes().values(), ids=palettes())
def test_the_edges_of_fields_and_the_marks_of_charts_can_be_seen(palette: dict[str, str]) -> None:
    for part in ("edge", "accent", "series"):
        assert contrast(palette[part], palette["card"]) >= PARTS, part
