"""Each verb as a user calls it: what it answers, on which stream, with which exit code."""

import csv
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tokonomics as package
from tokonomics.catalog.offers import SNAPSHOT
from tokonomics.cli.main import app

Call = Callable[..., subprocess.CompletedProcess[str]]

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
VERBS = ["plan", "fit", "cost", "models", "gpus", "offers", "apis", "prices refresh"]

PLAN = ["plan", "llama-3.1-8b", "--rate", "5", "--input", "1000", "--output", "300", "--offers", str(OFFERS)]
FIT = ["fit", "llama-3.1-70b", "--gpu", "H100", "--tp", "4"]
COST = ["cost", "--usd-per-hour", "2.21", "--gpus", "4", "--tokens-per-second", "2400", "--utilization", "0.7"]
OFFLINE = {
    "plan": PLAN,
    "fit": FIT,
    "cost": COST,
    "models": ["models", "llama-3"],
    "gpus": ["gpus", "--architecture", "hopper"],
    "offers": ["offers", "--offers", str(OFFERS)],
    "apis": ["apis", "gpt-4o", "--host", "openai"],
}

ANSI = re.compile(r"\x1b\[[0-9;]*m")
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


def answer(*args: str | Path) -> str:
    """What the verb prints when all is well, and nothing else happens."""
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exception is None, done.exception
    assert done.exit_code == 0
    assert done.stderr == ""
    return done.stdout


def answer_json(*args: str | Path) -> Any:
    return json.loads(answer(*args, "--json"))


def offered() -> list[dict[str, str]]:
    with OFFERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- cost -----------------------------------------------------------------------------------------------------------


def test_cost_solves_the_equation() -> None:
    cost = answer_json(*COST)
    tokens_per_hour = 2400 * 0.7 * 3600
    assert cost["usd_per_mtok"] == pytest.approx(1.4616, abs=5e-5)
    assert cost["usd_per_mtok"] == pytest.approx(2.21 * 4 / tokens_per_hour * 1e6)
    assert cost["usd_per_token"] == pytest.approx(2.21 * 4 / tokens_per_hour)
    assert cost["tokens_per_usd"] == pytest.approx(tokens_per_hour / (2.21 * 4))
    assert cost["usd_per_month"] == pytest.approx(2.21 * 4 * 730)
    assert cost["tokens_per_month"] == pytest.approx(tokens_per_hour * 730)


def test_cost_of_busy_time_only_is_the_cost_at_full_utilisation() -> None:
    assert answer_json(*COST)["usd_per_mtok_usage"] == pytest.approx(2.21 * 4 / (2400 * 3600) * 1e6)


def test_cost_compares_load_profiles() -> None:
    cost = answer_json(*COST[:-2], "--load", "8x0.99,16x0", "--load", "24x0.7")
    day_shift, spread = cost["loads"]
    assert day_shift["utilization"] == pytest.approx(8 * 0.99 / 24)
    assert spread["utilization"] == pytest.approx(0.7)
    assert day_shift["usd_per_mtok"] / spread["usd_per_mtok"] == pytest.approx(0.7 / (8 * 0.99 / 24))
    assert cost["usd_per_mtok"] == day_shift["usd_per_mtok"]


def test_cost_says_what_a_target_takes() -> None:
    needed = answer_json(*COST, "--target", "0.5")["target"]
    now = 2.21 * 4 / (2400 * 0.7 * 3600) * 1e6
    assert needed["tokens_per_second"] == pytest.approx(2400 * now / 0.5)
    assert needed["utilization"] == pytest.approx(0.7 * now / 0.5)
    assert needed["usd_per_hour"] == pytest.approx(2.21 * 0.5 / now)


def test_cost_of_a_request_is_its_tokens_at_the_blended_price() -> None:
    cost = answer_json(*COST, "--input", "1000", "--output", "300")
    assert cost["usd_per_request"] == pytest.approx(1300 * 2.21 * 4 / (2400 * 0.7 * 3600))


def test_cost_takes_the_price_of_a_named_gpu_from_the_offers() -> None:
    cost = answer_json("cost", "--gpu", "H100", "--tokens-per-second", "2400", "--offers", OFFERS)
    assert cost["price"]["provider"] == "aws"  # runpod's is cheaper, and older than 90 days
    assert cost["price"]["stale"] is False
    assert cost["usd_per_mtok"] == pytest.approx(55.04 / 8 / (2400 * 3600) * 1e6)


