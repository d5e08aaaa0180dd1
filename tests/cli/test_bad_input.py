"""Whatever is typed, a verb answers cleanly or refuses with one message that says what, where and what to do.

A refusal exits with 2, leaves standard output empty and shows no traceback. Promised in DESIGN.md, section 8.
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

Call = Callable[..., subprocess.CompletedProcess[str]]

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
NOWHERE = "http://127.0.0.1:9"

PLAN = ("plan", "llama-3.1-8b", "--rate=5", "--input=1000", "--output=300", f"--offers={OFFERS}")
FIT = ("fit", "llama-3.1-8b", "--gpu=H100")
COST = ("cost", "--usd-per-hour=2.21", "--tokens-per-second=2400")
MODELS = ("models",)
GPUS = ("gpus",)
OFFERED = ("offers", f"--offers={OFFERS}")
APIS = ("apis", "gpt-4o", "--host=openai")
REFRESH = ("prices", "refresh", f"--url={NOWHERE}", "--provider=aws")

Command = tuple[str, ...]

NUMBERS: list[tuple[Command, str]] = [
    *((PLAN, each) for each in ("rate", "input", "output", "tpot", "gpus", "max-price", "max-utilization", "top")),
    *((FIT, each) for each in ("tp", "pp", "context")),
    *((COST, each) for each in ("tokens-per-second", "usd-per-hour", "gpus", "utilization", "target")),
    *((COST, each) for each in ("input", "output")),
    (GPUS, "min-memory"),
    *((OFFERED, each) for each in ("max-price", "top")),
    *((APIS, each) for each in ("input", "output", "top")),
]
ZERO_IS_FINE = {("gpus", "min-memory"), ("apis", "input"), ("apis", "output"), ("cost", "input"), ("cost", "output")}

NAMES: list[tuple[Command, str]] = [
    *((PLAN, each) for each in ("gpu", "gpus", "provider", "region", "terms", "discount", "weights", "min-weights")),
    *((PLAN, each) for each in ("kv", "engine")),
    *((FIT, each) for each in ("gpu", "weights", "kv", "engine")),
    (("cost", "--tokens-per-second=2400"), "gpu"),
    (COST, "load"),
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
    (("fit",), FIT[2:]),
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
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("cwd"))


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one message with which a command was refused."""
    assert "Traceback" not in done.stderr, f"{done.args}\n{done.stderr}"
    assert done.returncode == 2, f"{done.args} → {done.returncode}\n{done.stdout[:600]}{done.stderr}"
    assert done.stdout == "", done.args
    assert done.stderr.lstrip().startswith(("error: ", "Usage: ", "╭─ Error")), done.stderr
    assert len(re.findall(r"^error: |─ Error ─", done.stderr, re.MULTILINE)) == 1, done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stderr), f"{done.args}\n{done.stderr!r}"
    assert not re.search(r"\bNone\b", done.stderr), done.stderr
    assert len(done.stderr) < 4000, f"{done.args}: {len(done.stderr)} characters"
    return done.stderr


def settled(done: subprocess.CompletedProcess[str]) -> None:
    """Refused properly, or answered: with something, without complaints, with numbers that are numbers."""
    if done.returncode:
        refusal(done)
        return
    assert done.stderr == "", f"{done.args}\n{done.stderr}"
    assert done.stdout.strip(), done.args
    assert not re.search(r"\b(nan|NaN|inf|Infinity)\b(?! Fabric)", done.stdout), f"{done.args}\n{done.stdout}"


