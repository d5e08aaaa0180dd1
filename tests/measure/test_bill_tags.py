"""A bill split by a request log: the parts are the bill, to the cent, and what the log does not tell has a name."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.measure.focus_rules import problems
from tests.measure.ledgers import at, booked, hour, ledger_of
from tests.there import refused, there

from tokonomics.measure.meter.bill import bill, token_costs
from tokonomics.measure.meter.export import ExportFormat, cents, exported, text_of_export
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.measure.meter.state import Statement
from tokonomics.measure.meter.tags import BillSplit, Sent, TaggedLog
from tokonomics.questions.meter import MeterReportResult, meter_export, meter_report
from tokonomics.questions.requests.run import MeterExportRequest, MeterReportRequest

MONDAY = date(2026, 11, 9)
FIRST = int(at(MONDAY) // 3600)  # the hour
IDLE = {"busy_s": 0.0, "input_total": 0.0, "input_cached": 0.0, "output": 0.0, "answered": 0.0, "running_seen_s": 0.0}
Request = Mapping[str, Any]


def litellm(hours: float, team: str | None, tokens: tuple[int, int] = (1000, 200), **more: Any) -> dict[str, Any]:
    """A row of LiteLLM's spend log, so many hours after Monday began."""
    when = datetime.fromtimestamp(at(MONDAY, hours), UTC).isoformat()
    named = {"user_api_key_team_alias": team, "user_api_key_team_id": "5e0a"} if team else {}
    return {
        "startTime": when, "endTime": when, "prompt_tokens": tokens[0], "completion_tokens": tokens[1], "spend": 0.0,
        "model": "hosted_vllm/llama-3.1-8b", "team_id": "5e0a" if team else "", "status": "success",
        "metadata": named, **more,
    }  # fmt: skip


def asked(folder: Path, spans: Iterable[PaidTime], log: Sequence[Request], **more: Any) -> dict[str, Any]:
    ledger, path = ledger_of(folder / "meter.db", spans), folder / "spend.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in log))
    stretch = {"since": "2026-11-09", "until": "2026-11-16", "by": "team"}
    return {"ledger": str(ledger), "trace": str(path), **stretch, **more}


def report(folder: Path, spans: Iterable[PaidTime], log: Sequence[Request], **more: Any) -> MeterReportResult:
    return meter_report(MeterReportRequest.checked(asked(folder, spans, log, **more)))


def dollars(made: Statement) -> dict[str, float]:
    return {" / ".join(filter(None, line.group)): round(line.sums.usd, 6) for line in made.lines}


def all_of(team: str | None, start: float, parts: int = 10, share: float = 1.0, **more: Any) -> list[dict[str, Any]]:
    """Requests that together have this share of an hour's 1 M prompt tokens and 200 K of output."""
    tokens = round(1e6 * share / parts), round(2e5 * share / parts)
    return [litellm(start + place / 100, team, tokens, **more) for place in range(parts)]


# --- what a person can work out --------------------------------------------------------------------------------------


def test_an_hour_is_divided_by_tokens_and_the_idle_hour_after_it_likewise(tmp_path: Path) -> None:
    spans = [hour(at(MONDAY)), hour(at(MONDAY, 1), **IDLE)]
    made = report(tmp_path, spans, [*all_of("search", 0, share=0.75), *all_of("legal", 0, share=0.25)])
    assert dollars(made) == {"legal": 1.0, "search": 3.0}
    assert [line.sums.idle_usd for line in made.lines] == pytest.approx([0.5, 1.5])
    assert [line.sums.billed_tokens for line in made.lines] == pytest.approx([0.3e6, 0.9e6])
    split = there(made.split)
    assert (split.quiet_usd, split.not_in_log_share, split.beyond_share) == (2.0, 0.0, 0.0)


def test_an_hour_goes_to_those_who_used_it(tmp_path: Path) -> None:
    spans = [hour(at(MONDAY)), hour(at(MONDAY, 1), usd=6.0, usd_per_hour=6.0)]
    assert dollars(report(tmp_path, spans, [*all_of("night", 0), *all_of("day", 1)])) == {"day": 6.0, "night": 2.0}


