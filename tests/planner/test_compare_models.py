"""Models and GPUs side by side."""

import json
from pathlib import Path

import pytest
from tests.planner.small_catalogue import BUSY, OFFERS, asked
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.planner.compare import Comparison, compare, front, parse_quality
from tokonomics.planner.plan import study
from tokonomics.questions.compare import compare as ask_compare
from tokonomics.questions.requests.buy import CompareRequest


def compared(**quality: float) -> Comparison:
    scores = {name.replace("_", "-").replace("__", "."): value for name, value in quality.items()}
    return compare([asked("llama-3.1-8b", BUSY), asked("qwen2.5-32b", BUSY)], scores)


def test_c37_a_small_model_on_a_big_gpu_is_cheaper_by_the_token_than_a_large_one_on_a_cheap_gpu() -> None:
    found = compared()
    small, large = found.cell("llama-3.1-8b", "H100-SXM"), found.cell("qwen2.5-32b", "A100-80GB")
    assert there(small.usd_per_mtok) < there(large.usd_per_mtok)
    # By the hour it is the other way round.
    assert (OFFERS[3].usd_per_hour or 0) > (OFFERS[1].usd_per_hour or 0)


def test_each_cell_is_the_plan_of_that_model_on_that_gpu() -> None:
    found = compared()
    for cell in found.cells:
        mine = tuple(offer for offer in OFFERS if offer.gpu == cell.gpu)
        best = study(asked(cell.model, BUSY, mine)).plan.best
        assert (cell.pick is None) == (best is None)
        if best is not None and cell.pick is not None:
            assert cell.pick.usd_per_month == best.usd_per_month
        else:
            assert cell.refused


def test_the_best_cell_of_a_model_is_its_plan() -> None:
    found = compared()
    for model in found.models:
        best = there(study(asked(model, BUSY)).plan.best)
        prices = [cell.usd_per_mtok for cell in found.cells if cell.model == model and cell.usd_per_mtok]
        assert min(prices) == pytest.approx(best.usd_per_mtok.blended)


def test_no_pair_beats_one_on_the_front_and_every_other_is_beaten() -> None:
    found = compare(
        [asked("llama-3.1-8b", BUSY), asked("qwen2.5-32b", BUSY)], {"llama-3.1-8b": 0.66, "qwen2.5-32b": 0.8}
    )
    priced = [each for each in found.cells if each.usd_per_mtok is not None]

    def beaten(one: object) -> bool:
        cell = found.cell(*one) if isinstance(one, tuple) else one
        return any(
            (other.usd_per_mtok or 0) <= (cell.usd_per_mtok or 0)  # type: ignore[attr-defined]
            and (other.quality or 0) >= (cell.quality or 0)  # type: ignore[attr-defined]
            and (other.usd_per_mtok, other.quality) != (cell.usd_per_mtok, cell.quality)  # type: ignore[attr-defined]
            for other in priced
        )

    assert found.front
    for each in priced:
        assert beaten(each) == ((each.model, each.gpu) not in found.front)
        assert each.usd_per_quality_mtok == pytest.approx((each.usd_per_mtok or 0) / (each.quality or 1))


def test_without_scores_there_is_no_front() -> None:
    assert compared().front == ()


@pytest.mark.parametrize("text", ["llama-3.1-8c=0.6", "llama-3.1-8b", "llama-3.1-8b=-1"])
def test_what_is_no_score_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_quality([text], ["llama-3.1-8b"])
    assert error.value.field == "quality"


def test_two_pairs_of_one_price_are_both_the_cheapest_and_both_on_the_front() -> None:
    found = compare([asked("llama-3.1-8b", BUSY)], {"llama-3.1-8b": 0.66})
    best = there(found.cheapest())
    twin = best.model_copy(update={"model": "twin", "model_name": "Twin"})
    rest = [cell.model_copy(update={"model": "twin", "model_name": "Twin"}) for cell in found.cells if cell != best]
    cells = (*found.cells, twin, *rest)
    both = found.model_copy(update={"models": (*found.models, "twin"), "cells": cells, "front": front(cells)})
    assert both.front == (("llama-3.1-8b", best.gpu), ("twin", best.gpu))


def test_hosts_of_a_log_read_what_it_repeats_from_their_caches(tmp_path: Path) -> None:
    # Twenty requests, one a second, whose first 512 tokens are the same: all but the first read them.
    rows = [{"timestamp": 1000 * row, "input_length": 1024, "output_length": 10, "hash_ids": [0, row + 1]}
            for row in range(20)]  # fmt: skip
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, rows)))
    asked = {"model": ["gpt-oss-20b"], "trace": str(log), "gpu": ["H100"]}
    found = ask_compare(CompareRequest.checked(asked))
    (bills,) = found.apis.values()
    assert max(bill.cached_share for bill in bills) == pytest.approx(19 / 20 / 2)
    # As fast as one likes: what repeats does so at the log's own pace.
    faster = ask_compare(CompareRequest.checked({**asked, "rate": "0.001"}))
    assert [bill.cached_share for bill in faster.apis["gpt-oss-20b"]] == [bill.cached_share for bill in bills]
