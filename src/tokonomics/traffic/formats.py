"""List the logs people have: what each calls the fields of a request, and by which names it is recognised.

A log is recognised by the names it uses, never by its file name. Names were read from the published files and the
released source of the tools (Azure public dataset, Mooncake FAST25 traces, BurstGPT v1 and v2, Qwen-Bailian usage
traces, OpenAI and LiteLLM objects, vLLM 0.32 ``bench serve``, guidellm 0.8).

Some real traffic is shipped, so that one can start without a log: four public traces, and two sets of lengths without
arrival times; ``data/README.md`` names their sources and licences, ``benchmarks/reduce_traces.py`` reduced them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokonomics.errors import BadInput, UnknownName, did_you_mean, option, shorten

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOLDER = Path(__file__).with_name("data")
TRACES = ("azure-code", "azure-conv", "mooncake-conversation", "mooncake-synthetic")
"""The names that ``open_trace`` takes."""
SAMPLES = (*TRACES, "arxiv", "sharegpt")
"""The names that ``sample_lengths`` takes: the traces, and the samples that have lengths only."""


def sample_path(name: str) -> Path:
    """Return the file of a sample."""
    if name not in SAMPLES:
        raise UnknownName("sample", name, SAMPLES)
    return FOLDER / f"{name}.parquet"


def sample_lengths(name: str) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the tokens of the prompt and of the answer of each request, paired, in the order of the sample."""
    import polars as pl

    table = pl.read_parquet(sample_path(name), columns=["input_tokens", "output_tokens"]).cast(pl.Int64)
    return table["input_tokens"].to_numpy(), table["output_tokens"].to_numpy()


FieldPath = tuple[str, ...]  # the column of a field, or the keys that lead to it through nested objects


class LogField(NamedTuple):
    """A field of a request: its meaning, its usual names, and how else its column is guessed."""

    what: str
    usual: str = ""  # names as ``spelling`` writes them: a log that has only one of them is read without asking
    likely: str = ""  # names that are only suggested
    words: str = ""  # a column is guessed by one of these words in its name


