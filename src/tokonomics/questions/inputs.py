"""The inputs that questions share, each declared once and grouped by what they are about.

A request takes a group by inheriting it. A field that some questions take once and others several times (one GPU to run
on, several to choose from) is declared in both groups with the same words.
"""

from typing import Any, ClassVar

from tokonomics.questions.request import (
    NO_LIMIT,
    Kind,
    Number,
    Placement,
    Request,
    Switch,
    Table,
    Text,
    Texts,
    Whole,
    declared,
)

_MODEL = "A name (see `tokonomics models`) or a config.json; or a scenario file."
_MODEL_PLACE: dict[str, Any] = {"kind": Kind.MODEL, "example": "llama-3.1-8b", "metavar": "MODEL | SCENARIO.toml"}
_GPU = "GPU to run it on."
_ROUTERS = "How requests find a replica: round-robin, least-outstanding, power-of-two or prefix-aware."


class OneModel(Request):
    """The model that is served."""

    model: Text = declared(..., _MODEL, place=Placement.FIRST, **_MODEL_PLACE)


class SomeModel(Request):
    """The model that is served, by position or by name; some questions can do without."""

    model: Text | None = declared(None, _MODEL, place=Placement.EITHER, **_MODEL_PLACE)


class SeveralModels(Request):
    """Models to compare."""

    model: Texts = declared(
        ...,
        "Names (see `tokonomics models`) or config.json files; or a scenario file.",
        place=Placement.FIRST,
        kind=Kind.MODEL,
        example="llama-3.1-8b",
        metavar="MODEL… | SCENARIO.toml",
    )


class Profiled(Request):
    """The profile that is predicted with."""

    profile: Text | None = declared(
        None,
        "Predict with a profile of your machine (see probe, calibrate).",
        without="$TOKONOMICS_PROFILE, if set",
        example="h100.json",
        kind=Kind.FILE,
    )


class Parallel(Request):
    """How a model lies on its GPUs."""

    tp: Whole = declared(1, "Tensor parallelism: GPUs that share each layer.")
    pp: Whole = declared(1, "Pipeline stages: groups of GPUs that share the layers.")
    ep: Whole = declared(1, "Expert parallelism: groups of GPUs that share the experts.")


class Precisions(Request):
    """What weights and KV cache are held in."""

    weights: Text | None = declared(None, "Precision of the weights.", without="the checkpoint's own", example="fp8")
    kv: Text = declared("bf16", "Precision of the KV cache: bf16 or fp8.", example="bf16")


class OneEngine(Request):
    """What serves it."""

    engine: Text = declared("vllm", "Serving engine: its rules, limits and own time.", example="vllm")


class Layout(Parallel, Precisions, OneEngine):
    """How a model lies on its GPUs, and what serves it."""


class OneGpu(Request):
    """The hardware that a deployment stands on."""

    gpu: Text = declared(..., _GPU, example="H100")


class SomeGpu(Request):
    """The hardware, where a question can do without."""

    gpu: Text | None = declared(None, _GPU, example="H100")


class Adapters(Request):
    """LoRA adapters beside the base model."""

    lora_rank: Whole = declared(0, "Rank of LoRA adapters served beside the base model.", example=16)
    lora_adapters: Whole = declared(0, "How many adapters are loaded.", example=10)


class BatchLimits(Request):
    """What one replica takes at once, and whether it keeps prefixes."""

    no_prefix_cache: Switch = declared(False, "Compute every prompt in full.")
    max_sequences: Whole | None = declared(
        None, "Sequences at once.", low=1, high=65_536, without="the engine's own", example=256
    )


class Serving(BatchLimits):
    """How requests are taken and given up."""

    timeout: Text | None = declared(None, "Clients hang up after: 30, 500ms, 2m.", example="30")
    priority: Switch = declared(False, "Serve by the trace's priorities instead of in order.")
    max_batched_tokens: Whole | None = declared(
        None, "Tokens of one step.", low=1, high=1 << 20, without="the engine's own", example=8192
    )


