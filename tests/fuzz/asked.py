"""What a question is made of, read from files and flags: models, GPUs, prices, scenarios, traffic; with valid ones.

What a parser gives is also used once, as its first caller does: a value that only breaks later is no value.
"""

import gzip
import io
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


def read_config(path: Path) -> object:
    from tokonomics.catalog.config_json import read_config
    from tokonomics.catalog.layers import Precision

    model = read_config(path)
    assert 0 < model.active_parameters <= model.parameters < 1e18
    assert model.weight_bytes(Precision.bf16) > 0
    assert model.kv_bytes_per_token(Precision.bf16) >= 0
    assert 0 < model.flops_per_token < 1e30
    return model.summary()


def configs() -> list[bytes]:
    """One of each make: grouped, latent, windowed, mixture, recurrent, with a tower, quantised."""
    from tokonomics.catalog.load_models import _our_tables, _with_nulls

    seen: dict[str, bytes] = {}
    for table in _our_tables().values():
        config = _with_nulls(table["config"])
        text = {key: config.get("text_config", {}).get(key) for key in ("model_type",)}
        kind = f"{config['model_type']} {text} {'quantization_config' in config}"
        seen.setdefault(kind, json.dumps(config).encode())
    return list(seen.values())


def read_catalogue(path: Path) -> object:
    from tokonomics.catalog.api_hosts import list_apis
    from tokonomics.catalog.gpus import all_gpus
    from tokonomics.catalog.load_models import all_models

    before = os.environ.get("TOKONOMICS_CATALOG")
    os.environ["TOKONOMICS_CATALOG"] = str(path)
    try:
        # Ours are read with the user's: only what the file changes is looked at.
        models = [model for model in all_models() if model.key == "my-model"]
        gpus = all_gpus()
        assert all(0 < gpu.memory_gb < 1e6 and 0 < gpu.bandwidth_bytes_per_s < 1e18 for gpu in gpus)
        return [models, list(gpus), list_apis(match="openai:gpt-4o")]
    finally:
        os.environ.pop("TOKONOMICS_CATALOG")
        if before is not None:
            os.environ["TOKONOMICS_CATALOG"] = before


CATALOGUE = b"""\
[models.my-model]
name = "My Model"
family = "llama"
aliases = ["mine", "my-model-instruct"]
date = 2026-01-31
source = "us"
extra_parameters = 12

[models.my-model.config]
model_type = "llama"
hidden_size = 4096
num_hidden_layers = 32
num_attention_heads = 32
num_key_value_heads = 8
intermediate_size = 14336
vocab_size = 128256
max_position_embeddings = 8192
rope_scaling = {rope_type = "default"}

[gpus.MyGPU]
name = "My GPU"
aliases = ["mygpu-80"]
architecture = "hopper"
memory_gb = 80
memory_bytes = 85_520_809_984
visible_bytes = 84_974_239_744
bandwidth_bytes_per_s = 3.35e12
flops = { bf16 = 989e12, fp8 = 1979e12 }
fast_link_bytes_per_s = 450e9
fast_link_gpus = 8
pcie_bytes_per_s = 64e9
gpus_per_node = 8
watts = 700
year = 2022
source = "a datasheet"
date = 2026-11-15

[apis."openai:gpt-4o"]
input = 2.0
output = 8.0
cached = 0.5
date = 2026-10-01
[[apis."openai:gpt-4o".tiers]]
above_input_tokens = 200000
input = 4.0
output = 16.0
"""


def read_scenario(path: Path) -> object:
    from tokonomics.questions.catalogue import offers_of
    from tokonomics.questions.deployment import targets_of
    from tokonomics.questions.load import cases_of, load_of
    from tokonomics.questions.requests.buy import PlanRequest
    from tokonomics.questions.scenario import read_request

    made = read_request(path, PlanRequest, "plan")
    for case in cases_of(made).values():
        targets_of(case)
        if case.trace is None:
            loads = load_of(case).workload
            assert 0 < loads.input_tokens < 1e12
            assert 0 < loads.rate < 1e12
        offers_of(case)
    return made


