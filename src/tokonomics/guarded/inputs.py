"""No path of the server's disk gets in: every text of a request is checked before a verb sees it.

The verbs take paths where the page has uploads. Here a model is a name of the catalogue, a log is a shipped sample, and
a file is ``upload:ID`` (where there are uploads), each looked up in a list of what is allowed; whatever is not on the
list is refused, whether it exists or not, so that nothing can be learned of the disk either. Other texts may hold
nothing that looks like a path or an address; that is a second wall, as no verb opens them.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokonomics.catalog.entries import spelling, spellings, stamp, user_path
from tokonomics.catalog.load_models import all_models
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.questions.request import Kind, Parameter, Parameters, model_in, texts
from tokonomics.traffic.formats import TRACES

UPLOAD = "upload:"
FindUpload = Callable[[str], Path]  # the file of an upload's id; raises BadInput where there is none
_NO_UPLOADS = "Here: names of the catalogue and shipped samples alone."

_MODEL_NAME = re.compile(r"[A-Za-z0-9][\w.+ -]*(/[A-Za-z0-9][\w.+ -]*)?", re.ASCII)
_LIKE_A_PATH = re.compile(r"(^|[\s,;=:|@])(~|/|\\|\.{1,2}[/\\]|[A-Za-z]:[/\\])|[/\\]\.\.|\.\.[/\\]|://|\bfile:", re.I)
_LENGTHS_OF_A_LOG = re.compile(r"trace\s*:\s*(?P<log>.*)", re.I | re.S)


def checked_inputs(parameters: Parameters, given: Mapping[str, Any], find_upload: FindUpload | None) -> dict[str, Any]:
    """What the verb's function is called with: names as the catalogue has them, uploads as their files.

    ``find_upload`` is None where nothing can be uploaded.
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
        case _:
            return _plain(value, where, find_upload)


def _parts(value: Any, parameter: Parameter) -> list[Any]:
    """Names of models may be written with commas between them; each is looked at alone."""
    if parameter.kind is Kind.MODEL and isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if parameter.kind is Kind.TENANT:
        return [",".join(texts(value))]  # a table as the text that it stands for
    return [value]


def _model(text: str, where: str, find_upload: FindUpload | None) -> str:
    if text.startswith(UPLOAD):
        file = _file(text, where, find_upload)
        # The planner takes a scenario file in a model's place, and such a file names others: it stays outside.
        if not file.endswith(".json"):
            raise BadInput("is no config.json", where=where, fix="Upload the model's config.json under that name.")
        return file
    known = known_models(stamp(user_path()))
    found = known.get(spelling(text)) if _MODEL_NAME.fullmatch(text) else None
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


def _tenant(text: str, where: str, find_upload: FindUpload | None) -> str:
    """A model with its traffic: its name and its lengths are looked at as where they stand alone."""
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
    """Every spelling of every model of the catalogue, and its key."""
    return {name: model.key for model in reversed(all_models()) for name in spellings(model)}
