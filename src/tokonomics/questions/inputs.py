"""Declare the inputs that questions share, each once, grouped by subject.

A request takes a group by inheriting it. A field that some questions take once and others several times (one GPU to run
on, several to choose from) is declared in both groups with the same words.
"""

from enum import StrEnum
from typing import Any, ClassVar

from tokonomics.questions.request import (
    NO_LIMIT,
    Kind,
    Number,
    Placement,
    Request,
    Share,
    Switch,
    Table,
    Tables,
    Text,
    Texts,
    Tokens,
    Whole,
    declared,
    saved,
)

A_MODEL = "A name (see `tokonomics models`) or a config.json; or a scenario file."
_MODEL_PLACE: dict[str, Any] = {"kind": Kind.MODEL, "example": "llama-3.1-8b", "metavar": "MODEL | SCENARIO.toml"}
_MODELS = "Names (see `tokonomics models`) or config.json files; or a scenario file."
_MODELS_PLACE = _MODEL_PLACE | {"metavar": "MODEL… | SCENARIO.toml"}
_GPU = "GPU to run it on."
ROUTERS = "How requests find a replica: round-robin, least-outstanding, power-of-two, prefix-aware or session-affine."


class About(StrEnum):
    """The headings of a scenario file, in their order."""

    MODEL = "The model"
    TRAFFIC = "The traffic: made up from a rate and lengths, or a request log"
    TARGETS = "The latency targets"
    HARDWARE = "The hardware"
    PRICES = "The prices"
    ENGINE = "The engine and what is known of your machine"
    CHANGES = "What may be changed"
    ANSWER = "The answer"


class ModelSource(Request, about=About.MODEL):
    """Where to find a model that is not in the catalogue."""

    FIRST: ClassVar[tuple[str, ...]] = ("model",)

    as_family: Text | None = declared(
        "Read a config.json as this `model_type`, whatever it says.",
        key="as",
        without="as it says",
        example="llama",
        rare=True,
    )
    hub: Switch = declared(
        "Look up org/model on the Hugging Face hub: its config.json and the size of its weights.", False, rare=True
    )


class OneModel(ModelSource, about=About.MODEL):
    model: Text = declared(A_MODEL, ..., place=Placement.FIRST, **_MODEL_PLACE)


class SomeModel(ModelSource, about=About.MODEL):
    """The served model, by position or by name; some questions do not need it."""

    model: Text | None = declared(A_MODEL, place=Placement.EITHER, **_MODEL_PLACE)


class SeveralModels(ModelSource, about=About.MODEL):
    """Models to compare."""

    model: Texts = declared(_MODELS, ..., place=Placement.FIRST, **_MODELS_PLACE)


class SomeModels(ModelSource, about=About.MODEL):
    """Models to consider; without any, a question takes all of them."""

    model: Texts | None = declared(
        _MODELS, place=Placement.FIRST, without="every model of the catalogue", **_MODELS_PLACE
    )


class Profiled(Request, about=About.ENGINE):
    profile: Text | None = declared(
        "Predict with a profile of your machine (see calibrate).",
        without="$TOKONOMICS_PROFILE, if set",
        example="h100.json",
        kind=Kind.FILE,
    )


class Parallel(Request, about=About.HARDWARE):
    tp: Whole = declared("Tensor parallelism: GPUs that share each layer.", 1)
    pp: Whole = declared("Pipeline stages: groups of GPUs that share the layers.", 1, rare=True)
    ep: Whole = declared("Expert parallelism: groups of GPUs that share the experts.", 1, rare=True)
    dp: Whole = declared("Data-parallel attention: groups of tp GPUs, each with its own sequences.", 1, rare=True)


class Precisions(Request, about=About.MODEL):
    weights: Text | None = declared("Precision of the weights.", without="the checkpoint's own", example="fp8")
    kv: Text | None = declared(
        "Precision of the KV cache: bf16 or fp8.", without="the checkpoint's own, else bf16", example="bf16"
    )


