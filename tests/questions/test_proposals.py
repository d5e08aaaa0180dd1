"""``levers --from``: savings of the metered bill, none smaller than the twin's own error, and a branch of the best."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.operate.metered_windows import HOUR_S, KnownServers, ledger_of, span_of
from tests.operate.past_prometheus import past_prometheus
from tests.operate.test_pull_request import FAKE, as_it_is, git, nobody_elses_git, repo, with_origin, with_tool
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.errors import BadInput
from tokonomics.guarded.inputs import checked_inputs
from tokonomics.levers.lever_list import API, CLOCKS, KNOBS
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.operate.expect import profile_of
from tokonomics.operate.metered import metered_load, metered_servers
from tokonomics.physics.calibration import using
from tokonomics.questions.deployment import deployment_of, targets_of
from tokonomics.questions.levers import LeversResult, levers
from tokonomics.questions.metered import REPLICAS
from tokonomics.questions.proposal import changed_text
from tokonomics.questions.requests.traffic import LeversRequest
from tokonomics.questions.verbs import find_verb
from tokonomics.sizing.attempt import attempt
from tokonomics.sizing.setup import Setup

__all__ = ["FAKE", "nobody_elses_git", "repo"]  # fixtures of the other file

HOURS = 9  # less than a day: one rate, which is simulated in a second
SLO = "ttft_p99=1,tpot_p99=60ms"


def recent(hours: int = HOURS) -> float:
    return time.time() // HOUR_S * HOUR_S - hours * HOUR_S


def ledger(
    path: Path, servers: int, rate: float, off: float | None = None, factors: Mapping[str, float] | None = None,
    **known: object,
) -> Path:  # fmt: skip
    made = KnownServers(lambda at: rate, servers=servers, **known)  # type: ignore[arg-type]
    return ledger_of(path, made.windows(recent(), HOURS), off, factors)


def request(path: Path, *, keep: tuple[str, ...] = (), **more: Any) -> LeversRequest:
    """Ask with all levers left alone but those to ``keep``: fewer replicas are always looked at."""
    without = [knob for knob in (*KNOBS, API, CLOCKS) if knob not in keep]
    said = {"model": "llama-3.1-8b", "gpu": "L40S", "start": str(path), "slo": SLO, "without": without}
    return LeversRequest.checked(said | more)


def asked(path: Path, *, keep: tuple[str, ...] = (), **more: Any) -> LeversResult:
    return levers(request(path, keep=keep, **more))


def test_today_is_the_metered_bill_and_fewer_replicas_save_a_part_of_it(tmp_path: Path) -> None:
    found = asked(ledger(tmp_path / "m.db", servers=4, rate=0.4, usd_per_hour=1.5)).metered
    assert found is not None
    assert found.usd_per_month == pytest.approx(4 * 1.5 * 730)
    assert found.modelled_usd_per_month == pytest.approx(found.usd_per_month)
    assert found.needed == 1
    (fewer,) = found.proposals
    assert fewer.knob == REPLICAS
    assert fewer.saved_share == pytest.approx(3 / 4)
    assert fewer.usd_per_month == pytest.approx(1.5 * 730)


@pytest.mark.parametrize(("off", "made"), [(0.05, 1), (0.74, 1), (0.76, 0)])
def test_what_saves_less_than_the_twin_is_off_is_not_proposed(tmp_path: Path, off: float, made: int) -> None:
    """Three of four replicas are saved: three quarters of the bill."""
    result = asked(ledger(tmp_path / "m.db", servers=4, rate=0.4, off=off))
    found = result.metered
    assert found is not None
    assert (len(found.proposals), len(found.smaller)) == (made, 1 - made)
    assert [one.error_share for one in (*found.proposals, *found.smaller)] == [pytest.approx(off)]
    assert ("no change saves more" in result.headline()) == (not made)


def test_without_a_twin_the_range_of_its_class_is_shown_and_nothing_left_out(tmp_path: Path) -> None:
    path = ledger(tmp_path / "m.db", servers=4, rate=0.4)
    found = asked(path).metered
    assert found is not None
    assert found.errors is None
    assert all(one.error_share is None and one.likely is not None for one in found.proposals)
    shown = CliRunner().invoke(app, typed(path))
    assert shown.exit_code == 0, shown.output
    assert "80 % of its class" in shown.stdout
    assert "tokonomics twin" in shown.stdout


def test_an_old_ledger_is_read_back_from_its_own_end(tmp_path: Path) -> None:
    """It ended two months ago: the week that is asked for if nothing else is said is its last one."""
    made = KnownServers(lambda at: 0.4, servers=4, usd_per_hour=1.5)
    path = ledger_of(tmp_path / "m.db", made.windows(recent() - 60 * 86_400, HOURS), None, None)
    found = asked(path).metered
    assert found is not None
    assert found.usd_per_month == pytest.approx(4 * 1.5 * 730)
    with pytest.raises(BadInput, match="nothing was metered since then"):
        asked(path, since="7d")


def typed(path: Path | str, *more: str) -> list[str]:
    without = ",".join((*KNOBS, API, CLOCKS))
    words = ["levers", "llama-3.1-8b", "--gpu", "L40S", "--from", str(path), "--slo", SLO, "--without", without]
    return [*words, *more]


def test_how_many_would_save_less_is_one_line(tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, typed(ledger(tmp_path / "m.db", servers=4, rate=0.4, off=0.9)))
    assert "No change saves more than the twin's own error." in shown.stdout
    assert "1 more would save less than the twin's own error of 90 %." in shown.stdout


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_what_the_twin_learned_decides_how_many_replicas_today_takes(tmp_path: Path, slower: float) -> None:
    """The fewest that meet the SLO on servers with those factors, tried one by one."""
    factors = dict.fromkeys(("decode", "prefill"), slower) | dict.fromkeys(("launch", "request"), 1.0)
    made = KnownServers(lambda at: 12.0, servers=8)
    path = ledger_of(tmp_path / "m.db", made.windows(recent(), HOURS), 0.01, factors)
    asks = request(path, slo="ttft_p99=1")  # no batch limit is searched for it
    found = levers(asks).metered
    assert found is not None
    assert found.factors == pytest.approx(factors)
    deployment = deployment_of(asks, asks.model, asks.gpu)
    servers = metered_servers(made.windows(recent(), HOURS))
    assert servers is not None
    setup = Setup(deployment, metered_load(servers, deployment.model.max_context), slos=targets_of(asks))
    with using(profile_of(setup, factors)):
        holding = [count for count in range(1, 9) if attempt(setup, count).holds]
    assert found.needed == min(holding)


def test_a_slower_server_takes_more_replicas_than_the_model_alone_says(tmp_path: Path) -> None:
    needed = []
    for name, slower in (("a", 1.0), ("b", 1.6)):
        factors = dict.fromkeys(("decode", "prefill"), slower) | dict.fromkeys(("launch", "request"), 1.0)
        path = ledger(tmp_path / f"{name}.db", servers=8, rate=12.0, off=0.01, factors=factors)
        found = asked(path).metered
        assert found is not None
        needed.append(found.needed)
    assert needed[1] > needed[0]


def test_the_price_is_the_metered_one_and_other_sellers_are_a_change_of_their_own(tmp_path: Path) -> None:
    """At ten times the market's price, renting elsewhere saves most of the bill."""
    path = ledger(tmp_path / "m.db", servers=1, rate=0.4, usd_per_hour=20.0)
    alone, both = asked(path).metered, asked(path, keep=("offers",)).metered
    assert alone is not None
    assert both is not None
    assert alone.proposals == ()
    (elsewhere,) = both.proposals
    assert elsewhere.knob == "offers"
    assert elsewhere.saved_share > 0.8
    assert elsewhere.saved_usd_per_month == pytest.approx(20 * 730 - elsewhere.usd_per_month)


