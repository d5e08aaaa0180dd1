"""Unfold logs that tools export and whose requests must be worked out first: sums, nested lists, totals of an hour.

Each is recognised by the keys of its objects and unfolded into plain rows (time, tokens, cost, tenant). What is no
request to a model (a tool's span, an answer from a cache) is left out and counted. Names are those of

- Langfuse 3: blob storage export fields (langfuse.com/docs/api-and-data-platform), public API and UI export; prompt
  tokens are all usage types that begin with ``input`` (``observations_converters.ts``, commit 010ff92), and what was
  read from or written to a cache by Anthropic's names, which its ``input_tokens`` leave out (Messages API, ``usage``);
- OpenTelemetry: OTLP/JSON 1.x and the GenAI conventions ``SEMCONV`` (open-telemetry/semantic-conventions-genai);
- LiteLLM 1.x: ``LiteLLM_SpendLogs`` (``litellm/proxy/schema.prisma``, commit 0010143), the standard logging payload;
- OpenAI: ``GET /v1/organization/usage/completions`` (OpenAPI document 2.3.0).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tokonomics.errors import BadInput, option
from tokonomics.traffic.agent_traces import is_session, session_rows
from tokonomics.traffic.attribution import Attribution, Item, Row, Unfolding, as_object, layout_of_rows, row
from tokonomics.traffic.formats import AGENTS, REQUIRED, LogLayout

SEMCONV = "https://opentelemetry.io/schemas/gen-ai/1.42.0"
"""The GenAI conventions by which spans are read; the names they replaced (up to 1.26.0) are understood too."""
BULKY = frozenset({"input", "output", "messages", "response", "proxy_server_request", "tool_definitions", "tool_calls"})
"""Columns of tables that hold texts, which are not needed here."""
MOST_SPREAD = 2_000_000  # requests that totals are spread over: as many as generated traffic has by default


@dataclass(frozen=True)
class Export:
    """One tool's log: how its objects are recognised, and how requests are read from one of them."""

    name: str
    is_one: Callable[[Item], bool]
    unfold: Callable[[Item, Unfolding], Iterable[Row | str]]  # the requests of an object, or why there is none
    tenants: str  # what tenants are if no labels are asked for
    note: str | None = None
    look_over: Callable[[Item, Unfolding], None] | None = None
    """Looks at every object before the first is unfolded, if one depends on others."""
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns of each field of a request, for exports that may be tables of any length."""
    telling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns that say whether a row is a request, and whose; with the keys that matter if one holds objects."""
    cached: tuple[str, ...] = ()
    """Where a table has the cached tokens: a column that holds objects, and the JSON paths in it."""
    rows: LogLayout | None = None
    """The rows that it is unfolded into, if they have other fields than those of the other tools."""

    def layout(self, attribution: Attribution | None) -> LogLayout:
        usual = layout_of_rows(self.name, attribution, self.tenants, self.note)
        return usual if self.rows is None else replace(self.rows, note=usual.note)

    def layout_of_table(self, columns: Collection[str], known: LogLayout) -> LogLayout | None:
        """Return where a table has the fields of a request; None if one is missing or in several columns."""
        there = {name: tuple((one,) for one in names if one in columns) for name, names in self.columns.items()}
        if not all(there.get(name) for name in REQUIRED) or any(len(names) > 1 for names in there.values()):
            return None
        return known.moved(tenant=(), cached=(), **there)


def export_of(objects: Iterable[Any]) -> Export | None:
    """Return the tool that at least half of the objects come from."""
    listed = [item for item in objects if isinstance(item, dict)]
    for export in EXPORTS:
        if listed and 2 * sum(export.is_one(item) for item in listed) >= len(listed):
            return export
    return None


def opened(item: Any) -> list[Any]:
    """Return the objects of a page, which the APIs of these tools wrap in ``data``; otherwise the object itself."""
    if isinstance(item, dict) and isinstance(listed := item.get("data"), list):
        return listed
    return [item]


def _first(item: Item, *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) not in (None, "")), None)


def _sum(values: Iterable[Any]) -> Any:
    """Return the sum of numbers, also of those written as text; or the first value that is no number, to report it."""
    total: float | int | None = None
    for value in values:
        if value is None:
            continue
        try:  # ClickHouse writes 64-bit numbers as text
            number = value if not isinstance(value, str) else int(value) if value.isdecimal() else float(value)
            total = number + (total or 0)
        except (TypeError, ValueError, OverflowError):
            return value
    return total


# --- Langfuse -------------------------------------------------------------------------------------------------------

