"""Simulations and capacities for a person."""

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.money.served import ServedCost
from tokonomics.physics.deployment import Deployment
from tokonomics.report.tables import bar, legend, pairs, table
from tokonomics.serving.capacity import HighestRate, ReplicasNeeded
from tokonomics.serving.outcome import Kept, Outcome, Spread
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import REFUSED
from tokonomics.traffic.trace import Trace
from tokonomics.units import count, percent, plural, seconds, usd

_COLOURS = {"prefill": "blue", "decode": "green", "recomputed": "yellow", "abandoned": "red", "idle": "bright_black"}


def simulate_view(simulation: Simulation, made: Outcome, cost: ServedCost | None) -> RenderableType:
    """What the user paid for and got: latency, throughput, where the time went, what failed."""
    trace = simulation.trace
    parts: list[RenderableType] = [_headline(simulation, made, cost), ""]
    parts += [_latency_table(made), ""]
    parts += [*_slos(made), *_shares(made, cost), "", pairs(_figures(simulation, made, cost))]
    notes = [f"Traffic: {trace.source}, {made.requests:,} requests over {_span(trace.duration_s)}."]
    if cost:
        notes.append(f"Price: {usd(cost.usd_per_replica_hour)} an hour for a replica ({cost.price_from}).")
    notes.append(
        "Latencies are of answered requests; step times are modelled: tokonomics predict shows how sure they are."
    )
    return Group(*parts, "", *_hints(simulation, made), Text("\n".join(notes), style="dim"))


def what_serves(simulation: Simulation) -> str:
    """The deployment, its engine and its replicas."""
    fleet = simulation.fleet
    replicas = plural(fleet.autoscale.max_replicas if fleet.autoscale else fleet.replicas, "replica")
    if fleet.autoscale:
        replicas = f"up to {replicas}"
    if fleet.prefill_replicas:
        replicas = f"{fleet.prefill_replicas} prefill + {fleet.replicas} decode replicas"
    return f"{simulation.deployment}, {simulation.deployment.engine.key}, {replicas}"


def _headline(simulation: Simulation, made: Outcome, cost: ServedCost | None) -> Text:
    what = what_serves(simulation)
    if cost and cost.usd_per_mtok is not None:
        return Text.assemble((f"{usd(cost.usd_per_mtok)} per million tokens", "bold green"), f": {what}")
    return Text.assemble((f"{made.output_tokens_per_s:,.0f} output tokens/s", "bold green"), f": {what}")


def _latency_table(made: Outcome) -> RenderableType:
    def row(name: str, values: Spread) -> list[str]:
        figures = (values.p50, values.p90, values.p95, values.p99, values.mean)
        return [name, *("–" if figure is None else seconds(figure) for figure in figures)]

    rows = [
        row("first token (TTFT)", made.ttft_s),
        row("per token after (TPOT)", made.tpot_s),
        row("whole answer (e2e)", made.e2e_s),
        row("of that, waiting", made.queue_s),
    ]
    return table(["latency", ">p50", ">p90", ">p95", ">p99", ">mean"], rows)


def _slos(made: Outcome) -> list[RenderableType]:
    if not made.slo:
        return []
    lines: list[RenderableType] = []
    for each in made.slo:
        mark = ("kept  ", "bold green") if each.kept else ("BROKEN", "bold red")
        delivered = "–" if each.delivered_s is None else seconds(each.delivered_s)
        lines.append(Text.assemble(mark, f"  {each.slo} {delivered}, SLO {seconds(each.objective_s)}"))
    attained = percent(made.slo_attainment or 0.0)
    lines.append(Text(f"{attained} of all requests answered within every SLO: {made.goodput_per_s:.3g} requests/s"))
    return [*lines, ""]