LOG_FIELDS = {
    "arrival": LogField(
        "time of arrival",
        "timestamp time ts date datetime arrival arrival_time arrival_timestamp arrived_at created created_at "
        "created_time start start_time started_at request_time request_timestamp request_start_time requested_at "
        "received_at sent_at event_time",
        words="time timestamp ts date datetime when at arrival created start begin",
    ),
    "input": LogField(
        "prompt tokens",
        "prompt_tokens n_prompt_tokens num_prompt_tokens prompt_token_count prompt_len prompt_length input_tokens "
        "n_input_tokens num_input_tokens input_token_count input_len input_length context_tokens request_tokens "
        "tokens_in",
        words="prompt prompts input in context request",
    ),
    "output": LogField(
        "answer tokens",
        "completion_tokens n_completion_tokens num_completion_tokens completion_token_count completion_len "
        "completion_length output_tokens n_output_tokens num_output_tokens output_token_count output_len output_length "
        "generated_tokens n_generated_tokens num_generated_tokens generation_tokens response_tokens response_len "
        "response_length answer_tokens candidates_token_count tokens_out",
        words="completion output out answer response generated generation decode",
    ),
    "tenant": LogField(
        "tenant",
        "tenant tenant_id customer customer_id user user_id client client_id account account_id team team_id org "
        "org_id",
    ),
    "priority": LogField("priority", likely="priority"),
    "patience": LogField("time after which the client hangs up", likely="patience patience_s patience_ms"),
    "prefix": LogField(
        "shared beginning of the prompt", likely="hash_ids prefix_blocks block_hashes prefix_hash prefix_id prefix"
    ),
    "usd": LogField("cost", "usd cost cost_usd usd_cost total_cost spend"),
    "cached": LogField(
        "prompt tokens found in a cache",
        "cached_tokens n_cached_tokens num_cached_tokens cached_input_tokens input_cached_tokens cached_prompt_tokens "
        "cache_read_tokens cache_read_input_tokens",
    ),
    # The fields of sessions (``OF_SESSIONS``) begin here.
    "session": LogField(
        "session",
        "session session_id conversation conversation_id thread thread_id dialog_id dialogue_id job job_id task_id "
        "agent_run_id",
    ),
    "request": LogField("id of the request", "request_id request call_id step_id id"),
    "parent": LogField(
        "request that it waits for", "parent parents parent_id parent_request parent_request_id waits_for depends_on"
    ),
    "pause": LogField("pause before it", "pause pause_s pause_ms think_s think_ms tool_s tool_ms"),
    "took": LogField(
        "time that it took",
        "took_s took_ms latency_s latency_ms duration_s duration_ms e2e_s e2e_ms response_time_s response_time_ms",
    ),
    "ended": LogField("time of its end", "end_time ended_at end finished_at completed_at response_timestamp"),
}
FIELDS = tuple(LOG_FIELDS)
REQUIRED = FIELDS[:3]
OF_SESSIONS = FIELDS[FIELDS.index("session") :]
USUAL_NAMES = {name: tuple(known.usual.split()) for name, known in LOG_FIELDS.items() if known.usual}
COLUMNS_HELP = option(
    "columns",
    "arrival=TIME,input=PROMPT_TOKENS,output=ANSWER_TOKENS[,tenant=…,priority=…,patience=…,prefix=…,usd=…,cached=…,"
    "session=…,request=…,parent=…,pause=…,took=…,ended=…]",
)
KNOWN = (
    "Azure LLM, BurstGPT (CSV); Mooncake, Qwen-Bailian, OpenAI-style usage and batches (JSON lines); "
    "vLLM bench --save-detailed, guidellm, OpenAI usage pages (JSON); Langfuse, LiteLLM, OpenTelemetry GenAI spans; "
    "the agent traces of Weka, AIPerf and AgentX; "
    "the request logs of vLLM and SGLang"
)
UNNAMED = "(none)"  # the tenant of a request that names none
SUPPORTED = f"{KNOWN}; any other CSV, JSON lines or parquet with usual names of columns, or {COLUMNS_HELP}"
USUAL = "columns by their usual names"
DEPTH = 4  # of keys within keys that are looked at
_LONGEST_NAME = 200  # characters of a column name that a user gives: our choice
BY_SIZE = 0.0  # unix times in seconds, milli-, micro- or nanoseconds: their size tells which


@dataclass(frozen=True)
class LogLayout:
    """Where each field of a request is found: in the first of its places that holds a value."""

    name: str
    places: Mapping[str, tuple[FieldPath, ...]]
    units: Mapping[str, float] = field(default_factory=dict)
    """Units per second, for the fields that are times in another unit."""
    block_tokens: int | None = None
    prefix_is_key: bool = False  # the prefix field names a shared prompt, rather than listing its blocks
    usd_told: bool = False  # the user named the cost column: a row with an unreadable cost is then unusable
    unanswered: str | None = None  # what an answer of 0 tokens means in this log
    note: str | None = None
    tells: tuple[FieldPath, ...] = ()  # keys that only this log has
    needs: tuple[str, ...] = REQUIRED  # fields without which it is not this log
    usual_sessions: bool = False  # look for missing session fields by their usual names

    def paths(self, name: str) -> tuple[FieldPath, ...]:
        """Return the places of a field; none if the log does not have it."""
        return self.places.get(name, ())

    @property
    def is_complete(self) -> bool:
        """Return whether it has the fields without which it is not this log."""
        return all(self.paths(name) for name in self.needs)

    def label(self, name: str) -> str:
        """Return what a message calls the field."""
        return " or ".join(".".join(path) for path in self.paths(name)[:2])

    def moved(self, **places: tuple[FieldPath, ...]) -> "LogLayout":
        """Return the same layout with some fields at other places."""
        return replace(self, places={**self.places, **places})

    def narrowed(self, present: Iterable[FieldPath], key: Callable[[FieldPath], FieldPath] = tuple) -> "LogLayout":
        """Return only the places that this log has, as it spells them; names are compared by ``key``."""
        there = {key(path): path for path in present}
        found = {name: [there.get(key(path)) for path in paths] for name, paths in self.places.items()}
        return self.moved(**{name: tuple(path for path in paths if path) for name, paths in found.items()})


