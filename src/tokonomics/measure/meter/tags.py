"""Split a metered bill by the tags of a request log: team, feature, user, whatever the log knows and servers do not.

The ledger knows what every hour of a server cost and how many tokens it counted; the log knows who sent them. Each
hour's dollars of a model, idle time included, are shared out by the GPU time of the requests that began in that hour:
their computed, cached and answered tokens, each times what a token of its kind costs (``bill.token_cost``: by GPU time
if the GPU is named, otherwise every token alike). If the log does not say which prompt tokens were cached, the metered
share is assumed.

- Metered tokens that the log lacks have a share of their own, ``NOT_IN_LOG``. A request that began at the end of an
  hour may be counted in the next, so what the log has beyond the count of one hour fills what it lacks in the next.
- Tokens counted over an absence stand at its end, so the hours of an absence are one period with the hour that ends it.
- Hours without any token follow the shares of the whole stretch: servers wait for those who use them.
- A model without any token in the whole stretch is ``UNUSED``.

The tokens of a line are the metered ones by the log's shares of each kind, and its requests likewise, where those that
the log lacks have the share of their dollars. So dollars, seconds, tokens and requests of the lines add up to the bill.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.meter.bill import ALIKE, TokenCost
from tokonomics.measure.meter.state import MeterTally, Statement, StatementLine
from tokonomics.memory_budget import check_room
from tokonomics.traffic.attribution import values_of
from tokonomics.traffic.formats import UNNAMED
from tokonomics.traffic.sources import named
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

if TYPE_CHECKING:
    from tokonomics.traffic.readers import TraceFile

Floats = NDArray[np.float64]
Who = tuple[str, ...]  # a value for each tag
MODEL = "model"  # the label of a request that tells on which servers it ran
NOT_IN_LOG, UNUSED = "(not in the log)", "(unused)"
_KINDS = 3  # computed, cached and answered tokens
_FIELDS = tuple(MeterTally.model_fields)
_ROUNDING = 1e-9  # of a count: sums of floats are off by less, and a log lacks whole tokens
_NOT_IN_LOG, _UNUSED = -2, -1  # places behind those of the log's senders


def without(tag: str) -> str:
    """Return the value of a tag for requests that have none: ``(no team)``."""
    return f"(no {tag})"


class Sent(NamedTuple):
    """What requests sent, in tokens."""

    requests: float = 0.0
    input: float = 0.0
    cached: float = 0.0  # of the requests that say so
    unsaid: float = 0.0  # part of ``input``: of the requests that do not say what was cached
    output: float = 0.0


_BYTES = 8 * (len(Sent._fields) + 3 * (_KINDS + 2))  # by period and sender: sums, and shares while they are made


@dataclass
class TaggedLog:
    """What a log has within a stretch: by model (as the log names it), hour since 1970 and tags."""

    tags: tuple[str, ...]
    name: str = "the log"
    sent: dict[tuple[str, int, Who], Sent] = field(default_factory=dict)
    outside: int = 0  # requests before or after the stretch
    first: float = float("inf")  # when the first request of the whole log began
    last: float = float("-inf")


def read_tags(file: "TraceFile", tags: Sequence[str], since: float, until: float) -> TaggedLog:
    """Return who sent what between two instants, by those tags that any request has.

    The log was opened with the tags and ``MODEL`` as its labels.
    """
    import polars as pl

    found, sums = TaggedLog((), named(file.path)), list[pl.DataFrame]()
    hour = (pl.col("arrival") // SECONDS_PER_HOUR).cast(pl.Int64).alias("hour")
    for batch in file.batches():
        times = batch["arrival"].to_numpy()
        found.first, found.last = min(found.first, float(times.min())), max(found.last, float(times.max()))
        kept = batch.filter(pl.col("arrival").is_between(since, until, closed="left"))
        found.outside += len(batch) - len(kept)
        said = pl.col("cached") if "cached" in batch.columns else pl.lit(None, pl.Int64)
        cached = pl.when(said.is_not_null()).then(pl.min_horizontal(said, "input"))
        parts = kept.select(
            "tenant", hour, requests=pl.lit(1), input="input", cached=cached.fill_null(0),
            unsaid=pl.when(said.is_null()).then("input").otherwise(0), output="output",
        )  # fmt: skip
        sums.append(parts.group_by("tenant", "hour").agg(pl.col(*Sent._fields).sum()))
    labels = file.log.unfolding.attribution if file.log.unfolding else None
    seen = labels.seen if labels else set(tags)
    if labels and not seen.intersection(tags):
        replace(labels, by=tuple(tags)).check(found.name)  # refuses it
    found.tags = tuple(tag for tag in tags if tag in seen)
    for tenant, at, *numbers in pl.concat(sums).group_by("tenant", "hour").agg(pl.col(*Sent._fields).sum()).iter_rows():
        *values, model = values_of(tenant, len(tags) + 1)
        values_by_tag = {
            tag: without(tag) if value == UNNAMED else value for tag, value in zip(tags, values, strict=True)
        }
        key = "" if model == UNNAMED else model, at, tuple(values_by_tag[tag] for tag in found.tags)
        found.sent[key] = Sent(*map(float, numbers))
    return found


class LogSplit(Noun):
    """How a bill was split by a log, and where the log and the meter disagree."""

    tags: tuple[str, ...]
    requests: int  # that the dollars were shared out to
    outside: int  # requests of the log before or after the stretch
    elsewhere: int  # requests to models that no metered server serves
    elsewhere_models: tuple[str, ...]
    unnamed_model: int  # requests that name no model: shared out over all metered ones
    untagged: dict[str, int]  # requests that lack a tag, by tag
    tokens: float  # of the requests, input and output
    metered_tokens: float
    not_in_log_share: float  # of the metered tokens
    beyond_share: float  # tokens of the log beyond what was metered, as a share of the metered
    quiet_usd: float  # of hours without a token: they follow the shares of the whole stretch
    cached_said_share: float  # of the log's prompt tokens: those of which it says whether they were cached
    weights: str  # how tokens were weighed
    by_gpu_time: bool  # otherwise every token alike


@dataclass
class _Model:
    """The periods of one metered model, and whose its dollars and tokens were in each of them."""

    of_hour: Mapping[int, int]
    metered: Floats  # by period and kind
    dollars: Floats  # shares by period and sender: those of the log, NOT_IN_LOG and UNUSED
    kinds: Sequence[Floats]  # the same for computed, cached and answered tokens, and for requests
    quiet: NDArray[np.bool_]  # periods without a token


class BillSplit:
    """The shares of a log's senders in a bill by hour, other keys of the ledger, model and engine (the last two)."""

    def __init__(self, billed: Statement, log: TaggedLog, costs: Iterable[TokenCost]) -> None:
        self._billed, self._log = billed, log
        self._costs = {cost.model: cost for cost in costs}
        self._pieces: dict[str, list[tuple[int, StatementLine]]] = defaultdict(list)
        for line in billed.lines:
            self._pieces[line.group[-2]].append((_hour(line.group[0]), line))
        self._places = {who: place for place, who in enumerate(sorted({who for _, _, who in log.sent}))}
        self._metered_as = {name: _metered_as(name, self._pieces) for name, _, _ in log.sent if name}
        if self._pieces:
            self._refuse_strangers()
        sent = self._by_model()
        self._models = {model: self._model(model, sent[model]) for model in self._pieces}

    def _refuse_strangers(self) -> None:
        """Refuse a log without any request to a metered server in this stretch."""
        log = self._log
        if not log.sent:
            since, until, first, last = map(_day, (self._billed.since, self._billed.until, log.first, log.last))
            said = f"no request of it lies in what was metered from {since} to {until} UTC"
            raise BadInput(said, where=log.name, fix=f"It goes from {first} to {last}: is it the right log?")
        if self._metered_as and not any(self._metered_as.get(name, "") is not None for name, _, _ in log.sent):
            there, ours = (", ".join(map(shorten, sorted(names)[:5])) for names in (self._metered_as, self._pieces))
            fix = "The log must name models as the servers do (vLLM: --served-model-name), or not at all."
            raise BadInput(f"its requests are to {there}; metered was {ours}", where=log.name, fix=fix)

    def statement(self, by: Sequence[str]) -> Statement:
        """Return the bill by tags of the log and keys of the ledger."""
        tags, blank = self._log.tags, [""] * (len(self._log.tags) - 1)
        senders = [*self._places, (NOT_IN_LOG, *blank), (UNUSED, *blank)]
        groups: dict[tuple[str, ...], MeterTally] = defaultdict(MeterTally)
        for model, pieces in self._pieces.items():
            shared = self._models[model]
            for values, sums in self._summed(pieces, [key for key in by if key not in tags], shared):
                for place, tally in _parts(sums, shared):
                    known = values | dict(zip(tags, senders[place], strict=True))
                    group = tuple(known[key] for key in by)
                    groups[group] = groups[group] + tally
        ordered = sorted(groups.items(), key=lambda item: [(value[:1] == "(", value) for value in item[0]])
        lines = tuple(StatementLine(group=group, sums=sums) for group, sums in ordered)
        return self._billed.model_copy(update={"by": tuple(by), "lines": lines})

    def summary(self) -> LogSplit:
        """Return where the log and the meter disagree."""
        models, sent = self._models.values(), self._log.sent
        ours = {key: one for key, one in sent.items() if self._metered_as.get(key[0], "") is not None}
        total = _total(ours.values())
        apart: dict[str, float] = defaultdict(float)
        for (name, _, _), one in sent.items():
            if self._metered_as.get(name, "") is None:
                apart[name] += one.requests
        untagged = {
            tag: round(_total(one for (_, _, who), one in ours.items() if who[place] == without(tag)).requests)
            for place, tag in enumerate(self._log.tags)
        }
        metered = sum(float(shared.metered.sum()) for shared in models)
        lacking = sum(
            float(shares[:, _NOT_IN_LOG] @ shared.metered[:, kind])
            for shared in models
            for kind, shares in enumerate(shared.kinds[:_KINDS])
        )
        tokens = total.input + total.output
        splits = sorted({cost.split for cost in self._costs.values()})
        return LogSplit(
            tags=self._log.tags,
            requests=round(total.requests),
            outside=self._log.outside,
            elsewhere=round(sum(apart.values())),
            elsewhere_models=tuple(sorted(apart, key=lambda name: (-apart[name], name))),
            unnamed_model=round(_total(one for (name, _, _), one in sent.items() if not name).requests),
            untagged={tag: number for tag, number in untagged.items() if number},
            tokens=tokens,
            metered_tokens=metered,
            not_in_log_share=lacking / metered if metered else 0.0,
            beyond_share=max(0.0, tokens - (metered - lacking)) / metered if metered else 0.0,
            quiet_usd=sum(
                line.sums.usd
                for model, pieces in self._pieces.items()
                for hour, line in pieces
                if self._models[model].quiet[self._models[model].of_hour[hour]]
            ),
            cached_said_share=1 - total.unsaid / total.input if total.input else 0.0,
            weights=", ".join(splits) or ALIKE,
            by_gpu_time=any(split != ALIKE for split in splits),
        )

    def _by_model(self) -> dict[str, dict[tuple[int, Who], Floats]]:
        """Return what was sent to each metered model; requests without a model by what each metered in that hour."""
        sent: dict[str, dict[tuple[int, Who], Floats]] = {model: {} for model in self._pieces}
        tokens: dict[str, dict[int, float]] = {model: defaultdict(float) for model in self._pieces}
        for model, pieces in self._pieces.items():
            for hour, line in pieces:
                tokens[model][hour] += line.sums.billed_tokens
        for (name, hour, who), one in self._log.sent.items():
            if name:
                own = self._metered_as[name]
                parts = {} if own is None else {own: 1.0}
            else:
                then = {model: tokens[model].get(hour, 0.0) for model in tokens}
                if not any(then.values()):
                    then = {model: sum(hours.values()) or 1.0 for model, hours in tokens.items()}
                parts = {model: part / sum(then.values()) for model, part in then.items()}
            for model, part in parts.items():
                sent[model][hour, who] = sent[model].get((hour, who), 0.0) + np.array(one) * part
        return sent

    def _model(self, model: str, sent: Mapping[tuple[int, Who], Floats]) -> _Model:
        of_hour, follows = _periods(self._pieces[model])
        cells = (max(of_hour.values()) + 1) * (len(self._places) + 2)
        fix = "Report a shorter stretch, or by a tag with fewer values."
        check_room(cells * _BYTES, "so many senders in so many hours", where="the log", fix=fix)
        metered = np.zeros((len(follows), _KINDS))
        for hour, line in self._pieces[model]:
            sums = line.sums
            metered[of_hour[hour]] += sums.input_computed, sums.input_cached, sums.output
        raw = np.zeros((len(Sent._fields), len(follows), len(self._places)))
        for (hour, who), one in sent.items():
            if hour in of_hour:
                raw[:, of_hour[hour], self._places[who]] += one
        prompts = metered[:, 0] + metered[:, 1]
        assumed = np.divide(metered[:, 1], prompts, out=np.zeros_like(prompts), where=prompts > 0)
        requests, given, said, unsaid, output = raw
        cached = said + unsaid * assumed[:, None]
        logged = (np.maximum(given - cached, 0.0), cached, output)
        cost = self._costs.get(model)
        weights = np.array([cost.input, cost.cached, cost.output] if cost else [1.0] * _KINDS)
        weighed = sum(weight * part for weight, part in zip(weights, logged, strict=True))
        dollars, quiet = _shares(np.asarray(weighed), metered @ weights, follows)
        kinds = [_shares(part, metered[:, kind], follows)[0] for kind, part in enumerate(logged)]
        counted, own = dollars.copy(), requests.sum(axis=1)
        seen = own > 0
        counted[seen, :_NOT_IN_LOG] = requests[seen] * ((1 - dollars[seen, _NOT_IN_LOG]) / own[seen])[:, None]
        return _Model(of_hour, metered, dollars, [*kinds, counted], quiet)

    def _summed(
        self, pieces: Iterable[tuple[int, StatementLine]], keys: Sequence[str], shared: _Model
    ) -> Iterable[tuple[dict[str, str], Floats]]:
        """Yield the values of the ledger's keys, and the sums of a bill's fields by period."""
        found: dict[tuple[str, ...], Floats] = {}
        for hour, line in pieces:
            values = dict(zip(self._billed.by, line.group, strict=True)) | {"day": line.group[0][:10]}
            group = tuple(values[key] for key in keys)
            sums = found.setdefault(group, np.zeros((len(_FIELDS), len(shared.quiet))))
            sums[:, shared.of_hour[hour]] += [getattr(line.sums, name) for name in _FIELDS]
        for group, sums in found.items():
            yield dict(zip(keys, group, strict=True)), sums


