"""Our own /metrics: what is on it, that it adds up, and that a real Prometheus and our dashboard can read it."""

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from itertools import product
from pathlib import Path
from subprocess import run
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from tests.measure.faulty import FaultyPage, faulty_page
from tests.measure.meter_states import HOUR, gpu, group, state
from tests.measure.real_prometheus import RealPrometheus, needs_prometheus, needs_promtool
from tests.there import refused

from tokonomics.errors import BadInput
from tokonomics.measure.meter.exposition import (
    FAMILIES,
    NAMES,
    cost_per_mtok,
    listen_address,
    page,
    serve_exposition,
    text_of,
    write_files,
)
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.state import MeterState, MeterTally

DOC = Path(__file__).parents[2] / "docs" / "meter-fleet.md"
TOLD = MeterSettings(7.2, gpus_per_server=2, price_date=date(2026, 11, 1), usd_per_kwh=0.15)
ALL = state(group(), group(model="qwen", target="http://gpu2:8000", engine="sglang"))


def text(shown: MeterState = ALL, told: MeterSettings = TOLD) -> str:
    return page(shown, told)[0].decode()


def samples(shown: MeterState = ALL, told: MeterSettings = TOLD) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text(shown, told)):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{sample.name} is there twice"
            found[key] = sample.value
    return found


def value(name: str, shown: MeterState = ALL, told: MeterSettings = TOLD, **labels: str) -> float:
    wanted = set(labels.items())
    (only,) = [sample for (its_name, its), sample in samples(shown, told).items() if its_name == name and wanted <= its]
    return only


ONE = state(group())


def test_dollars_per_million_tokens_by_basis_and_kind() -> None:
    """$7.20 for 4 million tokens, 1 million of them output and 3 million input; $3.60 of it busy."""
    expected = {
        ("reservation", "blended"): 7.2 / 4, ("reservation", "output"): 7.2 / 1, ("reservation", "input"): 7.2 / 3,
        ("usage", "blended"): 3.6 / 4, ("usage", "output"): 3.6 / 1, ("usage", "input"): 3.6 / 3,
    }  # fmt: skip
    for (basis, kind), dollars in expected.items():
        assert value("llm_cost_per_million_tokens", ONE, basis=basis, kind=kind) == pytest.approx(dollars)
    assert value("llm_planned_cost_per_million_tokens", ONE) == 1.5


def test_busy_dollars_are_over_the_tokens_of_each_kind_that_were_seen() -> None:
    """$8 busy; 6 million prompt tokens, of which a gap had 4, and 4 million of output, all seen."""
    tally = MeterTally(busy_usd=8.0, usd=9.0, input_total=6e6, output=4e6, unseen_tokens=4e6)
    prices = cost_per_mtok(tally)
    assert prices["usage", "input"] == pytest.approx(8 / 2)
    assert prices["usage", "output"] == pytest.approx(8 / 4)
    assert prices["usage", "blended"] == pytest.approx(8 / 6)


def test_states_add_up_to_the_bill_and_kinds_to_the_tokens() -> None:
    shown = samples(ONE)
    assert sum(v for (name, _), v in shown.items() if name == "llm_cost_usd_total") == pytest.approx(HOUR.usd)
    assert sum(v for (name, _), v in shown.items() if name == "llm_time_seconds_total") == pytest.approx(HOUR.seconds)
    assert sum(v for (name, _), v in shown.items() if name == "llm_tokens_total") == HOUR.input_total + HOUR.output
    assert value("llm_tokens_total", ONE, kind="input_computed") == 2_000_000


def test_the_price_lines_up_with_opencost_per_gpu_times_gpus_is_the_server() -> None:
    per_gpu, gpus = value("llm_gpu_hourly_cost", ONE), value("llm_gpu_allocation", ONE)
    assert (per_gpu, gpus) == (3.6, 2)
    assert value("llm_price_timestamp_seconds") == datetime(2026, 11, 1, tzinfo=UTC).timestamp()
    assert per_gpu * gpus == value("llm_total_hourly_cost", ONE)
    assert value("llm_total_hourly_cost", state(group(model="a"), group(model="b"))) == 7.2  # once a server


def test_what_is_not_known_is_left_out_and_not_shown_as_zero() -> None:
    quiet = state(group(now=MeterTally(), running=None, waiting=None, kv_share=None, busy=None), planned=None, gpus=())
    names = {name for name, _ in samples(quiet, MeterSettings(7.2))}
    assert names.isdisjoint(
        {"llm_cost_per_million_tokens", "llm_requests_running", "llm_kv_cache_usage_ratio", "llm_target_busy",
         "llm_planned_cost_per_million_tokens", "llm_price_timestamp_seconds",
         "llm_electricity_usd_per_kwh", "llm_gpu_power_watts"}
    )  # fmt: skip
    assert value("llm_cost_usd_total", quiet, state="idle") == HOUR.idle_usd


