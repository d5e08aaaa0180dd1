"""Any table can be read once its columns are named."""

import gzip
import json
import math
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from tests.there import refused, there
from tests.traffic.written_logs import columns, kept, opened

from tokonomics.errors import BadInput
from tokonomics.traffic.readers import MOST_COLUMNS, open_trace, preview
from tokonomics.traffic.trace import make_trace, save_trace

TABLE = pl.DataFrame({"t": [10.0, 11.5, 11.0], "in": [100, 200, 300], "out": [1, 2, 3], "who": ["b", "a", None]})
NAMED = "arrival=t,input=in,output=out,tenant=who"


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolon", "jsonl", "json", "parquet"])
def test_the_same_table_in_every_container(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "table"
    if kind == "parquet":
        TABLE.write_parquet(path)
    elif kind == "jsonl":
        TABLE.write_ndjson(path)
    elif kind == "json":
        path.write_text(json.dumps(TABLE.to_dicts(), indent=2))
    else:
        TABLE.write_csv(path, separator={"csv": ",", "tsv": "\t", "semicolon": ";"}[kind])
    trace = open_trace(path, columns=NAMED).read()
    assert columns(trace) == [[0, 1, 1.5], [100, 300, 200], [1, 3, 2]]
    assert trace.tenants == ("(none)", "a", "b")
    assert there(trace.tenant).tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "times",
    [
        pl.Series("t", [0, 250]) / 1000,
        pl.Series("t_ms", [1000, 1250]),
        pl.Series("t_us", [1_000_000, 1_250_000]),
        pl.Series("t", ["2024-02-29T23:59:59.9Z", "2024-03-01 00:00:00.15"]),
        pl.Series("t", [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)]),
        pl.Series("t", ["2024-07-01T00:00:00", "2024-07-01T00:00:00.25"]).str.to_datetime(time_zone="Asia/Tokyo"),
        pl.Series("t", [datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 250_000)], dtype=pl.Datetime("ns")),
    ],
)
def test_times_as_numbers_dates_or_text(tmp_path: Path, times: pl.Series) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame([times, pl.Series("i", [1, 2]), pl.Series("o", [3.0, 4.0])]).write_parquet(path)
    trace = open_trace(path, columns=f"arrival={times.name},input=i,output=o").read()
    assert columns(trace) == [[0, 0.25], [1, 2], [3, 4]]


def test_nested_fields_are_named_with_dots_and_unix_milliseconds_told_by_their_size(tmp_path: Path) -> None:
    lines = '{"at": 5, "n": {"p": {"q": 8}, "o": 1}}\n{"at": 6, "n": {"p": {"q": 9}, "o": 2}}\n'
    nested = opened(tmp_path, lines, columns="arrival=at,input=n.p.q,output=n.o")
    assert columns(nested.read()) == [[0, 1], [8, 9], [1, 2]]
    table = "ts,i,o\n1700000000000,10,5\n1700000002500,12,5\n"
    assert opened(tmp_path, table, columns="arrival=ts,input=i,output=o").read().arrival_s.tolist() == [0.0, 2.5]