def joined(message: str) -> str:
    """A message without the lines and frames it was wrapped into."""
    return re.sub(r"[\s│]+", " ", message)


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*PLAN[:1], "llama-3.1-8bb", *PLAN[2:]), ["unknown model 'llama-3.1-8bb'", "llama-3.1-8b", "config.json"]),
        ((*FIT[:1], "lama-3.1-70b", *FIT[2:]), ["unknown model 'lama-3.1-70b'", "llama-3.1-70b", "[models.my-model]"]),
        (("models", "no-such-model"), ["unknown model 'no-such-model'", "config.json"]),
        (("models", "--family=lamma"), ["unknown family 'lamma'", "Llama"]),
        ((*PLAN, "--gpu=H1000"), ["unknown GPU 'H1000'", "H100", "[gpus.MY-GPU]"]),
        ((*PLAN, "--gpus=H1000"), ["unknown GPU 'H1000'", "H100", "[gpus.MY-GPU]"]),
        (("fit", "llama-3.1-8b", "--gpu=A1000"), ["unknown GPU 'A1000'", "A100", "[gpus.MY-GPU]"]),
        (("cost", "--tokens-per-second=1", "--gpu=H1000"), ["unknown GPU 'H1000'", "H100"]),
        (("gpus", "H1000"), ["unknown GPU 'H1000'", "H100", "[gpus.MY-GPU]"]),
        (("gpus", "--architecture=hoper"), ["unknown architecture 'hoper'", "Did you mean hopper"]),
        ((*OFFERED, "--gpu=H1000"), ["unknown GPU 'H1000'", "H100"]),
        ((*PLAN, "--engine=vlm"), ["unknown engine 'vlm'", "Did you mean vllm", "sglang"]),
        ((*FIT, "--engine=vlm"), ["unknown engine 'vlm'", "Did you mean vllm", "sglang"]),
        ((*PLAN, "--provider=awz"), ["unknown provider 'awz'", "aws"]),
        ((*OFFERED, "--provider=awz"), ["unknown provider 'awz'", "aws"]),
        (("prices", "refresh", f"--url={NOWHERE}", "--provider=awz"), ["unknown provider 'awz'", "aws"]),
        ((*PLAN, "--region=us-east-9"), ["unknown region 'us-east-9'", "us-east-1"]),
        ((*OFFERED, "--region=us-east-9"), ["unknown region 'us-east-9'", "us-east-1"]),
        ((*PLAN, "--weights=fp9"), ["--weights", "'fp9'", "Valid:", "fp8", "int4"]),
        ((*PLAN, "--min-weights=fp9"), ["--min-weights", "'fp9'", "Valid:", "fp8", "int4"]),
        ((*FIT, "--weights=fp9"), ["--weights", "'fp9'", "Valid:", "fp8", "int4"]),
        ((*PLAN, "--kv=int4"), ["--kv", "'int4'", "Valid: bf16, fp8"]),
        ((*FIT, "--kv=int4"), ["--kv", "'int4'", "Valid: bf16, fp8"]),
        ((*PLAN, "--terms=spott"), ["--terms", "'spott'", "Did you mean spot"]),
        ((*OFFERED, "--terms=lease"), ["--terms", "'lease'", "on_demand", "spot", "reserved"]),
        (("apis", "gpt-4o", "--host=opeanai"), ["unknown API host 'opeanai'", "openai"]),
        (("prices", "refresh", "--source=skypilott"), ["skypilott", "skypilot", "gpuhunt"]),
        (("prices", "refresh", "--url=ftp://x", "--provider=aws"), ["ftp://x", "http"]),
        (("plann",), ["plann", "plan"]),
        ((*PLAN, "--tpott=1"), ["--tpott", "--tpot"]),
    ],
    ids=lambda value: " ".join(part for part in value[:1] + value[-1:]) if isinstance(value, tuple) else "",
)
def test_an_unknown_name_is_refused_with_the_nearest(tokonomics: Call, args: Command, says: list[str]) -> None:
    message = joined(refusal(tokonomics(*args)))
    assert [each for each in says if each not in message] == []


def test_tp_3_on_32_heads_lists_the_valid_degrees(tokonomics: Call) -> None:
    message = refusal(tokonomics(*FIT, "--tp=3"))
    assert "--tp" in message
    assert "tensor parallelism of 3 cannot split Llama 3.1 8B: it has 32 attention heads" in message
    assert "Valid degrees: 1, 2, 4, 8, 16, 32." in message


def test_more_stages_than_layers_names_the_layers(tokonomics: Call) -> None:
    message = refusal(tokonomics(*FIT, "--pp=33"))
    assert "--pp" in message
    assert "32" in message


def test_a_context_beyond_the_models_says_how_long_it_may_be(tokonomics: Call) -> None:
    message = refusal(tokonomics(*FIT, "--context=131073"))
    assert "--context" in message
    assert re.search("131,?072", message)


