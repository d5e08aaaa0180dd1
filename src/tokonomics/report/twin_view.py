"""Show a twin: what is expected of each server, how good it was so far, and what changed."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from tokonomics.operate.learn import ForecastBand, TwinWindow, WindowFigure
from tokonomics.operate.scoreboard import FigureScore, Scoreboard
from tokonomics.questions.request import Request
from tokonomics.questions.twin import START_TWIN, NamedChange, TwinReportResult, TwinShown
from tokonomics.report import blocks, charts
from tokonomics.report.answer import Answer
from tokonomics.report.wording import NO_VALUE, time_text, usd_text
from tokonomics.units import count, percent, plural

_TITLES = {
    "requests_per_s": "requests a second", "tokens_per_s": "tokens a second", "input_tokens": "tokens of a prompt",
    "output_tokens": "tokens of an answer", "hit_share": "prompt tokens cached", "ttft_s": "TTFT, mean",
    "ttft_p50_s": "TTFT p50", "ttft_p99_s": "TTFT p99", "tpot_s": "TPOT, mean", "tpot_p50_s": "TPOT p50",
    "tpot_p99_s": "TPOT p99", "prompt_token_s": "a prompt token", "step_s": "a step without prompts",
    "kv_share": "KV cache in use", "usd_per_mtok": "$/Mtok",
}  # fmt: skip
_TERMS = {"decode": "decode kernels", "prefill": "prompt kernels", "launch": "launches",
          "request": "a request's time outside steps"}  # fmt: skip
_DRAWN = ("tokens_per_s", "ttft_p99_s", "ttft_s", "tpot_s", "usd_per_mtok")
_MOST_CHANGES = _MOST_SERVERS = 12  # what fits a screen; the report's JSON has all


def twin_report(result: TwinReportResult, request: Request) -> Answer:
    """Show the scores of each server, what changed, and the bands of its forecasts over what was measured."""
    drawn = {
        f"{_where(board)}: forecast and measured": partial(
            charts.twin.bands_chart, _of(result.windows, board), _TITLES, _DRAWN
        )
        for board in result.servers[:4]
        if board.windows
    }
    return Answer(result, "How good the twin is", partial(_report, result), drawn)


def on_page(result: TwinReportResult | None) -> blocks.View:
    """Show the report below the meter's sums, or how to start a twin."""
    if result is None:
        yield blocks.hint(f"No forecasts yet: run `{START_TWIN}` in place of the meter; it meters too.")
        return
    first, last = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (result.since, result.until))
    yield blocks.section(blocks.line(f"{result.headline()}, {first} to {last} UTC."), title="Forecasts by the twin")
    yield from _scored(result, result.servers[:_MOST_SERVERS])
    if (more := len(result.servers) - _MOST_SERVERS) > 0:
        yield blocks.hint(f"{plural(more, 'more server')}: `tokonomics twin report --server …`")


def live(shown: TwinShown) -> blocks.View:
    """Show what is expected now, how good it was, and what changed in a day."""
    boards = {(board.target, board.model): board for board in shown.servers}
    last = {(window.target, window.model): window for window in shown.last}
    price, today = usd_text(shown.meter.now.usd_per_mtok), usd_text(shown.meter.today.usd_per_mtok)
    yield blocks.headline(f"{price} per Mtok now", f"; today, every paid hour counted: {today} per Mtok")
    for window in shown.now:
        server = window.target, window.model
        yield _server(boards.get(server), window, last.get(server), _name(*server))
    if not shown.now:
        yield blocks.section(blocks.hint("The first forecast comes when the first window is over."))
    yield _changes(shown.changes)
    yield blocks.note(*_LEGEND)
    yield blocks.section(*(blocks.line(note.marked, kind="bad") for note in shown.meter.notes))
    if shown.note:
        yield blocks.section(blocks.line(shown.note, kind="bad"))


_LEGEND = (
    "Forecast: from what was known when the window began. Given its traffic: the server with what then arrived.",
    "Off: the median of measured less expected; within: how often the 80 % interval held it.",
)


def line(shown: TwinShown) -> str:
    """Show one interval in a pipe."""
    state = shown.meter
    said = [f"{datetime.fromtimestamp(state.at, UTC):%H:%M:%S}", f"now {usd_text(state.now.usd_per_mtok)}/Mtok"]
    for window in shown.now[:1]:
        for name in ("requests_per_s", "ttft_p99_s", "tpot_s"):
            figure = window.figures.get(name)
            if figure is not None and figure.forecast is not None:
                said.append(f"{_TITLES[name]} {_band(name, figure.forecast)} expected")
    if len(shown.now) > 1:
        said.append(plural(len(shown.now), "server"))
    if shown.changes:
        said.append(f"last change: {shown.changes[-1].change.what}")
    return ", ".join(said)