def _paths(dotted: str) -> tuple[FieldPath, ...]:
    return tuple(tuple(name.split(".")) for name in dotted.split("|"))


def _anywhere(*names: str) -> str:
    """Return a key's places: at the top of a log line, or in the response that a proxy or the batch API wraps."""
    return "|".join(f"{outer}{name}" for outer in ("", "response.body.", "response.") for name in names)


def layout(name: str, places: Mapping[str, str], **more: Any) -> LogLayout:
    """Make a layout from the places of its fields: columns, or keys joined by dots, with ``|`` between places."""
    return LogLayout(name, {field: _paths(dotted) for field, dotted in places.items()}, **more)


OWN = layout(
    "tokonomics trace",
    {"arrival": "arrival_s", "input": "input_tokens", "output": "output_tokens", "tenant": "tenant",
     "priority": "priority", "patience": "patience_s", "prefix": "prefix_blocks", "usd": "usd", "session": "session",
     "request": "request", "parent": "parents", "pause": "pause_s"},
    usual_sessions=True,
)  # fmt: skip
_AZURE = layout("Azure LLM CSV", {"arrival": "TIMESTAMP", "input": "ContextTokens", "output": "GeneratedTokens"})
_BURSTGPT = layout(
    "BurstGPT CSV",
    {"arrival": "Timestamp", "input": "Request tokens", "output": "Response tokens", "tenant": "Model"},
    unanswered="requests that failed (0 response tokens), kept as prompts without an answer",
    note="tenants are the values of Model",
)
_HASHED = {"arrival": "timestamp", "input": "input_length", "output": "output_length", "prefix": "hash_ids"}
_MOONCAKE = layout("Mooncake JSON lines", _HASHED, units={"arrival": 1000.0}, block_tokens=512)
_BAILIAN = layout(
    "Qwen-Bailian JSON lines",
    {**_HASHED, "tenant": "type", "request": "chat_id", "parent": "parent_chat_id"},
    block_tokens=16,
    note="tenants are the values of type",
    tells=_paths("chat_id"),
)
VLLM = layout("vLLM bench serve", {"arrival": "start_times", "input": "input_lens", "output": "output_lens"})
_OPENAI = layout(
    "OpenAI-style usage log",
    {
        # The time of the request, if a proxy logged it; `created` is when the server began the answer.
        "arrival": f"startTime|start_time|request_time|{_anywhere('created', 'created_at')}|timestamp|time",
        "input": f"{_anywhere('usage.prompt_tokens', 'usage.input_tokens')}|prompt_tokens|input_tokens",
        "output": f"{_anywhere('usage.completion_tokens', 'usage.output_tokens')}|completion_tokens|output_tokens",
        "cached": _anywhere("usage.prompt_tokens_details.cached_tokens", "usage.input_tokens_details.cached_tokens")
        + "|cached_tokens",
        "tenant": "metadata.tenant|user|end_user|response.body.metadata.tenant|response.body.user",
        "session": "session_id|conversation_id|metadata.session_id|metadata.conversation_id",
        "request": "request_id",
        "parent": "parent_id|parent_request_id",
        "ended": "endTime|end_time",
    },
    units={"arrival": BY_SIZE},
    needs=(*REQUIRED, "tenant"),
    usual_sessions=True,
)
_OPENAI_MODELS = replace(
    _OPENAI.moved(tenant=_paths(_anywhere("model"))),
    note="no user or metadata.tenant in the log: tenants are the models",
    needs=REQUIRED,
)
_OPENAI_BATCH = replace(
    _OPENAI.moved(tenant=_paths("response.body.metadata.tenant|response.body.user|response.body.model")),
    name="OpenAI batch output",
    note="times are those at which the batch was worked off, not those at which users asked",
    tells=_paths("custom_id|response.body.usage"),
    needs=REQUIRED,
    usual_sessions=False,
)
GUIDELLM = layout(
    "guidellm benchmarks",
    {
        "arrival": "info.timings.request_start|request_start_time|start_time",
        "input": "input_metrics.total_tokens|prompt_tokens",
        "output": "output_metrics.total_tokens|output_tokens",
    },
)
AGENTS = layout(
    "Weka agent traces",
    {"arrival": "t", "input": "in", "output": "out", "tenant": "model", "prefix": "hash_ids", "session": "session",
     "request": "request", "parent": "parents", "pause": "think_time", "took": "api_time"},
    unanswered="requests without an answer (out is 0), kept as prompts",
)  # fmt: skip
"""The rows that a session of ``agent_traces`` is unfolded into."""
TABLES = (_AZURE, _BURSTGPT, OWN)
OBJECTS = (_BAILIAN, _MOONCAKE, OWN, _OPENAI_BATCH, _OPENAI, _OPENAI_MODELS)


