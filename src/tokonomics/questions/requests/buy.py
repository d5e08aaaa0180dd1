"""Define the requests before buying: ``plan``, ``diff``, ``fleet`` … (see ``verbs``)."""

from tokonomics.questions.inputs import (
    Adapters,
    Classed,
    ContextInput,
    Conversations,
    Drafting,
    GpuPrice,
    ImageInputs,
    Layout,
    LengthInputs,
    LogInputs,
    Market,
    MeasuredApis,
    Objectives,
    OneEngine,
    OneGpu,
    OneModel,
    OnGrid,
    OwnedMachine,
    Paced,
    PlanInputs,
    Priced,
    PriceList,
    Profiled,
    Quick,
    Reserve,
    RoomToGrow,
    RoutedExperts,
    RouterOrBest,
    Seeded,
    Selling,
    SeveralModels,
    SomeGpus,
    SomeModel,
    SomeModels,
    SomePrecisions,
    Staffed,
    ThinkingInput,
)
from tokonomics.questions.request import (
    Kind,
    Number,
    Placement,
    Request,
    Share,
    Switch,
    Text,
    Texts,
    Tokens,
    Whole,
    declared,
    saved,
)


class PlanRequest(
    SeveralModels, PlanInputs, Classed, Conversations, ImageInputs, ThinkingInput, Drafting, RouterOrBest, Reserve,
    Selling, Staffed, OnGrid, Quick, Profiled,
):  # fmt: skip
    """
    Every offer, layout and precision is sized by simulation, the cheapest first. Of several models, the pick of each.

    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300
      tokonomics plan llama-3.3-70b --trace azure-conv --slo ttft_p99=1 --spare 1
      tokonomics plan chat.toml --rate 10 --deploy vllm --deploy-to out
      tokonomics plan chat.toml --against proposal.toml
    """

    gpus: Text | None = declared("The most GPUs to pay for; or GPU names, as --gpu.", example=8)
    tiers: Text | None = declared(
        "KV behind the GPUs': host (what machines have left), or what they come with: dram=200@0,ssd=2000@0.",
        example="host",
        rare=True,
    )
    disaggregate: Switch = declared("Allow prefill and decode on replicas of their own.", False)
    beside: Texts | None = declared(
        "Another model on the same GPU or its own: qwen3-8b,rate=0.1[,input=800,output=200,ttft_p99=2]. Repeat it.",
        kind=Kind.TENANT,
        example=["qwen3-8b,rate=0.1"],
    )
    measured: Texts | None = declared(
        "Your own load tests, drawn over the frontier: files of bench, vLLM, SGLang, guidellm and others; repeat.",
        kind=Kind.FILE,
        example=["vllm.json"],
        rare=True,
    )
    own: Switch = declared(
        "A machine of your own, --gpus of one --gpu: every layout on it, with engine flags, as can-run.",
        False,
        rare=True,
    )
    top: Whole | None = declared("Rows to show.", low=1, without="10", example=10)
    why: Switch = declared("Show why the other candidates were rejected.", False)
    explain: Switch = declared("Show energy, sources, words, what flips the choice; slower.", False)
    deploy: Texts | None = declared(
        "The files that start the pick: vllm, kubernetes … (docs/deploy.md)", example=["vllm"]
    )
    deploy_to: Text | None = saved("A folder to save them in.", "out", without="they are printed")
    quote: Text | None = saved("Save a packet for vendors to quote on.", "ask")


class DiffRequest(Request):
    """
    Examples:
      tokonomics plan today.toml --against proposal.toml
      tokonomics plan today.toml --against proposal.toml --markdown > comment.md
      tokonomics plan today.toml --against proposal.toml --format github
    """

    model: Text = declared("A scenario file (TOML).", ..., place=Placement.FIRST, kind=Kind.FILE)
    against: Text = declared(
        "What another scenario file changes, and saves.", ..., place=Placement.FIRST, kind=Kind.FILE, example="b.toml"
    )
    markdown: Switch = declared("Print Markdown, for a pull request.", False)
    format: Text | None = declared("Print a comment for github or gitlab, or json.", example="github")


