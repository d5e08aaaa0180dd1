"""Look up models on the Hugging Face hub, only on request: ``config.json``, the index of the weights, and what ModelOpt
quantised.

Fetched files are kept in the cache folder and found there without a network. A token is taken from where
``huggingface_hub`` takes it (``HF_TOKEN``, ``HF_TOKEN_PATH``, ``HF_HOME/token``; its page on environment variables) and
is sent to the host of ``HF_ENDPOINT`` only: a redirect to another host, such as the hub's store of large files, is
followed without it, and no message contains it.
"""

import json
import os
import re
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit

from tokonomics.catalog.config_json import LARGEST_FILE
from tokonomics.errors import BadInput, shorten, without_keys
from tokonomics.files import cache_folder, make_folder, write_text

ENDPOINT = "https://huggingface.co"
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
MODELOPT = "hf_quant_config.json"  # how older exports of NVIDIA ModelOpt say what they quantised
LARGEST_INDEX = 50_000_000  # bytes: a hundred thousand tensors with a line of a hundred bytes each make 10 million
TIMEOUT_S = 20.0
MOST_REDIRECTS = 5
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(f"{_NAME}/{_NAME}")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class HubModel:
    """The files of a repository in the cache."""

    repository: str
    config: Path
    weight_bytes: int | None
    """The sum over all tensors in the index; None if a model is one file, which has no index."""
    fetched: datetime


def is_repository(text: str) -> bool:
    """Decide whether this is a name as the hub writes it: ``org/model``."""
    return bool(_REPOSITORY.fullmatch(text)) and ".." not in text and "--" not in text


def cached(repository: str) -> HubModel | None:
    """Return what was fetched before; None if nothing was."""
    folder = _folder(repository)
    config = folder / CONFIG
    try:
        if not config.is_file():
            return None
        kept = json.loads((folder / INDEX).read_text("utf-8")) if (folder / INDEX).is_file() else {}
        size = kept.get("metadata", {}).get("total_size")
        fetched = datetime.fromtimestamp(config.stat().st_mtime)
        return HubModel(repository, config, size if isinstance(size, int) else None, fetched)
    except (OSError, ValueError, AttributeError):
        return None


@lru_cache(maxsize=64)
def fetch(repository: str) -> HubModel:
    """Ask the hub for the files and keep them; once, however often a question looks the model up."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise BadInput("HF_HUB_OFFLINE says that the hub may not be asked", where=repository, fix="Unset it.")
    config = _get(repository, CONFIG, LARGEST_FILE)
    if config is None:
        fix = "Name a repository in transformers format."
        raise BadInput("has no config.json on the hub", where=repository, fix=fix)
    folder = _folder(repository)
    make_folder(folder, str(folder))
    index = _get(repository, INDEX, LARGEST_INDEX)
    if index is None:
        (folder / INDEX).unlink(missing_ok=True)
    else:
        # Only the sum of the index is needed: do not cache the names of ninety thousand tensors.
        metadata = index.get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
        write_text(folder / INDEX, json.dumps({"metadata": {"total_size": size}}), str(folder / INDEX))
    beside = None if "quantization_config" in config else _get(repository, MODELOPT, LARGEST_FILE)
    if beside is None:
        (folder / MODELOPT).unlink(missing_ok=True)
    else:
        write_text(folder / MODELOPT, json.dumps(beside), str(folder / MODELOPT))
    write_text(folder / CONFIG, json.dumps(config, indent=2), str(folder / CONFIG))
    found = cached(repository)
    assert found is not None
    return found


def _folder(repository: str) -> Path:
    return cache_folder() / "hub" / repository.replace("/", "--")


def _get(repository: str, file: str, most: int) -> Mapping[str, Any] | None:
    """Return a JSON file of a repository; None if the repository has no such file."""
    endpoint = _endpoint()
    url = f"{endpoint.geturl().rstrip('/')}/{repository}/resolve/main/{file}"
    token = _token(endpoint)
    request = urllib.request.Request(url, headers=_headers(token))
    try:
        with urllib.request.build_opener(_OwnHost(endpoint, token)).open(request, timeout=TIMEOUT_S) as reply:
            content = reply.read(most + 1)
    except HTTPError as error:
        error.close()
        if error.code == 404 and error.headers.get("X-Error-Code") == "EntryNotFound":
            return None
        raise _refusal(repository, error.code, token) from None
    except (OSError, HTTPException, ValueError) as error:
        said = shorten(without_keys(str(getattr(error, "reason", error)), token), 120)
        fix = "Give the path of its config.json instead."
        raise BadInput(f"the hub cannot be asked: {said}", where=repository, fix=fix) from None
    if len(content) > most:
        raise BadInput(f"{file} is larger than {most // 1_000_000} MB", where=repository)
    try:
        read = json.loads(content)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise BadInput(f"{file} on the hub is no JSON object", where=repository)
    return read


def _refusal(repository: str, code: int, token: str | None) -> BadInput:
    page = f"{ENDPOINT}/{repository}"
    if code in (401, 403):
        log_in = "the token has no access to it" if token else "set HF_TOKEN, or log in with `hf auth login`"
        return BadInput("is private or gated", where=repository, fix=f"Accept its terms on {page}; {log_in}.")
    if code == 404:
        return BadInput("is not on the hub", where=repository, fix=f"Look at {page}, or set HF_TOKEN if it is private.")
    return BadInput(f"the hub answered {code}", where=repository, fix="Try again, or give the path of its config.json.")


def _endpoint() -> SplitResult:
    given = os.environ.get("HF_ENDPOINT") or ENDPOINT
    try:
        parts = urlsplit(given)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.username and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadInput(f"HF_ENDPOINT is '{shorten(given, 80)}', not an address", fix=f"Such as {ENDPOINT}.")
    return parts


def _token(endpoint: SplitResult) -> str | None:
    """Return the token where ``huggingface_hub`` keeps it; none for a host that is not asked over TLS."""
    if endpoint.scheme != "https" and endpoint.hostname not in _LOOPBACK:
        return None
    found = os.environ.get("HF_TOKEN", "").strip()
    if not found:
        shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(os.environ.get("HF_HOME") or shared / "huggingface")
        try:
            found = Path(os.environ.get("HF_TOKEN_PATH") or home / "token").expanduser().read_text("utf-8").strip()
        except (OSError, ValueError, RuntimeError):
            return None
    # If a header cannot hold the token, the error would show it.
    return found if re.fullmatch(r"[\x21-\x7e]{1,500}", found) else None


def _headers(token: str | None) -> dict[str, str]:
    return {"User-Agent": "tokonomics"} | ({"Authorization": f"Bearer {token}"} if token else {})


class _OwnHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects; sends the token only to the host that it is for, and never leaves TLS."""

    max_redirections = MOST_REDIRECTS

    def __init__(self, endpoint: SplitResult, token: str | None) -> None:
        self.endpoint, self.token = endpoint, token

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        to = urlsplit(newurl)
        if to.scheme not in {"https", self.endpoint.scheme}:
            fp.close()
            raise ValueError("it redirects to a place without TLS")
        is_own = (to.scheme, to.netloc) == (self.endpoint.scheme, self.endpoint.netloc)
        return urllib.request.Request(newurl, headers=_headers(self.token if is_own else None))
