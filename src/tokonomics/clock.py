"""What day it is: the age of a price, and so the word "stale", is counted from here.

``TOKONOMICS_TODAY=YYYY-MM-DD`` fixes the day, so that generated documents come out the same tomorrow.
"""

import os
from datetime import date

from tokonomics.errors import BadInput, shorten


def today() -> date:
    fixed = os.environ.get("TOKONOMICS_TODAY")
    if not fixed:
        return date.today()
    try:
        return date.fromisoformat(fixed)
    except ValueError:
        raise BadInput(
            f"'{shorten(fixed)}' is not a date", where="TOKONOMICS_TODAY", fix="Write it as 2026-08-22."
        ) from None
