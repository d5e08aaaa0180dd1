"""Texts as vectors whose cosine says how alike they are: from an endpoint, a local model, or, failing both, hashing.

``https://…/v1/embeddings`` is asked as OpenAI's API is (the key comes from the environment,
``TOKONOMICS_EMBEDDINGS_KEY``, and is sent nowhere else); a folder holds a model2vec model (extra ``[semantic]``) or a
sentence-transformers one. ``hashed`` counts words and pairs of words: it sees spelling, not meaning, and says so
wherever its figures are shown.
"""

import json
import os
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option, shorten

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
    seconds_per_text: float  # as it took on this machine, or over the network
    here: bool = True  # by this machine's processors; False: by an endpoint


def embed(texts: Sequence[str], with_what: str, model: str | None = None) -> Embedded:
    """The vectors of some texts; equal texts are embedded once."""
    distinct = list(dict.fromkeys(texts))
    began = time.perf_counter()
    if with_what == HASHED:
        vectors, how = _hashed(distinct), "hashed words: spelling, not meaning"
    elif with_what.startswith(("http://", "https://")):
        vectors, how = _asked(distinct, with_what, model), f"{model} at {urlsplit(with_what).hostname}"
    else:
        vectors, how = _local(distinct, Path(with_what)), f"model {Path(with_what).name}"
    took_s = (time.perf_counter() - began) / max(1, len(distinct))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    place = {text: row for row, text in enumerate(distinct)}
    here = not with_what.startswith(("http://", "https://"))
    return Embedded(vectors[[place[text] for text in texts]], how, with_what != HASHED, took_s, here)


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
        raise BadInput(
            f"'{shorten(str(folder))}' is neither a URL nor a folder with a model", field="semantic", fix=fix
        )
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
    if any(part.ndim != 2 or not part.size for part in parts) or len({part.shape[1] for part in parts}) != 1:
        raise BadInput("gave no embeddings: not as many numbers for every text", where=shorten(url))
    vectors = np.concatenate(parts)
    if len(vectors) != len(texts):
        raise BadInput(f"gave {len(vectors)} vectors for {len(texts)} texts", where=shorten(url))
    if not np.isfinite(vectors).all():
        raise BadInput("gave no embeddings: one is not a list of finite numbers", where=shorten(url))
    return vectors