@pytest.mark.parametrize(("command", "option"), NAMES, ids=named)
def test_an_empty_name_is_refused(tokonomics: Call, command: Command, option: str) -> None:
    refusal(tokonomics(*command, f"--{option}="))


@pytest.mark.parametrize(("command", "option"), NAMES, ids=named)
def test_a_very_long_name_is_refused_in_a_short_message(tokonomics: Call, command: Command, option: str) -> None:
    refusal(tokonomics(*command, f"--{option}={'y' * 100_000}"))


@pytest.mark.parametrize(("before", "after"), POSITIONAL, ids=named)
@pytest.mark.parametrize("name", ["y" * 100_000, "\a\rred", "a\nb", "\u202egnp", "\udcff\udcfe", "💥", "~nobody/zzqq"])
def test_an_outlandish_name_is_refused_in_a_short_message(
    tokonomics: Call, before: Command, after: Command, name: str
) -> None:
    done = tokonomics(*before, name, *after)
    if before == ("apis",):
        settled(done)
    else:
        refusal(done)


@pytest.mark.parametrize(("command", "option"), NAMES, ids=named)
def test_control_characters_never_reach_the_terminal(tokonomics: Call, command: Command, option: str) -> None:
    refusal(tokonomics(*command, f"--{option}=zz\a\r\x1b]0;title\x07"))


text = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=12).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.sampled_from(["aws", "H100", "spot", "bf16", "llama", ",", "=", ",,", "aws=", "=0.2", "8x", "x", "1x1", "nan"]),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), text, st.booleans())
def test_any_text_for_any_option_is_answered_or_refused(
    tokonomics: Call, where: tuple[Command, str], value: str, as_json: bool
) -> None:
    command, option = where
    if command is REFRESH and option != "source":
        return  # reaches for the network, which has its own tests
    done = tokonomics(*command, f"--{option}={value}", *["--json"] * as_json)
    settled(done)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POSITIONAL), text.filter(lambda value: not value.startswith("-")))
def test_any_text_for_any_argument_is_answered_or_refused(
    tokonomics: Call, where: tuple[Command, Command], value: str
) -> None:
    before, after = where
    done = tokonomics(*before, value, *after)
    if not done.returncode:
        assert done.stderr == ""
    else:
        refusal(done)


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=named)
@pytest.mark.parametrize("number", ["-1", "nan", "inf", "-inf", "1e400", "ten", "", "1,5", "0x10"])
def test_what_is_no_positive_number_is_refused(tokonomics: Call, command: Command, option: str, number: str) -> None:
    message = refusal(tokonomics(*command, f"--{option}={number}"))
    assert option.split("-")[-1] in message.lower() or "GPU" in message


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=named)
def test_zero_is_refused_where_it_means_nothing(tokonomics: Call, command: Command, option: str) -> None:
    done = tokonomics(*command, f"--{option}=0")
    if (command[0], option) in ZERO_IS_FINE:
        settled(done)
        assert done.returncode == 0
    else:
        refusal(done)


@pytest.mark.parametrize(("command", "option"), NUMBERS, ids=named)
@pytest.mark.parametrize(
    "number",
    ["1e-320", "1e-9", str(2**63), str(10**30), str(10**400), "9" * 5000],
    ids=["1e-320", "1e-9", "2^63", "10^30", "10^400", "5000 nines"],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["table", "json"])
def test_an_absurd_number_is_answered_or_refused(
    tokonomics: Call, command: Command, option: str, number: str, form: list[str]
) -> None:
    settled(tokonomics(*command, f"--{option}={number}", *form))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(NUMBERS),
    st.one_of(st.floats().map(repr), st.integers().map(str), st.integers(-(10**40), 10**40).map(str)),
    st.booleans(),
)
def test_any_number_for_any_option_is_answered_or_refused(
    tokonomics: Call, where: tuple[Command, str], number: str, as_json: bool
) -> None:
    command, option = where
    settled(tokonomics(*command, f"--{option}={number}", *["--json"] * as_json))


