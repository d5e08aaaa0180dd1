"""``simulate`` as a user calls it: what it answers, saves and draws, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.command import Call, answer, on_a_terminal, refusal

from tokonomics.questions import simulate as verb
from tokonomics.traffic.readers import open_trace

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
ON = ("simulate", "--model=llama-3.1-8b", "--gpu=H100")
MADE_UP = (
    *ON, "--arrivals=poisson:20", "--requests=400", "--input=const:512", "--output=uniform:1-99",
    "--usd-per-hour=3",
)  # fmt: skip
SESSIONS = (*ON, "--arrivals=poisson:5", "--requests=300", "--input=400", "--output=50", "--sessions=5,think=1")
CLOCKS = ("wall_s", "simulated_requests_per_s")


def test_the_keys_that_others_read_are_there(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP, "--slo=ttft_p99=0.5")
    counts = ("requests", "completed", "failed", "input_tokens", "output_tokens", "cached_tokens", "preemptions")
    assert all(isinstance(made[name], int) for name in counts)
    numbers = ("duration_s", "output_tokens_per_s", "busy_share", "usd_per_mtok", "slo_attainment", *CLOCKS)
    assert all(isinstance(made[name], float) and made[name] > 0 for name in numbers)
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert made[name].keys() == {"p50", "p90", "p95", "p99", "mean"}
        assert 0 < made[name]["p50"] <= made[name]["p90"] <= made[name]["p95"] <= made[name]["p99"]


def test_every_token_of_a_sample_is_served(tokonomics: Call) -> None:
    made = answer(tokonomics, *ON, "--trace=azure-code")
    known = open_trace("azure-code").read()
    assert (made["requests"], made["completed"], made["failed"]) == (len(known), len(known), 0)
    assert made["input_tokens"] == known.input_tokens.sum()
    assert made["output_tokens"] == known.output_tokens.sum()
    assert made["duration_s"] >= known.duration_s
    assert made["output_tokens_per_s"] == pytest.approx(made["output_tokens"] / made["rated_s"])


def test_the_price_is_the_time_of_the_gpus(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP, "--tp=2", "--replicas=3")
    bill = 3 * 2 * 3.0 * made["rated_s"] / 3600
    assert made["cost"]["usd"] == pytest.approx(bill)
    assert made["usd_per_mtok"] == pytest.approx(bill / (made["input_tokens"] + made["output_tokens"]) * 1e6)
    lines = made["cost"]["tree"]["lines"]
    assert sum(line["quantity"] * line["usd_per_unit"] for line in lines) == pytest.approx(bill)


def test_a_gpu_nobody_offers_has_no_price(tokonomics: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "offers.csv").write_bytes(OFFERS.read_bytes())
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path))
    made = answer(tokonomics, *MADE_UP[:-1], "--gpu=L40S")
    assert (made["usd_per_mtok"], made["cost"]) == (None, None)
    assert "output tokens/s" in tokonomics(*MADE_UP[:-1], "--gpu=L40S").stdout.splitlines()[0]


def test_what_conversations_share_is_cached_unless_told_otherwise(tokonomics: Call) -> None:
    cached, computed = answer(tokonomics, *SESSIONS), answer(tokonomics, *SESSIONS, "--no-prefix-cache")
    assert cached["cached_tokens"] > 0 == computed["cached_tokens"]
    assert cached["input_tokens"] == computed["input_tokens"]
    assert "of prompt tokens came from the cache" in tokonomics(*SESSIONS).stdout


def test_a_router_that_knows_prefixes_finds_more_of_them(tokonomics: Call) -> None:
    knows, spreads = (
        answer(tokonomics, *SESSIONS, "--replicas=4", f"--router={name}")["cached_tokens"]
        for name in ("prefix-aware", "round-robin")
    )
    assert knows > spreads


def test_clients_hang_up(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP, "--max-sequences=2", "--timeout=500ms")
    assert 0 < made["timed_out"] == made["failed"] < 400
    assert made["e2e_s"]["p99"] <= 0.5 + 1e-9
    assert "clients hung up" in tokonomics(*MADE_UP, "--max-sequences=2", "--timeout=500ms").stdout


def test_a_replica_that_fails_makes_requests_start_again(tokonomics: Call) -> None:
    made = answer(
        tokonomics, *MADE_UP, "--replicas=2", "--outage=replica=0,at=5,for=5", "--outage=replica=1,at=15,for=1"
    )
    assert made["restarts"] > 0
    assert made["completed"] == 400


def test_without_any_replica_left_requests_are_unserved(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP, "--outage=replica=0,at=10")
    arrived_before = made["completed"]
    assert 0 < arrived_before < 400
    assert made["unserved"] == made["failed"] == 400 - arrived_before


def test_replicas_come_and_go(tokonomics: Call) -> None:
    scaled = answer(tokonomics, *MADE_UP, "--autoscale=max=4,target=4,cold=1,interval=1,hold=5")
    assert scaled["completed"] == 400
    hours = scaled["replica_hours"] * 3600 / scaled["rated_s"]
    assert 1 < hours < 4
    assert "up to 4 replicas" in tokonomics(*MADE_UP, "--autoscale=max=4,target=4,cold=1").stdout


def test_prompts_on_replicas_of_their_own(tokonomics: Call) -> None:
    slow, fast = (answer(tokonomics, *MADE_UP, "--prefill-replicas=1", f"--link={link}") for link in (4, "nvlink"))
    assert slow["completed"] == fast["completed"] == 400
    # 512 tokens of 131,072 bytes of KV take 17 ms at 4 GB/s, a third of the time between two prompts: some wait for it.
    takes_s = 512 * 131_072 / 4e9
    assert 0.9 * takes_s < slow["e2e_s"]["mean"] - fast["e2e_s"]["mean"] < 1.6 * takes_s
    assert "1 prefill + 1 decode replicas" in tokonomics(*MADE_UP, "--prefill-replicas=1").stdout


def test_each_side_has_its_own_gpus_and_its_own_bill(tokonomics: Call) -> None:
    apart = ("--prefill-replicas=2", "--prefill-gpu=L40S", "--prefill-tp=2", "--usd-per-hour=2")
    made = answer(tokonomics, *MADE_UP, *apart)
    prefill, decode = made["sides"]
    assert (prefill["does"], prefill["replicas"], decode["does"], decode["replicas"]) == ("prefill", 2, "decode", 1)
    assert "2×L40S TP=2" in prefill["deployment"]
    # Two GPUs each for prompts, at two dollars an hour a GPU, and one for answers.
    hours = decode["replica_hours"]
    assert made["cost"]["usd"] == pytest.approx(hours * (2 * 2 * 2 + 1 * 2))
    shown = tokonomics(*MADE_UP, *apart).stdout
    assert "prefill side" in shown
    assert "decode side" in shown


def test_urgent_requests_go_first_where_priorities_count(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "served.parquet"
    crowded = (*MADE_UP, "--tenants=2,skew=0,priorities=0/1", "--max-sequences=2", f"--save={file}")
    waits = []
    for flags in ((), ("--priority",)):
        answer(tokonomics, *crowded, *flags)
        by_tenant = pl.read_parquet(file).group_by(pl.col("tenant").cast(pl.String)).agg(pl.col("ttft_s").mean())
        waits.append(sorted(by_tenant["ttft_s"].to_list()))
    in_order, by_priority = waits
    assert in_order[1] < 1.5 * in_order[0]
    assert by_priority[1] > 3 * by_priority[0]


def test_a_smaller_step_takes_a_prompt_in_more_of_them(tokonomics: Call) -> None:
    whole, parts = (answer(tokonomics, *MADE_UP, f"--max-batched-tokens={tokens}") for tokens in (8192, 64))
    assert parts["ttft_s"]["p50"] > whole["ttft_s"]["p50"]


def test_a_cut_of_a_log_is_what_is_served(tokonomics: Call) -> None:
    arrival = open_trace("azure-code").read().arrival_s
    made = answer(tokonomics, *ON, "--trace=azure-code", "--from=10m", "--to=12m")
    assert made["requests"] == ((arrival >= 600) & (arrival < 720)).sum()
    assert answer(tokonomics, *ON, "--trace=azure-code", "--requests=70")["requests"] == 70


@pytest.mark.parametrize(
    ("traffic", "says"),
    [
        (("--arrivals=burst:1", "--input=1", "--output=0"), ["1 of 1 answered"]),
        (("--arrivals=burst:50", "--input=9", "--output=1"), ["50 of 50 answered", "per token after (TPOT)"]),
    ],
    ids=["one token", "all at once"],
)
def test_odd_traffic_is_drawn(tokonomics: Call, tmp_path: Path, traffic: tuple[str, ...], says: list[str]) -> None:
    done = tokonomics(*ON, *traffic, f"--chart={tmp_path / 'chart.json'}", f"--save={tmp_path / 'served.parquet'}")
    assert done.returncode == 0, done.stderr
    assert [say for say in says if say not in done.stdout] == []
    assert "nan" not in done.stdout
    chart = (tmp_path / "chart.json").read_text(encoding="utf-8")
    json.loads(chart, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    answer(tokonomics, *ON, *traffic)


def test_requests_are_saved_one_by_one(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "served.parquet"
    done = tokonomics(*MADE_UP, f"--save={file}", "--json")
    assert done.stderr == f"requests saved to {file}\n"
    made, saved = json.loads(done.stdout), pl.read_parquet(file)
    assert list(tmp_path.iterdir()) == [file]
    assert saved.height == made["requests"]
    assert saved["output_tokens"].sum() == made["output_tokens"]
    assert np.percentile(saved["ttft_s"].to_numpy(), 99) == pytest.approx(made["ttft_s"]["p99"])


@pytest.mark.explore
def test_progress_is_shown_on_a_terminal_only() -> None:
    made_up = ("--arrivals=poisson:20", f"--requests={verb._WORTH_COUNTING}", "--input=9", "--output=2")
    assert b"serving 200,000 requests" in on_a_terminal(*ON, *made_up, "--usd-per-hour=3")


@pytest.mark.parametrize(
    "flags",
    [
        *["--autoscale=", "--autoscale=8", "--autoscale=max=0,target=1,cold=1", "--autoscale=max=2,target=nan,cold=1"],
        *["--autoscale=max=2,target=1,cold=1,min=3", "--autoscale=max=2,max=3,target=1,cold=1"],
        *["--autoscale=max=2,target=1,cold=1,hold=1e300", "--autoscale=max=2,target=1,cold=1,colour=2"],
        *["--outage=", "--outage=replica=0", "--outage=replica=0,at=-1", "--outage=replica=0.5,at=1"],
        *["--outage=replica=1,at=1", "--outage=replica=0,at=5 --autoscale=max=2,target=1,cold=1"],
        *["--prefill-tp=2", "--link=5", "--prefill-replicas=1 --link=nvlnk", "--prefill-replicas=1 --link=0"],
        *["--timeout=soon", "--timeout=0", "--slo=", "--slo=ttft_p42=1", "--slo=ttft=1,ttft_p99=2"],
        *["--save=served.csv", "--chart=chart.gif", "--columns=arrival=when"],
    ],
)
def test_a_mistake_names_its_option(tokonomics: Call, flags: str) -> None:
    wrong = flags.split()[-1].partition("=")[0]
    assert wrong.strip("-")[:8] in refusal(tokonomics, *MADE_UP, *flags.split())


LLAMA = ("llama-3.1-8b", "--gpu=L4", "--input=const:500")


def test_a_percentile_that_does_not_exist_says_how_many_were_never_answered(tokonomics: Call) -> None:
    asked = (
        "simulate",
        *LLAMA,
        "--output=const:100",
        "--rate=2.2",
        "--requests=200",
        "--timeout=8",
        "--slo=ttft_p99=3",
    )
    made = answer(tokonomics, *asked)
    lost = made["requests"] - made["completed"]
    assert 2 < lost < 200
    assert made["slo"][0]["delivered_s"] is None
    told = f"MISSED  ttft_p99, SLO 3 s: {lost / 200 * 100:.0f} % of the requests are never answered"
    assert told in tokonomics(*asked).stdout


def test_a_capacity_names_arrivals_only_if_they_were_given(tokonomics: Call) -> None:
    asked = ("simulate", "--capacity", *LLAMA, "--output=const:20", "--requests=300", "--slo=ttft_p99=3")
    assert "poisson" not in tokonomics(*asked).stdout
    assert "gamma:1,cv=2: " in tokonomics(*asked, "--arrivals=gamma:1,cv=2").stdout


def test_only_made_up_sessions_can_end_earlier(tokonomics: Call, tmp_path: Path) -> None:
    asked = ("simulate", "qwen3-30b-a3b", "--gpu=H100")
    log = tmp_path / "sessions.csv"
    turns = [(60 * turn, 12_000 * (turn + 1), 500, "one") for turn in range(5)]
    pl.DataFrame(turns, ["t", "in", "out", "session"], orient="row").write_csv(log)
    told = tokonomics(*asked, f"--trace={log}", "--columns=arrival=t,input=in,output=out,session=session").stdout
    assert "Sessions grow longer than the model's 40,960 tokens of context: requests beyond it are refused" in told
    assert "limit=" not in told
    made_up = tokonomics(*asked, "--sessions=8,think=5", "--input=12000", "--output=500", "--rate=0.1").stdout
    assert "limit=40960 in --sessions" in made_up