class FleetRequest(
    SomeModel, Paced, LengthInputs, LogInputs, Objectives, RoomToGrow, SomeGpus, Market, SomePrecisions, OneEngine,
    Seeded, Profiled,
):  # fmt: skip
    """
    Machines are reserved, bought on demand or on spot, hour by hour.

    Examples:
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --slo ttft_p99=1
      tokonomics fleet llama-3.1-70b --trace log.jsonl --slo ttft_p99=2 --no-spot
      tokonomics fleet chat.toml --demand weekly:9,peak=2 --chart fleet.png
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --commit --growth 0:3%:6%
    """

    FIRST = ("model", "demand")

    demand: Text | None = declared(
        "Requests a second over time: 12x20,12x2 (hours × rate) or weekly:5,peak=2.", example="12x20,12x2"
    )
    size_classes: Text | None = declared(
        "Split requests by prompt and answer tokens: 4k or 1k,8k. Large ones may go elsewhere.",
        example="4000",
        rare=True,
    )
    hours: Whole | None = declared(
        "The horizon, at most 744; it repeats.", without="168, or the log's own", example=168, unit="h"
    )
    anywhere: Switch = declared("Mix providers and regions; else all is bought in one region.", False)
    terms: Texts | None = declared(
        "Only these terms: on_demand, spot, reserved or all.", without="all", example=["on_demand"]
    )
    no_spot: Switch = declared("Buy nothing on spot.", False)
    no_reserved: Switch = declared("Commit to nothing for years.", False)
    max_spot_share: Number | None = declared(
        "Firm machines can carry the rest of any hour's demand: 0.5, at least half of it.",
        low=0,
        high=1,
        without="the spot verdict's",
        example=0.5,
    )
    max_zone_share: Number | None = declared(
        "The most of the demand that one spot zone may take with it.",
        low=0,
        high=1,
        without="1; 0 with --no-fallback",
        example=0.5,
        rare=True,
    )
    no_fallback: Switch = declared("Do not buy on demand what a spot market takes back.", False, rare=True)
    interruptions: Text | None = declared(
        "Chance that a spot machine is taken within a month: 0.2; or scarce.",
        without="AWS's own",
        example="0.2",
        rare=True,
    )
    min_replicas: Whole = declared("Firm replicas in every hour.", 0, low=0, high=10_000, rare=True)
    availability: Number | None = declared(
        "Share of time in which what is running carries the demand: 0.9999.", example=0.9999
    )
    startup: Text | None = declared(
        "From ordering a machine to its first answer: 300, 5m.", without="estimated", example="5m"
    )
    gap: Number = declared("Stop when nothing can be cheaper by more than this.", 0.005, low=0, high=0.99, rare=True)
    time_limit: Number = declared("Seconds for the solver.", 30.0, low=0.1, high=3600, unit="s", rare=True)
    no_replay: Switch = declared("Do not try the fleet in the simulator.", False)
    batch_work: Text | None = declared(
        "Work nobody waits for, in the idle hours: 500M (tokens a day), 2B,start=20h,deadline=10h.", example="500M"
    )
    commit: Switch = declared("What to reserve, for how long, in which steps: demand and prices may change.", False)
    growth: Text | None = declared(
        "With --commit: how the demand grows a month: 3%; or low:mid:high.", without="none", example="0:3%:6%"
    )
    growth_noise: Share | None = declared(
        "With --commit: standard deviation of a month's demand about its trend: 10%.",
        without="none",
        example="10%",
        rare=True,
    )
    horizon: Whole | None = declared(
        "With --commit: months to look ahead.", low=2, high=120, without="36", example=24, unit="months", rare=True
    )
    commit_price: Text | None = declared(
        "With --commit: your quotes, USD per GPU-hour of the machine chosen: 1y=1.9,3y=1.5; 6m is six months.",
        without="what offers quote",
        example="1y=1.9,3y=1.5",
        rare=True,
    )
    caution: Number | None = declared(
        "With --commit: 0, the lowest mean bill; 1, the lowest mean of its worst tenth.",
        low=0,
        high=1,
        without="0",
        example=0.5,
        rare=True,
    )
    scaling: Switch = declared("Ways to follow a day's traffic: fixed, reactive, predictive, in the simulator.", False)
    scaling_room: Number | None = declared(
        "With --scaling: room above the peak, the target and the forecast, such as 0.2.",
        low=-0.9,
        high=10,
        without="what met the SLO the day before, and a step more",
        example=0.2,
        rare=True,
    )