def test_labels_of_a_target_are_joined_by_one_info_series() -> None:
    """Names may hold anything, and a label called target does not hide whose it is."""
    mixed = state(group(labels={"team": "search", "app.kubernetes.io/name": "x"}), group(target="b", labels={}))
    assert value("llm_target_info", mixed, team="search") == 1
    shown = [dict(labels) for (name, labels) in samples(mixed) if name == "llm_target_info"]
    assert {labels.get("app_kubernetes_io_name", "") for labels in shown} == {"x", ""}
    assert value("llm_target_info", state(group(labels={"target": "else"})), target="http://gpu1:8000") == 1
    odd = 'a"b\\c\nd{e}=é'
    assert value("llm_target_up", state(group(model=odd, target=odd)), model=odd) == 1


def test_slices_and_pods_of_one_gpu_have_its_energy_once() -> None:
    pods = (("1", "a"), ("2", "b"), ("2", "c"))
    place = {"hostname": "n", "gpu": "0"}
    gpus = tuple(gpu(labels={**place, "mig_id": mig, "pod": pod}) for mig, pod in pods)
    names = [name for name, _ in samples(state(group(), gpus=gpus))]
    assert names.count("llm_gpu_energy_joules_total") == 1
    assert names.count("llm_gpu_dram_active_ratio") == 2


