"""What the logs people have call the fields of a request: a table of names, and which log a set of names belongs to.

A log is told by the names it uses, never by its file name. Names were read from the published files and the released
source of the tools (Azure public dataset, Mooncake FAST25 traces, BurstGPT v1 and v2, Qwen-Bailian usage traces,
OpenAI and LiteLLM objects, vLLM 0.32 ``bench serve``, guidellm 0.8).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokonomics.errors import BadInput, nearest, option, shorten

Path = tuple[str, ...]  # of a field: the column, or the keys that lead to it through nested objects

OF_SESSIONS = ("session", "request", "parent", "pause", "took", "ended")
"""Whose turn a request is, its id, those it waits for, how long after them; how long it took, or until when."""
FIELDS = ("arrival", "input", "output", "tenant", "priority", "patience", "prefix", "usd", *OF_SESSIONS)
REQUIRED = ("arrival", "input", "output")
COLUMNS_HELP = option(
    "columns",
    "arrival=TIME,input=PROMPT_TOKENS,output=ANSWER_TOKENS[,tenant=…,priority=…,patience=…,prefix=…,usd=…,session=…,"
    "request=…,parent=…,pause=…,took=…,ended=…]",
)
KNOWN = (
    "Azure LLM, BurstGPT (CSV); Mooncake, Qwen-Bailian, OpenAI-style usage and batches (JSON lines); "
    "vLLM bench --save-detailed, guidellm, OpenAI usage pages (JSON); Langfuse, LiteLLM, OpenTelemetry GenAI spans; "
    "the request logs of vLLM and SGLang"
)
UNNAMED = "(none)"  # the tenant of a request that names none
SUPPORTED = f"{KNOWN}; any other CSV, JSON lines or parquet with usual names of columns, or {COLUMNS_HELP}"
USUAL = "columns by their usual names"
USUAL_NAMES = {
    "arrival": (
        "timestamp", "time", "ts", "date", "datetime", "arrival", "arrival_time", "arrival_timestamp", "arrived_at",
        "created", "created_at", "created_time", "start", "start_time", "started_at", "request_time",
        "request_timestamp", "request_start_time", "requested_at", "received_at", "sent_at", "event_time",
    ),
    "input": (
        "prompt_tokens", "n_prompt_tokens", "num_prompt_tokens", "prompt_token_count", "prompt_len", "prompt_length",
        "input_tokens", "n_input_tokens", "num_input_tokens", "input_token_count", "input_len", "input_length",
        "context_tokens", "request_tokens", "tokens_in",
    ),
    "output": (
        "completion_tokens", "n_completion_tokens", "num_completion_tokens", "completion_token_count",
        "completion_len", "completion_length", "output_tokens", "n_output_tokens", "num_output_tokens",
        "output_token_count", "output_len", "output_length", "generated_tokens", "n_generated_tokens",
        "num_generated_tokens", "generation_tokens", "response_tokens", "response_len", "response_length",
        "answer_tokens", "candidates_token_count", "tokens_out",
    ),
    "tenant": (
        "tenant", "tenant_id", "customer", "customer_id", "user", "user_id", "client", "client_id", "account",
        "account_id", "team", "team_id", "org", "org_id",
    ),
    "usd": ("usd", "cost", "cost_usd", "usd_cost", "total_cost", "spend"),
    "session": (
        "session", "session_id", "conversation", "conversation_id", "thread", "thread_id", "dialog_id", "dialogue_id",
        "job", "job_id", "task_id", "agent_run_id",
    ),
    "request": ("request_id", "request", "call_id", "step_id", "id"),
    "parent": ("parent", "parents", "parent_id", "parent_request", "parent_request_id", "waits_for", "depends_on"),
    "pause": ("pause", "pause_s", "pause_ms", "think_s", "think_ms", "tool_s", "tool_ms"),
    "took": (
        "took_s", "took_ms", "latency_s", "latency_ms", "duration_s", "duration_ms", "e2e_s", "e2e_ms",
        "response_time_s", "response_time_ms",
    ),
    "ended": ("end_time", "ended_at", "end", "finished_at", "completed_at", "response_timestamp"),
}  # fmt: skip
"""What people call the fields of a request, as ``spelling`` writes it: one of them alone needs no asking."""


_LONGEST_NAME = 200  # characters of a column that somebody names: our choice
BY_SIZE = 0.0  # unix times in seconds, milli-, micro- or nanoseconds: their size tells which


@dataclass(frozen=True)
class LogLayout:
    """Where each field of a request is found; of several places the first that holds something counts."""

    name: str
    arrival: tuple[Path, ...]
    input: tuple[Path, ...]
    output: tuple[Path, ...]
    tenant: tuple[Path, ...] = ()
    priority: tuple[Path, ...] = ()
    patience: tuple[Path, ...] = ()
    prefix: tuple[Path, ...] = ()
    usd: tuple[Path, ...] = ()
    """What the log says the request cost."""
    session: tuple[Path, ...] = ()
    request: tuple[Path, ...] = ()
    parent: tuple[Path, ...] = ()
    pause: tuple[Path, ...] = ()
    took: tuple[Path, ...] = ()
    ended: tuple[Path, ...] = ()
    usd_told: bool = False
    """Whether somebody said which column that is: a row whose cost cannot be read is then one that cannot be used."""
    second: float = 1.0
    """Units of a number in the time field that make a second; 0: tell seconds from finer units by size."""
    patience_second: float = 1.0  # units of the patience field that make a second
    pause_second: float = 1.0
    took_second: float = 1.0
    block_tokens: int | None = None
    prefix_is_key: bool = False  # the prefix field names a shared prompt, rather than listing its blocks
    unanswered: str | None = None  # what an answer of no tokens means in this log
    note: str | None = None

    def paths(self, field: str) -> tuple[Path, ...]:
        return tuple(getattr(self, field))

    def label(self, field: str) -> str:
        """What a message calls the field."""
        return " or ".join(".".join(path) for path in self.paths(field)[:2])

    def narrowed(self, present: Iterable[Path]) -> "LogLayout":
        """Only the places that the log at hand has."""
        there = set(present)
        kept = {field: tuple(path for path in self.paths(field) if path in there) for field in FIELDS}
        return replace(self, **kept)  # type: ignore[arg-type]


def _paths(*dotted: str) -> tuple[Path, ...]:
    return tuple(tuple(name.split(".")) for name in dotted)


def _anywhere(*names: str) -> tuple[Path, ...]:
    """At the top of a log line, or in the response that a proxy or the batch API wraps."""
    return _paths(*(f"{outer}{name}" for outer in ("", "response.body.", "response.") for name in names))


def _layout(name: str, arrival: str, input_tokens: str, output_tokens: str, **more: Any) -> LogLayout:
    """A log whose fields are columns, or keys at the top of a line."""
    places: dict[str, Any] = {name: _paths(value) if name in FIELDS else value for name, value in more.items()}
    return LogLayout(name, _paths(arrival), _paths(input_tokens), _paths(output_tokens), **places)


OWN = _layout(
    "tokonomics trace",
    "arrival_s",
    "input_tokens",
    "output_tokens",
    tenant="tenant",
    priority="priority",
    patience="patience_s",
    prefix="prefix_blocks",
    usd="usd",
    session="session",
    request="request",
    parent="parents",
    pause="pause_s",
)
AZURE = _layout("Azure LLM CSV", "TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = _layout(
    "BurstGPT CSV",
    "Timestamp",
    "Request tokens",
    "Response tokens",
    tenant="Model",
    unanswered="requests that failed (0 response tokens), kept as prompts without an answer",
    note="tenants are the values of Model",
)
_HASHED = ("timestamp", "input_length", "output_length")
MOONCAKE = _layout("Mooncake JSON lines", *_HASHED, prefix="hash_ids", second=1000.0, block_tokens=512)
BAILIAN = _layout(
    "Qwen-Bailian JSON lines",
    *_HASHED,
    tenant="type",
    prefix="hash_ids",
    request="chat_id",
    parent="parent_chat_id",
    block_tokens=16,
    note="tenants are the values of type",
)
VLLM = _layout("vLLM bench serve", "start_times", "input_lens", "output_lens")
OPENAI = LogLayout(
    "OpenAI-style usage log",
    # When the request came in, where a proxy wrote it down; `created` is when the server began the answer.
    arrival=_paths("startTime", "start_time", "request_time")
    + _anywhere("created", "created_at")
    + _paths("timestamp", "time"),
    input=_anywhere("usage.prompt_tokens", "usage.input_tokens") + _paths("prompt_tokens", "input_tokens"),
    output=_anywhere("usage.completion_tokens", "usage.output_tokens") + _paths("completion_tokens", "output_tokens"),
    tenant=_paths("metadata.tenant", "user", "end_user", "response.body.metadata.tenant", "response.body.user"),
    session=_paths("session_id", "conversation_id", "metadata.session_id", "metadata.conversation_id"),
    request=_paths("request_id"),
    parent=_paths("parent_id", "parent_request_id"),
    ended=_paths("endTime", "end_time"),
    second=BY_SIZE,
)
OPENAI_MODELS = replace(
    OPENAI, tenant=_anywhere("model"), note="no user or metadata.tenant in the log: tenants are the models"
)
OPENAI_BATCH = replace(
    OPENAI_MODELS,
    name="OpenAI batch output",
    tenant=_paths("response.body.metadata.tenant", "response.body.user", "response.body.model"),
    note="times are those at which the batch was worked off, not those at which users asked",
)
GUIDELLM = LogLayout(
    "guidellm benchmarks",
    arrival=_paths("info.timings.request_start", "request_start_time", "start_time"),
    input=_paths("input_metrics.total_tokens", "prompt_tokens"),
    output=_paths("output_metrics.total_tokens", "output_tokens"),
)

TABLES = (AZURE, BURSTGPT, OWN)
OBJECTS = (BAILIAN, MOONCAKE, OWN)


def layout_of_columns(names: Sequence[str]) -> LogLayout | None:
    """The log whose columns these are; the spelling of the published file, in any case."""
    spelled = {name.strip().lower(): name for name in names}
    for layout in TABLES:
        if all(layout.paths(field)[0][0].lower() in spelled for field in REQUIRED):
            lowered = {field: [path[0].lower() for path in layout.paths(field)] for field in FIELDS}
            there = {field: tuple((spelled[key],) for key in keys if key in spelled) for field, keys in lowered.items()}
            found = replace(layout, **there)  # type: ignore[arg-type]
            return _with_sessions(found, {(name,) for name in names}) if layout is OWN else found
    return None


def spelling(name: str) -> str:
    """A name as ``USUAL_NAMES`` has it: ``promptTokens``, ``Prompt Tokens`` and ``prompt-tokens`` are one."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[ .-]+", "_", parted.lower())


