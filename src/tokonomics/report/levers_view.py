"""Levers for a person: what to do first, what all of it comes to, and the way there from a naive start."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.planner.bills import SetupBill
from tokonomics.planner.levers.ranking import CHUNK, Effects, Pulled, Ranking, Utilization, UtilizationPoint
from tokonomics.planner.levers.stack import Drafted, Step, Waterfall
from tokonomics.planner.setup import Setup
from tokonomics.report.plan_view import slos_text, workload_text
from tokonomics.report.tables import quoted_text, table
from tokonomics.units import gigabytes, percent, plural, seconds, usd


def levers_view(ranking: Ranking, setup: Setup) -> RenderableType:
    """The ranked list, and what the levers save together."""
    now = ranking.now
    pulled = [lever for lever in ranking.levers if lever.bill]
    parts: list[RenderableType] = [
        Text(asked(setup)),
        *_no_slo(setup),
        "",
        Text.assemble("Now: ", (f"{usd(now.usd_per_month)} a month", "bold"), f", {_served(now)}"),
        Text(f"  {bought(now)}", style="dim"),
        "",
    ]
    heads = [
        "lever",
        ">saves",
        ">$/month",
        ">$/Mtok",
        ">replicas",
        ">full",
        ">TTFT p99",
        ">TPOT p99",
    ]
    rows: list[list[str | Text]] = [["as it is", "", *_figures(now)]]
    rows += [[_name(each), _saves(each.saved_share), *_figures(_bill(each))] for each in pulled]
    parts += [table(heads, rows), ""]
    parts += [_together(ranking), ""]
    if pulled:
        parts += [Text("Effort; risk", style="bold"), *_efforts(pulled), ""]
    without = [lever for lever in ranking.levers if not lever.bill]
    if without:
        parts += [Text("Nothing to gain, or not possible", style="bold"), *_reasons(without), ""]
    changed = [(lever.name, lever.effects) for lever in ranking.levers if lever.effects]
    if changed:
        parts += [_effects(changed), ""]
    notes = [f"{each.name}: {each.quality}" for each in pulled if each.knob in ("weights", "kv")]
    parts += [Text(line, style="dim") for line in notes]
    parts.append(Text(_footnotes(ranking), style="dim"))
    return Group(*parts)


def asked(setup: Setup) -> str:
    """The deployment, its traffic and its SLOs in one line."""
    targets = slos_text(setup.slos)
    targets = f"; SLO: {targets}" if targets else "; no SLO"
    return f"{setup.deployment}: {workload_text(setup.load.workload)}{targets}"


def _no_slo(setup: Setup) -> list[Text]:
    if setup.slos or setup.offline:
        return []
    said = "No SLO is set: a bill may fall because requests wait longer. Look at the latencies, or give --slo."
    return [Text(said, style="yellow")]


def bought(bill: SetupBill) -> str:
    """What is paid for, and how old its price is."""
    return f"{bill.bought}, price of {bill.price_date}{'†' if bill.price_stale else ''}"


def _quoted(bills: Sequence[SetupBill]) -> str:
    return quoted_text([bill.price_date for bill in bills], any(bill.price_stale for bill in bills))


def _served(bill: SetupBill) -> str:
    return f"{usd(bill.usd_per_mtok)} per Mtok, {plural(bill.replicas, 'replica')}"


def _bill(each: Pulled) -> SetupBill:
    assert each.bill is not None
    return each.bill


def _name(each: Pulled) -> Text:
    """With the GPUs it moves to, and on whose machines."""
    bill = _bill(each)
    to = f": {bill.deployment.rpartition(' on ')[2]} ({bill.bought})" if each.knob == "hardware" else ""
    if each.knob == "tiers":
        to = f": {memories_text(bill)}"
    return Text(f"{each.name}{to}", style="bold green" if each.saved_usd_per_month > 0 else "")


def memories_text(bill: SetupBill) -> str:
    """Sizes of the memories behind the GPU's, a replica or all of them."""
    sizes = (f"{memory.tier.name} {gigabytes(memory.tier.size_bytes)}" for memory in bill.memories)
    return " + ".join(sizes) + (" a replica, assumed free" if bill.memory_assumed else "")


