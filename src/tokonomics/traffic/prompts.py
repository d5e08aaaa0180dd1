"""Read the texts of prompts from a user's file, and embed them as vectors, for semantic caching and templates.

One prompt a line (.txt), or a column of a table (.csv, .parquet, .jsonl, each also gzipped): ``prompt``, ``text``,
``input``, ``question`` or ``messages`` (then all their contents), or the column that is named. A column ``arrival_s``
or ``timestamp`` (seconds) gives times. Pairs of texts with a label say which prompts mean the same.

The cosine of two vectors says how alike their texts are. ``https://…/v1/embeddings`` is asked as OpenAI's API is (the
key comes from the environment, ``TOKONOMICS_EMBEDDINGS_KEY``, and is sent nowhere else); a folder holds a model2vec
model (extra ``[semantic]``) or a sentence-transformers one. ``hashed`` counts words and pairs of words: it sees
spelling, not meaning, and says so wherever its figures are shown.
"""

import gzip
import io
import json
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

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
"""Roughly right for English (OpenAI, "What are tokens and how to count them?"); used if a file has no counts."""
MOST_PROMPTS = 1_000_000


@dataclass(frozen=True)
class Prompts:
    """Texts in order of arrival."""

    texts: tuple[str, ...]
    arrival_s: Floats | None
    source: str

    def __len__(self) -> int:
        return len(self.texts)


class Pairs(NamedTuple):
    """Two texts, and whether an answer to one serves the other."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    same: NDArray[np.bool_]
    source: str


def read_prompts(path: Path, column: str | None = None) -> Prompts:
    """Read the prompts of a file, sorted by time if it has times; only the first ``MOST_PROMPTS``."""
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
    """Read the columns text_a, text_b, and label: 1 where one answer serves both."""
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
    """Estimate the tokens of a text from its length."""
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
            check_rows(pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item(), path, is_total=True)
            return pl.read_parquet(data)
        check_rows(data.count(b"\n"), path)
        if kind in ([".jsonl"], [".ndjson"]):
            return pl.read_ndjson(data, infer_schema_length=None)
        if kind == [".csv"]:
            return pl.read_csv(data, infer_schema_length=10_000)
        if kind == [".txt"]:
            lines = data.decode("utf-8", errors="replace").splitlines()
            return pl.DataFrame({"prompt": [line.strip() for line in lines]}, schema={"prompt": pl.String})
    raise BadInput("is no file of prompts", where=named(path), fix="Supported: .txt, .jsonl, .csv, .parquet; also .gz.")


def _content(path: Path) -> bytes:
    """Return the whole file, unpacked; refuse a small file that unpacks into more than memory should hold."""
    if not is_packed(path):
        return path.read_bytes()
    most = min(LARGEST_DOCUMENT, most_unpacked(path.stat().st_size))
    with gzip.open(path) as unpacked:
        data = unpacked.read(most + 1)
    if len(data) > most:
        raise BadInput(f"unpacks to more than {most / 1e6:,.0f} MB", where=named(path), fix="Give fewer prompts.")
    return data


def _text(value: Any) -> str:
    """Return a text, or the contents of chat messages joined."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list) and all(isinstance(message, dict) for message in value):
        return "\n".join(_text(message.get("content")) for message in value).strip()
    return json.dumps(value, ensure_ascii=False)


KEY = "TOKONOMICS_EMBEDDINGS_KEY"
HASHED = "hashed"
_HASHED_WIDTH = 512
_BATCH = 256
_TIMEOUT_S = 60.0

Vectors = NDArray[np.float32]


class Embedded(NamedTuple):
    """One vector of length 1 for each text."""

    vectors: Vectors
    how: str
    means: bool  # made by a model that was trained on meaning; False for hashing
    seconds_per_text: float  # measured on this machine, or over the network
    here: bool = True  # computed on this machine; False: by an endpoint