class OneEngine(Request, about=About.ENGINE):
    engine: Text | None = declared(
        "Serving engine: its rules, limits and own time.",
        without="by GPU",
        example="vllm",
    )


class Layout(Parallel, Precisions, OneEngine):
    """How a model is split over its GPUs, and the engine that serves it."""


class OneGpu(Request, about=About.HARDWARE):
    gpu: Text = declared(_GPU, ..., example="H100")


class SomeGpu(Request, about=About.HARDWARE):
    """The hardware, if a question can do without it."""

    gpu: Text | None = declared(_GPU, example="H100")


class Adapters(Request, about=About.MODEL):
    lora_rank: Whole = declared("Rank of LoRA adapters served beside the base model.", 0, example=16, rare=True)
    lora_adapters: Whole = declared("How many adapters are loaded.", 0, example=10, rare=True)


class RoutedExperts(Request, about=About.TRAFFIC):
    visited_experts: Whole | None = declared(
        "Experts of a layer that the traffic visits at all; with dummy weights perhaps only those of one token.",
        low=1,
        high=100_000,
        without="all, evenly",
        example=8,
        rare=True,
    )


class BatchLimits(Request, about=About.HARDWARE):
    no_prefix_cache: Switch = declared("Compute every prompt in full.", False)
    max_sequences: Whole | None = declared(
        "Sequences at once.", low=1, high=65_536, without="the engine's own", example=256
    )


class Serving(BatchLimits, about=About.HARDWARE):
    timeout: Text | None = declared(
        "Clients hang up after: 30, 500ms, 2m; and try again: 30,retries=2,backoff=5.",
        example="30,retries=2",
        rare=True,
    )
    priority: Switch = declared("Serve by the trace's priorities instead of in order.", False, rare=True)
    max_batched_tokens: Tokens | None = declared(
        "Tokens of one step: 8192, 8k.",
        low=1,
        high=1 << 20,
        without="the engine's own",
        example=8192,
        unit="tokens",
        rare=True,
    )


class Routed(Request, about=About.HARDWARE):
    router: Text = declared(ROUTERS, "least-outstanding", example="least-outstanding", rare=True)


class RouterOrBest(Request, about=About.HARDWARE):
    router: Text | None = declared(
        ROUTERS, without="whichever needs fewest replicas", example="least-outstanding", rare=True
    )


class Objectives(Request, about=About.TARGETS):
    slo: Text | None = declared(
        "Latency targets: ttft_p99=0.5,tpot_p99=50ms; also e2e and job (of sessions), mean and p50 … p99.",
        example="ttft_p99=0.5,tpot_p99=50ms",
    )


class RoomToGrow(Request, about=About.TARGETS):
    headroom: Share | None = declared(
        "Size fleets so that this much more traffic still meets every target: 0.2 or 20%.",
        low=0,
        high=9,
        without="0",
        example="20%",
    )


class Classed(Request, about=About.TARGETS):
    """Classes of service: an SLO, a priority and limits of their own."""

    classes: Tables | None = declared(
        "A class of service: gold,slo=ttft_p99=0.5 and, after commas, tenants=acme/beta or share=20%, priority=0, "
        "max_wait=2, max_queue=9, shed=5%. Repeat it.",
        key="class",
        example=["gold,share=20%,slo=ttft_p99=0.5,priority=0", "batch,slo=e2e_p90=60,priority=1"],
        rare=True,
    )


class Paced(Request, about=About.TRAFFIC):
    rate: Text | None = declared(
        "Requests a second, on average; a log is replayed at this rate.", example=5, unit="requests/s"
    )


class LengthInputs(Request, about=About.TRAFFIC):
    input: Text | None = declared(
        "Mean prompt tokens, spread as in chat: 1500, 2k. Or const:512, sample:sharegpt … (docs/traffic.md).",
        kind=Kind.LENGTHS,
        example=1000,
        unit="tokens",
    )
    output: Text | None = declared(
        "Answer tokens, written the same way.",
        without="pairs of --input's sample",
        kind=Kind.LENGTHS,
        example=300,
        unit="tokens",
    )