def test_by_gpu_time_a_team_pays_what_its_kinds_of_tokens_cost(tmp_path: Path) -> None:
    """One team sends prompts, the other gets answers: each pays its tokens × the price of their kind."""
    spans = [hour(at(MONDAY))]
    said = {"usage_object": {"prompt_tokens_details": {"cached_tokens": 40_000}}}
    log = [litellm(place / 100, None, (100_000, 0), metadata={"user_api_key_team_alias": "reads", **said})
           for place in range(10)]  # fmt: skip
    log += [litellm(place / 100, "writes", (1, 40_000)) for place in range(5)]
    made = report(tmp_path, spans, log, gpu="H100")
    (price,) = token_costs(bill(spans, 0, 2e9, ("model", "engine")), there(_on()))
    assert price.output > price.input > price.cached
    reads = (6e5 * price.input + 4e5 * price.cached) / 1e6
    assert dollars(made) == pytest.approx({"reads": reads, "writes": 2e5 * price.output / 1e6}, rel=1e-4)
    assert there(made.split).by_gpu_time
    alike = dollars(report(tmp_path / "..", [], [], **_same(tmp_path)))
    assert alike == pytest.approx({"reads": 2 * 1 / 1.2, "writes": 2 * 0.2 / 1.2}, rel=1e-4)


def _on() -> Any:
    from tokonomics.questions.meter import gpu_behind

    return gpu_behind(MeterReportRequest(gpu="H100"))


def _same(folder: Path) -> dict[str, Any]:
    return {"ledger": str(folder / "meter.db"), "trace": str(folder / "spend.jsonl")}


def test_missing_tags_are_named(tmp_path: Path) -> None:
    log = [*all_of("search", 0, share=0.5), *all_of(None, 0, share=0.25), *all_of("", 0, share=0.25)]
    log[0]["request_tags"] = ["feature:answers"]
    made = report(tmp_path, [hour(at(MONDAY))], log, by="team,feature")
    assert dollars(made) == {
        "search / answers": 0.1, "search / (no feature)": 0.9, "(no team) / (no feature)": 1.0,
    }  # fmt: skip
    assert there(made.split).untagged == {"team": 20, "feature": 29}


def test_what_the_log_lacks_is_a_line_of_its_own(tmp_path: Path) -> None:
    """A quarter of Monday's first hour is not in the log, and all of the second."""
    spans = [hour(at(MONDAY)), hour(at(MONDAY, 1))]
    made = report(tmp_path, spans, all_of("search", 0, share=0.75))
    assert dollars(made) == {"search": 1.5, "(not in the log)": 2.5}
    assert there(made.split).not_in_log_share == pytest.approx(1.25 / 2)


def test_a_log_with_more_than_was_metered_says_so_and_pays_no_more(tmp_path: Path) -> None:
    made = report(tmp_path, [hour(at(MONDAY))], [*all_of("search", 0, share=3), *all_of("legal", 0)])
    assert dollars(made) == {"legal": 0.5, "search": 1.5}
    assert there(made.split).beyond_share == pytest.approx(3)


def test_a_request_at_the_end_of_an_hour_may_be_counted_in_the_next(tmp_path: Path) -> None:
    spans = [hour(at(MONDAY), input_total=5e5, input_cached=2e5, output=1e5), hour(at(MONDAY, 1)), hour(at(MONDAY, 5))]
    log = [*all_of("search", 0.9), *all_of("legal", 1, share=0.5), *all_of("legal", 5)]
    made = report(tmp_path, spans, log)
    assert there(made.split).not_in_log_share == pytest.approx(0)
    assert dollars(made) == {"legal": 3.0, "search": 3.0}


def test_tokens_counted_after_an_absence_are_those_of_the_absence(tmp_path: Path) -> None:
    """The meter was away for three hours; what was counted meanwhile stands in the last of them."""
    away = hour(at(MONDAY), seconds=3 * 3600.0, usd=6.0, server_s=3 * 3600.0, watched=WatchedSpan.away, busy_s=0.0)
    made = report(tmp_path, [away, hour(at(MONDAY, 3))], [*all_of("night", 0.2), *all_of("day", 3)])
    assert dollars(made) == {"day": 2.0, "night": 6.0}
    assert there(made.split).not_in_log_share == 0
    assert sum(line.sums.unseen_tokens for line in made.lines) == pytest.approx(1.2e6)


def test_models_have_their_own_senders_and_one_that_nobody_used_is_unused(tmp_path: Path) -> None:
    spans = [
        hour(at(MONDAY)),
        hour(at(MONDAY), target="b", model="Qwen/Qwen3-8B", usd=1.0),
        hour(at(MONDAY), target="c", model="spare", usd=0.5, **IDLE),
    ]
    log = [*all_of("search", 0), *all_of("legal", 0, model="openai/qwen3-8b"), *all_of("legal", 0, model="gpt-4o")]
    made = report(tmp_path, spans, log, by="model,team")
    assert dollars(made) == {"Qwen/Qwen3-8B / legal": 1.0, "llama-3.1-8b / search": 2.0, "spare / (unused)": 0.5}
    split = there(made.split)
    assert (split.elsewhere, split.elsewhere_models, split.requests) == (10, ("gpt-4o",), 20)


