"""What is left of a model's quality at fewer bits: of a plan's pick, and of one's own results."""

from typing import TYPE_CHECKING

from tokonomics.catalog.checkpoints import Recovery, recovery_text
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import option
from tokonomics.planner.plan_answer import Plan
from tokonomics.questions.results import PlanResult
from tokonomics.report import blocks
from tokonomics.report.answer import Answer
from tokonomics.units import fine_percent, plural

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import RecoveryResult


def quality_facts(result: PlanResult, model: ModelSpec) -> list[blocks.Fact]:
    """What the pick's fewer bits cost in quality, and the checkpoint to load."""
    row, facts = result.best, list[blocks.Fact]()
    if row is None:
        return facts
    if row.weights.is_below(model.served):
        facts.append(_quality("quality", model, row.weights, result.recovery))
    if row.kv.is_below(Precision.bf16):
        facts.append(_quality("KV quality", model, row.kv, result.kv_recovery))
    return [*facts, _checkpoint(result, model)]


def published_checkpoint(model: ModelSpec) -> blocks.Fact:
    """The model's own."""
    return blocks.fact("checkpoint", "published", model.repository or "your own")


def not_tried(plan: Plan) -> blocks.Line | None:
    """Precisions that were left out for their quality, each with the reason."""
    if not plan.not_tried:
        return None
    reasons = "; ".join(f"{name}: {reason}" for name, reason in plan.not_tried.items())
    return blocks.hint(f"Not tried, for {option('min_recovery')}: {reasons}.")


def _quality(name: str, model: ModelSpec, precision: Precision, found: Recovery | None) -> blocks.Fact:
    if found is None:
        measure = f"measure it on your own task (`tokonomics import` with {option('baseline')})"
        return blocks.fact(name, "no score", f"of {precision} is published for {model.name} or its family: {measure}")
    value, _, rest = recovery_text(found, model).partition(" of ")
    return blocks.fact(name, value, f"of {rest}", number=found.recovery, less="worse")


def _checkpoint(result: PlanResult, model: ModelSpec) -> blocks.Fact:
    found = result.checkpoint
    if result.best and result.best.weights is model.served:
        return published_checkpoint(model)
    if found is None:
        return blocks.fact("checkpoint", "none listed", result.how_to_make or "")
    where = "" if found.source.endswith(found.repository) else f" in the {found.source}"
    return blocks.fact("checkpoint", "exists", f"{found.repository}, seen{where} on {found.read}")


def recovered(result: "RecoveryResult") -> Answer:
    """What a quantised model keeps of the published one's scores, task by task."""
    title = f"What {result.model} keeps at {result.precision}"
    return Answer(result, title, lambda: _recovered(result))


def _recovered(result: "RecoveryResult") -> blocks.View:
    part = "weights" if result.part == "weights" else "KV cache"
    what = f" of {result.published.upper()} with {result.precision.upper()} {part}: {result.name}, "
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
