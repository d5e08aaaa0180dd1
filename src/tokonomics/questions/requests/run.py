"""Define the requests about running servers: ``bench``, ``import``, ``calibrate``, the meter … (see ``verbs``)."""

from tokonomics.questions.inputs import (
    A_MODEL,
    About,
    GpuPrice,
    Layout,
    LogInputs,
    Market,
    ModelSource,
    Objectives,
    OnGrid,
    Priced,
    Profiled,
    RoutedExperts,
    Selling,
    SomeGpu,
    SomeGpus,
    Staffed,
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
    Tokens,
    Whole,
    declared,
    saved,
)

USERS = "1,4,16,64"
PROMETHEUS = "http://prometheus:9090"


class Ran(Request):
    """The measured machine and engine, if the files do not name them."""

    gpu: Text | None = declared("GPU it ran on.", without="as the file says", example="H100")
    gpus: Whole | None = declared(
        "GPUs it ran on, all replicas.", low=1, high=10**6, without="as the file says, or 1", example=2
    )
    tp: Whole | None = declared("Tensor parallelism.", low=1, high=10**6, without="all GPUs", example=2)
    pp: Whole | None = declared("Pipeline stages.", low=1, high=1000, without="1", example=1, rare=True)
    ep: Whole | None = declared("Expert parallelism.", low=1, high=10**6, without="1", example=1, rare=True)
    dp: Whole | None = declared(
        "Data-parallel attention: groups of tp GPUs that share their experts.",
        low=1,
        high=10**6,
        without="as the file says, or 1",
        example=1,
        rare=True,
    )
    weights: Text | None = declared(
        "Precision of the weights.", without="by the model's name, or its own", example="fp8"
    )
    kv: Text | None = declared("Precision of the KV cache: bf16 or fp8.", without="bf16", example="bf16")
    engine: Text | None = declared("Serving engine.", without="as the file says, or vllm", example="vllm")


class Rented(Ran, Objectives, GpuPrice):
    """A machine or an API with a price, and the latency targets for its loads."""

    api: Text | None = declared(
        "Price of an API: host:model as in `tokonomics apis`, or $ per Mtok of input/output: 0.59/0.79.",
        example="groq:llama-3.3-70b-versatile",
    )


class LoadTest(Request):
    """The server, the loads in turn, and when to stop."""

    url: Text = declared(
        "Server: http://host:8000, …/v1, or a whole endpoint.",
        ...,
        place=Placement.FIRST,
        example="http://localhost:8000",
        rare=True,
    )
    model: Text | None = declared("Model to ask for.", without="the server's only one")
    concurrency: Text | None = declared("Users at once, each load in turn: 1,4,16,64.", example=USERS)
    rate: Text | None = declared("Requests a second, arriving at random: 1,2,4.", example="1,2,4", unit="requests/s")
    trace: Table | None = declared(
        "A request log or shipped sample, replayed as it came.", kind=Kind.TRACE, example="azure-conv"
    )
    sessions: Text | None = declared(
        "Users run sessions, closed loop: 5,think=30 (turns, pause); agent, agent:swe. Lengths are those of a turn.",
        example="5,think=2",
    )
    sweep: Switch = declared("Double the users to the knee, or until --slo is missed.", False)
    input: Text = declared(
        "Prompt tokens, about: const:512, or as in `plan`: 1500 (a mean, spread as in chat), sample:sharegpt.",
        "const:512",
        kind=Kind.LENGTHS,
        example=1000,
        unit="tokens",
    )
    output: Text = declared(
        "Answer tokens, written the same way.", "const:128", kind=Kind.LENGTHS, example=300, unit="tokens"
    )
    requests: Whole | None = declared("The most requests of a load.", low=1, high=10**7, example=1000)
    seconds: Number = declared("The most seconds of a load.", 60.0, unit="s")
    precision: Number = declared("Stop when mean latencies are known this closely.", 0.05, rare=True)
    max_usd: Number | None = declared("The most dollars in all.", example=5, unit="USD")
    retries: Whole = declared("Retries of requests that the server did not take.", 1, low=0, high=10, rare=True)
    timeout: Number = declared("Seconds after which a request has failed.", 600.0, unit="s")
    speed: Number | None = declared("Replay this many times as fast.", example=2)
    seed: Whole | None = declared(
        "Seed for prompts and arrivals; the same seed sends the same.", low=0, without="new", example=0
    )
    save: Text | None = saved("Keep the result with every request (.json), for import.", "run.json")


