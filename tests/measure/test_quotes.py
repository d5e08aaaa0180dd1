"""A packet that vendors quote on, and the ranking of what they return with a real result file of vLLM."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from tests.measure.loopback import loopback
from tests.there import there

from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.places import said_to_be_in
from tokonomics.errors import BadInput
from tokonomics.measure.importers.recognise import read_run
from tokonomics.measure.quotes import LONGEST_S, MOST_SENT, AskedTraffic, RankedQuote, packet, ranked_quotes
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.units import HOURS_PER_MONTH

VLLM = Path(__file__).parent / "results" / "vllm.json"
MEASURED = json.loads(VLLM.read_text())
SLO = "ttft_p99=1"


@pytest.fixture
def files() -> dict[str, str]:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    return {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}


def asked_for(rate: float) -> AskedTraffic:
    """Ask for the requests of the real result file, at a rate."""
    return AskedTraffic(
        model="tiny",
        repository="",
        weights="bf16",
        kv="bf16",
        slo=SLO,
        requests_per_s=rate,
        planned_requests_per_s=rate,
        tokens_per_month=1e9,
        input_tokens=MEASURED["total_input_tokens"] / 20,
        output_tokens=MEASURED["total_output_tokens"] / 20,
        requests=20,
        requests_sha256="0" * 64,
    )


def returned(
    folder: Path,
    name: str,
    asked: AskedTraffic,
    usd: float,
    gpus: int = 1,
    ttft_factor: float = 1.0,
    region: str = "",
    changed: dict[str, float] | None = None,
) -> Path:
    """Write what a vendor returns: the real result, perhaps slower or changed, and its quote beside it."""
    told = "\n".join(f"{key} = {json.dumps(value)}" for key, value in asked.model_dump().items())
    quote = f'vendor = "{name}"\ngpu = "H100"\ngpus = {gpus}\nusd_per_gpu_hour = {usd}\nregion = "{region}"\n'
    (folder / f"{name}.toml").write_text(f'[asked]\nseal = "{asked.seal}"\n{told}\n\n[quote]\n{quote}')
    result = folder / f"{name}.json"
    slower = {key: value * ttft_factor for key, value in MEASURED.items() if "ttft" in key and "ttfts" not in key}
    slower |= {"ttfts": [value * ttft_factor for value in MEASURED["ttfts"]]} if "ttfts" in MEASURED else {}
    result.write_text(json.dumps(MEASURED | slower | (changed or {})))
    return result


def test_the_cheapest_quote_that_meets_the_slo_comes_first(tmp_path: Path) -> None:
    asked = asked_for(100.0)
    paths = [
        returned(tmp_path, "slow", asked, 0.5, ttft_factor=1000),
        returned(tmp_path, "dear", asked, 3.0),
        returned(tmp_path, "fair", asked, 2.0),
    ]
    ranking = ranked_quotes(paths)
    assert [row.quote.vendor for row in ranking.quotes] == ["fair", "dear", "slow"]
    assert [row.met for row in ranking.quotes] == [True, True, False]
    assert ranking.quotes[-1].usd_per_month is None
    assert ranking.quotes[0].usd_per_month == pytest.approx(2.0 * HOURS_PER_MONTH)


def test_prices_follow_from_what_was_measured(tmp_path: Path) -> None:
    """$/Mtok within the SLO: the machine's seconds over the tokens that it served in them."""
    (row,) = ranked_quotes([returned(tmp_path, "one", asked_for(100.0), 2.0, gpus=4)]).quotes
    tokens_per_s = MEASURED["total_token_throughput"]
    assert row.usd_per_mtok == pytest.approx(4 * 2.0 / 3600 / tokens_per_s * 1e6)
    assert row.planned_usd_per_mtok == pytest.approx(4 * 2.0 * HOURS_PER_MONTH / 1e9 * 1e6)


def test_a_part_of_the_load_counts_as_so_many_machines(tmp_path: Path) -> None:
    served = MEASURED["request_throughput"]
    rows = {
        factor: ranked_quotes([returned(tmp_path, "one", asked_for(factor * served), 2.0)]).quotes[0]
        for factor in (0.4, 1.0, 1.5, 2.5)
    }
    assert {factor: row.machines for factor, row in rows.items()} == {0.4: 1, 1.0: 1, 1.5: 2, 2.5: 3}
    assert rows[2.5].usd_per_month == pytest.approx(3 * 2.0 * HOURS_PER_MONTH)


