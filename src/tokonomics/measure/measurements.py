"""Read measured results from files in one shape: what ran, under which load, and the result.

There are two kinds of file: a table (csv, csv.gz) with the columns of ``COLUMNS`` (and ``num_requests``,
``length_spread``, ``statistic``, ``draft``, ``accepted_length``, ``visited_experts``, if a source states them), and a
JSON of bare step times (``{"gpu": …, "rows": [{"kind": "decode", "model": …, "batch": …, "ctx": …, "ms": …}]}``). A row
that cannot be read is kept with its reason.
"""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, TokonomicsError, from_validation, shorten
from tokonomics.measure.benchmark_run import MostGpus, MostStages
from tokonomics.traffic.sources import most_unpacked
from tokonomics.types import Noun

LARGEST_FILE = 200_000_000
MOST_REQUESTS = 10**6  # of one run
_DRAFT = r"^[\w./-]{1,80}(:([1-9]|1[0-6]))?$"
COLUMNS = (
    "model", "gpu", "num_gpus", "tp", "engine", "input_len", "output_len", "batch_or_concurrency", "mode", "metric",
    "value",
)  # fmt: skip


class Metric(StrEnum):
    """What was measured; times in seconds, rates in tokens a second."""

    tpot_s = "tpot_s"
    ttft_s = "ttft_s"
    output_tok_s = "output_tok_s"
    total_tok_s = "total_tok_s"
    step_s = "step_s"

    def figure(self, statistic: "Statistic") -> str:
        """Write ``tpot_s p99``; a mean has no suffix."""
        return f"{self}" if statistic is Statistic.mean else f"{self} {statistic}"


class Statistic(StrEnum):
    """A statistic over the requests of a run; a throughput is one figure of the whole run."""

    mean = "mean"
    p50 = "p50"
    p99 = "p99"


class Mode(StrEnum):
    """How the load was made."""

    max_throughput = "max_throughput"
    fixed_batch = "fixed_batch"
    fixed_concurrency = "fixed_concurrency"
    server_slo = "server_slo"
    low_latency = "low_latency"
    decode_step = "decode_step"
    prefill_step = "prefill_step"


class RunFacts(Noun):
    """What is known about the run behind a figure, for one replica; the rows of one load share it."""

    requests: PositiveInt | None = Field(default=None, le=MOST_REQUESTS)
    spread: float | None = Field(default=None, ge=0, lt=1)  # lengths are uniform within mean × (1 ± this)
    warm_up: NonNegativeInt = 0  # users answered before the measured window opened, who continued until after it closed
    arrival_s: tuple[float, ...] = ()  # of each request, since the first; with its lengths
    input_tokens: tuple[PositiveInt, ...] = ()
    output_tokens: tuple[PositiveInt, ...] = ()
    max_sequences: PositiveInt | None = None  # the server's limits, if they are not the engine's defaults
    max_batched_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _each_has_all(self) -> Self:
        if not len(self.arrival_s) == len(self.input_tokens) == len(self.output_tokens):
            raise ValueError("arrivals and lengths of requests differ in number")
        return self


class Measurement(Noun):
    """One figure, with everything needed to predict it."""

    key: str
    model: str
    gpu: str
    gpus: MostGpus
    tp: MostGpus
    pp: MostStages = 1
    ep: MostGpus = 1
    dp: MostGpus = 1  # groups of the attention that share their experts
    weights: str  # as the source states it; may need interpretation
    kv: str | None
    engine: str | None  # None: bare kernels, no engine around them
    engine_version: str | None = None
    year: int
    tuned: bool = False  # the source turns on options, off by default, that reduce the host's share of the time
    input_tokens: PositiveInt = Field(le=10**8)
    output_tokens: PositiveInt = Field(le=10**8)
    batch: PositiveInt | None = Field(le=10**6)  # requests at once; None if the queue never empties
    rate: PositiveFloat | None = Field(default=None, le=1e9)
    mode: Mode
    metric: Metric
    value: float = Field(ge=1e-9, le=1e12)  # of one replica, like its load; or of one user
    source: str
    split: str = ""
    length_share: float = Field(default=1.0, gt=0, le=1)  # mean ÷ nominal length, if lengths vary
    statistic: Statistic = Statistic.mean
    run: RunFacts = RunFacts()
    slo: tuple[PositiveFloat, PositiveFloat] | None = None
    """p99 of the time to the first token and per token, in seconds, under which the source sought its highest rate."""
    draft: str | None = Field(default=None, pattern=_DRAFT)  # what drafted, and tokens per round: ``mtp:3``
    accepted_length: float | None = Field(default=None, ge=1, le=17)  # tokens that a round yielded
    visited_experts: PositiveInt | None = None  # experts of a layer that the traffic visits at all; None: all

    @property
    def figure(self) -> str:
        """Return the metric, with its statistic if it is not the mean."""
        return self.metric.figure(self.statistic)


