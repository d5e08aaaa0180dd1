"""Tables of millions of rows: asked once for what many rows say alike, with the answers of going through each."""

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest

from tokonomics.errors import BadInput
from tokonomics.traffic import sources, tally
from tokonomics.traffic.attribution import Attribution
from tokonomics.traffic.exports import Export
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.summary import summarize
from tokonomics.traffic.tally import TenantSums

ROWS = 600
TEAMS = ["search", "chat", "", "ads"]


def labelled(**more: Iterable[object]) -> pl.DataFrame:
    """A log whose rows say their team in a column, in metadata or in a tag, or not at all."""
    columns = {
        "timestamp": [f"2026-11-01T00:{place // 60:02}:{place % 60:02}Z" for place in range(ROWS)],
        "prompt_tokens": [100 + place % 7 for place in range(ROWS)],
        "completion_tokens": [10 + place % 5 for place in range(ROWS)],
        "team_id": [TEAMS[place % 4] or None for place in range(ROWS)],
        "metadata": [json.dumps({"team": "late"} if place % 8 == 2 else {}) for place in range(ROWS)],
        "tags": ["feature:summaries" if place % 3 else "" for place in range(ROWS)],
    }
    return pl.DataFrame(columns | more)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_by_label_a_table_is_summed_up_as_row_by_row(ending: str, tmp_path: Path) -> None:
    log = tmp_path / f"log.{ending}"
    labelled().write_csv(log) if ending == "csv" else labelled().write_parquet(log)
    with patch.object(sources, "BATCH_ROWS", 100):
        found = summarize(open_trace(log, by=("team", "feature")), by=("team", "feature"))
    team, feature = ({value.name: value.requests for value in by.values} for by in found.by)
    assert team == {"search": 150, "chat": 150, "ads": 150, "late": 75, "(none)": 75}
    assert feature == {"summaries": 400, "(none)": 200}