class BreakevenRequest(SomeModel, PlanInputs, Reserve, Staffed, MeasuredApis, Quick, Profiled):
    """
    Whole machines are compared with a price per token.

    Examples:
      tokonomics breakeven llama-3.3-70b --input 1000 --output 300 --slo ttft_p99=1
      tokonomics breakeven chat.toml --api openai:gpt-4o --chart breakeven.png
      tokonomics breakeven chat.toml --engineers 0.5 --engineer-usd-per-month 15k
    """

    FIRST = ("model", "api")

    api: Texts | None = declared(
        "host:model as in `tokonomics apis`; with commas, or repeat.",
        without="every host of the model, the cheapest first",
        example=["groq:llama-3.3-70b-versatile"],
    )
    cached_share: Number | None = declared(
        "Share of every prompt that all have in common: the host's cached price, our cache.",
        without="0, or what the log repeats",
        example=0.3,
    )
    batch_api: Switch = declared("The hosts' batch prices as well (answers within a day).", False)
    replica_tokens_per_second: Number | None = declared(
        "Instead of planning: what one replica of yours makes, in and out.", example=2400, unit="tokens/s"
    )
    usd_per_hour: Number | None = declared("With --replica-tokens-per-second: one GPU.", example=2.5, unit="USD/h")
    replica_gpus: Whole = declared("With --replica-tokens-per-second: GPUs of a replica.", 1, low=1, rare=True)


class OwnHardwareRequest(OwnedMachine, PriceList):
    """
    Depreciation, power and people, as an offer for every other verb. It needs the GPU, the price of the machine, its
    years, the price of a kilowatt-hour and the watts of the host.

    Examples:
      tokonomics cost --gpu H100 --gpus 8 --purchase-usd 250k --years 4 --usd-per-kwh 0.12 --host-watts 4600
      tokonomics cost --gpu L40S --purchase-usd 15k --years 5 --usd-per-kwh 0.2 --host-watts 300 --save mine.csv
      tokonomics cost server.toml --purchase-usd 250k --residual 10% --cost-of-capital 8%
    """

    FIRST = ("gpu", "purchase_usd", "years", "usd_per_kwh", "host_watts", "gpus", "pue")

    gpu: Text | None = declared("Which GPU the machine has.", example="H100")
    gpu_load: Share | None = declared(
        "Share of its watts a GPU draws.", without="1, the datasheet's limit", example=0.9, rare=True
    )
    residual: Share | None = declared("Share of the price it still sells for: 0.1 or 10%.", example="10%")
    cost_of_capital: Share | None = declared("A year: 0.08 or 8%.", example="8%")
    hosting_usd_per_month: Text | None = declared(
        "Space, or a colocation's fee.", example="600", unit="USD/month", rare=True
    )
    maintenance: Share | None = declared("Share of the price a year: 0.05 or 5%.", example="5%", rare=True)
    staff_usd_per_year: Text | None = declared(
        "People, for this machine: 60k.", example="60k", unit="USD/year", rare=True
    )
    memory_gb: Number | None = declared(
        "The host's memory: checked against weights.", low=1, example=2000, unit="GB", rare=True
    )
    save: Text | None = saved("Save it as a price list for --offers: mine.csv.", "mine.csv")


class CanRunRequest(SomeModels, OneGpu, Objectives, SomePrecisions, OneEngine, OwnedMachine, Profiled):
    """
    Which models fit, at what precision, how fast, for how many users, and what a million tokens costs in electricity.
    A user is one answer being written, with its context full, at the pace that the SLO asks for. Of models that are
    named, every layout is listed with its engine flags: TP, PP, EP and data-parallel attention.

    Examples:
      tokonomics can-run --gpu RTX3090 --gpus 2
      tokonomics can-run deepseek-v3 --gpu H200 --gpus 8 --slo tpot=50ms
      tokonomics can-run --gpu RTX3090 --usd-per-kwh 0.3 --host-watts 150
      tokonomics can-run server.toml --gpu H100
    """

    FIRST = ("model", "gpu", "gpus", "context", "slo")

    pue: Number | None = declared("Power of the site over that of the machine.", without="1, as on a desk", example=1.3)

    context: Tokens = declared("Tokens of one sequence, prompt and answer: 4096, 32k.", 4096, unit="tokens")