SCENARIOS = [
    b"""model = "llama-3.1-8b"
rate = "2.5:5:10"
input = 1000
output = "lognormal:mean=300,cv=1"
arrivals = "gamma:1,cv=2"
slo = "ttft_p99=0.5,tpot_p99=50ms"
gpu = ["H100", "L4"]
provider = "aws,gcp"
weights = ["bf16", "fp8"]
discount = "aws=0.2"
terms = "on-demand"
max_price = 4.5
spare = 1
seed = 7
""",
    b"""model = ["llama-3.1-8b", "qwen3-8b"]
tokens_per_month = "2B"
input = "sample:sharegpt"
offline = true
engine = "all"
max_utilization = 0.7
max_age = 90
router = "round-robin"
""",
]


def read_offers(path: Path) -> object:
    from tokonomics.catalog.offers import MAX_GPUS, PRICE_FIELDS, read_offers

    offers = read_offers(path)
    for offer in offers:
        assert 1 <= offer.gpus <= MAX_GPUS
        assert any(getattr(offer, field) for field in PRICE_FIELDS)
    return list(offers)


OFFERS = b"""provider,region,instance,gpu,gpus,usd_per_hour,spot_usd_per_hour,vcpus,memory_gb,date,source
aws,us-east-1,p5.48xlarge,H100-SXM,8,55.04,21.5,192,2048,2026-08-22,a page
ours,,rack-7,L4,1,0.7,,,,,
gcp,europe-west4,"a2-highgpu-1g",A100-40GB,1,3.67,1.8,12,85,2026-08-22,"a, b"
"""


def read_skypilot(path: Path) -> object:
    from tokonomics.catalog.feeds import read_vms

    text = path.read_bytes().decode("utf-8", "replace")  # refresh refuses what is not UTF-8 before
    found = [read_vms(provider, text) for provider in ("aws", "gcp", "azure")]
    for quotes, skipped in found:
        assert skipped >= 0
        for quote in quotes:
            assert quote.gpus >= 1
            assert (quote.usd_per_hour or 0) > 0 or (quote.spot_usd_per_hour or 0) > 0
    return found


VMS = b"""InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo
p5.48xlarge,H100,8.0,192.0,2048.0,55.04,21.5,us-east-1,us-east-1a,"{'Gpus': [{'MemoryInfo': {'SizeInMiB': 81920}}]}"
g6.xlarge,L4,1.0,4.0,16.0,0.8,0.3,us-east-1,us-east-1b,
,A100,1.0,,,2.9,1.1,us-central1,us-central1-a,
a2-highgpu-1g,,,12.0,85.0,0.7,0.2,us-central1,us-central1-a,
"""


def read_litellm(path: Path) -> object:
    from tokonomics.catalog.apis import read_litellm

    return read_litellm(path)


LITELLM = json.dumps(
    {
        "sample_spec": {"input_cost_per_token": 0},
        "openai/gpt-4o": {
            "litellm_provider": "openai", "input_cost_per_token": 2.5e-06, "output_cost_per_token": 1e-05,
            "cache_read_input_token_cost": 1.25e-06, "input_cost_per_token_batches": 1.25e-06,
            "output_cost_per_token_batches": 5e-06, "input_cost_per_token_above_200k_tokens": 5e-06,
        },
        "gemini/x": {"input_cost_per_token": 1e-07, "output_cost_per_token": "4e-07"},
    }
).encode()  # fmt: skip