class Unread(Noun):
    """A row that cannot be read as a measurement, and why."""

    key: str
    reason: str
    split: str = ""


def read_measurements(path: Path) -> list[Measurement | Unread]:
    """Read every row of a results table or of a JSON of step times."""
    text, where = read_text(path), shorten(str(path), 200)
    if not text.lstrip().startswith("{"):
        return _from_table(text, where)
    document = parse_json(text, where)
    try:
        gpu, rows = document["gpu"], document["rows"]
    except (KeyError, TypeError):
        raise BadInput("a JSON of step times needs 'gpu' and 'rows'", where=where) from None
    if not isinstance(rows, list) or not isinstance(gpu, str) or not rows:
        raise BadInput("'gpu' must be a name and 'rows' a list of steps", where=where)
    return steps_from(rows, gpu, document)


def steps_from(rows: Sequence[object], gpu: str, file: Mapping[str, object]) -> list[Measurement | Unread]:
    """Read bare steps on a GPU; the file's own fields fill in what a row does not say."""
    return [_step(row, gpu, file, f"row {place}") for place, row in enumerate(rows, 1)]


_WEIGHTS = ("weights", "precision", "dtype")  # names under which a step states the precision of its weights


def _step(row: object, gpu: str, file: Mapping[str, object], key: str) -> Measurement | Unread:
    """Read one bare step: the whole model in a CUDA graph, no engine around it."""
    try:
        if not isinstance(row, dict):
            return Unread(key=key, reason="not an object")
        kind = row["kind"]
        if kind not in ("decode", "prefill"):
            return Unread(key=key, reason=f"a step of kind '{shorten(str(kind))}' is not what an engine runs")
        return Measurement(
            key=key, model=str(row["model"]), gpu=gpu, gpus=int(row.get("gpus", 1)),
            tp=int(row["tp"] if "tp" in row else row.get("gpus", 1)),
            weights=str(next((row[name] for name in _WEIGHTS if name in row), file.get("dtype", "bf16"))),
            kv=str(row["kv"]) if "kv" in row else None, engine=None, year=2026,
            input_tokens=_count(row["ctx"], "ctx"), output_tokens=1, batch=_count(row["batch"], "batch"),
            mode=Mode.decode_step if kind == "decode" else Mode.prefill_step, metric=Metric.step_s,
            value=float(row["ms"]) * 1e-3, source=f"bare steps on {gpu}",
        )  # fmt: skip
    except KeyError as error:
        return Unread(key=key, reason=f"field {shorten(str(error))} is missing")
    except (TypeError, ValueError, OverflowError) as error:
        return Unread(key=key, reason=_problem(error))


def _from_table(text: str, where: str) -> list[Measurement | Unread]:
    table = csv.DictReader(io.StringIO(text, newline=""))
    missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        fix = f"A results table has one figure a row: {', '.join(COLUMNS)}."
        raise BadInput(f"missing column{'s' * (len(missing) > 1)} {', '.join(missing)}", where=where, fix=fix)
    try:
        rows = [_row(row, f"line {table.line_num}") for row in table]
    except csv.Error as error:
        raise BadInput(f"not a CSV file: {error}", where=f"{where}:{table.line_num}") from None
    if not rows:
        raise BadInput("there is no row below the header", where=where)
    return rows