def without_unit(spelled: str) -> str:
    """The name of a time without its unit, which stands behind it: ``timestamp_ms``."""
    return re.sub(r"_(s|ms|us|ns|utc)$", "", spelled)


def layout_of_usual_names(names: Iterable[str]) -> LogLayout | None:
    """The layout where time, prompt and answer have usual names; two that could be one of them are an error."""
    there: dict[str, list[str]] = {field: [] for field in USUAL_NAMES}
    names = list(names)
    for name in names:
        spelled = spelling(name)
        for field, usual in USUAL_NAMES.items():
            if (without_unit(spelled) if field == "arrival" else spelled) in usual:
                there[field].append(name)
    if not all(there[field] for field in REQUIRED):
        return None
    for field in REQUIRED:
        if len(there[field]) > 1:
            several = " and ".join(shorten(name) for name in there[field])
            chosen = ",".join(f"{other}={shorten(there[other][0])}" for other in REQUIRED)
            raise BadInput(
                f"{several} could each be the {FIELD_WORDS[field]}",
                field="columns",
                fix=f"Say which is what, such as {option('columns', chosen)}",
            )
    taken = {field: found[0] for field, found in there.items() if len(found) == 1 and field not in OF_SESSIONS}
    of_sessions = _of_sessions(names)
    taken |= of_sessions if tells_sessions(of_sessions) else {}
    said = ", ".join(f"{shorten(name)} as {FIELD_WORDS[field]}" for field, name in taken.items())
    others = " or ".join(shorten(name) for name in there["tenant"][:4]) if len(there["tenant"]) > 1 else ""
    unsure = f"; {others} may be the tenant: say which" if others else ""
    return LogLayout(
        USUAL,
        **{field: ((name,),) for field, name in taken.items()},  # type: ignore[arg-type]
        second=_per_second(taken["arrival"], unknown=BY_SIZE),
        **_lasting({field: name for field, name in taken.items() if field in OF_SESSIONS}),
        note=f"columns taken by their names: {said}{unsure}",
    )


