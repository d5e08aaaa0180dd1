"""What is left of a model's quality at fewer bits: of a plan's pick, and of one's own results."""

from typing import TYPE_CHECKING

from tokonomics.catalog.checkpoints import checkpoint_for, how_to_make
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.catalog.recovery import QuantisedPart, recovery_of, recovery_text
from tokonomics.errors import option
from tokonomics.planner.plan_answer import Candidate, Plan
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.units import fine_percent, plural

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import RecoveryResult


def quality_facts(row: Candidate, model: ModelSpec) -> list[blocks.Fact]:
    """What fewer bits cost in quality, and the checkpoint to load."""
    facts = []
    if row.weights.is_below(model.served):
        facts.append(_quality("quality", model, row.weights, "weights"))
    if row.kv.is_below(Precision.bf16):
        facts.append(_quality("KV quality", model, row.kv, "kv"))
    return [*facts, _checkpoint(row, model)]


def not_tried(plan: Plan) -> blocks.Line | None:
    """Precisions that were left out for their quality, each with the reason."""
    if not plan.not_tried:
        return None
    reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.not_tried.items())
    return blocks.hint(f"Not tried, for {option('min_recovery')}: {reasons}.")


def _quality(name: str, model: ModelSpec, precision: Precision, part: QuantisedPart) -> blocks.Fact:
    found = recovery_of(model, precision, part)
    if found is None:
        measure = f"measure it on your own task (`tokonomics import` with {option('baseline')})"
        return blocks.fact(name, "no score", f"of {precision} is published for {model.name} or its family: {measure}")
    value, _, rest = recovery_text(found, model).partition(" of ")
    return blocks.fact(name, value, f"of {rest}", number=found.recovery, less="worse")


def _checkpoint(row: Candidate, model: ModelSpec) -> blocks.Fact:
    found = checkpoint_for(model, row.weights)
    if row.weights is model.served:
        return blocks.fact("checkpoint", "published", found.repository if found else "your own")
    if found is None:
        return blocks.fact("checkpoint", "none listed", how_to_make(model, row.weights, row.engine))
    where = "" if found.source.endswith(found.repository) else f" in the {found.source}"
    return blocks.fact("checkpoint", "exists", f"{found.repository}, seen{where} on {found.read}")


def recovered(result: "RecoveryResult") -> Answer:
    """What a quantised model keeps of the published one's scores, task by task."""
    title = f"What {result.model} keeps at {result.precision}"
    return Answer(result, title, lambda: _recovered(result))


def _recovered(result: "RecoveryResult") -> blocks.View:
    model = find_model(result.model)
    part, published = ("weights", model.served) if result.part == "weights" else ("KV cache", Precision.bf16)
    what = f" of {published.upper()} with {result.precision.upper()} {part}: {model.name}, "
    yield blocks.headline(fine_percent(result.recovery), f"{what}the mean over {plural(len(result.tasks), 'task')}")
    yield blocks.table(
        ["!task", "!metric", ">baseline", ">quantised", ">recovery"],
        [
            (task.task, task.metric, f"{task.baseline:.4f}", f"{task.quantised:.4f}", fine_percent(task.recovery))
            for task in result.tasks
        ],
    )
    yield blocks.note(*(f"{name} left out: {why}." for name, why in result.left_out.items()))
    if not result.kept:
        floor = option("min_recovery", "98%")
        yield blocks.hint(f"With {option('keep')} it counts before published scores in every plan with {floor}.")