def test_a_quote_has_room_for_as_much_growth_as_the_plan_beside_it(tmp_path: Path) -> None:
    """A plan with --headroom 20% buys for a fifth more; a quote for the planned rate alone would look cheaper."""
    served = MEASURED["request_throughput"]
    counted = {}
    for headroom in (0.0, 0.2, 1.5):
        asked = asked_for(served).model_copy(update={"headroom": headroom})
        (row,) = ranked_quotes([returned(tmp_path, "one", asked, 2.0)]).quotes
        counted[headroom] = row.machines
    assert counted == {0.0: 1, 0.2: 2, 1.5: 3}
    load = replace(load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300")), headroom=0.2)
    files = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}
    assert tomllib.loads(files["quote.toml"])["asked"]["headroom"] == 0.2


def quote_at(folder: Path, rates: dict[float, float]) -> RankedQuote:
    """Return the quote of who is asked for 6 requests a second and 20 % more: rates tested, and their TTFT p99 in s."""
    asked = asked_for(6.0).model_copy(update={"headroom": 0.2})
    folder.mkdir()
    quote = returned(folder, "one", asked, 2.0).with_suffix(".toml")
    (folder / "one.json").unlink()
    quote.rename(folder / "quote.toml")
    paths = []
    for rate, p99_s in rates.items():
        at_rate = {
            "request_rate": rate,
            "max_concurrency": None,
            "request_throughput": rate,
            "p99_ttft_ms": p99_s * 1e3,
        }
        at_rate |= {"duration": 20 / rate}
        paths.append(folder / f"result-{rate:g}.json")
        summary = {key: value for key, value in MEASURED.items() if not isinstance(value, list)}
        paths[-1].write_text(json.dumps(summary | at_rate))
    (row,) = ranked_quotes(paths).quotes
    return row


@pytest.mark.parametrize(
    ("rates", "machines", "said"),
    [
        ((6.0, 7.2), 1, None),
        ((7.2,), 1, None),
        ((6.0,), 2, "sized for 7.2 requests/s (6 and 20 % headroom), tested up to 6: counts 2 times; "
         "a run at 1.2 times the rate may need fewer machines"),
        ((1.5,), 5, "sized for 7.2 requests/s (6 and 20 % headroom), tested up to 1.5: counts 5 times; "
         "a run at 1.2 times the rate may need fewer machines"),
        ((1.8,), 4, "sized for 7.2 requests/s (6 and 20 % headroom), tested up to 1.8: counts 4 times; "
         "a run at 1.34 times the rate may need fewer machines"),
    ],
)  # fmt: skip
def test_a_quote_that_counts_several_times_says_why(
    tmp_path: Path, rates: Sequence[float], machines: int, said: str | None
) -> None:
    row = quote_at(tmp_path / "one", dict.fromkeys(rates, 0.5))
    assert (row.machines, row.requests_per_s) == (machines, max(rates))
    assert row.usd_per_month == pytest.approx(machines * 2.0 * HOURS_PER_MONTH)
    assert [note for note in row.notes if "sized" in note] == ([said] if said else [])


def test_what_a_faster_run_may_save_it_does_save(tmp_path: Path) -> None:
    """The factor that the note names is enough for one machine less."""
    for served in (0.5, 0.7, 1.1, 1.9, 3.1, 5.0, 6.9):
        row = quote_at(tmp_path / f"{served}", {served: 0.5})
        factor = re.search(r"a run at ([0-9.]+) times", "".join(row.notes))
        faster = quote_at(tmp_path / f"{served}-faster", {served * float(there(factor)[1]): 0.5})
        assert there(faster.machines) < there(row.machines)


def test_no_faster_run_is_suggested_where_one_missed_the_slo(tmp_path: Path) -> None:
    row = quote_at(tmp_path / "one", {6.0: 0.5, 7.2: 1.4})
    assert (row.met, row.machines, row.requests_per_s) == (True, 2, 6.0)
    assert row.notes[0] == "sized for 7.2 requests/s (6 and 20 % headroom), meets the SLO up to 6: counts 2 times"
    untested = quote_at(tmp_path / "two", {6.0: 0.5, 20.0: 1.4})  # between them nobody knows
    assert untested.notes[0].endswith("a run at 1.2 times the rate may need fewer machines")