def test_requests_that_name_no_model_count_for_all_by_what_each_served(tmp_path: Path) -> None:
    spans = [
        hour(at(MONDAY)),
        hour(at(MONDAY), target="b", model="small", input_total=1e5, input_cached=0.0, output=2e4, usd=4.0),
    ]
    rows = ["at,prompt_tokens,output_tokens,team"]
    rows += [f"{at(MONDAY) + place},{110_000},{22_000},{'ab'[place % 2]}" for place in range(10)]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    columns = "arrival=at,input=prompt_tokens,output=output_tokens"
    made = report(tmp_path, spans, [], trace=str(tmp_path / "log.csv"), columns=columns)
    assert dollars(made) == {"a": 3.0, "b": 3.0}
    assert there(made.split).unnamed_model == 10


def test_keys_of_the_ledger_and_tags_of_the_log_go_together(tmp_path: Path) -> None:
    spans = [hour(at(MONDAY)), hour(at(MONDAY), target="b", labels={"pool": "spot"}), hour(at(MONDAY, 24))]
    made = report(tmp_path, spans, [*all_of("search", 0, share=2), *all_of("legal", 24)], by="day,team,pool,server")
    assert dollars(made) == {
        "2026-11-09 / search / spot / b": 2.0,
        "2026-11-09 / search / http://gpu1:8000": 2.0,
        "2026-11-10 / legal / http://gpu1:8000": 2.0,
    }


def test_margins_and_prices_are_by_tag_too(tmp_path: Path) -> None:
    log = [*all_of("search", 0, share=0.75), *all_of("legal", 0, share=0.25)]
    made = report(tmp_path, [hour(at(MONDAY))], log, sell="1/5")
    sale = there(made.sale)
    assert [sold.revenue_usd for sold in sale.lines] == pytest.approx([0.5, 1.5])
    assert sale.total.revenue_usd == pytest.approx(2.0)


# --- the law ---------------------------------------------------------------------------------------------------------

TEAMS = ("search", "legal", "(no team)")
HOURS = 6


@st.composite
def weeks(draw: st.DrawFn) -> tuple[list[PaidTime], dict[tuple[str, int, tuple[str, ...]], Sent]]:
    """Some hours of two models, busy or idle; and a log that fits them, has less, or has more."""
    spans, sent = list[PaidTime](), dict[tuple[str, int, tuple[str, ...]], Sent]()
    tokens = st.integers(0, 5000)
    for model in ("a", "b"):
        for place in range(HOURS):
            busy, usd = draw(st.booleans()), draw(st.floats(0.01, 50))
            counted = {"input_total": draw(tokens), "output": draw(tokens)} if busy else {"input_total": 0, "output": 0}
            known = {name: float(count) for name, count in counted.items()}
            if draw(st.integers(0, 4)):
                busy_s = 1800.0 if busy else 0.0
                spans.append(hour(at(MONDAY, place), target=model, model=model, usd=usd, usd_per_hour=usd,
                                  busy_s=busy_s, **known, input_cached=0.0, answered=busy_s))  # fmt: skip
            for team in TEAMS:
                if draw(st.booleans()):
                    prompt, output = draw(tokens), draw(tokens)
                    sent[model, FIRST + place, (team,)] = Sent(1.0, prompt, 0.0, prompt, output)
    return spans, sent


