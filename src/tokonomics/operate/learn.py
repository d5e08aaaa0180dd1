"""Learn from every window how a server differs from its model, how far forecasts are off, and what changed.

**What the server teaches** are four factors of a ``Correction``. A Kalman filter in logarithms follows them: they
drift by as much as they may plausibly be off (``measure.calibrate.PRIOR``) in a day, and a window's mean time per token
and to the first token are what their sensitivities, by simulation, make of them. What is left of a figure is its bias.

**What traffic teaches** is which of four forecasts is best: like the last window, two smoothed levels, or the last
window moved as yesterday at this time. Used is the one with the least squared error so far, old errors counting less.

**Intervals** are Student's t over the figure's own past errors, begun with those that the model has in general.

**A change** is an error that chance makes once in ten thousand windows, and of more than a tenth. It is named by the
one cause that explains the errors best (a likelihood ratio): kernels, launches, requests, the cache, or the traffic.
Afterwards the filter trusts its past less for what changed, so that the next window is expected as the server is now.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from tokonomics.measure.meter.windows import WINDOW_S, ServedWindow
from tokonomics.operate.expect import (
    TERMS,
    Expectation,
    KnownWindow,
    WindowTraffic,
    is_telling,
    measured_figures,
    traffic_of,
)
from tokonomics.operate.follow import (
    AS_MODELLED,
    BY_CHANCE,
    LEAST_CHANGE,
    POINTS,
    TAUGHT_BY,
    Cause,
    Followed,
    NoticedChange,
    ServerTerms,
    back,
    changed,
    differences,
    follow,
    forth,
)
from tokonomics.physics.intervals import prior_deviation
from tokonomics.sizing.setup import Setup
from tokonomics.types import Noun
from tokonomics.units import DAY_S, TOKENS_PER_MTOK, percent

TRAFFIC = ("requests_per_s", "input_tokens", "output_tokens", "hit_share")
FOLLOWED = (*TRAFFIC, "tokens_per_s")  # the last for engines that count no requests
_A_DAY = round(DAY_S / WINDOW_S)
_FORGET = 1 - 1 / _A_DAY  # an error of yesterday, if windows are ten minutes long, counts 1/e of one of now
_BEGUN_WITH = 3.0  # errors that the general ones count as (our choice)
_GENERAL = 0.2
"""Of traffic, and of what has no model, until windows have taught: between ten minutes, rates of the shipped traces of
Azure and Mooncake move by 6 to 57 % and lengths by 3 to 25 % (root mean square)."""
_ROBUST = 3.0  # an error counts at most as this many deviations, so that one change does not widen a day's intervals
_GAINS = {"last": 1.0, "half": 0.5, "fifth": 0.2}


class ForecastBand(Noun):
    """An expected figure with the range that holds four of five."""

    low: float
    mid: float
    high: float

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high


class WindowFigure(Noun):
    """One figure of one window."""

    measured: float | None = None
    forecast: ForecastBand | None = None  # from what was known when the window began
    given: ForecastBand | None = None  # said of its traffic, when that was known


class TwinWindow(Noun):
    """What was expected of a window, how it was, and what had changed in it."""

    target: str
    model: str
    start: float
    figures: dict[str, WindowFigure] = Field(default_factory=dict)
    changes: tuple[NoticedChange, ...] = ()
    factors: dict[str, float] = Field(default_factory=dict)  # what was learned up to its end
    is_over: bool = False
    state: "TwinState | None" = None  # after it; only the newest window keeps it


class Errors(Noun):
    """Squared errors, what chance alone made of them, and how many they count as, older ones counting less."""

    squares: float = 0.0
    by_chance: float = 0.0
    weight: float = 0.0

    def with_error(self, error: float, scatter: float = 0.0) -> "Errors":
        return Errors(
            squares=_FORGET * self.squares + error**2,
            by_chance=_FORGET * self.by_chance + scatter**2,
            weight=_FORGET * self.weight + 1,
        )

    def deviation(self, general: float, begun_with: float = _BEGUN_WITH, scatter: float = 0.0) -> float:
        """Return how far a figure is off as a rule, beside the scatter of those before and with that of this one."""
        own = max(0.0, self.squares - self.by_chance)
        return math.sqrt((begun_with * general**2 + own) / (begun_with + self.weight) + scatter**2)


class Level(Noun):
    """A traffic figure followed by several forecasts at once."""

    at: dict[str, float] = Field(default_factory=dict)
    errors: dict[str, Errors] = Field(default_factory=dict)

    def best(self) -> str:
        def size(name: str) -> float:
            errors = self.errors.get(name, Errors())
            return errors.squares / errors.weight if errors.weight else math.inf

        return min(self.at, key=size, default="last")


class TwinState(Noun):
    """All that a twin remembers of a server."""

    terms: tuple[float, ...] = AS_MODELLED.at  # logarithms of the factors
    covariance: tuple[tuple[float, ...], ...] = AS_MODELLED.covariance
    before_change: tuple[float, ...] | None = None  # the terms before the newest sudden change
    biases: dict[str, tuple[float, float]] = Field(default_factory=dict)  # sum and weight of what terms leave
    errors: dict[str, Errors] = Field(default_factory=dict)  # by ``forecast`` or ``given`` and figure
    levels: dict[str, Level] = Field(default_factory=dict)
    usual: dict[int, float] = Field(default_factory=dict)  # logarithm of the rate, by the window of the day
    started: float | None = None
    states: dict[str, str] = Field(default_factory=dict)
    windows: int = 0
    last_changes: tuple[NoticedChange, ...] = ()

    @property
    def factors(self) -> dict[str, float]:
        return {term: math.exp(value) for term, value in zip(TERMS, self.terms, strict=True)}

    def bias(self, name: str, has_model: bool) -> float:
        """Return what the terms leave of a figure; without a model, all of it."""
        total, weight = self.biases.get(name, (0.0, 0.0))
        return total / (weight + _BEGUN_WITH) if has_model else total / max(weight, 1e-12)


@dataclass(frozen=True)
class Learned:
    """What came of a window: its record and the memory after it."""

    window: TwinWindow
    state: TwinState


def learn(
    state: TwinState,
    window: ServedWindow,
    before: TwinWindow | None,
    setup: Setup | None,
    length_s: float = WINDOW_S,
) -> Learned:
    """Score a window that is over, learn from it, and name what changed; ``before`` is the forecast of it."""
    measured, traffic = measured_figures(window), traffic_of(window)
    told = _told_changes(state, window)
    if told:
        widened = ServerTerms(state.terms, state.covariance).in_doubt(TERMS)
        state = state.model_copy(update={"covariance": widened.covariance})
    expectation = _expectation(state, window, traffic, setup)
    scatter = expectation.scatter if expectation else {}
    given = _bands(state, "given", expectation.figures if expectation else {}, setup, scatter)
    changes = [*told, *_traffic_changes(state, measured)]
    if expectation is not None and is_telling(window):
        off = differences(measured, expectation.figures)
        if setup is None or traffic is None:
            state, found = _without_model(state, off, traffic_moved=bool(changes))
        else:
            chance = {name: _usual_error(state, f"given {name}", name, setup) for name in off}
            terms = ServerTerms(state.terms, state.covariance)
            before_it = None if state.before_change is None else replace(terms, at=state.before_change)
            known = KnownWindow(setup, traffic, window.buckets)
            restarted = any(change.cause in _RESTARTS for change in told)
            seen = [state.errors.get(f"given {name}", Errors()).weight for name in TAUGHT_BY if name in off]
            freedom = _BEGUN_WITH + min(seen, default=0.0)
            followed = follow(terms, known, measured, expectation, chance, freedom, before_it, restarted=restarted)
            state, found = _with_terms(state, followed, off), [followed.change] if followed.change else []
            if found:
                state = state.model_copy(update={"before_change": terms.at})
            if any(change.cause in _RESTARTS for change in (*told, *state.last_changes)):
                found = [one.model_copy(update={"what": f"since its restart, {one.what}"}) for one in found]
        changes += found
    changes = [_going_on(change, state.last_changes) for change in changes]
    figures = {
        name: WindowFigure(
            measured=value, forecast=before.figures[name].forecast if before and name in before.figures else None,
            given=given.get(name),
        )
        for name, value in measured.items()
    }  # fmt: skip
    state = _with_errors(state, figures, setup, scatter)
    if setup is None:  # nothing was simulated: what is given is what was forecast
        figures = {name: figure.model_copy(update={"given": None}) for name, figure in figures.items()}
    moved = any(change.cause in _SHIFTS for change in changes)
    state = _with_traffic(state, measured, window.start, length_s, moved)
    state = state.model_copy(
        update={
            "started": window.started if window.started is not None else state.started,
            "states": window.states or state.states,
            "windows": state.windows + 1,
            "last_changes": tuple(changes),
        }
    )
    record = TwinWindow(
        target=window.target, model=window.model, start=window.start, figures=figures, changes=tuple(changes),
        factors=state.factors if setup else {}, is_over=True,
    )  # fmt: skip
    return Learned(record, state)


_SHIFTS: tuple[Cause, ...] = ("traffic", "cache")
_RESTARTS: tuple[Cause, ...] = ("flags", "restart")


def forecast(state: TwinState, like: ServedWindow, start: float, setup: Setup | None) -> TwinWindow:
    """Return what is expected of the window that begins at ``start``; ``like`` is the newest one that is over."""
    made: dict[str, float] = {}
    scatter: Mapping[str, float] = {}
    for name in FOLLOWED:
        if level := state.levels.get(name):
            made[name] = back(name, level.at[level.best()])
    if setup is None:
        made |= dict.fromkeys(_WITHOUT_MODEL, 1.0)
    if set(TRAFFIC) <= made.keys():
        traffic = WindowTraffic(
            **{name: max(0.0, made[name]) for name in TRAFFIC}, seconds=like.seen_s,
            inputs=_shifted(traffic_of(like), "inputs"), outputs=_shifted(traffic_of(like), "outputs"),
        )  # fmt: skip
        made["tokens_per_s"] = traffic.tokens_per_s
        if found := _expectation(state, like, traffic, setup):
            made |= {name: value for name, value in found.figures.items() if name != "step_s" or like.step_count}
            scatter = found.scatter
    if made.get("tokens_per_s") and like.sums.usd > 0 and like.sums.seconds > 0:
        made["usd_per_mtok"] = like.sums.usd / like.sums.seconds / made["tokens_per_s"] * TOKENS_PER_MTOK
    bands = _bands(state, "forecast", made, setup, scatter)
    figures = {name: WindowFigure(forecast=band) for name, band in bands.items()}
    return TwinWindow(
        target=like.target, model=like.model, start=start, figures=figures, factors=state.factors if setup else {},
    )  # fmt: skip


def _shifted(traffic: WindowTraffic | None, name: str) -> dict[float, float]:
    return dict(getattr(traffic, name)) if traffic else {}


# --- what is expected -----------------------------------------------------------------------------------------------

_WITHOUT_MODEL = ("ttft_s", "ttft_p50_s", "ttft_p99_s", "tpot_s", "tpot_p50_s", "tpot_p99_s", "prompt_token_s")


def _expectation(
    state: TwinState, window: ServedWindow, traffic: WindowTraffic | None, setup: Setup | None
) -> Expectation | None:
    """Return the figures of a window by simulation; without a model, those of a server that never changes."""
    if setup is None:
        return Expectation(dict.fromkeys(_WITHOUT_MODEL, 1.0), {})
    return None if traffic is None else KnownWindow(setup, traffic, window.buckets).expected(state.factors)


def _bands(
    state: TwinState, kind: str, made: Mapping[str, float], setup: Setup | None, scatter: Mapping[str, float]
) -> dict[str, ForecastBand]:
    from scipy.special import stdtrit

    found = {}
    for name, value in made.items():
        errors = state.errors.get(f"{kind} {name}", Errors())
        if name in _WITHOUT_MODEL and setup is None and name not in state.biases:
            continue
        deviation = errors.deviation(_general(name, setup), scatter=scatter.get(name, 0.0))
        width = deviation * float(stdtrit(_BEGUN_WITH + errors.weight, 0.9))
        middle = forth(name, value) + (
            state.bias(name, setup is not None) if name in (*_WITHOUT_MODEL, *POINTS[1:], "step_s") else 0.0
        )
        low, mid, high = (back(name, middle + side * width) for side in (-1, 0, 1))
        found[name] = ForecastBand(low=low, mid=mid, high=high)
    return found


def _usual_error(state: TwinState, key: str, name: str, setup: Setup | None) -> float:
    return state.errors.get(key, Errors()).deviation(_general(name, setup))


def _general(name: str, setup: Setup | None) -> float:
    """Return how far a figure may be off before anything was learned of it."""
    if name in POINTS:
        return LEAST_CHANGE
    kind = name[:4]
    if setup is None or kind not in ("ttft", "tpot"):
        return _GENERAL
    return prior_deviation(kind, setup.deployment)  # type: ignore[arg-type]


# --- what changed ---------------------------------------------------------------------------------------------------


def _told_changes(state: TwinState, window: ServedWindow) -> list[NoticedChange]:
    """Return what the server itself says: a restart, or another set-up."""
    if state.windows == 0:
        return []
    changed = [
        f"{name} {state.states[name]} → {value}"
        for name, value in window.states.items()
        if _is_another(name, state.states.get(name, value), value)
    ]
    restarted = bool(window.restarts) or (
        None not in (state.started, window.started) and state.started != window.started
    )
    if any(text.startswith("version ") for text in changed):
        return [NoticedChange(cause="flags", what=f"another build: {', '.join(changed)}")]
    if changed:
        return [
            NoticedChange(
                cause="flags", what=f"{'restarted with ' if restarted else ''}other flags: {', '.join(changed)}"
            )
        ]
    return [NoticedChange(cause="restart", what="the server was restarted")] if restarted else []


_PROFILED = ("num_gpu_blocks", "kv_cache_size_tokens", "kv_cache_memory_bytes")
"""What an engine finds out about its memory when it starts: a little different each time."""


def _is_another(name: str, before: str, now: str) -> bool:
    if name in _PROFILED and before.isdigit() and now.isdigit() and int(before):
        return abs(int(now) / int(before) - 1) > LEAST_CHANGE
    return before != now


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


_GREW = {
    "requests_per_s": ("more requests came", "fewer requests came"),
    "input_tokens": ("prompts got longer", "prompts got shorter"),
    "output_tokens": ("answers got longer", "answers got shorter"),
    "tokens_per_s": ("more tokens came", "fewer tokens came"),
    "hit_share": ("the cache hits more", "the cache hits less"),
}


def _traffic_changes(state: TwinState, measured: Mapping[str, float]) -> list[NoticedChange]:
    """Return which figures of the traffic moved further than chance and their usual drift."""
    found = []
    for name in TRAFFIC if "requests_per_s" in measured else ("tokens_per_s", "hit_share"):
        level = state.levels.get(name)
        if level is None or name not in measured or not level.errors:
            continue
        best = level.best()
        error = forth(name, measured[name]) - level.at[best]
        if abs(error) > max(_alarm(level.errors.get(best, Errors()), name), LEAST_CHANGE):
            before, now = back(name, level.at[best]), measured[name]
            shown = f"{percent(before)} → {percent(now)}" if name in POINTS else f"{_number(before)} → {_number(now)}"
            cause: Cause = "cache" if name == "hit_share" else "traffic"
            ratio = None if name in POINTS else now / before
            found.append(NoticedChange(cause=cause, what=f"{_GREW[name][error < 0]}: {shown}", ratio=ratio))
    return found


def _alarm(errors: Errors, name: str) -> float:
    """Return the error of a followed figure that chance passes once in ten thousand windows, by Student's t."""
    from scipy.special import stdtrit

    usual = errors.deviation(_general(name, None), 1.0)
    return usual * float(stdtrit(_BEGUN_WITH + errors.weight, 1 - BY_CHANCE / 2))


