"""Draw price against speed: $/Mtok against tokens/s for each user, and against time to the first token.

Every point is a fleet of whole machines. No fleet that meets the SLOs lies below the line or costs less than the pick;
those that cost less are rings, each with what it misses. APIs that sell the model are horizontal lines: their price is
known, their speed is not. A point is one row of data with its figures as text, so that tooltips, tables and pinned
cards all show text written here.

The page draws this whenever a slider rests, so it is written as Vega-Lite directly: Altair takes a hundred times as
long to build it, and is used only when the chart is saved.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tokonomics.catalog.gpus import gpu_text
from tokonomics.catalog.layers import Precision
from tokonomics.measure.measurements import Metric, Statistic
from tokonomics.measure.priced_run import PricedPoint, PricedRun, Scored
from tokonomics.money.trace_bills import ApiCost
from tokonomics.physics.intervals import Interval
from tokonomics.planner.firmness import CostRange
from tokonomics.planner.frontier import Frontier, FrontierPoint
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.questions.results import layout_text, split_text
from tokonomics.report.charts import style
from tokonomics.report.wording import machine_text, rented_text, signed_text
from tokonomics.traffic.slo import Latency
from tokonomics.units import count, percent, requests_a_second, seconds, usd

PINNED = "pinned"  # the chart parameter with the deployments to mark; the page sets it
_MET = "#e4efe9"
_OTHERS, _APIS, _YOURS = "other GPUs", "API prices", "your measurements"
_WITHIN_REASON = 10.0  # times the cheapest fleet: a more expensive API is not drawn
_LINE = "Line: no fleet is both cheaper and quicker"
_RING = "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0ZM-0.55,0A0.55,0.55,0,1,0,0.55,0A0.55,0.55,0,1,0,-0.55,0Z"
"""A circle with a hole, for a fleet that misses the SLO."""
_FAINT = 0.3  # opacity of an interval that is not pinned


@dataclass(frozen=True)
class _Axis:
    """One latency from left to right."""

    field: str
    latency: Latency
    title: str
    rises: bool  # whether further right is quicker
    front: Callable[[Frontier], Sequence[FrontierPoint]]

    def place(self, slo_s: float) -> float:
        """Return the position of an SLO in seconds."""
        return 1 / slo_s if self.rises else slo_s


_SPEED = _Axis("tps", Latency.tpot, "Tokens/s for each user, mean: quicker to the right", True, lambda made: made.tpot)
_FIRST = _Axis("ttft", Latency.ttft, "Time to first token, mean: quicker to the left", False, lambda made: made.ttft)


def frontier_chart(
    frontier: Frontier,
    plan: Plan,
    model_name: str,
    *,
    bills: CostRange | None = None,
    apis: Sequence[ApiCost] = (),
    measured: Sequence[PricedRun] = (),
) -> style.Spec:
    """Draw price against speed for each user and against time to the first token, a point for every fleet."""
    rows = frontier_rows(frontier, plan, bills=bills, apis=apis, measured=measured)
    palette = _palette(rows, frontier, plan)
    prices = [row["usd"] for row in rows]
    price = _log(min(prices) / 1.25, max(prices) * 1.15)
    axes = [_SPEED, _FIRST] if plan.workload.writes else [_FIRST]
    mean = plan.workload
    written = f", {mean.output_tokens:,.0f} out" if mean.writes else ""
    said = ["Line: no fleet that meets the SLO is both cheaper and quicker" if plan.slos else _LINE]
    said += ["diamond: the pick" + (", as simulated" if plan.best.simulated else "")] if plan.best else []
    said += ["rings: cheaper, and " + ("miss an SLO" if plan.slos else "do not keep up")]
    return style.Spec(
        {
            "title": style.title(
                f"Cheap or quick: what {model_name} can cost",
                f"{requests_a_second(count(mean.rate))}, {mean.input_tokens:,.0f} tokens in{written}; every point is a "
                "fleet of whole machines, its means in closed form, its bar an 80 % interval",
                "; ".join(said),
            ),
            "config": {"view": {"stroke": None}},
            "data": {"values": rows},
            "params": [{"name": PINNED, "value": []}],
            "spacing": 26,
            "hconcat": [_panel(axis, frontier, plan, rows, palette, price, is_first=axis is axes[0]) for axis in axes],
        }
    )


# --- rows -----------------------------------------------------------------------------------------------------------


def frontier_rows(
    frontier: Frontier,
    plan: Plan,
    *,
    bills: CostRange | None = None,
    apis: Sequence[ApiCost] = (),
    measured: Sequence[PricedRun] = (),
) -> list[style.Row]:
    """Return the pick, other fleets, API prices and measurements as figures and as text.

    Fleets that miss an SLO are shown only if they cost less than the pick.
    """
    rows, pick = [], _pick(plan.best, plan, frontier, bills) if plan.best else None
    for point in frontier.points:
        on_front = {"best_tps": point.front_tpot, "best_ttft": point.front_ttft}
        if plan.best and pick and _is_pick(point, plan.best):
            pick |= on_front
        elif point.meets_slo or plan.best is None or point.usd_per_month < plan.best.usd_per_month:
            rows.append(_predicted(point, bool(plan.slos)) | on_front)
    most = _WITHIN_REASON * min(row["usd"] for row in [*rows, *([pick] if pick else [])])
    rows += [_charged(bill) for bill in apis if 0 < bill.usd_per_mtok <= most]
    # The last drawn is on top.
    return [*rows, *([pick] if pick else []), *(row for run in measured for row in measured_rows(run))]


def _is_pick(point: FrontierPoint, best: Candidate) -> bool:
    """Tell whether a point is the pick itself, whose simulated figures then replace the closed form's."""
    names = ("gpu", "weights", "engine", "gpus_per_replica", "replicas", "provider", "region", "instance")
    return point.meets_slo and all(getattr(point, name) == getattr(best, name) for name in names)


