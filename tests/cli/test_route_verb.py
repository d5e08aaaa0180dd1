"""``tokonomics route`` as a person types it."""

import csv
from pathlib import Path

import pytest
from tests.command import Call, answer, refusal

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
MODELS = ("route", "llama-3.2-1b", "llama-3.1-8b", "--offers", OFFERS, "--gpu", "L4,A100-80GB")
ON_TIME = ("--slo", "ttft_p99=2,tpot_p99=0.2")
ROUTED = (*MODELS, "--trace", Path(__file__).parents[2] / "docs" / "examples" / "routed.csv")
EASY, HARD = 200, 100
"""Requests of each task."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two tasks; the small model answers one of them well, and the router's score knows which."""
    path = tmp_path / "log.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "prompt_tokens", "completion_tokens", "task", "confidence", "small_ok", "large_ok"])
        for place in range(EASY + HARD):
            hard = place % 3 == 2
            rows.writerow(
                [place / 4, 300 + place % 50, 40, "hard" if hard else "easy", *((0.2, 0, 1) if hard else (0.9, 1, 1))]
            )
    return path


def test_scores_of_a_log_route_it_and_the_floor_picks_the_cheapest(tokonomics: Call, log: Path, tmp_path: Path) -> None:
    scored = ("--score", "confidence", "--by", "task", "--quality", "llama-3.2-1b=small_ok,llama-3.1-8b=large_ok")
    made = answer(
        tokonomics, *MODELS, *ON_TIME, "--trace", log, *scored, "--min-quality=0.99", "--chart", tmp_path / "r.svg"
    )
    assert (tmp_path / "r.svg").exists()
    singles = {way["parts"][0]["model"]: way for way in made["ways"] if way["kind"] == "single"}
    assert singles["llama-3.2-1b"]["quality"] == pytest.approx(EASY / (EASY + HARD))
    assert singles["llama-3.1-8b"]["quality"] == 1
    # One threshold tells the tasks apart, as the labels do: the same parts, so the same bill.
    (routed,) = [way for way in made["frontier"] if way["kind"] == "routed"]
    labels = [way for way in made["frontier"] if way["kind"] == "labels"]
    assert routed["threshold"] == 0.9
    assert routed["first_share"] == pytest.approx(EASY / (EASY + HARD))
    assert routed["quality"] == 1
    for way in (way for way in labels if way["quality"] == 1):
        assert way["usd_per_month"] == pytest.approx(routed["usd_per_month"])
    good = [way["usd_per_month"] for way in made["ways"] if way["quality"] >= 0.99]
    assert made["best"]["usd_per_month"] == pytest.approx(min(good))


def test_scores_by_label_are_weighed_by_their_requests(tokonomics: Call, log: Path) -> None:
    scores = "easy/llama-3.2-1b=0.9,hard/llama-3.2-1b=0.3,llama-3.1-8b=0.8"
    made = answer(tokonomics, *MODELS, *ON_TIME, "--trace", log, "--by", "task", "--quality", scores)
    small = next(way for way in made["ways"] if way["parts"][0]["model"] == "llama-3.2-1b")
    assert small["quality"] == pytest.approx((EASY * 0.9 + HARD * 0.3) / (EASY + HARD))
    best = max(way["quality"] for way in made["frontier"])
    assert best == pytest.approx((EASY * 0.9 + HARD * 0.8) / (EASY + HARD))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("route", "llama-3.1-8b", "--rate=5", "--input=500", "--output=50"), "at least two models"),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--score=confidence"), "--score: is for a log"),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--min-quality=0.9"), "none are given"),
        (
            (*MODELS, "--rate=5", "--input=500", "--output=50", "--quality=llama-3.2-1b=0.5"),
            "llama-3.1-8b has no score",
        ),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--quality=lama=0.5"), "is not MODEL=SCORE"),
        ((*MODELS, "--trace=azure-conv", "--score=confidence"), "no request says its confidence"),
        (
            (*ROUTED, "--score=confidnce"),
            "Did you mean confidence? The log has time, prompt_tokens, completion_tokens,",
        ),
        ((*ROUTED, "--score=confidnce", "--by=task"), "no request says its confidnce Did you mean confidence?"),
        ((*ROUTED, "--score=confidence", "--share=70%"), "--share, --score: give one of the two"),
    ],
)
def test_what_cannot_be_routed_is_said_in_a_line(tokonomics: Call, words: tuple[str | Path, ...], said: str) -> None:
    assert said in refusal(tokonomics, *words)