def _with_terms(state: TwinState, followed: Followed, off: Mapping[str, float]) -> TwinState:
    biases = {
        name: _decayed(state.biases.get(name, (0.0, 0.0)), followed.left.get(name, value))
        for name, value in off.items()
        if name not in TAUGHT_BY
    }
    terms = followed.terms
    return state.model_copy(update={"terms": terms.at, "covariance": terms.covariance, "biases": state.biases | biases})


def _without_model(
    state: TwinState, off: Mapping[str, float], *, traffic_moved: bool
) -> tuple[TwinState, list[NoticedChange]]:
    """Follow every figure by itself: what the server did is what it is expected to do."""
    found, biases = list[NoticedChange](), dict(state.biases)
    for name, value in off.items():
        if name not in biases:
            biases[name] = (value, 1.0)
            continue
        error = value - state.bias(name, has_model=False)
        alarm = _alarm(state.errors.get(f"given {name}", Errors()), name)
        if abs(error) > max(alarm, LEAST_CHANGE) and not traffic_moved:
            if not found and name in ("tpot_s", "prompt_token_s"):
                ratio = math.exp(error)
                found.append(changed("kernels", ratio))
            biases[name] = (value, 1.0)
        else:
            biases[name] = _decayed(biases[name], value)
    return state.model_copy(update={"biases": biases}), found