class Routed(Request):
    """How requests find a replica."""

    router: Text = declared("least-outstanding", _ROUTERS, example="least-outstanding")


class Objectives(Request):
    """The latency targets."""

    slo: Text | None = declared(
        None,
        "Latency targets: ttft_p99=0.5,tpot_p99=50ms,e2e_p90=20 (p50 … p99, mean).",
        example="ttft_p99=0.5,tpot_p99=50ms",
    )


class Paced(Request):
    """How many requests arrive."""

    rate: Text | None = declared(None, "Requests a second, on average; a log is replayed at this rate.", example=5)


class LengthInputs(Request):
    """How long prompts and answers are."""

    input: Text | None = declared(
        None,
        "Prompt tokens: 512, lognormal:mean=800,p99=6000, uniform:100-900, sample:sharegpt.",
        kind=Kind.LENGTHS,
        example=1000,
    )
    output: Text | None = declared(
        None, "Answer tokens, likewise.", without="pairs of --input's sample", kind=Kind.LENGTHS, example=300
    )


class LogInputs(Request):
    """A request log."""

    trace: Table | None = declared(
        None,
        "Your request log, or a sample such as azure-conv (docs/traffic.md).",
        kind=Kind.TRACE,
        example="azure-conv",
    )
    columns: Text | None = declared(
        None,
        "Which column of the log is what: arrival=TIME,input=PROMPT_TOKENS,output=ANSWER_TOKENS.",
        example="arrival=time,input=prompt,output=answer",
    )


class Seeded(Request):
    """What is random, and comes out the same."""

    seed: Whole = declared(0, "Of everything random: equal seeds give equal traffic.", low=0, high=NO_LIMIT, example=0)


class TrafficShape(LengthInputs, LogInputs, Seeded):
    """The lengths and the pace of requests that are made up, and the log that takes their place."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "tokens_per_month",
        "input",
        "output",
        "arrivals",
        "trace",
        "columns",
        "start",
        "end",
    )

    tokens_per_month: Text | None = declared(
        None, "Instead of --rate: prompt and answer tokens a month, such as 2B.", example="2B"
    )
    arrivals: Text | None = declared(
        None,
        "How made-up requests arrive: gamma:2,cv=3, diurnal:5,peak=3 … (docs/traffic.md)",
        without="poisson, at --rate",
        example="gamma:5,cv=3",
    )
    start: Text | None = declared(None, "Leave out what arrives before: 600, 10m, 2h.", key="from", example="10m")
    end: Text | None = declared(None, "Leave out what arrives from then on.", key="to", example="2h")


class Traffic(Paced, TrafficShape):
    """Requests that are served one by one: a log's window and pace, or made-up ones."""

    strict: Switch = declared(False, "Stop at the first row of the log that cannot be used.")
    sample: Number | None = declared(None, "Keep requests with this probability; prefix reuse falls.", example=0.5)
    speed: Number | None = declared(None, "Replay so many times as fast.", example=2)
    requests: Whole | None = declared(
        None, "Number of requests to generate; of a log the first ones.", without="20,000 with --rate", example=20_000
    )
    duration: Text | None = declared(None, "Generate requests for so long: 90, 10m, 2h, 1d.", example="1h")
    system_prompts: Text | None = declared(
        None, "Shared heads of prompts: 20,tokens=1000,skew=1.", example="20,tokens=1000,skew=1"
    )
    sessions: Text | None = declared(
        None, "Conversations: mean turns, think time: 5,think=30,limit=32000.", example="5,think=30,limit=32000"
    )
    tenants: Text | None = declared(None, "Customers of unequal size: 10,skew=1,priorities=0/1/…", example="10,skew=1")
    servegen_model: Text | None = declared(
        None, "Of ServeGen's clients: whose, where it describes several models.", example="m-small"
    )
    servegen_scale: Number | None = declared(None, "Of ServeGen's clients: so many times their rate.", example=2)

    @property
    def is_made_up(self) -> bool:
        """Something says how many requests to make."""
        return any(value is not None for value in (self.arrivals, self.rate, self.tokens_per_month))


