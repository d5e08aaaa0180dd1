"""Write phrases that several views share."""

import re
from collections.abc import Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING

from tokonomics.catalog.gpus import Gpu, gpu_text
from tokonomics.catalog.offers import OLDER, UNSPECIFIED
from tokonomics.catalog.places import Seller, seller_of
from tokonomics.catalog.price_index import PriceCoverage
from tokonomics.errors import option
from tokonomics.money.cost import BeforeAfter
from tokonomics.physics.calibration import Coverage
from tokonomics.planner.plan_answer import Candidate
from tokonomics.report import blocks
from tokonomics.serving.class_outcome import FirstAnswer
from tokonomics.serving.outcome import SloOutcome
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import DemandSwing
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Speed, today
from tokonomics.units import (
    HOURS_PER_MONTH,
    SECONDS_PER_HOUR,
    count,
    fine_percent,
    percent,
    plural,
    requests_a_second,
    seconds,
    usd,
)

if TYPE_CHECKING:
    from tokonomics.planner.compare import Cell, Comparison
    from tokonomics.traffic.summary import TraceSummary

ENCODER_SPEED = "attention scaled from kernels timed with causal masks"  # how the speed of an encoder is known
TOWER_SPEED = "assumed at 70 % of peak FLOP/s"
"""How the speed of a vision tower is known (``physics.attention_kernels.GEMM_SHARE``)."""
OLD_PRICE = f"† price {OLDER}: run `tokonomics offers --refresh`."  # explains the mark on old prices
FEWER_BITS = f"* fewer bits than published: check quality on your own task ({option('min_weights')}, {option('kv')})."
"""Explains the mark on precisions."""
PROFILED = (
    "Profile: measured = calibrated on this layout; carried over = corrected as the nearest layout that was, where "
    "that is slower; not covered = as without it."
)
"""Explains the words about a profile."""
NO_VALUE = "–"
_DAYS_IN_DAYS = 120
_MONTHS_IN_MONTHS = 24  # longer ages use the next larger unit


_PROVIDERS = {
    "aws": "AWS", "azure": "Azure", "coreweave": "CoreWeave", "cudo": "CUDO", "do": "DigitalOcean",
    "fluidstack": "FluidStack", "gcp": "Google Cloud", "ibm": "IBM Cloud", "jarvislabs": "JarvisLabs",
    "oci": "Oracle Cloud", "ovhcloud": "OVHcloud", "primeintellect": "Prime Intellect", "runpod": "RunPod",
    "vast": "Vast.ai",
}  # fmt: skip
"""Names as the providers write them; other names are the key with a capital letter."""


def datasheet_text(gpu: Gpu, speed: Speed) -> str:
    """Name the source of a GPU's figures if little else is known of its speed; nothing for the others."""
    if speed is not Speed.assumed and not gpu.unified_memory:
        return ""
    return f"Datasheet of {gpu.key}: {gpu.source}."


def provider_text(provider: str) -> str:
    """Return ``AWS``, ``Google Cloud``, ``Lambda``; for the user's own price list, the name in it."""
    if seller_of(provider) is None:
        return provider
    return _PROVIDERS.get(provider, provider.capitalize())


def covered_text(known: PriceCoverage) -> str:
    """Return ``AWS: 22 regions in 15 countries, 2026-08-22``; one country by its code."""
    countries = known.countries
    where = (
        f"in {len(countries)} countries" if len(countries) > 1 else f"in {countries[0]}" if countries else "somewhere"
    )
    perhaps = "" if known.is_place_certain else " (which machine where: ask)"
    return f"{provider_text(known.provider)}: {plural(known.regions, 'region')} {where}{perhaps}, {known.newest}"


def machine_text(provider: str, instance: str, gpu: str, gpus: int = 1, region: str = UNSPECIFIED) -> str:
    """Return ``AWS p5.48xlarge, 8× H100, us-east-1`` or ``Yotta, RTX 5090, us-east-3``.

    Instance types of hyperscalers, and of the user's own price lists, are names that people know and order by. Those of
    other sellers spell out the GPU, the cores and the memory, so the GPU says enough.
    """
    known = seller_of(provider) in (None, Seller.hyperscaler)
    seller = f"{provider_text(provider)} {instance}" if known else provider_text(provider)
    several = f"{gpus}× " if gpus > 1 else ""
    where = "" if region == UNSPECIFIED else f", {region}"
    return f"{seller}, {several}{gpu_text(gpu)}{where}"