def _decayed(sums: tuple[float, float], value: float) -> tuple[float, float]:
    return _FORGET * sums[0] + value, _FORGET * sums[1] + 1


def _going_on(change: NoticedChange, before: Sequence[NoticedChange]) -> NoticedChange:
    """Mark a change that began in the window before, of which that one had only a part."""

    def grew(one: NoticedChange) -> bool | None:
        return None if one.ratio is None else one.ratio > 1

    same = any(one.cause == change.cause and grew(one) == grew(change) and not one.goes_on for one in before)
    return change.model_copy(update={"goes_on": same})


# --- what is remembered ---------------------------------------------------------------------------------------------


def _with_errors(
    state: TwinState, figures: Mapping[str, WindowFigure], setup: Setup | None, scatter: Mapping[str, float]
) -> TwinState:
    errors = dict(state.errors)
    for name, figure in figures.items():
        for kind, band in (("forecast", figure.forecast), ("given", figure.given)):
            if band is not None and figure.measured is not None:
                known = errors.get(f"{kind} {name}", Errors())
                most = _ROBUST * known.deviation(_general(name, setup), scatter=scatter.get(name, 0.0))
                error = forth(name, figure.measured) - forth(name, band.mid)
                # One window near the limit, where chance is large, does not undo what was learned.
                by_chance = min(scatter.get(name, 0.0), _general(name, setup))
                errors[f"{kind} {name}"] = known.with_error(min(most, max(-most, error)), by_chance)
    return state.model_copy(update={"errors": errors})


