"""How firm a plan is, for a person: room to grow, the bill's interval, what flips the choice, what moves the bill."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tokonomics.planner.flips import Flip, Flips
from tokonomics.planner.plan import Candidate, Plan, Study
from tokonomics.planner.regret import Regret
from tokonomics.planner.what_if import BillRange, Case, Headroom, Sensitivity
from tokonomics.report.plan_view import layout_text, workload_text
from tokonomics.report.tables import table
from tokonomics.units import count, percent, seconds, usd


def firmness_text(headroom: Headroom, bills: BillRange) -> Text:
    """Two lines below the pick."""
    return Text(f"  {_grows(headroom)}\n  {_interval(bills)}\n")


def _grows(headroom: Headroom) -> str:
    if headroom.at_most is None:
        return "nothing breaks however much the traffic grows"
    more = f"{percent(headroom.share)} more" if headroom.share >= 0.005 else "no room to grow"
    if headroom.share >= 2:
        more = f"{headroom.share + 1:.2g} times as many"
    return f"holds up to {count(headroom.rate)} requests/s ({more}), then {headroom.breaks}"


def _interval(bills: BillRange) -> str:
    fast, slow = bills.fast, bills.slow
    if slow.usd_per_month is None or fast.usd_per_month is None:
        low = usd(fast.usd_per_month or bills.mid.usd_per_month or 0.0)
        return f"80 % interval: from {low}; {percent(1 - slow.speed)} slower, no number of replicas meets the SLO"
    bills_usd = [fast.usd_per_month, slow.usd_per_month, bills.mid.usd_per_month or fast.usd_per_month]
    if min(bills_usd) == max(bills_usd):
        return (
            f"80 % interval of the speed ({_off(slow.speed)} to {_off(fast.speed)}): "
            "the same bill, whole replicas absorb it"
        )
    return (
        f"80 % interval: {usd(min(bills_usd))} to {usd(max(bills_usd))} a month "
        f"(speed {_off(slow.speed)} to {_off(fast.speed)})"
    )


def _off(speed: float) -> str:
    return f"{'−' if speed < 1 else '+'}{percent(abs(speed - 1))}"


def flips_view(plan: Plan, found: Flips) -> RenderableType:
    """The runner-up, and what would make another GPU the cheapest."""
    rival = plan.runner_up()
    lines: list[Text] = []
    if rival and found.other_gpu:
        same = found.other_gpu.pick_may_rise < 0.005
        dearer, cheaper = percent(found.other_gpu.pick_may_rise), percent(found.other_gpu.rival_must_fall)
        lines.append(
            Text.assemble(
                "Runner-up: ",
                (f"{usd(rival.usd_per_month)} a month", "bold"),
                f", {layout_text(rival)} at {rival.provider} {rival.instance}: ",
                "the same bill on another GPU"
                if same
                else f"{dearer} dearer; wins if its price falls by {cheaper}, or the pick's GPU becomes {dearer} "
                "dearer everywhere",
            )
        )
    lines += [Text(f"  {_flip(each)}") for each in found.traffic]
    if found.steady:
        lines.append(Text(f"  no flip up to: {', '.join(found.steady)}", style="dim"))
    return Group(*lines)


def _flip(flip: Flip) -> str:
    way = "from" if flip.factor > 1 else "down to"
    dollars = f"{_bill(flip.after.rival_usd_per_month)} against {_bill(flip.after.pick_usd_per_month)}"
    return f"{way} {count(flip.after.value)} {flip.what} ({flip.factor:.3g}×): {flip.gpu} {flip.rival}, {dollars}"


def _bill(value: float | None) -> str:
    return "no way" if value is None else usd(value)


def sensitivity_view(found: Sensitivity) -> RenderableType:
    """Which assumption moves the bill most."""
    return table(
        ["!assumption", ">change", ">$/month", ">used", ">change", ">$/month", ">used"],
        [(swing.assumption.replace("_", " "), *_case(swing.low), *_case(swing.high)) for swing in found.swings],
        title=f"What moves the bill of the pick ({usd(found.usd_per_month)}, {percent(found.used)} of what it holds)",
    )


def _case(case: Case) -> tuple[str, str, str]:
    bill = "–" if case.usd_per_month is None else usd(case.usd_per_month)
    return f"{_off(case.factor)}", bill, "–" if case.used is None else percent(case.used)


def models_view(studies: Sequence[Study], rows: Sequence[Candidate]) -> RenderableType:
    """The pick of each model, the cheapest first."""
    names = {study.plan.model: study.question.model.name for study in studies}
    cheapest = rows[0].usd_per_mtok.blended
    ranking = table(
        ["", "!model", "replicas × GPUs", "offer", ">$/month", ">$/Mtok", ">dearer", ">TTFT p99", ">TPOT p99"],
        [
            (
                str(place),
                names[row.model],
                f"{layout_text(row)}{'*' if row.below_checkpoint else ''}",
                f"{row.provider} {row.instance}",
                usd(row.usd_per_month),
                usd(row.usd_per_mtok.blended),
                "" if place == 1 else percent(row.usd_per_mtok.blended / cheapest - 1),
                _late(row.ttft_s.p99),
                _late(row.tpot_s.p99),
            )
            for place, row in enumerate(rows, 1)
        ],
    )
    without = [name for key, name in names.items() if key not in {row.model for row in rows}]
    notes = "The same requests for each model, counted in tokens; tokenizers differ by some percent. "
    notes += "Whether a cheaper model is good enough is for you to measure."
    if not studies[0].plan.slos:
        notes += " No SLO is set (--slo): answers may wait for long."
    if without:
        notes += f" Nothing fits for {', '.join(without)}: plan it alone to see why."
    return Group(ranking, "", Text(notes, style="dim"))


def regret_view(found: Regret, cases: Sequence[str], model_name: str) -> RenderableType:
    """The choice that is least wrong, and what each choice costs in each case."""
    head = [
        Text(f"{model_name}, {case}: {workload_text(demand)}, best {usd(best)} a month", style="dim")
        for case, demand, best in zip(cases, found.demands, found.best_usd_per_month, strict=True)
    ]
    least = found.least
    if least is None:
        return Group(*head, "", Text("No choice holds in every case.", style="bold red"))
    bills = " / ".join(usd(each.usd_per_month) for each in least.cases)
    verdict = Text.assemble(
        "Least regret: ",
        (f"{least.gpu} {least.layout}", "bold green"),
        f" at {least.provider} {least.instance}: {bills} a month for {' / '.join(cases)}, "
        f"at most {percent(least.largest_regret)} above the best of any case",
    )
    ranking = table(
        ["", "!hardware", "offer", *(f">{case}" for case in cases), ">most regret", "best in"],
        [
            (
                str(place),
                f"{choice.gpu} {choice.layout}{'*' if choice.below_checkpoint else ''}",
                f"{choice.provider} {choice.instance}",
                *(f"{usd(case.usd_per_month)} ({case.replicas}×)" for case in choice.cases),
                percent(choice.largest_regret),
                ", ".join(cases[place] for place in choice.best_in) or "–",
            )
            for place, choice in enumerate(found.choices, 1)
        ],
    )
    notes = "Replicas (×) follow the demand, the hardware does not. Regret: the bill over the best bill of that case."
    return Group(*head, "", verdict, "", ranking, "", Text(notes, style="dim"))


def _late(value: float | None) -> str:
    return "–" if value is None else seconds(value)