def _hour(text: str) -> int:
    """Return an hour of a bill as hours since 1970."""
    return int(datetime.strptime(text, "%Y-%m-%d %H:%M").replace(tzinfo=UTC).timestamp() // SECONDS_PER_HOUR)


def _day(at: float) -> str:
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return f"{at:,.0f} s after 1970"


def _total(sent: Iterable[Sent]) -> Sent:
    return Sent(*(sum(numbers) for numbers in zip(*sent, strict=True)))


def _metered_as(name: str, models: Iterable[str]) -> str | None:
    """Return the metered model that a log means: of the same name, else with another owner or provider before it."""
    known = sorted(models)
    if known == [""]:  # a server that does not name its model
        return ""
    said = name.casefold()
    same = [model for model in known if model.casefold() == said]
    alike = [model for model in known if model and model.casefold().rpartition("/")[2] == said.rpartition("/")[2]]
    return next(iter((*same, *alike)), None)


def _periods(pieces: Iterable[tuple[int, StatementLine]]) -> tuple[dict[int, int], NDArray[np.bool_]]:
    """Return the period of each hour, and which periods directly follow the one before.

    Tokens counted over an absence stand in the hour that ended it, so the hours of the absence are one period with it.
    """
    absent: dict[int, float] = defaultdict(float)
    late: dict[int, float] = defaultdict(float)
    for hour, line in pieces:
        absent[hour] += line.sums.gap_s + line.sums.away_s
        late[hour] += line.sums.unseen_tokens
    hours = sorted(absent)
    joins, is_open = {hours[0]: False}, False
    for before, hour in zip(hours[-2::-1], hours[:0:-1], strict=True):
        is_open = (is_open or late[hour] > 0) and hour == before + 1 and absent[before] > 0
        joins[hour] = is_open
    of_hour, follows = dict[int, int](), list[bool]()
    for before, hour in zip([hours[0] - 2, *hours], hours, strict=False):
        if not joins[hour]:
            follows.append(hour == before + 1)
        of_hour[hour] = len(follows) - 1
    return of_hour, np.array(follows)


def _shares(logged: Floats, metered: Floats, follows: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the shares of each period: of the log's senders, NOT_IN_LOG and UNUSED; and which periods have nothing."""
    own = logged.sum(axis=1)
    beyond, lacking = np.maximum(own - metered, 0.0), np.maximum(metered - own, 0.0)
    moved = np.where(follows[1:], np.minimum(beyond[:-1], lacking[1:]), 0.0)
    part = np.divide(moved, own[:-1], out=np.zeros_like(moved), where=own[:-1] > 0)[:, None]
    placed = logged.copy()
    placed[:-1] *= 1 - part
    placed[1:] += part * logged[:-1]
    missing = metered - placed.sum(axis=1)
    missing[missing < _ROUNDING * metered] = 0.0
    whole = np.column_stack([placed, missing, np.zeros(len(metered))])
    totals = whole.sum(axis=1)
    usual = whole.sum(axis=0)
    usual[_UNUSED] = 0.0 if totals.any() else 1.0
    quiet = totals <= 0
    whole[quiet], totals[quiet] = usual, usual.sum()
    return whole / totals[:, None], quiet


def _parts(sums: Floats, shared: _Model) -> Iterable[tuple[int, MeterTally]]:
    """Yield each sender's part of a bill's fields by period."""
    of = dict(zip(_FIELDS, sums, strict=True))
    computed, cached, output, requests = (shares.T for shares in shared.kinds)
    prompts = computed @ (of["input_total"] - of["input_cached"])
    late_output = output @ of["unseen_output"]
    money = shared.dollars.T @ sums.T
    counted = {
        "input_cached": cached @ of["input_cached"], "output": output @ of["output"],
        "answered": requests @ of["answered"], "unseen_output": late_output,
        "unseen_tokens": computed @ (of["unseen_tokens"] - of["unseen_output"]) + late_output,
    }  # fmt: skip
    counted["input_total"] = prompts + counted["input_cached"]
    table = np.column_stack([counted.get(name, money[:, place]) for place, name in enumerate(_FIELDS)])
    for place in np.flatnonzero(table.any(axis=1)):
        yield int(place), MeterTally.model_construct(None, **dict(zip(_FIELDS, table[place].tolist(), strict=True)))