class PlanTraffic(Paced, TrafficShape, Objectives):
    """The traffic that is planned for, and the latency targets."""

    rate: Text | None = declared(
        None,
        "Requests a second, on average; a log is replayed at this rate. Or low:mid:high.",
        example=5,
    )
    offline: Switch = declared(False, "A batch: no latency target, work is fed evenly.")


class GpuPrice(Request):
    """The price of a GPU-hour, given."""

    usd_per_hour: Number | None = declared(
        None, "Price of one GPU-hour.", without="the cheapest offer, if there is one", example=2.5
    )


class PriceList(Request):
    """Where prices are looked up."""

    offers: Table | None = declared(
        None, "Your own price list (CSV) instead of the shipped one.", kind=Kind.FILE, example="mine.csv"
    )


class Market(PriceList):
    """Whose prices count."""

    provider: Texts | None = declared(None, "Only these providers.", example=["aws", "gcp"])
    region: Texts | None = declared(
        None, "Only these regions: us-east-1, or us for all of them.", example=["us-east-1"]
    )
    discount: Texts | None = declared(None, "Your discount at a provider: aws=0.2.", example=["aws=0.2"])


class Priced(GpuPrice, Market):
    """The price of a GPU-hour, given or looked up."""


class SomeGpus(Request):
    """GPUs to choose from."""

    gpu: Texts | None = declared(
        None,
        "Only these GPUs: names with commas, or repeat.",
        without="all with offers",
        example=["L40S", "H100"],
    )


class LowestWeights(Request):
    """How far weights may be quantised."""

    min_weights: Text | None = declared(None, "No precision of the weights below this one, such as fp8.", example="fp8")


class Choice(SomeGpus, LowestWeights):
    """What a search may choose from."""

    weights: Texts | None = declared(
        None, "Only these precisions of the weights.", without="all that it can have", example="fp8"
    )
    kv: Texts | None = declared(None, "Only these precisions of the KV cache.", without="bf16,fp8", example="bf16")
    engine: Texts | None = declared(None, "Serving engines, or all.", without="vllm", example="vllm")
    terms: Texts | None = declared(
        None, "Only these terms: on_demand, spot, reserved or all.", without="on_demand", example=["on_demand"]
    )
    max_price: Number | None = declared(None, "The most dollars per GPU-hour.", example=4.0)
    max_age: Whole | None = declared(
        None, "Leave out prices older than this many days.", low=0, without="365", example=365
    )


class Spared(Request):
    """What may fail."""

    spare: Whole | None = declared(
        None, "Replicas that may fail with every target still met.", low=0, high=1000, without="0", example=1
    )


class Reserve(Spared):
    """What is kept free."""

    max_utilization: Number | None = declared(
        None,
        "Load replicas to at most this share.",
        without="what the targets allow; 0.7 quick",
        example=0.8,
    )


class Quick(Request):
    """Whether simulation is left out."""

    quick: Switch = declared(False, "Closed form only: means instead of percentiles.")


TIERS = "Memories behind the GPU, GB a replica (remote: for all): dram=200,ssd=2000@0; @ is $/GB-hour."
ANY_ROUTER = _ROUTERS


class Shown(Request):
    """How an answer is shown: of the command line and of scenario files, not of a question."""

    chart: Text | None = declared(
        None, "Save a chart: .svg, .png, .html or .json.", kind=Kind.FILE, writes=True, example="chart.svg"
    )
    html: Text | None = declared(
        None,
        "Save a report in one file: figures, charts, inputs; opens offline.",
        kind=Kind.FILE,
        writes=True,
        example="report.html",
    )
    as_json: Switch = declared(False, "Print the result as JSON.", key="json", writes=True)