def known_layout(present: Collection[FieldPath], *, of_table: bool) -> LogLayout | None:
    """Return the known log that has these columns (in any case) or these keys."""

    def lowered(path: FieldPath) -> FieldPath:
        return tuple(name.strip().lower() for name in path)

    for known in TABLES if of_table else OBJECTS:
        found = known.narrowed(present, lowered if of_table else tuple)
        if found.is_complete and all(path in present for path in known.tells):
            return _with_sessions(found, set(present)) if known.usual_sessions else found
    return None


def spelling(name: str) -> str:
    """Return a name as ``LOG_FIELDS`` has it: ``promptTokens``, ``Prompt Tokens`` and ``prompt-tokens`` are one."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[ .-]+", "_", parted.lower())


def without_unit(spelled: str) -> str:
    """Return the name of a time without the unit at its end: ``timestamp`` for ``timestamp_ms``."""
    return re.sub(r"_(s|ms|us|ns|utc)$", "", spelled)


def layout_of_usual_names(names: Sequence[str]) -> LogLayout | None:
    """Return the layout of columns with usual names; refuse two that could be the same required field."""
    there: dict[str, list[str]] = {name: [] for name in USUAL_NAMES}
    for name in names:
        spelled = spelling(name)
        for known, usual in USUAL_NAMES.items():
            if (without_unit(spelled) if known == "arrival" else spelled) in usual:
                there[known].append(name)
    if not all(there[name] for name in REQUIRED):
        return None
    for field_name in REQUIRED:
        if len(there[field_name]) > 1:
            several = " and ".join(shorten(name) for name in there[field_name])
            chosen = ",".join(f"{other}={shorten(there[other][0])}" for other in REQUIRED)
            raise BadInput(
                f"{several} could each be the {LOG_FIELDS[field_name].what}",
                field="columns",
                fix=f"Say which is what, such as {option('columns', chosen)}",
            )
    taken = {name: found[0] for name, found in there.items() if len(found) == 1 and name not in OF_SESSIONS}
    of_sessions = _of_sessions(names)
    taken |= of_sessions if tells_sessions(of_sessions) else {}
    note = ", ".join(f"{shorten(column)} as {LOG_FIELDS[name].what}" for name, column in taken.items())
    if len(there["tenant"]) > 1:
        note += f"; {' or '.join(map(shorten, there['tenant'][:4]))} may be the tenant: say which"
    places = {name: ((column,),) for name, column in taken.items()}
    return LogLayout(USUAL, places, _units(places), note=f"columns taken by their names: {note}")


def usual_name(name: str, spelled: Mapping[str, str], *also: str) -> str | None:
    """Return the column with the first of a field's usual names; ``spelled`` has columns by their spelling."""
    return next((spelled[usual] for usual in (*USUAL_NAMES.get(name, ()), *also) if usual in spelled), None)


def _of_sessions(names: Iterable[str]) -> dict[str, str]:
    """Return what a log calls the fields of its sessions."""
    there: dict[str, str] = {}
    for name in names:
        there.setdefault(spelling(name), name)
    return {field_name: found for field_name in OF_SESSIONS if (found := usual_name(field_name, there))}