def test_a_quote_that_misses_the_slo_says_which_target_and_by_what(tmp_path: Path) -> None:
    row = quote_at(tmp_path / "one", {6.0: 1.4})
    assert (row.met, row.machines, row.usd_per_month) == (False, None, None)
    assert row.notes == ("misses TTFT p99: 1.4 s, SLO 1 s",)
    asked = asked_for(100.0).model_copy(update={"region": ("us-east-1",)})
    path = returned(tmp_path, "bad", asked, 1.0, region="eu-west-1", changed={"failed": 5})
    (row,) = ranked_quotes([path], parse_slos("ttft_p99=1,tpot_p99=0.001,job_p99=60")).quotes
    tpot_ms = MEASURED["p99_tpot_ms"]
    assert row.notes[:4] == (
        f"misses TPOT p99: {tpot_ms:.3g} ms, SLO 1 ms",
        "does not tell job p99, SLO 60 s",
        "20.0 % of requests failed, at most 1 % may",
        "in eu-west-1, asked us-east-1",
    )


def test_the_users_own_slo_counts_instead(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    (row,) = ranked_quotes([path], parse_slos("ttft_p99=0.000001")).quotes
    assert not row.met


def test_other_requests_are_noted(tmp_path: Path) -> None:
    other = asked_for(100.0).model_copy(update={"input_tokens": 1000.0})
    (row,) = ranked_quotes([returned(tmp_path, "one", other, 2.0)]).quotes
    assert any("prompts" in note for note in row.notes)
    (row,) = ranked_quotes([returned(tmp_path, "two", asked_for(100.0), 2.0)]).quotes
    assert not any("prompts" in note or "answers" in note for note in row.notes)
    assert any("4 users" in note for note in row.notes)  # a closed loop is not the traffic that was asked for


def test_results_of_other_lengths_rank_below_those_of_the_lengths_asked(tmp_path: Path) -> None:
    """Prompts 15 % shorter are other traffic, 5 % shorter are not; a miss with the right lengths still ranks above."""
    tokens = MEASURED["total_input_tokens"]
    asked = asked_for(100.0)
    paths = [
        returned(tmp_path, "short", asked, 0.5, changed={"total_input_tokens": round(tokens * 0.85)}),
        returned(tmp_path, "near", asked, 3.0, changed={"total_input_tokens": round(tokens * 0.95)}),
        returned(tmp_path, "missed", asked, 1.0, ttft_factor=1000),
        returned(tmp_path, "same", asked, 2.0),
    ]
    rows = ranked_quotes(paths).quotes
    assert [(row.quote.vendor, row.same_traffic) for row in rows] == [
        ("same", True), ("near", True), ("missed", True), ("short", False)
    ]  # fmt: skip


def test_quotes_for_elsewhere_are_marked_and_rank_below(tmp_path: Path) -> None:
    asked = asked_for(100.0).model_copy(update={"region": ("us-east-1",)})
    places = {"away": "eu-west-1", "silent": "", "there": "AWS us-east-1"}
    paths = [
        returned(tmp_path, name, asked, usd, region=places[name])
        for name, usd in (("away", 1.0), ("silent", 1.5), ("there", 2.0))
    ]
    rows = ranked_quotes(paths).quotes
    assert [(row.quote.vendor, row.in_region) for row in rows] == [("there", True), ("away", False), ("silent", False)]
    assert any("us-east-1" in note for note in rows[1].notes)
    anywhere = ranked_quotes([returned(tmp_path, "any", asked_for(100.0), 1.0, region="eu-west-1")]).quotes
    assert anywhere[0].in_region


@pytest.mark.parametrize(
    ("named", "provider", "region", "there"),
    [
        ("EU", "acme", "Frankfurt, DE", True),
        ("EU", "acme", "Germany", True),
        ("EU", "AWS", "eu-central-1", True),
        ("us-east", "acme", "us-east-1", True),
        ("EU", "acme", "us-east-1", False),
        ("us-east-1", "acme", "US", False),
        ("US", "acme", "", False),
    ],
)
def test_a_place_in_a_vendors_own_words(named: str, provider: str, region: str, there: bool) -> None:
    assert said_to_be_in([named], provider, region) is there


def test_the_region_asked_for_is_in_the_packet() -> None:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    asked = packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO), ["us-east-1", "EU"])
    files = {file.name: file.text for file in asked}
    assert tomllib.loads(files["quote.toml"])["asked"]["region"] == ["us-east-1", "EU"]
    assert "us-east-1" in files["README.md"]


def test_a_packet_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    quote = path.with_suffix(".toml")
    quote.write_text(quote.read_text().replace("ttft_p99=1", "ttft_p99=100"))
    with pytest.raises(BadInput, match="seal"):
        ranked_quotes([path])


def test_quotes_on_different_packets_are_not_ranked(tmp_path: Path) -> None:
    paths = [returned(tmp_path, "one", asked_for(100.0), 2.0), returned(tmp_path, "two", asked_for(99.0), 2.0)]
    with pytest.raises(BadInput, match="different traffic"):
        ranked_quotes(paths)