def _way(fleet: FrontierPoint | Candidate, split: str) -> str:
    """Identify a fleet without its number of replicas, so that the page finds it in the next answer."""
    each = f"{fleet.gpus_per_replica} " if fleet.gpus_per_replica > 1 else ""
    machine = machine_text(fleet.provider, fleet.instance, fleet.gpu)
    return f"{each}{gpu_text(fleet.gpu)}, {split.removeprefix('TP=1 ')}, {fleet.engine} at {machine}"


def _predicted(point: FrontierPoint, promised: bool) -> style.Row:
    return {
        "kind": "fleet",
        "gpu": point.gpu,
        "weights": point.weights,
        "provider": point.provider,
        "deployment": f"{point.replicas:,} × {_way(point, point.layout)}",
        "price": _price_text(point.usd_per_mtok, point.usd_per_month),
        "slo": _verdict(point.simulated, promised) if point.why_not is None else f"missed: {point.why_not}",
        "usd": _short(point.usd_per_mtok),
        "met": point.meets_slo,
        **_times(point.tpot_range, point.ttft_range),
    }


def _pick(best: Candidate, plan: Plan, frontier: Frontier, bills: CostRange | None) -> style.Row:
    kv = f", KV {best.kv}" if best.kv.is_below(Precision.bf16) else ""
    drafts = f", drafts {best.draft.name}" if best.draft else ""
    split = f"{split_text(best)} " if best.gpus_per_replica > 1 else ""
    row = {
        "kind": "pick",
        "gpu": best.gpu,
        "weights": best.weights,
        "provider": best.provider,
        "way": _way(best, f"{split}{best.weights}{kv}{drafts}"),
        "deployment": f"The pick: {layout_text(best)}, {best.engine} at {rented_text(best)}",
        "price": _price_text(best.usd_per_mtok.blended, best.usd_per_month),
        "slo": _verdict(best.simulated, bool(plan.slos)),
        "usd": best.usd_per_mtok.blended,
        "met": True,
        "label": "the pick",
        **_times(frontier.pick_tpot, frontier.pick_ttft, best.ttft_s.p99),
    }
    if bills and bills.fast.usd_per_month and bills.slow.usd_per_month:
        share = best.usd_per_mtok.blended / best.usd_per_month
        ends = {"usd_low": bills.fast.usd_per_month, "usd_high": bills.slow.usd_per_month}
        row |= {name: _short(end * share) for name, end in ends.items()}
    return row