def by_hand(spans: Sequence[PaidTime], sent: Mapping[tuple[str, int, tuple[str, ...]], Sent]) -> dict[str, Fraction]:
    """What each team pays by the rule, in fractions, an hour at a time."""
    pays: dict[str, Fraction] = defaultdict(Fraction)
    for model in sorted({span.model for span in spans}):
        hours = {int(span.start // 3600): span for span in spans if span.model == model}
        placed = {now: {team: Fraction(one.input + one.output) for (name, when, (team,)), one in sent.items()
                        if (name, when) == (model, now)} for now in hours}  # fmt: skip
        counted = {now: Fraction(span.input_total + span.output) for now, span in hours.items()}
        own = {now: dict(parts) for now, parts in placed.items()}
        for now in hours:
            if now + 1 in hours:
                spare = max(sum(own[now].values()) - counted[now], Fraction(0))
                moved = min(spare, max(counted[now + 1] - sum(own[now + 1].values()), Fraction(0)))
                for team, tokens in own[now].items():
                    part = moved * tokens / sum(own[now].values()) if moved else Fraction(0)
                    placed[now][team] -= part
                    placed[now + 1][team] = placed[now + 1].get(team, Fraction(0)) + part
        for now in hours:
            placed[now]["(not in the log)"] = max(counted[now] - sum(placed[now].values()), Fraction(0))
        usual: dict[str, Fraction] = defaultdict(Fraction)
        for parts in placed.values():
            for team, tokens in parts.items():
                usual[team] += tokens
        if not sum(usual.values()):
            usual = defaultdict(Fraction, {"(unused)": Fraction(1)})
        for now, span in hours.items():
            parts = placed[now] if sum(placed[now].values()) else usual
            for team, tokens in parts.items():
                pays[team] += Fraction(span.usd) * tokens / sum(parts.values())
    return {team: usd for team, usd in pays.items() if usd}


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(weeks())
def test_the_parts_are_the_bill_to_the_cent_and_follow_the_rule(
    made: tuple[list[PaidTime], dict[tuple[str, int, tuple[str, ...]], Sent]],
) -> None:
    spans, sent = made
    log = TaggedLog(("team",), sent=sent)
    billed = bill(spans, at(MONDAY), at(MONDAY, HOURS), ("hour", "model", "engine"))
    if not {model for model, _, _ in sent} & {span.model for span in spans}:
        return  # refused
    split = BillSplit(billed, log, ())
    by_team = split.statement(("team",))
    assert {line.group[0]: line.sums.usd for line in by_team.lines if line.sums.usd} == pytest.approx(
        {team: float(usd) for team, usd in by_hand(spans, sent).items()}
    )
    for name in ("usd", "seconds", "busy_usd", "idle_usd", "input_total", "output", "answered"):
        whole = sum(getattr(line.sums, name) for line in by_team.lines)
        assert whole == pytest.approx(getattr(billed.total, name), rel=1e-9, abs=1e-9), name
    by_day = split.statement(("day", "model", "team"))
    text = text_of_export(exported(by_day, ("team",), (), until=at(MONDAY, HOURS)), ExportFormat.focus)
    charged = sum((Decimal(row["BilledCost"]) for row in csv.DictReader(io.StringIO(text))), Decimal(0))
    assert charged == cents(billed.total.usd)


# --- the ledger of a week, and what other tools get ------------------------------------------------------------------

WEEK = Path(__file__).parent / "pages" / "week.db"


def test_focus_has_a_row_for_each_feature_and_sums_to_the_ledger(tmp_path: Path) -> None:
    log = [litellm(hours, team, (9_000_000, 900_000), model=model, request_tags=[f"feature:{feature}"])
           for hours in range(8, 120, 5) for team in ("search", "legal", None) for feature in ("answers", "triage")
           for model in ("llama-3.3-70b", "qwen3-8b")]  # fmt: skip
    given = asked(tmp_path, [hour(at(MONDAY))], log) | {"ledger": str(WEEK), "by": "team,feature", "format": "focus"}
    found = meter_export(MeterExportRequest.checked(given))
    text = text_of_export(found, ExportFormat.focus)
    assert problems(text) == []
    rows = list(csv.DictReader(io.StringIO(text)))
    assert sum(Decimal(row["BilledCost"]) for row in rows) == cents(booked(WEEK).usd)
    features = {json.loads(row["Tags"]).get("feature") for row in rows}
    assert {"answers", "triage"} <= features
    assert {"search", "legal", "(no team)", "(not in the log)"} == {row["SubAccountId"] for row in rows}
    table = text_of_export(found, ExportFormat.csv).splitlines()[0]
    assert table.startswith("from,to,model,team,feature,usd")
    assert 'feature="triage",model="qwen3-8b",team="legal"' in text_of_export(found, ExportFormat.openmetrics)


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "field", "said"),
    [
        ({"by": "model,day"}, "by", "names no tag"),
        ({"by": "a,b,c,d"}, "by", "more tags"),
        ({"by": "floor"}, None, "no request says its floor"),
        ({"by": "team,floor"}, "by", "nothing in this stretch has a 'floor'"),
        ({"trace": None, "columns": "arrival=a,input=b,output=c"}, "columns", "request log"),
        ({"budget": ["team=search:5"]}, "budget", "tag of the log"),
    ],
)
def test_what_cannot_be_split_is_refused(tmp_path: Path, more: dict[str, Any], field: str | None, said: str) -> None:
    refusal = refused(report, tmp_path, [hour(at(MONDAY))], all_of("search", 0), **more)
    assert refusal.field == field
    assert said in str(refusal)


def test_a_log_of_another_time_or_of_other_models_is_refused(tmp_path: Path) -> None:
    late = refused(report, tmp_path, [hour(at(MONDAY))], all_of("search", 400))
    assert "no request of it lies in what was metered from 2026-11-09 00:00 to 2026-11-09 01:00" in str(late)
    assert "2026-11-25" in str(late)
    other = refused(report, tmp_path, [], all_of("search", 0, model="gpt-4o"))
    assert "its requests are to gpt-4o; metered was llama-3.1-8b" in str(other)
