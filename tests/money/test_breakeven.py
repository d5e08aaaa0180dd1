"""Break-even: whole machines against a price per token, claim by claim and law by law."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as some
from tests.there import there

from tokonomics.catalog.api_hosts import find_api
from tokonomics.catalog.apis import ApiPrice, ApiTier
from tokonomics.errors import BadInput
from tokonomics.money.breakeven import (
    MACHINES,
    Extra,
    FleetKind,
    ReplicaHolds,
    SelfHosted,
    bill_at,
    break_even,
    engineers,
    kind_of_equation,
    rising,
    swings,
)
from tokonomics.money.trace_bills import api_bill, api_bills
from tokonomics.traffic.trace import make_trace

DOCUMENT = kind_of_equation("4×A100", 2.21, 4, 2400, 0.7)
"""A published example: 70B in 16 bits on four A100."""
OPTIMISED = kind_of_equation("2×A100 INT4", 2.21, 2, 1800, 0.7)
HALF_AND_HALF = make_trace([0.0], [1000], [1000])


def kind(price: float, tokens: float, replicas: int = 1, **more: object) -> FleetKind:
    fields = {
        "name": "some",
        "gpus_per_purchase": replicas,
        "replicas_per_purchase": replicas,
        "usd_per_purchase": price,
        "holds": (ReplicaHolds(replicas=1, tokens_per_month=tokens),),
    }
    return FleetKind.model_validate(fields | more)


def test_c27_a_billion_tokens_of_gpt_4o_half_input_half_output() -> None:
    bill = api_bill(find_api("openai:gpt-4o"), HALF_AND_HALF)
    assert bill.usd_per_mtok * 1000 == pytest.approx(6250)


def test_c28_one_fleet_holds_a_billion_tokens_and_c29_ten_billion_take_three() -> None:
    hosted = SelfHosted(kinds=(DOCUMENT,))
    assert hosted.usd(1e9) == pytest.approx(4 * 2.21 * 730)
    assert DOCUMENT.holds[0].tokens_per_month == pytest.approx(4.415e9, rel=1e-4)
    ten = bill_at(hosted, {}, 10e9)
    assert (ten.replicas, ten.gpus) == (3, 12)
    assert ten.hosted_usd == pytest.approx(19359.6)


def test_c30_the_optimised_fleet_costs_more_than_stated_at_either_volume() -> None:
    hosted = SelfHosted(kinds=(OPTIMISED,))
    assert hosted.usd(1e9) == pytest.approx(3226.6)
    capacity = 1800 * 0.7 * 3600 * 730
    assert hosted.usd(10e9) == pytest.approx(math.ceil(10e9 / capacity) * 3226.6)


def test_c31_the_rule_of_thumb_is_the_document_s_fleet_with_an_engineer() -> None:
    api = api_bill(find_api("openai:gpt-4o"), HALF_AND_HALF)
    alone = break_even(SelfHosted(kinds=(DOCUMENT,)), api.name, api.usd_per_mtok)
    assert alone.stays_tokens_per_month == pytest.approx(6453.2 / 6.25 * 1e6)
    for salary in (150_000, 250_000):
        staffed = SelfHosted(kinds=(DOCUMENT,), extras=(engineers(1, salary / 12),))
        found = break_even(staffed, api.name, api.usd_per_mtok)
        assert 2e9 < there(found.first_tokens_per_month) < 5e9


PRICES = some.floats(10, 1e5)
TOKENS = some.floats(1e6, 1e11)
kinds = some.builds(
    lambda price, tokens, replicas, spare, gain: kind(
        price, tokens, replicas, spare=spare, holds=rising([(1, tokens), (4, tokens * gain)])
    ),
    PRICES,
    TOKENS,
    some.integers(1, 8),
    some.integers(0, 3),
    some.floats(1, 1.5),
)
extras = some.builds(
    lambda fixed, share: Extra(name="more", usd_per_month=fixed, share_of_machines=share),
    some.floats(0, 50_000),
    some.floats(0, 0.5),
)
fleets = some.builds(
    lambda some_kinds, more: SelfHosted(kinds=tuple(some_kinds), extras=tuple(more)),
    some.lists(kinds, min_size=1, max_size=3),
    some.lists(extras, max_size=2),
)


def lines(hosted: SelfHosted, margin: float) -> float:
    """A price of the API so many times as high as full machines come to."""
    return hosted.usd_per_mtok_full * margin


@given(fleets, some.floats(1.05, 20))
def test_at_every_crossing_the_cheaper_side_changes(hosted: SelfHosted, margin: float) -> None:
    price = lines(hosted, margin)
    found = break_even(hosted, "api", price)
    assume("so close" not in (found.never or ""))
    assert there(found.first_tokens_per_month) <= there(found.stays_tokens_per_month)

    def gap(volume: float) -> float:
        return price * volume / 1e6 - hosted.usd(volume)

    edges = [edge for each in found.windows for edge in (each.tokens_per_month, each.until_tokens_per_month) if edge]
    assume(all(after > before * (1 + 1e-5) for before, after in pairwise(edges)))
    for each in found.windows:
        assert gap(each.tokens_per_month * (1 - 1e-6)) < 0 < gap(each.tokens_per_month * (1 + 1e-6))
        if each.until_tokens_per_month:
            assert gap(each.until_tokens_per_month * (1 + 1e-6)) < 0 < gap(each.until_tokens_per_month * (1 - 1e-6))


@given(fleets, some.floats(1.05, 5), some.floats(0.001, 1), some.floats(1.001, 1000))
def test_before_the_first_crossing_the_api_is_cheaper_and_beyond_the_last_self_hosting(
    hosted: SelfHosted, margin: float, share: float, times: float
) -> None:
    price = lines(hosted, margin)
    found = break_even(hosted, "api", price)
    assume("so close" not in (found.never or ""))  # hundreds of thousands of purchases: said, and not looked at
    before, beyond = there(found.first_tokens_per_month) * share * 0.999, there(found.stays_tokens_per_month) * times
    assert price * before / 1e6 <= hosted.usd(before)
    assert hosted.usd(beyond) <= price * beyond / 1e6


@given(fleets, some.floats(1.05, 5), some.floats(1, 4))
def test_a_dearer_api_never_raises_the_break_even(hosted: SelfHosted, margin: float, dearer: float) -> None:
    cheap, dear = (break_even(hosted, "api", lines(hosted, margin) * each) for each in (1, dearer))
    assert (dear.first_tokens_per_month or math.inf) <= (cheap.first_tokens_per_month or math.inf) * (1 + 1e-9)
    assert (dear.stays_tokens_per_month or math.inf) <= (cheap.stays_tokens_per_month or math.inf) * (1 + 1e-9)


@given(fleets, some.floats(1.05, 5), some.floats(0.1, 10), some.floats(100, 30_000))
def test_engineers_never_lower_it(hosted: SelfHosted, margin: float, number: float, salary: float) -> None:
    price = lines(hosted, margin)
    without = break_even(hosted, "api", price)
    staffed = hosted.model_copy(update={"extras": (*hosted.extras, engineers(number, salary))})
    with_them = break_even(staffed, "api", price)
    assert (with_them.first_tokens_per_month or math.inf) >= (without.first_tokens_per_month or math.inf) * (1 - 1e-9)
    assert (with_them.stays_tokens_per_month or math.inf) >= (without.stays_tokens_per_month or math.inf) * (1 - 1e-9)


@given(fleets, some.floats(0.0, 1.0))
def test_an_api_below_the_price_of_full_machines_is_never_beaten(hosted: SelfHosted, margin: float) -> None:
    found = break_even(hosted, "api", lines(hosted, margin))
    assert (found.first_tokens_per_month, found.stays_tokens_per_month, found.windows) == (None, None, ())
    assert found.never


@given(fleets, TOKENS, some.floats(0.1, 10))
def test_doubling_the_price_doubles_the_machine_line_alone(hosted: SelfHosted, volume: float, times: float) -> None:
    before, after = hosted.bill(volume), hosted.scaled(price=2).bill(volume)
    assert after.line(MACHINES).usd == pytest.approx(2 * before.line(MACHINES).usd)
    assert hosted.scaled(price=times).fixed_usd == hosted.fixed_usd


@given(fleets, TOKENS)
def test_the_bill_is_the_sum_of_its_lines_and_lies_on_its_stairs(hosted: SelfHosted, volume: float) -> None:
    tree = hosted.bill(volume)
    assert sum(line.usd for line in tree.lines) == pytest.approx(hosted.usd(volume))
    if hosted.kind(volume).purchases(volume) < 1000 and all(each.purchases(volume) < 10_000 for each in hosted.kinds):
        _, bills = hosted.stairs(volume)
        assert bills[-1] == pytest.approx(hosted.usd(volume))
        assert np.all(np.diff(bills) >= -1e-9 * bills[1:])


@given(kinds, TOKENS)
def test_the_replicas_bought_hold_the_volume_and_one_fewer_does_not(one: FleetKind, volume: float) -> None:
    needed = one.replicas(volume)
    assert one.capacity(needed) >= volume * (1 - 1e-6)
    assert needed == 1 or one.capacity(needed - 1) < volume * (1 + 1e-6)


def test_what_a_plan_found_moves_one_stair_and_lets_larger_fleets_hold_no_less() -> None:
    sizes = tuple(ReplicaHolds(replicas=size, tokens_per_month=each) for size, each in ((1, 10.0), (4, 12.0)))
    one = FleetKind(name="", gpus_per_purchase=1, replicas_per_purchase=1, usd_per_purchase=5.0, holds=sizes)
    assert one.replicas(33.0) == 4
    more = one.holding(3, 39.0)
    assert [more.replicas(volume) for volume in (20.0, 33.0, 39.0, 39.1, 52.0, 52.1)] == [2, 3, 3, 4, 4, 5]
    fewer = one.missing(4, 45.0)
    assert [fewer.replicas(volume) for volume in (30.0, 44.9, 45.0, 48.0, 60.0)] == [3, 4, 5, 5, 5]
    for kind in (more, fewer):
        ends, bills = kind.stairs(100.0)
        for volume in (1.0, 20.0, 33.0, 44.9, 45.0, 52.1, 99.0):
            assert bills[np.searchsorted(ends, volume)] == 5.0 * kind.replicas(volume)


def test_stairs_make_the_lines_cross_several_times() -> None:
    # A machine at $100 holds 100 tokens, the API asks $1.20 a token: cheaper from 100/1.2 on, dearer again at 101, …
    hosted = SelfHosted(kinds=(kind(100, 100),))
    found = break_even(hosted, "api", 1.2e6)
    first_ones = [machines * 100 / 1.2 for machines in range(1, 6)]
    assert [each.tokens_per_month for each in found.windows[:5]] == pytest.approx(first_ones)
    assert found.first_tokens_per_month == pytest.approx(100 / 1.2)
    # The sixth machine, at $600, meets the line at 500, its very start: from the fifth on it is never dearer.
    assert found.stays_tokens_per_month == pytest.approx(500 / 1.2)


def test_a_larger_machine_takes_over_where_it_is_cheaper() -> None:
    small, large = kind(100, 100, name="small"), kind(300, 1000, name="large")
    hosted = SelfHosted(kinds=(small, large))
    assert [hosted.kind(volume).name for volume in (50, 150, 250, 900)] == ["small", "small", "small", "large"]
    assert hosted.usd(350) == 300


def test_less_filled_machines_move_the_break_even_up() -> None:
    found = swings(SelfHosted(kinds=(kind(100, 100),)), "api", 4e6, filled=(1.0, 0.5, 0.3))
    stays = [each.found.stays_tokens_per_month or math.inf for each in found[:3]]
    assert stays == sorted(stays)


API = ApiPrice(
    host="h", model="m", input_usd_per_mtok=2, output_usd_per_mtok=8, cached_input_usd_per_mtok=1,
    tiers=(ApiTier(above_input_tokens=1000, input_usd_per_mtok=4, output_usd_per_mtok=16),),
    date=None, source="test",
)  # fmt: skip


def test_each_request_is_charged_at_its_own_tier() -> None:
    trace = make_trace([0, 1, 2, 3], [500, 1000, 1001, 3000], [100, 100, 100, 100])
    each = [500 * 2 + 800, 1000 * 2 + 800, 1001 * 4 + 1600, 3000 * 4 + 1600]
    assert api_bill(API, trace).usd_per_request == pytest.approx(sum(each) / 4 / 1e6)


def test_a_cached_share_is_charged_at_the_cached_price() -> None:
    trace = make_trace([0.0], [1000], [100])
    assert api_bill(API, trace, cached_share=0.3).usd_per_request == pytest.approx((700 * 2 + 300 * 1 + 800) / 1e6)


def test_a_price_nobody_quotes_leaves_the_host_out_and_says_so() -> None:
    trace = make_trace([0.0], [1000], [100])
    made, missing = api_bills([API, find_api("openai:gpt-4o")], trace, batch=True)
    assert [each.name for each in made] == ["h:m", "openai:gpt-4o", "openai:gpt-4o (batch)"]
    assert [each.name for each in missing] == ["h:m (batch)"]
    bare = ApiPrice(host="x", model="y", input_usd_per_mtok=1, output_usd_per_mtok=1, date=None, source="test")
    with pytest.raises(BadInput, match="cached price of x:y is unknown"):
        api_bills([bare], trace, cached_share=0.5)


WRITES = API.model_copy(update={"tiers": (), "cached_input_usd_per_mtok": 0.2, "cache_write_usd_per_mtok": 2.5})
"""As Anthropic prices: reads at a tenth of the input, writes at five quarters."""


def test_what_a_log_does_not_find_in_the_cache_is_written_at_the_price_of_writing() -> None:
    trace = make_trace([0.0], [1000], [100])
    ((bill,), _) = api_bills([WRITES], trace, cached_share=0.6, replayed=True)
    assert bill.usd_per_request == pytest.approx((600 * 0.2 + 400 * 2.5 + 800) / 1e6)
    assert bill.cached_share == 0.6
    assert bill.written_share == pytest.approx(0.4)
    # A host without such a price charges the input's.
    free = WRITES.model_copy(update={"cache_write_usd_per_mtok": None})
    ((bill,), _) = api_bills([free], trace, cached_share=0.6, replayed=True)
    assert bill.usd_per_request == pytest.approx((600 * 0.2 + 400 * 2 + 800) / 1e6)


@pytest.mark.parametrize("share", [0.05, 0.2, 0.22, 0.5])
def test_a_cache_that_costs_more_than_it_saves_is_not_used(share: float) -> None:
    """2 = 0.2 × s + 2.5 × (1 − s) at s = 0.5 ÷ 2.3 = 21.7 %."""
    ((bill,), _) = api_bills([WRITES], make_trace([0.0], [1000], [100]), cached_share=share, replayed=True)
    assert bill.cached_share == (share if share > 0.5 / 2.3 else 0)
    assert bill.usd_per_request <= (1000 * 2 + 800) / 1e6 * (1 + 1e-12)


def test_a_head_that_all_prompts_share_is_written_too_rarely_to_count() -> None:
    ((bill,), _) = api_bills([WRITES], make_trace([0.0], [1000], [100]), cached_share=0.6)
    assert bill.usd_per_request == pytest.approx((600 * 0.2 + 400 * 2 + 800) / 1e6)


def test_a_batch_whose_writes_have_no_quote_goes_without_the_cache() -> None:
    half = {"batch_input_usd_per_mtok": 1.0, "batch_output_usd_per_mtok": 4.0, "batch_cached_input_usd_per_mtok": 0.1}
    trace = make_trace([0.0], [1000], [100])
    (_, batch), _ = api_bills([WRITES.model_copy(update=half)], trace, 0.6, batch=True, replayed=True)
    assert batch.usd_per_request == pytest.approx((1000 * 1 + 400) / 1e6)
