"""Compare two fingerprints: what became slower, by how much, and which part of a step it is (``build_terms``).

A build is slower if the interval of any probe's change lies beyond the tolerance, or the interval of what probes show
together: the largest effect of a term on a probe. The intervals hold together: of two equal builds, one comparison in a
hundred raises an alarm (Bonferroni).
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat

from tokonomics.errors import shorten
from tokonomics.operate.build_terms import (
    FALSE_ALARMS,
    Explanation,
    ProbePair,
    Term,
    effects,
    explained,
    pair_of,
    ratio_of,
    reach,
    steps_of,
    tested_columns,
)
from tokonomics.operate.fingerprint import AT_ONCE, TOO_FAR_APART, TOO_LONG, Fingerprint, Probe
from tokonomics.types import Noun
from tokonomics.units import percent, seconds, times

Side = Literal["slower", "faster"]
Verdict = Literal["same", "slower", "faster"]

TOLERANCE = 0.03
"""Changes up to this are none: half as much again as two alike servers differed by (``choose.NOISE``)."""


class ProbeChange(Noun):
    """How much longer a probe takes than before."""

    probe: Probe
    name: str
    before_s: PositiveFloat
    after_s: PositiveFloat
    ratio: PositiveFloat  # after ÷ before, with an interval that holds for all probes together
    low: PositiveFloat
    high: PositiveFloat
    explained: PositiveFloat | None = None  # the ratio that the terms found give

    def side(self, tolerance: float) -> Side | None:
        return _side(self.low, self.high, tolerance)


class JointChange(Noun):
    """A change that many probes show together: the interval of its largest effect on one of them."""

    what: str
    low: PositiveFloat  # ratios
    high: PositiveFloat

    def side(self, tolerance: float) -> Side | None:
        return _side(self.low, self.high, tolerance)


class TermChange(Noun):
    """A term that changed: by how much, and what that is."""

    term: Term
    size: float  # seconds, a factor, or a share
    low: float
    high: float
    above_tokens: NonNegativeInt | None = None  # of graphs: steps of more tokens than this
    before_s: float | None = None  # of launches: the least time of such a step before
    longer_s: float | None = None  # of graphs: what the shortest step with prompts takes longer
    effect: float  # the largest on any probe, as a share of what it took; negative if faster
    said: str


class ToldChange(Noun):
    """What the servers say of themselves, where it differs."""

    name: str
    before: str
    after: str
    lost: bool = False  # room that is gone: it raises an alarm


class BuildChange(Noun):
    """Two builds side by side."""

    verdict: Verdict
    tolerance: float
    probes: tuple[ProbeChange, ...]
    together: tuple[JointChange, ...] = ()  # what many probes show together, and was tested
    terms: tuple[TermChange, ...] = ()  # the cause first
    told: tuple[ToldChange, ...] = ()
    unlike: tuple[str, ...] = ()  # reasons why the two may not be comparable
    left_out: dict[str, int] = Field(default_factory=dict)  # probes that one of the two did not take, by the reason
    turned: bool = False  # the new build is faster: the terms say what the old one did beyond it

    @property
    def lost(self) -> tuple[ToldChange, ...]:
        return tuple(row for row in self.told if row.lost)

    @property
    def is_worse(self) -> bool:
        return self.verdict == "slower" or bool(self.lost)

    @property
    def deciding(self) -> tuple[JointChange, ...]:
        """Return what many probes show together beyond the tolerance, the surest first."""
        beyond = [change for change in self.together if change.side(self.tolerance) == self.verdict]
        return tuple(sorted(beyond, key=lambda row: row.high if self.verdict == "faster" else -row.low))

    @property
    def typical(self) -> float:
        """Return the median of the probes' ratios."""
        return float(np.median([change.ratio for change in self.probes]))

    @property
    def smallest_found(self) -> float:
        """Return the smallest ratio that would have been found of the median probe by itself."""
        return (1 + self.tolerance) * float(np.median([change.high / change.ratio for change in self.probes]))

    @property
    def smallest_found_together(self) -> float | None:
        """Return the smallest ratio that would have been found of what most probes show together."""
        widths = [math.sqrt(change.high / change.low) for change in self.together]
        return (1 + self.tolerance) * min(widths) if widths else None


