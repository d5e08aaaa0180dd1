"""Serve the page's files from the installed package, and the chart library; nothing else on the disk is served.

The chart library is built once from the installed vl-convert package. That takes seconds, so the file is kept in the
user's cache folder by the version of vl-convert. It is an ES module that exports ``vegaEmbed``; with vega-embed's
``ast: true`` expressions are interpreted, and the page needs no ``unsafe-eval``.

The accuracy view shows the recorded error tables and every row behind them as a point; readers can add their own rows.
Filters (a kind of figure, an engine, a GPU, how a speed is known, how a row relates to the model) choose the points,
and the summary above the chart covers these.
"""

import gzip
import hashlib
import json
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from tokonomics.errors import BadInput, UnknownName, in_python
from tokonomics.files import make_folder, whole
from tokonomics.measure.accuracy_points import (
    KINDS,
    YOURS,
    AccuracyPoint,
    chosen,
    drawn_errors,
    served_points,
    shipped_points,
    unseen_errors,
)
from tokonomics.report import charts, validate_view
from tokonomics.report.answer import document
from tokonomics.report.blocks import sections
from tokonomics.web.verbs import catalogue_json, prices_as_of
from tokonomics.workers import as_json

FOLDER = Path(__file__).with_name("page")
_TYPES = {
    ".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".png": "image/png",
    ".woff2": "font/woff2", ".json": "application/json",
}  # fmt: skip
_PACKED = ".gz"

_SNIPPET = "export { vegaEmbed, vega };"
_END = b"\n// whole\n"  # a file without this ending is incomplete
_LOCK = threading.Lock()
LOG_OUT = re.compile(r"\s*<form [^>]*id=\"leave\">.*?</form>")


def index(logged_in: bool) -> Response:
    """Return the front page, with the versioned address of the chart library, and a logout for users who logged in."""
    try:
        text = (FOLDER / "index.html").read_text("utf-8")
    except OSError:
        raise HTTPException(404) from None
    content = text.replace("/vega.js", f"/vega.js?v={library_name()}")
    if not logged_in:
        content = LOG_OUT.sub("", content)
    return Response(content, media_type="text/html", headers={"cache-control": "no-cache"})


def static(name: str, known: str | None) -> Response:
    """Return one file of the page; its name is looked up among the existing files, never joined to a path.

    A packed file (``.gz``) is sent packed, under its name without that ending.
    """
    there = {file.relative_to(FOLDER).as_posix().removesuffix(_PACKED): file for file in FOLDER.rglob("*")}
    files = {path: file for path, file in there.items() if PurePosixPath(path).suffix in _TYPES}
    if name not in files or not files[name].is_file():
        raise HTTPException(404)
    content = files[name].read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    headers = {"cache-control": "no-cache", "etag": tag}
    if known == tag:
        return Response(status_code=304, headers=headers)
    if files[name].suffix == _PACKED:
        headers["content-encoding"] = "gzip"
    return Response(content, media_type=_TYPES[PurePosixPath(name).suffix], headers=headers)


def vega(asked: str, encodings: str) -> Response:
    """Return the chart library; browsers may keep it for good under its versioned name."""
    lasting = asked == library_name()
    headers = {
        "cache-control": "public, max-age=31536000, immutable" if lasting else "no-cache",
        "vary": "accept-encoding",
    }
    if "gzip" in encodings:
        return Response(_small(), media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})
    return Response(library(), media_type="text/javascript", headers=headers)


@lru_cache(maxsize=1)
def _small() -> bytes:
    return gzip.compress(library(), 6)


def prepare() -> None:
    """Build the catalogue and the chart library while nobody waits for them."""
    threading.Thread(target=lambda: (catalogue_json(prices_as_of()), library()), daemon=True).start()


def library_name() -> str:
    """Return a name that changes with the library, and is known before it is built."""
    return hashlib.sha256(f"{version('vl-convert-python')} {_SNIPPET}".encode()).hexdigest()[:16]


def library() -> bytes:
    """Return the library, from the cache if it is there."""
    with _LOCK:
        return _library()


@lru_cache(maxsize=1)
def _library() -> bytes:
    folder = _folder()
    kept = folder / f"vega-{library_name()}.js"
    with suppress(OSError):
        code = kept.read_bytes()
        if code.endswith(_END):
            return code
    import vl_convert

    code = str(vl_convert.javascript_bundle(_SNIPPET)).encode() + _END
    _keep(folder, kept, code)
    return code


def _keep(folder: Path, kept: Path, code: bytes) -> None:
    """Keep the library, complete or not at all; if nothing can be written, it is built each time."""
    with suppress(BadInput):
        make_folder(folder, str(folder))
        with whole(kept, str(kept)) as unfinished:
            unfinished.write_bytes(code)


def _folder() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "tokonomics"
    except RuntimeError:  # a user without a home folder
        return Path(os.devnull)


CHOICES = ("engine", "gpu", "speed", "fit")


def accuracy(asked: Mapping[str, str], own: Mapping[str, Any] | None = None) -> bytes:
    """Return the description and the chart of the points that are ``asked`` for, and the other choices.

    ``own`` is the answer of ``import`` to the reader's results.
    """
    kind = asked.get("metric") or next(iter(KINDS))
    if kind not in KINDS:
        raise UnknownName("metric", kind, list(KINDS))
    known = (*shipped_points(), *served_points())
    options = {name: sorted({getattr(point, name) for point in known}) for name in CHOICES}
    only = {name: asked.get(name) for name in CHOICES}
    for name, value in only.items():
        if value and value not in options[name]:
            raise UnknownName(name, value, options[name])
    points = chosen(known, kind, **only)
    joined = chosen(_own_points(own), kind) if own else []
    described = validate_view.accuracy(_recorded(), unseen_errors(), drawn_errors(points, joined), kind, joined, own)
    drawn = charts.measured.scatter_chart([*points, *joined], kind, *validate_view.heading(points, kind, joined))
    return as_json(
        {
            **_recorded(),
            "options": {"metric": list(KINDS), **options},
            "sections": document(sections(described), in_python),
            "charts": [{"name": "Predicted against measured", "spec": drawn.to_dict(validate=False)}],
        }
    )


@lru_cache(maxsize=1)
def _recorded() -> dict[str, Any]:
    """Read the tables that ``benchmarks/bench_accuracy.py`` wrote."""
    file = resources.files("tokonomics.measure") / "data" / "accuracy.json"
    recorded: dict[str, Any] = json.loads(file.read_bytes())
    return recorded


def _own_points(answer: Mapping[str, Any]) -> list[AccuracyPoint]:
    """Return the predicted figures of a reader's results."""
    result = answer["result"]
    run, machine = result["run"], result["machine"] or {}
    where = f"{run['model'] or 'a model'} on {machine.get('gpus', '')}×{machine.get('gpu', '')}, {run['tool']}"
    return [
        AccuracyPoint(
            fit=YOURS,
            speed=YOURS,
            metric=" ".join(part for part in (figure["metric"], figure.get("statistic")) if part and part != "mean"),
            gpu=machine.get("gpu", ""),
            engine=machine.get("engine", ""),
            what=f"{where}; {point['load']}",
            measured=figure["measured"],
            predicted=figure["predicted"]["mid"],
        )
        for point in result["points"]
        for figure in point["scored"]
    ]
