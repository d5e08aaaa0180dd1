"""Nothing is lost in silence: every row is read or counted with its reason, and junk is one clear message."""

import gzip
import json
import random
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.there import refused
from tests.traffic.written_logs import opened

from tokonomics.errors import BadInput, option
from tokonomics.traffic.formats import COLUMNS_HELP
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.recognise import suggested_columns

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
