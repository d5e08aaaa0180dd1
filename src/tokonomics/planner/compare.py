"""Several models on several GPUs under the same traffic and SLO: the cheapest way for each pair, side by side.

Every pair is a plan of its own, so that no pair is left out because another is cheaper. A quality score per model is
the user's: dollars per million tokens over it weigh price with quality, and the front keeps the pairs that no other
beats in both.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import Field, PositiveFloat

from tokonomics.errors import BadInput, nearest, shorten
from tokonomics.planner.plan import Candidate, Plan, Question, study
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun


class Cell(Noun):
    """One model on one GPU."""

    model: str
    model_name: str
    gpu: str
    pick: Candidate | None
    """The cheapest way; None where there is none."""
    refused: str | None
    """Why there is none."""
    quality: PositiveFloat | None = None
    usd_per_quality_mtok: PositiveFloat | None = None
    """Dollars per million tokens, each counted as much as its quality."""

    @property
    def usd_per_mtok(self) -> float | None:
        return self.pick.usd_per_mtok.blended if self.pick else None


class Comparison(Noun):
    """The grid, model by model."""

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    simulated: bool
    models: tuple[str, ...]
    gpus: tuple[str, ...]
    """Those on which some model runs, the best known price first."""
    cells: tuple[Cell, ...]
    front: tuple[tuple[str, str], ...]
    """Model and GPU of the pairs that no other beats in both price and quality; empty without qualities."""

    def cell(self, model: str, gpu: str) -> Cell:
        return next(cell for cell in self.cells if (cell.model, cell.gpu) == (model, gpu))

    def cheapest(self) -> Cell | None:
        priced = [cell for cell in self.cells if cell.usd_per_mtok is not None]
        return min(priced, key=lambda each: each.usd_per_mtok or 0.0, default=None)


def compare(
    questions: Sequence[Question],
    quality: Mapping[str, float] | None = None,
    say: Callable[[str], None] = lambda what: None,
) -> Comparison:
    """The cheapest offer of every model on every GPU that its question names offers of."""
    scores = dict(quality or {})
    cells = []
    gpus = list(dict.fromkeys(offer.gpu for question in questions for offer in question.offers))
    for question in questions:
        for gpu in gpus:
            say(f"{question.model.name} on {gpu}")
            mine = [offer for offer in question.offers if offer.gpu == gpu]
            made = study(replace(question, offers=mine)).plan
            cells.append(_cell(question, gpu, made, scores.get(question.model.key)))
    used = [gpu for gpu in gpus if any(cell.pick and cell.gpu == gpu for cell in cells)]
    lowest = {gpu: min(cell.usd_per_mtok or float("inf") for cell in cells if cell.gpu == gpu) for gpu in used}
    first = questions[0]
    return Comparison(
        workload=first.load.workload,
        slos=first.slos,
        simulated=first.simulate,
        models=tuple(each.model.key for each in questions),
        gpus=tuple(sorted(used, key=lambda gpu: (lowest[gpu], gpu))),
        cells=tuple(cells),
        front=front(cells),
    )


def _cell(question: Question, gpu: str, made: Plan, quality: float | None) -> Cell:
    pick = made.best
    price = pick.usd_per_mtok.blended if pick else None
    return Cell(
        model=question.model.key,
        model_name=question.model.name,
        gpu=gpu,
        pick=pick,
        refused=None if pick else _reason(made),
        quality=quality,
        usd_per_quality_mtok=price / quality if price is not None and quality is not None else None,
    )


def _reason(made: Plan) -> str:
    """What most candidates were refused for."""
    kinds = Counter(each.kind.value for each in made.rejected)
    return kinds.most_common(1)[0][0] if kinds else "no offer"


def front(cells: Sequence[Cell]) -> tuple[tuple[str, str], ...]:
    """Pairs that no other pair beats: at least as good for less, or better for as little; the cheapest first."""
    scored = [(cell, cell.usd_per_mtok, cell.quality) for cell in cells]
    priced = sorted(
        ((price, -score, each) for each, price, score in scored if price is not None and score is not None),
        key=lambda row: (row[0], row[1], row[2].gpu),
    )
    kept: list[Cell] = []
    best = (float("inf"), float("-inf"))
    for price, minus_score, each in priced:
        if -minus_score > best[1] or (price, -minus_score) == best:
            kept.append(each)
            best = (price, -minus_score)
    return tuple((each.model, each.gpu) for each in kept)


def parse_quality(texts: Sequence[str], models: Sequence[str]) -> dict[str, float]:
    """``llama-3.1-8b=0.66,qwen3-8b=0.7`` → scores by model; the scale is the user's own."""
    made: dict[str, float] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in models:
            guess = nearest(name, models, 1)
            hint = f"Did you mean {guess[0]}?" if guess else f"Compared are: {', '.join(models)}."
            raise BadInput(f"'{shorten(name)}' is not among the models compared", field="quality", fix=hint)
        try:
            score = float(value)
        except ValueError:
            score = -1.0
        if not 0 < score < 1e9:
            raise BadInput(
                f"'{shorten(part)}' has no score above 0",
                field="quality",
                fix="Write llama-3.1-8b=0.66: any scale, higher is better.",
            )
        made[name] = score
    return made
