"""Search the flag set that serves the user's traffic at the lowest price: simulate all, try few, learn from each.

The first trial is the server as it is started today, so that there is a before; then the set with the largest expected
gain (``choose``), until no set is likely to be 2 % better or the trials are spent. A trial that was interrupted is
finished first. A set whose server dies, hangs or refuses is a result, and counts as a trial.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokonomics.operate.choose import Belief, Expected, believe, gain_left, next_trial
from tokonomics.operate.flag_sets import FlagSet
from tokonomics.operate.record import FlagTrial, Record
from tokonomics.units import percent, plural

Measure = Callable[[int, FlagTrial], FlagTrial]
"""Takes a candidate's place and its trial, begun or new, and returns it finished."""


@dataclass(frozen=True)
class FlagSearch:
    """The flag sets of a search, the first as started, and how far the rates of all may be off together."""

    candidates: tuple[Expected, ...]
    gpus: tuple[int, ...]  # of each
    shared: float
    is_blind: bool = False  # nothing is simulated: every set is expected to do the same
    never_as_started: bool = False  # in simulation the server as it is started meets the targets at no rate

    def place_of(self, flags: FlagSet) -> int | None:
        """Return the place of a flag set among the candidates; None if it is none of them."""
        return next((place for place, each in enumerate(self.candidates) if each.flags == flags), None)

    def measured(self, trials: Sequence[FlagTrial]) -> dict[int, float]:
        """Return what finished trials held, requests a second for each GPU, by the place of the candidate."""
        found: dict[int, float] = {}
        for trial in trials:
            place = self.place_of(trial.flags)
            if place is not None and (trial.finished or trial.failed):
                found[place] = trial.rate / self.gpus[place]
        return found

    def belief(self, trials: Sequence[FlagTrial]) -> Belief:
        return believe(self.candidates, self.measured(trials), self.shared)

    def next_place(self, trials: Sequence[FlagTrial], most: int) -> int | None:
        """Return the set to try next; None if the search is over."""
        measured = self.measured(trials)
        if len(measured) >= most:
            return None
        if 0 not in measured:
            return 0
        return next_trial(self.candidates, measured, self.belief(trials))

    def why_over(self, trials: Sequence[FlagTrial], most: int) -> str:
        """Say why no further set is tried, and what may be left to gain."""
        measured = self.measured(trials)
        best, belief = max(measured.values(), default=0.0), self.belief(trials)
        untried = [place for place in range(len(self.candidates)) if place not in measured]
        if best <= 0:
            return f"no set met the targets in {plural(len(measured), 'trial')}"
        left = gain_left(belief, untried, best)
        if not untried:
            return "every set was tried"
        if left <= 0:
            return "every other set is worse, even at the upper end of its 80 % interval"
        more = f"the upper 80 % end of the most promising set not tried is {percent(left)} better"
        return more if len(measured) < most else f"{plural(most, 'trial')} made, as many as asked for; {more}"


def search_flags(
    record: Record, search: FlagSearch, measure: Measure, keep: Callable[[Record], None], most_trials: int
) -> Record:
    """Try sets until the search is over; the record is kept after every load."""
    while True:
        begun = next((trial for trial in record.trials if not trial.finished and not trial.failed), None)
        place = search.place_of(begun.flags) if begun else search.next_place(record.trials, most_trials)
        if place is None:
            record = record.model_copy(update={"stopped": search.why_over(record.trials, most_trials)})
            keep(record)
            return record
        if begun is None:
            begun = new_trial(search, place)
            record = with_trial(record, begun)
        record = with_trial(record, measure(place, begun))
        keep(record)


def new_trial(search: FlagSearch, place: int) -> FlagTrial:
    """Return an empty trial of a candidate."""
    candidate, gpus = search.candidates[place], search.gpus[place]
    predicted = None if search.is_blind else candidate.predicted * gpus
    return FlagTrial(flags=candidate.flags, words="", predicted=predicted, gpus=gpus)


def with_trial(record: Record, trial: FlagTrial) -> Record:
    """Return the record with a trial replaced by its newer state, or added."""
    others = [trial if each.flags == trial.flags else each for each in record.trials]
    known = any(each.flags == trial.flags for each in record.trials)
    return record.model_copy(update={"trials": tuple(others if known else [*others, trial])})