def tells_sessions(fields: Iterable[str]) -> bool:
    """Return whether these fields say which requests belong together."""
    there = set(fields)
    return "session" in there or {"request", "parent"} <= there


def _with_sessions(known: LogLayout, present: set[FieldPath]) -> LogLayout:
    """Return the same layout with session fields by their usual names, if it has none of its own.

    A key that holds an object is no id: ``request`` may be all that was asked.
    """
    nested = {path[0] for path in present if len(path) > 1}
    own = {name for name in OF_SESSIONS if known.paths(name)}
    found = _of_sessions(sorted({path[0] for path in present} - nested))
    added = {name: ((column,),) for name, column in found.items() if name not in own}
    if not tells_sessions(own | added.keys()):
        return known
    return replace(known.moved(**added), units={**known.units, **_units(added)})


def paths_in(item: Any, depth: int = DEPTH) -> set[FieldPath]:
    """Return every path to a field in an object that is not null."""
    found: set[FieldPath] = set()
    for key, value in item.items():
        if value is None:
            continue
        found.add((key,))
        if isinstance(value, dict) and depth > 1:
            found |= {(key, *rest) for rest in paths_in(value, depth - 1)}
    return found


def layout_from_option(columns: str, present: set[FieldPath]) -> LogLayout:
    """Read the option ``columns`` and check it against the columns there are."""
    chosen: dict[str, tuple[FieldPath, ...]] = {}
    block_tokens: int | None = None
    for part in columns.split(","):
        name, equals, column = (piece.strip() for piece in part.partition("="))
        if not equals or not column:
            raise BadInput(f"'{shorten(part)}' is not FIELD=COLUMN", field="columns", fix=f"Use {COLUMNS_HELP}")
        if name == "block":
            block_tokens = block_tokens_of(column)
            if block_tokens is None:
                raise BadInput(f"block must be tokens a block, got '{shorten(column)}'", field="columns")
        elif name not in FIELDS:
            hint = did_you_mean(name, (*FIELDS, "block")) or f"Use {COLUMNS_HELP}"
            raise BadInput(f"unknown field '{shorten(name)}'", field="columns", fix=hint)
        else:
            chosen[name] = (_find(column, present),)
    if missing := [name for name in REQUIRED if name not in chosen]:
        raise BadInput(f"does not say which column is {missing[0]}", field="columns", fix=f"Use {COLUMNS_HELP}")
    return LogLayout("columns as told", chosen, _units(chosen), block_tokens, usd_told="usd" in chosen)


def block_tokens_of(text: str) -> int | None:
    """Return the tokens of one block as somebody wrote them down; None if it is not such a number."""
    return int(text) if re.fullmatch(r"[0-9]{1,7}", text) and 1 <= int(text) <= 2**20 else None


def can_be_told(name: str) -> bool:
    """Return whether ``columns`` can name this column: a text of bounded length without commas."""
    return bool(name.strip()) and "," not in name and name.isprintable() and len(name) <= _LONGEST_NAME


def _find(name: str, present: set[FieldPath]) -> FieldPath:
    bare = {tuple(key.strip() for key in path): path for path in sorted(present)}  # as in "time, prompt, answer"
    for path in ((name,), tuple(name.split("."))):
        if path in present:
            return path
        if path in bare:
            return bare[path]
    known = sorted(".".join(path) for path in present)
    hints = (did_you_mean(name, known), f"Found: {shorten(', '.join(known), 300)}")
    raise BadInput(f"no column '{shorten(name)}'", field="columns", fix="\n  ".join(filter(None, hints)))


def _units(places: Mapping[str, tuple[FieldPath, ...]]) -> dict[str, float]:
    """Return the units per second of each time, by the ending of its column's name."""
    endings = {"_ms": 1e3, "_us": 1e6, "_ns": 1e9}
    return {
        name: endings.get(places[name][0][-1].lower()[-3:], BY_SIZE if name == "arrival" else 1.0)
        for name in ("arrival", "patience", "pause", "took")
        if name in places
    }
