"""Whatever is typed, a verb answers cleanly or refuses with one message that says what, where and what to do.

A refusal exits with 2, leaves standard output empty and shows no traceback.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.command import Call

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.json"
RESULTS = Path(__file__).parents[1] / "measure" / "results"
NOWHERE = "http://127.0.0.1:9"

PLAN = ("plan", "llama-3.1-8b", "--rate=5", "--input=1000", "--output=300", "--quick", f"--offers={OFFERS}")
FIT = ("predict", "llama-3.1-8b", "--gpu=H100", "--fit")
PREDICT = ("predict", "llama-3.1-8b", "--gpu=H100")
CURVE = ("predict", "llama-3.1-8b", "--gpu=H100", "--curve", "--usd-per-hour=2.21")
COST = ("cost", "--usd-per-hour=2.21", "--tokens-per-second=2400")
TRACE = ("trace", "--arrivals=poisson:5", "--requests=50", "--input=512", "--output=9")
PRICED = (*TRACE, "--machine-tokens-per-second=5000", "--machine-usd-per-hour=2")
SERVED = ("--model=llama-3.1-8b", "--gpu=H100", "--input=512", "--output=9", "--usd-per-hour=3")
SIMULATE = ("simulate", *SERVED, "--arrivals=poisson:5", "--requests=50")
APART = (*SIMULATE, "--prefill-replicas=1")
CAPACITY = ("simulate", "--capacity", *SERVED, "--slo=ttft_p99=1")
VALIDATE = ("calibrate", "--score", str(STEPS))
MODELS = ("models",)
GPUS = ("gpus",)
OFFERED = ("offers", f"--offers={OFFERS}")
APIS = ("apis", "gpt-4o", "--host=openai")
IMPORT = ("import", str(RESULTS / "inferencex.json"), "--usd-per-hour=3")
BENCH = ("bench", NOWHERE, "--model=m", "--retries=0", "--requests=2", "--usd-per-hour=3")
REFRESH = ("offers", "--refresh", f"--url={NOWHERE}", "--provider=aws")

Command = tuple[str, ...]

NUMBERS: list[tuple[Command, str]] = [
    *((PLAN, each) for each in ("rate", "input", "output", "gpus", "max-price", "max-utilization", "top")),
    *((PLAN, each) for each in ("max-age", "seed", "spare")),
    *((FIT, each) for each in ("tp", "pp", "context")),
    *((PREDICT, each) for each in ("batch", "context", "tp", "pp", "ep")),
    *((CURVE, each) for each in ("context", "tp", "pp", "ep", "usd-per-hour")),
    *((COST, each) for each in ("tokens-per-second", "usd-per-hour", "gpus", "utilization", "target")),
    *((COST, each) for each in ("input", "output")),
    *((TRACE, each) for each in ("requests", "speed", "sample", "seed")),
    *((PRICED, each) for each in ("machine-tokens-per-second", "machine-usd-per-hour")),
    *((SIMULATE, each) for each in ("tp", "pp", "ep", "replicas", "prefill-replicas", "max-sequences")),
    *((SIMULATE, each) for each in ("max-batched-tokens", "usd-per-hour", "requests", "speed", "sample", "seed")),
    (APART, "link"),
    *((CAPACITY, each) for each in ("tp", "requests", "max-sequences", "usd-per-hour")),
    *((IMPORT, each) for each in ("gpus", "tp", "pp", "ep", "usd-per-hour")),
    *((BENCH, each) for each in ("input", "output", "requests", "seconds", "precision")),
    *((BENCH, each) for each in ("max-usd", "gpus", "tp", "usd-per-hour", "timeout", "speed")),
    (GPUS, "min-memory"),
    *((OFFERED, each) for each in ("max-price", "top")),
    *((APIS, each) for each in ("input", "output", "top")),
]
ZERO_IS_FINE = {
    *[("plan", "max-age"), ("plan", "seed"), ("plan", "spare")],
    ("gpus", "min-memory"),
    *[("trace", "seed"), ("simulate", "seed"), ("simulate", "prefill-replicas")],
    *[("apis", "input"), ("apis", "output"), ("cost", "input"), ("cost", "output")],
}

NAMES: list[tuple[Command, str]] = [
    *((PLAN, each) for each in ("gpu", "gpus", "provider", "region", "terms", "discount", "weights", "min-weights")),
    *((PLAN, each) for each in ("kv", "engine", "slo", "arrivals")),
    *((("plan", "llama-3.1-8b", "--trace=azure-conv", "--quick"), each) for each in ("from", "to", "columns")),
    (("plan", "llama-3.1-8b", "--quick"), "trace"),
    *((command, each) for command in (FIT, PREDICT, CURVE) for each in ("gpu", "weights", "kv", "engine")),
    (VALIDATE, "split"),
    (("cost", "--tokens-per-second=2400"), "gpu"),
    (COST, "load"),
    *((TRACE, each) for each in ("arrivals", "input", "output", "duration", "from", "to", "columns")),
    *((TRACE, each) for each in ("system-prompts", "sessions", "tenants", "servegen-model")),
    *((command, each) for command in (SIMULATE, CAPACITY) for each in ("model", "gpu", "engine", "kv", "weights")),
    *(
        (command, each)
        for command in (SIMULATE, CAPACITY)
        for each in ("arrivals", "input", "router", "timeout", "slo")
    ),
    *((SIMULATE, each) for each in ("duration", "from", "to", "sessions", "tenants", "autoscale", "outage", "trace")),
    (("simulate", *SERVED[:2]), "trace"),
    (("simulate", "--capacity", *SERVED[:2]), "trace"),
    *((IMPORT, each) for each in ("gpu", "engine", "kv", "weights", "slo", "model")),
    *((BENCH, each) for each in ("gpu", "engine", "kv", "weights", "slo", "concurrency", "rate", "trace")),
    (MODELS, "family"),
    (GPUS, "architecture"),
    *((OFFERED, each) for each in ("gpu", "provider", "region", "terms", "discount")),
    (("apis", "gpt-4o"), "host"),
    *((REFRESH, each) for each in ("source", "url", "provider")),
]
FILES: list[tuple[Command, str]] = [
    (PLAN[:-1], "offers"),
    (("cost", "--gpu=H100", "--tokens-per-second=2400"), "offers"),
    (("offers",), "offers"),
    (APIS, "litellm"),
]
POSITIONAL: list[tuple[Command, Command]] = [
    (("plan",), PLAN[2:]),
    (("predict",), FIT[2:]),
    (("predict",), PREDICT[2:]),
    (("predict",), CURVE[2:]),
    (("trace",), ()),
    (("calibrate", "--score"), ()),
    (("import",), ()),
    (("bench",), ()),
    (("models",), ()),
    (("gpus",), ()),
    (("apis",), ()),
]


def named(value: object) -> str:
    """A test's name: the verb, or the option."""
    if isinstance(value, tuple):
        return str(value[0]) if value and not value[0].startswith("-") else ""
    return str(value)[:24].encode("unicode_escape").decode() if isinstance(value, str) else ""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, new_folder: Callable[[], Path]) -> None:
    monkeypatch.chdir(new_folder())


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one message with which a command was refused."""
    assert "Traceback" not in done.stderr, f"{done.args}\n{done.stderr}"
    assert done.returncode == 2, f"{done.args} → {done.returncode}\n{done.stdout[:600]}{done.stderr}"
    assert done.stdout == "", done.args
    assert done.stderr.startswith(("error: ", "Usage: ", "Error: ")), done.stderr
    assert len(re.findall(r"^error: |^Error: ", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr), f"{done.args}\n{done.stderr!r}"
    typed = " ".join(map(str, done.args))
    assert "None" in typed or not re.search(r"\bNone\b", done.stderr), done.stderr
    assert len(done.stderr) < 4000, f"{done.args}: {len(done.stderr)} characters"
    return done.stderr


def settled(done: subprocess.CompletedProcess[str]) -> None:
    """Refused properly, or answered: with something, without complaints, with numbers that are numbers."""
    nothing_fits = done.returncode == 1 and (
        "No offer meets these constraints" in done.stdout or '"best": null' in done.stdout
    )
    if done.returncode and not nothing_fits:
        refusal(done)
        return
    assert done.stderr == "", f"{done.args}\n{done.stderr}"
    assert done.stdout.strip(), done.args
    # A score quotes what it could not use; everything else is our own.
    ours = re.sub(r'"not_predicted": {.*?}', "", done.stdout, flags=re.DOTALL).partition("not predicted (")[0]
    assert not re.search(r"\b(nan|NaN|inf|Infinity)\b(?! Fabric)", ours), f"{done.args}\n{done.stdout}"


def joined(message: str) -> str:
    """A message without the lines that it was wrapped into."""
    return re.sub(r"\s+", " ", message)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "nearest"),
    [
        ((*PLAN[:1], "llama-3.1-8bb", *PLAN[2:]), "llama-3.1-8b"),
        ((*FIT[:1], "lama-3.1-70b", *FIT[2:]), "llama-3.1-70b"),
        (("models", "--family=lamma"), "Llama"),
        ((*PLAN, "--gpu=H1000"), "H100"),
        ((*PLAN, "--gpus=H1000"), "H100"),
        ((*PREDICT, "--gpu=A1000"), "A100"),
        (("cost", "--tokens-per-second=1", "--gpu=H1000"), "H100"),
        (("gpus", "--architecture=hoper"), "hopper"),
        ((*CURVE, "--engine=vlm"), "vllm"),
        (("trace", "azure-con"), "azure-conv"),
        ((*SIMULATE, "--router=round-robbin"), "round-robin"),
        ((*TRACE, "--arrivals=poison:5"), "poisson"),
        ((*TRACE, "--input=sample:sharegtp"), "sharegpt"),
        ((*PLAN, "--provider=awz"), "aws"),
        ((*REFRESH[:-1], "--provider=awz"), "aws"),
        ((*REFRESH, "--source=skypilott"), "skypilot or"),
        ((*OFFERED, "--region=us-east-9"), "us-east-1"),
        ((*PLAN, "--weights=fp9"), "fp8"),
        ((*PLAN, "--terms=spott"), "spot?"),
        (("apis", "gpt-4o", "--host=opeanai"), "openai"),
        (("plann",), "plan"),
        ((*PLAN, "--sloo=1"), "--slo"),
    ],
    ids=lambda value: " ".join(part for part in value[:1] + value[-1:]) if isinstance(value, tuple) else "",
)
def test_an_unknown_name_is_refused_with_the_nearest(tokonomics: Call, args: Command, nearest: str) -> None:
    assert nearest in joined(refusal(tokonomics(*args)))


@pytest.mark.parametrize("command", [PREDICT, CURVE, SIMULATE, CAPACITY], ids=named)
@pytest.mark.parametrize(
    ("options", "field"), [(("--tp=3",), "--tp"), (("--pp=33",), "--pp"), (("--tp=2", "--ep=2"), "--ep")]
)
def test_an_impossible_split_names_its_option(tokonomics: Call, command: Command, options: Command, field: str) -> None:
    assert field in refusal(tokonomics(*command, *options))


text = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=12).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.sampled_from(["aws", "H100", "spot", "bf16", "llama", ",", "=", ",,", "aws=", "=0.2", "8x", "x", "1x1", "nan"]),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), text, st.booleans())
def test_any_text_for_an_option(tokonomics: Call, where: tuple[Command, str], value: str, as_json: bool) -> None:
    command, option = where
    if command == REFRESH and option != "source":
        return  # reaches for the network, which has its own tests
    done = tokonomics(*command, f"--{option}={value}", *["--json"] * as_json)
    settled(done)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POSITIONAL), text.filter(lambda value: not value.startswith("-")))
def test_any_text_for_an_argument(tokonomics: Call, where: tuple[Command, Command], value: str) -> None:
    before, after = where
    done = tokonomics(*before, value, *after)
    if not done.returncode:
        assert done.stderr == ""
    else:
        refusal(done)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=named)
@pytest.mark.parametrize("number", ["-1", "nan", "1e400", "ten"])
def test_what_is_no_positive_number_is_refused(tokonomics: Call, command: Command, option: str, number: str) -> None:
    message = refusal(tokonomics(*command, f"--{option}={number}"))
    assert option.split("-")[-1] in message.lower() or "GPU" in message


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=named)
def test_zero_is_refused_where_it_means_nothing(tokonomics: Call, command: Command, option: str) -> None:
    done = tokonomics(*command, f"--{option}=0")
    if (command[0], option) in ZERO_IS_FINE:
        settled(done)
        assert done.returncode in (0, 1)  # 1: nothing fits
    else:
        refusal(done)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(NUMBERS),
    st.one_of(st.floats().map(repr), st.integers().map(str), st.integers(-(10**40), 10**40).map(str)),
    st.booleans(),
)
def test_any_number_of_an_option(tokonomics: Call, where: tuple[Command, str], number: str, as_json: bool) -> None:
    command, option = where
    settled(tokonomics(*command, f"--{option}={number}", *["--json"] * as_json))


@settings(max_examples=5, deadline=None)
@given(
    st.floats(min_value=0, exclude_min=True, max_value=1e9),
    st.integers(1, 10**8),
    st.integers(1, 10**8),
    st.floats(min_value=0, exclude_min=True, max_value=1),
    st.booleans(),
)
def test_plan_of_any_traffic(
    tokonomics: Call, rate: float, prompt: int, output: int, most: float, as_json: bool
) -> None:
    traffic = (f"--rate={rate}", f"--input={prompt}", f"--output={output}", f"--max-utilization={most}")
    settled(tokonomics("plan", "llama-3.1-8b", *traffic, f"--offers={OFFERS}", *["--json"] * as_json))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([(), ("--curve",)]),
    st.sampled_from(["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"]),
    st.sampled_from(["T4", "L40S", "H100", "MI300X", "B200"]),
    st.sampled_from(["vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp"]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 200_000),
    st.booleans(),
)
def test_any_deployment_is_predicted_or_refused(
    tokonomics: Call, curve: Command, model: str, gpu: str, engine: str, tp: int, context: int, as_json: bool
) -> None:
    where = (f"--gpu={gpu}", f"--engine={engine}", f"--tp={tp}", f"--context={context}")
    settled(tokonomics("predict", model, *curve, *where, *["--json"] * as_json))


# --- contradictions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*COST, "--gpu=H100"), ["--usd-per-hour", "--gpu"]),
        (("cost", "--tokens-per-second=1"), ["--usd-per-hour", "--gpu"]),
        ((*COST, "--utilization=0.5", "--load=24x0.7"), ["--utilization", "--load"]),
        ((*COST, f"--offers={OFFERS}"), ["--offers", "--gpu"]),
        ((*PLAN, "--weights=int4", "--min-weights=bf16"), ["--min-weights", "int4", "bf16"]),
        ((*PLAN, "--discount=aws=0.2", "--discount=aws=0.3"), ["aws", "discount"]),
        ((*OFFERED, "--discount=aws=0.2,aws=0.3"), ["aws", "discount"]),
        ((*REFRESH, "--source=gpuhunt"), ["gpuhunt"]),
        ((*PREDICT, "--fit", "--curve"), ["--fit", "--curve"]),
        ((*PREDICT, "--usd-per-hour=2"), ["--usd-per-hour", "predict --curve"]),
        ((*FIT, "--batch=2"), ["--batch"]),
        ((*CAPACITY, "--replicas=2"), ["--replicas"]),
        (("cost", "--gpu=RTX4090", "--tokens-per-second=1", f"--offers={OFFERS}"), ["RTX4090", "price"]),
    ],
    ids=lambda value: " ".join(value[-2:]).replace(str(OFFERS), "OFFERS") if isinstance(value, tuple) else "",
)
def test_options_that_contradict_each_other_are_refused(tokonomics: Call, args: Command, says: list[str]) -> None:
    message = joined(refusal(tokonomics(*args)))
    assert [say for say in says if say not in message] == []


@pytest.mark.parametrize(
    "args",
    [
        *[("plan",), ("plan", "--against=a.toml"), ("predict",), ("predict", "llama-3.1-8b"), ("predict", "--fit")],
        *[("cost",), ("calibrate",), ("calibrate", "--score"), ("predict", "a", "b", "--fit"), ("gpus", "a", "b")],
        *[("",), (*COST, "--json=yes"), ("models", "--moe=1")],
    ],
    ids=" ".join,
)
def test_what_is_missing_or_too_much_is_refused(tokonomics: Call, args: Command) -> None:
    refusal(tokonomics(*args))


# --- files ----------------------------------------------------------------------------------------------------------


def unusable(folder: Path, kind: str) -> Path:
    """A path that no file can be read from."""
    path = folder / "given"
    if kind == "a folder":
        path.mkdir()
    elif kind in ("empty", "under a file"):
        path.touch()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 8)
    special = {"under a file": path / "x", "long": folder / ("y" * 5000), "\a\r": folder / "given\a\r"}
    return special.get(kind, path)


@pytest.mark.parametrize("command", [*((*command, f"--{option}=") for command, option in FILES),
                                     ("calibrate", "--score", ""), ("trace", "")], ids=named)  # fmt: skip
@pytest.mark.parametrize("kind", ["missing", "empty", "a folder", "binary", "under a file", "long", "\a\r"], ids=named)
def test_an_unusable_file_is_named(tokonomics: Call, tmp_path: Path, command: Command, kind: str) -> None:
    *before, option = command
    message = refusal(tokonomics(*before, f"{option}{unusable(tmp_path, kind)}"))
    assert str(tmp_path) in joined(message).replace(" ", "")


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


json_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
json_values = json_scalars | st.lists(json_scalars, max_size=3)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(LLAMA)), json_values, max_size=2), st.integers(0, 400))
def test_any_config_is_answered_or_refused(
    tokonomics: Call, tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object], cut: int
) -> None:
    file = tmp_path_factory.mktemp("any") / "config.json"
    file.write_text(json.dumps({**LLAMA, **changes})[: cut if cut < 100 else None], encoding="utf-8")
    settled(tokonomics("predict", file, "--gpu=H100", "--fit"))
    settled(tokonomics("predict", file, "--gpu=H100", "--curve", "--usd-per-hour=1"))


# --- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [PLAN, FIT, PREDICT, CURVE, SIMULATE, CAPACITY, VALIDATE, MODELS, GPUS, OFFERED, APIS], ids=named
)
@pytest.mark.parametrize(
    ("content", "says"), [(None, "no such file"), ("[models", "not valid TOML"), ("[model.x]", "Did you mean models")]
)
def test_a_catalogue_of_the_users_that_is_wrong_is_named(
    tokonomics: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command, content: str | None, says: str
) -> None:
    file = tmp_path / "catalog.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(file))
    message = refusal(tokonomics(*command))
    assert str(file) in message
    assert says in message


@pytest.mark.parametrize("command", [PLAN, OFFERED, APIS, CURVE[:-1]], ids=named)
def test_a_day_that_is_none_is_refused(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", "tomorrow")
    message = refusal(tokonomics(*command))
    assert "TOKONOMICS_TODAY" in message
    assert "2026-08-22" in message


@pytest.mark.parametrize(
    "command", [PLAN[:-1], ("offers",), ("cost", "--gpu=H100", "--tokens-per-second=1"), CURVE[:-1]], ids=named
)
def test_a_spoilt_price_cache_says_how_to_mend_it(
    tokonomics: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "offers.csv").write_text("provider,instance\n", encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path))
    message = refusal(tokonomics(*command))
    assert str(tmp_path / "offers.csv") in message
    assert "tokonomics offers --refresh" in message


# --- charts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [PLAN, CURVE, VALIDATE, TRACE, SIMULATE, CAPACITY], ids=named)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing/plan.svg", ["--chart", "missing", "does not exist"]),
        ("plan.pdf", ["--chart", "'.pdf'", ".svg, .png, .html, .json"]),
        ("plan", ["--chart", "'plan'", ".svg, .png, .html, .json"]),
        ("a-folder.svg", ["a-folder.svg"]),
        ("y" * 300 + ".svg", ["yyy"]),
        ("", ["--chart"]),
        ("plan.svg\n", ["--chart"]),
        ("\a\r.gif", ["--chart"]),
    ],
    ids=named,
)
def test_an_unsaved_chart_leaves_nothing_behind(
    tokonomics: Call, tmp_path: Path, command: Command, name: str, says: list[str]
) -> None:
    (tmp_path / "a-folder.svg").mkdir()
    before = sorted(tmp_path.rglob("*"))
    target = tmp_path / name if name else Path()
    message = joined(refusal(tokonomics(*command, f"--chart={target}")))
    assert [say for say in says if say not in message] == []
    assert sorted(tmp_path.rglob("*")) == before
    assert list(Path().iterdir()) == []


def test_a_chart_name_is_checked_even_if_nothing_can_be_drawn(tokonomics: Call, tmp_path: Path) -> None:
    assert "--chart" in refusal(tokonomics(*PLAN, "--max-price=0.01", f"--chart={tmp_path / 'plan.pdf'}"))
    steps = tmp_path / "steps.json"
    steps.write_text('{"gpu": "H200", "rows": [1]}', encoding="utf-8")
    assert "--chart" in refusal(tokonomics("calibrate", "--score", steps, f"--chart={tmp_path / 'plan.pdf'}"))


@pytest.mark.parametrize(
    "args", [("predict", "--fit"), ("predict", "llama-3.1-8b", "--curve"), ("cost",), ("tenants",)]
)
def test_what_is_missing_is_shown_in_an_example(tokonomics: Call, args: Command) -> None:
    *_, example = refusal(tokonomics(*args)).splitlines()
    words = example.partition("Such as: tokonomics ")[2].split()
    assert words[0] == args[0]
