"""A table in memory asks what the same file asks; an empty text is not nothing; what is excluded is not there."""

from pathlib import Path

import polars as pl
import pytest

from tokonomics.errors import BadInput, option
from tokonomics.questions.catalogue import every_offer
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.verbs import find_verb

LOG = {"arrival_s": [float(second) for second in range(60)], "input_tokens": [500] * 60, "output_tokens": [50] * 60}
TABLES = {"columns": LOG, "frame": pl.DataFrame(LOG), "lazy": pl.DataFrame(LOG).lazy()}
ASKED: dict[str, dict[str, object]] = {
    "plan": {"model": "llama-3.1-8b", "gpu": "H100", "quick": True},
    "breakeven": {"model": "llama-3.1-8b", "gpu": "H100", "api": "openai:gpt-4o", "quick": True},
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("table", TABLES)
def test_a_log_in_memory_asks_what_the_file_asks(name: str, table: str, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    pl.DataFrame(LOG).write_csv(file)
    verb = find_verb(name)
    requests = [verb.request.checked({**ASKED[name], "trace": log}) for log in (file, TABLES[table])]
    from_file, from_memory = (verb.answer(request, SILENT).plain() for request in requests)
    assert from_memory == from_file


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("empty", ["offers", "arrivals", "tokens_per_month", "columns"])
def test_an_empty_text_is_not_taken_for_nothing(name: str, empty: str) -> None:
    verb = find_verb(name)
    pace: dict[str, object] = {} if empty == "tokens_per_month" else {"rate": 5}
    request = verb.request.checked({**ASKED[name], "input": 500, "output": 50, **pace, empty: ""})
    with pytest.raises(BadInput):
        verb.answer(request, SILENT)


def test_what_is_excluded_is_as_if_nobody_sold_it() -> None:
    request = PlanRequest.checked({"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300})
    every = every_offer(request)
    left = every_offer(request.model_copy(update={"exclude": ("yotta", "rtx 6000 ada")}))
    assert set(left) == {offer for offer in every if offer.provider != "yotta" and offer.gpu != "RTX6000-Ada"}
    assert set(left) < set(every)
    with pytest.raises(BadInput) as refused:
        every_offer(request.model_copy(update={"exclude": ("nobody",)}))
    assert refused.value.field == "exclude"


@pytest.mark.parametrize("also", [{"discount": "yotta=0.1"}, {"sellers": "cloud"}])
def test_an_exclusion_goes_with_other_filters(also: dict[str, str]) -> None:
    asked = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "exclude": "yotta"} | also
    assert "yotta" not in {offer.provider for offer in every_offer(PlanRequest.checked(asked))}


def test_what_is_both_asked_for_and_excluded_is_refused_with_the_exclusion_named() -> None:
    asked = {"model": "llama-3.1-8b", "rate": 5, "input": 1000, "output": 300, "gpu": "T4", "exclude": "T4"}
    with pytest.raises(BadInput) as refused:
        every_offer(PlanRequest.checked(asked))
    assert option("exclude") in (refused.value.fix or "")