def _charged(bill: ApiCost) -> style.Row:
    cached = f", {percent(bill.cached_share)} of prompts from its cache" if bill.cached_share else ""
    quoted = f", quoted {bill.date}" if bill.date else ""
    return {
        "kind": "API",
        "deployment": f"API of {bill.name}",
        "price": f"{usd(bill.usd_per_mtok)}/Mtok for these requests: {usd(bill.input_usd_per_mtok)} in, "
        f"{usd(bill.output_usd_per_mtok)} out{cached}{quoted}",
        "speed": "not measured",
        "first": "not measured",
        "usd": bill.usd_per_mtok,
        "label": f"{bill.name.partition(':')[0].removeprefix('huggingface_')} API {usd(bill.usd_per_mtok)}",
    }


def measured_rows(run: PricedRun) -> Iterable[style.Row]:
    """Yield each load of a test that has a price and a time per token, with its prediction."""
    for load, point in zip(run.run.points, run.points, strict=True):
        tpot, ttft = (spread.typical if spread else None for spread in (load.tpot_s, load.ttft_s))
        if point.usd_per_mtok is None or run.machine is None or (tpot is None and ttft is None):
            continue
        machine, unsaid = run.machine, "" if run.run.stated.gpu else " (not said by the file)"
        row: style.Row = {
            "kind": "yours",
            "gpu": machine.gpu,
            "deployment": f"Measured by {run.run.tool} at {load.load}: {machine.gpus} × {gpu_text(machine.gpu)}"
            f"{unsaid}, {machine.engine}, {load.mean_input_tokens:,.0f} in, {load.mean_output_tokens:,.0f} out",
            "price": _price_text(point.usd_per_mtok.blended, run.price.usd_per_hour if run.price else None, "an hour"),
            "usd": point.usd_per_mtok.blended,
            **({"tps": 1 / tpot, "speed": _speed_text(1 / tpot)} if tpot else {}),
            **({"ttft": ttft, "first": seconds(ttft)} if ttft else {}),
        }
        yield row | _distance(point, row["usd"])


def _distance(point: PricedPoint, usd_per_mtok: float) -> style.Row:
    """Return the predicted position of the same load, and how far off it was."""
    found = {scored.metric: scored for scored in reversed(point.scored) if scored.statistic in _TYPICAL}
    said: list[str] = []
    row: style.Row = {}
    for metric, name, field in ((Metric.tpot_s, "time per token", "tps"), (Metric.ttft_s, "TTFT", "ttft")):
        if scored := found.get(metric):
            mid = scored.predicted.mid
            row[f"predicted_{field}"] = _short(1 / mid if field == "tps" else mid)
            said.append(_off_text(name, scored))
    if scored := found.get(Metric.output_tok_s):
        row["predicted_usd"] = _short(usd_per_mtok * scored.measured / scored.predicted.mid)
        said.append(_off_text("throughput", scored))
    return row | {"distance": "; ".join(said) or (point.not_predicted or "not predicted")}


_TYPICAL = (Statistic.mean, Statistic.p50)


def _off_text(name: str, scored: Scored) -> str:
    inside = "within" if scored.inside else "outside"
    return f"predicted {name} {signed_text(scored.off)}, measured {inside} the interval"