def _shares(made: Outcome, cost: ServedCost | None) -> list[RenderableType]:
    named = [(name, getattr(made.shares, name), colour) for name, colour in _COLOURS.items()]
    shown = [part for part in named if part[1] > 0.0005]
    bill = cost.usd if cost else None
    labels = [percent(size) + (f" {usd(size * bill)}" if bill else "") for _, size, _ in shown]
    paid = f"{made.replica_hours:.3g} replica-hours paid for" + (f", {usd(bill)}" if bill else "")
    return [Text(paid, style="bold"), bar(shown), legend(shown, labels)]


def _figures(simulation: Simulation, made: Outcome, cost: ServedCost | None) -> list[tuple[str, str, str]]:
    rules = simulation.rules
    # Windows and recurrent states take blocks whatever the tokens: then a number of tokens would mislead.
    room = "" if rules.fixed_blocks else f", of {count(rules.kv_blocks * rules.block_tokens)} tokens"
    rows = [
        ("output", f"{made.output_tokens_per_s:,.0f} tok/s", f"{made.total_tokens_per_s:,.0f} with prompts"),
        ("requests", f"{made.requests_per_s:,.3g}/s", f"{made.completed:,} of {made.requests:,} answered"),
        ("busy", percent(made.utilization), f"of the paid time; {percent(made.useful_share)} computing what was used"),
        ("load", _load(made.load_share), "of the requests that full batches would finish"),
        ("batch", f"{made.batch:,.1f}", f"sequences in a step, in the mean; at most {rules.max_sequences:,}"),
        ("KV cache", percent(made.kv_peak_share), f"full at the most{room}"),
    ]
    if simulation.fleet.autoscale:
        rows.append(
            ("replicas", f"{made.mean_replicas:.3g}", f"paid for in the mean, {made.peak_replicas} at the most")
        )
    if simulation.fleet.prefill_replicas:
        rows += _pools(simulation)
    if made.cached_tokens:
        rows.append(("cached", percent(made.cached_tokens / made.input_tokens), "of prompt tokens came from the cache"))
    if made.preemptions:
        rows.append(("preemptions", f"{made.preemptions:,}", "requests lost their place and were computed again"))
    if made.restarts:
        rows.append(("restarts", f"{made.restarts:,}", "requests began again when their replica failed"))
    for name, number, why in (
        ("refused", made.refused, _why_refused(simulation)),
        ("timed out", made.timed_out, "clients hung up"),
        ("unserved", made.unserved, "no replica was up"),
    ):
        if number:
            rows.append((name, f"{number:,}", why))
    if cost and cost.usd_per_mtok_output is not None:
        rows.append(("output alone", usd(cost.usd_per_mtok_output), "the whole bill per million output tokens"))
    return rows