class BenchRequest(LoadTest, Rented, Profiled):
    """
    Answers are streamed; latencies count from when a request was due. A key is taken from OPENAI_API_KEY only, never
    printed or kept. Without a kind of load: --concurrency 1,4,16,64. How it measures: docs/bench.md.

    Examples:
      tokonomics bench http://localhost:8000 --usd-per-hour 2.49
      tokonomics bench http://localhost:8000 --sweep --slo ttft_p99=0.5 --gpu H100 --gpus 2
      tokonomics bench http://localhost:8000 --rate 1,2,4 --input 1000 --output 300 --save run.json
      tokonomics bench https://api.groq.com/openai/v1 --api groq:llama-3.3-70b-versatile --max-usd 1
    """


class ImportResultsRequest(Rented, Profiled):
    """
    It also says how far our prediction was off. Reads vLLM bench serve, SGLang bench_serving, guidellm, aiperf and
    genai-perf, InferenceX, llm-d Benchmark Report and tokonomics bench, recognised by what is in them. Of tools that
    write a file for each load, give all of them.
    With --baseline, what a quantised model keeps of the scores of lm-evaluation-harness. Vendors' folders, each with a
    filled-in quote.toml (of plan --quote) and its results, are ranked.

    Examples:
      tokonomics import vllm-*.json --gpu H100 --gpus 2
      tokonomics import benchmarks.json --gpu L40S --model llama-3.1-8b --usd-per-hour 0.86
      tokonomics import int4/results.json --baseline bf16/results.json --weights int4 --keep
      tokonomics import returned/*/*.json
    """

    files: Texts = declared(
        "Result files of one run.", ..., place=Placement.FIRST, kind=Kind.FILE, metavar="FILE…", example=["run.json"]
    )
    model: Text | None = declared(
        "Model, where the file does not name one we know.",
        without="as the file says",
        kind=Kind.MODEL,
        example="llama-3.1-8b",
    )
    baseline: Text | None = declared(
        "Results of lm-evaluation-harness of the model as published.", kind=Kind.FILE, example="bf16.json"
    )
    keep: Switch = declared("Keep the recovery in your catalogue: it counts before published ones.", False, writes=True)


class ProbeRequest(Request):
    """
    Saves a profile that --profile uses in every prediction. Needs a CUDA GPU and PyTorch, nothing else; takes less
    than three minutes. Times memory, matrix products by shape, attention by batch and context, launches, all-reduce
    where there are several GPUs, and whole decode steps that the curves are checked on. What a probe replaces and
    what it leaves: docs/calibrate.md.

    Examples:
      tokonomics calibrate --probe --out h200.json
      tokonomics calibrate --probe --quick --json
      tokonomics calibrate --probe --from timings.json --gpu H200 --out h200.json
    """

    out: Text = declared("Where to save the profile (.json).", "profile.json", kind=Kind.FILE, writes=True)
    gpu: Text | None = declared("Its name in our catalogue.", without="as the driver says", example="H200")
    quick: Switch = declared("Fewer sizes: under a minute.", False)
    timings: Text | None = declared(
        "Fit timings made elsewhere (python -m tokonomics.measure.probe.timings).",
        key="from",
        kind=Kind.FILE,
        example="timings.json",
    )