_METRICS = {
    "tpot_ms": (Metric.tpot_s, 1e-3), "tpot_s": (Metric.tpot_s, 1.0),
    "ttft_ms": (Metric.ttft_s, 1e-3), "ttft_s": (Metric.ttft_s, 1.0),
    "output_tok_s": (Metric.output_tok_s, 1.0), "total_tok_s": (Metric.total_tok_s, 1.0),
    "decode_tok_s_per_user": (Metric.tpot_s, 1.0), "req_s": (Metric.output_tok_s, 1.0),
}  # fmt: skip
"""The metric in our terms, and its unit; for the last two, see ``_in_our_terms``."""
_PER = ("system", "gpu", "user")  # what a rate refers to: all GPUs, one of them, one user
INFERENCEX_LENGTHS = 0.9  # lengths are drawn from 80 to 100 % of the nominal ones: their mean is 90 %
_INFERENCEX = ("InferenceMAX", "InferenceX")
"""Names of the source whose published recipes run vLLM with --async-scheduling and graphs of up to 2,048 tokens."""


class _Task(NamedTuple):
    """A task of MLPerf Inference, whose data set every submitter runs."""

    model: str  # its key in the catalogue
    input_tokens: float
    output_tokens: float
    server_s: tuple[float, float]  # p99 of the time to the first token and per token in its scenario Server
    interactive_s: tuple[float, float] | None = None


_TASKS = {
    r"llama-?2.*70b": _Task("llama-2-70b", 160, 294.45, (2.0, 0.2), (0.45, 0.04)),
    r"mixtral.*8x7b": _Task("mixtral-8x7b", 160, 144.84, (2.0, 0.2)),
    r"llama-?3\.1.*405b": _Task("llama-3.1-405b", 9400, 684.68, (6.0, 0.175), (4.5, 0.08)),
    r"llama-?3\.1.*8b": _Task("llama-3.1-8b", 778, 73, (2.0, 0.1), (0.5, 0.03)),
    r"deepseek-?r1": _Task("deepseek-r1", 800, 3880, (2.0, 0.08), (1.5, 0.015)),
}
"""The mean lengths of the tasks' data sets, and their latency limits, by how a row names the model.

Limits (v4.1 to v6.0), and answers of Llama 2 70B, Mixtral and Llama 3.1 405B (``tokens_per_sample``):
mlcommons/inference_policies, ``inference_rules.adoc``. Lengths of Llama 3.1 405B, 8B and DeepSeek-R1:
mlcommons.org/2025/04/llm-inference-v5, /2025/09/small-llm-inference-5-1 and /2025/09/deepseek-inference-5-1. Prompts of
OpenOrca (Llama 2 70B) are derived: its 24,576 samples are 41,708,098 bytes of prompts and answers (dataset card of
ctuning/MLPerf-OpenOrca), 1,697 each; without an answer of 294 tokens of 4 bytes some 520 bytes are left, 130 tokens,
and the chat template adds 30. A third of Mixtral's samples are of OpenOrca; of the others no length is published, so
they are taken to be as long. GPT-J is not here: it ran with four beams.
"""


def _of_task(row: Mapping[str, str]) -> dict[str, str]:
    """Return what a row of MLPerf leaves out, because its task says so: lengths, limits, and how GPUs are split.

    Submitters state no split where it is the obvious one: as few GPUs to a replica as leave half of their memory to the
    KV cache. Where it is stated of such models (H100, H200, B200; v4.1 and v5.1), it is that.
    """
    if "mlperf" not in row.get("source_name", "").lower():
        return {}
    task = next((task for name, task in _TASKS.items() if re.search(name, row["model"].lower())), None)
    if task is None:
        return {}
    told: dict[str, str] = {}
    if not row["input_len"]:
        told |= {"input_len": f"{task.input_tokens:g}", "length_spread": row.get("length_spread") or "0.99"}
    if not row["output_len"]:
        told["output_len"] = f"{task.output_tokens:g}"
    if row["mode"] == Mode.server_slo:
        limits = (
            (task.interactive_s or task.server_s)
            if "interactive" in row.get("source_ref", "").lower()
            else task.server_s
        )
        told |= {"slo": ",".join(f"{limit:g}" for limit in limits)}
    if not row["tp"] and row["num_gpus"]:
        with suppress(TokonomicsError, ValueError):
            told["tp"] = str(_fewest_gpus(row, task))
    return told


