"""Compare plans side by side: several models on several GPUs under the same traffic and SLO, or two scenarios.

Every pair of model and GPU is a plan of its own, so that no pair is left out because another is cheaper. A quality
score per model comes from the user: dollars per million tokens divided by it weigh price against quality, and the front
keeps the pairs that no other beats in both.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

from pydantic import Field, NonNegativeFloat, PositiveFloat

from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.money.cost import saving
from tokonomics.planner.apis import ApiBeside
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun


class Cell(Noun):
    """One model on one GPU."""

    model: str
    model_name: str
    gpu: str
    pick: Candidate | None  # the cheapest candidate; None if there is none
    refused: str | None  # why there is none
    quality: PositiveFloat | None = None
    usd_per_quality_mtok: PositiveFloat | None = None  # dollars per million tokens, divided by the quality

    @property
    def usd_per_mtok(self) -> float | None:
        return self.pick.usd_per_mtok.blended if self.pick else None


class Comparison(Noun):
    """The grid, model by model."""

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    simulated: bool
    models: tuple[str, ...]
    gpus: tuple[str, ...]  # those on which some model runs, lowest price first
    cells: tuple[Cell, ...]
    front: tuple[tuple[str, str], ...]
    """Model and GPU of the pairs that no other beats in both price and quality; empty without qualities."""

    def cell(self, model: str, gpu: str) -> Cell:
        return next(cell for cell in self.cells if (cell.model, cell.gpu) == (model, gpu))

    def cheapest(self) -> Cell | None:
        priced = [cell for cell in self.cells if cell.usd_per_mtok is not None]
        return min(priced, key=lambda cell: cell.usd_per_mtok or 0.0, default=None)


def compare(questions: Sequence[Question], quality: Mapping[str, float] | None = None, say: Say = silent) -> Comparison:
    """Find the cheapest offer of every model on every GPU among its question's offers."""
    gpus = list(dict.fromkeys(gpu for question in questions for gpu in question.gpus))
    cells = []
    for question, gpu in product(questions, gpus):
        say(f"{question.model.name} on {gpu}")
        found, score = study(question.on(gpu), pick_only=True).plan, (quality or {}).get(question.model.key)
        pick, kinds = found.best, Counter(rejection.kind.value for rejection in found.rejected)
        # The most frequent refusal.
        refused = kinds.most_common(1)[0][0] if kinds else "no offer"
        cell = Cell(
            model=question.model.key,
            model_name=question.model.name,
            gpu=gpu,
            pick=pick,
            refused=None if pick else refused,
            quality=score,
            usd_per_quality_mtok=pick.usd_per_mtok.blended / score if pick and score is not None else None,
        )
        cells.append(cell)
    used = [gpu for gpu in gpus if any(cell.pick and cell.gpu == gpu for cell in cells)]
    lowest = {gpu: min(cell.usd_per_mtok or math.inf for cell in cells if cell.gpu == gpu) for gpu in used}
    first = questions[0]
    return Comparison(
        workload=first.load.workload,
        slos=first.slos,
        simulated=first.simulate,
        models=tuple(question.model.key for question in questions),
        gpus=tuple(sorted(used, key=lambda gpu: (lowest[gpu], gpu))),
        cells=tuple(cells),
        front=front(cells),
    )


def front(cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Return the pairs that no other beats (as good for less, or better for the same price), cheapest first."""
    scored = [(cell, cell.usd_per_mtok, cell.quality) for cell in cells]
    priced = [(price, -score, cell) for cell, price, score in scored if price is not None and score is not None]
    kept: list[Cell] = []
    best = math.inf, math.inf
    for price, minus_score, cell in sorted(priced, key=lambda row: (*row[:2], row[2].gpu)):
        if minus_score < best[1] or (price, minus_score) == best:
            kept.append(cell)
            best = price, minus_score
    return tuple((cell.model, cell.gpu) for cell in kept)


def parse_quality(texts: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """Read ``llama-3.1-8b=0.66,qwen3-8b=0.7`` as scores by model; the scale is the user's own."""
    scores: dict[str, float] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, _, value = map(str.strip, part.partition("="))
        if name not in models:
            hint = did_you_mean(name, models, 1) or f"Compared are: {', '.join(models)}."
            raise BadInput(f"'{shorten(name)}' is not among the models compared", field="quality", fix=hint)
        try:
            score = float(value)
        except ValueError:
            score = -1.0
        if not 0 < score < 1e9:
            fix = "Write llama-3.1-8b=0.66: any scale, higher is better."
            raise BadInput(f"'{shorten(part)}' has no score above 0", field="quality", fix=fix)
        scores[name] = score
    return scores


# --- two scenarios --------------------------------------------------------------------------------------------------


class Change(Noun):
    """A key of the scenario that differs; a side is None if its file does not have the key."""

    key: str
    before: str | None
    after: str | None


class DiffSide(Noun):
    """A scenario's pick."""

    name: str
    model: str
    plan: Candidate
    tokens_per_month: NonNegativeFloat
    api: ApiBeside | None = None  # the cheapest API beside its pick


class Diff(Noun):
    """Two scenarios side by side."""

    before: DiffSide
    after: DiffSide
    changes: tuple[Change, ...]
    saved_usd_per_month: float  # negative if the change costs more
    saved_share: float
    saved_share_per_mtok: float
    """The same per million tokens, for scenarios that serve different traffic."""


Words = Mapping[str, object]  # a scenario's values by key, in the order of the file format


def diff(
    before: tuple[str, Words, Plan],
    after: tuple[str, Words, Plan],
    *,
    apis: tuple[ApiBeside | None, ApiBeside | None] = (None, None),
) -> Diff:
    """Compare the picks of two planned scenarios, each given with its name; ``apis`` stand beside the picks."""
    sides = zip((before, after), apis, strict=True)
    first, second = (_side(name, plan, api) for (name, _, plan), api in sides)
    return Diff(
        before=first,
        after=second,
        changes=changes(before[1], after[1]),
        saved_usd_per_month=first.plan.usd_per_month - second.plan.usd_per_month,
        saved_share=saving(first.plan.usd_per_month, second.plan.usd_per_month),
        saved_share_per_mtok=saving(first.plan.usd_per_mtok.blended, second.plan.usd_per_mtok.blended),
    )


def changes(before: Words, after: Words) -> tuple[Change, ...]:
    """Return the keys that differ, in the order of the file format."""
    pairs = [(key, before[key], after[key]) for key in before]
    return tuple(Change(key=key, before=_word(a), after=_word(b)) for key, a, b in pairs if a != b)


def _word(value: object) -> str | None:
    if value is None or value == ():
        return None
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _side(name: str, plan: Plan, api: ApiBeside | None) -> DiffSide:
    if plan.best is None:
        fix = f"See: tokonomics plan {name} {option('why')}"
        raise BadInput("no offer meets the constraints of this scenario", where=name, fix=fix)
    tokens = plan.workload.tokens_per_month
    return DiffSide(name=name, model=plan.model, plan=plan.best, tokens_per_month=tokens, api=api)
