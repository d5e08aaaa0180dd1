"""What serving draws, emits and takes in people, beside its bill of machines."""

from collections.abc import Iterable

from tokonomics.errors import option
from tokonomics.money.energy import Energy
from tokonomics.money.upkeep import Upkeep
from tokonomics.report import blocks
from tokonomics.types import Badge, Speed
from tokonomics.units import count, percent, usd

_MODELLED = {
    Speed.timed: "modelled from watts measured on this GPU",
    Speed.scaled: "modelled from watts of its architecture",
    Speed.assumed: "assumed",
}


def energy_facts(drawn: Energy | None) -> Iterable[blocks.Fact]:
    """Kilowatt-hours and grams of CO₂e per million tokens, and what they rest on."""
    if drawn is None or drawn.kwh_per_mtok is None or drawn.g_co2e_per_mtok is None:
        return
    how = "measured" if drawn.basis is Badge.measured else _MODELLED[drawn.known]
    parts = f"GPUs {watts(drawn.gpu_watts)} ({how}), host {watts(drawn.host_watts)}, PUE {drawn.pue:g}"
    month = f"{count(drawn.kwh_per_month)} kWh a month"
    yield blocks.fact(
        "energy", f"{drawn.kwh_per_mtok:.3g} kWh", f"per Mtok; {month}: {parts}", number=drawn.kwh_per_mtok
    )
    grams = f"{count(float(f'{drawn.g_co2e_per_mtok:.3g}'))} g CO₂e"
    said = f"per Mtok; {count(drawn.kg_co2e_per_month)} kg a month at {drawn.grid.text}"
    yield blocks.fact("emissions", grams, said, number=drawn.g_co2e_per_mtok)


def watts(power: float) -> str:
    """``640 W``, ``5.6 kW``, ``1.88 MW``."""
    size, unit = next(
        (size, unit) for size, unit in ((1, "W"), (1e3, "kW"), (1e6, "MW")) if power < 999.5 * size or size == 1e6
    )
    return f"{power / size:.3g} {unit}"


def energy_notes(drawn: Energy | None) -> Iterable[str]:
    """Where the watts are from, and what emissions count."""
    if drawn is None:
        return
    host = "half of the GPUs' datasheet watts" if drawn.host_watts else f"not counted, as no {option('gpu')} is named"
    yield f"Watts of the GPUs: {drawn.power_from}. Host: {host}."
    own = f"; yours: {option('grid', 45)}" if drawn.grid.year is not None else ""
    yield f"Emissions are of the electricity, by the grid's mean (location-based), not of making the machines{own}."


def upkeep_facts(kept: Upkeep | None, over: str = "a month") -> Iterable[blocks.Fact]:
    """The bill with people and overheads, in all and per million tokens."""
    if kept is None:
        return
    named = ", ".join(f"{line.name} {usd(line.usd)}" for line in kept.lines.lines)
    per = "" if kept.usd_per_mtok is None else f"{usd(kept.usd_per_mtok)} per Mtok; "
    more = f"{per}{percent(kept.share)} of it is not machines: {named}"
    value = usd(kept.total_usd) if over != "a month" else f"{usd(kept.total_usd)}/month"
    yield blocks.fact("with overheads", value, more, number=kept.total_usd)