@settings(max_examples=60, deadline=None)
@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, max_value=1),
    st.integers(1, 10**30),
    st.booleans(),
)
def test_cost_of_any_positive_numbers_is_answered_or_refused(
    tokonomics: Call, price: float, speed: float, utilization: float, gpus: int, as_json: bool
) -> None:
    terms = (f"--usd-per-hour={price}", f"--tokens-per-second={speed}", f"--utilization={utilization}")
    settled(tokonomics("cost", *terms, f"--gpus={gpus}", "--target=1", *["--json"] * as_json))


@settings(max_examples=40, deadline=None)
@given(
    st.floats(min_value=0, exclude_min=True, max_value=1e9),
    st.integers(1, 10**8),
    st.integers(1, 10**8),
    st.floats(min_value=0, exclude_min=True, max_value=1),
    st.booleans(),
)
def test_plan_of_any_traffic_in_range_is_answered_or_refused(
    tokonomics: Call, rate: float, prompt: int, output: int, most: float, as_json: bool
) -> None:
    traffic = (f"--rate={rate}", f"--input={prompt}", f"--output={output}", f"--max-utilization={most}")
    settled(tokonomics("plan", "llama-3.1-8b", *traffic, f"--offers={OFFERS}", *["--json"] * as_json))


def test_a_utilisation_in_percent_is_told_how_to_write_it(tokonomics: Call) -> None:
    assert "write 0.7" in refusal(tokonomics(*COST, "--utilization=70"))


# --- loads and discounts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "load",
    [
        *[
            "",
            "8",
            "x",
            "8x",
            "x0.5",
            "8x2",
            "8x-0.1",
            "0x1",
            "-8x1",
            "8x0.5,",
            "8x0.5;16x0",
            "nanx1",
            "8xnan",
            "infx1",
        ],
        *[
            "8x0.5x3",
            "8×0.5",
            "1e400x1",
            "8x1e400",
            f"{10**30}x1",
            "8x50%",
            "8x0",
            "8x0,16x0",
            "a" * 10_000,
            "\x1b[2Jx1",
        ],
    ],
    ids=named,
)
def test_a_load_that_is_no_load_is_refused_with_an_example(tokonomics: Call, load: str) -> None:
    message = refusal(tokonomics(*COST, f"--load={load}"))
    assert "--load" in message
    assert "8x0.99,16x0" in message or "never does any work" in message


def test_the_second_of_two_loads_is_checked_as_well(tokonomics: Call) -> None:
    assert "'8y1'" in refusal(tokonomics(*COST, "--load=24x0.7", "--load=8y1"))
    assert "never does any work" in refusal(tokonomics(*COST, "--load=24x0.7", "--load=8x0"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=4), st.sampled_from(["x", "X", " x ", "*"]))
def test_any_load_is_answered_or_refused(tokonomics: Call, steps: list[tuple[float, float]], by: str) -> None:
    settled(tokonomics(*COST, f"--load={','.join(f'{hours}{by}{share}' for hours, share in steps)}"))


@pytest.mark.parametrize("command", [PLAN, OFFERED], ids=named)
@pytest.mark.parametrize(
    "discount",
    [
        *["", "aws", "aws=", "=0.2", "aws=x", "aws=1", "aws=20", "aws=20%", "aws=-0.1", "aws=nan", "aws=inf"],
        *["aws=1e400", "aws=0.2=0.3", "0.2", "aws:0.2", "aws=0.2,", "aws=0.2,gcp"],
    ],
    ids=named,
)
def test_a_discount_that_is_none_is_refused_with_an_example(tokonomics: Call, command: Command, discount: str) -> None:
    done = tokonomics(*command, f"--discount={discount}")
    if discount == "aws=0.2,":
        settled(done)
        return
    assert "aws=0.2" in refusal(done)


