"""Show a search for engine flags, and the check of its certificate: the best set, every trial, the ranking."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tokonomics.errors import option
from tokonomics.questions.requests.run import TuneRequest, VerifyRequest
from tokonomics.questions.tune_answer import RankedSet, TuneResult
from tokonomics.questions.verify import VerifyResult
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer, Charts
from tokonomics.report.wording import NO_VALUE, usd_text
from tokonomics.units import fine_percent, percent, plural, requests_a_second, seconds, usd

_SEARCH, _RANKING = "The search", "The ranked flag sets"


def tune(result: TuneResult, request: TuneRequest) -> Answer:
    files = [blocks.File(file.name, file.text) for file in result.deploy]
    title = f"Engine flags for {_what(result.model, result.gpu)}"
    return Answer(result, title, lambda: [*_found(result, request), *files], _charts(result))


def verify(result: VerifyResult, request: VerifyRequest) -> Answer:
    about = _what(result.model, result.gpu)
    drawn: Charts = {}
    if result.tried:
        title = f"The search for flags: {about}"
        drawn = {_SEARCH: lambda: charts.tune.search_chart(result.tried, title, _under(result))}
    return Answer(result, f"A certificate of {about}", partial(_checked, result), drawn)


def _charts(result: TuneResult) -> Charts:
    drawn: dict[str, Callable[[], Any]] = {}
    about, under = _what(result.model, result.gpu), _under(result)
    if result.trials:
        title = f"The search for flags: {about}"
        drawn = {_SEARCH: lambda: charts.tune.search_chart(result.trials, title, under)}
    if any(each.measured_rate or each.expected_rate for each in result.ranked):
        below = f"{under}; lines: the 80 % interval"
        sets = f"Flag sets for {about}"
        drawn = {**drawn, _RANKING: lambda: charts.tune.ranked_chart(result.ranked, sets, below)}
    return drawn


def _what(model: str, gpu: str | None) -> str:
    name = "a server" if model == "unnamed" else model
    return f"{name} on {gpu}" if gpu else name


def _under(result: TuneResult | VerifyResult) -> str:
    return f"{result.engine}; {result.slos}"


# --- a search -------------------------------------------------------------------------------------------------------


def _found(result: TuneResult, request: TuneRequest) -> blocks.View:
    yield _headline(result)
    why = "as you asked" if request.requests else "ten beyond the percentile that is promised"
    about = f"{_what(result.model, result.gpu)}, {result.engine}; {result.slos}; {result.traffic} tokens"
    yield blocks.line(f"{about}; {result.requests:,} requests a load, {why}", kind="asked")
    yield _flags(result.best)
    if result.quality is not None:
        kept = "not known" if result.quality.share is None else fine_percent(result.quality.share)
        yield blocks.facts(("quality kept", kept, result.quality.said, result.quality.share))
    if result.trials:
        yield _trials(result.trials, result.best, "Trials")
    if result.to_try:
        yield _first_trials(result)
    if any(each.measured_rate or each.expected_rate for each in result.ranked):
        yield _ranking(result)
    if result.refused:
        yield blocks.listed(
            result.refused.items(),
            (">combinations", lambda row: f"{row[1]:,}"),
            ("never tried, because", lambda row: row[0]),
        )
    yield blocks.section(*map(blocks.hint, _hints(result)))
    stopped = f"No further set is tried: {result.stopped}." if result.stopped else ""
    simulated = f"{plural(result.simulated, 'set')} simulated." if result.simulated else ""
    price = f"Price: {result.price_from}." if result.price_from else ""
    yield blocks.note(simulated, stopped, price)


def _headline(result: TuneResult) -> blocks.Line:
    best, started = result.best, result.started
    if best is None and not result.trials:
        return blocks.headline("Nothing is known before the first trial", f": {plural(len(result.ranked), 'set')}")
    if best is None:
        return blocks.headline("No flag set met the targets", f": {result.slos}", "worst")
    rest = f" holds {_rate_text(best)}"
    if best.usd_per_mtok is not None and started.usd_per_mtok is not None and best.name != started.name:
        rest += f": {usd(started.usd_per_mtok)} → {usd(best.usd_per_mtok)} per Mtok{_saved(result)}"
    elif best.usd_per_mtok is not None:
        rest += f", {usd(best.usd_per_mtok)} per Mtok"
    elif result.saved_share:
        rest += f": {percent(result.saved_share)} less GPU time per token, at the same targets"
    return blocks.headline(best.name, rest)


def _saved(result: TuneResult) -> str:
    """Say what is saved if both were measured."""
    return "" if result.saved_share is None else f", {percent(result.saved_share)} less, at the same targets"


def _rate_text(each: RankedSet) -> str:
    rate, how = (each.predicted_rate, "simulated") if each.measured_rate is None else (each.measured_rate, "measured")
    return f"{requests_a_second(f'{rate or 0:.3g}')} ({how})"


def _flags(best: RankedSet | None) -> blocks.Block | None:
    """Show the flags of the best set, to copy."""
    if best is None:
        return None
    served = [("checkpoint", blocks.Span(best.checkpoint, "strong"))] if best.checkpoint else []
    return blocks.facts(("flags", blocks.Span(best.words or "none: as it is started", "strong")), *served)


def _rate(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.3g}"


def _trials(trials: Sequence[RankedSet], best: RankedSet | None, title: str) -> blocks.Table:
    """Show every trial in its order."""
    simulated = any(trial.predicted_rate is not None for trial in trials)
    priced = any(trial.usd_per_mtok is not None for trial in trials)
    place = next((at for at, trial in enumerate(trials) if best and trial.name == best.name), None)
    return blocks.listed(
        trials,
        ("set", lambda trial: trial.name),
        ("flags", lambda trial: trial.words or NO_VALUE),
        (">GPUs", lambda trial: str(trial.gpus)) if any(trial.gpus > 1 for trial in trials) else None,
        (">simulated req/s", lambda trial: _rate(trial.predicted_rate)) if simulated else None,
        (">measured req/s", lambda trial: _rate(trial.measured_rate)),
        (">held, missed at", _between),
        (">$/Mtok", lambda trial: usd_text(None if trial.measured_rate is None else trial.usd_per_mtok))
        if priced
        else None,
        ("failed", lambda trial: blocks.Span(trial.failed or "", "bad"))
        if any(trial.failed for trial in trials)
        else None,
        title=title,
        best=place,
        numbered=True,
    )


def _between(trial: RankedSet) -> str:
    """Write the two rates that were played between which the measured one is read off."""
    return NO_VALUE if trial.held_rate is None else f"{_rate(trial.held_rate)}, {_rate(trial.missed_rate)}"


def _first_trials(result: TuneResult) -> blocks.Table:
    """Show what would be tried first, and how long a load of it takes."""
    return blocks.listed(
        result.to_try,
        ("set", lambda each: each.name),
        ("flags", lambda each: each.words or NO_VALUE),
        (">simulated req/s", lambda each: _rate(each.predicted_rate)),
        (">a load takes about", lambda each: _load_text(result, each.predicted_rate)),
        title="It would try first",
        numbered=True,
    )


def _load_text(result: TuneResult, rate: float | None) -> str:
    return NO_VALUE if not rate else seconds(max(result.requests / rate, result.least_load_s), 2)


def _ranking(result: TuneResult) -> blocks.Table:
    """Show every set by what it holds or is expected to hold for each GPU."""
    ranked = result.ranked
    simulated = any(each.predicted_rate is not None for each in ranked)
    priced = any(each.usd_per_mtok is not None for each in ranked)
    best = next((at for at, each in enumerate(ranked) if result.best and each.name == result.best.name), None)
    return blocks.listed(
        ranked,
        ("set", lambda each: each.name),
        (">GPUs", lambda each: str(each.gpus)) if any(each.gpus > 1 for each in ranked) else None,
        (">simulated req/s", lambda each: _rate(each.predicted_rate)) if simulated else None,
        (">80 % interval", _interval),
        (">measured req/s", lambda each: _rate(each.measured_rate)) if result.trials else None,
        (">$/Mtok", lambda each: usd_text(each.usd_per_mtok)) if priced else None,
        title="Ranking, after the trials" if result.trials else "Ranking",
        best=best,
        numbered=True,
    )


def _interval(each: RankedSet) -> str:
    known = each.low_rate is not None and each.high_rate is not None
    return f"{each.low_rate:.3g} to {each.high_rate:.3g}" if known else NO_VALUE


def _hints(result: TuneResult) -> list[str]:
    hints = []
    if result.proposed is not None:
        flags = result.proposed or "no flags but your own"
        hints.append(f"Restart the server with: {flags}; then run the same command")
    if not result.trials and result.proposed is None:
        hints.append("To try them, give the command that starts your engine, or its address: `tokonomics tune --help`.")
    if not result.simulated:
        hints.append(f"Nothing was simulated: name the GPU with {option('gpu', 'H100')} and the model.")
    if result.price_from is None:
        hints.append(f"No price: give {option('usd_per_hour')}, or {option('gpu')} for the cheapest offer.")
    if result.certificate is not None:
        hints.append(
            f"All that was measured is in {result.certificate}: `tokonomics tune --verify {result.certificate}`."
        )
    return hints


# --- the check of a certificate -------------------------------------------------------------------------------------


def _checked(result: VerifyResult) -> blocks.View:
    if result.wrong:
        figures = f"{plural(len(result.wrong), 'figure')} do not follow from what was measured"
        yield blocks.headline(figures, f": {result.certificate}", "worst")
    else:
        yield _best_held(result)
    about = f"{_what(result.model, result.gpu)}, {result.engine}; {result.slos}"
    yield blocks.line(f"{about}; {result.requests:,} requests measured", kind="asked")
    yield _flags(result.best_set)
    if result.again is not None:
        rate, late = requests_a_second(f"{result.again.rate:.3g}"), result.again.late
        said = "requests failed" if late is None else f"{percent(late)} of the worst target"
        yield blocks.facts(("measured again", rate, said, late))
    if result.tried:
        yield _trials(result.tried, result.best_set, "Trials")
    yield blocks.section(*(blocks.line(text, kind="bad") for text in result.wrong))
    yield blocks.note(f"No further set was tried: {result.stopped}." if result.stopped else "")


def _best_held(result: VerifyResult) -> blocks.Line:
    best = result.best_set
    checked = f"; {plural(result.loads, 'load')} of {plural(result.trials, 'trial')} checked, all agree"
    if best is None:
        return blocks.headline("No flag set met the targets", checked, "worst")
    price = f", {usd(best.usd_per_mtok)} per Mtok" if best.usd_per_mtok is not None else ""
    saved = f", {percent(result.saved_share)} less than as started" if result.saved_share else ""
    return blocks.headline(best.name, f" holds {_rate_text(best)}{price}{saved}{checked}")
