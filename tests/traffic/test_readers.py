"""Every kind of log, in its published shape, gives the requests that were written into it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.there import there
from tests.traffic.written_logs import columns, opened

from tokonomics.errors import BadInput
from tokonomics.traffic.readers import open_trace

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781440,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00+00:00,2399,6
2024-05-10 02:00:01.5+02,76,15
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,Conversation log
118,ChatGPT,417,0,417,API log
"""
BURSTGPT_2 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,,2,ChatGPT,36,29,65,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1024, "output_length": 500, "hash_ids": [7, 8]}
{"timestamp": 1500, "input_length": 1100, "output_length": 490, "hash_ids": [7, 8, 30]}
{"timestamp": 500, "input_length": 600, "output_length": 3, "hash_ids": [7, 12]}
"""
BAILIAN = """{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132, \
"type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091]}
{"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 32, "output_length": 80, \
"type": "search", "turn": 2, "hash_ids": [1089, 1090]}
"""


def lines(*items: dict[str, Any]) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


KNOWN: dict[str, tuple[str, str, list[list[float]], tuple[str, ...]]] = {
    "seven digits of a second": (
        AZURE_2023,
        "Azure LLM CSV",
        [[0, 0.052, 0.098184], [4808, 3180, 110], [10, 8, 27]],
        (),
    ),
    "with and without zone": (AZURE_2024, "Azure LLM CSV", [[0, 0.00993, 1.5], [2399, 2162, 76], [6, 5, 15]], ()),
    "burstgpt": (BURSTGPT, "BurstGPT CSV", [[0, 40, 113], [472, 1087, 417], [18, 230, 0]], ("ChatGPT", "GPT-4")),
    "burstgpt 2": (BURSTGPT_2, "BurstGPT CSV", [[0, 51], [906, 36], [446, 29]], ("ChatGPT", "GPT-4")),
    "mooncake": (MOONCAKE, "Mooncake JSON lines", [[0, 0.5, 1.5], [1024, 600, 1100], [500, 3, 490]], ()),
    "bailian": (BAILIAN, "Qwen-Bailian JSON lines", [[0, 1.386], [40, 32], [132, 80]], ("search", "text")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_published_logs_are_recognised_and_read(tmp_path: Path, name: str) -> None:
    text, log_format, expected, tenants = KNOWN[name]
    file = opened(tmp_path, text)
    trace = file.read()
    assert (file.format, columns(trace), trace.tenants) == (log_format, expected, tenants)
    assert file.problems.count == 0


def test_absolute_times_of_a_batch_are_unix_time_and_reading_twice_counts_once(tmp_path: Path) -> None:
    (batch,) = opened(tmp_path, AZURE_2024).batches()
    assert batch["arrival"].to_list() == [1715299200.00993, 1715299200.0, 1715299201.5]
    file = opened(tmp_path, AZURE_2023 + "x,1,1\n")
    for _ in range(2):
        assert sum(map(len, file.batches())) == 3
        assert file.problems.count == 1


def test_burstgpt_keeps_failed_requests_and_says_so(tmp_path: Path) -> None:
    file = opened(tmp_path, BURSTGPT)
    tenant = there(file.read().tenant)
    assert tenant.tolist() == [0, 1, 0]
    assert file.problems.notes[1].startswith("1 requests that failed")


@pytest.mark.parametrize(
    ("text", "size", "ids", "blocks"),
    [
        (MOONCAKE, 512, [[7, 8], [7, 8, 30], [7, 12]], [[0, 1], [0, 2], [0, 1, 3]]),
        (BAILIAN, 16, [[1089, 1090, 1091], [1089, 1090]], [[0, 1, 2], [0, 1]]),
    ],
)
def test_blocks_are_numbered_and_have_the_size_of_their_log(
    tmp_path: Path, text: str, size: int, ids: list[list[int]], blocks: list[list[int]]
) -> None:
    file = opened(tmp_path, text)
    (batch,) = file.batches()
    assert batch["prefix"].to_list() == ids
    prefix = there(file.read().prefix)
    assert prefix.block_tokens == file.block_tokens == size
    assert prefix.distinct == max(map(max, blocks)) + 1
    assert [prefix.blocks_of(request).tolist() for request in range(len(blocks))] == blocks


def test_block_ids_may_be_any_64_bit_hash_or_text(tmp_path: Path) -> None:
    huge = lines(
        {"timestamp": 0, "input_length": 1000, "output_length": 1, "hash_ids": [2**64 - 1, "ab"]},
        {"timestamp": 1, "input_length": 1000, "output_length": 1, "hash_ids": [2**64 - 1, "cd"]},
        {"timestamp": 2, "input_length": 500, "output_length": 1, "hash_ids": [-(2**63)]},
    )
    prefix = there(opened(tmp_path, huge).read().prefix)
    assert prefix.distinct == 4
    first, second, third = (prefix.blocks_of(request).tolist() for request in range(3))
    assert first[0] == second[0]
    assert len({*first, *second, *third}) == 4


CHAT, ANSWERS = ("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens")
USAGE_LOGS: dict[str, Callable[[float, str, int, int], dict[str, Any]]] = {
    "chat": lambda at, user, *n: {"created": at, "model": "m", "user": user, "usage": counts(CHAT, n)},
    "responses": lambda at, user, *n: {"created_at": at, "user": user, "usage": counts(ANSWERS, n)},
    "litellm": lambda at, user, *n: (
        {"startTime": f"2023-11-14T22:13:{at % 60:02}Z", "end_user": user} | counts(CHAT, n)
    ),
    "milliseconds": lambda at, user, *n: (
        {"timestamp": at * 1000, "metadata": {"tenant": user}, "usage": counts(ANSWERS, n)}
    ),
    "batch": lambda at, user, *n: (
        {"custom_id": user, "response": {"body": {"created": at, "user": user, "usage": counts(CHAT, n)}}}
    ),
}


def counts(names: tuple[str, str], tokens: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(names, tokens, strict=True))


@pytest.mark.parametrize("name", USAGE_LOGS)
def test_usage_logs_of_openai_and_its_proxies(tmp_path: Path, name: str) -> None:
    row = USAGE_LOGS[name]
    file = opened(tmp_path, lines(row(1700000000, "a", 12, 3), row(1700000007, "b", 5, 0)))
    trace = file.read()
    assert file.format == ("OpenAI batch output" if name == "batch" else "OpenAI-style usage log")
    assert columns(trace) == [[0, 7], [12, 5], [3, 0]]
    assert trace.tenants == ("a", "b")
    (batch,) = file.batches()
    assert batch["arrival"].to_list() == [1700000000.0, 1700000007.0]
    assert batch["tenant"].to_list() == ["a", "b"]


def test_without_users_the_models_are_tenants_and_a_failed_call_without_usage_is_counted(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    file = opened(tmp_path, lines({"created": 1, "usage": usage}, {"created": 2, "usage": None}))
    assert len(file.read()) == 1
    assert file.problems.first == ["line 2: usage.prompt_tokens is missing"]
    file = opened(tmp_path, lines({"created": 1, "model": "x", "usage": usage}))
    assert file.read().tenants == ("x",)
    assert opened(tmp_path, json.dumps([{"created": 1, "usage": usage}])).read().tenants == ()


def test_vllm_results_with_details(tmp_path: Path) -> None:
    run = {"input_lens": [100, 200, 300], "output_lens": [10, 20, 0], "start_times": [1000.5, 1001.0, 0.0]}
    file = opened(tmp_path, json.dumps(run))
    assert file.format == "vLLM bench serve"
    assert columns(file.read()) == [[0, 0.5], [100, 200], [10, 20]]
    assert file.problems.count == 1
    with pytest.raises(BadInput):  # a result without its requests
        opened(tmp_path, json.dumps({"request_throughput": 2.0, "completed": 3}, indent=2))


def guidellm(*, flat: bool) -> dict[str, Any]:
    def request(start: float, prompt: int, answer: int) -> dict[str, Any]:
        if flat:
            return {"start_time": start, "prompt_tokens": prompt, "output_tokens": answer}
        return {
            "info": {"timings": {"queued": start - 1, "request_start": start}},
            "input_metrics": {"total_tokens": prompt, "text_tokens": 1},
            "output_metrics": {"total_tokens": answer},
        }

    requests = {"successful": [request(10.0, 81, 16), request(12.5, 7, 8)], "errored": [{}], "incomplete": None}
    return {"metadata": {"version": 2}, "benchmarks": [{"requests": requests}]}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("indent", [None, 1])
def test_guidellm_of_either_version_leaves_out_errors(tmp_path: Path, *, flat: bool, indent: int | None) -> None:
    file = opened(tmp_path, json.dumps(guidellm(flat=flat), indent=indent))
    assert file.format == "guidellm benchmarks"
    assert columns(file.read()) == [[0, 2.5], [81, 7], [16, 8]]
    assert file.problems.notes == ["1 errored requests are left out"]


TEXTS = {"csv": AZURE_2023, "jsonl": MOONCAKE, "json": json.dumps(guidellm(flat=False), indent=1)}


@pytest.mark.parametrize("kind", TEXTS)
def test_gzip_and_zstd_read_the_same_under_any_name(tmp_path: Path, kind: str) -> None:
    plain = opened(tmp_path, TEXTS[kind]).read()
    zipped = tmp_path / "zipped"
    zipped.write_bytes(gzip.compress(TEXTS[kind].encode()))
    squeezed = tmp_path / "squeezed.csv.zst"
    squeezed.write_bytes(zstd(TEXTS[kind], tmp_path))
    for path in (zipped, squeezed):
        assert columns(open_trace(path).read()) == columns(plain)


def zstd(text: str, folder: Path) -> bytes:
    """Written by polars, which has the compressor: one column, of lines, without quotes."""
    path = folder / "written.zst"
    head, *rest = text.splitlines()
    table = pl.DataFrame({head: rest}, schema={head: pl.String})
    table.lazy().sink_csv(path, compression="zstd", quote_style="never", check_extension=False)
    return path.read_bytes()


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbf" + AZURE_2023.replace("\n", "\r\n").encode())
    assert columns(open_trace(path).read())[1] == [4808, 3180, 110]
    path.write_bytes(b"\xef\xbb\xbf" + MOONCAKE.replace("\n", "\r\n").encode())
    assert columns(open_trace(path).read())[1] == [1024, 600, 1100]


def test_a_large_table_comes_in_batches_of_bounded_size(tmp_path: Path) -> None:
    rows = 250_000
    path = tmp_path / "large.parquet"
    seconds = np.arange(rows) / 10
    pl.DataFrame({"t": seconds, "i": np.arange(rows) % 1000 + 1, "o": np.arange(rows) % 7}).write_parquet(path)
    batches = list(open_trace(path, columns="arrival=t,input=i,output=o").batches())
    assert max(map(len, batches)) <= 200_000
    assert pl.concat(batches)["arrival"].to_list() == seconds.tolist()
    assert sum(int(batch["input"].sum()) for batch in batches) == rows // 1000 * 500_500