@pytest.mark.parametrize("command", [PLAN, OFFERED], ids=named)
def test_a_discount_at_a_provider_without_offers_is_refused(tokonomics: Call, command: Command) -> None:
    message = refusal(tokonomics(*command, "--discount=awz=0.2"))
    assert "unknown provider 'awz'" in message
    assert "aws" in message


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
        (("prices", "refresh", "--source=gpuhunt", f"--url={NOWHERE}"), ["gpuhunt"]),
        (("cost", "--gpu=RTX4090", "--tokens-per-second=1", f"--offers={OFFERS}"), ["RTX4090", "price"]),
        ((*PLAN, "--input=131000", "--output=100"), ["131,072"]),
    ],
    ids=lambda value: " ".join(value[-2:]).replace(str(OFFERS), "OFFERS") if isinstance(value, tuple) else "",
)
def test_options_that_contradict_each_other_are_refused(tokonomics: Call, args: Command, says: list[str]) -> None:
    done = tokonomics(*args)
    if args[-2:] == ("--input=131000", "--output=100"):  # nothing can serve it: an answer, with the reason
        settled(done)
        assert "exceed the model's 131,072 tokens of context" in done.stdout
        return
    message = joined(refusal(done))
    assert [each for each in says if each not in message] == []


@pytest.mark.parametrize(
    "args",
    [
        *[("plan",), ("plan", "llama-3.1-8b"), PLAN[:3], ("fit",), ("fit", "llama-3.1-8b"), ("cost",)],
        *[("fit", "a", "b"), (*PLAN, "extra"), ("gpus", "a", "b"), ("",)],
    ],
    ids=" ".join,
)
def test_what_is_missing_or_too_much_is_refused_with_the_usage(tokonomics: Call, args: Command) -> None:
    assert "Usage: " in refusal(tokonomics(*args))


@pytest.mark.parametrize("args", [(*COST, "--json=yes"), ("models", "--moe=1")], ids=" ".join)
def test_a_value_for_a_switch_is_refused(tokonomics: Call, args: Command) -> None:
    assert "does not take a value" in refusal(tokonomics(*args))


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "option"), FILES, ids=named)
@pytest.mark.parametrize("kind", ["missing", "empty", "a folder", "binary", "under a file", "long", "\a\r"], ids=named)
def test_a_file_that_cannot_be_used_is_named(
    tokonomics: Call, tmp_path: Path, command: Command, option: str, kind: str
) -> None:
    path = tmp_path / "given"
    if kind == "empty":
        path.touch()
    elif kind == "a folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)) * 8)
    elif kind == "under a file":
        path.touch()
        path /= "x"
    elif kind == "long":
        path = tmp_path / ("y" * 5000)
    elif kind != "missing":
        path = tmp_path / f"given{kind}"
    message = refusal(tokonomics(*command, f"--{option}={path}"))
    assert str(tmp_path) in joined(message).replace(" ", "")