def _load(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _pools(simulation: Simulation) -> list[tuple[str, str, str]]:
    """How busy the two sides of a disaggregated fleet are: the fuller one needs replicas."""
    busy = simulation.replicas["busy_s"] / np.maximum(simulation.paid_s, 1e-12)
    first = simulation.fleet.prefill_replicas
    return [
        ("prefill side", percent(float(busy[:first].mean())), "busy"),
        ("decode side", percent(float(busy[first:].mean())), "busy"),
    ]


def _why_refused(simulation: Simulation) -> str:
    lengths = simulation.trace.input_tokens.astype(np.int64) + simulation.trace.output_tokens
    beyond = int(np.count_nonzero(lengths > simulation.rules.max_context))
    if beyond == 0:
        return "longer than a replica's memory holds"
    context = f"longer than the model's context of {simulation.rules.max_context:,} tokens"
    return (
        context
        if beyond == np.count_nonzero(simulation.served.status == REFUSED)
        else f"{context}, or than a replica's memory"
    )


def _hints(simulation: Simulation, made: Outcome) -> list[RenderableType]:
    """What to do next, where something stands out."""
    fleet, rules = simulation.fleet, simulation.rules
    waits = (made.queue_s.p50 or 0.0) > 1.0
    hint = None
    if made.refused == made.requests:
        hint = "Nothing fits: choose a larger GPU, more of them (--tp), or a smaller precision (--weights, --kv)."
    elif waits and made.kv_peak_share < 0.5 and made.batch > 0.8 * rules.max_sequences * made.mean_replicas:
        hint = (
            f"Requests wait although memory is free: the engine runs {rules.max_sequences:,} at once (--max-sequences)."
        )
    elif fleet.prefill_replicas and (waits or made.slo_kept is False):
        hint = "Add replicas to the busier side: --prefill-replicas for first tokens, --replicas for the others."
    elif fleet.autoscale and (waits or made.slo_kept is False):
        hint = "The fleet follows too slowly: a lower target, a shorter cold start, or more replicas at least (min=)."
    elif made.slo_kept is False:
        hint = "An SLO is missed: add --replicas, or ask tokonomics capacity how many it takes."
    elif waits:
        hint = "Requests queue for seconds: this is more than it holds. Add --replicas, or ask tokonomics capacity."
    elif made.preemptions > made.requests / 10:
        hint = "The KV cache is too small for this batch: lower --max-sequences, use --kv fp8, or a larger GPU."
    elif made.batch < 4 and made.utilization < 0.5:
        hint = "The replica mostly waits: a smaller GPU or fewer replicas would do (tokonomics plan)."
    return [Text(hint, style="yellow"), ""] if hint else []


def capacity_view(
    deployment: Deployment, trace: Trace, best: HighestRate, needed: ReplicasNeeded | None, cost: ServedCost | None
) -> RenderableType:
    """The rate that holds, what breaks beyond it, and the fleet that a log needs."""
    head = Text.assemble((f"{best.rate:,.3g} requests/s", "bold green"), f" on one replica: {deployment}")
    made = best.outcome
    rows = [
        ("holds", f"{best.rate:,.3g}/s", f"{made.output_tokens_per_s:,.0f} output tokens a second"),
        ("does not", f"{best.at_most:,.3g}/s", best.broken),
        ("batch", f"{made.batch:,.1f}", "sequences in a step at that rate"),
    ]
    if needed:
        rows.append(
            ("this log needs", plural(needed.replicas, "replica"), f"{trace.source} at {trace.rate:.3g} requests/s")
        )
    if cost and cost.usd_per_mtok is not None:
        where = "of this log" if needed else "at that rate"
        rows.append(("costs", usd(cost.usd_per_mtok), f"per million tokens {where}, prompts included"))
    trials: list[list[str | Text]] = [
        [
            f"{trial.rate:,.3g}",
            *(_delivered(each.delivered_s, each.kept) for each in trial.outcome.slo or _tails(trial.outcome)),
            f"{trial.outcome.output_tokens_per_s:,.0f}",
            Text("holds", style="green") if trial.holds else Text("breaks", style="red"),
        ]
        for trial in best.trials
    ]
    columns = [">requests/s", *(f">{each.slo}" for each in made.slo or _tails(made)), ">tok/s out", ""]
    each = best.trials[0].outcome.requests
    note = f"{trace.source}; {each:,} requests in each of {len(best.trials)} simulations; the two rates are 1 % apart."
    return Group(head, "", pairs(rows), "", table(columns, trials), "", Text(note, style="dim"))


def _tails(made: Outcome) -> tuple[Kept, ...]:
    """What to show where no SLO is set."""
    tails = (("ttft_p99", made.ttft_s.p99), ("tpot_p99", made.tpot_s.p99))
    return tuple(Kept(slo=name, objective_s=0.0, delivered_s=value, kept=True) for name, value in tails)


def _delivered(value: float | None, kept: bool) -> Text:
    return Text("–" if value is None else seconds(value), style="" if kept else "red")


def _span(duration_s: float) -> str:
    if duration_s < 120:
        return seconds(duration_s)
    return f"{duration_s / 60:.3g} min" if duration_s < 7200 else f"{duration_s / 3600:.3g} h"
