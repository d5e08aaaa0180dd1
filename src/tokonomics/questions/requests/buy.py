"""What is asked before one buys: ``plan``, ``diff``, ``fleet`` … (see ``verbs``)."""

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
    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms
      tokonomics plan llama-3.3-70b --trace azure-conv --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8 --spare 1
      tokonomics plan llama-3.1-8b qwen3-8b gemma-2-9b --tokens-per-month 2B --input 500 --output 200
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --provider aws,gcp --why --explain
      tokonomics plan qwen3-30b-a3b --rate 10:20:40 --input 500 --output 200 --provider aws --discount aws=0.2
      tokonomics plan qwen3-vl-8b --rate 5 --images 1x1024x1024 --input 200 --output 300 --slo ttft_p99=1
      tokonomics plan bge-m3 --rate 200 --input 400 --slo ttft_p99=0.2
      tokonomics plan llama-3.1-8b --rate 0.2 --input 1000 --output 300 --beside qwen3-8b,rate=0.1 --slo ttft_p99=2
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --sell 0.20/0.80
      tokonomics plan deepseek-v3 --gpu H200 --gpus 8 --own --slo tpot=50ms
      tokonomics plan chat.toml --engineers 0.5 --engineer-usd-per-month 15k --grid FR
      tokonomics plan chat.toml --rate 10 --deploy vllm,kubernetes --deploy-to out
      tokonomics plan llama-3.3-70b --rate 5 --input 900 --output 300 --deploy llm-d,keda
    """

    gpus: Text | None = declared("The most GPUs to pay for; or GPU names, as --gpu.", example=8)
    tiers: Text | None = declared(
        "KV behind the GPUs': host (what machines have left), or what they come with: dram=200@0,ssd=2000@0.",
        example="host",
    )
    disaggregate: Switch = declared("Prefill and decode on replicas of their own may be the pick.", False)
    beside: Texts | None = declared(
        "Another model and its traffic, on the same GPU or its own: qwen3-8b,rate=0.1,input=800,output=200,ttft_p99=2; "
        "repeat for more.",
        kind=Kind.TENANT,
        example=["qwen3-8b,rate=0.1"],
    )
    measured: Texts | None = declared(
        "Your own load tests, drawn over the frontier: files of bench, vLLM, SGLang, guidellm and others; repeat.",
        kind=Kind.FILE,
        example=["vllm.json"],
    )
    own: Switch = declared(
        "A machine of your own, --gpus of one --gpu: every layout on it, with engine flags, as can-run.",
        False,
    )
    top: Whole | None = declared("Rows to show.", low=1, without="10; all with --json", example=10)
    why: Switch = declared("Show why the other candidates were rejected.", False)
    explain: Switch = declared(
        "Show energy, sources, what each word means, what would flip the choice and what moves the bill; slower.", False
    )
    deploy: Texts | None = declared(
        "The files that start the pick: vllm, sglang, skypilot, kubernetes, keda, llm-d, kserve, dynamo, "
        "production-stack, dstack, compose.",
        example=["vllm"],
    )
    deploy_to: Text | None = saved("A folder to save them in.", "out", without="they are printed")


class DiffRequest(Request):
    """
    Examples:
      tokonomics diff today.toml proposal.toml
      tokonomics diff today.toml proposal.toml --markdown > comment.md
      tokonomics diff today.toml proposal.toml --format github
    """

    before: Text = declared("A scenario file (TOML).", ..., place=Placement.FIRST, kind=Kind.FILE)
    after: Text = declared("The changed one.", ..., place=Placement.FIRST, kind=Kind.FILE)
    markdown: Switch = declared("Print Markdown, for a pull request.", False)
    format: Text | None = declared(
        "Print a comment for github or gitlab, or json: the figures and the comment.", example="github"
    )


class FleetRequest(
    SomeModel, Paced, LengthInputs, LogInputs, Objectives, SomeGpus, Market, SomePrecisions, OneEngine, Seeded, Profiled
):
    """
    Examples:
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=50ms
      tokonomics fleet llama-3.1-8b --demand weekly:9,peak=2 --input 900 --output 99 --slo ttft_p99=1 --chart fleet.png
      tokonomics fleet llama-3.1-70b --trace log.jsonl --slo ttft_p99=2,tpot_p99=60ms --size-classes 4000 --no-spot
      tokonomics fleet llama-3.1-8b --trace azure-conv --slo tpot_p99=50ms --provider aws --availability 0.999999
      tokonomics fleet llama-3.1-8b --demand diurnal:9 --hours 24 --input 900 --output 99 --slo ttft_p99=1 --scaling
      tokonomics fleet llama-3.1-8b --demand 12x20,12x2 --input 900 --output 99 --slo ttft_p99=1 --batch-work 500M
      tokonomics fleet chat.toml --demand weekly:9,peak=2
    """

    FIRST = ("model", "demand")

    demand: Text | None = declared(
        "Requests a second over time: 12x20,12x2 (hours × rate) or weekly:5,peak=2.", example="12x20,12x2"
    )
    size_classes: Text | None = declared(
        "Split requests by prompt and answer tokens: 4k or 1k,8k. Large ones may go elsewhere.", example="4000"
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
        without="1; 0 where it is not bought again",
        example=0.5,
    )
    no_fallback: Switch = declared("Do not buy on demand what a spot market takes back.", False)
    interruptions: Text | None = declared(
        "Chance that a spot machine is taken within a month: 0.2; or scarce.", without="AWS's own", example="0.2"
    )
    min_replicas: Whole = declared("Firm replicas in every hour.", 0, low=0, high=10_000)
    availability: Number | None = declared(
        "Share of time in which what is running carries the demand: 0.9999.", example=0.9999
    )
    startup: Text | None = declared(
        "From ordering a machine to its first answer: 300, 5m.", without="estimated", example="5m"
    )
    gap: Number = declared("Stop when nothing can be cheaper by more than this.", 0.005, low=0, high=0.99)
    time_limit: Number = declared("Seconds for the solver.", 30.0, low=0.1, high=3600, unit="s")
    no_replay: Switch = declared("Do not try the fleet in the simulator.", False)
    batch_work: Text | None = declared(
        "Work nobody waits for, in the idle hours: 500M (tokens a day), 2B,start=20h,deadline=10h.", example="500M"
    )
    scaling: Switch = declared("Ways to follow a day's traffic: fixed, reactive, predictive, in the simulator.", False)
    scaling_room: Number | None = declared(
        "With --scaling: room above the peak, the target and the forecast, such as 0.2.",
        low=-0.9,
        high=10,
        without="what met the SLO the day before, and a step more",
        example=0.2,
    )


class BreakevenRequest(SomeModel, PlanInputs, Reserve, Staffed, MeasuredApis, Quick, Profiled):
    """
    Examples:
      tokonomics breakeven llama-3.3-70b --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=80ms
      tokonomics breakeven chat.toml --api groq:llama-3.3-70b-versatile,openai:gpt-4o --chart breakeven.png
      tokonomics breakeven chat.toml --engineers 0.5 --engineer-usd-per-month 15k --overhead tax=5%
      tokonomics breakeven llama-3.1-8b --cached-share 0.3 --input 2000 --output 99 --provider aws
      tokonomics breakeven traffic.toml --replica-tokens-per-second 2400 --usd-per-hour 2.21 --max-utilization 0.7
      tokonomics breakeven chat.toml --api openai:gpt-4o-mini --batch-api
      tokonomics breakeven chat.toml --api groq:llama-3.3-70b-versatile --measured groq.json
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
    replica_gpus: Whole = declared("With --replica-tokens-per-second: GPUs of a replica.", 1, low=1)