@pytest.mark.parametrize(("command", "option"), FILES, ids=named)
def test_a_file_without_a_name_is_refused(tokonomics: Call, command: Command, option: str) -> None:
    refusal(tokonomics(*command, f"--{option}="))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "provider,instance,gpu\naws,x,H100\n",
            [":1", "missing columns gpus, usd_per_hour", "header and rows such as"],
        ),
        ("provider,instance,gpu,gpus\naws,x,H100,1\n", [":1", "missing column usd_per_hour", "18.40"]),
        ("provider,instance,gpu,gpus,usd_per_hour\n", ["no offer below the header"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1,2\na,b,H1000,1,2\n", [":3, column gpu", "H1000", "H100"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1,cheap\n", [":2, column usd_per_hour", "'cheap'"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1,-2\n", [":2, column usd_per_hour", "-2"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1,nan\n", [":2, column usd_per_hour", "nan"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1,1e400\n", [":2, column usd_per_hour", "1e400"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1.5,2\n", [":2, column gpus", "1.5"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,0,2\n", [":2, column gpus", "0"]),
        ("provider,instance,gpu,gpus,usd_per_hour\na,b,H100,1\n", [":2, column usd_per_hour", "no price"]),
        ("provider,instance,gpu,gpus,usd_per_hour,date\na,b,H100,1,2,May\n", [":2, column date", "2026-08-22"]),
        ("provider,instance,gpu,gpus,usd_per_hour,usd_per_hour\na,b,H100,1,2,3\n", [":1", "two columns"]),
        ('provider,instance,gpu,gpus,usd_per_hour\na,"b,H100,1,2\n', ["not a CSV file"]),
    ],
)
@pytest.mark.parametrize("command", [FILES[0][0], FILES[2][0]], ids=named)
def test_a_price_list_that_is_wrong_names_the_line_and_the_column(
    tokonomics: Call, tmp_path: Path, command: Command, content: str, says: list[str]
) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(content, encoding="utf-8")
    message = refusal(tokonomics(*command, f"--offers={file}"))
    assert str(file) in message
    assert [each for each in says if each not in message] == []


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(
            st.sampled_from(["aws", "H100", "1", "2.5", "", '"', "nan", "-1", "1e999", "\r", "é"]), max_size=30
        ).map(lambda cells: ("provider,instance,gpu,gpus,usd_per_hour\n" + ",".join(cells)).encode()),
    )
)
def test_any_price_list_is_answered_or_refused(
    tokonomics: Call, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("any") / "prices.csv"
    file.write_bytes(content)
    settled(tokonomics("offers", f"--offers={file}"))
    settled(tokonomics("plan", "llama-3.1-8b", "--rate=1", "--input=9", "--output=9", f"--offers={file}"))


LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("verb", ["plan", "fit", "models"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (json.dumps(LLAMA, indent=1)[:60].encode(), ["config.json:", "not valid JSON"]),
        (b"", ["config.json", "not valid JSON"]),
        (b"[1, 2]", ["config.json", "JSON object"]),
        (b"\xff\xfe\x00\x01", ["config.json", "not UTF-8"]),
        (b"{}", ["config.json", "model_type"]),
        (b'{"model_type": "lama"}', ["config.json", "'lama'", "llama"]),
        (json.dumps({**LLAMA, "hidden_size": -1}).encode(), ["config.json", "hidden_size", "-1"]),
        (json.dumps({**LLAMA, "hidden_size": "big"}).encode(), ["config.json", "hidden_size", "big"]),
        (json.dumps({**LLAMA, "num_hidden_layers": 10**30}).encode(), ["config.json", "num_hidden_layers"]),
        (json.dumps({**LLAMA, "vocab_size": 10**400}).encode(), ["config.json", "vocab_size"]),
        (json.dumps({**LLAMA, "num_attention_heads": 0}).encode(), ["config.json", "num_attention_heads"]),
        (json.dumps({**LLAMA, "vocab_size": float("nan")}).encode(), ["config.json", "vocab_size"]),
        (b"[" * 100_000, ["config.json"]),
    ],
    ids=lambda value: named(value.decode("latin-1")) if isinstance(value, bytes) else "",
)
def test_a_config_that_is_wrong_names_the_file_and_the_field(
    tokonomics: Call, tmp_path: Path, verb: str, content: bytes, says: list[str]
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    rest = {"plan": PLAN[2:], "fit": FIT[2:], "models": ()}[verb]
    message = refusal(tokonomics(verb, tmp_path / "config.json", *rest))
    assert [each for each in says if each not in message] == []


@pytest.mark.parametrize("verb", ["plan", "fit", "models"])
def test_a_config_that_is_not_there_is_named(tokonomics: Call, tmp_path: Path, verb: str) -> None:
    rest = {"plan": PLAN[2:], "fit": FIT[2:], "models": ()}[verb]
    message = refusal(tokonomics(verb, tmp_path / "config.json", *rest))
    assert "there is no such file" in message
    assert "Hugging Face config.json" in message
    (tmp_path / "folder.json").mkdir()
    assert "no such file" in refusal(tokonomics(verb, tmp_path / "folder.json", *rest))
    refusal(tokonomics(verb, tmp_path, *rest))


json_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
json_values = json_scalars | st.lists(json_scalars, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(LLAMA)), json_values, max_size=2), st.integers(0, 400))
def test_any_config_is_answered_or_refused(
    tokonomics: Call, tmp_path_factory: pytest.TempPathFactory, changes: dict[str, object], cut: int
) -> None:
    file = tmp_path_factory.mktemp("any") / "config.json"
    file.write_text(json.dumps({**LLAMA, **changes})[: cut if cut < 100 else None], encoding="utf-8")
    settled(tokonomics("fit", file, "--gpu=H100"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", ["an object of models was expected"]),
        ('{"a": ', ["not JSON"]),
        ("[" * 100_000, ["not JSON"]),
        ('{"m": {"input_cost_per_token": "x", "output_cost_per_token": 1}}', ["'m'", "input_cost_per_token", "'x'"]),
        ('{"m": {"input_cost_per_token": -1, "output_cost_per_token": 1}}', ["'m'", "input_cost_per_token", "-1"]),
        ('{"m": {"input_cost_per_token": NaN, "output_cost_per_token": 1}}', ["'m'", "input_cost_per_token", "nan"]),
        ('{"m": {"input_cost_per_token": 1e400, "output_cost_per_token": 1}}', ["'m'", "input_cost_per_token", "inf"]),
    ],
)
def test_a_litellm_file_that_is_wrong_names_the_model_and_the_field(
    tokonomics: Call, tmp_path: Path, content: str, says: list[str]
) -> None:
    file = tmp_path / "prices.json"
    file.write_text(content, encoding="utf-8")
    message = refusal(tokonomics(*APIS, f"--litellm={file}"))
    assert str(file) in message
    assert [each for each in says if each not in message] == []


# --- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [PLAN, FIT, MODELS, GPUS, OFFERED, APIS], ids=named)
@pytest.mark.parametrize(
    ("content", "says"), [(None, "no such file"), ("[models", "not valid TOML"), ("[model.x]", "Did you mean models")]
)
def test_a_catalogue_of_the_users_that_is_wrong_is_named(
    tokonomics: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: Command,
    content: str | None,
    says: str,
) -> None:
    file = tmp_path / "catalog.toml"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CATALOG", str(file))
    message = refusal(tokonomics(*command))
    assert str(file) in message
    assert says in message


@pytest.mark.parametrize("command", [PLAN, OFFERED, APIS], ids=named)
def test_a_day_that_is_none_is_refused(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", "tomorrow")
    message = refusal(tokonomics(*command))
    assert "TOKONOMICS_TODAY" in message
    assert "2026-08-22" in message


@pytest.mark.parametrize(
    "command", [PLAN[:-1], ("offers",), ("cost", "--gpu=H100", "--tokens-per-second=1")], ids=named
)
def test_a_spoilt_price_cache_says_how_to_mend_it(
    tokonomics: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "offers.csv").write_text("provider,instance\n", encoding="utf-8")
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path))
    message = refusal(tokonomics(*command))
    assert str(tmp_path / "offers.csv") in message
    assert "tokonomics prices refresh" in message