def rented_text(row: Candidate) -> str:
    """Return the machines of a candidate without their region: ``2 × RunPod, L40S``."""
    machine = machine_text(row.provider, row.instance, row.gpu, row.gpus_paid // row.instances)
    return f"{row.instances:,} × {machine}" if row.instances > 1 else machine


def bought_text(bill: Bill) -> str:
    """Return the machines of a bill: ``3 × RunPod, L40S, US, on demand``."""

    def named(found: re.Match[str]) -> str:
        return f"{found[1]} × {machine_text(found[2], found[3], bill.gpu, each)}"

    kinds = list(re.finditer(pattern := r"(\d+)× (\S+) ([^,;]+)", bill.bought))
    each = (
        round(bill.gpus_paid / int(kinds[0][1])) if len(kinds) == 1 else 1
    )  # of machines of several sizes it is not told
    return re.sub(pattern, named, bill.bought)


def speed_text(speed: Speed, speed_from: Sequence[str]) -> str:
    """Say how a speed is known, after its word: ``from H100-SXM kernel timings, by the datasheets``."""
    others = " and ".join(map(gpu_text, speed_from))
    if speed is Speed.assumed:
        near = f" nearer than {others}'s" if others else ""
        return f"by the datasheet, no kernels{near} timed: measure before you buy"
    if others:
        return f"from {others} kernel timings, by the datasheets"
    at = "timed on this GPU" if speed is Speed.timed else "of this GPU at another precision or shape"
    return f"from kernels {at}"


def known_text(speed: Speed, profiled: Coverage | None) -> str:
    """Say how the speed of a row is known, and whether the profile covers its layout: ``timed; carried over``."""
    return f"{speed.value}; {profiled.value}" if profiled else speed.value


def speed_word(speed: Speed, speed_from: Sequence[str]) -> str:
    """Return ``timed``, ``scaled from H100-SXM`` or ``assumed``."""
    others = f" from {' and '.join(map(gpu_text, speed_from))}" if speed is Speed.scaled and speed_from else ""
    return f"{speed.value}{others}"


def thinking_facts(found: FirstAnswer | None) -> list[blocks.Fact]:
    """Show when the answer of a reasoning model begins, and what its tokens cost."""
    if found is None:
        return []
    times, origin = found.first_answer_s, f"as given ({option('thinking')})"
    if found.assumed:
        origin = f"as DeepSeek-R1's users in ServeGen's traces; yours: {option('thinking')}"
    tail = f"; p99 {seconds(times.p99)}" if times.p99 is not None else ""
    thinks = (
        f"mean, behind {count(round(found.thinking_tokens))} tokens of thinking: {percent(found.share)} of the output"
    )
    facts = []
    if times.mean is not None:
        late = f"{thinks}, {origin}{tail}"
        facts.append(blocks.fact("first answer token", seconds(times.mean), late, number=times.mean))
    if (price := found.usd_per_mtok_answer) is not None:
        charged = "the output's cost, charged to answer tokens alone"
        facts.append(blocks.fact("per Mtok answer", usd(price), charged, number=price))
    return facts


def age_text(days: int) -> str:
    """Return ``12 days``, ``15 months`` or ``2.1 years``."""
    if days < _DAYS_IN_DAYS:
        return plural(days, "day")
    months = days * 24 / HOURS_PER_MONTH
    return f"{months:.0f} months" if months < _MONTHS_IN_MONTHS else f"{months / 12:.1f} years"


def aged(*ages: int, what: str = "price") -> str:
    """Say how old prices are, after an answer: ``; price 8 months old``; nothing for those of the last two days."""
    oldest = max(ages, default=0)
    if oldest <= 1:
        return ""
    return f"; {what if len({*ages}) == 1 else f'{what}s up to'} {age_text(oldest)} old"


def aged_since(*quoted: date) -> str:
    """Do the same as ``aged`` from the days on which the prices were quoted."""
    return aged(*((today() - day).days for day in quoted))


def marked_old(price_from: str | None) -> str:
    """Return ``; price older than 90 days``, after an answer, if the text about its price says so."""
    return f"; price {OLDER}" if price_from and OLDER in price_from else ""


def time_text(value: float | None) -> str:
    return NO_VALUE if value is None else seconds(value)


def usd_text(value: float | None) -> str:
    return NO_VALUE if value is None else usd(value)


def percent_text(value: float | None) -> str:
    return NO_VALUE if value is None else percent(value)


def number_text(value: float | None, unit: str = "") -> str:
    return NO_VALUE if value is None else f"{count(round(value, 1))}{unit}"


def signed_text(share: float) -> str:
    """Return ``+1.8 %``."""
    return f"{share * 100:+,.1f} %"


def tenths_text(share: float | None) -> str:
    return NO_VALUE if share is None else fine_percent(share)


def minus_text(share: float) -> str:
    """Return ``1.8 %`` or ``−1.8 %``: a share with a sign only below 0."""
    return percent(share) if share >= 0 else f"−{percent(-share)}"


def delivered_text(slo: SloOutcome) -> str:
    """Return the latency that an SLO is judged by; ``never`` if requests are never answered."""
    return "never" if slo.delivered_s is None else seconds(slo.delivered_s)


def duration_text(duration_s: float) -> str:
    """Return seconds, minutes, hours or days, whichever reads best."""
    for name, size in (("days", 86400), ("hours", 3600), ("min", 60)):
        if duration_s >= (2 * size if name != "min" else size):
            return f"{duration_s / size:.3g} {name}"
    return f"{duration_s:.3g} s"


def how_long(made: "TraceSummary") -> str:
    """Say how long a log lasts, after its number of requests."""
    return f" in {duration_text(made.duration_s)}" if made.duration_s else " at once" if made.requests > 1 else ""


def workload_text(workload: Workload, swing: DemandSwing | None = None) -> str:
    """Return ``5 requests/s of 1,000 in (p50 722, p99 4,720) / 300 out (p50 238, p99 1,160)``.

    Traffic that changes is ``3 requests/s in the mean, 9 at the peak (12:00)``.
    """
    return f"{requests_a_second(f'{workload.rate:.4g}')}{_peak_text(swing)} of {workload.lengths_text}"


def _peak_text(swing: DemandSwing | None) -> str:
    if swing is None:
        return ""
    hour = round(swing.peak_s / SECONDS_PER_HOUR)
    when = f"{hour % 24:02}:00"
    if len(swing.hours) == len(_DAYS) * 24:
        when = f"{_DAYS[hour // 24 % len(_DAYS)]} {when}"
    if not swing.is_daily:
        when = f"hour {hour + 1} of the log" if swing.period_s is None else f"every {duration_text(swing.period_s)}"
    return f" in the mean, {swing.peak_rate:.4g} at the peak ({when})"


_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def slos_text(slos: Sequence[Slo]) -> str:
    """Return ``TTFT p99 ≤ 500 ms, TPOT p99 ≤ 50 ms``."""
    return ", ".join(f"{slo.label} ≤ {seconds(slo.seconds)}" for slo in slos)


def and_slos(slos: Sequence[Slo]) -> str:
    """Return ``; SLO: TTFT p99 ≤ 500 ms`` after a question, if there are any."""
    return f"; SLO: {slos_text(slos)}" if slos else ""


def setup_text(setup: Setup) -> str:
    """Return the deployment, its traffic and its SLOs in one line."""
    return f"{setup.deployment}: {workload_text(setup.load.workload)}{and_slos(setup.slos) or '; no SLO'}"


def price_text(cell: "Cell", compared: "Comparison") -> str:
    """Return the price of a pair with its marks; → marks every pair with the lowest shown price."""
    if cell.usd_per_mtok is None or cell.pick is None:
        return NO_VALUE
    cheapest = compared.cheapest()
    lowest = cheapest is not None and usd(cell.usd_per_mtok) == usd(cheapest.usd_per_mtok or 0.0)
    marks = f"{'*' if cell.pick.below_checkpoint else ''}{'†' if cell.pick.price_stale else ''}"
    return f"{'→ ' if lowest else ''}{usd(cell.usd_per_mtok)}{marks}"


def quoted_on(dates: Iterable[date]) -> str:
    """Say when prices were quoted."""
    found = list(dates)
    first, last = min(found), max(found)
    return f"Prices quoted on {first}" if first == last else f"Prices quoted from {first} to {last}"


def quoted_text(dates: Iterable[date], any_stale: bool) -> str:
    """Say when prices were quoted, and explain the mark on old ones."""
    return f"{quoted_on(dates)}. {OLD_PRICE}" if any_stale else f"{quoted_on(dates)}."


def hourly_text(bill: BeforeAfter) -> str:
    """Return ``$9.00 → $3.00 an hour ($6,570 → $2,190 a month)``."""
    before, after = bill.before.usd, bill.after.usd
    month = f"{usd(before * HOURS_PER_MONTH)} → {usd(after * HOURS_PER_MONTH)} a month"
    return f"{usd(before)} → {usd(after)} an hour ({month})"


def span_text(first: int, last: int) -> str:
    """Return the turns of a session, or the number of replicas: ``3``, or ``5–9``."""
    return f"{first}" if first == last else f"{first}–{last}"


def gap_text(gap: float) -> str:
    """Write a proven gap, at least 0.01 %, as no solver proves zero."""
    return f"{gap * 100:.2g} %" if gap > 5e-5 else "0.01 %"
