"""The arithmetic of prefix caching."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.errors import BadInput
from tokonomics.money.caching import prefix_saving

tokens = st.integers(1, 10**5)


@given(tokens, tokens, st.floats(1, 1e6), st.floats(0, 1), st.floats(0.001, 100))
def test_saved_and_computed_tokens_are_all_the_tokens(
    prefix: int, query: int, requests: float, hits: float, price: float
) -> None:
    result = prefix_saving(prefix, query, requests, hits, price)
    hit, missed = requests * hits, requests * (1 - hits)
    assert result.tokens_with == pytest.approx(hit * query + missed * (prefix + query))
    assert result.usd_saved_per_hour == pytest.approx(
        (result.tokens_without - result.tokens_with) / 1e6 * price, abs=1e-9
    )


@given(tokens, tokens, st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_more_cache_hits_never_cost_more(prefix: int, query: int, two: tuple[float, float]) -> None:
    low, high = sorted(two)
    assert prefix_saving(prefix, query, 1, high, 1).tokens_with <= prefix_saving(prefix, query, 1, low, 1).tokens_with


def test_a_hit_rate_above_one_is_refused() -> None:
    with pytest.raises(BadInput, match="hit-rate"):
        prefix_saving(1, 1, 1, 1.2, 1)
