"""Answer what a small model in front of a large one or an API costs, how long it takes, and when it pays.

A request's score, label and qualities are read from the log as labels are (``traffic.attribution``): from a column, the
metadata or a tag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.api_hosts import find_api
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.planner.parsing import listed
from tokonomics.planner.route import route as compared
from tokonomics.planner.route_models import OwnModel, RoutedModel, RouteReport, called, part_of, tokens_in
from tokonomics.planner.route_ways import MOST_LABELS, Marks, Routing
from tokonomics.questions.catalogue import every_offer
from tokonomics.questions.deployment import require_writer, targets_of
from tokonomics.questions.load import cases_of, load_once, question_of, say_not_tried
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import RouteRequest
from tokonomics.questions.result import Result
from tokonomics.questions.serving import say_if_compiling, say_left_out
from tokonomics.sizing.load import Load
from tokonomics.traffic.attribution import labels_in, values_of
from tokonomics.traffic.formats import UNNAMED
from tokonomics.traffic.trace import Counts, Floats
from tokonomics.units import plural, usd


class RouteResult(Result, RouteReport):
    """Ways to share traffic among models."""

    ROWS = "ways"

    def headline(self) -> str:
        way = self.best or self.ways[-1]
        return f"{way.name}: {usd(way.usd_per_month)} a month"


_MOST_MODELS = 3  # most self-hosted models: with more, there are too many ways to send labels
_OTHERS = "others"


def route(request: RouteRequest, listener: Listener = SILENT) -> RouteResult:
    """Compare every way to share traffic among models: one model, routed, cascaded, with an API for the overflow."""
    if len(cases_of(request)) > 1:
        raise BadInput("a range is for plan", field="rate, input, output")
    names = list(dict.fromkeys(listed(request.model, "model") or []))
    specs = [find_model(name) for name in names]
    for spec in specs:
        require_writer(spec)
    api = find_api(request.api) if request.api is not None else None
    keys = [(name, spec.key) for name, spec in zip(names, specs, strict=True)] + ([(api.key, "api")] if api else [])
    _check(request, len(names), len(keys))
    scores = parse_scores(request.quality or (), keys)
    columns = _columns(request, scores)
    listed_by = {"by": columns or None}
    longest = max(spec.max_context for spec in specs)
    whole = load_once(request.model_copy(update=listed_by), listener)
    load = whole.within(longest)
    say_left_out(load, longest, listener)
    tokens = load.trace.input_tokens.astype(np.int64) + load.trace.output_tokens
    for spec in specs:
        _say_too_long(spec, specs, tokens, api is not None, listener)
    values = _values(load, columns)
    for column, (_, names_in_it) in values.items():
        if names_in_it == [UNNAMED]:  # if it is the only one, list the log's columns instead
            load_once(request.model_copy(update={"by": (column,)}), SILENT)
    load = replace(load, trace=replace(load.trace, tenant=None, tenants=()))
    marks = _marks(request, len(load.trace), values, scores, len(keys), listener)
    marks = _long_apart(marks, tokens, min(spec.max_context for spec in specs))
    say_if_compiling(listener)
    offers = every_offer(request)
    fitting = [part_of(load, np.flatnonzero(tokens <= spec.max_context)) for spec in specs]
    both = zip(names, fitting, strict=True)
    questions = [question_of(request, name, own, offers, quick=False) for name, own in both]
    for question in questions:
        say_not_tried(question, listener)
    models: list[RoutedModel] = [OwnModel(question, listener.simulating) for question in questions]
    models += [called(api, load)] if api else []
    left_out = len(whole.trace) - len(load.trace), tokens_in(whole) - tokens_in(load) if load.too_long else 0
    routing = Routing(
        load, models, marks, targets_of(request), request.min_quality, request.share, listener.simulating, left_out
    )
    return RouteResult(**dict(compared(routing)))


def _say_too_long(
    spec: ModelSpec, specs: Sequence[ModelSpec], tokens: NDArray[np.int64], api: bool, listener: Listener
) -> None:
    """Say where requests go that do not fit a model's context; it is an error if none fits."""
    beyond = int((tokens > spec.max_context).sum())
    if beyond == len(tokens):
        what = f"requests of {int(tokens.min()):,} tokens or more exceed {spec.name}'s {spec.max_context:,} of context"
        raise BadInput(what, field="model", fix="Leave it out, or take a model with a longer context.")
    if beyond:
        larger = max(specs, key=lambda other: other.max_context)
        others = f"{larger.name} or the API" if api else larger.name
        listener.note(
            f"{beyond:,} of {len(tokens):,} requests are longer than {spec.name}'s {spec.max_context:,} tokens of "
            f"context: {others} takes them"
        )


