"""InferenceX (was InferenceMAX) ``agg_*.json``: one flat object a load, figures per GPU, latencies in seconds.

Throughput is per GPU that makes it: with disaggregated prefill/decode, prompts per prefill GPU and answers per decode
GPU. Lengths are nominal: requests are drawn from 80 to 100 % of them. ``*_intvty`` is 1 ÷ TPOT and not read.
"""

from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint, Stated
from tokonomics.measure.importers.fields import ResultFields, named_latencies
from tokonomics.measure.measurements import INFERENCEX_LENGTHS

NAME = "InferenceX agg"


def matches(document: Any) -> bool:
    return isinstance(document, dict) and {"hw", "tput_per_gpu", "conc"} <= document.keys()


def read(documents: list[Any], where: str) -> BenchmarkRun:
    """Several objects are several loads of one set-up."""
    loads = [ResultFields(document, where, f"[{at}]") for at, document in enumerate(documents)]
    setups = {(load.text("model"), _stated(load)) for load in loads}
    if len(setups) > 1:
        shown = ", ".join(sorted(f"{model} on {stated.gpus}×{stated.gpu}" for model, stated in setups)[:4])
        fix = "Import the loads of one set-up at a time."
        raise BadInput(f"holds {len(setups)} set-ups ({shown} …)", where=where, fix=fix)
    model, stated = setups.pop()
    return BenchmarkRun(tool="InferenceX", model=model, stated=stated, points=tuple(_point(load) for load in loads))


def _gpus(load: ResultFields) -> tuple[int, int, int]:
    """All of them, those for prefill, those for decode."""
    prefill, decode = load.maybe_count("num_prefill_gpu") or 0, load.maybe_count("num_decode_gpu") or 0
    total = prefill + decode or (load.maybe_count("tp") or 1) * (load.maybe_count("pp") or 1)
    return total, prefill or total, decode or total


def _stated(load: ResultFields) -> Stated:
    apart = load.values.get("disagg") in (True, "true", "True")
    engine = load.text("framework")
    split = {name: load.maybe_count(name) or None for name in ("tp", "pp", "ep")}
    if load.values.get("dp_attention") in (True, "true", "True") and not apart and split["tp"]:
        # Its "tp" are the GPUs of the replica then: each attends for itself, and all share the experts.
        split |= {"tp": 1, "ep": split["tp"], "dp": split["tp"]}
    return Stated(
        gpu=(load.text("hw") or "").split("-")[0] or None, gpus=_gpus(load)[0], **split,
        engine=f"{engine} disagg" if apart else engine, weights=load.text("precision"), tuned=True,
    )  # fmt: skip


def _point(load: ResultFields) -> LoadPoint:
    total_gpus, prefill_gpus, decode_gpus = _gpus(load)
    input_tokens, output_tokens = (load.positive(name) * INFERENCEX_LENGTHS for name in ("isl", "osl"))
    if "output_tput_per_gpu" in load:
        out = load.positive("output_tput_per_gpu") * decode_gpus
    else:
        out = load.positive("tput_per_gpu") * total_gpus * output_tokens / (input_tokens + output_tokens)
    into = load.positive("tput_per_gpu") * total_gpus - out
    if "input_tput_per_gpu" in load:
        into = load.positive("input_tput_per_gpu") * prefill_gpus
    if not into > 0:
        raise load.wrong("output_tput_per_gpu", "is more than tput_per_gpu, which counts prompts and answers")
    return LoadPoint(
        concurrency=load.count("conc"), requests_per_s=out / output_tokens, input_tokens_per_s=into,
        output_tokens_per_s=out, mean_input_tokens=input_tokens, mean_output_tokens=output_tokens,
        length_spread=1 / INFERENCEX_LENGTHS - 1, **named_latencies(load, "{}_{}", 1.0, e2e="e2el"),
        notes=("lengths are nominal × 0.9: requests are drawn from 80 to 100 %",),
    )  # fmt: skip
