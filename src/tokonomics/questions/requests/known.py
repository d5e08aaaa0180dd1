"""What is asked of the catalogue and of the installation (see ``verbs``)."""

from tokonomics.questions.inputs import About, Market, ModelSource, SomeGpus
from tokonomics.questions.request import Kind, Number, Placement, Request, Switch, Text, Texts, Tokens, Whole, declared


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
