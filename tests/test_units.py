"""Numbers as people read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.units import count, requests_a_second, seconds

SHOWN = re.compile(r"([0-9,]*\.?[0-9]+(?:e-[0-9]+)?) (ms|s|min|h)")


@given(st.floats(1e-6, 1e7))
def test_a_duration_is_shown_to_three_digits_and_never_in_a_thousand_of_its_unit(duration: float) -> None:
    found = SHOWN.fullmatch(seconds(duration))
    assert found
    number = float(found[1].replace(",", ""))
    assert number * {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}[found[2]] == pytest.approx(duration, rel=5.1e-3)
    assert number < 1000 or found[2] == "h"


@pytest.mark.parametrize(
    ("duration", "shown"),
    [(0.99949, "999 ms"), (0.9996, "1 s"), (119.96, "120 s"), (120, "2 min"), (7200, "2 h"), (float("inf"), "–")],
)
def test_a_duration_changes_its_unit_where_it_rounds_to_the_next(duration: float, shown: str) -> None:
    assert seconds(duration) == shown


@pytest.mark.parametrize(
    ("rate", "shown"), [("1", "1 request/s"), ("1.5", "1.5 requests/s"), ("1.23e+04", "12.3 K requests/s")]
)
def test_a_rate_has_the_right_plural_and_no_exponent(rate: str, shown: str) -> None:
    assert requests_a_second(rate) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(3.42e15, "3,420 T"), (999.9e12, "1,000 T"), (999.4e12, "999 T"), (999.96e9, "1 T")]
)
def test_what_is_beyond_the_last_suffix_is_written_out(number: float, shown: str) -> None:
    assert count(number) == shown