def test_a_result_without_a_quote_is_refused_among_quotes(tmp_path: Path) -> None:
    path = returned(tmp_path, "one", asked_for(100.0), 2.0)
    alone = shutil.copy(VLLM, tmp_path / "alone.json")
    with pytest.raises(BadInput, match="no quote"):
        ranked_quotes([path, Path(alone)])


def test_what_is_not_filled_in_is_said(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "quote.toml").write_text(files["quote.toml"])
    path = shutil.copy(VLLM, tmp_path / "result.json")
    with pytest.raises(BadInput) as refused:
        ranked_quotes([Path(path)])
    for field in ("gpu", "gpus", "usd_per_gpu_hour"):
        assert re.search(rf"\b{field}\b", str(refused.value))
    assert "quote.toml" in (refused.value.fix or "")


def test_a_filled_in_packet_is_read_back(tmp_path: Path, files: dict[str, str]) -> None:
    filled = files["quote.toml"].replace('gpu = "" ', 'gpu = "H100"').replace("gpus = 0", "gpus = 2")
    (tmp_path / "quote.toml").write_text(filled.replace("usd_per_gpu_hour = 0.0", "usd_per_gpu_hour = 2.5"))
    path = shutil.copy(VLLM, tmp_path / "result.json")
    ranking = ranked_quotes([Path(path)])
    assert ranking.asked.requests_sha256 == sha256(files["requests.csv"].encode()).hexdigest()
    assert ranking.seal in files["README.md"]
    assert ranking.quotes[0].quote.gpus == 2


def test_the_requests_are_times_and_lengths_that_a_bench_reads(tmp_path: Path, files: dict[str, str]) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(files["requests.csv"])
    trace = open_trace(path).read()
    assert files["requests.csv"].partition("\n")[0] == "arrival,input_tokens,output_tokens"
    assert 0 < len(trace) <= MOST_SENT
    assert trace.rate == pytest.approx(5.0, rel=0.1)
    assert trace.duration_s <= LONGEST_S
    assert trace.input_tokens.mean() == pytest.approx(1000, rel=0.05)


@pytest.mark.parametrize("rate", [0.05, 0.2, 1.0, 6.0, 20_000.0])
def test_the_requests_come_at_the_planned_rate(rate: float) -> None:
    """As many a second as a bench counts: a slower draw of arrivals would be billed as a test below the plan."""
    load = load_of_shape(rate, parse_lengths("1000"), parse_lengths("300"))
    files = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, ())}
    arrivals = [float(line.split(",")[0]) for line in files["requests.csv"].splitlines()[1:]]
    assert len(arrivals) / arrivals[-1] == pytest.approx(rate, rel=1e-4)


def grown(headroom: float) -> dict[str, str]:
    """Return a packet of thirty requests in three seconds, with room to grow."""
    log = make_trace(np.arange(1, 31) / 10, np.full(30, 40), np.full(30, 5))
    load = replace(load_of_log(log, None), headroom=headroom)
    return {file.name: file.text for file in packet(find_model("qwen3-32b"), None, load, ())}