class CalibrateRequest(Ran):
    """
    --profile uses it in every prediction. Every second load teaches and the others judge: errors before and after are
    of loads the fit has not seen. What made them worse is left out, and said. What a profile replaces and what it
    leaves: docs/calibrate.md.

    Examples:
      tokonomics calibrate run.json --gpu H100 --out h100.json
      tokonomics calibrate --probe --out h200.json
      tokonomics calibrate --score results.csv --chart scatter.svg
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --profile h100.json
    """

    files: Texts = declared(
        "Bench results, imported formats, logs of steps, tables, probes, ledgers.",
        ...,
        place=Placement.FIRST,
        kind=Kind.FILE,
        metavar="FILE…",
        example=["run.json"],
    )
    model: Text | None = declared(
        "Model, where the files name none we know.", without="as the files say", kind=Kind.MODEL, example="llama-3.1-8b"
    )
    engine: Text | None = declared(
        "Which of our engines stands for the one that ran.", without="as the files say, or vllm", example="vllm"
    )
    hold_out: Number = declared("Share of the loads that judge instead of teaching, 0.1 to 0.5.", 0.5)
    name: Text | None = declared("Name of the profile.", without="the GPU's", example="my-h100")
    out: Text | None = saved("Save the profile (.json).", "h100.json", without="only shown")


class Started(Request):
    """The server to measure: started and stopped by us, or running already."""

    target: Text | None = declared(
        "The model, or the address of a server that you start yourself.",
        place=Placement.FIRST,
        kind=Kind.MODEL,
        metavar="MODEL | URL",
        example="llama-3.1-8b",
    )
    start: Text | None = declared(
        "The command that starts it, with {flags} where the flags go; {model} and {port} are filled in too.",
        example="vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8000 {flags}",
    )
    patience: Text = declared("How long a start may take: 15m.", "15m", rare=True)
    timeout: Number = declared("Seconds after which a request has failed.", 600.0, unit="s", rare=True)


class TuneRequest(Started, SomeGpu, Layout, Traffic, Objectives, Priced, Profiled):
    """
    Every flag set is simulated on your traffic; the few that may be best are started, loaded and measured. What was
    measured is kept in a certificate after every load: the same command goes on from there.

    Examples:
      tokonomics tune llama-3.1-8b --gpu H200 --trace azure-code --slo ttft_p99=1,tpot_p99=60ms --dry-run
      tokonomics tune llama-3.1-8b --gpu H200 --trace mine.jsonl --slo ttft_p99=1 --start 'vllm serve … {flags}'
      tokonomics tune http://localhost:8000 --model llama-3.1-8b --gpu H200 --trace mine.jsonl --slo ttft_p99=1
      tokonomics tune --verify tune.json
    """

    FIRST = ("target", "start", "try_", "trials", "dry_run", "out")

    model: Text | None = declared(A_MODEL, kind=Kind.MODEL, example="llama-3.1-8b", without="the target")
    try_: Texts | None = declared(
        "Flags to turn and their values, as the engine spells them: max-num-seqs=64/128. Repeat it for more.",
        key="try",
        without="those that matter to the engine",
        example=["max-num-seqs=64/128"],
    )
    trials: Whole = declared("The most flag sets on the engine, the one as started included.", 6, low=1, high=1000)
    gpus: Whole = declared("GPUs of the machine: layouts up to so many are tried.", 1, low=1, high=64, example=8)
    skip: Switch = declared("With an address: the proposed flags did not start, propose others.", False, rare=True)
    dry_run: Switch = declared("Simulate only: the ranking, and the trials that it would make first.", False)
    out: Text = declared("The certificate: what was measured (.json).", "tune.json", kind=Kind.FILE, writes=True)
    deploy: Texts | None = declared(
        "Also print the best flags as a deploy file: vllm, kubernetes …", example=["vllm"], rare=True
    )


class VerifyRequest(Started):
    """
    Every figure is computed again from the requests that were measured. With an address, or a command that starts the
    server, the best flags are measured once more.

    Examples:
      tokonomics tune --verify tune.json
      tokonomics tune --verify tune.json --start 'vllm serve meta-llama/Llama-3.1-8B-Instruct --port 8000 {flags}'
    """

    verify: Text = declared("The certificate of a search for flags.", ..., kind=Kind.FILE, example="tune.json")


