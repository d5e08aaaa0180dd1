"""Define the requests about the user's traffic: ``trace``, ``simulate``, ``levers`` … (see ``verbs``)."""

from tokonomics.questions.inputs import (
    About,
    Attributed,
    BatchLimits,
    Classed,
    Conversations,
    Drafting,
    ImageInputs,
    Layout,
    LowestWeights,
    Objectives,
    OneEngine,
    OneGpu,
    OneModel,
    Parallel,
    PlanInputs,
    PlanTraffic,
    Priced,
    Profiled,
    RoomToGrow,
    Routed,
    RoutedExperts,
    RouterOrBest,
    Selling,
    Serving,
    SeveralModels,
    SomeGpu,
    SomeModel,
    Spared,
    Staffed,
    ThinkingInput,
    TierInputs,
    Traffic,
)
from tokonomics.questions.request import (
    Kind,
    Number,
    Placement,
    Request,
    Share,
    Switch,
    Table,
    Text,
    Texts,
    Whole,
    declared,
    saved,
)


class TraceRequest(Traffic, Attributed):
    """
    Rates, bursts, lengths, shared prefixes, idle hours.

    Examples:
      tokonomics trace azure-conv
      tokonomics trace log.csv --columns arrival=time,input=prompt,output=answer
      tokonomics trace --rate 2 --requests 10000 --input sample:sharegpt --save demo.parquet
      tokonomics trace chat.toml
    """

    FIRST = ("trace", "columns", "by")

    trace: Table | None = declared(
        "A log (CSV, JSON lines, parquet; .gz, .zst), a sample such as azure-conv, or ServeGen's clients.",
        place=Placement.FIRST,
        kind=Kind.TRACE,
        example="azure-conv",
        metavar="FILE",
    )
    machine_tokens_per_second: Number | None = declared(
        "What one machine serves, prompt and answer tokens: prices its idle time.",
        example=20_000,
        unit="tokens/s",
        rare=True,
    )
    machine_usd_per_hour: Number | None = declared("What that machine costs.", example=3.0, unit="USD/h", rare=True)
    save: Text | None = saved("Save the requests as .parquet, which this verb reads.", "requests.parquet")


class ReplicaInputs(Request, about=About.HARDWARE):
    replicas: Whole = declared("Replicas behind the router.", 1, low=1, high=10_000, example=2)


class SimulateRequest(
    SomeModel, OneGpu, Layout, Drafting, Traffic, ImageInputs, ThinkingInput, Routed, Serving, Objectives, Classed,
    Priced, RoutedExperts, Profiled, ReplicaInputs,
):  # fmt: skip
    """
    Latency, throughput, utilisation and cost.

    Examples:
      tokonomics simulate llama-3.1-8b --gpu H100 --trace azure-conv --slo ttft_p99=0.5
      tokonomics simulate llama-3.1-8b --gpu L40S --rate 8 --input 512 --output 99 --replicas 3
      tokonomics simulate llama-3.1-8b --gpu H100 --capacity --input 1000 --output 300 --slo ttft_p99=0.5
      tokonomics simulate chat.toml --autoscale max=6,target=9,cold=9
    """

    autoscale: Text | None = declared(
        "Replicas that come and go: max=8,target=32,cold=120,min=1.", example="max=8,target=32,cold=120"
    )
    outage: Texts | None = declared(
        "A replica that fails: replica=0,at=600,for=300; or a spot one: …,notice=120,spot=1.",
        example=["replica=0,at=600"],
    )
    prefill_replicas: Whole = declared(
        "Replicas that compute prompts only and send the KV on (disaggregation).", 0, low=0, high=10_000
    )
    prefill_gpu: Text | None = declared("Their GPU.", without="that of --gpu", example="H100", rare=True)
    prefill_tp: Whole | None = declared(
        "Their tensor parallelism.", low=1, without="as --tp, --pp, --ep", example=4, rare=True
    )
    link: Text | None = declared(
        "What each GPU sends KV over: nvlink, pcie, ib400, ib200, roce400, ethernet100 …; or GB/s.",
        without="ib400: 50 GB/s",
        example="ib400",
        rare=True,
    )
    playback: Switch = declared("Also: the run moment by moment, and who missed the SLO.", False)
    save: Text | None = saved("Save what became of each request as .parquet.", "requests.parquet")


