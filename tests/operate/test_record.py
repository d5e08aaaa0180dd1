"""A certificate tells when it was changed, and when its figures do not follow from its requests."""

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.there import refused

from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.record import (
    FlagTrial,
    Record,
    ReplayedRequests,
    TrialLoad,
    TuneQuestion,
    disagreements,
    read_record,
    save_record,
)
from tokonomics.traffic.slo import parse_slos

SLOS = "ttft_p95=1,tpot_p90=50ms"
COUNT = 200


def load(rate: float, slowness: float, **changes: Any) -> TrialLoad:
    """Requests whose latencies are drawn; the lateness is computed with numpy's percentiles."""
    drawn = np.random.default_rng(round(rate * 1000))
    ttft, tpot = drawn.exponential(0.2 * slowness, COUNT), drawn.exponential(0.01 * slowness, COUNT)
    requests = ReplayedRequests(
        sent_s=tuple(np.arange(COUNT) / rate),
        ttft_s=tuple(ttft),
        tpot_s=tuple(tpot),
        e2e_s=tuple(ttft + 9 * tpot),
        input_tokens=(100,) * COUNT,
        output_tokens=(10,) * COUNT,
    )
    late = float(max(np.quantile(ttft, 0.95) / 1.0, np.quantile(tpot, 0.9) / 0.05))
    return TrialLoad(**{"rate": rate, "late": late, "failed": 0, "requests": requests} | changes)


def record(**changes: Any) -> Record:
    question = TuneQuestion(
        model="llama-3.1-8b", gpu="H200", engine="vllm", server="vllm serve m {flags}", setup="", slos=SLOS,
        traffic="ab" * 32, requests=COUNT,
        axes={"max_sequences": ("64", "128")}, gpus=1,
    )  # fmt: skip
    trials = (
        FlagTrial(
            flags=FlagSet(values={}), words="", predicted=9.0, loads=(load(8, 1.2), load(12, 2.0)), finished=True,
        ),
        FlagTrial(
            flags=FlagSet(values={"max_sequences": 64}), words="--max-num-seqs 64", predicted=11.0,
            failed="the server ended with status 1", engine={"version": "0.26.0"},
        ),
    )  # fmt: skip
    given = {
        "made": datetime(2026, 11, 15, tzinfo=UTC), "question": question,
        "usd_per_gpu_hour": 3.6, "price_from": "as given", "tokens_per_request": 1000.0, "trials": trials,
        "machine": {"gpus": ["H200"]},
    }  # fmt: skip
    return Record(**given | changes)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each plain value of a document is; of a column, its first value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*path, 0))
        yield from leaves(value[-1], (*path, len(value) - 1))
    else:
        yield path


def changed(document: Any, path: tuple[Any, ...]) -> Any:
    """The document with another value in one place."""
    copy = json.loads(json.dumps(document))
    *way, last = path
    inside = copy
    for step in way:
        inside = inside[step]
    old = inside[last]
    if isinstance(old, bool):
        inside[last] = not old
    elif isinstance(old, int | float):
        inside[last] = old + 1
    elif last == "made":
        inside[last] = "2026-11-16T00:00:00Z"
    elif isinstance(old, str):
        inside[last] = old + "x"
    return copy if inside[last] != old else None


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_record(record(), tmp_path / "tune.json")
    again = read_record(tmp_path / "tune.json")
    assert again.model_copy(update={"digest": ""}) == record()
    assert len(again.digest) == 64


