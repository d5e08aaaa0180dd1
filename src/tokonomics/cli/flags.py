"""The flags that verbs share, each declared once: the same name, type, bounds and words wherever it is taken.

A flag that some verbs take once and others several times (one GPU to run on, several to choose from) is declared in
both ways, side by side.
"""

from pathlib import Path
from typing import Annotated

import typer

# What is served

ModelPlace = Annotated[
    str,
    typer.Argument(
        help="A name (see `tokonomics models`) or a config.json; or a scenario file.", metavar="MODEL | SCENARIO.toml"
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        help="A name (see `tokonomics models`) or a config.json; or a scenario file.", metavar="MODEL | SCENARIO.toml"
    ),
]
ModelPlaces = Annotated[
    list[str],
    typer.Argument(
        help="Names (see `tokonomics models`) or config.json files; or a scenario file.",
        metavar="MODEL… | SCENARIO.toml",
    ),
]
Model = Annotated[str | None, typer.Option("--model", help="The model, by name.")]
LoraRank = Annotated[int, typer.Option(help="Rank of LoRA adapters served beside the base model.")]
LoraAdapters = Annotated[int, typer.Option(help="How many adapters are loaded.")]

# What serves it

GpuName = Annotated[str, typer.Option("--gpu", help="GPU to run it on.")]
GpuOrNone = Annotated[str | None, typer.Option("--gpu", help="GPU to run it on.")]
GpuNames = Annotated[
    list[str] | None,
    typer.Option("--gpu", help="Only these GPUs: names with commas, or repeat.", show_default="all with offers"),
]
Tp = Annotated[int, typer.Option(help="Tensor parallelism: GPUs that share each layer.")]
Pp = Annotated[int, typer.Option(help="Pipeline stages: groups of GPUs that share the layers.")]
Ep = Annotated[int, typer.Option(help="Expert parallelism: groups of GPUs that share the experts.")]
Weights = Annotated[str | None, typer.Option(help="Precision of the weights.", show_default="the checkpoint's own")]
WeightsChoice = Annotated[
    list[str] | None,
    typer.Option("--weights", help="Only these precisions of the weights.", show_default="all that it can have"),
]
MinWeights = Annotated[str | None, typer.Option(help="No precision of the weights below this one, such as fp8.")]
Kv = Annotated[str, typer.Option(help="Precision of the KV cache: bf16 or fp8.")]
KvChoice = Annotated[
    list[str] | None, typer.Option("--kv", help="Only these precisions of the KV cache.", show_default="bf16,fp8")
]
EngineName = Annotated[str, typer.Option("--engine", help="Serving engine: its rules, limits and own time.")]
EngineChoice = Annotated[
    list[str] | None, typer.Option("--engine", help="Serving engines, or all.", show_default="vllm")
]
MaxSequences = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="Sequences at once.", show_default="the engine's own")
]
MaxBatchedTokens = Annotated[
    int | None, typer.Option(min=1, max=1 << 20, help="Tokens of one step.", show_default="the engine's own")
]
NoPrefixCache = Annotated[bool, typer.Option("--no-prefix-cache", help="Compute every prompt in full.")]
ByPriority = Annotated[bool, typer.Option("--priority", help="Serve by the trace's priorities instead of in order.")]
TimeoutText = Annotated[str | None, typer.Option("--timeout", help="Clients hang up after: 30, 500ms, 2m.")]
_ROUTERS = "How requests find a replica: round-robin, least-outstanding, power-of-two or prefix-aware."
RouterName = Annotated[str, typer.Option("--router", help=_ROUTERS)]
RouterChoice = Annotated[
    str | None, typer.Option("--router", help=_ROUTERS, show_default="whichever needs fewest replicas")
]
Spare = Annotated[
    int | None,
    typer.Option(min=0, max=1000, help="Replicas that may fail with every promise still kept.", show_default="0"),
]
MaxUtilization = Annotated[
    float | None,
    typer.Option(help="Load replicas to at most this share.", show_default="what the promise allows; 0.7 quick"),
]
TiersText = Annotated[
    str | None,
    typer.Option(
        "--tiers", help="Memories behind the GPU, GB a replica (remote: for all): dram=200,ssd=2000@0; @ is $/GB-hour."
    ),
]

# What arrives