def _fewest_gpus(row: Mapping[str, str], task: _Task) -> int:
    stated = row.get("precision_weights", "").lower()
    weights = Precision.nvfp4 if "fp4" in stated else Precision.fp8 if "8" in stated else Precision.bf16
    held, memory, gpus = find_model(task.model).weight_bytes(weights), find_gpu(row["gpu"]).memory_bytes, 1
    while held / gpus > memory / 2 and gpus < float(row["num_gpus"]):
        gpus *= 2
    return gpus


def _row(cells: Mapping[str, str | None], line: str) -> Measurement | Unread:
    row = {name: cell or "" for name, cell in cells.items() if isinstance(name, str) and not isinstance(cell, list)}
    row |= _of_task(row)
    key, split = row.get("id") or line, row.get("split") or ""
    try:
        statistic, name = _statistic(row)
        if name not in _METRICS:
            raise ValueError(f"unknown metric '{shorten(row['metric'], 30)}' (known: {', '.join(_METRICS)})")
        if not row["engine"]:
            raise ValueError("no engine named")
        if row["mode"] not in _SERVED:
            raise ValueError(f"unknown mode '{shorten(row['mode'], 30)}' (known: {', '.join(_SERVED)})")
        metric, unit = _METRICS[name]
        gpus = _exact(row["num_gpus"], "num_gpus")
        outputs = _length(row, "output_len")
        if (measured := _number(row["value"], "value")) <= 0:
            raise ValueError(f"the value of {name} must be above 0, got {row['value']}")
        value = _in_our_terms(name, measured * unit, outputs)
        tp, pp, mode = _exact(row["tp"] or row["num_gpus"], "tp"), _exact(row.get("pp") or "1", "pp"), Mode(row["mode"])
        if (per := row.get("per") or "system") not in _PER:
            raise ValueError(f"unknown per '{shorten(per, 30)}' (known: {', '.join(_PER)})")
        if min(gpus, tp, pp) < 1 or gpus % (tp * pp):
            raise ValueError(f"num_gpus {gpus} cannot hold whole replicas of tp {tp} × pp {pp}")
        ep = max(1, _exact(row.get("ep") or "1", "ep"))
        # With experts over more ranks than the attention, its groups share them. Some sources print too many ranks.
        dp = max(tp, min(ep, gpus // pp)) // tp
        replicas = max(1, gpus // (tp * pp * dp))
        batch, rate = _load(row["batch_or_concurrency"])
        users = None if row["batch_or_concurrency"].startswith("max_") else batch  # a limit is that of each replica
        alone = _each(users, replicas) or batch
        if metric in (Metric.output_tok_s, Metric.total_tok_s):
            if per == "user":
                raise ValueError("a rate is of the system or of a gpu; of a user there is decode_tok_s_per_user")
            # For as many users as one replica gets; with fewer users than replicas, some replicas are idle.
            value *= (gpus if per == "gpu" else 1) * (alone / users if users and alone else 1 / replicas)
        requests = _exact(row["num_requests"], "num_requests") if row.get("num_requests") else None
        spread = _number(row["length_spread"], "length_spread") if row.get("length_spread") else None
        requests = _each(requests, replicas)
        source = row.get("source_name") or "unnamed"
        is_inferencex = any(name in source for name in _INFERENCEX)
        return Measurement(
            key=key, model=row["model"] or row.get("hf_id_guess") or "unnamed", gpu=row["gpu"], gpus=gpus,
            tp=tp, pp=pp, ep=min(ep, tp * dp), dp=dp, weights=row.get("precision_weights") or "unstated",
            kv=row.get("precision_kv") or None, engine=row["engine"],
            engine_version=row.get("engine_version") or None, year=_exact(row.get("year") or "2026", "year"),
            tuned=is_inferencex, input_tokens=_length(row, "input_len"),
            output_tokens=outputs, batch=alone, rate=None if rate is None else rate / replicas, mode=mode,
            metric=metric, value=value, source=source, split=split,
            length_share=INFERENCEX_LENGTHS if is_inferencex else 1.0, statistic=statistic,
            run=RunFacts(requests=requests, spread=spread), slo=_limits(row), draft=row.get("draft") or None,
            accepted_length=_number(row["accepted_length"], "accepted_length") if row.get("accepted_length") else None,
            visited_experts=_exact(row["visited_experts"], "visited_experts") if row.get("visited_experts") else None,
        )  # fmt: skip
    except (ValueError, OverflowError) as error:
        return Unread(key=key, reason=_problem(error), split=split)


def _limits(row: Mapping[str, str]) -> tuple[float, float] | None:
    first_s, _, each_s = row.get("slo", "").partition(",")
    return (_number(first_s, "slo"), _number(each_s, "slo")) if first_s else None


def _each(count: int | None, replicas: int) -> int | None:
    """Return the share of one replica: at least one, if there are any."""
    return max(1, round(count / replicas)) if count and count > 0 else count


def _length(row: Mapping[str, str], column: str) -> int:
    """Return the length of a prompt or an answer; 1 if a test of prompts or answers alone says 0."""
    tokens = round(_number(row[column], column))
    (other,) = {"input_len", "output_len"} - {column}
    return 1 if tokens == 0 and round(_number(row[other], other)) > 0 else tokens


def _in_our_terms(name: str, value: float, outputs: int) -> float:
    """Convert tokens a second of one user to seconds a token, and requests a second to the tokens of their answers."""
    if name == "decode_tok_s_per_user":
        return 1 / value if value > 0 else value
    return value * outputs if name == "req_s" else value


_SERVED = (Mode.max_throughput, Mode.fixed_batch, Mode.fixed_concurrency, Mode.server_slo, Mode.low_latency)
_STATISTICS = {**{statistic.value: statistic for statistic in Statistic}, "median": Statistic.p50}


def _statistic(row: Mapping[str, str]) -> tuple[Statistic, str]:
    """Return the statistic from its own column, or from the metric's prefix (``p99_ttft_ms``), and the other part."""
    head, _, rest = row["metric"].partition("_")
    stated, name = (head, rest) if head in _STATISTICS else (row.get("statistic") or "mean", row["metric"])
    if stated not in _STATISTICS:
        raise ValueError(f"unknown statistic '{shorten(stated, 30)}' (known: {', '.join(_STATISTICS)})")
    return _STATISTICS[stated], name


def _problem(error: Exception) -> str:
    """Describe what is wrong with a row, naming the field."""
    if isinstance(error, ValidationError):
        return from_validation(error, "row").what
    return shorten(str(error).splitlines()[0] if str(error) else "cannot be read", 200)


def _count(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"field '{field}' is not a whole number")
    return int(value)


def _load(text: str) -> tuple[int | None, float | None]:
    """Read ``64`` as a batch, ``qps=4`` as a rate; blank or ``qps=inf`` is a queue that never empties."""
    text = text.strip()
    if not text or text == "qps=inf":
        return None, None
    if text.startswith("qps="):
        return None, _number(text.removeprefix("qps="), "batch_or_concurrency")
    number = re.sub(r"^(max_num_seqs|max_batch)=|\s*prompts$", "", text)
    return round(_number(number, "batch_or_concurrency")), None


def _number(text: str, column: str) -> float:
    if not text.strip():
        raise ValueError(f"{column} is not stated")
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{column} '{shorten(text)}' is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"{column} is {text}")
    return number


def _exact(text: str, column: str) -> int:
    """Read a count: ``8`` or ``8.0``, not 1.5."""
    number = _number(text, column)
    if number != int(number):
        raise ValueError(f"{column} '{shorten(text)}' is not a whole number")
    return int(number)


def parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not JSON: {shorten(str(error), 120)}", where=where) from None


def json_object(path: Path) -> dict[str, Any] | None:
    """Return the object that a JSON file holds; None for anything else."""
    text = read_text(path)
    with suppress(BadInput):
        return parse_json(text, "") if text.lstrip().startswith("{") else None
    return None


def read_text(path: Path) -> str:
    """Read a whole file in UTF-8, plain or gzip; refuse one larger than any table of results."""
    where, most = shorten(str(path), 200), LARGEST_FILE
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if content[:2] == b"\x1f\x8b":
            most = min(most, most_unpacked(len(content)))
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(most + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be read: {shorten(str(reason))}", where=where) from None
    if len(content) > most:
        raise BadInput(f"larger than {most // 10**6} MB; not read", where=where)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput("not a text file in UTF-8", where=where) from None