def embed(texts: Sequence[str], with_what: str, model: str | None = None) -> Embedded:
    """Return the vectors of some texts; equal texts are embedded once."""
    place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(place)
    remote = with_what.startswith(("http://", "https://"))
    began = time.perf_counter()
    if with_what == HASHED:
        vectors, how = _hashed(distinct), "hashed words: spelling, not meaning"
    elif remote:
        vectors, how = _asked(distinct, with_what, model), f"{model} at {urlsplit(with_what).hostname}"
    else:
        vectors, how = _local(distinct, Path(with_what)), f"model {Path(with_what).name}"
    took_s = (time.perf_counter() - began) / max(1, len(distinct))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return Embedded(vectors[[place[text] for text in texts]], how, with_what != HASHED, took_s, not remote)


def _hashed(texts: Sequence[str]) -> NDArray[np.float32]:
    counts = np.zeros((len(texts), _HASHED_WIDTH), np.float32)
    for row, text in enumerate(texts):
        words = text.lower().split()
        for gram in (*words, *map(" ".join, pairwise(words))):
            code = zlib.crc32(gram.encode())
            counts[row, code % _HASHED_WIDTH] += 1.0 if code & 0x80000000 else -1.0
    return counts


def _local(texts: Sequence[str], folder: Path) -> NDArray[np.float32]:
    if not folder.is_dir():
        fix = f"Give an embeddings endpoint, a model2vec or sentence-transformers folder, or {HASHED}."
        raise BadInput(f"'{shorten(str(folder))}' is neither a URL nor a folder", field="semantic", fix=fix)
    library, package = "model2vec", "'.[semantic]' (in a checkout)"
    if (folder / "modules.json").exists() or (folder / "config_sentence_transformers.json").exists():
        library, package = "sentence_transformers", "sentence-transformers"
    try:
        if library == "model2vec":
            from model2vec import StaticModel

            return np.asarray(StaticModel.from_pretrained(str(folder)).encode(list(texts)), np.float32)
        from sentence_transformers import SentenceTransformer

        local: Any = SentenceTransformer(str(folder), device="cpu")
        return np.asarray(local.encode(list(texts), batch_size=_BATCH, show_progress_bar=False), np.float32)
    except ImportError:
        raise BadInput(f"{library} is not installed", field="semantic", fix=f"pip install {package}") from None
    except (OSError, ValueError, KeyError) as error:
        where = option("semantic", shorten(folder.name))
        raise BadInput(f"cannot be loaded: {shorten(str(error), 160)}", where=where) from None


def _asked(texts: Sequence[str], url: str, model: str | None) -> NDArray[np.float32]:
    if model is None:
        raise BadInput("is missing: which model embeds?", field="embedding_model")
    parts: list[NDArray[np.float32]] = []
    for start in range(0, len(texts), _BATCH):
        body = json.dumps({"model": model, "input": list(texts[start : start + _BATCH])}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        if key := os.environ.get(KEY):
            request.add_unredirected_header("Authorization", f"Bearer {key}")  # another host must not see it
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                data = json.load(reply)["data"]
            rows = [item["embedding"] for item in sorted(data, key=lambda item: item["index"])]
            with np.errstate(over="ignore"):
                parts.append(np.array(rows, np.float32))
        except urllib.error.HTTPError as error:
            hint = f"Set {KEY}." if error.code in (401, 403) else None
            raise BadInput(f"answered {error.code} {error.reason}", where=shorten(url), fix=hint) from None
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"gave no embeddings: {shorten(str(error), 120)}", where=shorten(url)) from None
    is_regular = all(part.ndim == 2 and part.size for part in parts) and len({part.shape[1] for part in parts}) == 1
    vectors = np.concatenate(parts) if is_regular else np.zeros((0, 0), np.float32)
    if len(vectors) != len(texts) or not np.isfinite(vectors).all():
        raise BadInput("gave no embeddings: not one list of finite numbers for each text", where=shorten(url))
    return vectors