def _times(tpot: Interval | None, ttft: Interval | None, ttft_p99: float | None = None) -> style.Row:
    row: style.Row = {}
    if tpot:
        ends = f"{count(1 / tpot.high)} to {count(1 / tpot.low)}"
        row |= {"speed": f"{_speed_text(1 / tpot.mid)} ({ends})"}
        row |= {"tps": _short(1 / tpot.mid), "tps_low": _short(1 / tpot.high), "tps_high": _short(1 / tpot.low)}
    if ttft:
        late = f", p99 {seconds(ttft_p99)}" if ttft_p99 is not None else ""
        row |= {"first": f"{seconds(ttft.mid)} ({seconds(ttft.low)} to {seconds(ttft.high)}){late}"}
        row |= {"ttft": _short(ttft.mid), "ttft_low": _short(ttft.low), "ttft_high": _short(ttft.high)}
    return row


def _speed_text(tokens_per_s: float) -> str:
    return f"{count(tokens_per_s)} tokens/s"


def _price_text(usd_per_mtok: float, whole: float | None, by: str = "a month") -> str:
    return f"{usd(usd_per_mtok)}/Mtok" + (f", {usd(whole)} {by}" if whole else "")


def _verdict(simulated: bool, promised: bool) -> str:
    """Say how it is known that an SLO is met, if there is one."""
    return f"met {'by simulation' if simulated else 'in the mean'}" if promised else ""


def _short(value: float) -> float:
    """Round to five digits: nobody sees more, and the data stay small."""
    return float(f"{value:.5g}")


# --- drawing --------------------------------------------------------------------------------------------------------


def _palette(rows: Sequence[style.Row], frontier: Frontier, plan: Plan) -> dict[str, str]:
    """Colour the pick's GPU and those on a front, cheapest first, while colours last; set the colour of each row."""
    gpus = [point.gpu for point in (*reversed(frontier.tpot), *reversed(frontier.ttft))]
    order = dict.fromkeys([*([plan.best.gpu] if plan.best else []), *gpus])
    palette = dict(zip(order, style.DISTINCT, strict=False))
    named = {"API": _APIS, "yours": _YOURS}
    for row in rows:
        row["colour"] = named.get(row["kind"]) or (row["gpu"] if row["gpu"] in palette else _OTHERS)
    rest = {_OTHERS: "#c9c3b8", _APIS: style.OUTLINE, _YOURS: style.INK}
    used = {row["colour"] for row in rows}
    return {name: colour for name, colour in (palette | rest).items() if name in used}


def _panel(
    axis: _Axis,
    frontier: Frontier,
    plan: Plan,
    rows: Sequence[style.Row],
    palette: dict[str, str],
    price: style.Settings,
    *,
    is_first: bool,
) -> style.Settings:
    field = axis.field
    places = [row[field] for row in rows if field in row]
    low, high = min(places) / 1.25, max(places) * 1.25
    times = {} if axis.rises else {"labelExpr": style.AS_TIME}
    x = _place(field, _log(low, high), None, **times)
    y = _place("usd", price, "dollars per million tokens" if is_first else None, format="$~r")
    shown = {
        "color": {
            "field": "colour",
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(palette), "range": list(palette.values())},
            "legend": {"orient": "bottom", "direction": "horizontal", "columns": 8, "symbolType": "circle"},
        },
        "opacity": {"condition": {"param": _SHOWN, "value": 0.9}, "value": 0.05},
        "tooltip": _tips("deployment", "price", "speed", "first", "slo"),
    }
    layers = [
        *([_legend(shown)] if is_first else []),
        *_objectives(axis, plan, low, high, x, y),
        *_api_lines(rows, y, shown),
        _intervals(field, y),
        *_line(axis, frontier, low, price["domain"][1], x, y),
        _points(field, x, y, shown),
        *_marked(field, x, y),
        *(_measured(field, x, y, shown) if _YOURS in palette else ()),
    ]
    return {"width": 350, "height": 300, "title": style.panel_title(axis.title), "layer": layers}


_SHOWN = "shown"
_TITLES = {"speed": "per user", "first": "first token", "slo": "SLO"}


def _tips(*fields: str) -> list[style.Settings]:
    return [{"field": name, "title": _TITLES.get(name, name), "type": "nominal"} for name in fields]