TraceName = Annotated[
    str | None, typer.Option("--trace", help="Your request log, or a sample such as azure-conv (docs/traffic.md).")
]
Columns = Annotated[
    str | None,
    typer.Option(help="Which column of the log is what: arrival=TIME,input=PROMPT_TOKENS,output=ANSWER_TOKENS."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first row of the log that cannot be used.")]
From = Annotated[str | None, typer.Option("--from", help="Leave out what arrives before: 600, 10m, 2h.")]
To = Annotated[str | None, typer.Option("--to", help="Leave out what arrives from then on.")]
Sample = Annotated[float | None, typer.Option(help="Keep requests with this probability; prefix reuse falls.")]
Speed = Annotated[float | None, typer.Option(help="Replay so many times as fast.")]
Rate = Annotated[
    str | None, typer.Option("--rate", help="Requests a second, on average; a log is replayed at this rate.")
]
Rates = Annotated[
    str | None,
    typer.Option("--rate", help="Requests a second, on average; a log is replayed at this rate. Or low:mid:high."),
]
TokensPerMonth = Annotated[
    str | None, typer.Option(help="Instead of --rate: prompt and answer tokens a month, such as 2B.")
]
ArrivalsText = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        help="How made-up requests arrive: gamma:2,cv=3, diurnal:5,peak=3 … (docs/traffic.md)",
        show_default="poisson, at --rate",
    ),
]
Requests = Annotated[
    int | None, typer.Option(help="So many requests; of a log the first so many.", show_default="20,000 with --rate")
]
Duration = Annotated[str | None, typer.Option(help="Make requests up for so long: 90, 10m, 2h, 1d.")]
InputText = Annotated[
    str | None,
    typer.Option("--input", help="Prompt tokens: 512, lognormal:mean=800,p99=6000, uniform:100-900, sample:sharegpt."),
]
OutputText = Annotated[
    str | None, typer.Option("--output", help="Answer tokens, likewise.", show_default="pairs of --input's sample")
]
SystemText = Annotated[
    str | None, typer.Option("--system-prompts", help="Shared heads of prompts: 20,tokens=1000,skew=1.")
]
SessionsText = Annotated[
    str | None, typer.Option("--sessions", help="Conversations: mean turns, think time: 5,think=30,limit=32000.")
]
TenantsText = Annotated[
    str | None, typer.Option("--tenants", help="Customers of unequal size: 10,skew=1,priorities=0/1/…")
]
ServegenModel = Annotated[
    str | None,
    typer.Option("--servegen-model", help="Of ServeGen's clients: whose, where it describes several models."),
]
ServegenScale = Annotated[
    float | None, typer.Option("--servegen-scale", help="Of ServeGen's clients: so many times their rate.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random: equal seeds give equal traffic.")]

# What is promised

SloText = Annotated[
    str | None,
    typer.Option("--slo", help="Promises: ttft_p99=0.5,tpot_p99=50ms,e2e_p90=20 (p50 … p99, mean)."),
]
Offline = Annotated[bool, typer.Option("--offline", help="A batch: nothing is promised, work is fed evenly.")]

# What it costs

UsdPerHour = Annotated[
    float | None, typer.Option(help="Price of one GPU-hour.", show_default="the cheapest offer, if there is one")
]
Provider = Annotated[list[str] | None, typer.Option(help="Only these providers.")]
Region = Annotated[list[str] | None, typer.Option(help="Only these regions: us-east-1, or us for all of them.")]
TermsChoice = Annotated[
    list[str] | None,
    typer.Option("--terms", help="Only these terms: on_demand, spot, reserved or all.", show_default="on_demand"),
]
Discount = Annotated[list[str] | None, typer.Option(help="Your discount at a provider: aws=0.2.")]
OffersFile = Annotated[
    Path | None, typer.Option("--offers", help="Your own price list (CSV) instead of the shipped one.")
]
MaxPrice = Annotated[float | None, typer.Option(help="The most dollars per GPU-hour.")]
MaxAge = Annotated[
    int | None, typer.Option(min=0, help="Leave out prices older than this many days.", show_default="365")
]

# How it is answered

Quick = Annotated[bool, typer.Option("--quick", help="Closed form only: means instead of percentiles.")]
Top = Annotated[int | None, typer.Option(min=1, help="Rows to show.", show_default="10; all with --json")]
