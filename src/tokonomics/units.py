"""Conversions and human formatting: the only place that knows 1e6, 3600, GB and $.

Sizes and rates are decimal (GB = 1e9 bytes, TB/s = 1e12 bytes a second), as datasheets state them.
"""

import math
import re

SECONDS_PER_HOUR = 3600
DAY_S = 24 * SECONDS_PER_HOUR
HOURS_PER_MONTH = 730  # 8760 hours a year ÷ 12, as cloud price lists count
SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR
TOKENS_PER_MTOK = 1_000_000
BYTES_PER_GB = 1_000_000_000
GIB = 2**30
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}


def usd(amount: float) -> str:
    """$1,234 from a thousand, cents from a dollar, three digits below: enough to tell small prices apart."""
    if not math.isfinite(amount):
        return "$∞" if amount > 0 else "–"
    size = abs(amount)
    if size >= 1000:
        return f"${amount:,.0f}"
    if size >= 1 or size == 0:
        return f"${amount:,.2f}"
    decimals = max(3, 2 - math.floor(math.log10(size)))
    return f"${amount:.{decimals}f}" if decimals <= 8 else f"${amount:.2e}"


def count(number: float) -> str:
    """1,234 below ten thousand; 12.3 K, 4.5 M, 6.7 B, 1.2 T above."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        # Three digits decide, so that 999.9 M reads as 1 B and not as 1000 M.
        if abs(number) >= (1e4 if suffix == "K" else scale * 0.9995):
            value = number / scale
            return f"{value:,.0f} {suffix}" if abs(value) >= 999.5 else f"{value:.3g} {suffix}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def scaled(text: str) -> float | None:
    """The number that ``2000000``, ``32k``, ``1.5M`` or ``2B`` stands for; None where it is none."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,2})?)\s*([kKmMbBgGtT]?)", text.strip())
    return float(found[1]) * _SCALES[found[2].lower()] if found else None


def whole_number(text: str) -> int | None:
    """The whole number that ``1500`` or ``1.5k`` stands for; None where it is none."""
    number = int(text) if re.fullmatch(r"\s*[0-9]{1,20}\s*", text) else scaled(text)
    is_whole = number is not None and math.isfinite(number) and abs(number - round(number)) < 1e-6
    return round(number) if number is not None and is_whole else None


def gigabytes(size: float) -> str:
    """Decimal GB, or MB and KB where GB would read as zero."""
    for scale, suffix in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if abs(size) >= scale:
            value = size / scale
            return f"{value:,.0f} {suffix}" if value >= 100 else f"{value:.3g} {suffix}"
    return f"{size:.0f} B"


def seconds(duration: float, digits: int = 3) -> str:
    """ms below a second, s below two minutes, minutes below two hours, else hours."""
    if not math.isfinite(duration):
        return "–"
    if duration < 1 - 0.5 * 10**-digits:  # so many digits of more would read as 1e+03 ms
        return f"{duration * 1e3:.{digits}g} ms"
    if duration < 120:
        return f"{duration:.{digits}g} s"
    if duration < 7200:
        return f"{duration / 60:.{digits}g} min"
    hours = duration / 3600
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.{digits}g} h"


def seconds_apart(duration: float, limit: float) -> str:
    """``200.4 ms``: in as many digits as tell it from the limit, where three show the same."""
    digits = range(3, 10)
    return next((text for count in digits if (text := seconds(duration, count)) != seconds(limit)), seconds(duration))


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.2g} %"


def fine_percent(share: float) -> str:
    """99.1 %: where a tenth decides."""
    return f"{share * 100:.1f} %"


def requests_a_second(shown: str) -> str:
    """1 request/s, 1.5 requests/s, 12.3 K requests/s: after a rate as it is shown."""
    shown = count(float(shown)) if "e+" in shown else shown  # so many digits of a large number
    return f"{shown} request{'' if shown == '1' else 's'}/s"


def plural(number: int, noun: str) -> str:
    """1 model, 2 models."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