def test_priority_is_kept_and_none_is_0(tmp_path: Path) -> None:
    file = opened(tmp_path, "t,i,o,p\n0,1,1,-5\n1,1,1,\n2,1,1,high\n", columns="arrival=t,input=i,output=o,priority=p")
    trace = file.read()
    assert there(trace.priority).tolist() == [-5, 0]
    assert file.problems.count == 1


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_clients_hang_up_when_the_log_says_so(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log"
    table = pl.DataFrame({"t": [2.0, 1.0, 0.0], "i": [9, 9, 9], "o": [1, 1, 1], "waits_ms": [1500.0, None, 0.25]})
    {"csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet}[kind](path)  # type: ignore[operator]
    file = open_trace(path, columns="arrival=t,input=i,output=o,patience=waits_ms")
    trace = file.read()
    assert there(trace.patience_s).tolist() == [0.00025, math.inf, 1.5], "in order of arrival; none waits for good"
    (batch,) = file.batches()
    assert batch["patience"].to_list() == [1.5, math.inf, 0.00025]


def test_no_patience_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    given = ("2.5", "", '" "', "inf", "0", "-3", "soon", "nan", "2024-01-01")
    path.write_text("t,i,o,p\n" + "".join(f"{place},1,1,{patience}\n" for place, patience in enumerate(given)))
    file = open_trace(path, columns="arrival=t,input=i,output=o,patience=p")
    trace = file.read()
    assert there(trace.patience_s).tolist() == [2.5, math.inf, math.inf, math.inf]
    assert file.problems.count == 5
    numbers = tmp_path / "log.parquet"
    waits = [1.0, math.nan, 0.0, -1.0]
    pl.DataFrame({"t": [0, 1, 2, 3], "i": [1] * 4, "o": [1] * 4, "p": waits}).write_parquet(numbers)
    file = open_trace(numbers, columns="arrival=t,input=i,output=o,patience=p")
    assert (len(file.read()), file.problems.count) == (1, 3)
    with pytest.raises(BadInput):
        make_trace([0, 1], [1, 1], [1, 1], patience_s=[1.0, 0.0])


def test_patience_is_saved_and_read_back(tmp_path: Path) -> None:
    patience_s = [0.125, math.inf, 3600.0]
    for given, name in ((patience_s, "some"), ([math.inf] * 3, "endless"), (None, "none")):
        path = tmp_path / f"{name}.parquet"
        save_trace(make_trace([0, 1, 2], [9, 9, 9], [1, 1, 1], patience_s=given), path)
        file = open_trace(path)
        again = file.read()
        assert file.problems.count == 0
        assert (None if again.patience_s is None else again.patience_s.tolist()) == given
    assert pl.read_parquet(tmp_path / "some.parquet")["patience_s"].to_list() == [0.125, None, 3600.0]


def test_requests_with_the_same_key_share_up_to_the_shortest_prompt(tmp_path: Path) -> None:
    keys = "t,i,o,key\n0,100,1,a\n1,50,1,a\n2,40,1,b\n3,64,1,a\n4,33,1,b\n5,99,1,only\n6,99,1,\n"
    file = opened(tmp_path, keys, columns="arrival=t,input=i,output=o,prefix=key")
    prefix = there(file.read().prefix)
    assert prefix.block_tokens == file.block_tokens == 16
    shared = [prefix.blocks_of(request).tolist() for request in range(7)]
    # 50 tokens are 3 whole blocks of 16, 33 are 2; a key that occurs once shares nothing.
    assert [len(blocks) for blocks in shared] == [3, 3, 2, 3, 2, 0, 0]
    assert shared[0] == shared[1] == shared[3]
    assert shared[2] == shared[4]
    assert not set(shared[0]) & set(shared[2])
    assert "upper bound" in file.problems.notes[0]
    # Long shared prompts are cut into larger blocks.
    long = "t,i,o,key\n" + "".join(f"{second},20000,1,a\n" for second in range(10))
    prefix = there(opened(tmp_path, long, columns="arrival=t,input=i,output=o,prefix=key").read().prefix)
    assert (prefix.block_tokens, len(prefix.blocks_of(3))) == (1024, 20000 // 1024)


@pytest.mark.parametrize("block_tokens", [16, 512])
def test_the_size_of_listed_blocks_is_found_from_their_number(tmp_path: Path, block_tokens: int) -> None:
    path = tmp_path / "log.parquet"
    prompts = [3000, 5000, 7777]
    lists = [list(range(-(-prompt // block_tokens))) for prompt in prompts]
    pl.DataFrame({"t": [0, 1, 2], "i": prompts, "o": [1, 1, 1], "ids": lists}).write_parquet(path)
    prefix = there(open_trace(path, columns="arrival=t,input=i,output=o,prefix=ids").read().prefix)
    assert prefix.block_tokens == block_tokens
    assert prefix.blocks_of(0).tolist() == lists[0]


def test_a_size_of_block_that_cannot_be_told_must_be_said(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pl.DataFrame({"t": [0, 1], "i": [3000, 5000], "o": [1, 1], "ids": [["x", "y"], ["x"]]}).write_parquet(path)
    with pytest.raises(BadInput, match="cannot tell how many tokens") as caught:
        open_trace(path, columns="arrival=t,input=i,output=o,prefix=ids")
    assert "block=" in str(caught.value.fix)
    prefix = there(open_trace(path, columns="arrival=t,input=i,output=o,prefix=ids,block=128").read().prefix)
    assert (prefix.block_tokens, prefix.distinct) == (128, 2)
    assert prefix.blocks_of(0)[0] == prefix.blocks_of(1)[0]


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("arrival=time,input=in,output=out", "Found: "),
        ("arrival=t,input=inn,output=out", "Did you mean in"),
        ("arrival=t,input=in", "output="),
        ("arrival=t,input=in,outptu=out", "output"),
        ("arrival,input=in,output=out", "arrival=TIME"),
        ("", "arrival=TIME"),
        ("arrival=t,input=in,output=out,block=0", "None"),
        ("arrival=t,input=in,output=out,block=000000001999999999999", "None"),
    ],
)
def test_a_wrong_option_says_what_there_is(tmp_path: Path, option: str, fix: str) -> None:
    TABLE.write_csv(tmp_path / "table")
    caught = refused(open_trace, tmp_path / "table", columns=option)
    assert caught.field == "columns"
    assert fix in str(caught.fix)


@pytest.mark.parametrize(
    "names",
    [
        ("timestamp", "prompt_tokens", "completion_tokens"),
        ("created_at", "input_tokens", "output_tokens"),
        ("Start Time", "Prompt Tokens", "Response Tokens"),
        ("requestTime", "promptTokens", "generatedTokens"),
        ("ts", "n_prompt_tokens", "num_generated_tokens"),
        ("time", "prompt_len", "completion-length"),
        ("request_timestamp", "prompt_token_count", "candidates_token_count"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_usual_names_need_no_telling_and_are_said(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    path = tmp_path / "log"
    told = dict(zip(names, ([100.0, 100.5], [7, 8], [1, 2]), strict=True))
    table = pl.DataFrame({"request_id": ["x", "y"], **told, "latency_ms": [1, 2]})
    {"csv": table.write_csv, "jsonl": table.write_ndjson, "parquet": table.write_parquet}[kind](path)  # type: ignore[operator]
    file = open_trace(path)
    assert columns(file.read()) == [[0, 0.5], [7, 8], [1, 2]]
    if file.format != "OpenAI-style usage log":
        (note,) = file.problems.notes
        assert all(name in note for name in names)


def test_usual_names_keep_their_unit_and_the_tenant(tmp_path: Path) -> None:
    trace = opened(tmp_path, "arrival_ms,input_length,output_length,customer_id\n1000,7,1,b\n1500,8,2,a\n").read()
    assert columns(trace) == [[0, 0.5], [7, 8], [1, 2]]
    assert trace.tenants == ("a", "b")


@pytest.mark.parametrize(
    "header",
    [
        "timestamp,created_at,prompt_tokens,completion_tokens",
        "ts,prompt_tokens,input_tokens,completion_tokens",
        "ts,prompt_tokens,output_tokens,response_tokens",
    ],
)
def test_two_columns_that_could_be_one_field_are_asked_about(tmp_path: Path, header: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{header}\n1,2,3,4\n")
    assert refused(open_trace, path).field == "columns"


def test_two_columns_that_could_be_the_tenant_are_left_to_the_user(tmp_path: Path) -> None:
    file = opened(tmp_path, "ts,prompt_tokens,completion_tokens,team,user\n1,2,3,a,b\n")
    assert file.read().tenant is None
    assert "team or user" in file.problems.notes[0]


# --- the first rows of somebody's own table, and a guess at which column is what --------------------------------------


CSV = "when,n_in,n_out\n" + "".join(f"{n},{10 * n},5\n" for n in range(9))
GUESSED = {"arrival": "when", "input": "n_in", "output": "n_out"}


@pytest.mark.parametrize("packed", [False, True])
def test_a_table_shows_five_rows_and_a_guess(tmp_path: Path, packed: bool) -> None:
    found = preview(kept(tmp_path, gzip.compress(CSV.encode()) if packed else CSV, "log.csv"))
    assert found
    assert found.columns == ("when", "n_in", "n_out")
    assert found.rows == tuple((str(n), str(10 * n), "5") for n in range(5))
    assert found.guesses == GUESSED


def test_parquet_and_json_lines_and_a_list_show_the_same(tmp_path: Path) -> None:
    rows = [{"when": n, "n_in": 10 * n, "n_out": 5} for n in range(9)]
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    files = [kept(tmp_path, lines, "log.jsonl"), kept(tmp_path, json.dumps(rows, indent=1), "log.json")]
    first = preview(tmp_path / "log.parquet")
    assert first
    assert first.rows[4] == ("4", "40", "5")
    assert [preview(file) for file in files] == [first, first]


def test_nested_keys_are_columns_that_can_be_told(tmp_path: Path) -> None:
    rows = [{"call": {"when": n, "size": {"prompt_tokens": n + 7}}, "out": 5, "text": "x" * 99} for n in range(3)]
    path = kept(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    found = preview(path)
    assert found
    assert found.guesses == {"arrival": "call.when", "input": "call.size.prompt_tokens", "output": "out"}
    assert max(len(cell) for row in found.rows for cell in row) == 40
    told = ",".join(f"{field}={column}" for field, column in found.guesses.items())
    assert list(open_trace(path, columns=told).read().input_tokens) == [7, 8, 9]


def test_a_guess_of_a_header_with_spaces_can_be_read(tmp_path: Path) -> None:
    path = kept(tmp_path, "when, prompt, answer\n0,10,5\n1,20,6\n", "log.csv")
    found = preview(path)
    assert found
    assert found.guesses == {"arrival": "when", "input": " prompt", "output": " answer"}
    told = ",".join(f"{field}={column}" for field, column in found.guesses.items())
    assert list(open_trace(path, columns=told).read().output_tokens) == [5, 6]


def test_text_is_not_taken_for_its_tokens_and_ids_alone_not_for_sessions(tmp_path: Path) -> None:
    found = preview(
        kept(tmp_path, "ts,prompt,prompt_n,answer_n,id,user\n0,hello,10,5,a,u\n1,you,20,6,b,u\n", "log.csv")
    )
    assert there(found).guesses == {"arrival": "ts", "input": "prompt_n", "output": "answer_n", "tenant": "user"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("holiday.txt", "not a benchmark\n"),
        ("two.csv", "a,b\n1,2\n"),
        ("one.json", '{"a": 1, "b": 2, "c": 3}'),
        ("list.json", "[[1, 2, 3]]"),
        ("zeros.bin", b"\x00" * 999),
        ("not.parquet", b"PAR1" + b"\xff" * 200 + b"PAR1"),
        ("empty.csv", b""),
        ("commas.csv", '"a,b","c,d","e,f"\n1,2,3\n'),
    ],
)
def test_what_is_no_table_of_requests_shows_nothing(tmp_path: Path, name: str, content: str | bytes) -> None:
    assert preview(kept(tmp_path, content, name)) is None


def test_a_very_wide_table_shows_only_so_many_columns(tmp_path: Path) -> None:
    names = ",".join(f"c{n}" for n in range(2 * MOST_COLUMNS))
    found = preview(kept(tmp_path, f"{names}\n{names}\n", "wide.csv"))
    assert found
    assert len(found.columns) == len(found.rows[0]) == MOST_COLUMNS