def test_precisions_and_caches_are_as_the_server_says_unless_typed(tmp_path: Path) -> None:
    stated = {"cache_dtype": "fp8", "enable_prefix_caching": "False"}
    path = ledger(tmp_path / "m.db", servers=1, rate=0.4, states=stated)
    told, over = asked(path).setup, asked(path, kv="bf16").setup
    assert (str(told.deployment.kv), told.prefix_cache) == ("fp8", False)
    assert str(over.deployment.kv) == "bf16"


def test_the_document_has_everything(tmp_path: Path) -> None:
    path = ledger(tmp_path / "m.db", servers=4, rate=0.4, off=0.05)
    shown = CliRunner().invoke(app, [*typed(path), "--json"])
    metered = json.loads(shown.stdout)["metered"]
    assert metered["proposals"][0]["error_share"] == pytest.approx(0.05)
    assert metered["errors"]["windows"] == 4 * HOURS
    assert metered["servers"]["traffic"]["inputs"]
    assert metered["usd_per_month"] == pytest.approx(4 * 3 * 730)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"start": "nowhere.db"}, "there is no ledger yet"),
        ({"rate": 5}, "other traffic than what was metered"),
        ({"since": "2100-01-01"}, "not in the past"),
        ({"model": "qwen3-8b"}, "has no server of qwen3-8b"),
        ({"query": 'job="x"'}, "is for a Prometheus"),
        ({"open_": "mail"}, "neither pr nor patch"),
        ({"take": "kv"}, "is for"),
        ({"start": None, "rate": 1, "input": 100, "output": 10, "since": "7d"}, "is for what was metered"),
        ({"start": None, "rate": 1, "input": 100, "output": 10, "open_": "pr"}, "is for what was metered"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = ledger(tmp_path / "m.db", servers=1, rate=0.4)
    with pytest.raises(BadInput, match=said):
        asked(path, **more)


def test_a_ledger_from_before_there_were_windows_says_all_but_histograms(tmp_path: Path) -> None:
    """Rows of an hour for two days, and windows for the last of them alone."""
    made = KnownServers(lambda at: 0.5, servers=2).windows(recent(48), 48)
    with Ledger(tmp_path / "m.db") as book:
        late = [window for window in made if window.start >= recent(24)]
        assert book.record(map(span_of, made), [], None, late) is None
    found = asked(tmp_path / "m.db").metered
    assert found is not None
    assert (found.servers.until - found.servers.since) / HOUR_S == pytest.approx(48)
    assert found.servers.usd_per_hour == pytest.approx(6.0)
    assert found.servers.traffic.requests_per_s == pytest.approx(0.5, rel=0.02)
    assert len(found.servers.by_hour) == 24
    assert sum(found.servers.traffic.inputs.values()) == pytest.approx(sum(window.requests for window in late))


def test_a_twin_is_only_taken_at_its_word_if_it_was_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (tmp_path / "tokonomics").mkdir()
    ledger(tmp_path / "tokonomics" / "meter.db", servers=2, rate=0.4)
    with pytest.raises(BadInput, match="no twin has scored"):
        asked(tmp_path, start="twin")
    found = asked(tmp_path, start="ledger").metered
    assert found is not None
    (tmp_path / "tokonomics" / "meter.db").unlink()
    ledger(tmp_path / "tokonomics" / "meter.db", servers=2, rate=0.4, off=0.1)
    found = asked(tmp_path, start="twin").metered
    assert found is not None
    assert found.errors is not None


def test_the_past_of_a_prometheus_is_as_good_as_a_ledger() -> None:
    """Two pods at known rates, scraped once a minute for six hours; it knows no price, so that one is given."""
    queries: list[str] = []
    with past_prometheus(recent(6), {"llama-0": 0.2, "llama-1": 0.4}, queries) as url:
        result = asked(Path(), start=url, since="6h", usd_per_hour=1.5, query='namespace="prod"')
    assert any('namespace="prod"' in query for query in queries)
    found = result.metered
    assert found is not None
    servers = found.servers
    assert servers.targets == ("prod/llama-0", "prod/llama-1")
    assert servers.usd_per_hour == pytest.approx(3.0, rel=1e-3)
    assert servers.traffic.requests_per_s == pytest.approx(0.6, rel=0.02)
    assert servers.traffic.input_tokens == pytest.approx(1000, rel=0.01)
    assert servers.traffic.hit_share == pytest.approx(0.25, abs=0.01)
    assert {bound for bound, count in servers.traffic.inputs.items() if count} == {1000.0}
    assert servers.tpot_s == pytest.approx(0.02)
    assert found.needed == 1


def test_a_prometheus_that_is_not_there_is_the_address_given() -> None:
    with pytest.raises(BadInput, match="cannot be reached") as caught:
        asked(Path(), start="http://127.0.0.1:9", usd_per_hour=1.5)
    assert caught.value.field in ("start", None)


@pytest.mark.parametrize("source", ["ledger", "twin", "meter.db", "http://localhost:9090"])
def test_doors_of_others_read_no_ledger_and_ask_no_server(source: str) -> None:
    parameters = find_verb("levers").parameters
    with pytest.raises(BadInput, match="what was metered is not read here"):
        checked_inputs(parameters, {"start": source}, None)
    assert checked_inputs(parameters, {"start": "10m"}, None) == {"start": "10m"}


# --- on a branch ------------------------------------------------------------------------------------------------------


def test_a_proposal_becomes_a_request_with_scenario_deploy_files_and_what_it_saves(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_origin(repo)
    log = with_tool(repo, "gh")
    path, before = ledger(tmp_path / "m.db", servers=4, rate=0.4, off=0.05), as_it_is(repo)
    monkeypatch.chdir(repo)
    shown = CliRunner().invoke(app, [*typed(path), "--open", "pr", "--json"])
    assert shown.exit_code == 0, shown.output
    made = json.loads(shown.stdout)["opened"]
    assert made["url"] == "https://example.com/team/repo/pull/7"
    assert as_it_is(repo) == before
    scenario = tomllib.loads(git(repo, "show", f"{made['branch']}:llama-3-1-8b.toml"))
    assert scenario["replicas"] == 1
    assert scenario["rate"] == pytest.approx(0.4, rel=0.05)
    assert scenario["gpu"] == "L40S"
    assert "vllm serve" in git(repo, "show", f"{made['branch']}:{made['files'][1]}")
    body = json.loads(log.read_text())["body"]
    assert "75 % of the metered bill" in body
    assert "the twin's own error is 5 % of the bill" in body


def test_the_users_own_scenario_changes_only_in_what_is_proposed(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU with little memory fewer bits leave more of it for KV, so that fewer replicas hold the answers."""
    text = '# ours\nmodel = "llama-3.1-8b"\ngpu = "L4"  # bought\nslo = "tpot_p99=90ms"\n\n[plan]\nregion = ["EU"]\n'
    (repo / "ours.toml").write_text(text)
    git(repo, "add", "ours.toml")
    git(repo, "commit", "--quiet", "-m", "Ours")
    path = ledger(tmp_path / "m.db", servers=6, rate=1.5, usd_per_hour=0.8, off=0.02)
    monkeypatch.chdir(repo)
    without = ",".join(knob for knob in (*KNOBS, API, CLOCKS) if knob != "weights")
    words = ["levers", "ours.toml", "--from", str(path), "--without", without, "--open", "patch", "--take", "weights"]
    monkeypatch.setattr(sys, "argv", ["tokonomics", *words])  # what was typed names the file
    shown = CliRunner().invoke(app, [*words, "--json"])
    assert shown.exit_code == 0, shown.output
    made = json.loads(shown.stdout)["opened"]
    git(repo, "stash", "--quiet")
    git(repo, "apply", made["patch"])
    changed = (repo / "ours.toml").read_text()
    replicas = json.loads(shown.stdout)["metered"]["proposals"][0]["replicas"]
    added = [line for line in changed.splitlines() if line not in text.splitlines()]
    assert added == ['weights = "fp8"', f"replicas = {replicas}"]
    assert [line for line in text.splitlines() if line not in changed.splitlines()] == []
    body = (repo / made["body_file"]).read_text()
    assert "| weights | bf16 | fp8 |" in body


def test_keys_of_a_file_change_in_their_lines_and_all_others_stay() -> None:
    text = '# ours\nmodel = "a"\ngpu = "L40S"  # bought\n\n[plan]\nkv = "bf16"\n'
    made = changed_text(text, {"gpu": "A40", "kv": "fp8", "tp": 2}, [], "ours.toml")
    assert made == '# ours\nmodel = "a"\ngpu = "A40"\ntp = 2\n\n[plan]\nkv = "fp8"\n'
    assert changed_text(text, {}, ["kv"], "ours.toml") == text.replace('kv = "bf16"\n', "")
    with pytest.raises(BadInput, match="line by line"):
        changed_text('gpu = [\n  "a",\n]\n', {"gpu": "b"}, [], "ours.toml")


def test_outside_a_checkout_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    path = ledger(tmp_path / "m.db", servers=1, rate=0.4)
    words = ["-m", "tokonomics", *typed(path), "--open", "pr"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 2
    assert "not a git repository" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("folder", ["/tmp/elsewhere", "../elsewhere"])
def test_nothing_is_written_outside_the_checkout(
    tmp_path: Path, repo: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    path = ledger(tmp_path / "m.db", servers=4, rate=0.4, off=0.05)
    monkeypatch.chdir(repo)
    with pytest.raises(BadInput, match="folder of the checkout"):
        levers(request(path, open_="patch", deploy_to=folder))
