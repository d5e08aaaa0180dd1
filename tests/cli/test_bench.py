"""``bench`` and ``import`` as a shell sees them, against a server on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.command import Call, answer, refusal
from tests.measure.loopback import Loopback, loopback

RESULTS = Path(__file__).parents[1] / "measure" / "results"
SHORT = ("--input=60", "--output=5", "--requests=30")


@pytest.fixture(scope="module")
def server() -> Iterator[Loopback]:
    with loopback() as made:
        yield made


def test_bench_prints_the_same_result_as_json(tokonomics: Call, server: Loopback, tmp_path: Path) -> None:
    saved = tmp_path / "run.json"
    flags = ("--concurrency=1,3", "--usd-per-hour=3.6", "--slo=ttft_p99=10", "--save", saved)
    result = answer(tokonomics, "bench", server.url("good"), *SHORT, *flags)
    assert [point["concurrency"] for point in result["run"]["points"]] == [1, 3]
    for point, priced in zip(result["run"]["points"], result["points"], strict=True):
        tokens_per_s = point["input_tokens_per_s"] + point["output_tokens_per_s"]
        assert priced["usd_per_mtok"]["blended"] == pytest.approx(0.001 / tokens_per_s * 1e6)
    again = answer(tokonomics, "import", saved, "--usd-per-hour=3.6", "--slo=ttft_p99=10")
    assert again == result


def test_bench_predicts_where_the_gpu_and_the_model_are_known(tokonomics: Call, server: Loopback) -> None:
    flags = ("--model=llama-3.1-8b", "--gpu=H100", "--concurrency=2", "--json")
    result = json.loads(tokonomics("bench", server.url("slow"), *SHORT, *flags).stdout)
    assert {each["metric"] for each in result["points"][0]["scored"]} == {"tpot_s", "ttft_s", "output_tok_s"}
    assert result["price"]["price_from"] != "as given"  # of the cheapest offer


def test_an_open_loop_and_a_trace_are_loads_too(tokonomics: Call, server: Loopback, tmp_path: Path) -> None:
    by_rate = tokonomics("bench", server.url("good"), *SHORT, "--rate=300")
    assert by_rate.returncode == 0, by_rate.stderr
    assert "300 requests/s" in by_rate.stdout
    log = tmp_path / "log.csv"
    log.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{at / 50},40,3\n" for at in range(20)))
    point = answer(tokonomics, "bench", server.url("good"), f"--trace={log}", "--speed=2")["run"]["points"][0]
    assert (point["completed"], point["output_tokens"], point["input_tokens"]) == (20, 60, 800)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--save=run.csv",), "does not end with .json"),
        (("--save=no/such/run.json",), "does not exist"),
        (("--chart=load.bmp",), "cannot save a chart"),
        (("--max-usd=1",), "needs a price"),
        (("--speed=2",), "is for a trace"),
        (("--concurrency=1.5",), "whole numbers"),
        (("--concurrency=9999",), "must be from 1 to 4,096"),
        (("--slo=ttft_p42=1",), "not an SLO"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_slip_is_found_before_asking(tokonomics: Call, server: Loopback, flags: tuple[str, ...], says: str) -> None:
    before = sum(server.seen.values())
    assert says in refusal(tokonomics, "bench", server.url("good"), *SHORT, *flags)
    assert sum(server.seen.values()) == before


def test_import_names_the_model_in_our_words(tokonomics: Call) -> None:
    bare = answer(tokonomics, "import", RESULTS / "vllm.json", "--gpu=H100")
    assert "unknown model 'tiny'" in bare["points"][0]["not_predicted"]
    told = json.loads(
        tokonomics("import", RESULTS / "vllm.json", "--gpu=H100", "--model=llama-3.1-8b", "--json").stdout
    )
    assert told["points"][0]["not_predicted"] is None
    assert told["points"][0]["scored"]


def test_a_run_that_was_not_predicted_is_not_said_to_be(tokonomics: Call) -> None:
    said = tokonomics("import", RESULTS / "vllm.json", "--gpu=H100").stdout
    assert "Not predicted: unknown model 'tiny'. Name it with --model" in said
    assert "Predicted for" not in said
    assert "assumed" not in said


def test_arrivals_are_drawn_only_where_the_file_has_none(tokonomics: Call, tmp_path: Path) -> None:
    flat = json.loads((RESULTS / "vllm.json").read_text()) | {"request_rate": 3.0}
    (tmp_path / "flat.json").write_text(json.dumps(flat))
    listed = {
        **{"model_id": "llama-3.1-8b", "request_rate": 2.0, "duration": 2.0, "completed": 2, "failed": 0},
        **{"total_input_tokens": 30, "total_output_tokens": 5, "input_lens": [10, 20], "output_lens": [3, 2]},
        **{"ttfts": [0.1, 0.2], "itls": [[0.02, 0.04], [0.05]], "start_times": [5.0, 6.0]},
    }
    (tmp_path / "listed.json").write_text(json.dumps(listed))
    flags = ("--gpu=H100", "--model=llama-3.1-8b")
    drawn = "arrivals were drawn at random"
    assert drawn in tokonomics("import", tmp_path / "flat.json", *flags).stdout
    assert drawn not in tokonomics("import", tmp_path / "listed.json", *flags).stdout


def test_lengths_are_shown_where_the_loads_of_a_run_differ_in_them(tokonomics: Call, tmp_path: Path) -> None:
    flat = json.loads((RESULTS / "vllm.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(flat | {"total_input_tokens": 10 * flat["total_input_tokens"]}))
    alone = tokonomics("import", RESULTS / "vllm.json").stdout
    both = tokonomics("import", RESULTS / "vllm.json", tmp_path / "other.json").stdout
    assert "in tok" not in alone
    assert "Loads of 2 different lengths" in both
    assert all(shown in both for shown in ("in tok", "out tok", " 88 ", " 876 "))
    assert "(best)" not in both
