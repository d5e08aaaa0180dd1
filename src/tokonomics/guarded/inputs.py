"""Check every text of a request before a verb sees it, so that no path of the server's disk gets in.

The verbs take paths where the page has uploads. Here a model is a name of the catalogue, a log is a shipped sample, and
a file is ``upload:ID`` (if there are uploads), each looked up in a list of what is allowed. Anything else is refused,
whether it exists or not, so that nothing can be learned about the disk. Other texts must not look like a path or an
address; this is a second defence, as no verb opens them.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokonomics.catalog.entries import spelling, spellings, stamp, user_path
from tokonomics.catalog.load_models import all_models, find_quantised
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.questions.request import Kind, Parameter, Parameters, model_in, texts
from tokonomics.traffic.formats import TRACES
from tokonomics.traffic.grammar import span_s

UPLOAD = "upload:"
FindUpload = Callable[[str], Path]  # returns the file of an upload's id; raises BadInput if there is none
_NO_UPLOADS = "Here: names of the catalogue and shipped samples alone."

_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.+ -]*(/[A-Za-z0-9][\w.+ -]*)?", re.ASCII)
_LIKE_A_PATH = re.compile(r"(^|[\s,;=:|@])(~|/|\\|\.{1,2}[/\\]|[A-Za-z]:[/\\])|[/\\]\.\.|\.\.[/\\]|://|\bfile:", re.I)
_LENGTHS_OF_A_LOG = re.compile(r"trace\s*:\s*(?P<log>.*)", re.I | re.S)


def checked_inputs(parameters: Parameters, given: Mapping[str, Any], find_upload: FindUpload | None) -> dict[str, Any]:
    """Return the inputs for the verb's function: names as in the catalogue, uploads as their files.

    ``find_upload`` is None if nothing can be uploaded.
    """
    return {name: _checked(value, parameters[name], find_upload) for name, value in given.items() if value is not None}


def _checked(value: Any, parameter: Parameter, find_upload: FindUpload | None) -> Any:
    if parameter.kind is Kind.TENANT and isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list | tuple):
        parts = [part for text in value for part in _parts(text, parameter)]
        if not parts and parameter.required:
            raise BadInput("names nothing", where=parameter.name)
        return [_checked(part, parameter, find_upload) for part in parts]
    if not isinstance(value, str):
        return value
    where = parameter.name
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in value):
        raise BadInput("holds a character that is not text", where=where)
    match parameter.kind:
        case Kind.MODEL:
            return _model(value, where, find_upload)
        case Kind.TRACE:
            return _log(value, where, find_upload)
        case Kind.FILE:
            return _file(value, where, find_upload)
        case Kind.LENGTHS:
            return _lengths(value, where, find_upload)
        case Kind.TENANT:
            return _tenant(value, where, find_upload)
        case Kind.METERED:
            return _time(value, where)
        case _:
            return _plain(value, where, find_upload)


def _parts(value: Any, parameter: Parameter) -> list[Any]:
    """Split names of models at commas, so that each is checked alone."""
    if parameter.kind is Kind.MODEL and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if parameter.kind is Kind.TENANT:
        return [",".join(texts(value))]  # a table as its text
    return [value]


def _model(text: str, where: str, find_upload: FindUpload | None) -> str:
    if text.startswith(UPLOAD):
        file = _file(text, where, find_upload)
        # The planner accepts a scenario file as a model, and such a file names other files: it is refused here.
        if not file.endswith(".json"):
            raise BadInput("is no config.json", where=where, fix="Upload the model's config.json under that name.")
        return file
    known = known_models(stamp(user_path()))
    found = known.get(spelling(text)) if _MODEL_NAME.fullmatch(text) else None
    if found is None and _MODEL_NAME.fullmatch(text) and find_quantised(text):
        return text
    if found is None:
        fix = "Or upload its config.json and give upload:ID." if find_upload else _NO_UPLOADS
        raise UnknownName("model", text, sorted(set(known.values())), fix=fix)
    return found


def _log(text: str, where: str, find_upload: FindUpload | None) -> str:
    if text.startswith(UPLOAD):
        return _file(text, where, find_upload)
    if text not in TRACES:
        fix = "Or upload your log and give upload:ID." if find_upload else _NO_UPLOADS
        raise UnknownName("sample", text, TRACES, fix=fix)
    return text


def _file(text: str, where: str, find_upload: FindUpload | None) -> str:
    if find_upload is None:
        raise BadInput(f"'{shorten(text)}' is a file, which is not taken here", where=where, fix=_NO_UPLOADS)
    if not text.startswith(UPLOAD):
        raise BadInput(f"'{shorten(text)}' is no upload", where=where, fix="Upload the file and give upload:ID.")
    return str(find_upload(text.removeprefix(UPLOAD)))


def _lengths(text: str, where: str, find_upload: FindUpload | None) -> str:
    log = _LENGTHS_OF_A_LOG.fullmatch(text.strip())
    if log:
        return f"trace:{_log(log['log'].strip(), where, find_upload)}"
    if re.search(r"trace\s*:", text, re.I):
        raise BadInput(f"'{shorten(text)}' is not understood", where=where, fix="Such as trace:azure-conv.")
    return _plain(text, where, find_upload)


def _time(text: str, where: str) -> str:
    """Return a time of a log; ledgers and servers of this machine are not for others."""
    if span_s(text) is None:
        raise BadInput(
            f"'{shorten(text)}' is no time; what was metered is not read here", where=where, fix="Such as 10m."
        )
    return text


def _tenant(text: str, where: str, find_upload: FindUpload | None) -> str:
    """Check a model with its traffic: its name and lengths, as if they stood alone."""
    said = model_in(_plain(text, where, find_upload))
    said["model"] = _model(said["model"], where, find_upload)
    for name in ("input", "output"):
        if name in said:
            said[name] = _lengths(said[name], where, find_upload)
    slo = said.pop("slo", None)
    return ",".join([*(f"{name}={value}" for name, value in said.items()), *([slo] if slo else [])])


def _plain(text: str, where: str, find_upload: FindUpload | None) -> str:
    if _LIKE_A_PATH.search(text):
        raise BadInput(
            f"'{shorten(text)}' looks like a path or an address, which is not taken here",
            where=where,
            fix="Upload the file and give upload:ID where a file is taken." if find_upload else _NO_UPLOADS,
        )
    return text


@lru_cache(maxsize=2)
def known_models(stamp: int) -> Mapping[str, str]:
    """Map every spelling of every model of the catalogue to its key."""
    return {name: model.key for model in reversed(all_models()) for name in spellings(model)}