def _report(result: TwinReportResult) -> blocks.View:
    windows, of, rest = result.headline().partition(" of ")
    yield blocks.headline(windows, of + rest)
    yield from _scored(result, result.servers)


def _scored(result: TwinReportResult, servers: Iterable[Scoreboard]) -> blocks.View:
    for board in servers:
        said = _of(result.windows, board)
        over = [window for window in said if window.is_over]
        now = next((window for window in reversed(said) if not window.is_over), None)
        yield _server(board, now, over[-1] if over else None, _where(board))
    yield _changes(result.changes)
    yield blocks.note(*_LEGEND)


def _of(windows: Iterable[TwinWindow], board: Scoreboard) -> list[TwinWindow]:
    return [window for window in windows if (window.target, window.model) == (board.target, board.model)]


def _where(board: Scoreboard) -> str:
    return _name(board.target, board.model)


def _name(target: str, model: str) -> str:
    return f"{model} on {target}" if model else target


def _server(board: Scoreboard | None, now: TwinWindow | None, last: TwinWindow | None, name: str) -> blocks.Section:
    ahead = now.figures if now else {}
    behind = last.figures if last else {}
    names = [figure for figure in _TITLES if figure in ahead or figure in behind]
    scores = {(score.name, score.kind): score for score in (board.scores if board else ())}
    table = blocks.listed(
        names,
        ("", lambda figure: _TITLES[figure]),
        (">expected now", lambda figure: _forecast(figure, ahead)),
        (">last window", lambda figure: _measured(figure, behind)),
        (">forecast off", lambda figure: _off(scores.get((figure, "forecast")))),
        (">within", lambda figure: _within(scores.get((figure, "forecast")))),
        (">given its traffic off", lambda figure: _off(scores.get((figure, "given")))),
        (">within", lambda figure: _within(scores.get((figure, "given")))),
    )
    title = f"{name}: {plural(board.windows, 'window')} scored" if board and board.windows else name
    return blocks.section(table, _learned(board, now), title=title)


def _learned(board: Scoreboard | None, now: TwinWindow | None) -> blocks.Line | None:
    factors = (now.factors if now else None) or (board.factors if board else None)
    if not factors or all(abs(factor - 1) < 0.005 for factor in factors.values()):
        return None
    said = ", ".join(f"{_TERMS[term]} × {factor:.2f}" for term, factor in factors.items() if term in _TERMS)
    return blocks.line(f"Learned of this server: {said}.")


def _changes(changes: Sequence[NamedChange]) -> blocks.Block | blocks.Section | None:
    if not changes:
        return None
    shown = changes[-_MOST_CHANGES:]
    several = len({(change.target, change.model) for change in changes}) > 1
    return blocks.section(
        blocks.listed(
            shown,
            ("window", lambda change: f"{datetime.fromtimestamp(change.start, UTC):%m-%d %H:%M}"),
            ("server", lambda change: _name(change.target, change.model)) if several else None,
            ("cause", lambda change: change.change.cause),
            ("what changed", lambda change: change.change.what),
        ),
        title="What changed (UTC)",
    )


def _text(name: str, value: float) -> str:
    if name == "usd_per_mtok":
        return usd_text(value)
    if name.endswith("_share"):
        return percent(value)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return time_text(value)
    return f"{value:.3g}" if value < 1000 else count(value)


def _band(name: str, band: ForecastBand) -> str:
    return f"{_text(name, band.mid)} ({_text(name, band.low)} to {_text(name, band.high)})"


def _forecast(name: str, figures: Mapping[str, WindowFigure]) -> str:
    figure = figures.get(name)
    return NO_VALUE if figure is None or figure.forecast is None else _band(name, figure.forecast)


def _measured(name: str, figures: Mapping[str, WindowFigure]) -> str:
    figure = figures.get(name)
    return NO_VALUE if figure is None or figure.measured is None else _text(name, figure.measured)


def _off(score: FigureScore | None) -> str:
    if score is None:
        return NO_VALUE
    unit = " points" if score.name.endswith("_share") else " %"
    return f"{100 * score.error:.3g}{unit} ({100 * score.bias:+.2g})"


def _within(score: FigureScore | None) -> str:
    return NO_VALUE if score is None else f"{percent(score.coverage)} of {score.windows}"