class ImageInputs(Request, about=About.TRAFFIC):
    images: Text | None = declared(
        "Images in every prompt, number x width x height; tokens by the model's own rule.",
        example="1x1024x1024",
        rare=True,
    )


class ThinkingInput(Request, about=About.TRAFFIC):
    thinking: Text | None = declared(
        "How much of the output is thinking: a share (0.7) or tokens (2000).",
        without="0.74 of a reasoning model's, else none",
        example="0.7",
        rare=True,
    )


class LogInputs(Request, about=About.TRAFFIC):
    trace: Table | None = declared(
        "Your request log, or a sample such as azure-conv.", kind=Kind.TRACE, example="azure-conv"
    )
    columns: Text | None = declared(
        "Which column of the log is what: arrival=TIME,input=PROMPT,output=ANSWER[,session=…,parent=…].",
        example="arrival=time,input=prompt,output=answer",
    )


class Attributed(Request, about=About.TRAFFIC):
    """Whom the requests of a log belong to."""

    by: Texts | None = declared(
        "Tenants by labels of the log: team, feature, user … (fields, metadata, tags).", example=["team", "feature"]
    )


class Seeded(Request, about=About.TRAFFIC):
    seed: Whole = declared(
        "Seed for everything random: equal seeds give equal traffic.", 0, low=0, high=NO_LIMIT, example=0, rare=True
    )


class TrafficShape(LengthInputs, LogInputs, Seeded, about=About.TRAFFIC):
    """The lengths and the pace of generated requests, or the log that replaces them."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "tokens_per_month", "input", "output", "arrivals", "trace", "columns", "start", "end",
    )  # fmt: skip

    tokens_per_month: Text | None = declared(
        "Instead of --rate: tokens a month, such as 2B.", example="2B", unit="tokens/month"
    )
    arrivals: Text | None = declared(
        "How made-up requests arrive: gamma:2,cv=3, diurnal:5,peak=3 …",
        without="poisson, at --rate",
        example="gamma:5,cv=3",
    )
    start: Text | None = declared("Leave out what arrives before: 600, 10m, 2h.", key="from", example="10m", rare=True)
    end: Text | None = declared("Leave out what arrives from then on.", key="to", example="2h", rare=True)


class Conversations(Request, about=About.TRAFFIC):
    """What generated prompts have in common."""

    system_prompts: Text | None = declared(
        "Shared heads of prompts: 20,tokens=1k,skew=1.", example="20,tokens=1000,skew=1", rare=True
    )
    sessions: Text | None = declared(
        "Sessions, closed loop: turns and pause: 5,think=30,limit=32k; or agent, agent:swe. --rate counts turns.",
        example="5,think=30,limit=32000",
    )


class Traffic(Paced, TrafficShape, Conversations, about=About.TRAFFIC):
    """Requests that are served one by one: a log's window and pace, or generated ones."""

    strict: Switch = declared("Stop at the first row of the log that cannot be used.", False, rare=True)
    sample: Number | None = declared("Keep requests with this probability; prefix reuse falls.", example=0.5, rare=True)
    speed: Number | None = declared("Replay this many times as fast.", example=2)
    requests: Whole | None = declared(
        "Number of requests to generate; of a log the first ones.", without="20,000 with --rate", example=20_000
    )
    duration: Text | None = declared("Generate requests for this long: 90, 10m, 2h, 1d.", example="1h", rare=True)
    tenants: Text | None = declared("Customers of unequal size: 10,skew=1,priorities=0/1/…", example="10,skew=1")
    servegen_model: Text | None = declared(
        "Which model's clients to take, where ServeGen describes several.", example="m-small", rare=True
    )
    servegen_scale: Number | None = declared("Multiply the rate of ServeGen's clients.", example=2, rare=True)

    @property
    def is_made_up(self) -> bool:
        """Tell whether some input says how many requests to generate."""
        return any(value is not None for value in (self.arrivals, self.rate, self.tokens_per_month))