def _of_sessions(names: Iterable[str]) -> dict[str, str]:
    """What a log calls the fields of its sessions: of several names the first in ``USUAL_NAMES``."""
    there: dict[str, str] = {}
    for name in names:
        there.setdefault(spelling(name), name)
    usual = ((field, [there[name] for name in USUAL_NAMES[field] if name in there]) for field in OF_SESSIONS)
    return {field: found[0] for field, found in usual if found}


def tells_sessions(fields: Iterable[str]) -> bool:
    """Whether these fields say which requests belong together."""
    there = set(fields)
    return "session" in there or {"request", "parent"} <= there


def _with_sessions(layout: LogLayout, present: set[Path]) -> LogLayout:
    """The same with the fields of sessions by their usual names where it has none of its own.

    A key that holds an object is no id: ``request`` may be all that was asked.
    """
    nested = {path[0] for path in present if len(path) > 1}
    own = {field for field in OF_SESSIONS if layout.paths(field)}
    found = _of_sessions(sorted({path[0] for path in present} - nested))
    added = {field: name for field, name in found.items() if field not in own}
    if not tells_sessions(own | added.keys()):
        return layout
    paths: dict[str, Any] = {field: ((name,),) for field, name in added.items()}
    return replace(layout, **paths, **_lasting(added))