class CapacityRequest(
    SomeModel,
    OneGpu,
    Layout,
    Drafting,
    Traffic,
    ImageInputs,
    RouterOrBest,
    Serving,
    Objectives,
    RoomToGrow,
    Classed,
    Priced,
    RoutedExperts,
    Profiled,
):
    """
    Examples:
      tokonomics simulate llama-3.1-8b --capacity --gpu H100 --input 1000 --output 300 --slo ttft_p99=0.5
      tokonomics simulate llama-3.1-70b --capacity --gpu H200 --tp 2 --trace azure-conv --slo tpot_p99=40ms
      tokonomics simulate chat.toml --capacity --gpu H200
    """


class CacheRequest(SomeModel, SomeGpu, Layout, Traffic, Objectives, Priced, Profiled, TierInputs):
    """
    Shared prompt beginnings on the GPU and behind it, similar prompts, fixed templates.

    Examples:
      tokonomics cache llama-3.1-8b --gpu H100 --trace mooncake-conversation
      tokonomics cache llama-3.1-8b --gpu H100 --trace log.jsonl --tiers dram=200,ssd=2000@0
      tokonomics cache --prompts prompts.jsonl --semantic models/all-MiniLM-L6-v2
      tokonomics cache chat.toml --system-prompts 20,tokens=1000
    """

    ttl: Text | None = declared(
        "The tiers, and the semantic cache, let go of what is older: 300, 5m, 1h.", example="1h", rare=True
    )
    replicas: Whole | None = declared(
        "Compare on this many replicas.", low=1, high=1000, without="what it takes without a cache", example=2
    )
    prompts: Text | None = declared(
        "Texts: .txt, .jsonl, .csv, .parquet; fixed parts are found.", kind=Kind.FILE, example="prompts.jsonl"
    )
    prompt_column: Text | None = declared("The column with the texts.", example="prompt", rare=True)
    semantic: Text | None = declared(
        "What embeds the prompts: an embeddings URL, a model folder, or 'hashed' (spelling only).",
        kind=Kind.EMBEDDER,
        example="hashed",
    )
    embedding_model: Text | None = declared("The model an embeddings URL is asked for.", example="NAME", rare=True)
    embedding_usd_per_mtok: Number = declared(
        "What embedding a million tokens costs.", 0.0, low=0, unit="USD/Mtok", rare=True
    )
    threshold: Number = declared("Cosine from which an answer is reused.", 0.95, low=0, high=1, rare=True)
    pairs: Text | None = declared(
        "Labelled pairs (text_a, text_b, label): shows false hits.", kind=Kind.FILE, example="pairs.csv", rare=True
    )


class DraftInputs(Drafting, about=About.CHANGES):
    draft_share: Number | None = declared(
        "Instead of a draft: a draft token's cost, in steps of the model.", low=0, high=10, example=0.1, rare=True
    )


class Changes(Spared, LowestWeights, DraftInputs, TierInputs, about=About.CHANGES):
    """What the levers may change, and how."""

    batch_share: Share | None = declared(
        "Share of the requests that can wait for hours: 30%.", low=0, high=1, example="30%", rare=True
    )
    without: Texts | None = declared(
        "Leave these alone: weights, kv, hardware, speculation, spot …", example=["spot"], rare=True
    )


class MeteredTraffic(Request, about=About.TRAFFIC):
    """Traffic and bill as metered, instead of made up or from a log."""

    start: Text | None = declared(
        "Traffic and bill as metered: twin or ledger (your own), a ledger FILE, http://prometheus:9090. Of a --trace: "
        "leave out what arrives before 10m.",
        key="from",
        kind=Kind.METERED,
        example="ledger",
    )
    since: Text | None = declared("How far back --from looks: 7d, or 2026-11-08.", without="7d", example="7d")
    query: Text | None = declared(
        "Of a Prometheus, only series with these labels.", example='namespace="prod"', rare=True
    )


class Runs(MeteredTraffic, PlanTraffic, Conversations, Priced, Changes):
    """What runs today, its traffic, and what may be changed."""


class ProposalFiles(Request, about=About.ANSWER):
    """The branch that a proposal is put on."""

    open_: Text | None = declared(
        "Put the best change on a branch of the git checkout here: pr (gh or glab opens it; else a patch) or patch.",
        key="open",
        example="pr",
        writes=True,
    )
    take: Text | None = declared(
        "With --open: this change instead: weights, kv, hardware, replicas … or together.",
        without="the one that saves most",
        example="kv",
        writes=True,
        rare=True,
    )
    deploy: Texts | None = declared(
        "With --open: the deploy files to write: vllm, kubernetes … (docs/deploy.md)",
        without="vllm or sglang, as the engine",
        example=["vllm"],
        rare=True,
    )
    deploy_to: Text | None = saved("With --open: their folder in the checkout.", "deploy", without="deploy")