def test_each_tenant_is_asked_for_once(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    labelled().drop("metadata", "tags").write_csv(log)
    with patch.object(Attribution, "tenant", autospec=True, side_effect=Attribution.tenant) as asked:
        summarize(open_trace(log, by=("team",)), by=("team",))
    assert asked.call_count == len(TEAMS)


def test_a_row_that_cannot_be_used_is_told_by_its_line(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    spoilt = labelled().with_columns(pl.col("prompt_tokens").cast(pl.String))
    spoilt[417, "prompt_tokens"] = "many"
    spoilt.write_csv(log)
    with pytest.raises(BadInput) as refused:
        open_trace(log, by=("team",), strict=True).read()
    assert refused.value.where == f"{log}:419"
    with pytest.raises(BadInput) as refused:  # where no column tells the label, the columns are named
        summarize(open_trace(log, by=("floor",)), by=("floor",))
    assert all(name in str(refused.value.fix) for name in ("team_id", "prompt_tokens"))


def test_tenants_are_added_up_over_batches_whatever_is_merged_when() -> None:
    counted = TenantSums()
    with patch.object(tally, "MERGED_TENANTS", 3):
        for batch in range(10):
            names = [f"tenant {(batch + place) % 5}" for place in range(4)]
            counted.add(pl.DataFrame({"tenant": names, "input": [1, 2, 3, 4], "output": [batch] * 4, "usd": [0.5] * 4}))
    assert len(counted) == 5
    found = counted.ranked()
    assert found["requests"].sum() == 40
    # In batch b the tenant t stands at place (t − b) mod 5, where that is below 4.
    placed = [(batch, (0 - batch) % 5) for batch in range(10) if (0 - batch) % 5 < 4]
    tokens = sum(place + 1 for _, place in placed), sum(batch for batch, _ in placed)
    assert found.row(by_predicate=pl.col("tenant") == "tenant 0") == ("tenant 0", 8, *tokens, 4.0)
    free = TenantSums()  # of a log without costs
    for _ in range(3):
        free.add(pl.DataFrame({"tenant": ["a"], "input": [1], "output": [2]}))
    assert free.ranked().rows() == [("a", 3, 3, 6, None)]
    assert TenantSums().ranked().is_empty()


@pytest.mark.parametrize("seed", range(6))
def test_a_table_in_blocks_of_lines_is_read_as_in_one(seed: int, tmp_path: Path) -> None:
    """Whatever stands at the edge of a block: empty and ragged lines, bytes that are no text, other ends of lines."""
    chance = random.Random(seed)
    lines = [b"arrival_s,input_tokens,output_tokens,tenant"]
    for place in range(60):
        odd = [b"", b"1,2", b"7,5,6,x,y,z", b"\xff\xfe,3,4", b"   ", b",,,"]
        lines.append(chance.choice([*odd, *[b"%d.5,%d,%d,t%d" % (place, place + 1, place, place % 3)] * 20]))
    log = tmp_path / "log.csv"
    log.write_bytes(chance.choice([b"\n", b"\r\n"]).join(lines) + chance.choice([b"", b"\n"]))

    def read() -> tuple[list[tuple[object, ...]], int, list[str]]:
        file = open_trace(log)
        rows = [row for batch in file.batches() for row in batch.rows()]
        return rows, file.problems.count, file.problems.first

    with patch.object(sources, "BLOCK_BYTES", chance.choice([16, 50, 200])):
        in_blocks = read()
    with patch.object(sources, "_has_a_row_a_line", return_value=False):
        assert in_blocks == read()


def test_a_quoted_table_is_not_cut_between_lines(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text('arrival_s,input_tokens,output_tokens,tenant\n0,5,6,"a\nb"\n1,7,8,c\n', encoding="utf-8")
    with patch.object(sources, "BLOCK_BYTES", 8):
        assert open_trace(log).read().tenants == ("a\nb", "c")


@pytest.mark.parametrize("by", [(), ("team",), ("team", "user")])
def test_an_export_of_litellm_is_read_in_batches_as_row_by_row(by: tuple[str, ...], tmp_path: Path) -> None:
    chance = random.Random(2)
    metadata = ["", "{}", "{broken", '["a"]', '{"tenant": 7}', '{"tenant": "acme"}', '{"user_api_key_team_id": "k"}']
    cells: dict[str, list[object]] = {
        "prompt_tokens": [100, 12.0, 0, "", "many"],
        "completion_tokens": [10, 20, ""],
        "spend": [0.5, "", "$2", "x"],
        "team_id": ["", "t1", "t2"],
        "user": ["", "u1"],
        "metadata": [*metadata],
        "session_id": ["", "s1", "s2"],
        "cache_hit": ["", "True", "false"],
        "status": ["", "success", "failure"],
        "messages": ['said, "so"\nand so'],
        "request_tags": ["", '["user:tagged"]'],
    }
    table = {name: [str(chance.choice(known)) for _ in range(ROWS)] for name, known in cells.items()}
    times = {name: labelled()["timestamp"] for name in ("startTime", "endTime")}
    log = tmp_path / "spend.csv"
    pl.DataFrame(times | table).write_csv(log)

    def read() -> tuple[dict[str, list[object]], int, list[str], list[str]]:
        file = open_trace(log, by=by)
        rows = pl.concat(file.batches()).to_dict(as_series=False)
        return rows, file.problems.count, file.problems.first, sorted(file.problems.notes)

    with patch.object(sources, "BATCH_ROWS", 100):
        in_batches = read()
    with patch.object(Export, "layout_of_table", return_value=None):
        assert in_batches == read()
    assert in_batches[1] > 0
    assert any("answered from its own cache" in note for note in in_batches[3])


SPOIL = """
import random, sys
from pathlib import Path
from tokonomics.errors import TokonomicsError
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.summary import summarize

whole, spoilt, chance = Path(sys.argv[1]).read_bytes(), Path(sys.argv[1]).with_name("spoilt.parquet"), random.Random(5)
anywhere = [(chance.randrange(4, len(whole) - 8), chance.randrange(256)) for _ in range(40)]
header = [(place, value) for place in (11, 27) for value in (3, 11, 46, 48, 117, 139)]  # of the first page
for place, value in [*anywhere, *header]:
    content = bytearray(whole)
    content[place] = value
    spoilt.write_bytes(content)
    try:
        found = summarize(open_trace(spoilt))
        print(found.requests + found.bad_rows)
    except TokonomicsError as error:
        print(str(error).splitlines()[0])
"""


def test_a_damaged_parquet_file_is_read_whole_or_refused_in_one_message(tmp_path: Path) -> None:
    """Rust panics over many of these; some of its readers then just end early."""
    rows = 40
    log = tmp_path / "log.parquet"
    columns = {"arrival_s": [place / 2 for place in range(rows)], "input_tokens": range(1, rows + 1)}
    table = pl.DataFrame(columns | {"output_tokens": [5] * rows})
    table.write_parquet(log, compression="uncompressed", statistics=False)
    done = subprocess.run(
        [sys.executable, "-c", SPOIL, str(log)], capture_output=True, encoding="utf-8", check=True, timeout=600
    )
    said = done.stdout.splitlines()
    assert done.stderr == ""
    assert len(said) == 52
    refused = [line for line in said if not line.isdigit()]
    assert {line for line in said if line.isdigit()} == {str(rows)}
    assert any("it is damaged after row 0 of 40" in line for line in refused)
    assert not any("nothing below its header" in line for line in refused)


def test_what_is_written_on_standard_error_while_a_file_is_read_is_shown_where_it_could_be_read() -> None:
    code = (
        "import os, sys\n"
        "from tokonomics.traffic.cleaning import without_panics\n"
        "with without_panics():\n"
        "    with without_panics():\n"
        "        os.write(2, b'by a library\\n')\n"
        "    print('by us', file=sys.stderr)\n"
        "try:\n"
        "    with without_panics():\n"
        "        os.write(2, b'panicked\\n')\n"
        "        raise ValueError\n"
        "except ValueError:\n"
        "    os.write(2, b'after\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, timeout=600)
    assert done.stderr == "by us\nby a library\nafter\n"


def test_a_log_is_read_where_there_is_no_room_for_temporary_files(tmp_path: Path) -> None:
    """As in a container whose disk is read-only."""
    pl.DataFrame({"arrival_s": [0.0], "input_tokens": [7], "output_tokens": [3]}).write_parquet(
        tmp_path / "log.parquet"
    )
    script = (
        "import sys, tempfile\n"
        "def full():\n"
        "    raise FileNotFoundError(2, 'No usable temporary directory found')\n"
        "tempfile.TemporaryFile = full\n"
        "from tokonomics.traffic.sources import TableFile\n"
        "from pathlib import Path\n"
        "print([row for _, row in TableFile(Path(sys.argv[1])).rows()])\n"
    )
    run = [sys.executable, "-c", script, str(tmp_path / "log.parquet")]
    done = subprocess.run(run, capture_output=True, encoding="utf-8", timeout=600)
    assert done.stdout.startswith("[{'arrival_s': 0.0, 'input_tokens': 7"), done.stderr