class PlanTargets(Objectives, RoomToGrow, about=About.TARGETS):
    """The latency targets of a plan; a batch has none."""

    offline: Switch = declared("A batch: no latency target, work is fed evenly.", False)


class PlanTraffic(Paced, TrafficShape, PlanTargets):
    """The traffic to plan for, and the latency targets."""

    rate: Text | None = declared(
        "Requests a second, on average; a log is replayed at this rate. Or low:mid:high.", example=5, unit="requests/s"
    )


class GpuPrice(Request, about=About.PRICES):
    usd_per_hour: Number | None = declared(
        "Price of one GPU-hour.", without="the cheapest offer, if there is one", example=2.5, unit="USD/h"
    )


class PriceList(Request, about=About.PRICES):
    offers: Table | None = declared("Your own price list (CSV).", kind=Kind.FILE, example="mine.csv")


class Market(PriceList, about=About.PRICES):
    provider: Texts | None = declared("Only these providers.", example=["aws", "gcp"])
    region: Texts | None = declared(
        "Only there: a region or how it begins, a town, a country, a continent, EU.", example=["EU"]
    )
    exclude: Texts | None = declared("Leave out these providers and GPUs.", example=["yotta", "T4"], rare=True)
    sellers: Texts | None = declared(
        "Only of these: hyperscaler, cloud, marketplace, or all.",
        without="hyperscaler,cloud; a provider that is named, whatever it is",
        example=["hyperscaler"],
        rare=True,
    )
    discount: Texts | None = declared("Your discount at a provider: aws=0.2.", example=["aws=0.2"])


class Priced(GpuPrice, Market):
    """The price of a GPU-hour, given or looked up."""


class OwnedMachine(Request, about=About.PRICES):
    """The user's own machine: its price and its power."""

    gpus: Whole = declared("GPUs in the machine.", 1, low=1, example=8)
    usd_per_kwh: Number | None = declared("Your price of a kilowatt-hour.", example=0.12, unit="USD/kWh")
    host_watts: Number | None = declared(
        "What it draws beside the GPUs; a DGX H100: 4600 of its 10,200.", example=4600, unit="W"
    )
    pue: Number | None = declared(
        "Power of the site over that of the machines.", without="1.58, mean 2023", example=1.3
    )
    purchase_usd: Text | None = declared("Price of the whole machine: 250000, 250k.", example="250k", unit="USD")
    years: Number | None = declared("Over which it is written off.", example=4, unit="years")


class Staffed(Request, about=About.PRICES):
    """People who run the machines, and overheads: on top of the machines' bill."""

    engineers: Number | None = declared("People who run it, such as 0.5.", example=0.5, rare=True)
    engineer_usd_per_month: Text | None = declared(
        "What one of them costs: 15k.", example="15k", unit="USD/month", rare=True
    )
    overhead: Texts | None = declared(
        "Another line of the bill: monitoring=500 ($/month) or network=8% (of the machines).",
        example=["network=5%"],
        rare=True,
    )


class OnGrid(Request, about=About.PRICES):
    grid: Text | None = declared(
        "What a kilowatt-hour emits, grams of CO₂e: 45; or a country: FR.",
        without="the mean of where the machine stands, else of the world",
        example="45",
        unit="g/kWh",
        rare=True,
    )


class MeasuredApis(Request, about=About.PRICES):
    measured: Texts | None = declared(
        "How fast APIs answer: files of `bench --api host:model --save`; repeat.",
        kind=Kind.FILE,
        example=["groq.json"],
        rare=True,
    )


class SomeGpus(Request, about=About.HARDWARE):
    """GPUs to choose from."""

    gpu: Texts | None = declared(
        "Only these GPUs: names with commas, or repeat.", without="all with offers", example=["L40S", "H100"]
    )


class LowestWeights(Request, about=About.MODEL):
    min_weights: Text | None = declared(
        "The fewest bits of the weights: bf16, fp8, int4.", without="fp8, or as published", example="fp8"
    )
    min_recovery: Text | None = declared(
        "Fewer bits only where a score, published or your own, keeps this share of quality.", example="98%", rare=True
    )