# --- fit ------------------------------------------------------------------------------------------------------------


def test_fit_counts_weights_and_cache_of_llama_70b() -> None:
    fit = answer_json(*FIT)
    hidden, layers, heads_kv, head_dim, width, vocab = 8192, 80, 8, 128, 28672, 128256
    attention = 2 * hidden * hidden + 2 * hidden * heads_kv * head_dim
    parameters = 2 * vocab * hidden + layers * (attention + 3 * hidden * width + 2 * hidden) + hidden
    assert fit["weight_bytes"] == parameters * 2
    assert fit["kv_bytes_per_token"] == 2 * layers * heads_kv * head_dim * 2
    assert fit["fits"] is True


def test_fit_batch_is_what_the_budget_holds_in_whole_blocks() -> None:
    fit = answer_json(*FIT, "--context", "1000")
    blocks = math.ceil(1000 / 16)
    per_sequence = blocks * 16 * fit["kv_bytes_per_token"] // 4
    assert fit["kv_bytes_per_sequence"] == per_sequence
    assert fit["max_sequences"] == fit["kv_budget_bytes"] // per_sequence


def test_fit_needs_two_h100_for_a_70b_and_says_so() -> None:
    alone = answer_json("fit", "llama-3.1-70b", "--gpu", "H100")
    assert alone["fits"] is False
    assert alone["max_sequences"] == 0
    assert alone["min_gpus"] == 2
    assert "does not fit" in answer("fit", "llama-3.1-70b", "--gpu", "H100")