def read_trace(path: Path) -> object:
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.summary import summarize
    from tokonomics.traffic.trace import MOST_TOKENS

    file = open_trace(path)
    trace = file.read()
    assert len(trace) > 0
    assert (trace.arrival_s >= 0).all()
    assert (trace.arrival_s[1:] >= trace.arrival_s[:-1]).all()
    assert 1 <= trace.input_tokens.min() <= trace.input_tokens.max() <= MOST_TOKENS
    assert 0 <= trace.output_tokens.min() <= trace.output_tokens.max() <= MOST_TOKENS
    return [trace, summarize(open_trace(path)).model_dump(mode="json")]


def exported_logs() -> list[bytes]:
    from tests.traffic.exported_logs import LOGS, agent_session, openai_usage

    session = json.dumps(agent_session())
    agents = [session, f"{session}\n{session}\n", json.dumps(agent_session(), indent=1)]
    return [text.encode() for text in (*(make() for make in LOGS.values()), openai_usage(), *agents)]


def read_attributed(path: Path) -> object:
    from tokonomics.traffic.readers import open_trace

    trace = open_trace(path, by=("user",)).read()
    assert trace.tenant is not None
    assert trace.usd is None or ((trace.usd >= 0) & (trace.usd <= 1e6)).all()
    return [trace, read_trace(path)]


def labelled_logs() -> list[bytes]:
    from tests.traffic.exported_logs import LOGS

    return [make().encode() for name, make in LOGS.items() if not name.startswith(("vllm", "sglang"))]


def csv_logs() -> list[bytes]:
    return [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        b"2023-11-16 18:17:04.0319600,110,27\n2023-11-16T18:17:05Z,8,0\n",
        b"arrival_s,input_tokens,output_tokens,tenant,priority,patience_s\n0.0,100,20,a,0,5\n1.5,200,30,b,1,\n9,1,1,,,2\n",
        b"Timestamp\tModel\tRequest tokens\tResponse tokens\n5\tChatGPT\t472\t18\n45\tGPT-4\t100\t50\n",
    ]


def json_logs() -> list[bytes]:
    results = TESTS / "measure" / "results"
    return [
        b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
        b'{"timestamp": 3000, "input_length": 1024, "output_length": 5, "hash_ids": [1, 3]}\n',
        b'[{"arrival_s": 1, "input_tokens": 5, "output_tokens": 6, "tenant": "x"}, '
        b'{"arrival_s": 2, "input_tokens": 5, "output_tokens": 6}]',
        b'{"created": "2026-01-01T00:00:00Z", "usage": {"prompt_tokens": 5, "completion_tokens": 6}, "model": "m"}\n',
        json.dumps({"start_times": [1.5, 2.5], "input_lens": [10, 20], "output_lens": [3, 4]}).encode(),
        (results / "guidellm.json").read_bytes(),
    ]


@cache
def parquet_logs() -> list[bytes]:
    import polars as pl

    tables = [
        pl.DataFrame({"arrival_s": [0.0, 1.0], "input_tokens": [5, 6], "output_tokens": [7, 8]}),
        pl.DataFrame(
            {"arrival_s": [0, 1], "input_tokens": [60, 70], "output_tokens": [7, 8], "tenant": ["a", None]}
            | {"prefix": [[1, 2], [1, 3]], "priority": [0, 1], "patience_s": [1.0, None]}
        ),
    ]
    made = []
    for table in tables:
        for packing in ("uncompressed", "zstd"):
            file = io.BytesIO()
            table.write_parquet(file, compression=packing)
            made.append(file.getvalue())
    return made


def read_columns(path: Path) -> object:
    from tokonomics.traffic.readers import open_trace

    text = path.read_bytes().decode("utf-8", "replace")
    log = path.with_name("log.csv")
    log.write_text("time,in_ms,out,who,key,wait,rank\n1,5,6,a,x,3,0\n2,7,8,b,y,,1\n")
    return open_trace(log, columns=text).read()


COLUMNS = [
    b"arrival=time,input=in_ms,output=out",
    b"arrival=time,input=in_ms,output=out,tenant=who,prefix=key,block=16",
    b"arrival=time,input=in_ms,output=out,patience=wait,priority=rank",
]