def test_every_family_is_on_a_full_page_with_a_help_text_and_nothing_else() -> None:
    found = {family.name: family for family in text_string_to_metric_families(text())}
    assert set(found) == {family.name.removesuffix("_total") for family in FAMILIES}
    assert all(family.documentation.endswith(".") for family in found.values())
    assert {name for name, family in found.items() if family.type == "counter"} == {
        family.name.removesuffix("_total") for family in FAMILIES if family.name.endswith("_total")
    }
    body, content_type = page(ALL, TOLD, "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(body.decode())} == set(found)  # type: ignore[no-untyped-call]


@needs_promtool
def test_promtool_finds_nothing_to_say_against_the_names() -> None:
    checked = run(["promtool", "check", "metrics"], input=text(), capture_output=True, text=True, check=False)
    complaints = {line for line in (checked.stdout + checked.stderr).splitlines() if line.strip()}
    assert complaints == set()


async def fetch(url: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, response.content_type, await response.text()


def test_it_is_served_on_loopback_and_follows_the_state() -> None:
    shown: list[MeterState | None] = [None]

    async def live() -> list[str]:
        async with serve_exposition("127.0.0.1", 0, lambda: shown[0], TOLD) as url:
            assert url.startswith("http://127.0.0.1:")
            before = (await fetch(url))[2]
            shown[0] = ALL
            status, kind, after = await fetch(url)
            assert (status, kind) == (200, "text/plain")
            assert "/metrics" in (await fetch(url.removesuffix("metrics")))[2]
            return [before, after]

    assert asyncio.run(live()) == ["", text()]


def test_a_port_that_is_taken_is_refused() -> None:
    async def twice() -> None:
        async with (
            serve_exposition("127.0.0.1", 0, lambda: None, TOLD) as url,
            serve_exposition("127.0.0.1", int(url.split(":")[2].split("/")[0]), lambda: None, TOLD),
        ):
            pass

    assert refused(asyncio.run, twice()).field == "listen"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_without_a_host_only_this_machine_can_read_it(given: str, meant: tuple[str, int]) -> None:
    assert listen_address(given) == meant


@pytest.mark.parametrize("given", ["", "localhost", "localhost:x", "a:70000", ":-1", ":²", ":" + "9" * 5000])
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(BadInput):
        listen_address(given)


def dashboard() -> dict[str, Any]:
    return json.loads(text_of("tokonomics-dashboard.json"))  # type: ignore[no-any-return]


def expressions() -> list[str]:
    """Every query of the dashboard as Grafana sends it: all models, all servers, a window of five minutes."""
    raw = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    filled = [each.replace("$__rate_interval", "5m").replace("$target", ".*").replace("$model", ".*") for each in raw]
    assert not any("$" in each for each in filled)
    return filled


METRIC = re.compile(r"\bllm[_:][a-zA-Z0-9_:]+")


BLOCKS = re.findall(r"```promql\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
DOCUMENTED = [line for block in BLOCKS for line in block.splitlines()]


def exposed() -> set[str]:
    return {name for name, _ in samples()}


def test_the_dashboard_asks_only_for_metrics_that_the_page_has() -> None:
    asked = {name for expression in expressions() for name in METRIC.findall(expression)}
    queries = [each["definition"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    asked |= {name for query in queries for name in METRIC.findall(query)}
    assert asked
    assert asked <= exposed()


def test_the_dashboard_can_be_provisioned_into_any_grafana() -> None:
    board = dashboard()
    assert board["uid"]
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource", "model", "target"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["description"] for panel in panels)
    sources = [panel["datasource"] for panel in panels] + [each["datasource"] for p in panels for each in p["targets"]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    assert "__inputs" not in board, "a file with inputs must be imported by hand"
    taken: set[tuple[int, int]] = set()  # panels do not overlap and fit the grid
    for place in (panel["gridPos"] for panel in panels):
        rows, columns = (range(place[at], place[at] + place[size]) for at, size in (("y", "h"), ("x", "w")))
        cells = set(product(columns, rows))
        assert columns.stop <= 24
        assert taken.isdisjoint(cells)
        taken |= cells


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    """A Prometheus that has scraped the page twice, with counters moving in between."""
    more = MeterTally(**{name: getattr(HOUR, name) * 1.5 for name in MeterTally.model_fields})
    shown = [ALL]
    with (
        RealPrometheus(tmp_path_factory.mktemp("prometheus")).running() as server,
        faulty_page(FaultyPage(lambda: text(shown[0]))) as ours,
    ):
        server.scrape({ours.address.removeprefix("http://"): {"job": "tokonomics"}})
        server.wait_for("count_over_time(llm_meter_interval_seconds[1m]) >= 2")
        groups = [each.model_copy(update={"total": more}) for each in ALL.groups]
        shown[0] = state(*groups, gpus=(gpu(energy_j=3.6e6 + 7200.0),))
        server.wait_for('changes(llm_cost_usd_total{state="idle"}[1m]) > 0', 2)
        yield server


@needs_prometheus
@pytest.mark.parametrize("asked", ["dashboard", "guide"])
def test_every_query_of_the_dashboard_and_the_guide_gives_an_answer(prometheus: RealPrometheus, asked: str) -> None:
    for expression in expressions() if asked == "dashboard" else DOCUMENTED:
        prometheus.wait_for_any(expression)


@needs_prometheus
def test_prometheus_sees_the_same_price_as_we_do(prometheus: RealPrometheus) -> None:
    """Both servers' counters grew by half: the price of what was added is the price before."""
    query = "1e6 * sum(increase(llm_cost_usd_total[5m])) / sum(increase(llm_tokens_total[5m]))"
    (only,) = prometheus.query(query)
    assert float(only["value"][1]) == pytest.approx(7.2 / 4)


def test_files_are_written_and_kept_where_someone_changed_them_unless_told(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "place"
    for _ in range(2):
        assert [path.name for path in write_files(folder)] == list(NAMES)
    assert json.loads((folder / "tokonomics-dashboard.json").read_text()) == dashboard()
    rules = folder / "tokonomics-rules.yml"
    rules.write_text("groups: []\n")
    with pytest.raises(BadInput):
        write_files(folder)
    assert rules.read_text() == "groups: []\n"
    write_files(folder, overwrite=True)
    assert rules.read_text() == text_of("tokonomics-rules.yml")
    with pytest.raises(BadInput):
        write_files(rules)


def test_the_guide_explains_every_metric_in_the_words_of_the_page() -> None:
    rows = dict(re.findall(r"^\| `(llm_\w+)` \| (.+?) \| .+? \|$", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == {family.name: family.help for family in FAMILIES}


# --- the rules we ship: Prometheus takes them, they ask for what our page has, and fire when they should --------------

CASES = Path(__file__).parent / "alert_cases.yml"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text_of("tokonomics-rules.yml"))["groups"] for rule in group["rules"]]


@needs_promtool
def test_prometheus_takes_the_rules_and_the_scrape_configuration(tmp_path: Path) -> None:
    write_files(tmp_path)
    for kind, name in (("rules", "tokonomics-rules.yml"), ("config", "prometheus-scrape.yml")):
        checked = run(["promtool", "check", kind, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        assert f"{len(rules())} rules found" in checked.stdout


@needs_promtool
def test_alerts_fire_when_they_should_and_not_otherwise(tmp_path: Path) -> None:
    """The cases and the figures they expect are in alert_cases.yml."""
    write_files(tmp_path)
    (tmp_path / "cases.yml").write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    tested = run(["promtool", "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_that_fires() -> None:
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
    fires = {each["alertname"] for case in cases for each in case["alert_rule_test"] if each["exp_alerts"]}
    assert fires == {rule["alert"] for rule in rules() if "alert" in rule}


def test_rules_ask_only_for_metrics_that_we_expose_or_record() -> None:
    known = {family.name for family in FAMILIES} | {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for rule in rules() for name in re.findall(r"\bllm[_:][a-zA-Z0-9_:]+", rule["expr"])}
    assert asked <= known


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        if "alert" in rule:
            assert set(rule["annotations"]) == {"summary", "description"}
            assert rule["labels"]["severity"] in ("info", "warning", "critical")