class OwnHardwareRequest(OwnedMachine, PriceList):
    """
    It needs the GPU, the price of the machine, its years, the price of a kilowatt-hour and the watts of the host.

    Examples:
      tokonomics own-hardware --gpu H100 --gpus 8 --purchase-usd 250000 --years 4 --usd-per-kwh 0.12 --host-watts 4600
      tokonomics own-hardware --gpu L40S --purchase-usd 15k --years 5 --usd-per-kwh 0.2 --host-watts 300 --save mine.csv
      tokonomics own-hardware server.toml --pue 1.3 --residual 10% --cost-of-capital 8% --hosting-usd-per-month 600
    """

    FIRST = ("gpu", "purchase_usd", "years", "usd_per_kwh", "host_watts", "gpus", "pue")

    gpu: Text | None = declared("Which GPU the machine has.", example="H100")
    gpu_load: Share | None = declared(
        "Share of its watts a GPU draws.", without="1, the datasheet's limit", example=0.9
    )
    residual: Share | None = declared("Share of the price it still sells for: 0.1 or 10%.", example="10%")
    cost_of_capital: Share | None = declared("A year: 0.08 or 8%.", example="8%")
    hosting_usd_per_month: Text | None = declared("Space, or a colocation's fee.", example="600", unit="USD/month")
    maintenance: Share | None = declared("Share of the price a year: 0.05 or 5%.", example="5%")
    staff_usd_per_year: Text | None = declared("People, for this machine: 60k.", example="60k", unit="USD/year")
    memory_gb: Number | None = declared("The host's memory: checked against weights.", low=1, example=2000, unit="GB")
    save: Text | None = saved("Save it as a price list for --offers: mine.csv.", "mine.csv")


class CanRunRequest(SomeModels, OneGpu, Objectives, SomePrecisions, OneEngine, OwnedMachine, Profiled):
    """
    A user is one answer being written, with its context full, at the pace that the SLO asks for. Of models that are
    named, every layout is listed with its engine flags: TP, PP, EP and data-parallel attention.

    Examples:
      tokonomics can-run --gpu RTX3090 --gpus 2
      tokonomics can-run deepseek-v3 --gpu H200 --gpus 8 --slo tpot=50ms
      tokonomics can-run llama-3.1-8b qwen3-32b --gpu RTX4090 --context 16384 --slo tpot=100ms
      tokonomics can-run --gpu RTX3090 --gpus 2 --usd-per-kwh 0.3 --host-watts 150 --pue 1 --purchase-usd 2500 --years 3
      tokonomics can-run server.toml --gpu H100
    """

    FIRST = ("model", "gpu", "gpus", "context", "slo")

    pue: Number | None = declared("Power of the site over that of the machine.", without="1, as on a desk", example=1.3)

    context: Tokens = declared("Tokens of one sequence, prompt and answer: 4096, 32k.", 4096, unit="tokens")


