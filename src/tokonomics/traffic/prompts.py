"""The texts of prompts, from a file of the user's: what semantic caching and templates look at.

One prompt a line (.txt), or a column of a table (.csv, .parquet, .jsonl, each also gzipped): ``prompt``, ``text``,
``input``, ``question`` or ``messages`` (then all their contents), or the column that is named. A column ``arrival_s``
or ``timestamp`` (seconds) gives times. Pairs of texts with a label say which prompts mean the same.
"""

import gzip
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.traffic.sources import LARGEST_DOCUMENT, check_rows, is_packed, most_unpacked, named, readable
from tokonomics.traffic.trace import Floats

if TYPE_CHECKING:
    import polars as pl

TEXT_COLUMNS = ("prompt", "text", "input", "question", "messages")
TIME_COLUMNS = ("arrival_s", "timestamp")
CHARACTERS_PER_TOKEN = 4.0
"""English text, roughly (OpenAI, "What are tokens and how to count them?"), where a file has no counts."""
MOST_PROMPTS = 1_000_000


@dataclass(frozen=True)
class Prompts:
    """Texts in order of arrival."""

    texts: tuple[str, ...]
    arrival_s: Floats | None
    source: str

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Pairs:
    """Two texts, and whether an answer to one serves the other."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    same: NDArray[np.bool_]
    source: str


def read_prompts(path: Path, column: str | None = None) -> Prompts:
    """The prompts of a file, sorted by time where it has any; at most ``MOST_PROMPTS``, the first ones."""
    table = _table(path)
    names = list(table.columns)
    chosen = column or next((name for name in TEXT_COLUMNS if name in names), None)
    if chosen is None or chosen not in names:
        best = shorten([*nearest(column or "prompt", names, 1), names[0]][0])
        listed = shorten(", ".join(names[:12]), 300)
        what = f"no column '{shorten(column)}'" if column else "no column of prompts"
        fix = f"Name the column: {option('prompt_column', best)}. Found: {listed}."
        raise BadInput(what, where=named(path), fix=fix)
    when = next((name for name in TIME_COLUMNS if name in names and table[name].dtype.is_numeric()), None)
    texts = [_text(value) for value in table[chosen].to_list()]
    times = table[when].to_numpy().astype(np.float64) if when else None
    kept = [place for place, text in enumerate(texts) if text]
    if times is not None:
        if not np.isfinite(times[kept]).all():
            fix = "Fill it in for every prompt, or leave the column out."
            raise BadInput(f"column {when} has a row without a time", where=named(path), fix=fix)
        kept.sort(key=lambda place: times[place])
    kept = kept[:MOST_PROMPTS]
    if not kept:
        raise BadInput(f"column {shorten(chosen)} holds no text", where=named(path))
    arrival = None if times is None else times[kept] - times[kept].min()
    return Prompts(tuple(texts[place] for place in kept), arrival, path.name)


def read_pairs(path: Path, limit: int | None = None) -> Pairs:
    """Columns text_a, text_b, and label: 1 where one answer serves both."""
    table = _table(path)
    missing = [name for name in ("text_a", "text_b", "label") if name not in table.columns]
    if missing:
        fix = "Columns: text_a, text_b, label (1 same, 0 not)."
        raise BadInput(f"has no column {missing[0]}", where=named(path), fix=fix)
    table = table.drop_nulls(["text_a", "text_b", "label"])
    if limit is not None:
        table = table.head(limit)
    labels = [str(label).lower() for label in table["label"]]
    if not labels or not {*labels} <= {"0", "1", "0.0", "1.0", "true", "false"}:
        raise BadInput("a label is neither 0 nor 1", where=named(path))
    same = np.array([label in {"1", "1.0", "true"} for label in labels])
    return Pairs(tuple(map(str, table["text_a"])), tuple(map(str, table["text_b"])), same, path.name)


def tokens_of(text: str) -> int:
    """Estimated from its length."""
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))


def _table(path: Path) -> "pl.DataFrame":
    import polars as pl

    endings = [suffix.lower() for suffix in path.suffixes]
    zipped = endings[-1:] == [".gz"]
    kind = endings[-2:-1] if zipped else endings[-1:]
    if not path.exists():
        raise BadInput("there is no such file", where=named(path))
    with readable(path):
        data = _content(path)
        if kind == [".parquet"]:
            check_rows(pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item(), path)
            return pl.read_parquet(data)
        check_rows(data.count(b"\n"), path, "too many")
        if kind in ([".jsonl"], [".ndjson"]):
            return pl.read_ndjson(data, infer_schema_length=None)
        if kind == [".csv"]:
            return pl.read_csv(data, infer_schema_length=10_000)
        if kind == [".txt"]:
            lines = data.decode("utf-8", errors="replace").splitlines()
            return pl.DataFrame({"prompt": [line.strip() for line in lines]}, schema={"prompt": pl.String})
    raise BadInput("is no file of prompts", where=named(path), fix="Supported: .txt, .jsonl, .csv, .parquet; also .gz.")


def _content(path: Path) -> bytes:
    """The whole file, unpacked; a small one may hold more than any memory."""
    if not is_packed(path):
        return path.read_bytes()
    most = min(LARGEST_DOCUMENT, most_unpacked(path.stat().st_size))
    try:
        with gzip.open(path) as unpacked:
            data = unpacked.read(most + 1)
    except zlib.error as error:
        raise OSError(str(error)) from None
    if len(data) > most:
        raise BadInput(f"unpacks to more than {most / 1e6:,.0f} MB", where=named(path), fix="Give fewer prompts.")
    return data


def _text(value: Any) -> str:
    """A text, or the contents of chat messages one after the other."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return "\n".join(_text(message.get("content")) for message in value).strip()
    return json.dumps(value, ensure_ascii=False)