class SomePrecisions(Request, about=About.MODEL):
    """Precisions to choose from."""

    weights: Texts | None = declared(
        "Only these precisions of the weights.", without="as published, and fp8", example="fp8"
    )
    kv: Texts | None = declared(
        "Only these precisions of the KV cache.", without="bf16, and the checkpoint's own", example="bf16,fp8"
    )


class Choice(SomeGpus, LowestWeights, SomePrecisions):
    """What a search may choose from."""

    engine: Texts | None = declared("Serving engines, or all.", without="by GPU", example="vllm")


class PriceLimits(Request, about=About.PRICES):
    terms: Texts | None = declared(
        "Only these terms: on_demand, spot, reserved or all.", without="on_demand", example=["on_demand"]
    )
    max_price: Number | None = declared("The most dollars per GPU-hour.", example=4.0, unit="USD/h", rare=True)
    max_age: Whole | None = declared(
        "Take prices up to this many days old.",
        low=0,
        without="a year, and 90 before the newest quote of a GPU",
        example=365,
        unit="days",
        rare=True,
    )


class Spared(Request, about=About.HARDWARE):
    spare: Text | None = declared(
        "Machines that may fail with every target still met; or zone: one zone.", without="0", example="1"
    )


class Reserve(Spared, about=About.HARDWARE):
    max_utilization: Share | None = declared(
        "Load replicas to at most this share.", without="what the targets allow; 0.7 quick", example=0.8, rare=True
    )


class Quick(Request, about=About.ANSWER):
    quick: Switch = declared("Closed form only: means instead of percentiles.", False)


class Selling(Request, about=About.PRICES):
    """What customers pay for tokens."""

    sell: Text | None = declared(
        "What you sell at, dollars per Mtok of input/output, or input/output/cached input: 0.20/0.80/0.05.",
        example="0.20/0.80",
        unit="USD/Mtok",
    )
    margin: Share | None = declared(
        "Or the margin (profit ÷ revenue) that your price shall give: 40%.", low=0, high=0.99, example="40%", rare=True
    )


class Drafting(Request, about=About.CHANGES):
    """Speculative decoding: what drafts, how much, and how much of it is accepted."""

    draft: Text | None = declared(
        "What drafts tokens: mtp (a module of the checkpoint), eagle (a published head), a model, or none.",
        without="none; levers: the smallest of the family",
        kind=Kind.MODEL,
        example="llama-3.2-1b",
        rare=True,
    )
    draft_tokens: Whole | None = declared(
        "Tokens drafted in a round.", low=1, high=16, without="as published, or 3", example=3, unit="tokens", rare=True
    )
    acceptance: Number | None = declared(
        "Chance that a drafted token is accepted.",
        low=0,
        high=1,
        without="as published; levers: 0.65; measure yours",
        example=0.65,
        rare=True,
    )


class TierInputs(Request, about=About.HARDWARE):
    tiers: Text | None = declared(
        "Memories behind the GPU, GB a replica (remote: for all): dram=200,ssd=2000:2.7/1.6@0; : is GB/s into a GPU "
        "(/ written), @ $/GB-hour.",
        without="what machines have left; cache: dram=auto,ssd=auto, the sizes that pay",
        example="dram=200,ssd=2000",
    )


class ContextInput(Request, about=About.MODEL):
    context: Tokens = declared("Tokens each sequence holds: 4096, 32k; for a prompt, its length.", 1024, unit="tokens")


class PlanInputs(PlanTraffic, Choice, PriceLimits, Market):
    """The inputs of every plan: traffic, latency targets, hardware to choose from, and prices."""


class Shown(Request):
    """How an answer is shown, for the command line and scenario files; not part of a question."""

    chart: Text | None = saved("Save a chart: .svg, .png, .html or .json.", "chart.svg")
    html: Text | None = saved("Save a report in one file that opens offline.", "report.html")
    as_json: Switch = declared("Print the result as JSON.", False, key="json", writes=True)
    as_code: Switch = declared("Print the Python that asks the same.", False, writes=True)