def compare(old: Fingerprint, new: Fingerprint, tolerance: float = TOLERANCE) -> BuildChange:
    """Return what changed from one build to another."""
    pair = pair_of(old, new)
    tested = tested_columns(pair)
    chance = FALSE_ALARMS / (len(pair.probes) + len(tested))
    away = reach(chance, pair.freedom) * pair.whole_error
    changes = [
        ProbeChange(
            probe=probe,
            name=probe.name,
            before_s=float(pair.before[place]),
            after_s=float(pair.after[place]),
            ratio=float(np.exp(pair.change[place])),
            low=float(ratio_of(pair.change[place] - away[place])),
            high=float(ratio_of(pair.change[place] + away[place])),
        )
        for place, probe in enumerate(pair.probes)
    ]
    joint = [JointChange(what=what, low=low, high=high) for what, low, high in effects(pair, tested, chance)]
    sides = {change.side(tolerance) for change in changes} | {change.side(tolerance) for change in joint}
    verdict: Verdict = "slower" if "slower" in sides else "faster" if "faster" in sides else "same"
    turned = verdict == "faster"
    slow = pair.turned() if turned else pair
    best = explained(slow, tolerance) if verdict != "same" else Explanation()
    if best.left is not None and best.terms:
        ratios = 1 + slow.excess - best.left
        changes = [
            change.model_copy(update={"explained": float(1 / ratio if turned else ratio)})
            for change, ratio in zip(changes, np.maximum(ratios, 0.01), strict=True)
        ]
    return BuildChange(
        verdict=verdict,
        tolerance=tolerance,
        probes=tuple(changes),
        together=tuple(joint),
        terms=tuple(_named(slow, best)),
        told=tuple(_told(old, new, tolerance)),
        unlike=tuple(_unlike(old, new)),
        left_out=_left_out(old, new),
        turned=turned,
    )


def _side(low: float, high: float, tolerance: float) -> Side | None:
    """Return to which side an interval of a ratio lies beyond the tolerance."""
    return "slower" if low > 1 + tolerance else "faster" if high < 1 - tolerance else None


# --- in words --------------------------------------------------------------------------------------------------------

_SAID: dict[Term, str] = {
    "kernels": "steps take {0} as long, in proportion to their work: kernels",
    "decode": "steps of few tokens take {0} as long, in proportion to their work: kernels of decode",
    "prefill": "prompts take {0} as long, in proportion to their work: kernels of prompts",
    "context": "what contexts add to a step takes {0} as long: attention, or another KV precision",
    "host": "every step takes {0} {1}, whatever its size: the host (scheduling, launches)",
    "request": "every request takes {0} {1} outside its steps: HTTP, tokenising, queueing",
    "cache": "{0} {1} of a prompt sent before is computed again: prefix cache",
}


def _named(pair: ProbePair, found: Explanation) -> Iterator[TermChange]:
    """Yield each term found with its size as people say it: a factor, seconds, a share; all their intervals hold."""
    had, chance = steps_of(pair), FALSE_ALARMS / max(1, len(found.terms))
    shortest_s = had.step_s[had.requests > 0].min(initial=math.inf)
    deviations = float(reach(chance, float(np.median(pair.freedom))))
    for place, term in enumerate(found.terms):
        size, away = found.sizes[place], deviations * found.errors[place]
        is_factor = term in ("kernels", "decode", "prefill", "context")
        size += is_factor
        yield TermChange(
            term=term,
            size=size,
            low=size - away,
            high=size + away,
            above_tokens=found.least.above_tokens if term == "graphs" and found.least else None,
            before_s=shortest_s if term == "launch" else None,
            longer_s=found.with_prompts_s - shortest_s if term == "graphs" and found.with_prompts_s else None,
            effect=found.effects[place],
            said=_said(term, size, found.least.above_tokens if found.least else 0),
        )