@pytest.mark.parametrize("url", [NOWHERE, f"{NOWHERE}/x y", "http://[", "http://127.0.0.1:99999", "http://"])
def test_a_refresh_in_which_every_provider_fails_says_so_and_keeps_the_old_prices(tokonomics: Call, url: str) -> None:
    before = tokonomics("offers", "--json").stdout
    done = tokonomics("prices", "refresh", f"--url={url}", "--provider=aws")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "aws" in done.stdout + done.stderr
    assert "Nothing was written" in done.stdout + done.stderr
    assert tokonomics("offers", "--json").stdout == before


# --- charts ---------------------------------------------------------------------------------------------------------


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
def test_a_chart_that_cannot_be_saved_leaves_nothing_behind(
    tokonomics: Call, tmp_path: Path, name: str, says: list[str]
) -> None:
    (tmp_path / "a-folder.svg").mkdir()
    before = sorted(tmp_path.rglob("*"))
    target = tmp_path / name if name else Path()
    message = joined(refusal(tokonomics(*PLAN, f"--chart={target}")))
    assert [each for each in says if each not in message] == []
    assert sorted(tmp_path.rglob("*")) == before
    assert list(Path().iterdir()) == []


def test_a_chart_name_is_checked_even_if_nothing_can_be_drawn(tokonomics: Call, tmp_path: Path) -> None:
    assert "--chart" in refusal(tokonomics(*PLAN, "--max-price=0.01", f"--chart={tmp_path / 'plan.pdf'}"))


def test_a_chart_never_spoils_the_one_that_was_there(tokonomics: Call, tmp_path: Path) -> None:
    chart = tmp_path / "plan.json"
    chart.write_text("mine", encoding="utf-8")
    refusal(tokonomics(*PLAN, "--gpu=H1000", f"--chart={chart}"))
    assert chart.read_text(encoding="utf-8") == "mine"