class CompareRequest(SeveralModels, PlanInputs, Conversations, MeasuredApis, Profiled):
    """
    Dollars per million tokens under the same traffic and latency targets.

    Examples:
      tokonomics plan llama-3.1-8b llama-3.3-70b --by-gpu --gpu L4,A100,H100 --rate 20 --input 1000 --output 300
      tokonomics plan llama-3.1-8b qwen3-8b --by-gpu --rate 20 --input 1000 --output 300 --slo tpot_p99=50ms --simulate
      tokonomics plan chat.toml llama-3.1-8b qwen3-8b --by-gpu --quality llama-3.1-8b=0.66,qwen3-8b=0.7
    """

    quality: Texts | None = declared(
        "Your score of each model: llama-3.1-8b=0.66,llama-3.3-70b=0.86.", example=["llama-3.1-8b=0.66"]
    )
    simulate: Switch = declared("Size every pair by simulation; slower.", False)


class FitRequest(OneModel, OneGpu, Layout, Adapters, Profiled):
    """
    Examples:
      tokonomics predict llama-3.1-70b --fit --gpu H100 --tp 4
      tokonomics predict ./config.json --fit --gpu L40S --weights fp8 --kv fp8 --context 16384
      tokonomics predict chat.toml --fit --gpu L40S
    """

    FIRST = ("model", "gpu", "context")

    context: Tokens = declared("Tokens of one sequence, prompt and answer: 4096, 32k.", 4096, unit="tokens")


class PredictRequest(
    OneModel, OneGpu, Layout, Adapters, ContextInput, ImageInputs, ThinkingInput, RoutedExperts, Profiled
):
    """
    Each time has an interval, and the parts that it is made of.

    Examples:
      tokonomics predict llama-3.1-8b --gpu H200 --batch 64 --context 1024
      tokonomics predict llama-3.1-70b --gpu H100 --tp 4 --fit
      tokonomics predict llama-2-7b --gpu H100 --curve --slo tpot=20ms
      tokonomics predict chat.toml --batch 16
    """

    FIRST = ("model", "gpu", "batch", "context")

    batch: Whole = declared("Sequences running at once.", 1, low=1, high=10**6)


class CurveRequest(OneModel, OneGpu, Layout, Adapters, ContextInput, Objectives, Priced, RoutedExperts, Profiled):
    """
    Throughput, time per token and price, up to the batch that the KV cache holds.

    Examples:
      tokonomics predict llama-2-7b --curve --gpu H100 --context 1024 --slo tpot=20ms
      tokonomics predict llama-3.1-70b --curve --gpu H100 --tp 4 --context 4096 --chart curve.svg
      tokonomics predict chat.toml --curve --kv fp8
    """

    FIRST = ("model", "gpu", "context")


class CostRequest(GpuPrice, LengthInputs, PriceList):
    """
    Takes speed and utilisation as given. Not known yet? These work out both, and the price:
    tokonomics simulate llama-3.1-8b --gpu H100 --rate 5 --input 1000 --output 300
    tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300

    Examples:
      tokonomics cost --usd-per-hour 2.21 --gpus 4 --tokens-per-second 2400 --utilization 0.7
      tokonomics cost --gpu H100 --tokens-per-second 4800 --load 8x0.99,16x0 --load 24x0.7
      tokonomics cost --gpu H100 --purchase-usd 30k --years 4 --usd-per-kwh 0.12 --host-watts 600
      tokonomics cost chat.toml --tokens-per-second 4800
    """

    FIRST = ("tokens_per_second", "usd_per_hour", "gpu", "gpus")

    tokens_per_second: Number = declared(
        "Tokens a second of all GPUs together, at full speed.", ..., example=2400, unit="tokens/s"
    )
    gpu: Text | None = declared("GPU whose cheapest offer is the price instead.", example="H100")
    gpus: Whole = declared("Number of GPUs.", 1, example=8)
    utilization: Share | None = declared("Share of full speed really produced, 0 to 1.", without="1", example=0.5)
    load: Texts | None = declared(
        "A load profile instead: HOURSxUTILIZATION,… such as 8x0.99,16x0. Repeat to compare.", example=["8x0.99,16x0"]
    )
    target: Number | None = declared(
        "Also: what it takes to reach this many dollars per Mtok.", example=0.2, unit="USD/Mtok"
    )
