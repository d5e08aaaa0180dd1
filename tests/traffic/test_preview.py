"""The first rows of somebody's own table, and a guess at which column is what."""

import gzip
import json
from pathlib import Path

import polars as pl
import pytest
from tests.there import there
from tests.traffic.written_logs import kept

from tokonomics.traffic.readers import MOST_COLUMNS, open_trace, preview

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