def _check(request: RouteRequest, own: int, models: int) -> None:
    if models < 2:
        fix = f"Name two models, or an API behind one: {option('api', 'groq:llama-3.3-70b-versatile')}."
        raise BadInput("routing takes at least two models", field="model", fix=fix)
    if own > _MOST_MODELS:
        raise BadInput(f"at most {_MOST_MODELS} models of your own are routed between", field="model")
    if request.min_quality is not None and not request.quality:
        fix = f"Give your own scores: {option('quality', 'llama-3.1-8b=0.66,llama-3.3-70b=0.86')}."
        raise BadInput("is held against scores, and none are given", field="min_quality", fix=fix)
    if request.share is not None and request.score is not None:
        fix = "A score sets the share by its threshold: the answer lists the share of each. Without a score, a share is"
        fix += " drawn at random."
        raise BadInput("give one of the two", field="share, score", fix=fix)
    for name in ("by", "score"):
        if getattr(request, name) is not None and request.trace is None:
            raise BadInput("is for a log, not for made-up requests", field=name)


@dataclass(frozen=True)
class GivenScore:
    """A score of one model, for all requests or for those with a label; or the log's column that holds it."""

    model: int
    label: str | None
    value: float | str


def parse_scores(texts: Sequence[str], models: Sequence[tuple[str, ...]]) -> tuple[GivenScore, ...]:
    """Read ``llama-3.1-8b=0.66``, ``llama-3.1-8b=small_ok`` (a column) or ``hard/llama-3.1-8b=0.4`` as scores.

    Each model has several names. Every model needs a score.
    """
    places = {name: place for place, names in enumerate(models) for name in names}
    found = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, _, value = (piece.strip() for piece in part.rpartition("="))
        inner = next((known for known in places if name.endswith(f"/{known}") and name not in places), None)
        label = None if inner is None else name.removesuffix(f"/{inner}")
        known = inner or name
        if known not in places or not value:
            hint = did_you_mean(known, places, 1) or f"Routed between are: {', '.join(names[0] for names in models)}."
            raise BadInput(
                f"'{shorten(part)}' is not MODEL=SCORE of a model that is routed to", field="quality", fix=hint
            )
        found.append(GivenScore(places[known], label, _number(value, part, label)))
    missing = [names[0] for place, names in enumerate(models) if found and all(one.model != place for one in found)]
    if missing:
        fix = f"Give one of each model: {option('quality', f'{missing[0]}=0.7')}."
        raise BadInput(f"{missing[0]} has no score", field="quality", fix=fix)
    return tuple(found)


def _number(value: str, part: str, label: str | None) -> float | str:
    try:
        score = float(value)
    except ValueError:
        if label is None:
            return value
        score = -1.0
    if not 0 <= score < 1e9:
        fix = "Write llama-3.1-8b=0.66: any scale from 0 on, higher is better."
        raise BadInput(f"'{shorten(part)}' has no score from 0 on", field="quality", fix=fix)
    return score


def _columns(request: RouteRequest, scores: Sequence[GivenScore]) -> tuple[str, ...]:
    """Return what to read for each request, in this order: its labels, its score, its qualities."""
    qualities = [score.value for score in scores if isinstance(score.value, str)]
    if qualities and request.trace is None:
        raise BadInput("columns are those of a log, and these requests are made up", field="quality")
    by_label = [score.label for score in scores if score.label is not None]
    if by_label and not request.by:
        fix = f"Name the label of the log: {option('by', 'task')}."
        raise BadInput(f"scores of the label '{shorten(by_label[0])}', and no label is named", field="quality", fix=fix)
    asked = [*(request.by or ()), *([request.score] if request.score else []), *qualities]
    return labels_in(asked) if asked else ()


def _values(load: Load, columns: Sequence[str]) -> dict[str, tuple[Counts, list[str]]]:
    """Return, by column, the index of each request's value, and the values."""
    trace, found = load.trace, {}
    if columns and trace.tenant is not None:
        parts = [values_of(name, len(columns)) for name in trace.tenants]
        for place, column in enumerate(columns):
            names, numbers = np.unique([part[place] for part in parts], return_inverse=True)
            found[column] = numbers.astype(np.int32)[trace.tenant], [str(name) for name in names]
    return found


Values = Mapping[str, tuple[Counts, list[str]]]


