"""What trials teach of untried sets is what a normal model of errors implies, computed here from its parts."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from tokonomics.operate.choose import (
    GAIN_LEFT,
    KNOB_ERRORS,
    NOISE,
    UNKNOWN_EFFECT,
    Belief,
    Expected,
    alike,
    believe,
    expected_gain,
    gain_left,
    next_trial,
)
from tokonomics.operate.flag_sets import FlagSet, Value

SHARED = 0.2


def candidate(predicted: float, **values: Value) -> Expected:
    return Expected(FlagSet(values=values), values, predicted)


GRID = tuple(
    candidate(10.0 + 0.01 * sequences + (2.0 if kv == "fp8" else 0.0), max_sequences=sequences, kv=kv)
    for sequences in (16, 64, 256)
    for kv in ("bf16", "fp8")
)
ERRORS = {"max_sequences": KNOB_ERRORS["max_sequences"], "kv": KNOB_ERRORS["kv"]}


# --- an independent computation -------------------------------------------------------------------------------------


class Effects:
    """The same beliefs over effects themselves: one of all, one of each changed value of a knob, one of each set."""

    def __init__(self, candidates: Sequence[Expected], errors: Mapping[str, float], shared: float) -> None:
        kinds = {knob: list(dict.fromkeys(each.values[knob] for each in candidates)) for knob in errors}
        sizes = [1, *(len(values) for values in kinds.values()), len(candidates)]
        starts = np.cumsum([0, *sizes])
        self.design = np.zeros((len(candidates), starts[-1]))
        self.prior = np.zeros((starts[-1], starts[-1]))
        self.design[:, 0], self.prior[0, 0] = 1, shared**2
        for (knob, values), start in zip(kinds.items(), starts[1:], strict=False):
            for row, each in enumerate(candidates):
                is_changed = each.values[knob] != candidates[0].values[knob]
                self.design[row, start + values.index(each.values[knob])] = float(is_changed)
            for one, left in enumerate(values):
                for other, right in enumerate(values):
                    near = float(left == right)
                    if type(left) is int and type(right) is int:
                        near = math.exp(-abs(math.log(left) - math.log(right)))
                    self.prior[start + one, start + other] = errors[knob] ** 2 * near
        own = slice(starts[-2], None)
        self.design[:, own] = np.eye(len(candidates))
        self.prior[own, own] = NOISE**2 * np.eye(len(candidates))
        self.predicted = np.log([each.predicted for each in candidates])

    def after(self, measured: Mapping[int, float], scale: float) -> tuple[np.ndarray, np.ndarray]:
        """Weigh the effects by precision: what was believed before, and each measurement with its noise."""
        seen = self.design[list(measured)]
        off = np.log(list(measured.values())) - self.predicted[list(measured)]
        covariance = np.linalg.inv(np.linalg.inv(self.prior * scale**2) + seen.T @ seen / NOISE**2)
        effects = covariance @ seen.T @ off / NOISE**2
        return self.predicted + self.design @ effects, np.sqrt(np.diag(self.design @ covariance @ self.design.T))

    def likelihood(self, measured: Mapping[int, float], scale: float) -> float:
        """Multiply the density of each measurement given those before it."""
        total = 0.0
        before: dict[int, float] = {}
        for place, rate in measured.items():
            mid, deviation = self.after(before, scale)
            variance = deviation[place] ** 2 + NOISE**2
            total -= (math.log(rate) - mid[place]) ** 2 / variance / 2 + math.log(variance) / 2
            before[place] = rate
        return total


@pytest.mark.parametrize(
    "measured", [{0: 8.5}, {0: 8.5, 3: 12.0}, {0: 10.0, 3: 12.5, 5: 14.4}, {0: 8.0, 3: 15.0, 5: 9.0, 2: 11.0}]
)
def test_what_is_believed_is_what_effects_weighed_by_precision_add_up_to(measured: dict[int, float]) -> None:
    model = Effects(GRID, ERRORS, SHARED)
    scales = (1.0, 2.0, 4.0) if len(measured) >= 3 else (1.0,)
    scale = max(scales, key=lambda each: model.likelihood(measured, each))
    mid, deviation = model.after(measured, scale)
    belief = believe(GRID, measured, SHARED)
    np.testing.assert_allclose(belief.mid, mid, atol=1e-6)
    np.testing.assert_allclose(belief.deviation, deviation, rtol=1e-4)


def test_trials_that_disagree_widen_every_interval_and_those_that_agree_leave_them() -> None:
    """Of two samples with one mean, that which jumps about needs larger errors to be likely."""
    model = Effects(GRID, ERRORS, SHARED)
    agree = {place: GRID[place].predicted for place in (0, 1, 2)}
    jump = {0: GRID[0].predicted * 1.3, 1: GRID[1].predicted / 1.3, 2: GRID[2].predicted * 1.3}
    _, narrow = model.after(agree, 1.0)
    np.testing.assert_allclose(believe(GRID, agree, SHARED).deviation, narrow, rtol=1e-4)
    assert (believe(GRID, jump, SHARED).deviation > believe(GRID, agree, SHARED).deviation).all()


def test_before_any_trial_the_deviations_of_all_errors_add_as_squares() -> None:
    belief = believe(GRID, {}, SHARED)
    np.testing.assert_allclose(belief.mid, np.log([each.predicted for each in GRID]))
    # The first set is as started: an error of a knob counts where its value is another.
    total = [
        SHARED**2
        + NOISE**2
        + sum(error**2 for knob, error in ERRORS.items() if each.values[knob] != GRID[0].values[knob])
        for each in GRID
    ]
    np.testing.assert_allclose(belief.deviation, np.sqrt(total))
    low, high = belief.ends()
    np.testing.assert_allclose(np.log(high / low), 2 * 1.2815515655446004 * np.sqrt(total), rtol=1e-9)


def test_a_flag_that_the_simulator_does_not_know_may_change_much() -> None:
    sets = (candidate(1.0, threads=1), candidate(1.0, threads=4))
    model = Effects(sets, {"threads": UNKNOWN_EFFECT}, 1.0)
    mid, deviation = model.after({0: 3.0}, 1.0)
    belief = believe(sets, {0: 3.0}, 1.0)
    np.testing.assert_allclose(belief.mid, mid, atol=1e-6)
    np.testing.assert_allclose(belief.deviation, deviation, rtol=1e-4)


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [(16, 64, 0.25), (64, 16, 0.25), (16, 16, 1), ("bf16", "fp8", 0), (True, False, 0), (True, True, 1),
     ("as started", 16, 0), (None, 16, 0), (0, 16, 0)],
)  # fmt: skip
def test_values_are_alike_by_their_ratio(one: Value | None, other: Value | None, share: float) -> None:
    assert alike(one, other) == share


# --- learning and choosing ------------------------------------------------------------------------------------------


def test_untried_sets_that_share_a_value_move_with_a_tried_one() -> None:
    """bf16 does what was predicted, fp8 a tenth less: untried fp8 sets are expected to do less, bf16 ones hardly."""
    tried = {0: GRID[0].predicted, 1: GRID[1].predicted * 0.9}
    moved = believe(GRID, tried, SHARED).mid - np.log([each.predicted for each in GRID])
    for bf16, fp8 in ((2, 3), (4, 5)):
        assert moved[fp8] < moved[bf16]
        assert moved[fp8] < -0.02
    # A tried set of 64 sequences, not those of the start, tells more of 256 with 16 bits than of 16 with 8.
    only = believe(GRID, {2: GRID[2].predicted * 0.9}, SHARED)
    assert only.mid[4] - math.log(GRID[4].predicted) < only.mid[1] - math.log(GRID[1].predicted) < 0
    assert only.deviation[4] < only.deviation[5]


def test_a_machine_that_is_half_as_fast_is_so_with_every_set() -> None:
    after = believe(GRID, {0: GRID[0].predicted / 2}, SHARED)
    np.testing.assert_allclose(np.exp(after.mid), [each.predicted / 2 for each in GRID], rtol=0.06)
    assert (after.deviation < believe(GRID, {}, SHARED).deviation).all()


def test_the_expected_gain_is_the_mean_of_what_samples_gain() -> None:
    belief = Belief(np.log([9.0, 10.0, 10.5, 13.0]), np.array([0.3, 0.05, 1e-6, 0.2]))
    drawn = np.random.default_rng(1).normal(belief.mid, belief.deviation, (400_000, 4))
    gains = np.maximum(drawn - math.log(10.0), 0)
    error = gains.std(0) / math.sqrt(len(gains))
    assert (np.abs(expected_gain(belief, 10.0) - gains.mean(0)) <= 4 * error + 1e-6).all()


def test_it_stops_when_the_rest_is_clearly_worse() -> None:
    sets = (candidate(10.0, kv="bf16"), candidate(9.0, kv="fp8"))
    measured = {0: 10.0}
    belief = believe(sets, measured, SHARED)
    assert belief.ends()[1][1] < 10.0 * (1 + GAIN_LEFT)
    assert next_trial(sets, measured, belief) is None
    assert gain_left(belief, [1], 10.0) == pytest.approx(belief.ends()[1][1] / 10.0 - 1)


def test_it_tries_the_one_that_may_be_better() -> None:
    sets = (candidate(10.0, kv="bf16"), candidate(9.0, kv="fp8"), candidate(12.0, kv="int8"))
    measured = {0: 10.0}
    assert next_trial(sets, measured, believe(sets, measured, SHARED)) == 2


@given(rates=some.dictionaries(some.integers(0, len(GRID) - 1), some.sampled_from([0.0, 5.0, 10.0, 11.0, 20.0])))
def test_what_was_tried_or_failed_is_never_proposed(rates: dict[int, float]) -> None:
    chosen = next_trial(GRID, rates, believe(GRID, rates, SHARED))
    if len(rates) == len(GRID):
        assert chosen is None
    elif all(rate == 0 for rate in rates.values()):
        assert chosen is not None
        assert chosen not in rates
        assert GRID[chosen].predicted == max(each.predicted for place, each in enumerate(GRID) if place not in rates)
    else:
        assert chosen not in rates


def test_a_failed_set_teaches_nothing_of_the_speed_of_others() -> None:
    without, beside = believe(GRID, {0: 9.0}, SHARED), believe(GRID, {0: 9.0, 3: 0.0}, SHARED)
    np.testing.assert_array_equal(beside.mid, without.mid)
    np.testing.assert_array_equal(beside.deviation, without.deviation)