class GuardRequest(SomeGpu, Layout, Traffic, Objectives, Priced, Profiled):
    """
    About forty small loads fingerprint a build in under ten minutes. Two fingerprints are compared term by term: what
    became slower, by how much, and which part of a step it is. With a model, a GPU, traffic and targets, the change is
    priced. Exits with 1 if the new build is slower or holds less.

    Examples:
      tokonomics guard http://localhost:8000 --out build-a.json
      tokonomics guard build-a.json http://localhost:8000 --out build-b.json
      tokonomics guard build-a.json build-b.json --model llama-3.1-8b --gpu H200 --trace mine.jsonl --slo ttft_p99=1
      tokonomics guard build-a.json http://localhost:8000 --format github >> $GITHUB_STEP_SUMMARY
    """

    FIRST = ("old", "new", "out", "minutes", "tolerance", "format", "model")

    old: Text = declared(
        "The build in use: its fingerprint (.json), or the address of a server that runs it.",
        ...,
        place=Placement.FIRST,
        metavar="OLD",
        example="build-a.json",
    )
    new: Text | None = declared(
        "The build to compare with it, written the same way.",
        place=Placement.FIRST,
        metavar="NEW",
        without="only fingerprint the first",
        example="http://localhost:8000",
    )
    model: Text | None = declared(A_MODEL, kind=Kind.MODEL, example="llama-3.1-8b", without="no price")
    out: Text | None = saved("Keep the fingerprint that is taken (.json); of two, the newer.", "build-b.json")
    minutes: Number = declared(
        "About how many minutes each server is measured. The longest loads are left out to keep to it, but the others "
        "are taken five times each, so that a slow server takes longer.",
        10.0,
        low=0.05,
        high=600,
        unit="min",
    )
    tolerance: Share = declared("Changes up to this are none: 0.03 or 3%.", 0.03, low=0, high=1)
    format: Text | None = declared("Print a comment for a pull request or a job's summary: github.", example="github")
    timeout: Number = declared("Seconds after which a request has failed.", 120.0, unit="s", rare=True)


class ValidateRequest(RoutedExperts, Profiled):
    """
    Errors, bias, coverage and ranking; no row is dropped silently. The log of an engine (every request and step) is
    replayed in the simulator instead, run by run. The formats, with samples to start from: docs/validate.md.

    Examples:
      tokonomics calibrate --score benchmarks/data/h200_steps.json
      tokonomics calibrate --score published.csv.gz --split dev --chart scatter.svg
      tokonomics calibrate --score benchmarks/data/h200_engine.json.gz --fit-on 'closed-*,poisson-16'
    """

    files: Text = declared(
        "A results table (csv, csv.gz), a JSON of step times, or an engine's log.",
        ...,
        place=Placement.FIRST,
        kind=Kind.FILE,
        metavar="FILE",
        example="results.csv",
    )
    split: Text | None = declared("Only rows of this split, where the table has one.", example="dev", rare=True)
    fit_on: Text | None = declared(
        "Runs of an engine's log to fit step times on: 'closed-*,poisson-16'.", example="closed-*,poisson-16"
    )
    steps_from: Text | None = declared(
        "Another log of the same engine to fit step times on.", kind=Kind.FILE, example="log.json", rare=True
    )


class InLedger(Request):
    """The file that the meter writes to."""

    ledger: Text | None = declared(
        "SQLite file of spans.", without="~/.local/share/tokonomics/meter.db", kind=Kind.FILE, example="meter.db"
    )


class AgainstPlan(Request):
    """The plan to compare with: a file, or its figures."""

    plan: Text | None = declared(
        "To compare with: the file of `tokonomics plan … --json`.", kind=Kind.FILE, example="plan.json"
    )
    planned_usd_per_mtok: Number | None = declared("To compare with, instead of a file.", example=0.35, unit="USD/Mtok")
    planned_batch: Number | None = declared("Requests running at once that were planned, with it.", example=48)


