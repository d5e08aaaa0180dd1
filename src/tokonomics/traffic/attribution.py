"""Find the tenant of a request by the labels that the user asks for, in the fields, metadata and tags of a log.

A label (team, feature, user …) is looked for in this order: a field of that name, also with ``_alias`` or ``_name``
behind it, or under the names that tools use; the same in the metadata; then both with ``_id``, since people know a team
by its alias and not by a UUID; a tag ``team:search`` or ``team=search``; an attribute whose last part is the label
(``app.feature``). A request has one value of each label, so costs by label sum to the total cost. The rows that a log
is unfolded into are the same for every tool.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.traffic.formats import BY_SIZE, UNNAMED, LogLayout, spelling
from tokonomics.traffic.sources import Unusable

BETWEEN = " / "  # separates the values of several labels in the name of one tenant
MOST_LABELS = 4
_READABLE = ("_alias", "_name")
_ALSO = {
    "team": ("user_api_key_team_alias", "user_api_key_team_id"),
    "user": ("end_user", "enduser_id", "user_api_key_end_user_id", "user_api_key_user_id"),
    "session": ("gen_ai_conversation_id",),
    "model": ("provided_model_name", "model_group", "gen_ai_request_model", "gen_ai_response_model"),
}
"""Names in LiteLLM's spend logs, Langfuse's exports and OpenTelemetry's attributes (gen_ai, user and enduser)."""
_NESTED = ("metadata", "spend_logs_metadata", "requester_metadata")  # the last two within LiteLLM's metadata
_TAGS = ("tags", "request_tags", "trace_tags")
_LONGEST = 100  # characters of a value
_MOST_NAMES = 40  # names of fields to remember for a message


def as_object(value: Any) -> dict[str, Any]:
    """Return an object given as such, as JSON in a cell, or as the pairs of a parquet map; otherwise an empty one."""
    read = _cell(value, "{")
    if isinstance(read, list) and read and all(isinstance(pair, dict) and "key" in pair for pair in read):
        return {str(pair["key"]): pair.get("value") for pair in read}
    return read if isinstance(read, dict) else {}


def _cell(value: Any, opening: str) -> Any:
    """Parse a cell that begins like JSON, None if it is broken; return any other value unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] != opening:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def labels_in(by: Iterable[str]) -> tuple[str, ...]:
    """Return the labels asked for, given one by one or separated by commas; refuse names that no label can have."""
    labels = [label.strip() for part in by for label in part.split(",")]
    for label in labels:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", label):
            fix = f"Such as {option('by', 'team,user')}."
            raise BadInput(f"'{shorten(label)}' is no name of a label", field="by", fix=fix)
    if len(set(labels)) < len(labels) or len(labels) > MOST_LABELS:
        raise BadInput(f"takes up to {MOST_LABELS} different labels", field="by")
    return tuple(labels)


@dataclass
class Attribution:
    """Name the tenant of each request by the labels asked for, and remember which of them a log has."""

    by: tuple[str, ...]
    seen: set[str] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)  # names of the first fields seen

    def tenant(self, item: Mapping[str, Any]) -> str:
        """Return the values of the labels, in their order; ``(none)`` for a label that the request does not have."""
        holders = list(_holders(item))
        if len(self.names) < _MOST_NAMES:
            self.names |= dict.fromkeys(name for holder in holders for name in holder)
        values = {label: _value(holders, spelling(label)) for label in self.by}
        self.seen.update(label for label, value in values.items() if value is not None)
        return BETWEEN.join(UNNAMED if value is None else value for value in values.values())

    def tells(self, column: str) -> bool:
        """Return whether a column of that name may hold one of the labels."""
        spelled = _spelled(column)
        if column == "response" or spelled in (*_NESTED, *_TAGS):
            return True
        labels = [spelling(label) for label in self.by]
        return any(
            any(spelled in names for names in _names(label)) or spelled.endswith(f"_{label}") for label in labels
        )

    def meet(self, columns: Iterable[str]) -> None:
        """Remember all columns of a table, because ``tenant`` sees only those that may hold a label."""
        self.names |= dict.fromkeys(map(_spelled, columns))

    def check(self, where: str) -> list[str]:
        """Return notes on labels that no request has; refuse a log in which no request has any of them."""
        missing = [label for label in self.by if label not in self.seen]
        if self.by and len(missing) == len(self.by):
            guess = did_you_mean(missing[0], self.names, 1)
            has = f"The log has {shorten(', '.join(self.names), 300)}." if self.names else ""
            looked = "Looked at are columns, attributes, keys of the metadata and tags LABEL:VALUE."
            fix = " ".join(part for part in (guess, has, looked) if part)
            raise BadInput(f"no request says its {' or '.join(missing)}", where=where, fix=fix)
        return [f"no request says its {label}" for label in missing]


def values_of(tenant: str, labels: int) -> tuple[str, ...]:
    """Return the label values that a name made by ``Attribution.tenant`` consists of."""
    return tuple(tenant.split(BETWEEN)) if labels > 1 else (tenant,)


_spelled = lru_cache(maxsize=4096)(spelling)


def _holders(item: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the request, then its metadata and its answer, with keys as ``spelling`` writes them."""
    here = {_spelled(key): value for key, value in item.items() if isinstance(key, str)}
    yield here
    for name in _NESTED:
        if nested := as_object(here.get(name)):
            here = {_spelled(key): value for key, value in nested.items() if isinstance(key, str)}
            yield here
    if body := as_object(as_object(item.get("response")).get("body")):  # in a line of OpenAI's batches
        yield from _holders({key: value for key, value in body.items() if key != "response"})