def test_fit_reads_a_config_json(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-5,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    fit = answer_json("fit", path, "--gpu", "L40S")
    per_layer = 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert fit["weight_bytes"] == 2 * (2 * 32000 * 4096 + 32 * per_layer + 4096)
    assert fit["kv_bytes_per_token"] == 2 * 32 * 32 * 128 * 2


# --- plan -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKONOMICS_TODAY", "2026-11-15")
        return answer_json(*PLAN, "--tpot", "0.05")


def test_plan_picks_the_first_of_a_ranking_by_the_bill(plan: Any) -> None:
    assert plan["best"] == plan["ranked"][0]
    assert all(one["usd_per_month"] <= next["usd_per_month"] for one, next in pairwise(plan["ranked"]))


def test_plan_bills_sum_to_the_month(plan: Any) -> None:
    for row in plan["ranked"]:
        lines = [line["quantity"] * line["usd_per_unit"] for line in row["bill"]["lines"]]
        assert math.fsum(lines) == pytest.approx(row["usd_per_month"])
        assert row["usd_per_month"] == pytest.approx(row["instances"] * row["instance_usd_per_hour"] * 730)


def test_plan_token_prices_give_the_bill_back(plan: Any) -> None:
    requests_per_month = 5 * 3600 * 730
    for row in plan["ranked"]:
        price = row["usd_per_mtok"]
        by_kind = requests_per_month * (1000 * price["input"] + 300 * price["output"]) / 1e6
        assert by_kind == pytest.approx(row["usd_per_month"])
        assert requests_per_month * 1300 * price["blended"] / 1e6 == pytest.approx(row["usd_per_month"])


def test_plan_keeps_the_promise_and_the_headroom(plan: Any) -> None:
    for row in plan["ranked"]:
        assert row["tpot_s"] <= 0.05
        assert row["utilization"] <= 0.7 + 1e-6
        assert row["replicas"] * row["capacity_requests_per_s"] >= 5 / 0.7 * (1 - 1e-6)
        assert row["gpus_paid"] >= row["replicas"] * row["gpus_per_replica"]


def test_plan_ranks_or_rejects_every_possible_deployment(plan: Any) -> None:
    out_of_date, no_price = {"GH200"}, {"RTX4090"}
    most: dict[str, int] = {}
    for row in offered():
        if row["gpu"] not in out_of_date | no_price:
            most[row["gpu"]] = max(most.get(row["gpu"], 0), int(row["gpus"]))
    # 32 heads, 8 KV heads, 14336 wide: powers of two split it up to 32 ways.
    possible = {
        (gpu, tp, weights)
        for gpu, gpus in most.items()
        for tp in (1, 2, 4, 8, 16, 32)
        if tp <= gpus
        for weights in ("bf16", "fp8", "int4")
    }
    ranked = {(row["gpu"], row["tp"], row["weights"]) for row in plan["ranked"]}
    rejected = {(row["gpu"], row["tp"], row["weights"]) for row in plan["rejected"] if row["tp"]}
    assert ranked | rejected == possible
    assert {row["gpu"] for row in plan["rejected"] if not row["tp"]} == out_of_date | no_price


def test_plan_answers_once_for_every_offer_and_deployment(plan: Any) -> None:
    ranked = [(row["gpu"], row["tp"], row["weights"], row["instance"]) for row in plan["ranked"]]
    turned_away = [
        (row["gpu"], row["tp"], row["weights"], row["instance"]) for row in plan["rejected"] if row["instance"]
    ]
    assert len(set(ranked)) == len(ranked)
    assert not set(ranked) & set(turned_away)
    impossible = {(row["gpu"], row["tp"], row["weights"]) for row in plan["rejected"] if not row["instance"]}
    assert not impossible & {row[:3] for row in ranked}
    assert all(row["reason"] for row in plan["rejected"])


def test_plan_says_why_in_words() -> None:
    text = answer(*PLAN, "--why")
    assert "does not fit" in text
    assert "no on-demand price" in text
    assert "too old beside prices of 2026-11-10" in text


def test_plan_with_nothing_left_says_so_and_why() -> None:
    text = answer(*PLAN, "--max-price", "0.01")
    assert "Nothing fits these wishes" in text
    assert "dearer than the price limit" in text
    nothing = answer_json(*PLAN, "--max-price", "0.01")
    assert nothing["best"] is None
    assert nothing["ranked"] == []


def test_plan_takes_gpu_names_or_a_number_in_gpus() -> None:
    named = answer_json(*PLAN, "--gpus", "T4,L4")
    assert {row["gpu"] for row in named["ranked"]} == {"T4", "L4"}
    few = answer_json(*PLAN, "--gpus", "2")
    assert few["ranked"]
    assert max(row["gpus_paid"] for row in few["ranked"]) <= 2


def test_plan_takes_a_discount_off_one_provider() -> None:
    full = {(row["instance"], row["tp"], row["weights"]): row for row in answer_json(*PLAN)["ranked"]}
    for row in answer_json(*PLAN, "--discount", "aws=0.2")["ranked"]:
        before = full[row["instance"], row["tp"], row["weights"]]
        left = 0.8 if row["provider"] == "aws" else 1.0
        assert row["usd_per_month"] == pytest.approx(before["usd_per_month"] * left)


@pytest.mark.parametrize("suffix", [".svg", ".png", ".html", ".json"])
def test_plan_saves_its_chart_and_nothing_else(tmp_path: Path, suffix: str) -> None:
    starts = {".svg": b"<svg", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>", ".json": b"{"}
    answer(*PLAN, "--chart", tmp_path / f"plan{suffix}")
    assert [file.name for file in tmp_path.iterdir()] == [f"plan{suffix}"]
    content = (tmp_path / f"plan{suffix}").read_bytes().lstrip()
    assert content[:15].lower().startswith(starts[suffix].lower())
    assert b"Llama 3.1 8B" in content or suffix == ".png"


# --- the catalogue --------------------------------------------------------------------------------------------------


def test_models_lists_those_that_match() -> None:
    models = answer_json("models", "llama-3.1")
    sizes = {each["key"]: each["parameters"] for each in models}
    assert sizes["llama-3.1-8b"] == 8_030_261_248  # Meta's own count
    assert sizes["llama-3.1-70b"] == 70_553_706_496
    assert len(answer_json("models")) > len(models)


def test_models_tells_mixtures_from_dense() -> None:
    everything = {each["key"] for each in answer_json("models")}
    moe = {each["key"] for each in answer_json("models", "--moe")}
    dense = {each["key"] for each in answer_json("models", "--dense")}
    assert moe | dense == everything
    assert not moe & dense
    assert "mixtral-8x7b" in moe
    assert "llama-3.1-8b" in dense


def test_gpus_filters_by_memory_and_architecture() -> None:
    gpus = answer_json("gpus", "--min-memory", "80", "--architecture", "hopper")
    assert gpus
    assert all(gpu["memory_gb"] >= 80 and gpu["architecture"] == "hopper" for gpu in gpus)
    assert [gpu["key"] for gpu in answer_json("gpus", "NVIDIA H100 80GB HBM3")] == ["H100-SXM"]


def test_offers_come_cheapest_gpu_hour_first() -> None:
    prices = [offer["usd_per_hour"] / offer["gpus"] for offer in answer_json("offers", "--offers", OFFERS)]
    assert prices == sorted(float(row["usd_per_hour"]) / int(row["gpus"]) for row in offered() if row["usd_per_hour"])


def test_offers_on_spot_are_those_with_a_spot_price() -> None:
    spot = answer_json("offers", "--offers", OFFERS, "--terms", "spot")
    assert {offer["instance"] for offer in spot} == {row["instance"] for row in offered() if row["spot_usd_per_hour"]}


def test_offers_say_which_prices_are_old() -> None:
    stale = {offer["instance"] for offer in answer_json("offers", "--offers", OFFERS) if offer["stale"]}
    assert stale == {"2x_H100", "gpu_1x_gh200"}  # more than 90 days before 2026-11-15


def test_apis_price_a_request() -> None:
    found = answer_json("apis", "gpt-4o", "--host", "openai", "--input", "2000", "--output", "500")
    gpt_4o = next(api for api in found if api["model"] == "gpt-4o")
    assert (gpt_4o["input_usd_per_mtok"], gpt_4o["output_usd_per_mtok"]) == (2.5, 10)
    assert gpt_4o["request_usd"] == pytest.approx((2000 * 2.5 + 500 * 10) / 1e6)


def test_apis_read_a_litellm_file(tmp_path: Path) -> None:
    entry = {"litellm_provider": "acme", "input_cost_per_token": 1e-6, "output_cost_per_token": 3e-6}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"acme/house-model": entry}), encoding="utf-8")
    (own,) = answer_json("apis", "house-model", "--litellm", file, "--input", "1000", "--output", "1000")
    assert own["host"] == "acme"
    assert own["request_usd"] == pytest.approx((1000 * 1 + 1000 * 3) / 1e6)