def read_servegen(path: Path) -> object:
    """The first half of the input is the table of arrivals, what follows a line of three dashes that of lengths."""
    from tokonomics.traffic.servegen import servegen_trace

    arrivals, _, lengths = path.read_bytes().partition(b"\n---\n")
    path.write_bytes(arrivals)
    path.with_name("lengths.csv").write_bytes(lengths)
    trace = servegen_trace(path, end_s=1200.0)
    assert (trace.input_tokens >= 1).all()
    return trace


SERVEGEN = (
    b"model,client,t_s,rate_rps,cv,family,p1,p2\nm,0,0,0.5,1,Gamma,1.0,9\nm,0,600,0,1,,0,0\nm,1,600,0.2,1,Weibull,0.6,9\n---\n"
    b"model,client,window_start_s,field,p1,p5,p10,p25,p50,p75,p90,p95,p99,p99.9\n"
    b"m,0,0,input_tokens,1,5,10,25,50,75,90,95,99,100\nm,0,0,output_tokens,1,5,10,25,50,75,90,95,99,100\n"
    b"m,1,0,text_tokens,1,5,10,25,50,75,90,95,99,100\nm,1,0,output_tokens,1,5,10,25,50,75,90,95,99,100\n"
)


def read_servegen_folder(path: Path) -> object:
    from tokonomics.traffic.servegen import servegen_trace

    arrivals, _, lengths = path.read_bytes().partition(b"\n---\n")
    folder = path.with_name("chunks.csv.d")
    folder.mkdir(exist_ok=True)
    (folder / "chunk-0-trace.csv").write_bytes(arrivals)
    (folder / "chunk-0-dataset.json").write_bytes(lengths)
    return servegen_trace(folder, end_s=1200.0)


SERVEGEN_FOLDER = (
    b"0,0.5,1.0,Gamma,1.0,2.0\n600,0.2,1.0,Weibull,0.6,2.0\n1200,0,0,,,\n---\n"
    b'{"0": {"input_tokens": "{35: 0.25, 36: 0.75}", "output_tokens": "{5: 1}", "reason_ratio": "{}"}, '
    b'"21600": {"input_tokens": "{}", "output_tokens": "{}"}}'
)


def read_prompts(path: Path) -> object:
    """The first line says under which ending the rest is read."""
    from tokonomics.traffic.prompts import read_pairs, read_prompts

    ending, _, rest = path.read_bytes().partition(b"\n")
    named = {b"txt": "txt", b"csv": "csv", b"jsonl": "jsonl", b"pairs": "csv", b"gz": "jsonl.gz", b"parquet": "parquet"}
    file = path.with_name(f"prompts.{named.get(ending, 'txt')}")
    file.write_bytes(rest)
    return read_pairs(file) if ending == b"pairs" else read_prompts(file)


@cache
def _parquet_prompts() -> bytes:
    import polars as pl

    file = io.BytesIO()
    pl.DataFrame({"prompt": ["hello", None, "world"], "timestamp": [3.0, None, 2.0]}).write_parquet(file)
    return file.getvalue()


def prompt_files() -> list[bytes]:
    lines = b'{"messages": [{"role": "user", "content": "hello"}], "timestamp": 1}\n{"messages": [], "timestamp": 2}\n'
    return [
        b"txt\nhello\nworld\n",
        b'csv\nprompt,arrival_s\nhello,1\n"a, b",2\n',
        b"jsonl\n" + lines,
        b"gz\n" + gzip.compress(lines, mtime=0),
        b"pairs\ntext_a,text_b,label\na,b,1\nc,d,0\n",
        b"parquet\n" + _parquet_prompts(),
    ]