def _log(low: float, high: float) -> style.Settings:
    return {"type": "log", "domain": [low, high], "nice": False}


def _place(field: str, scale: style.Settings, title: str | None, **axis: object) -> style.Settings:
    axis = {"gridOpacity": 0.5, "tickCount": 5, **axis}
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _marks(kind: str, test: str | None, encoding: style.Settings, **how: object) -> style.Settings:
    """Return a layer of marks; with a test, only of the rows that pass."""
    passing = {"transform": [{"filter": test}]} if test else {}
    return {**passing, "mark": {"type": kind, "clip": True, **how}, "encoding": encoding}


def _legend(shown: style.Settings) -> style.Settings:
    """Return a layer without marks: a shared legend listens only to the first layer's parameters."""
    by_name = {"type": "point", "fields": ["colour"], "toggle": "true"}
    colours = {"color": shown["color"]}
    return _marks("point", "false", colours, filled=True) | {
        "params": [{"name": _SHOWN, "bind": "legend", "select": by_name}]
    }


def _points(field: str, x: style.Settings, y: style.Settings, shown: style.Settings) -> style.Settings:
    """Draw every fleet; shift and the wheel zoom, dragging moves."""
    zoomed = {"type": "interval", "zoom": "wheel![event.shiftKey]"}
    params = [{"name": f"zoom_{field}", "bind": "scales", "select": zoomed}]
    large, met = f"datum.best_{field} || datum.kind == 'pick'", "datum.met"
    encoding = {
        "x": x,
        "y": y,
        **shown,
        "size": {"condition": {"test": large, "value": 75}, "value": 28},
        "shape": {"condition": {"test": met, "value": "circle"}, "value": _RING},
    }
    fleets = f"isValid(datum.{field}) && datum.kind != 'yours'"
    return _marks("point", fleets, encoding, filled=True) | {"params": params, "name": f"fleets_{field}"}


def _line(
    axis: _Axis, frontier: Frontier, low: float, top: float, x: style.Settings, y: style.Settings
) -> list[style.Settings]:
    """Draw the front as steps: less speed still gets the cheapest, and nothing is quicker than the quickest."""
    front = [
        {axis.field: 1 / point.tpot_s if axis.rises else point.ttft_s, "usd": point.usd_per_mtok}
        for point in axis.front(frontier)
    ]
    if not front:
        return []
    far = low / 10 if axis.rises else 1000 * front[-1][axis.field]
    line = [{**front[0], "usd": 10 * top}, *front, {**front[-1], axis.field: far}]
    how = "step-before" if axis.rises else "step-after"
    encoding = {"x": x, "y": y, "order": {"field": axis.field, "type": "quantitative"}}
    drawn = _marks("line", None, encoding, interpolate=how, color=style.INK, strokeWidth=1.3)
    return [{"data": {"values": line}, **drawn}]


def _intervals(field: str, y: style.Settings) -> style.Settings:
    """Draw the intervals of the fronts, faint, and of the pick and pinned points."""
    asked = f"datum.kind == 'pick' || indexof({PINNED}, datum.deployment) >= 0"
    encoding = {
        "x": {"field": f"{field}_low", "type": "quantitative", "title": None},
        "x2": {"field": f"{field}_high"},
        "y": y,
        "opacity": {"condition": {"test": asked, "value": 0.9}, "value": _FAINT},
    }
    return _marks("rule", f"isValid(datum.{field}_low) && (datum.best_{field} || {asked})", encoding, color=style.INK)


