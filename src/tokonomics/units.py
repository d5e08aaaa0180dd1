"""Convert units and format numbers: the only module that knows 1e6, 3600, GB and $.

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
    """Format dollars: $1,234 from a thousand, cents from a dollar, three digits below, to tell small prices apart."""
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
    """Format a count: 1,234 below ten thousand; 12.3 K, 4.5 M, 6.7 B, 1.2 T above."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        # Round to three digits first, so that 999.9 M reads as 1 B and not as 1000 M.
        if abs(number) >= (1e4 if suffix == "K" else scale * 0.9995):
            value = number / scale
            return f"{value:,.0f} {suffix}" if abs(value) >= 999.5 else f"{value:.3g} {suffix}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def scaled(text: str) -> float | None:
    """Read a number such as ``2000000``, ``32k``, ``1.5M`` or ``2B``; return None if the text is not one."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,2})?)\s*([kKmMbBgGtT]?)", text.strip())
    return float(found[1]) * _SCALES[found[2].lower()] if found else None


def whole_number(text: str) -> int | None:
    """Read a whole number such as ``1500`` or ``1.5k``; return None if the text is not one."""
    number = int(text) if re.fullmatch(r"\s*[0-9]{1,20}\s*", text) else scaled(text)
    is_whole = number is not None and math.isfinite(number) and abs(number - round(number)) < 1e-6
    return round(number) if number is not None and is_whole else None


def gigabytes(size: float) -> str:
    """Format a size in decimal GB, or in MB or KB if GB would read as zero."""
    for scale, suffix in ((1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if abs(size) >= scale:
            value = size / scale
            return f"{value:,.0f} {suffix}" if value >= 100 else f"{value:.3g} {suffix}"
    return f"{size:.0f} B"


def seconds(duration: float, digits: int = 3) -> str:
    """Format a duration: ms below a second, s below two minutes, minutes below two hours, then hours."""
    if not math.isfinite(duration):
        return "–"
    if duration < 1 - 0.5 * 10**-digits:  # above this, rounding to these digits would show 1e+03 ms
        return f"{duration * 1e3:.{digits}g} ms"
    if duration < 120:
        return f"{duration:.{digits}g} s"
    if duration < 7200:
        return f"{duration / 60:.{digits}g} min"
    hours = duration / 3600
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.{digits}g} h"


def seconds_apart(duration: float, limit: float) -> str:
    """Format a duration in as many digits as tell it from the limit, such as ``200.4 ms``, if three look the same."""
    digits = range(3, 10)
    return next((text for count in digits if (text := seconds(duration, count)) != seconds(limit)), seconds(duration))


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.0995 or share == 0 else f"{share * 100:.2g} %"


def times(factor: float) -> str:
    """Format a factor: 1.47 times, 12.3 times, 170 K times."""
    return f"{factor:.2f} times" if factor < 9.995 else f"{count(float(f'{factor:.3g}'))} times"


def fine_percent(share: float) -> str:
    """Format a share with one decimal, such as 99.1 %, where a tenth matters."""
    return f"{share * 100:.1f} %"


def requests_a_second(shown: str) -> str:
    """Format a rate: 1 request/s, 1.5 requests/s, 12.3 K requests/s; ``shown`` is the rate as text."""
    shown = count(float(shown)) if "e+" in shown else shown  # a large number with few digits
    return f"{shown} request{'' if shown == '1' else 's'}/s"


def plural(number: int, noun: str) -> str:
    """Format a number with its noun: 1 model, 2 models."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
