"""Every kind of plan, and ``levers``, sets the cheapest API beside its fleet: the same bill, wherever it is asked."""

from pathlib import Path
from typing import Any

import pytest
from tests.there import there

from tokonomics.catalog.api_hosts import find_api
from tokonomics.catalog.places import lies_in
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.planner.apis import ApiBeside, ApiSlo
from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.levers import levers
from tokonomics.questions.plan import compare, diff, plan
from tokonomics.questions.requests.buy import BreakevenRequest, CompareRequest, DiffRequest, PlanRequest
from tokonomics.questions.requests.traffic import LeversRequest
from tokonomics.questions.results import PlanCases, PlanModels, PlanResult

TRAFFIC = {"input": "const:1500", "output": "const:200"}
ASKED: dict[str, Any] = {"model": ["llama-3.1-8b"], "rate": "40", "gpu": ["H100,L40S"], "quick": True, **TRAFFIC}
TOKENS = 40 * 1700 * 730 * 3600 / 1e6  # millions in a month


def answered(**more: object) -> PlanResult:
    found = plan(PlanRequest.checked(ASKED | more))
    assert isinstance(found, PlanResult)
    return found


def own_api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, name: str = "Llama-3.1-8B-Instruct") -> None:
    file = tmp_path / "catalog.toml"
    file.write_text(f'[apis."acme:{name}"]\n{text}\n', encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(file))


def charged(found: ApiBeside) -> float:
    """The month's bill by the prices on the list."""
    api = find_api(found.api.name)
    return TOKENS * (1500 * api.input_usd_per_mtok + 200 * api.output_usd_per_mtok) / 1700


def test_a_plan_names_the_cheapest_api_and_what_it_saves() -> None:
    found = answered()
    api, best = there(found.api), there(found.best)
    assert api.usd_per_month == pytest.approx(charged(api))
    assert api.usd_per_month == pytest.approx(min(bill.usd_per_month(TOKENS * 1e6) for bill in found.apis))
    assert api.saved_usd_per_month == pytest.approx(best.usd_per_month - api.usd_per_month)
    assert api.cheaper == (api.usd_per_month < best.usd_per_month)
    assert api.usd_per_month > 0
    assert found.plain()["api"]["api"]["name"] == api.api.name


def test_where_no_fleet_meets_the_slo_an_api_is_the_answer() -> None:
    found = answered(slo="tpot_mean=0.1ms")
    assert found.best is None
    api = there(found.api)
    assert (api.cheaper, api.fleet_usd_per_month, api.slo) == (True, None, ApiSlo.not_measured)
    assert api.usd_per_month == pytest.approx(charged(api))
    assert api.api.name in found.headline()


def measured(folder: Path, api: str, ttft_s: float) -> str:
    """A file of ``bench --api``."""
    point = {
        "concurrency": 1, "requests_per_s": 2.0, "input_tokens_per_s": 2000.0, "output_tokens_per_s": 600.0,
        "mean_input_tokens": 1500.0, "mean_output_tokens": 200.0, "completed": 40,
        "ttft_s": {"p50": ttft_s / 2, "p99": ttft_s}, "tpot_s": {"p50": 0.01},
    }  # fmt: skip
    file = folder / f"{api.partition(':')[0]}-{ttft_s}.json"
    document = {"tool": "tokonomics bench", "api": api, "points": [point]}
    file.write_text(BenchmarkRun.model_validate(document).model_dump_json())
    return str(file)


def test_a_measured_latency_decides_whether_an_api_meets_the_same_slo(tmp_path: Path) -> None:
    first = there(answered(slo="ttft_p99=1").api)
    assert first.slo is ApiSlo.not_measured
    fast, slow = (measured(tmp_path, first.api.name, ttft_s) for ttft_s in (0.5, 2.0))
    met = there(answered(slo="ttft_p99=1", measured=[fast]).api)
    assert (met.api.name, met.slo) == (first.api.name, ApiSlo.met)
    missed = answered(slo="ttft_p99=1", measured=[slow])
    other = there(missed.api)
    assert other.api.name != first.api.name
    assert other.usd_per_month >= first.usd_per_month
    assert (other.slo, other.missed) == (ApiSlo.not_measured, (first.api.name,))
    assert first.api.name in missed.latencies
    assert not missed.measured  # it is no load test of the fleet's own machines
    # One percentile of two was measured: neither met nor missed.
    half = there(answered(slo="ttft_p99=1,tpot_p99=50ms", measured=[fast]).api)
    assert (half.api.name, half.slo) == (first.api.name, ApiSlo.not_measured)


def test_several_models_and_several_demands_have_an_api_each() -> None:
    models = plan(PlanRequest.checked(ASKED | {"model": ["llama-3.1-8b,gpt-oss-20b"]}))
    assert isinstance(models, PlanModels)
    assert set(models.apis) == {"llama-3.1-8b", "gpt-oss-20b"}
    for row in models.models:
        assert models.apis[row.model].fleet_usd_per_month == row.usd_per_month
    cases = plan(PlanRequest.checked(ASKED | {"rate": "20:40:80"}))
    assert isinstance(cases, PlanCases)
    low, mid, high = (cases.apis[case].usd_per_month for case in ("low", "mid", "high"))
    assert [2 * low, high / 2] == pytest.approx([mid, mid])
    assert [api.fleet_usd_per_month for api in cases.apis.values()] == list((cases.cases or {}).values())