class BehindAddress(Request):
    """The GPUs of a server; their time splits dollars between input and output."""

    gpu: Text | None = declared(
        "GPU of the servers: input and output are charged by its time.", without="every token alike", example="H100"
    )
    gpus: Whole | None = declared("With it: GPUs behind each address.", low=1, high=10**6, without="1", example=2)


class Budgeted(Request):
    budget: Texts | None = declared(
        "Dollars a month: 5000, model=llama-3.3-70b:2000, team=search:1500. Repeat it for more.",
        example=["team=search:1500"],
    )


class MeterReportRequest(InLedger, AgainstPlan, Selling, BehindAddress, Budgeted, Staffed, OnGrid, LogInputs):
    """
    With a request log (LiteLLM, Langfuse, OpenTelemetry, OpenAI, CSV …) dollars are divided by its tags.

    Examples:
      tokonomics meter report --since 7d --by model,day
      tokonomics meter report --since 7d --trace spend.jsonl --by team,feature --gpu H100
      tokonomics meter report --since 30d --by team --sell 0.20/0.80 --budget team=search:1500
      tokonomics meter report --since 2026-11-01 --until 2026-11-08 --by team --csv week.csv
      tokonomics meter report --since 1d --by hour --chart day.png
      tokonomics meter report --every week --html report.html --trace spend.jsonl --by team,feature
      tokonomics meter report --every week --html report.html --send 'mail -s "LLM costs" finops@example.com'
    """

    FIRST = ("since", "until", "by", "trace", "columns")

    since: Text = declared("From: 7d, 90m ago, or 2026-11-08 (UTC).", "1d", example="7d")
    until: Text | None = declared("To, written the same way.", without="now", example="2026-11-08")
    by: Text = declared(
        "model, target, engine, day, hour, any label, or with --trace any tag of the log; with commas.", "model,day"
    )
    csv: Text | None = saved("Save the lines as a table.", "week.csv")


class EveryWeek(Request):
    """Reports of every week, which the command line writes; not part of the question."""

    every: Text | None = declared(
        "Write a report of every week when it is over, until Ctrl-C: week. Give --html its name.", example="week"
    )
    send: Text | None = declared(
        "With --every: a command that gets each report as its input; {file} and {week} are filled in.",
        example="mail -s 'LLM costs, {week}' finops@example.com",
    )


class MeterExportRequest(InLedger, BehindAddress, LogInputs):
    """
    litellm: a price file for litellm.register_model. focus: rows of FOCUS 1.2, a day, model and team each.
    openmetrics: for promtool tsdb create-blocks-from openmetrics. Dollars are cents that sum to the ledger's total.

    Examples:
      tokonomics meter export litellm --since 30d --gpu H100 > prices.json
      tokonomics meter export focus --since 2026-11-01 --until 2026-12-01 --out november.csv
      tokonomics meter export focus --since 30d --trace spend.jsonl --by team,feature --out november.csv
      tokonomics meter export litellm --plan plan.json > estimate.json
    """

    FIRST = ("format", "since", "until", "by", "trace", "columns")

    format: Text = declared(
        "litellm, focus, openmetrics or csv.", ..., place=Placement.FIRST, metavar="FORMAT", example="litellm"
    )
    since: Text = declared("From: 7d, 90m ago, or 2026-11-08 (UTC).", "30d", example="7d")
    until: Text | None = declared("To, written the same way.", without="now", example="2026-11-08")
    by: Text = declared(
        "Labels of the servers that say whose a charge is, or with --trace tags of the log; with commas.",
        "team",
        example="team,feature",
    )
    plan: Text | None = declared(
        "Export what will be paid instead: the file of `tokonomics plan … --json`.", kind=Kind.FILE, example="plan.json"
    )
    out: Text | None = saved("Save it there.", "prices.json", without="it is printed")