def _with_traffic(
    state: TwinState, measured: Mapping[str, float], start: float, length_s: float, moved: bool
) -> TwinState:
    """Follow the levels of the traffic; after a change all of them begin again from what came."""
    levels, usual = dict(state.levels), dict(state.usual)
    slot, following = (int((start + ahead) % DAY_S // length_s) for ahead in (0.0, length_s))
    for name in FOLLOWED:
        if name not in measured:
            continue
        value, level = forth(name, measured[name]), levels.get(name, Level())
        errors = {
            way: level.errors.get(way, Errors()).with_error(_clipped(level, way, name, value - at))
            for way, at in level.at.items()
        }
        at = {
            way: value if moved or way not in level.at else level.at[way] + gain * (value - level.at[way])
            for way, gain in _GAINS.items()
        }
        if name == "requests_per_s":
            if slot in usual and following in usual:
                at["day"] = value + usual[following] - usual[slot]
            usual[slot] = value if slot not in usual else (usual[slot] + value) / 2
        levels[name] = Level(at=at, errors=errors)
    return state.model_copy(update={"levels": levels, "usual": usual})


def _clipped(level: Level, way: str, name: str, error: float) -> float:
    most = _ROBUST * level.errors.get(way, Errors()).deviation(_general(name, None), 1.0)
    return min(most, max(-most, error))
