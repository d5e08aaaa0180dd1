"""Every kind of log, in its published shape, gives the requests that were written into it."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.there import refused, there
from tests.traffic.written_logs import columns, opened

from tokonomics.errors import BadInput, option
from tokonomics.traffic.formats import COLUMNS_HELP
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.recognise import suggested_columns

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


# --- nothing is lost in silence: every row is read or counted with its reason, and junk is one clear message ----------


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD_CSV = "2023-11-16 18:17:03.9799600,4808,10"
CSV_SLIPS = [
    "yesterday,1,1", "nan,1,1", ",1,1", "5,,1", "5,abc,1", "5,1.5,1", "5,0,1", "5,1,-1", "5,100000001,1", "5,1", ",,",
]  # fmt: skip
GOOD_JSON = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}'
JSON_SLIPS = (
    '{"timestamp": 0, "input_length": 6',
    "17",
    '{"timestamp": 0, "output_length": 5}',
    '{"timestamp": null, "input_length": 1, "output_length": 5}',
    '{"timestamp": 0, "input_length": "x", "output_length": 5}',
    '{"timestamp": NaN, "input_length": 5, "output_length": 5}',
    '{"timestamp": 0, "input_length": 5, "output_length": -5}',
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": 7}',
    '{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [1, null]}',
    '{"timestamp": 0, "input_length": 512, "output_length": 5, "hash_ids": [1, 2]}',  # more blocks than tokens fill
)
LOGS = [f"{HEADER}\n{GOOD_CSV}\n{slip}\n{GOOD_CSV}\n" for slip in CSV_SLIPS]
LOGS += [f"{GOOD_JSON}\n\n{slip}\n{GOOD_JSON}\n" for slip in JSON_SLIPS]


@pytest.mark.parametrize("log", LOGS, ids=[*CSV_SLIPS, *JSON_SLIPS])
def test_a_bad_row_is_counted_with_its_line(tmp_path: Path, log: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    file = open_trace(path)
    assert len(file.read()) == 2
    assert file.problems.count == 1
    assert file.problems.first[0].startswith("line 3: ")
    assert refused(lambda: open_trace(path, strict=True).read()).where == f"{path}:3"


def test_parquet_rows_are_counted_from_1(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"t": [0.0, 1.0, None], "i": [5, -3, 5], "o": [1, 1, 1]}).write_parquet(path)
    file = open_trace(path, columns="arrival=t,input=i,output=o")
    assert len(file.read()) == 1
    assert file.problems.first == ["row 2: i is -3, must be 1 to 100,000,000", "row 3: t is missing"]


def test_only_the_first_few_are_kept_but_all_are_counted(tmp_path: Path) -> None:
    file = opened(tmp_path, f"{HEADER}\n{GOOD_CSV}\n" + "x,1,1\n" * 100)
    assert len(file.read()) == 1
    assert file.problems.count == 100
    assert [line.split(":")[0] for line in file.problems.first] == [f"line {number}" for number in range(3, 8)]


def test_a_stray_byte_spoils_one_row_only(tmp_path: Path) -> None:
    file = opened(tmp_path, GOOD_JSON.encode() + b'\n{"timestamp": \xff}\n' + GOOD_JSON.encode())
    assert len(file.read()) == 2
    assert file.problems.count == 1


NO_LOGS = {
    "empty": b"",
    "blank": b"\n\n  \n",
    "packed nothing": gzip.compress(b"", mtime=0),
    "bytes": random.Random(0).randbytes(5000),
    "no parquet": b"PAR1" + random.Random(0).randbytes(500),
    "cut off": gzip.compress(f"{HEADER}\n{GOOD_CSV}\n".encode() * 5, mtime=0)[:60],
    "zip": b"PK\x03\x04zip",
    "other columns": b"a,b,c\n1,2,3\n",
    "other keys": b'{"prompt": 1, "answer": 2}\n',
    "half an object": b"{\n",
    "numbers": b"[1, 2]",
    "no benchmarks": b'{"benchmarks": 3}',
    "unequal lists": b'{"input_lens": [1], "output_lens": [1], "start_times": []}',
    "header alone": f"{HEADER}\n".encode(),
    "no good row": f"{HEADER}\nx,y,z\n".encode(),
    "ServeGen": b"model,client,t_s,rate_rps,cv,family,p1,p2\n",
    "batch without counts": b'{"custom_id": "a", "response": {"body": {"created": 1, "usage": {"seconds": 3}}}}\n' * 2,
}


@pytest.mark.parametrize("content", NO_LOGS.values(), ids=NO_LOGS)
def test_a_file_that_is_no_log_is_one_message(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert str(path) in str(refused(lambda: open_trace(path).read()).where)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    assert "azure-conv" in str(refused(open_trace, "azure-cov").fix)
    with pytest.raises(BadInput):
        open_trace(tmp_path)


FUZZ = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


VALUE = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)


@FUZZ
@given(values=st.lists(VALUE, min_size=4, max_size=4))
def test_any_value_in_any_field_is_read_or_counted(tmp_path: Path, values: list[object]) -> None:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "fuzz"
    path.write_text(f"{GOOD_JSON}\n" + json.dumps(dict(zip(names, values, strict=True))) + "\n")
    file = open_trace(path)
    assert len(file.read()) + file.problems.count == 2


NUMBER = st.one_of(st.integers(0, 2000), st.floats(0, 2000), st.integers(0, 2000).map(str), st.none(), st.integers())


@FUZZ
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"timestamp": NUMBER, "input_length": NUMBER, "output_length": NUMBER},
            optional={"hash_ids": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3), "other": st.text(max_size=3)},
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_broken_line_does_not_change_how_the_others_are_read(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    path = tmp_path / "log"
    whole = "".join(json.dumps(row) + "\n" for row in [json.loads(GOOD_JSON), *rows])
    path.write_text(whole)
    all_at_once = open_trace(path)
    (expected,) = all_at_once.batches()
    path.write_text(whole + "{broken\n")
    one_by_one = open_trace(path)
    (found,) = one_by_one.batches()
    assert one_by_one.problems.count == all_at_once.problems.count + 1
    assert found.to_dict(as_series=False) == expected.to_dict(as_series=False)
    assert "prefix" in found.columns


def test_the_error_fills_in_the_columns_that_are_obvious() -> None:
    names = ["Timestamp", "customer_id", "prompt_tokens", "completion_tokens"]
    written = "arrival=Timestamp,input=prompt_tokens,output=completion_tokens,tenant=customer_id"
    assert suggested_columns(names) == option("columns", written)
    some = "arrival=time,input=PROMPT_TOKENS,output=ANSWER_TOKENS"
    assert suggested_columns(["time", "words"]) == option("columns", some)
    assert suggested_columns(["a", "b"]) == COLUMNS_HELP