class Servers(Request):
    """Which servers, at which price, how often and how long."""

    urls: Texts | None = declared(
        "Servers, or their metrics pages.", place=Placement.FIRST, metavar="URL…", example=["http://localhost:8000"]
    )
    usd_per_hour: Number | None = declared("Price of one GPU-hour.", example=2.49, unit="USD/h")
    gpu: Text | None = declared("Or the GPU: its cheapest offer is the price.", example="H100")
    offer: Text | None = declared(
        "Or the machine that is rented: aws:p5.48xlarge; see `tokonomics offers`.", example="aws:p5.48xlarge"
    )
    price: Texts | None = declared(
        "GPU-hour of some servers, by label or address: gpu=L4:0.80. Repeat it for more.", example=["gpu=L4:0.80"]
    )
    gpus: Whole | None = declared(
        "GPUs behind each address.", low=1, high=10**6, without="1, or those of --offer", example=2
    )
    provider: Text | None = declared("With --gpu: the offers of this provider only.", example="aws")
    every: Text = declared("How often: 5s, 15s, 1m.", "15s")
    for_: Text | None = declared("How long: 10m, 8h.", key="for", without="until Ctrl-C", example="8h")
    once: Switch = declared("Read twice, one interval apart, and print.", False)


class MeterWatchRequest(Servers, InLedger, AgainstPlan, Budgeted):
    """
    A server that wants a key: put the header's value into TOKONOMICS_METER_AUTHORIZATION.

    Examples:
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49
      tokonomics meter http://gpu1:8000 http://gpu2:8000 --gpu H100 --gpus 2 --label http://gpu1:8000:team=search
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49 --planned-usd-per-mtok 0.35 --planned-batch 48
      tokonomics meter http://gpu1:8000 --offer aws:p5.48xlarge
      tokonomics meter --prometheus http://prometheus:9090 --gpu H100 --price gpu=L4:0.80
    """

    from_now: Switch = declared("Leave out the time since the last meter on this ledger.", False)
    label: Texts | None = declared(
        "For reports: team=search, or of one server: http://gpu1:8000:team=search. Repeat it for more.",
        example=["team=search"],
    )
    prometheus: Text | None = declared("Read engines through the Prometheus that scrapes them.", example=PROMETHEUS)
    query: Text | None = declared(
        'Only these of its series: namespace="prod",job=~"vllm.*".', example='namespace="prod"'
    )
    keep_label: Texts | None = declared("Its label to group reports by: team. Repeat.", example=["team"])
    since: Text | None = declared("Read its past first, from: 1d, 2026-11-08.", example="1d")
    listen: Text | None = declared("Serve our own /metrics: 9464, 0.0.0.0:9464; see `meter files`.", example="9464")
    gpu_metrics: Text | None = declared(
        "GPUs too: nvml (this machine's), a DCGM exporter's address, or prometheus.", example="nvml"
    )
    usd_per_kwh: Number | None = declared("Price of electricity, for what the GPUs draw.", example=0.12, unit="USD/kWh")


class TwinRequest(MeterWatchRequest, Layout):  # type: ignore[misc]  # the plugin names constructors alike
    """
    It meters the servers as `tokonomics meter` does, into the same ledger. Every ten minutes it says what the next ten
    will be like, and scores what it said of the last. Name the model and the GPU and the server is simulated;
    otherwise it is expected to go on as it did.

    Examples:
      tokonomics twin http://localhost:8000 --model llama-3.1-8b --gpu H200
      tokonomics twin http://gpu1:8000 http://gpu2:8000 --model llama-3.3-70b --gpu H100 --tp 4 --listen 9464
      tokonomics twin http://gpu1:8000 --model llama-3.1-8b --gpu H200 --started-with 'vllm serve … --max-num-seqs 64'
      tokonomics twin http://localhost:8080 --usd-per-hour 0.40
      tokonomics twin report --since 1d --chart twin.png
    """

    FIRST = ("urls", "model", "started_with", "engine_log", "window")

    model: Text | None = declared(A_MODEL, kind=Kind.MODEL, without="nothing is simulated", example="llama-3.1-8b")
    started_with: Text | None = declared(
        "The command that started the servers: its flags are simulated.",
        without="the engine's defaults",
        example="vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-seqs 64",
    )
    engine_log: Text | None = declared(
        "The log of the server, if it logs its steps (vLLM 0.26: --enable-logging-iteration-details).",
        kind=Kind.FILE,
        without="steps are not read",
        example="vllm.log",
    )
    window: Text = declared("How long a window is: 10m, 1h.", "10m")