def _saves(share: float) -> str:
    if abs(share) < 5e-4:
        return "0 %"
    return percent(share) if share > 0 else f"costs {percent(-share)}"


def _figures(bill: SetupBill) -> list[str]:
    late = [bill.ttft_s.p99, bill.tpot_s.p99]
    mean = f" ({bill.mean_replicas:.1f})" if bill.mean_replicas < bill.replicas else ""
    apart = f" ({bill.prefill_replicas} prompts)" if bill.prefill_replicas else ""
    return [
        f"{usd(bill.usd_per_month)}{'†' if bill.price_stale else ''}",
        usd(bill.usd_per_mtok),
        f"{bill.replicas}{mean}{apart}",
        "–" if bill.load_share is None else percent(bill.load_share),
        *("–" if each is None else seconds(each) for each in late),
    ]


def _together(ranking: Ranking) -> Text:
    now, after = ranking.now, ranking.together
    if not ranking.taken:
        return Text("No lever lowers the bill at this size: whole replicas and machines are what is paid for.")
    said = f"Together −{percent(ranking.saved_share)}"
    differs = percent(ranking.sum_of_shares) != percent(ranking.saved_share)
    sum_ = f", not the sum of each alone (−{percent(ranking.sum_of_shares)})" if differs else ""
    if ranking.sum_of_shares < 5e-4:
        sum_ = ", though each alone saves nothing"
    line = f"{sum_}: {usd(now.usd_per_month)} → {usd(after.usd_per_month)} a month, {_served(after)}"
    return Text.assemble(
        (said, "bold green"),
        line,
        f"\n  {' + '.join(ranking.taken)}\n",
        (f"  {after.deployment}; {bought(after)}", "dim"),
    )


def _efforts(levers: Sequence[Pulled]) -> list[Text]:
    widest = max(len(lever.name) for lever in levers)
    return [Text.assemble(f"  {lever.name:<{widest}}  ", (f"{lever.effort}; {lever.risk}", "dim")) for lever in levers]


def _reasons(levers: Sequence[Pulled]) -> list[Text]:
    widest = max(len(lever.name) for lever in levers)
    return [Text.assemble(f"  {lever.name:<{widest}}  ", (lever.reason or "", "dim")) for lever in levers]


def _effects(changed: Sequence[tuple[str, Effects]]) -> RenderableType:
    heads = [
        "!",
        ">weights/GPU",
        f">step of {changed[0][1].batch:.0f}",
        f">{CHUNK:,} prompt tokens",
        ">room for sequences",
    ]
    before = changed[0][1]
    rows = [
        ["as it is", gigabytes(before.weight_bytes_before), seconds(before.step_s_before),
         seconds(before.prompt_s_before), f"{before.sequences_before:,.0f}"],
    ]  # fmt: skip
    rows += [
        [name, gigabytes(each.weight_bytes_after), seconds(each.step_s_after), seconds(each.prompt_s_after),
         f"{each.sequences_after:,.0f}"]
        for name, each in changed
    ]  # fmt: skip
    return table(
        heads, rows, title="What fewer bits do, apart: bytes of a step, arithmetic of a prompt, room for the batch"
    )


def _footnotes(ranking: Ranking) -> str:
    notes = [
        "Every bill is of a simulated fleet: the fewest replicas that meet every SLO, on whole machines. full: "
        "requests served over what full batches would serve; a lever that saves nothing yet may make room.",
    ]
    names = {lever.name for lever in ranking.levers if lever.bill}
    if "speculative decoding" in names:
        notes.append(
            "Speculative decoding: steps scaled by the tokens a round yields in the mean, none drafted beside prompts; "
            "the acceptance is assumed unless you gave yours."
        )
    if "spot" in names:
        notes.append("Spot: as much as the verdict allows, interruptions priced; `tokonomics fleet` replays them.")
    notes.append(_quoted([ranking.now, ranking.together, *(lever.bill for lever in ranking.levers if lever.bill)]))
    notes.append("Similar prompts and templates: `tokonomics cache`. Shared fleets and LoRA: `tokonomics tenants`.")
    return "\n".join(notes)


# --- the way there --------------------------------------------------------------------------------------------------