FIELD_WORDS = {
    "arrival": "time of arrival",
    "input": "prompt tokens",
    "output": "answer tokens",
    "tenant": "tenant",
    "priority": "priority",
    "patience": "time after which the client hangs up",
    "prefix": "shared beginning of the prompt",
    "usd": "cost",
    "session": "session",
    "request": "id of the request",
    "parent": "request that it waits for",
    "pause": "pause before it",
    "took": "time that it took",
    "ended": "time of its end",
}
"""What the fields of a request are, in a sentence or beside a list to choose from."""


def paths_in(item: Any, depth: int = 4) -> set[Path]:
    """Every path to a field in an object that is not null."""
    found: set[Path] = set()
    for key, value in item.items():
        if value is None:
            continue
        found.add((key,))
        if isinstance(value, dict) and depth > 1:
            found |= {(key, *rest) for rest in paths_in(value, depth - 1)}
    return found


def layout_of_objects(items: Sequence[dict[str, Any]]) -> LogLayout | None:
    """The log that lines like these come from."""
    present = set().union(*(paths_in(item) for item in items))
    for layout in OBJECTS:
        told_apart = layout is not BAILIAN or ("chat_id",) in present
        if told_apart and all(layout.paths(field)[0] in present for field in REQUIRED):
            narrowed = layout.narrowed(present)
            return _with_sessions(narrowed, present) if layout is OWN else narrowed
    if {("custom_id",), ("response", "body", "usage")} <= present:
        return OPENAI_BATCH.narrowed(present)
    users = OPENAI.narrowed(present)
    if users.arrival and users.input and users.output:
        return _with_sessions(users if users.tenant else OPENAI_MODELS.narrowed(present), present)
    return None


def layout_from_option(columns: str, present: set[Path]) -> LogLayout:
    """What ``columns`` says, checked against the columns there are."""
    chosen: dict[str, Any] = {}
    block_tokens: int | None = None
    for part in columns.split(","):
        field, equals, name = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise BadInput(f"'{shorten(part)}' is not FIELD=COLUMN", field="columns", fix=f"Use {COLUMNS_HELP}")
        if field == "block":
            block_tokens = block_tokens_of(name)
            if block_tokens is None:
                raise BadInput(f"block must be tokens a block, got '{shorten(name)}'", field="columns")
        elif field not in FIELDS:
            guesses = nearest(field, (*FIELDS, "block"))
            hint = f"Did you mean {' or '.join(guesses)}?" if guesses else f"Use {COLUMNS_HELP}"
            raise BadInput(f"unknown field '{shorten(field)}'", field="columns", fix=hint)
        else:
            chosen[field] = (_find(name, present),)
    if missing := [field for field in REQUIRED if field not in chosen]:
        raise BadInput(f"does not say which column is {missing[0]}", field="columns", fix=f"Use {COLUMNS_HELP}")
    return LogLayout(
        "columns as told",
        **chosen,
        second=_per_second(chosen["arrival"][0][-1], unknown=BY_SIZE),
        patience_second=_per_second(chosen["patience"][0][-1]) if "patience" in chosen else 1.0,
        **_lasting({field: paths[0][-1] for field, paths in chosen.items()}),
        block_tokens=block_tokens,
        usd_told="usd" in chosen,
    )


def block_tokens_of(text: str) -> int | None:
    """Tokens of one block, as somebody wrote them down; None where it is no such number."""
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) and 1 <= int(text) <= 2**20 else None


def can_be_told(name: str) -> bool:
    """Whether ``columns`` can name this column: commas part its fields, and it is a text of bounded length."""
    return bool(name.strip()) and "," not in name and name.isprintable() and len(name) <= _LONGEST_NAME


def _find(name: str, present: set[Path]) -> Path:
    bare = {tuple(key.strip() for key in path): path for path in sorted(present)}  # as in "time, prompt, answer"
    for path in ((name,), tuple(name.split("."))):
        if path in present:
            return path
        if path in bare:
            return bare[path]
    known = sorted(".".join(path) for path in present)
    guesses = nearest(name, known)
    found = "Found: " + shorten(", ".join(known), 300)
    fix = f"Did you mean {' or '.join(guesses)}?\n  {found}" if guesses else found
    raise BadInput(f"no column '{shorten(name)}'", field="columns", fix=fix)


def _lasting(names: dict[str, str]) -> dict[str, Any]:
    """The units of the lengths of time of sessions, by the names of their columns."""
    return {f"{field}_second": _per_second(names[field]) for field in ("pause", "took") if field in names}


def _per_second(name: str, unknown: float = 1.0) -> float:
    """How many make a second, by the ending of the name."""
    for ending, many in (("_ms", 1e3), ("_us", 1e6), ("_ns", 1e9)):
        if name.lower().endswith(ending):
            return many
    return unknown