def _marked(field: str, x: style.Settings, y: style.Settings) -> list[style.Settings]:
    """Draw the pick with its name and bill interval, and rings around pinned points."""
    pick, ink = f"datum.kind == 'pick' && isValid(datum.{field})", {"color": style.INK}
    outline = {**ink, "filled": False}
    place = {"x": x, "y": y}
    bill = {"x": x, "y": {**y, "field": "usd_low"}, "y2": {"field": "usd_high"}}
    name = {**place, "text": {"field": "label", "type": "nominal"}}
    pinned = f"indexof({PINNED}, datum.deployment) >= 0 && isValid(datum.{field})"
    return [
        _marks("rule", f"{pick} && isValid(datum.usd_low)", bill, **ink),
        _marks("point", pick, place, **outline, shape="diamond", size=190, strokeWidth=2),
        _marks("text", pick, name, **ink, fontSize=11, dy=-16, fontWeight="bold"),
        _marks("point", pinned, place, **outline, size=260, strokeWidth=1.6),
    ]


def _api_lines(rows: Sequence[style.Row], y: style.Settings, shown: style.Settings) -> list[style.Settings]:
    """Draw the prices of the model's hosts as horizontal lines; name the cheapest and the middle one."""
    hosts = [row for row in rows if row["kind"] == "API"]
    if not hosts:
        return []
    named = hosts[:1] if len(hosts) < 3 else [hosts[0], hosts[len(hosts) // 2]]
    texts = {"data": {"values": [{"usd": row["usd"], "label": row["label"]} for row in named]}}
    encoding = {"x": {"value": "width"}, "y": y, "text": {"field": "label", "type": "nominal"}}
    beside = {"align": "right", "baseline": "bottom", "dx": -3, "dy": -2, "fontSize": 10, "color": style.OUTLINE}
    return [
        _marks(
            "rule",
            "datum.kind == 'API'",
            {"y": y, **shown, "tooltip": _tips("deployment", "price")},
            strokeDash=style.DASHED,
            strokeWidth=1.1,
        ),
        # Prices close to each other have lines across each other's names.
        texts | _marks("text", None, encoding, **beside, stroke="white", strokeWidth=5, strokeJoin="round"),
        texts | _marks("text", None, encoding, **beside),
    ]


def _measured(field: str, x: style.Settings, y: style.Settings, shown: style.Settings) -> list[style.Settings]:
    """Draw measurements, joined to the prediction of the same load."""
    said = {"tooltip": _tips("deployment", "price", "speed", "first", "distance")}
    mine = f"datum.kind == 'yours' && isValid(datum.{field})"
    tied = {"x": x, "y": y, "x2": {"field": f"predicted_{field}"}, "y2": {"field": "predicted_usd"}}
    known = f"{mine} && isValid(datum.predicted_{field}) && isValid(datum.predicted_usd)"
    return [
        _marks("rule", known, tied, color=style.INK, strokeDash=style.DOTTED),
        _marks("point", mine, {"x": x, "y": y, **shown, **said}, shape="square", size=90, filled=True),
    ]


def _objectives(
    axis: _Axis, plan: Plan, low: float, high: float, x: style.Settings, y: style.Settings
) -> list[style.Settings]:
    """Shade the region within the strictest SLO on this latency, from the pick's price up, with its edge."""
    bounds = [slo for slo in plan.slos if slo.latency is axis.latency]
    if not bounds:
        return []
    strictest = min(bounds, key=lambda slo: slo.seconds)
    edge = min(max(axis.place(strictest.seconds), low), high)
    label = f"{strictest.statistic} SLO {seconds(strictest.seconds)}" + (" a token" if axis.rises else "")
    ends = {axis.field: edge, "end": high * 1000 if axis.rises else low / 1000, "label": label}
    data = {"data": {"values": [ends | ({"usd": plan.best.usd_per_mtok.blended} if plan.best else {})]}}
    above = {"y": y, "y2": {"value": 0}} if plan.best else {}
    side = {"align": "left", "dx": 5} if axis.rises else {"align": "right", "dx": -5}
    text = {"x": x, "text": {"field": "label", "type": "nominal"}}
    return [
        data | _marks("rect", None, {"x": x, "x2": {"field": "end"}, **above}, color=_MET),
        data | _marks("rule", None, {"x": x}, color=style.RED, strokeDash=style.DASHED),
        data | _marks("text", None, text, color=style.RED, fontSize=11, y=8, **side),
    ]