class CompareRequest(SeveralModels, PlanInputs, Conversations, MeasuredApis, Profiled):
    """
    Examples:
      tokonomics compare llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,A100,H100 --rate 20 --input 1000 --output 300
      tokonomics compare llama-3.1-8b qwen3-8b --rate 20 --input 1000 --output 300 --slo tpot_p99=50ms --simulate
      tokonomics compare chat.toml llama-3.1-8b llama-3.3-70b --quality llama-3.1-8b=0.66,llama-3.3-70b=0.86
      tokonomics compare chat.toml llama-3.1-8b qwen3-8b
    """

    quality: Texts | None = declared(
        "Your score of each model: llama-3.1-8b=0.66,llama-3.3-70b=0.86.", example=["llama-3.1-8b=0.66"]
    )
    simulate: Switch = declared("Size every pair by simulation instead of the closed form; slower.", False)


class FitRequest(OneModel, OneGpu, Layout, Adapters, Profiled):
    """
    Examples:
      tokonomics fit llama-3.1-70b --gpu H100 --tp 4
      tokonomics fit llama-2-7b --gpu T4 --context 2048
      tokonomics fit ./config.json --gpu L40S --weights fp8 --kv fp8 --context 16384
      tokonomics fit chat.toml --gpu L40S
    """

    FIRST = ("model", "gpu", "context")

    context: Tokens = declared("Tokens of one sequence, prompt and answer: 4096, 32k.", 4096, unit="tokens")


class PredictRequest(OneModel, OneGpu, Layout, Adapters, ContextInput, ImageInputs, ThinkingInput, Profiled):
    """
    Examples:
      tokonomics predict llama-3.1-8b --gpu H200 --batch 64 --context 1024
      tokonomics predict deepseek-v3 --gpu H200 --tp 8 --batch 128 --context 4096
      tokonomics predict gpt-oss-120b --gpu H100 --engine sglang --batch 32 --json
      tokonomics predict bge-m3 --gpu L4 --batch 16 --context 512
      tokonomics predict qwen3-vl-8b --gpu H100 --images 2x896x896 --context 300 --thinking 500
      tokonomics predict chat.toml --batch 16
    """

    FIRST = ("model", "gpu", "batch", "context")

    batch: Whole = declared("Sequences running at once.", 1, low=1, high=10**6)


class CurveRequest(OneModel, OneGpu, Layout, Adapters, ContextInput, Objectives, Priced, Profiled):
    """
    Examples:
      tokonomics curve llama-2-7b --gpu H100 --context 1024 --slo tpot=20ms
      tokonomics curve llama-3.1-70b --gpu H100 --tp 4 --context 4096 --chart curve.svg
      tokonomics curve qwen3-30b-a3b --gpu L40S --weights fp8 --usd-per-hour 0.86 --json
      tokonomics curve chat.toml --kv fp8
    """

    FIRST = ("model", "gpu", "context")


class CostRequest(GpuPrice, LengthInputs, PriceList):
    """Takes speed and utilisation as given. Not known yet? These work out both, and the price:
    tokonomics simulate llama-3.1-8b --gpu H100 --rate 5 --input 1000 --output 300
    tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300

    Examples:
      tokonomics cost --usd-per-hour 2.21 --gpus 4 --tokens-per-second 2400 --utilization 0.7
      tokonomics cost --gpu A100-80GB --tokens-per-second 2900 --utilization 0.5 --target 0.20
      tokonomics cost --gpu H100 --tokens-per-second 4800 --load 8x0.99,16x0 --load 24x0.7
      tokonomics cost chat.toml --tokens-per-second 4800
    """

    FIRST = ("tokens_per_second", "usd_per_hour", "gpu", "gpus")

    tokens_per_second: Number = declared(
        "Tokens a second of all GPUs together, at full speed.", ..., example=2400, unit="tokens/s"
    )
    gpu: Text | None = declared("GPU whose cheapest offer is the price instead.", example="H100")
    gpus: Whole = declared("Number of GPUs.", 1, example=8)
    utilization: Number | None = declared("Share of full speed really produced, 0 to 1.", without="1", example=0.5)
    load: Texts | None = declared(
        "A load profile instead: HOURSxUTILIZATION,… such as 8x0.99,16x0. Repeat to compare.", example=["8x0.99,16x0"]
    )
    target: Number | None = declared(
        "Also: what it takes to reach this many dollars per Mtok.", example=0.2, unit="USD/Mtok"
    )
