"""Recognise which load generator wrote a result file, by the names it uses, and read it as a ``BenchmarkRun``.

It reads JSON, JSON lines and YAML, plain or gzip. An unknown file is refused with what was found in it.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tokonomics.errors import BadInput, from_validation, option, shorten
from tokonomics.measure.benchmark_run import OWN_TOOL, SCHEMA_VERSION, BenchmarkRun
from tokonomics.measure.importers import lm_eval
from tokonomics.measure.importers.fields import Format
from tokonomics.measure.importers.load_generators import AIPERF, AIPERF_REQUESTS, GUIDELLM, INFERENCEX, LLM_D
from tokonomics.measure.importers.vllm import SGLANG, VLLM
from tokonomics.measure.measurements import parse_json, read_text


def _is_own(document: dict[str, Any]) -> bool:
    """Decide whether it is a saved run, or the result of ``bench --json`` or ``import --json``, which contain one."""
    inner = document.get("run", document)
    return isinstance(inner, dict) and {"schema_version", "tool", "points"} <= inner.keys()


def _read_own(documents: list[Any], where: str) -> BenchmarkRun:
    inner = documents[0].get("run", documents[0])
    if inner["schema_version"] != SCHEMA_VERSION:
        said = f"saved with schema version {str(inner['schema_version'])[:20]}; this program reads {SCHEMA_VERSION}"
        raise BadInput(said, where=where, fix="Read it with the version of tokonomics that wrote it.")
    return BenchmarkRun.model_validate(inner)


FORMATS = (
    Format(OWN_TOOL, _is_own, _read_own, many=False), INFERENCEX, SGLANG, VLLM, GUIDELLM, AIPERF, AIPERF_REQUESTS,
    LLM_D,
)  # fmt: skip
SUPPORTED = "; ".join(form.name for form in FORMATS)


def read_run(path: Path) -> BenchmarkRun:
    where = shorten(str(path), 200)
    documents = _documents(read_text(path), where)
    for form in FORMATS:
        if all(form.matches(document) for document in documents):
            if len(documents) > 1 and not form.many:
                raise BadInput(f"{len(documents)} results of {form.name} in one file", where=where, fix="One a file.")
            try:
                return form.read(documents, where)
            except ValidationError as error:  # a figure that no run has, such as an infinite rate
                what = from_validation(error, where).what
                raise BadInput(what, where=where, fix="The file is damaged, or was edited.") from None
    if lm_eval.matches(documents[0]):
        fix = f"Give those of the unquantised model as well: {option('baseline', 'bf16.json')}."
        raise BadInput(f"{lm_eval.NAME} results: scores, not loads", where=where, fix=fix)
    names = sorted({form.name for document in documents for form in FORMATS if form.matches(document)})
    found = f"results of {' and '.join(names)} mixed" if names else _found(documents[0])
    raise BadInput(f"no benchmark result we know: {found}", where=where, fix=f"Supported: {SUPPORTED}.")


def read_runs(paths: Sequence[Path]) -> BenchmarkRun:
    """Read files of one tool and model as one run: many tools write a file for each load."""
    runs = [read_run(path) for path in paths]
    kinds = {(run.tool, run.model, run.stated) for run in runs}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{tool} of {model or 'no named model'}" for tool, model, _ in kinds)[:4])
        fix = "Give the files of one tool, model and machine."
        raise BadInput(f"the files are of different runs: {shown}", fix=fix)
    points = [point for run in runs for point in run.points]
    points.sort(key=lambda point: (point.concurrency or 0, point.rate or 0.0))
    return runs[0].model_copy(update={"points": tuple(points)})


def _documents(text: str, where: str) -> list[Any]:
    """Read one JSON document, a list of them, one per line, or one in YAML."""
    start = text.lstrip()[:1]
    if not start:
        raise BadInput("is empty", where=where)
    if start not in "{[":
        return [_yaml(text, where)]
    try:
        whole = json.loads(text)
    except RecursionError:
        raise BadInput("not JSON: nested too deep", where=where) from None
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not lines[0].rstrip().endswith("}"):
            raise BadInput(f"not JSON: {shorten(str(error), 120)}", where=where, fix="Was it cut off?") from None
        return [parse_json(line, f"{where}:{place}") for place, line in enumerate(lines, 1)]
    documents = whole if isinstance(whole, list) else [whole]
    if not documents:
        raise BadInput("an empty list", where=where, fix=f"Supported: {SUPPORTED}.")
    return documents


def _yaml(text: str, where: str) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        said = shorten(" ".join(str(error).split()), 120)
        raise BadInput(f"neither JSON nor YAML: {said}", where=where, fix=f"Supported: {SUPPORTED}.") from None


def _found(document: Any) -> str:
    if not isinstance(document, dict):
        return f"it holds {'a text' if isinstance(document, str) else f'a {type(document).__name__}'}, not an object"
    return f"its keys: {shorten(', '.join(map(str, document)), 200) or 'none'}"
