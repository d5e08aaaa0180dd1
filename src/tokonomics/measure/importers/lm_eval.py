"""Read results of lm-evaluation-harness, and compute how much of the published model's scores a quantised model keeps.

This reads the file that ``lm_eval --output_path`` writes (lm_eval/loggers/evaluation_tracker.py and evaluator.py, 0.4):
``results`` has each task's metrics under "metric,filter", with their standard errors; ``higher_is_better``, ``n-shot``
and ``versions`` are by task, ``group_subtasks`` by group, ``config`` holds the arguments. Tasks are compared by their
main metric: the normalised accuracy, the strict match, or the first that is listed. Recovery is the mean over the tasks
of both files; a task of a group counts within its group.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.importers.fields import ResultFields
from tokonomics.measure.measurements import parse_json, read_text
from tokonomics.types import Noun

NAME = "lm-evaluation-harness"
_MAIN = ("acc_norm,none", "exact_match,strict-match")
"""The metrics that the Open LLM Leaderboard uses for tasks with several; otherwise the first that is listed."""


class HarnessTask(Noun):
    """A task in one file: its metrics, in their order, and what makes two runs of it comparable."""

    metrics: dict[str, float]
    shots: str | None
    version: str | None


class HarnessRun(Noun):
    """The results of one model."""

    model: str | None
    limit: str | None  # the most samples of a task; None: all of them
    tasks: dict[str, HarnessTask]


class TaskRecovery(Noun):
    """A task that both models did, with both scores."""

    task: str
    metric: str
    baseline: float
    quantised: float
    recovery: float


class KeptQuality(Noun):
    """How much of the published model's scores a quantised model keeps."""

    recovery: float  # the mean over the tasks
    tasks: tuple[TaskRecovery, ...]
    left_out: dict[str, str]  # tasks that do not compare, and why


def matches(document: Any) -> bool:
    """Decide whether it is a file of the harness: only it names metrics with their filter."""
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, dict) or not {"configs", "versions", "config"} & document.keys():
        return False
    return all(isinstance(task, dict) for task in results.values()) and any(
        "," in name for task in results.values() for name in task
    )


def read_scores(path: Path) -> HarnessRun:
    """Read a result file of the harness."""
    where = shorten(str(path), 200)
    document = parse_json(read_text(path), where)
    if not matches(document):
        fix = "Give the results_….json that `lm_eval --output_path` writes."
        raise BadInput(f"no results of {NAME}", where=where, fix=fix)
    whole = ResultFields(document, where)
    grouped = _in_groups(document)
    tasks = {name: _task(name, whole) for name in document["results"] if name not in grouped}
    return HarnessRun(model=_model(whole), limit=_stated(whole.maybe("config"), "limit"), tasks=tasks)


def kept_quality(baseline: HarnessRun, quantised: HarnessRun) -> KeptQuality:
    """Return the recovery of each task that both did in the same way, and their mean."""
    if baseline.limit != quantised.limit:
        said = " and ".join(f"limit {run.limit or 'none'}" for run in (baseline, quantised))
        raise BadInput(f"the runs took different samples: {said}", field="baseline", fix="Run both with one --limit.")
    found: list[TaskRecovery] = []
    left_out: dict[str, str] = {}
    for name in sorted(baseline.tasks.keys() | quantised.tasks.keys()):
        compared = _compared(name, baseline.tasks.get(name), quantised.tasks.get(name))
        if isinstance(compared, str):
            left_out[name] = compared
        else:
            found.append(compared)
    if not found:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items()) or "there is none"
        raise BadInput(f"no task compares: {shorten(reasons, 200)}", field="baseline")
    if not any(task.quantised for task in found):
        raise BadInput("the quantised model scores 0 in every task", field="files", fix="Did it load as it should?")
    return KeptQuality(recovery=fmean(task.recovery for task in found), tasks=tuple(found), left_out=left_out)


def _compared(name: str, before: HarnessTask | None, after: HarnessTask | None) -> TaskRecovery | str:
    """Return the task in both runs, or why it cannot be compared."""
    if before is None or after is None:
        return f"only in the {'quantised' if before is None else 'baseline'} results"
    if before.shots != after.shots:
        return f"{before.shots}-shot against {after.shots}-shot"
    if before.version != after.version:
        return f"version {before.version} against {after.version}"
    shared = [metric for metric in before.metrics if metric in after.metrics]
    if not shared:
        return "no metric of which more is better"
    metric = next((main for main in _MAIN if main in shared), shared[0])
    first, second = before.metrics[metric], after.metrics[metric]
    if not first > 0:
        return "the baseline scores 0"
    return TaskRecovery(task=name, metric=metric, baseline=first, quantised=second, recovery=second / first)


def _task(name: str, whole: ResultFields) -> HarnessTask:
    better = whole.maybe("higher_is_better", name).values
    metrics = {}
    for metric, value in whole.inside("results", name).values.items():
        bare, _, filtered = metric.partition(",")
        is_score = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        # Older files do not say whether more is better: then use only accuracies and matches.
        more_is_better = better.get(bare, bare.startswith(("acc", "exact_match"))) is True
        if filtered and is_score and more_is_better and not bare.endswith("_stderr"):
            metrics[metric] = float(value)
    shots, version = (_stated(whole.maybe(field), name) for field in ("n-shot", "versions"))
    return HarnessTask(metrics=metrics, shots=shots, version=version)


def _in_groups(document: Mapping[str, Any]) -> set[str]:
    """Return the tasks that count within a group whose own score is there."""
    groups, results = document.get("group_subtasks"), document["results"]
    return {
        task
        for group, tasks in (groups.items() if isinstance(groups, dict) else ())
        if isinstance(tasks, list) and any("," in metric for metric in results.get(group) or ())
        for task in tasks
        if isinstance(task, str)
    }


def _model(whole: ResultFields) -> str | None:
    """Return the model's name, as newer files state it, or from the arguments."""
    if named := whole.text("model_name"):
        return named
    arguments = whole.maybe("config").values.get("model_args")
    if isinstance(arguments, dict):
        return ResultFields(arguments, whole.where).text("pretrained")
    parts = arguments.split(",") if isinstance(arguments, str) else []
    return next((part.partition("=")[2] for part in parts if part.startswith(("pretrained=", "model="))), None)


def _stated(fields: ResultFields, name: str) -> str | None:
    value = fields.values.get(name)
    return None if value is None else shorten(str(value))
