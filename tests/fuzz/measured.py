"""What was measured, read from result files, logs, pages, answers of servers and the meter's book; with valid ones."""

import asyncio
import json
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"


def read_result(path: Path) -> object:
    from tokonomics.measure.importers.recognise import read_run

    run = read_run(path)
    assert run.points
    for point in run.points:
        assert point.completed is None or point.completed > 0
        assert 0 < point.requests_per_s < 1e30
        assert point.load
    return run


def results() -> list[bytes]:
    """One of each tool, cut to what a small file has."""
    folder = TESTS / "measure" / "results"
    made = [
        file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix != ".md" and file.stat().st_size < 20_000
    ]
    bench = json.loads((folder / "bench.json").read_text())
    kept = [{**point, "records": []} for point in bench["points"][:2]]
    return [*made, json.dumps({**bench, "points": kept}).encode()]


def read_measurements(path: Path) -> object:
    from tokonomics.measure.measurements import Measurement, read_measurements

    rows = read_measurements(path)
    assert rows
    for row in rows:
        if isinstance(row, Measurement):
            assert row.value > 0
        else:
            assert len(row.reason) <= 500
    return rows


def tables_of_results() -> list[bytes]:
    header = "id,model,gpu,num_gpus,tp,pp,ep,engine,engine_version,precision_weights,input_len,output_len,"
    header += "batch_or_concurrency,mode,metric,per,value,source_name,year,split\n"
    rows = "1,llama-3.1-8b,H100,1,1,,,vllm,0.9,fp8,1000,300,16,fixed_concurrency,tpot_ms,,12.5,InferenceX,2026,dev\n"
    rows += "2,llama-3.1-8b,H100,2,2,1,1,vllm,,bf16,1000,300,qps=4,server_slo,output_tok_s,gpu,900,us,2025,test\n"
    step = {"kind": "decode", "model": "llama-3.1-8b", "batch": 8, "ctx": 1024, "ms": 4.5}
    steps = {"gpu": "H100", "rows": [step, {**step, "kind": "prefill", "tokens": 512}]}
    return [(header + rows).encode(), json.dumps(steps).encode()]


def read_engine_log(path: Path) -> object:
    from tokonomics.errors import BadInput
    from tokonomics.measure.engine_log import is_engine_log, prompts_of_steps, read_engine_log

    is_engine_log(path)
    log = read_engine_log(path)
    for run in log.runs.values():
        try:
            prompts = prompts_of_steps(run, path.name)
        except BadInput:
            continue
        assert (prompts >= 0).all()
        assert (log.padded(run.decodes) >= run.decodes).all()
    return log.buckets  # times of requests that were not answered are no numbers, by design


def engine_logs() -> list[bytes]:
    from tests.measure.engine_runs import sample

    log = sample()
    for run in log["runs"].values():
        run["requests"], run["steps"] = run["requests"][:3], run["steps"][:4]
    return [json.dumps(log).encode()]


def read_profile(path: Path) -> object:
    from tokonomics.physics.calibration import read_profile

    return read_profile(path)


def profiles() -> list[bytes]:
    probed = json.loads((BENCHMARKS / "results" / "h200-profile.json").read_text())
    probed["timings"] = {name: rows[:2] for name, rows in probed.get("timings", {}).items() if isinstance(rows, list)}
    return [json.dumps(probed).encode()]


def read_timings(path: Path) -> object:
    from tokonomics.measure.probe.fit_profile import profile_from
    from tokonomics.questions.calibrate import read_timings as read

    return profile_from(read(path), "tokonomics probe", path.name)


def probe_timings() -> list[bytes]:
    """A few rows of each section: a fit of them is poor, and quick."""
    kept = json.loads((BENCHMARKS / "results" / "h200-profile.json").read_text())
    rows = {name: each[:40] if isinstance(each, list) else each for name, each in kept["timings"].items()}
    head = {"kind": "tokonomics probe timings", "schema_version": 1, "made": "2026-11-15", "machine": kept["machine"]}
    return [json.dumps({**head, **rows}).encode()]


def read_plan(path: Path) -> object:
    from tokonomics.measure.meter.price_factors import read_plan

    planned = read_plan(path)
    assert planned.usd_per_mtok > 0
    return planned


PLAN = json.dumps(
    {
        "best": {"replicas": 2, "usd_per_month": 3200.5, "batch": 14.2, "gpu": "L4"},
        "workload": {"rate": 5.0, "input_tokens": 1000.0, "output_tokens": 300.0},
    }
).encode()


def read_metrics(path: Path) -> object:
    from tokonomics.measure.meter.engines import FINDER, prefixes_of, readings_of, samples_of
    from tokonomics.measure.meter.readings import Missed

    try:
        page = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise Missed("the page is not text") from None  # as the scraper says
    samples = samples_of(page, FINDER)
    readings = readings_of(samples, "http://here", 1.7e9, {}, () if samples else prefixes_of(page))
    for reading in readings:
        for series in reading.counters.values():
            assert all(value >= 0 for value in series.values())
    return readings


def pages() -> list[bytes]:
    """Lines that the meter looks for, a few more, and the ranks and engines that large servers have."""
    made = []
    for file in sorted((TESTS / "measure" / "pages").glob("*.prom")):
        lines = file.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("#") and "bucket" not in line][:80]
        made.append("".join(kept).encode())
    ranks = "".join(
        f'sglang:generation_tokens_total{{model_name="m",tp_rank="{rank}",engine="{rank % 2}"}} {rank}.5e3 17\n'
        for rank in range(4)
    )
    return [*made, ranks.encode()]