def stack_view(made: Waterfall, setup: Setup) -> RenderableType:
    """The waterfall as a table."""
    naive, end = made.naive, made.end
    headline = Text.assemble(
        (f"−{made.saved_share * 100:.1f} %", "bold green"),
        f": {usd(naive.usd_per_month)} → {usd(end.usd_per_month)} a month, "
        f"{usd(naive.usd_per_mtok)} → {usd(end.usd_per_mtok)} per Mtok",
    )
    if made.batched and made.saved_share_of_batched is not None:
        said = f"−{made.saved_share_of_batched * 100:.1f} %"
        fair = f"From a start that batches already: {said}, {usd(made.batched.usd_per_month)} a month before."
        headline.append(f"\n{fair}")
    heads = ["step", ">saves $/month", ">of the start", ">$/month", ">$/Mtok", ">replicas", ">full", ">TTFT p99",
             ">TPOT p99"]  # fmt: skip
    rows = [["one request at a time, 16 bit", "", "", *_figures(naive)]]
    rows += [_step(step, made.drafted) for step in made.steps]
    parts: list[RenderableType] = [Text(asked(setup)), *_no_slo(setup), "", headline, "", table(heads, rows), ""]
    parts += [Text.assemble("End: ", (end.deployment, "bold"), f"; {bought(end)}"), ""]
    if made.left_out:
        widest = max(len(each.name) for each in made.left_out)
        parts.append(Text("Left out", style="bold"))
        parts += [Text.assemble(f"  {each.name:<{widest}}  ", (each.reason, "dim")) for each in made.left_out]
        parts.append("")
    parts += [Text(line, style="dim") for line in made.quality]
    if made.drafted:
        parts.append(Text(_drafted(made.drafted), style="yellow" if made.drafted.assumed else "dim"))
    parts.append(
        Text(
            "Every step is a simulated fleet that meets the SLOs. The order changes what a step saves, not the end "
            "(--order). The start serves one request at a time on each replica, as the document's baseline does.",
            style="dim",
        )
    )
    parts.append(Text(_quoted([naive, end, *(step.bill for step in made.steps)]), style="dim"))
    return Group(*parts)


def _drafted(drafted: Drafted) -> str:
    told = "assumed, not measured: give yours (--acceptance)" if drafted.assumed else "as you gave it"
    pays = "at no acceptance" if drafted.pays_from is None else f"from an acceptance of {percent(drafted.pays_from)} on"
    return (
        f"Speculative decoding: the acceptance of {percent(drafted.acceptance)} is {told}. "
        f"At a batch of {drafted.batch:.0f} a draft saves time {pays}."
    )


def _step(step: Step, drafted: Drafted | None) -> list[str]:
    name = step.name
    if "tiers" in step.knobs and step.bill.memories:
        name = f"{name}: {memories_text(step.bill)}"
    if drafted is not None and drafted.assumed and "speculation" in step.knobs:
        name = f"{name} (assumed)"
    return [
        name,
        usd(step.saved_usd_per_month) if abs(step.saved_usd_per_month) >= 0.005 else "–",
        f"{step.saved_share * 100 + 0.0:.1f} %" if abs(step.saved_share) >= 5e-4 else "0 %",
        *_figures(step.bill),
    ]


# --- utilisation ----------------------------------------------------------------------------------------------------


def utilization_view(made: Utilization) -> RenderableType:
    """Cost against batch limit, load and burstiness."""
    parts: list[RenderableType] = []
    for title, points in (
        ("The bill against how many requests a replica serves at a time", made.by_batch),
        ("The bill against the load: the same deployment, more or less to do", made.by_load),
        ("The bill against burstiness, at equal mean rate", made.by_burst),
    ):
        parts += [_points(title, points), ""]
    return Group(*parts[:-1])


def _points(title: str, points: Sequence[UtilizationPoint]) -> RenderableType:
    heads = ["!", ">$/month", ">$/Mtok", ">replicas", ">full", ">TTFT p99", ">TPOT p99"]
    rows = [[row.name, *(_figures(row.bill) if row.bill else [row.reason or "–", *[""] * 5])] for row in points]
    return table(heads, rows, title=title)