@lru_cache(maxsize=64)
def _names(label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a label may have: those that people read, and then ids."""
    others = _ALSO.get(label, ())
    readable = (
        label,
        *(f"{label}{ending}" for ending in _READABLE),
        *(name for name in others if name.endswith(_READABLE)),
    )
    return readable, (f"{label}_id", *(name for name in others if name not in readable))


def _value(holders: Sequence[Mapping[str, Any]], label: str) -> str | None:
    for names in _names(label):
        for holder in holders:
            for name in names:
                if (value := _text(holder.get(name))) is not None:
                    return value
    for holder in holders:
        for name in _TAGS:
            tags = _cell(holder.get(name), "[")  # a list, JSON of one, or words between commas
            for tag in tags.split(",") if isinstance(tags, str) else tags if isinstance(tags, list) else ():
                key, parted, value = str(tag).strip().replace("=", ":", 1).partition(":")
                if parted and spelling(key) == label and (found := _text(value)) is not None:
                    return found
    for name, value in holders[0].items():
        if name.endswith(f"_{label}") and (found := _text(value)) is not None:
            return found
    return None


def _text(value: Any) -> str | None:
    """Return a value as a name of bounded length; None if there is none."""
    if isinstance(value, list):
        value = ",".join(str(part) for part in value if isinstance(part, str | int | float))
    if value is None or isinstance(value, dict):
        return None
    written = str(value).encode("utf-8", "replace").decode().strip().replace(BETWEEN, "/")
    return written[:_LONGEST] or None


_ROW = {
    "arrival": "start time", "input": "prompt tokens", "output": "answer tokens", "usd": "cost",
    "cached": "cached tokens", "tenant": "tenant", "session": "session", "ended": "end time",
}  # fmt: skip
"""The names of an unfolded row's fields, also used in messages."""
Row = dict[str, Any]
Item = Mapping[str, Any]


@dataclass
class Unfolding:
    """The labels asked for, and what was found in one pass over a log."""

    attribution: Attribution | None = None
    left_out: Counter[str] = field(default_factory=Counter)  # reasons why rows are no requests
    remarks: Counter[str] = field(default_factory=Counter)  # what was assumed, by the number of its cases
    spread: int = 0  # requests that totals were spread over
    sessions: int = 0  # sessions of agents so far, whole or spoilt
    clock_s: float = 0.0  # when the latest of them ended
    block_tokens: int | None = None  # of the blocks that they list
    parents: dict[int, int] = field(default_factory=dict)
    """The parent of each span, filled in a separate pass because a child is often written first."""
    counting: set[int] = field(default_factory=set)  # spans that count tokens
    conversations: dict[str, Any] = field(default_factory=dict)  # by trace: that of its spans that name none

    def restart(self) -> None:
        """Forget what was found, before another pass over the same log."""
        self.spread = self.sessions = 0
        self.clock_s = 0.0
        for found in (self.left_out, self.remarks, self.parents, self.counting, self.conversations):
            found.clear()

    def notes(self, where: str) -> list[str]:
        """Return notes for the user after a pass."""
        left = [f"{number:,} {what}" for what, number in (self.left_out + self.remarks).items()]
        return left + (self.attribution.check(where) if self.attribution else [])

    def tenant(self, item: Item, *usual: Any) -> Any:
        """Return the tenant by the labels asked for, otherwise the first of the usual values that is not empty."""
        if self.attribution:
            return self.attribution.tenant(item)
        return next((value for value in usual if value not in (None, "")), None)

    def requests(self, found: Iterable[Row | str]) -> Iterator[Row | Unusable]:
        """Yield the requests, and count the reasons why others are left out."""
        for one in found:
            if isinstance(one, str) and not isinstance(one, Unusable):
                self.left_out[one] += 1
            else:
                yield one


def layout_of_rows(name: str, attribution: Attribution | None, tenants: str, note: str | None) -> LogLayout:
    """Return the layout of the rows that a log is unfolded into."""
    notes = (note, None if attribution else f"tenants are {tenants}")
    places = {field: ((label,),) for field, label in _ROW.items()}
    return LogLayout(name, places, {"arrival": BY_SIZE}, note="; ".join(said for said in notes if said))


def row(**fields: Any) -> Row:
    """Return one request with the names of ``_ROW``; missing fields are reported when rows are checked."""
    return {_ROW[name]: value for name, value in fields.items()}


def tenant_in(unfolded: Row) -> str | None:
    """Return the tenant of an unfolded row, as text."""
    value = unfolded[_ROW["tenant"]]
    return value if value is None or isinstance(value, str) else str(value)