class LeversRequest(OneModel, OneGpu, Layout, BatchLimits, Runs, Staffed, ProposalFiles, Profiled):
    """
    Each alone, and all that help together.

    Examples:
      tokonomics levers llama-3.1-8b --gpu A100-80GB --rate 20 --input 1000 --output 300 --slo ttft_p99=1
      tokonomics levers llama-3.1-8b --gpu H100 --trace mooncake-conversation --chart levers.png
      tokonomics levers llama-3.1-8b --gpu H100 --from ledger --since 14d --slo ttft_p99=1
      tokonomics levers llama-3.1-8b --gpu H100 --from twin --open pr
      tokonomics levers chat.toml --from-scratch
    """

    utilization: Switch = declared("Also: the bill against batch limit, load and burstiness.", False)


class StackRequest(OneModel, OneGpu, Parallel, OneEngine, Runs, Profiled):
    """
    Examples:
      tokonomics levers llama-3.1-8b --from-scratch --gpu A100-80GB --rate 20 --input 1000 --output 300
      tokonomics levers llama-3.1-8b --from-scratch --gpu H100 --trace azure-conv --order hardware,weights
      tokonomics levers chat.toml --from-scratch
    """

    order: Text | None = declared(
        "Steps first to last: batch,weights,kv,hardware,cache …", without="that", example="batch,weights,kv"
    )


class TenantsRequest(
    SomeModel, OneGpu, Layout, Traffic, Attributed, RouterOrBest, Objectives, RoomToGrow, Classed, Priced, Selling,
    Profiled,
):  # fmt: skip
    """
    Replicas, latency, a noisy neighbour, and who pays what.

    Examples:
      tokonomics tenants llama-3.1-8b --gpu H100 --trace spend-logs.json --by team --slo ttft_p99=0.5
      tokonomics tenants llama-3.1-8b --gpu H100 --trace team-a.csv --trace team-b.csv --slo ttft_p99=0.5
      tokonomics tenants chat.toml --tenants 10,skew=1 --sell 0.20/0.80
    """

    trace: Texts | None = declared(
        "Log with a tenant column, or a shipped sample; several: one for each tenant.",
        kind=Kind.TRACE,
        example="azure-conv",
    )
    priority: Switch = declared("Serve by the trace's priorities instead of in order.", False)
    lora_rank: Whole = declared("Each tenant has a LoRA adapter of this rank on the shared base.", 0, low=0, example=16)
    lora_adapters: Whole | None = declared(
        "Adapters loaded on each replica.", low=1, without="one for each tenant", example=10
    )


class Judged(Request, about=About.MODEL):
    """An API beside the user's models, and how good the answers of each are."""

    api: Text | None = declared(
        "An API behind your models, as host:model in `tokonomics apis`.", example="groq:llama-3.3-70b-versatile"
    )
    quality: Texts | None = declared(
        "Your score of each model: llama-3.1-8b=0.66, a column of the log (llama-3.1-8b=small_ok), or for a label: "
        "hard/llama-3.1-8b=0.4.",
        example=["llama-3.1-8b=0.66"],
    )


class RouteRequest(SeveralModels, Judged, PlanInputs, Attributed, Conversations, Profiled):
    """
    Requests are routed, cascaded, or spill over: cost, latency, quality, and the share from which it pays.

    Examples:
      tokonomics route llama-3.1-8b llama-3.3-70b --trace log.csv --score confidence --slo ttft_p99=1
      tokonomics route llama-3.3-70b --api openai:gpt-4o --trace azure-conv --slo ttft_p99=1
      tokonomics route chat.toml llama-3.1-8b llama-3.3-70b --share 70%
    """

    FIRST = ("model", "api", "score", "by", "share", "quality", "min_quality")

    score: Text | None = declared(
        "What the log calls the router's score: from 0 to 1, how sure that the first model is enough.",
        without="requests are split at random",
        example="confidence",
    )
    by: Texts | None = declared("Send requests by a label of the log, each value to one model.", example=["task"])
    share: Share | None = declared(
        "Share of the requests that the first model answers.",
        low=0.01,
        high=0.99,
        without="scores from 0.5, or half",
        example="70%",
    )
    min_quality: Number | None = declared("The lowest mean quality of answers.", example=0.8)