def test_the_digest_tells_of_any_change(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    save_record(record(), path)
    document = json.loads(path.read_text())
    seen = 0
    for place in leaves(document):
        edited = changed(document, place)
        if edited is None or place[-1] == "kind":  # another kind of file is refused for that
            continue
        path.write_text(json.dumps(edited))
        assert "was changed after it was written" in refused(read_record, path).what, place
        seen += 1
    assert seen > 40
    path.write_text(json.dumps({**document, "trials": document["trials"][:1]}))
    assert "was changed after it was written" in refused(read_record, path).what
    path.write_text(json.dumps(document, indent=1))
    assert read_record(path).trials == record().trials, "blanks are no change"


def test_digests_differ_between_records_that_differ() -> None:
    first = record()
    others = [
        record(machine={"system": "Linux"}),
        record(trials=first.trials[:1]),
        record(trials=first.trials[::-1]),
        record(usd_per_gpu_hour=None),
        record(stopped="every set was tried"),
        record(proposed=FlagSet(values={})),
    ]
    assert len({each.digest_now() for each in (first, *others)}) == 1 + len(others)
    assert first.sealed().digest == first.digest_now() == first.sealed().digest_now()


def test_what_was_measured_agrees_with_itself() -> None:
    assert disagreements(record()) == ()


def test_an_edited_latency_is_found_when_the_digest_is_renewed(tmp_path: Path) -> None:
    """The 95th percentile of 200 is between the 11th and the 10th largest: ten others made small move it."""
    document = record().model_dump(mode="json")
    times = document["trials"][0]["loads"][1]["requests"]["ttft_s"]
    for place in np.argsort(times)[-12:]:
        times[place] = 0.001
    times = document["trials"][0]["loads"][1]["requests"]["tpot_s"]
    for place in np.argsort(times)[-30:]:
        times[place] = 0.001
    path = tmp_path / "tune.json"
    save_record(Record.model_validate(document), path)
    (said,) = disagreements(read_record(path))
    assert "trial 1 at 12/s" in said


def test_an_edited_lateness_and_hidden_failures_are_found() -> None:
    slow = load(12, 2.0)
    assert slow.late is not None
    for edited in (
        slow.model_copy(update={"late": slow.late * 0.99}),
        slow.model_copy(update={"late": None}),
        slow.model_copy(update={"failed": 50}),
    ):
        trial = record().trials[0].model_copy(update={"loads": (load(8, 1.2), edited)})
        assert len(disagreements(record(trials=(trial,)))) == 1


def test_the_lateness_is_that_of_the_worst_target_and_a_failed_request_is_later_than_any() -> None:
    """Of 200 requests, a p95 lies between the 11th and the 10th slowest: nine failures leave it finite."""
    slos = parse_slos(SLOS)
    slow = load(12, 2.0)
    assert slow.lateness(slos) == pytest.approx(slow.late)

    def failing(count: int) -> float:
        rows = slow.requests.model_dump()
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            rows[name] = (None,) * count + rows[name][count:]
        return slow.model_copy(update={"requests": ReplayedRequests(**rows)}).lateness(slos)

    assert math.isfinite(failing(9))
    assert failing(11) == math.inf
    nobody = ReplayedRequests(sent_s=(), ttft_s=(), tpot_s=(), e2e_s=(), input_tokens=(), output_tokens=())
    assert TrialLoad(rate=1, late=None, failed=9, requests=nobody).lateness(slos) == math.inf


def test_loads_that_were_played_again_do_not_count() -> None:
    loads = (
        load(10, 1, late=5.0, again="the engine compiled kernels meanwhile"), load(10, 1, late=0.5),
        load(20, 1, late=2.0),
    )  # fmt: skip
    trial = record().trials[0].model_copy(update={"loads": loads})
    assert trial.rate == pytest.approx(math.sqrt(200.0))  # 0.5 × 2 = 1: half of the way in logarithms
    assert trial.model_copy(update={"failed": "it died"}).rate == 0


def test_dollars_are_those_of_the_cost_equation() -> None:
    """$3.60 an hour is $0.001 a second; 8 requests of 1,000 tokens in it make 8,000 tokens: $0.125 a million."""
    assert record().usd_per_mtok(8.0) == pytest.approx(0.125)
    assert record().usd_per_mtok(8.0, gpus=2) == pytest.approx(0.25)
    assert record().usd_per_mtok(0.0) is None
    assert record(usd_per_gpu_hour=None).usd_per_mtok(8.0) is None


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    assert "cannot be read" in refused(read_record, path).what
    for text in ("", "{}", "[1]", '{"kind": "plan"}'):
        path.write_text(text)
        assert str(path) in str(refused(read_record, path))