_CALLS = ("GENERATION", "EMBEDDING")  # the types of observation that have usage
_UNCOUNTED = "model calls without token counts are left out"
_OBSERVATIONS = (*_CALLS, "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "GUARDRAIL")


def _is_langfuse(item: Item) -> bool:
    """Return whether it is an observation; a table is judged by its columns alone, whose values are all null here."""
    kind = item.get("type", "")
    is_typed = kind is None or (isinstance(kind, str) and kind.upper() in _OBSERVATIONS)
    counted = {"usageDetails", "usage_details", "inputUsage"} | ({"usage", "promptTokens"} if is_typed else set())
    return all(item.keys() & names for names in ({"traceId", "trace_id"}, {"startTime", "start_time"}, counted))


def _langfuse(item: Item, unfolding: Unfolding) -> Iterator[Row | str]:
    kind = item.get("type")
    details, usage = as_object(_first(item, "usageDetails", "usage_details")), as_object(item.get("usage"))
    prompt = _langfuse_prompt(details)
    answer = _sum(value for key, value in details.items() if key.startswith("output"))
    if prompt is None:
        prompt = _first(item, "inputUsage", "promptTokens") or _first(usage, "input", "promptTokens")
    if answer is None:
        answer = _first(item, "outputUsage", "completionTokens") or _first(usage, "output", "completionTokens")
    costs = as_object(_first(item, "costDetails", "cost_details"))
    cost = _first(item, "totalCost", "total_cost", "calculatedTotalCost") or costs.get("total")
    if isinstance(kind, str) and kind.upper() not in _CALLS:
        yield "observations that are no model calls (spans, events, tools) are left out"
    elif str(usage.get("unit") or "TOKENS").upper() != "TOKENS":
        yield "model calls that are not counted in tokens are left out"
    elif prompt is None and answer is None:
        yield _UNCOUNTED
    else:
        user = _first(item, "userId", "user_id")
        yield row(
            arrival=_first(item, "startTime", "start_time"),
            input=prompt,
            output=0 if answer is None else answer,  # an embedding writes nothing
            usd=_sum(costs.values()) if cost is None else cost,
            cached=_langfuse_cached(details),
            tenant=unfolding.tenant(item, as_object(item.get("metadata")).get("tenant"), user),
            session=_first(item, "sessionId", "session_id", "traceId", "trace_id"),
            ended=_first(item, "endTime", "end_time"),
        )


def _langfuse_prompt(details: Item) -> Any:
    """Return the sum of all types of prompt tokens; cached ones, which have several names, count once."""
    own = {key: value for key, value in details.items() if key.startswith("input")}
    whole = _sum(own.values())
    rest = _sum(value for key, value in details.items() if key.startswith("output"))
    if details.get("total") is not None and _sum((whole, rest)) == _sum((details["total"],)):
        return whole  # it already includes cached tokens
    written = any("cache" in key and "creation" in key for key in own)
    read = any(map(_is_cached, own))
    cached = {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    return _sum((whole, *(details.get(name) for name, is_counted in cached.items() if not is_counted)))


def _is_cached(key: str) -> bool:
    return key.startswith("input") and "cache" in key and "creation" not in key


def _langfuse_cached(details: Item) -> Any:
    found = _sum(value for key, value in details.items() if _is_cached(key))
    return details.get("cache_read_input_tokens") if found is None else found


# --- LiteLLM --------------------------------------------------------------------------------------------------------

_LITELLM = {
    "arrival": ("startTime",),
    "input": ("prompt_tokens",),
    "output": ("completion_tokens",),
    "usd": ("spend", "response_cost"),
    "session": ("session_id",),
    "ended": ("endTime",),
}


_LITELLM_CACHED = ("prompt_tokens_details.cached_tokens", "cache_read_input_tokens")


def _litellm(item: Item, unfolding: Unfolding) -> Iterator[Row | str]:
    if str(item.get("cache_hit")).lower() == "true":
        yield "requests that LiteLLM answered from its own cache are left out"
    elif item.get("status") == "failure" and item.get("prompt_tokens") in (0, "0", "", None):
        yield "failed requests without tokens are left out"
    else:
        metadata = as_object(item.get("metadata"))
        alias = item.get("team_alias") or metadata.get("user_api_key_team_alias")
        team = alias or item.get("team_id") or metadata.get("user_api_key_team_id")
        tenant = unfolding.tenant(item, metadata.get("tenant"), team, item.get("end_user"), item.get("user"))
        usage = as_object(metadata.get("usage_object"))
        counts = {**usage, **as_object(usage.get("prompt_tokens_details"))}
        cached = _first(counts, *(name.rpartition(".")[2] for name in _LITELLM_CACHED))
        found = {"usd": _first(item, *_LITELLM["usd"]), "tenant": tenant, "cached": cached}
        yield row(**{name: item.get(names[0]) for name, names in _LITELLM.items()} | found)


# --- OpenTelemetry --------------------------------------------------------------------------------------------------

_WRAPPERS = ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "plan", "retrieval")
"""Operations whose usage, if they have any, is that of the model calls below them."""
_DEEPEST = 5
_HIGHEST = 100
"""The most ancestors of a span that are followed: more than calls have, and a limit if they form a circle."""


def _spans(item: Item) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Yield each span with its attributes and those of its resource."""
    for resource in _objects(_first(item, "resourceSpans", "resource_spans")):
        shared = attributes(as_object(resource.get("resource")).get("attributes"))
        for scope in _objects(_first(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            for span in _objects(scope.get("spans")):
                yield span, attributes(span.get("attributes")), shared


def _key(span: Item, *names: str) -> int | None:
    """Return a number for a span within its trace, by its own or its parent's id; a log may have millions of spans."""
    trace, own = _first(span, "traceId", "trace_id"), _first(span, *names)
    return hash((trace, own)) if isinstance(trace, str) and isinstance(own, str) else None


def _conversation(stated: Item) -> Any:
    return _first(stated, "gen_ai.conversation.id", "session.id")


def _look_over_spans(item: Item, unfolding: Unfolding) -> None:
    """Note which spans count tokens, and the parent of each; above an agent or a tool begin other calls.

    Also the conversation of each trace, which may stand on the span of an agent alone.
    """
    for span, stated, _ in _spans(item):
        trace, named = _first(span, "traceId", "trace_id"), _conversation(stated)
        if isinstance(trace, str) and named is not None:
            unfolding.conversations.setdefault(trace, named)
        own, above = _key(span, "spanId", "span_id"), _key(span, "parentSpanId", "parent_span_id")
        if own is None or stated.get("gen_ai.operation.name") in _WRAPPERS:
            continue
        if above is not None and above != own:
            unfolding.parents[own] = above
        if any(count is not None for count in _span_tokens(stated)):
            unfolding.counting.add(own)


def _is_counted_above(span: Item, unfolding: Unfolding) -> bool:
    """Return whether an ancestor has the same tokens: the client's call, of which this is the server's part."""
    at = _key(span, "spanId", "span_id")
    for _ in range(_HIGHEST):
        at = None if at is None else unfolding.parents.get(at)
        if at is None or at in unfolding.counting:
            return at is not None
    return False


def _span_tokens(stated: Item) -> tuple[Any, Any]:
    """Return the tokens of the prompt and of the answer."""
    prompt = _first(stated, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    return prompt, _first(stated, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


def _otlp(item: Item, unfolding: Unfolding) -> Iterator[Row | str]:
    for span, stated, shared in _spans(item):
        prompt, answer = _span_tokens(stated)
        if not any(name.startswith("gen_ai.") for name in stated):
            yield "spans that are no GenAI operation are left out"
        elif stated.get("gen_ai.operation.name") in _WRAPPERS:
            yield "spans of agents, workflows and tools are left out: their tokens are those of the calls"
        elif prompt is None and answer is None:
            yield _UNCOUNTED
        elif _is_counted_above(span, unfolding):
            yield "spans within a call that counts the same tokens are left out"
        else:
            user = _first(stated, "tenant.id", "user.id", "enduser.id")
            yield row(
                arrival=_first(span, "startTimeUnixNano", "start_time_unix_nano"),
                input=prompt,
                output=0 if answer is None else answer,
                cached=stated.get("gen_ai.usage.cache_read.input_tokens"),
                usd=stated.get("gen_ai.usage.cost"),  # not in any convention, but OpenLIT and Langfuse write it
                tenant=unfolding.tenant({**shared, **stated}, user, shared.get("service.name")),
                session=_session_of(span, stated, unfolding),
                ended=_first(span, "endTimeUnixNano", "end_time_unix_nano"),
            )


def _session_of(span: Item, stated: Item, unfolding: Unfolding) -> Any:
    """Return the conversation of a span, else that of its trace, else the trace."""
    trace = _first(span, "traceId", "trace_id")
    known = unfolding.conversations.get(trace, trace) if isinstance(trace, str) else trace
    own = _conversation(stated)
    return known if own is None else own


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def attributes(listed: Any) -> dict[str, Any]:
    """Return attributes of OTLP/JSON by dotted name: ``{"key": …, "value": {"intValue": "3"}}``, nested or not."""
    if not isinstance(listed, dict):  # some exporters write an object
        listed = {str(pair.get("key")): pair.get("value") for pair in _objects(listed)}
    found: dict[str, Any] = {}

    def put(name: str, value: Any, depth: int = 0) -> None:
        if isinstance(value, dict) and depth < _DEEPEST:
            for key, inner in value.items():
                put(f"{name}.{key}", inner, depth + 1)
        elif value is not None:
            found[name] = value

    for name, value in listed.items():
        put(str(name), _plain(value))
    return found


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the value of an OTLP AnyValue, where an integer is text and a map is a list of pairs."""
    if not isinstance(value, dict) or depth >= _DEEPEST:
        return value
    for kind in ("stringValue", "intValue", "doubleValue", "boolValue"):
        if kind in value:
            return value[kind]
    if "arrayValue" in value:
        inner = as_object(value["arrayValue"]).get("values")
        return [_plain(part, depth + 1) for part in inner] if isinstance(inner, list) else []
    if "kvlistValue" in value:
        pairs = _objects(as_object(value["kvlistValue"]).get("values"))
        return {str(pair.get("key")): _plain(pair.get("value"), depth + 1) for pair in pairs}
    return value


# --- totals of OpenAI's usage API -----------------------------------------------------------------------------------


def _bucket(item: Item, unfolding: Unfolding) -> Iterator[Row]:
    """Spread totals evenly over their time: as many requests as there were, all of the mean length."""
    results = [dict(item)] if "num_model_requests" in item else _objects(_first(item, "results", "result"))
    if any(result.get("object") == "organization.costs.result" for result in results):
        raise BadInput("a page of costs, which lists no tokens", fix="Export /v1/organization/usage/completions.")
    start, end = _count(item.get("start_time")), _count(item.get("end_time"))
    for result in results:
        requests, prompt, answer = (
            _count(result.get(name)) for name in ("num_model_requests", "input_tokens", "output_tokens")
        )
        if requests is None or prompt is None or answer is None or start is None or end is None or end < start:
            yield row(arrival=item.get("start_time"), input=result.get("input_tokens"))
            continue
        unfolding.spread += requests
        if unfolding.spread > MOST_SPREAD:
            rate = option("rate", f"{requests / max(end - start, 1):.3g}")
            mean = f"{option('input', round(prompt / requests))} {option('output', round(answer / requests))}"
            raise BadInput(f"totals of more than {MOST_SPREAD:,} requests", fix=f"Plan their means: {rate} {mean}.")
        tenant = unfolding.tenant(result, _first(result, "project_id", "user_id", "api_key_id", "model"))
        for place in range(requests):
            # Whole numbers that differ by at most one and sum to the totals.
            prompts, answers = (
                total * (place + 1) // requests - total * place // requests for total in (prompt, answer)
            )
            at = start + (end - start) * (place + 0.5) / requests
            yield row(arrival=at, input=prompts, output=answers, tenant=tenant)


def _count(value: Any) -> int | None:
    """Return a whole number, or text of one, from 0 to the largest that a float holds exactly."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,16}", value.strip()):
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 2**53
    return int(value) if is_number and value == int(value) else None


EXPORTS = (
    Export(AGENTS.name, is_session, session_rows, "the values of model", rows=AGENTS),
    Export(
        "OpenTelemetry GenAI spans",
        lambda item: "resourceSpans" in item or "resource_spans" in item,
        _otlp,
        "user.id, else service.name",
        f"spans are read by the GenAI conventions {SEMCONV.rsplit('/', 1)[1]}",
        _look_over_spans,
    ),
    Export(
        "OpenAI usage export",
        # A bucket of the API, or a row of the table that the dashboard exports.
        lambda item: item.get("object") == "bucket" or {"num_model_requests", "start_time", "end_time"} <= item.keys(),
        _bucket,
        "the projects, users, keys or models that it is grouped by",
        "totals, not requests: they are spread evenly over their time, each of the mean length. Tokens and their rate "
        "by the hour are right; bursts and long requests are not in it, so what serves it in time is too small",
    ),
    Export("Langfuse export", _is_langfuse, _langfuse, "the users (userId)"),
    Export(
        "LiteLLM spend log",
        lambda item: {"startTime", "prompt_tokens"} <= item.keys() and ("spend" in item or "response_cost" in item),
        _litellm,
        "the teams (team_alias, else team_id), else end_user, else user",
        columns=_LITELLM,
        cached=("metadata", *(f"$.usage_object.{name}" for name in _LITELLM_CACHED)),
        telling={"metadata": ("tenant", "user_api_key_team_alias", "user_api_key_team_id")}
        | dict.fromkeys(("cache_hit", "status", "team_alias", "team_id", "end_user", "user"), ()),
    ),
)