def sent_by(folder: Path, files: dict[str, str], command: str, runs: str, *given: str, **env: str) -> None:
    """Run the packet's script with a command of that name on the PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    stub = folder / "bin" / command
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\n{runs}\n")
    stub.chmod(0o755)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "load.sh", *given], cwd=folder, env=os.environ | env | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def filled_in(files: dict[str, str]) -> str:
    filled = files["quote.toml"].replace('gpu = "" ', 'gpu = "H100"').replace("gpus = 0", "gpus = 1")
    return filled.replace("usd_per_gpu_hour = 0.0", "usd_per_gpu_hour = 2.5")


def test_a_packet_run_as_its_readme_says_is_billed_once(tmp_path: Path) -> None:
    """Both rates are tested against a real server on loopback, and each result has a file of its own."""
    files, folder = grown(0.2), tmp_path / "acme"
    with loopback() as server:
        sent_by(folder, files, "tokonomics", f'exec "{sys.executable}" -m tokonomics "$@"', server.url("good"))
    (folder / "quote.toml").write_text(filled_in(files))
    results = sorted(tmp_path.glob("*/*.json"))
    assert [path.name for path in results] == ["result-1.2x.json", "result-1x.json"]
    assert all(f"`{path.name}`" in files["README.md"] for path in results)
    planned = tomllib.loads(files["quote.toml"])["asked"]["requests_per_s"]
    rates = [there(read_run(path).points[0].rate) for path in results]
    assert rates == pytest.approx([1.2 * planned, planned], rel=0.01)
    (row,) = ranked_quotes(results).quotes
    assert row.machines == 1
    assert not any("sized" in note for note in row.notes)


def test_a_packet_without_headroom_is_sent_once(tmp_path: Path) -> None:
    files = grown(0.0)
    sent_by(tmp_path, files, "tokonomics", 'echo "$@" >> told.txt', "http://here:1", "own-name")
    (told,) = (tmp_path / "told.txt").read_text().splitlines()
    assert "http://here:1 --model own-name --trace requests.csv --speed 1 " in told
    assert told.endswith("--save result-1x.json")
    assert "Room to grow" not in files["README.md"]
    shutil.rmtree(tmp_path / "bin")
    sent_by(tmp_path, files, "tokonomics", 'echo "$@" >> told.txt', "http://here:1", SPEED="0.25 0.5")
    assert [line.split()[-1] for line in (tmp_path / "told.txt").read_text().splitlines()[1:]] == [
        "result-0.25x.json", "result-0.5x.json"
    ]  # fmt: skip


VLLM_SERVE = {
    "--base-url", "--model", "--served-model-name", "--dataset-name", "--random-input-len", "--random-output-len",
    "--random-range-ratio", "--ignore-eos", "--seed", "--request-rate", "--num-prompts", "--percentile-metrics",
    "--metric-percentiles", "--save-result", "--result-filename",
}  # fmt: skip
"""Of what `vllm bench serve --help` lists (vllm/benchmarks/serve.py at 009e6d4, and the data sets' flags)."""


def test_vllms_own_load_generator_can_send_the_packet(tmp_path: Path) -> None:
    """No vLLM runs here: what it would be told is read back."""
    files = grown(0.2)
    sent_by(tmp_path, files, "vllm", 'printf "%s\\n" "$*" >> told.txt', "http://here:1", "own-name", LOADER="vllm")
    lines = (tmp_path / "told.txt").read_text().splitlines()
    told = [dict(re.findall(r"(--[a-z-]+)(?: (?!--)(\S+))?", line)) for line in lines]
    planned = tomllib.loads(files["quote.toml"])["asked"]["requests_per_s"]
    assert [float(one["--request-rate"]) for one in told] == pytest.approx([planned, 1.2 * planned], rel=1e-4)
    assert [one["--result-filename"] for one in told] == ["result-1x.json", "result-1.2x.json"]
    assert set(told[0]) == VLLM_SERVE
    expected = {"--base-url": "http://here:1", "--model": "Qwen/Qwen3-32B", "--served-model-name": "own-name"}
    expected |= {"--random-input-len": "40", "--random-output-len": "5", "--num-prompts": "30"}
    assert told[0].items() >= expected.items()
    assert all(line.startswith("bench serve ") for line in lines)


def test_the_readme_speaks_as_the_plan_does() -> None:
    load = replace(load_of_shape(6.0, parse_lengths("1500"), parse_lengths("400")), headroom=0.2)
    files = {file.name: file.text for file in packet(find_model("qwen3-32b"), None, load, parse_slos(SLO))}
    readme = files["README.md"]
    assert "30 B tokens a month" in readme  # 6 × 1,900 × 730 × 3,600
    assert "20 % more, 7.2 requests/s" in readme
    assert "pip install tokonomics`" not in readme  # it is on no public index
    assert "returned/*/*.json" in readme
    assert 'SPEED="0.25 0.3"' in readme


def test_the_same_plan_gives_the_same_packet(files: dict[str, str]) -> None:
    load = load_of_shape(5.0, parse_lengths("1000"), parse_lengths("300"))
    again = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, parse_slos(SLO))}
    assert again == files


def test_of_a_log_the_busiest_quarter_of_an_hour_is_sent(tmp_path: Path) -> None:
    """An hour with 1 request a second, but 3 a second from minute 20 to 40."""
    gaps = [1.0] * 1200 + [1 / 3] * 3600 + [1.0] * 1200
    arrival = np.concatenate([[0.0], np.cumsum(gaps)])
    load = load_of_log(make_trace(arrival, np.full(len(arrival), 100), np.full(len(arrival), 10)), None)
    files = {file.name: file.text for file in packet(find_model("llama-3.1-8b"), None, load, ())}
    assert files["requests.csv"].count("\n") - 1 == pytest.approx(2700, abs=2)
    assert "requests_per_s = 3.0" in files["quote.toml"]