class TwinReportRequest(InLedger):
    """
    Examples:
      tokonomics twin report
      tokonomics twin report --since 7d --server http://gpu1:8000 --chart week.png
      tokonomics twin report --since 2026-11-01 --until 2026-11-08 --json
    """

    FIRST = ("since", "until", "server")

    since: Text = declared("From: 7d, 90m ago, or 2026-11-08 (UTC).", "1d", example="7d")
    until: Text | None = declared("To, written the same way.", without="now", example="2026-11-08")
    server: Text | None = declared("Only servers whose name contains this.", without="all", example="gpu1")


class ModelsRequest(ModelSource):
    """
    Examples:
      tokonomics models
      tokonomics models qwen3 --moe
      tokonomics models path/to/config.json --json
    """

    FIRST = ("match",)

    match: Text | None = declared("Only names that contain this.", place=Placement.FIRST, kind=Kind.MODEL)
    family: Text | None = declared("Only this family, such as llama.", rare=True)
    moe: Switch | None = declared("Only mixtures of experts, or only dense.", off="--dense", rare=True)


class GpusRequest(Request):
    """
    Examples:
      tokonomics gpus
      tokonomics gpus --min-memory 80 --architecture hopper
      tokonomics gpus "NVIDIA H100 80GB HBM3" --json
    """

    match: Text | None = declared("Only names that contain this.", place=Placement.FIRST)
    min_memory: Number | None = declared("At least this many GB of memory.", unit="GB", rare=True)
    architecture: Text | None = declared("Only this one, such as hopper.", rare=True)


class OffersRequest(SomeGpus, Market, about=About.ANSWER):
    """
    Examples:
      tokonomics offers --gpu H100
      tokonomics offers --gpu L4,T4 --provider aws,gcp --terms spot
      tokonomics offers --offers my.csv --discount aws=0.2 --json
      tokonomics offers chat.toml
    """

    terms: Text = declared("on_demand, spot or reserved: which price to sort by.", "on_demand")
    max_price: Number | None = declared("The most dollars per GPU-hour.", example=4.0, unit="USD/h", rare=True)
    top: Whole = declared("Rows to show.", 25, low=1)


class PricesRefreshRequest(Request):
    """
    The old prices stay where a provider fails.

    Examples:
      tokonomics offers --refresh
      tokonomics offers --refresh --provider aws,gcp
      tokonomics offers --refresh --source gpuhunt
    """

    source: Text = declared("skypilot (public catalogue files) or gpuhunt (extra \\[live]).", "skypilot")
    url: Text | None = declared("Where the catalogue files are, instead of the public place.", rare=True)
    provider: Texts | None = declared("Only these providers.", example=["aws", "gcp"])


class ApisRequest(Request):
    """
    Input, cached, output and batch prices; unknown ones say so.

    Examples:
      tokonomics apis gpt-4o --host openai
      tokonomics apis llama-3.3-70b
      tokonomics apis gemini --input 300000 --output 1000
    """

    match: Text | None = declared("Only models that contain this, or host:model.", place=Placement.FIRST)
    host: Text | None = declared("Only this host, such as openai.")
    input: Tokens = declared("Prompt tokens of a request, to price one.", 1000, low=0, high=10**8, unit="tokens")
    output: Tokens = declared("Answer tokens of a request, to price one.", 300, low=0, high=10**8, unit="tokens")
    litellm: Text | None = declared("Also read this litellm-format price file (JSON).", kind=Kind.FILE, rare=True)
    top: Whole = declared("Rows to show.", 25, low=1)


class DoctorRequest(Request):
    """
    Says which files and GPUs are found and how old the prices are, without asking the network. Exits with 1 if
    something that is needed is broken. Made to be pasted into a bug report.

    Examples:
      tokonomics --doctor
      tokonomics --doctor --json
    """
