"""The accuracy view: the recorded error tables, and every row behind them as a point; a reader's own rows may join.

What is asked for (a kind of figure, an engine, a GPU, how a speed is known, how a row stands to the model) chooses the
points; the summary above the chart is of those.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any

from tokonomics.errors import UnknownName, in_python
from tokonomics.measure.accuracy_points import (
    KINDS,
    YOURS,
    AccuracyPoint,
    chosen,
    drawn_errors,
    served_points,
    shipped_points,
    unseen_errors,
)
from tokonomics.report import charts, validate_view
from tokonomics.report.answer import document
from tokonomics.report.blocks import sections
from tokonomics.workers import as_json

CHOICES = ("engine", "gpu", "speed", "fit")


def accuracy(asked: Mapping[str, str], own: Mapping[str, Any] | None = None) -> bytes:
    """The description and the chart of the points that are ``asked`` for, and what else could be.

    ``own`` is the answer of ``import`` to the reader's results.
    """
    kind = asked.get("metric") or next(iter(KINDS))
    if kind not in KINDS:
        raise UnknownName("metric", kind, list(KINDS))
    known = (*shipped_points(), *served_points())
    options = {name: sorted({getattr(point, name) for point in known}) for name in CHOICES}
    only = {name: asked.get(name) for name in CHOICES}
    for name, value in only.items():
        if value and value not in options[name]:
            raise UnknownName(name, value, options[name])
    points = chosen(known, kind, **only)
    joined = chosen(_own_points(own), kind) if own else []
    described = validate_view.accuracy(_recorded(), unseen_errors(), drawn_errors(points, joined), kind, joined, own)
    drawn = charts.measured.scatter_chart([*points, *joined], kind, *validate_view.heading(points, kind, joined))
    return as_json(
        {
            **_recorded(),
            "options": {"metric": list(KINDS), **options},
            "sections": document(sections(described), in_python),
            "charts": [{"name": "Predicted against measured", "spec": drawn.to_dict(validate=False)}],
        }
    )


@lru_cache(maxsize=1)
def _recorded() -> dict[str, Any]:
    """The tables, as ``benchmarks/bench_accuracy.py`` wrote them."""
    file = resources.files("tokonomics.measure") / "data" / "accuracy.json"
    recorded: dict[str, Any] = json.loads(file.read_bytes())
    return recorded


def _own_points(answer: Mapping[str, Any]) -> list[AccuracyPoint]:
    """The figures of a reader's results that were predicted."""
    result = answer["result"]
    run, machine = result["run"], result["machine"] or {}
    where = f"{run['model'] or 'a model'} on {machine.get('gpus', '')}×{machine.get('gpu', '')}, {run['tool']}"
    return [
        AccuracyPoint(
            fit=YOURS,
            speed=YOURS,
            metric=" ".join(part for part in (figure["metric"], figure.get("statistic")) if part and part != "mean"),
            gpu=machine.get("gpu", ""),
            engine=machine.get("engine", ""),
            what=f"{where}; {point['load']}",
            measured=figure["measured"],
            predicted=figure["predicted"]["mid"],
        )
        for point in result["points"]
        for figure in point["scored"]
    ]