@pytest.mark.parametrize("verb", ["models", "gpus", "offers", "apis"])
def test_the_catalogue_verbs_answer_with_a_list_of_objects(verb: str) -> None:
    listed = answer_json(*OFFLINE[verb])
    assert listed
    assert all(isinstance(each, dict) for each in listed)


# --- prices refresh -------------------------------------------------------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def price_site(tmp_path: Path) -> Iterator[str]:
    """A place on this machine with one provider's price file."""
    (tmp_path / "site" / "aws").mkdir(parents=True)
    (tmp_path / "site" / "aws" / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo\n"
        "p5.48xlarge,H100,8.0,192,2048,60.0,20.0,us-east-1,a,\n",
        encoding="utf-8",
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refreshed_prices_are_used_from_then_on(price_site: str) -> None:
    done = answer_json("prices", "refresh", "--url", price_site, "--provider", "aws")
    assert [(each["provider"], each["rows"], each["error"]) for each in done["providers"]] == [("aws", 1, None)]
    assert Path(done["path"]).is_file()
    (aws,) = answer_json("offers", "--provider", "aws")
    assert (aws["instance"], aws["usd_per_hour"], aws["spot_usd_per_hour"]) == ("p5.48xlarge", 60.0, 20.0)


def test_refresh_says_what_it_did_in_words(price_site: str) -> None:
    text = answer("prices", "refresh", "--url", price_site, "--provider", "aws")
    assert "refreshed" in text
    assert "Written to" in text


def test_refresh_keeps_the_old_prices_of_a_provider_that_fails(price_site: str) -> None:
    with SNAPSHOT.open(encoding="utf-8", newline="") as file:
        shipped = sum(row["provider"] == "gcp" for row in csv.DictReader(file))
    before = len(answer_json("offers", "--provider", "gcp"))
    done = answer_json("prices", "refresh", "--url", price_site, "--provider", "aws,gcp")
    by_name = {each["provider"]: each for each in done["providers"]}
    assert by_name["aws"]["error"] is None
    assert "404" in by_name["gcp"]["error"]
    assert by_name["gcp"]["rows"] == shipped
    assert len(answer_json("offers", "--provider", "gcp")) == before


def test_refresh_without_an_address_asks_the_public_catalogue(
    monkeypatch: pytest.MonkeyPatch, tokonomics: Call
) -> None:
    asked: list[str] = []

    def refuse(url: str, **_: object) -> None:
        asked.append(url)
        raise OSError("no network here")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    done = tokonomics("prices", "refresh", "--provider", "aws")
    assert "Traceback" not in done.stderr
    assert any("skypilot-catalog" in url and url.endswith("/aws/vms.csv") for url in asked)
    assert "no network here" in " ".join((done.stdout + done.stderr).split())


# --- help and version -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_every_verb_has_examples_that_start_with_it(verb: str, flag: str) -> None:
    text = answer(*verb.split(), flag)
    assert f"Usage: tokonomics {verb}" in text or f"Usage: root {verb}" in text
    examples = text.partition("Examples:")[2]
    assert f"tokonomics {verb}" in examples


@pytest.mark.parametrize("verb", VERBS)
def test_help_examples_name_only_options_that_exist(verb: str) -> None:
    text = answer(*verb.split(), "--help")
    examples, _, options = text.partition("Examples:")[2].partition("Options")
    used = set(re.findall(r"--[a-z-]+", examples))
    assert used <= set(re.findall(r"--[a-z-]+", options))


def test_help_lists_every_verb() -> None:
    text = answer("--help")
    assert all(verb.split()[0] in text for verb in VERBS)


def test_version_is_the_packages() -> None:
    assert answer("--version") == f"tokonomics {package.__version__}\n"


# --- as a shell sees it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cost", "fit", "gpus"])
def test_a_process_answers_on_stdout_and_exits_with_0(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb])
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == answer(*OFFLINE[verb])