def _said(term: Term, size: float, above: int) -> str:
    if term == "launch":
        return f"no step with prompts takes less than {seconds(size)}: the host launches them more slowly"
    if term == "graphs":
        which = f"no step of more than {above} tokens takes" if above else "no step takes"
        why = f"graphs captured to about {above} tokens" if above else "eager mode, no captured graphs"
        return f"{which} less than {seconds(size)}: the host launches its kernels one by one ({why})"
    if term == "cache":
        return _SAID[term].format(percent(abs(size)), "more" if size > 0 else "less")
    if term in ("host", "request"):
        return _SAID[term].format(seconds(abs(size)), "longer" if size > 0 else "less")
    return _SAID[term].format(times(max(0.0, size)))


_TOLD: dict[str, str] = {
    "version": "build", "build_info": "build", "kv_tokens": "KV cache, tokens", "kv_dtype": "KV precision",
    "prefix_caching": "prefix caching", "memory_share": "share of memory", "slots": "requests at once",
    "context": "context of a request", "model_max_model_len": "longest request", "driver": "driver",
    "model_digest": "files of the model",
}  # fmt: skip
_ROOM = ("kv_tokens", "slots", "context", "model_max_model_len")
"""Facts of which less is a loss."""


def _told(old: Fingerprint, new: Fingerprint, tolerance: float) -> Iterator[ToldChange]:
    """Yield what the servers, and the machines they were measured from, say differently."""
    for name, ours in _TOLD.items():
        before, after = ({**mark.machine, **mark.engine}.get(name) for mark in (old, new))
        if before is None or after is None or before == after:
            continue
        is_less = name in _ROOM and isinstance(before, int) and after < before * (1 - tolerance)
        lost = is_less or (name == "prefix_caching" and str(after) == "False")
        yield ToldChange(name=ours, before=_fact(before), after=_fact(after), lost=lost)
    if new.at_once < old.at_once and any(AT_ONCE in reason for reason in new.skipped.values()):
        yield ToldChange(name="answers seen at once", before=f"{old.at_once}", after=f"{new.at_once}", lost=True)


def _fact(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else shorten(str(value), 60)


def _unlike(old: Fingerprint, new: Fingerprint) -> Iterator[str]:
    """Yield reasons why two fingerprints may tell more than what the builds do."""
    for what, before, after in (
        ("model", old.model, new.model),
        ("engine", old.engine.get("engine"), new.engine.get("engine")),
        ("GPUs", old.machine.get("gpus"), new.machine.get("gpus")),
        ("machine", old.machine.get("machine"), new.machine.get("machine")),
    ):
        if before is not None and after is not None and before != after:
            names = (", ".join(value) if isinstance(value, list) else str(value) for value in (before, after))
            yield f"another {what}: {' → '.join(shorten(name, 60) for name in names)}"
    words = [mark.tokens_per_word for mark in (old, new)]
    if words[0] and words[1] and abs(words[1] / words[0] - 1) > _SAME_WORDS:
        yield f"a word has {words[1]:.2f} tokens, and had {words[0]:.2f}: another tokenizer"
    before, after = old.times(), new.times()
    counted = [after[probe].tokens / before[probe].tokens for probe in before if probe in after]
    if counted and abs(np.median(counted) - 1) > _COUNTED:
        yield "the prompts of a probe have another number of tokens: another tokenizer or chat template"


_SAME_WORDS = 0.03
"""Share by which the tokens of the same words may differ: servers of a short context count fewer (our choice)."""
_COUNTED = 0.1
"""Share by which the tokens of a probe's prompts may differ; their words are drawn at random (our choice)."""


def _left_out(old: Fingerprint, new: Fingerprint) -> dict[str, int]:
    """Return how many probes one of the two did not take, by the reason, the most frequent first."""
    reasons = {**old.skipped, **new.skipped}.values()
    kinds = [next((said for part, said in _WHY.items() if part in reason), shorten(reason, 60)) for reason in reasons]
    return dict(Counter(kinds).most_common())


_WHY = {TOO_LONG: TOO_LONG, "at once": "more than the server runs at once", TOO_FAR_APART: TOO_FAR_APART,
        "longer than": "longer than the server takes"}  # fmt: skip
"""Reasons for leaving out a probe, by what their texts have in common."""