def _marks(
    request: RouteRequest, requests: int, values: Values, scores: Sequence[GivenScore], models: int, listener: Listener
) -> Marks:
    label, labels = _labels(labels_in(request.by) if request.by else (), values)
    by_chance = request.score is None
    drawn = np.random.default_rng(request.seed).permutation(requests) + 0.5
    score = drawn / requests if by_chance else _figures(str(request.score), values, "score", listener, none=0.0)
    if not by_chance and not ((score >= 0) & (score <= 1)).all():
        raise BadInput(f"'{shorten(str(request.score))}' has values outside 0 to 1", field="score")
    quality = _qualities(scores, models, values, label, labels, listener) if scores else None
    marked = None if quality is None else tuple(np.broadcast_to(column, requests) for column in quality)
    joined, kept = _most_frequent(label, labels, listener)
    return Marks(score, by_chance, joined, kept, marked)


def _labels(by: Sequence[str], values: Values) -> tuple[Counts | None, tuple[str, ...]]:
    """Return the label of each request; several labels are joined into one."""
    if not by:
        return None, ()
    columns = [[values[column][1][number] for number in values[column][0]] for column in by]
    names, numbers = np.unique([" / ".join(row) for row in zip(*columns, strict=True)], return_inverse=True)
    return numbers.astype(np.int32), tuple(map(str, names))


def _most_frequent(
    label: Counts | None, labels: tuple[str, ...], listener: Listener
) -> tuple[Counts | None, tuple[str, ...]]:
    """Keep the most frequent labels, and join the rare ones."""
    if label is None or len(labels) <= MOST_LABELS:
        return label, labels
    order = np.argsort(-np.bincount(label, minlength=len(labels)), kind="stable")
    kept = order[: MOST_LABELS - 1]
    listener.note(f"{plural(len(labels) - len(kept), 'rare label')} are sent together, as '{_OTHERS}'")
    place = np.full(len(labels), MOST_LABELS - 1, np.int32)
    place[kept] = np.arange(len(kept))
    return place[label], (*(labels[number] for number in kept), _OTHERS)


def _long_apart(marks: Marks, tokens: NDArray[np.int64], context: int) -> Marks:
    """Give requests that some model cannot take a label of their own, so that it gets the others of their label."""
    if marks.label is None or (tokens <= context).all():
        return marks
    label = np.where(tokens > context, len(marks.labels), marks.label).astype(np.int32)
    return replace(marks, label=label, labels=(*marks.labels, f"over {context:,} tokens"))


def _figures(column: str, values: Values, field: str, listener: Listener, none: float | None = None) -> Floats:
    """Return a column of numbers; ``none`` replaces a missing value."""
    numbers, names = values[column]
    found = []
    for name in names:
        try:
            found.append(float(name) if name != UNNAMED or none is None else none)
        except ValueError:
            lacks = "a request says none" if name == UNNAMED else f"'{shorten(name)}' is no number"
            raise BadInput(f"{shorten(column)}: {lacks}", field=field) from None
    if UNNAMED in names and none is not None:
        missing = int((numbers == names.index(UNNAMED)).sum())
        listener.note(f"{plural(missing, 'request')} without a {shorten(column)}: taken as {none:g}")
    figures: Floats = np.array(found, np.float64)[numbers]
    if not np.isfinite(figures).all():
        raise BadInput(f"{shorten(column)} has values that are no numbers", field=field)
    return figures


def _qualities(
    scores: Sequence[GivenScore],
    models: int,
    values: Values,
    label: Counts | None,
    labels: tuple[str, ...],
    listener: Listener,
) -> list[Floats]:
    """Return, for each model, the quality of its answer to each request."""
    known = {score.label for score in scores if score.label is not None}
    for name in sorted(known - set(labels)):
        hint = did_you_mean(name, labels, 1) or f"Labels: {shorten(', '.join(labels), 200)}."
        raise BadInput(f"no request has the label '{shorten(name)}'", field="quality", fix=hint)
    found = []
    for model in range(models):
        own = [score for score in scores if score.model == model]
        general = next((score.value for score in own if score.label is None), np.nan)
        column = _figures(general, values, "quality", listener) if isinstance(general, str) else np.float64(general)
        if label is not None:
            by_label = {score.label: float(score.value) for score in own if score.label is not None}
            table = np.array([by_label.get(name, np.nan) for name in labels])[label]
            column = np.where(np.isnan(table), column, table)
        if np.isnan(column).any():
            raise BadInput("some label has no score of some model", field="quality", fix="Give each of them one.")
        found.append(np.asarray(column))
    return found