def test_a_process_that_fails_says_so_on_stderr_and_exits_with_2(tokonomics_process: Call) -> None:
    done = tokonomics_process("fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_process_with_a_usage_error_exits_with_2(tokonomics_process: Call) -> None:
    done = tokonomics_process("plan", "llama-3.1-8b")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(r"Usage: .*tokonomics plan", done.stderr)
    assert "--rate" in done.stderr


def test_no_verb_shows_the_help(tokonomics_process: Call) -> None:
    done = tokonomics_process()
    assert done.returncode in (0, 2)
    assert re.search(r"Usage: .*tokonomics", done.stdout + done.stderr)


def test_the_version_of_a_process(tokonomics_process: Call) -> None:
    assert tokonomics_process("--version").stdout == f"tokonomics {package.__version__}\n"


@pytest.mark.parametrize("args", [["offers", "--json"], ["models", "--json"]], ids=" ".join)
def test_a_reader_that_leaves_after_a_line_is_no_error(args: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tokonomics", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read().decode()
    assert process.returncode in (0, -13, 141)
    assert complaint == ""


@pytest.mark.parametrize("args", [COST, [*COST, "--json"], ["--help"], ["--version"]], ids=" ".join)
def test_a_reader_that_is_gone_before_the_first_line_is_no_error(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tokonomics", *args], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(writer)
    assert done.stderr.decode() == ""
    assert done.returncode in (0, -13, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", [COST, [*COST, "--json"]], ids=["table", "json"])
def test_a_full_disk_is_one_message(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokonomics", *args], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert "Traceback" not in done.stderr.decode()
    assert "No space left" in done.stderr.decode()
    assert done.returncode != 0


@pytest.mark.parametrize("verb", ["plan", "fit", "cost"])
def test_a_terminal_that_knows_only_ascii_still_gets_an_answer(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb], env={"PYTHONIOENCODING": "ascii"})
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert done.stdout.isascii()


# --- JSON and colours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", OFFLINE)
def test_json_is_nothing_but_json(verb: str) -> None:
    text = answer(*OFFLINE[verb], "--json")
    assert not ANSI.search(text)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("verb", ["plan", "cost", "offers", "apis"])
def test_json_stays_so_where_colours_are_forced(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb], "--json", env={"FORCE_COLOR": "1", "NO_COLOR": ""})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    json.loads(done.stdout)


@pytest.mark.parametrize("verb", ["plan", "fit", "cost"])
def test_a_view_has_colours_where_they_are_forced(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb], env={"FORCE_COLOR": "1", "NO_COLOR": ""})
    assert ANSI.search(done.stdout)


@pytest.mark.parametrize("verb", OFFLINE)
def test_a_view_has_no_codes_without_colour(verb: str) -> None:
    assert "\x1b" not in answer(*OFFLINE[verb])


@pytest.mark.parametrize("verb", ["plan", "fit"])
def test_no_color_wins_over_a_forced_terminal(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb], env={"FORCE_COLOR": "1", "NO_COLOR": "1"})
    assert not COLOUR.search(done.stdout)


def test_an_error_has_no_codes_without_colour(tokonomics_process: Call) -> None:
    assert "\x1b" not in tokonomics_process("fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "3").stderr