def test_one_plan_by_gpu_a_comparison_and_levers_bill_the_same_api_alike(tmp_path: Path) -> None:
    api = there(answered().api)
    asked = {name: value for name, value in ASKED.items() if name != "quick"}
    by_gpu = compare(CompareRequest.checked(asked)).api_beside["llama-3.1-8b"]
    assert by_gpu.api == api.api
    assert by_gpu.usd_per_month == pytest.approx(api.usd_per_month)
    lines = 'model = "llama-3.1-8b"\ninput = "const:1500"\noutput = "const:200"\n[plan]\nquick = true\ngpu = "L40S"\n'
    for name, rate in (("a", 40), ("b", 80)):
        (tmp_path / f"{name}.toml").write_text(f"rate = {rate}\n{lines}")
    made = diff(DiffRequest.checked({"model": str(tmp_path / "a.toml"), "against": str(tmp_path / "b.toml")})).noun
    assert there(made.before.api).usd_per_month == pytest.approx(api.usd_per_month)
    assert there(made.after.api).usd_per_month == pytest.approx(2 * api.usd_per_month)
    alone = "weights,kv,hardware,speculation,disaggregation,autoscale,spot,commit"
    row = {"model": "llama-3.1-8b", "gpu": "L40S", "rate": "40", "without": [alone], **TRAFFIC}
    (call,) = [lever for lever in levers(LeversRequest.checked(row)).levers if lever.knob == "api"]
    assert there(call.api).usd_per_month == pytest.approx(api.usd_per_month)
    assert not [
        lever for lever in levers(LeversRequest.checked(row | {"without": [f"{alone},api"]})).levers if lever.api
    ]


def test_a_batch_may_be_sent_to_a_hosts_batch_api() -> None:
    """Nobody waits for its answers; with latency targets, only list prices count."""
    batch = {"model": ["gpt-oss-120b"], "gpu": ["H100"]}
    offline, waiting = answered(**batch, offline=True), answered(**batch)
    assert any(bill.name.endswith("(batch)") for bill in offline.apis)
    assert not any(bill.name.endswith("(batch)") for bill in waiting.apis)
    assert there(offline.api).usd_per_month <= there(waiting.api).usd_per_month


def test_no_break_even_is_asked_of_a_host_whose_context_is_too_short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tokonomics.questions.breakeven import breakeven

    own_api(monkeypatch, tmp_path, "input = 0.001\noutput = 0.001\ncontext = 1699")
    found = breakeven(BreakevenRequest.checked({"model": "llama-3.1-8b", "gpu": ["L40S"], "quick": True, **TRAFFIC}))
    assert all(not api.name.startswith("acme") for api in there(getattr(found, "apis", None)))


def test_under_a_region_hosts_known_to_be_there_come_first_and_those_elsewhere_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tokonomics.questions.breakeven import breakeven

    own_api(monkeypatch, tmp_path, 'input = 0.001\noutput = 0.001\nareas = ["US"]')
    asked = {"model": "llama-3.1-8b", "gpu": ["L40S"], "quick": True, "region": ["EU"], **TRAFFIC}
    found = breakeven(BreakevenRequest.checked(asked))
    assert isinstance(found, BreakevenResult)
    known = [lies_in(["EU"], api.areas) for api in found.apis]
    assert set(known) == {True, None}
    assert known == sorted(known, key=lambda there: there is None)
    for side in (True, None):
        prices = [api.usd_per_mtok for api, there in zip(found.apis, known, strict=True) if there is side]
        assert prices == sorted(prices)
    assert [api.name for api in found.left_out if api.name.startswith("acme")] == ["acme:Llama-3.1-8B-Instruct"]


@pytest.mark.parametrize(("region", "is_known"), [("EU", True), ("JP", False)])
def test_under_a_region_the_cheapest_at_every_volume_is_known_to_be_there_if_anyone_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, region: str, is_known: bool
) -> None:
    """``acme`` asks next to nothing and does not say where it computes; OVHcloud is in the EU."""
    from tokonomics.questions.breakeven import breakeven

    own_api(monkeypatch, tmp_path, "input = 0.001\noutput = 0.001")
    asked = {"model": "llama-3.1-8b", "gpu": ["L40S"], "quick": True, "tokens_per_month": "3B", **TRAFFIC}
    found = breakeven(BreakevenRequest.checked({**asked, "provider": ["aws"], "region": [region]}))
    assert isinstance(found, BreakevenResult)
    there_by_name = {api.name: lies_in([region], api.areas) for api in found.apis}
    assert set(found.perhaps_there) == {name for name, there in there_by_name.items() if there is None}
    assert (True in there_by_name.values()) is is_known
    named = [name for name, there in there_by_name.items() if there or not is_known]
    assert [found.apis[place].name for place in found.counted] == named
    prices = {api.name: api.usd_per_mtok for api in found.apis if api.name in named}
    for bill in found.bills:
        dollars = {name: usd * bill.tokens_per_month / 1e6 for name, usd in prices.items()}
        dollars |= {"self-hosted": bill.hosted_usd}
        assert bill.cheapest == min(dollars, key=lambda name: dollars[name])
    assert ("acme:Llama-3.1-8B-Instruct" in {bill.cheapest for bill in found.bills}) is not is_known
    for most in (2, 6):
        drawn = found.cheapest(most)
        assert drawn == list(range(min(most, len(found.apis))))  # the list begins with them