def read_dcgm(path: Path) -> object:
    from tokonomics.measure.meter.readings import read_dcgm_page

    return read_dcgm_page(path.read_bytes().decode("utf-8", "replace"), 1.7e9)


DCGM = "".join(
    f'{name}{{gpu="0",UUID="GPU-1",modelName="H100",Hostname="node-1",pod="llama-0"}} {value}\n'
    for name, value in (
        ("DCGM_FI_DEV_POWER_USAGE", 350.5),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 7_200_000),
        ("DCGM_FI_DEV_GPU_UTIL", 9223372036854775794),
        ("DCGM_FI_DEV_FB_USED", 100),
    )
).encode()


class _Answers:
    """A session whose every answer is the same body."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    @asynccontextmanager
    async def post(self, url: str, **_: Any) -> Any:
        yield self

    get = post
    status = 200

    @property
    def content(self) -> "_Answers":
        return self

    async def iter_chunked(self, size: int) -> Any:
        yield self.body


def read_prometheus(path: Path) -> object:
    from tokonomics.measure.meter.prometheus_source import PrometheusSource, target_of

    session: Any = _Answers(path.read_bytes())
    source = PrometheusSource("http://here:9090", clock=lambda: 1.7e9)
    source.api.session = session

    async def ask() -> object:
        scrapes = await source._scrapes(300.0, 1.7e9)
        readings = source._reported(scrapes, None, 1.7e9)
        session.body = session.body.replace(b"matrix", b"vector")
        return [readings, {target_of(labels) for labels in await source.api.living("up", 1.7e9)}]

    return asyncio.run(ask())


MATRIX = json.dumps(
    {
        "status": "success",
        "warnings": ["a store did not answer"],
        "data": {
            "resultType": "matrix",
            "result": [
                {
                    "metric": {"__name__": name, "job": "vllm", "instance": "a:8000", "model_name": "m", "engine": "0"},
                    "values": [[1.7e9 - 30, "100"], [1.7e9 - 15, "250.5"], [1.7e9, "NaN"]],
                }
                for name in ("vllm:generation_tokens_total", "vllm:prompt_tokens_total", "vllm:num_requests_running")
            ],
        },
    }
).encode()


def read_stream(path: Path) -> object:
    from tokonomics.measure.bench.client import AnswerStream

    body, stream = path.read_bytes(), AnswerStream()
    step = max(1, len(body) // 7)
    for place, start in enumerate(range(0, len(body), step)):
        stream.feed(body[start : start + step], float(place))
    stream.close()
    for tokens in (stream.input_tokens, stream.output_tokens):
        assert tokens is not None
        assert 0 <= tokens < 2**63
    assert all(gap >= 0 for gap in stream.gaps_s)
    return [list(stream.gaps_s), stream.input_tokens, stream.output_tokens]


STREAM = b"".join(
    b"data: " + json.dumps(each).encode() + b"\n\n"
    for each in (
        {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]},
        {"choices": [{"delta": {"content": "data: hello"}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": "length"}]},
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}},
        {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}},
    )
) + b"data: [DONE]\n\n"  # fmt: skip


def read_refusal(path: Path) -> object:
    """The body of an error: whatever it is, one short line of it is told."""
    from tokonomics.measure.bench.client import BadAnswer, error_text

    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise BadAnswer("not JSON: its text is told as it is") from None
    told = error_text(document)
    assert len(told) <= 160
    assert "\n" not in told
    return told


REFUSALS = [b'{"error": {"message": "no", "code": 400}}', b'{"detail": [1]}']


def read_ledger(path: Path) -> object:
    from tokonomics.measure.meter.ledger import Ledger

    with Ledger(path, read_only=True) as book:
        return [list(book.spans()), book.marks()]


def read_ledger_loads(path: Path) -> object:
    from tokonomics.measure.evidence import is_ledger, runs_of

    is_ledger(path)
    return runs_of(path)


@cache
def ledgers() -> list[bytes]:
    """A book with a busy hour, as SQLite keeps it."""
    import tempfile

    from tokonomics.measure.meter.ledger import Ledger, Mark
    from tokonomics.measure.meter.readings import Counted, Reading
    from tokonomics.measure.meter.spans import SUMS, PaidTime, WatchedSpan
    from tokonomics.measure.meter.state import MeterTally

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "meter.db"
        sums = {**dict.fromkeys(SUMS, 100.0), "seconds": 300.0, "server_s": 300.0, "busy_s": 300.0, "input_cached": 0.0}
        span = PaidTime(
            target="http://a", model="m", engine="vllm", watched=WatchedSpan.seen, usd_per_hour=2.0,
            labels={"pod": "x"},
            start=1.7e9, glimpse=None, **sums,
        )  # fmt: skip
        reading = Reading("http://a", "vllm", "m", 1.7e9, {Counted.output: {"vllm:generation_tokens_total": 7.0}})
        with Ledger(path) as book:
            assert book.record([span], [Mark("http://a", 1.7e9, {"m": reading}, {"m": MeterTally()}, 2.0)]) is None
            book._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            book._db.execute("PRAGMA journal_mode = DELETE")
            book._db.execute("VACUUM")
        return [path.read_bytes()]