@cache
def _grammars() -> dict[str, tuple[Callable[[str], object], list[str]]]:
    """The small languages of the flags; the last is a path of the page's, with what it may be."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offer_choice import parse_discounts
    from tokonomics.fleet.traffic import parse_demand
    from tokonomics.measure.meter.prometheus_source import matchers
    from tokonomics.measure.meter.scrape import address_of
    from tokonomics.measure.meter.spending import find_offer, parse_labels, parse_prices
    from tokonomics.money.cost import parse_load
    from tokonomics.planner.parsing import amount, dollars, parse_terms, router_from
    from tokonomics.questions.route import parse_scores
    from tokonomics.questions.serving import _autoscale, _outage, timeout_of
    from tokonomics.traffic.arrivals import parse_arrivals
    from tokonomics.traffic.generate import parse_sessions, parse_system, parse_tenants
    from tokonomics.traffic.grammar import span_s
    from tokonomics.traffic.lengths import parse_lengths
    from tokonomics.traffic.slo import parse_slos

    return {
        "arrivals": (
            parse_arrivals,
            [
                "poisson:2", "gamma:2,cv=3", "diurnal:5,peak=3", "burst:100", "onoff:10,on=60,off=300",
                "weekly:5,peak=2,weekend=0.4", "spike:2,to=20,at=600,for=60",
            ],
        ),
        "lengths": (parse_lengths, ["1000", "lognormal:mean=800,cv=1", "uniform:100-900", "sample:sharegpt"]),
        "promises": (parse_slos, ["ttft_p99=0.5,tpot_p99=50ms", "e2e_mean=10s", "ttft=1"]),
        "tenants": (parse_tenants, ["10,skew=1", "3,priorities=0/1/1"]),
        "sessions": (parse_sessions, ["5,think=30,limit=32000"]),
        "system": (parse_system, ["20,tokens=1000,skew=1"]),
        "scores": (
            lambda text: parse_scores([text], [("small",), ("large", "api")]),
            ["small=0.5,large=0.9", "hard/small=0.4,small=ok,api=0.9"],
        ),
        "load": (parse_load, ["12x0.8,12x0.1", "24x1"]),
        "demand": (parse_demand, ["12x20,12x2", "diurnal:5,peak=3"]),
        "terms": (parse_terms, ["spot", "on_demand", "reserved"]),
        "discounts": (lambda text: parse_discounts(text.split(",")), ["aws=0.2,gcp=0.1"]),
        "router": (router_from, ["round-robin"]),
        "amount": (lambda text: amount(text, "x"), ["500M", "1.5e3k", "2000000000"]),
        "dollars": (lambda text: dollars(text, "x"), ["$250,000", "1.2M", "0"]),
        "span": (span_s, ["90", "1.5h", "250ms"]),
        "autoscale": (_autoscale, ["max=8,target=32,cold=120", "min=1,max=4,target=2,cold=0,hold=5"]),
        "outage": (_outage, ["replica=0,at=600,for=300,notice=120,spot=1", "replica=0,at=10"]),
        "timeout": (timeout_of, ["30", "2m"]),
        "labels": (lambda text: parse_labels([text], ["http://gpu2:8000"]), ["team=search", "http://gpu2:8000:team=search"]),
        "prices": (lambda text: parse_prices([text], 1), ["gpu=L4:0.80", "http://gpu2:8000:0.80"]),
        "offer": (find_offer, ["aws:p5.48xlarge"]),
        "matchers": (matchers, ['namespace="prod",job=~"vllm.*"']),
        "address": (address_of, ["http://localhost:8000/v1", "gpu2:8000"]),
        "gpu": (find_gpu, ["NVIDIA H100 80GB HBM3", "l4"]),
    }  # fmt: skip


def read_flag(path: Path) -> object:
    from tokonomics.errors import TokonomicsError

    which, _, rest = path.read_bytes().decode("utf-8", "replace").partition("\n")
    grammars = _grammars()
    if which not in grammars:
        raise TokonomicsError("no such grammar")
    return grammars[which][0](rest)


def flags() -> list[bytes]:
    return [f"{name}\n{text}".encode() for name, (_, texts) in _grammars().items() for text in texts]
