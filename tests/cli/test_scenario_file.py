"""A scenario file says to every verb what its flags would say; slips are named with the nearest key."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.command import refused, run

from tokonomics.__main__ import app
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.questions.plan import questions_in
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.result import Result as Found
from tokonomics.questions.scenario import known_keys, read_request, read_scenario_file
from tokonomics.questions.verbs import find_verb, scenario_verbs


def read_scenario(path: Path) -> PlanRequest:
    return read_request(path, PlanRequest, "plan")


def read_values(path: Path, verb: str) -> dict[str, object]:
    return read_scenario_file(path).values_for(verb)


def ask(name: str, values: dict[str, object]) -> Found:
    verb = find_verb(name)
    return verb.answer(verb.request.checked(values), SILENT)


def saved(folder: Path, text: str) -> Path:
    file = folder / "scenario.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_says_what_the_flags_say(tmp_path: Path) -> None:
    file = saved(
        tmp_path,
        'model = ["llama-3.1-8b", "qwen3-8b"]\nrate = 5\ninput = "lognormal:mean=800,p99=6000"\noutput = 200\n'
        'slo = "ttft_p99=0.5"\nterms = ["spot", "on_demand"]\nkv = "fp8"\nspare = 1\nmax_price = 3.5\n',
    )
    flags = {
        "model": ("llama-3.1-8b", "qwen3-8b"), "rate": "5", "input": "lognormal:mean=800,p99=6000",
        "output": "200", "slo": "ttft_p99=0.5", "terms": ("spot", "on_demand"), "kv": ("fp8",), "spare": 1,
        "max_price": 3.5,
    }  # fmt: skip
    assert read_scenario(file) == PlanRequest.checked(flags)
    first, second = questions_in(read_scenario(file))
    assert (first.model.key, second.model.key) == ("llama-3.1-8b", "qwen3-8b")
    assert first.terms == (Terms.spot, Terms.on_demand)
    assert first.kv == (Precision.fp8,)
    assert first.limits.spare.machines == 1
    assert first.limits.max_usd_per_gpu_hour == 3.5
    assert [str(slo) for slo in first.slos] == ["ttft_p99"]


def test_files_named_in_a_scenario_are_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("provider,instance,gpu,gpus,usd_per_hour\nours,r,H100,8,18.4\n")
    file = saved(tmp_path, 'model = "llama-3.1-8b"\nrate = 1\ninput = 10\noutput = 10\noffers = "mine.csv"\n')
    (question,) = questions_in(read_scenario(file))
    assert [offer.instance for offer in question.offers] == ["r"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"model = ", b"a" * 1_000_001, b"[[[[", b"= 5"])
def test_a_file_that_is_no_scenario_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "odd.toml"
    file.write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_scenario(file)
    assert "odd.toml" in str(caught.value)
    with pytest.raises(BadInput):
        read_scenario(tmp_path)


SMALL = 'model = "llama-3.1-8b"\ngpu = "H100"\n'


def answer(*words: str) -> Any:
    done = run(*words, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_the_keys_of_a_file_are_the_flags_of_a_verb(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL + 'tp = 2\nkv = "fp8"\ncontext = 8192\n')
    typed = answer("predict", "--fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "2", "--kv", "fp8", "--context", "8192")
    assert answer("predict", "--fit", str(file)) == typed


def test_what_is_typed_wins_over_a_table_and_that_over_the_top(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL + "context = 1000\n[fit]\ncontext = 2000\n")
    (tmp_path / "top").mkdir()
    top = saved(tmp_path / "top", SMALL + "context = 1000\n")
    asked = {
        name: answer("predict", "--fit", "llama-3.1-8b", "--gpu", "H100", "--context", name)
        for name in ("1000", "2000", "3000")
    }
    assert answer("predict", "--fit", str(top)) == asked["1000"]
    assert answer("predict", "--fit", str(file)) == asked["2000"]
    assert answer("predict", "--fit", str(file), "--context", "3000") == asked["3000"]
    assert answer("predict", str(file), "--batch", "2") == answer(
        "predict", "llama-3.1-8b", "--gpu", "H100", "--batch", "2", "--context", "1000"
    )


def test_a_question_that_a_flag_asks_takes_the_verbs_table_unless_it_has_its_own(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL + "[predict]\ncontext = 1000\nbatch = 9\n")
    fit = ("predict", "--fit", "llama-3.1-8b", "--gpu", "H100", "--context")
    assert answer("predict", "--fit", str(file)) == answer(*fit, "1000")
    both = saved(tmp_path, SMALL + "[predict]\ncontext = 1000\n[fit]\ncontext = 2000\n")
    assert answer("predict", "--fit", str(both)) == answer(*fit, "2000")


def test_a_model_that_is_typed_replaces_the_files(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL)
    assert answer("predict", "--fit", str(file), "qwen3-8b") == answer("predict", "--fit", "qwen3-8b", "--gpu", "H100")
    for words in ((str(file), "qwen3-8b"), ("qwen3-8b", str(file)), (str(file), "--model", "qwen3-8b")):
        done = run("simulate", "--capacity", *words, "--gpu", "nonsense")
        assert "nonsense" in str(done.exception)


def test_hyphens_are_underscores(tmp_path: Path) -> None:
    file = saved(
        tmp_path, "usd-per-hour = 2.21\n[cost]\ntokens-per-second = 2400\ngpus = 4\n[own-hardware]\nusd-per-kwh = 0.1\n"
    )
    typed = answer("cost", "--tokens-per-second", "2400", "--usd-per-hour", "2.21", "--gpus", "4")
    assert answer("cost", str(file)) == typed
    assert read_values(file, "own-hardware") == {"usd_per_kwh": 0.1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rrate = 5", ["unknown key 'rrate'", "Did you mean rate?"]),
        ("[simulte]\nrate = 5", ["unknown table '[simulte]'", "Did you mean simulate?"]),
        ("[fit]\nrate = 5", ["[fit]", "unknown key 'rate'"]),
        ("[fit]\ncontxt = 5", ["[fit]", "Did you mean context?"]),
        ("model-name = 'x'", ["unknown key 'model_name'"]),
        ("tp = 2\nt-p = 3", ["unknown key 't_p'"]),
        ("lora-rank = 2\nlora_rank = 3", ["lora_rank", "given twice"]),
        ("json = true", ["json", "under a verb"]),
        ("chart = 'a.svg'", ["chart", "under a verb"]),
        ("utilization = 0.5", ["utilization", "under a verb"]),
        (
            "gpus = 8",
            ["gpus", "[plan]: The most GPUs", "[own-hardware]: GPUs in the machine", "[cost]: Number of GPUs"],
        ),
        ("gpu = ['H100', 'L4']", ["gpu: fit takes one gpu, got 2: H100, L4", "--gpu"]),
        ("tp = 'two'", ["scenario.toml: tp"]),
        ("tp = true", ["tp: must be a number, got True"]),
        ("tp = 2026-01-01", ["tp: must be a whole number", "2026-01-01"]),
        ("tp = nan", ["tp: should be a finite number"]),
        ("tp = {a = 1}", ["[tp]"]),
    ],
)
def test_a_slip_in_a_file_is_named(tmp_path: Path, text: str, says: list[str]) -> None:
    gpu = "" if text.startswith("gpu") else "gpu = 'H100'\n"
    message = refused("predict", "--fit", str(saved(tmp_path, gpu + text)), "llama-3.1-8b")
    assert [each for each in [*says, "scenario.toml"] if each not in message] == []


@pytest.mark.parametrize("line", ["gpu = ['H100']", "tp = [2]", "context = [512]", "weights = ['fp8']"])
def test_a_list_of_one_is_that_one(tmp_path: Path, line: str) -> None:
    base = "" if line.startswith("gpu") else "gpu = 'H100'\n"
    plain = line.replace("[", "").replace("]", "")
    answers = [
        run("predict", "--fit", str(saved(tmp_path, base + text)), "llama-3.1-8b", "--json") for text in (line, plain)
    ]
    assert answers[0].exit_code == 0
    assert answers[0].stdout == answers[1].stdout


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        ("plan", "rate = 7.25"),
        ("plan", "engine = 'sglang'"),  # what stands in elsewhere is described in words
        ("fit", "gpu = 'B200'"),
        ("fit", "weights = 'fp8'"),
        ("cost", "gpu = 'B200'"),
    ],
)
def test_the_help_of_a_verb_with_a_file_shows_what_the_file_says(tmp_path: Path, verb: str, said: str) -> None:
    value = said.split(" = ")[1].strip("'")
    done, without = run(verb, str(saved(tmp_path, said)), "--help"), run(verb, "--help")
    assert done.exit_code == 0
    assert f"[default: {value}]" in done.stdout
    assert f"[default: {value}]" not in without.stdout
    assert "[required]" not in done.stdout  # the file may say it


def test_help_is_shown_whatever_the_file_says_too_often(tmp_path: Path) -> None:
    file = str(saved(tmp_path, "gpu = ['H100', 'L4']"))
    assert "Usage:" in run("fit", file, "--help").stdout
    assert "Give one (--gpu)" in refused("fit", file, "llama-3.1-8b")


def test_keys_for_other_verbs_are_said_not_refused(tmp_path: Path) -> None:
    done = run(
        "predict", "--fit", str(saved(tmp_path, SMALL + "rate = 5\nslo = 'ttft_p99=1'\n[fleet]\ndemand = '24x1'\n"))
    )
    assert done.exit_code == 0
    assert "rate, slo" in done.stderr
    assert "demand" not in done.stderr


def test_a_price_at_the_top_is_that_of_a_gpu_and_no_machines(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL + "usd_per_hour = 2.5\n[trace]\nmachine_usd_per_hour = 10\n")
    assert read_values(file, "simulate")["usd_per_hour"] == 2.5
    assert read_values(file, "trace") == {"machine_usd_per_hour": 10}
    only_top = saved(tmp_path, SMALL + "usd_per_hour = 2.5\n")
    assert "usd_per_hour" not in read_values(only_top, "breakeven")  # there it would replace the plan
    assert "trace does not use" in run("trace", str(only_top), "azure-conv").stderr


def test_cost_takes_a_price_or_the_gpu_it_is_looked_up_for(tmp_path: Path) -> None:
    both = str(saved(tmp_path, "gpu = 'H100'\nusd_per_hour = 2.5\n"))
    speed = ("--tokens-per-second", "2400")
    assert answer("cost", both, *speed) == answer("cost", *speed, "--usd-per-hour", "2.5")
    assert answer("cost", both, *speed, "--gpu", "H200") == answer("cost", *speed, "--gpu", "H200")
    gpu = str(saved(tmp_path, "gpu = 'H100'\n"))
    assert answer("cost", gpu, *speed) == answer("cost", *speed, "--gpu", "H100")
    assert answer("cost", gpu, *speed, "--usd-per-hour", "3") == answer("cost", *speed, "--usd-per-hour", "3")


def test_other_traffic_that_is_typed_replaces_the_files(tmp_path: Path) -> None:
    made_up = saved(tmp_path, "arrivals = 'poisson:2'\nrequests = 500\ninput = 10\noutput = 20\n")
    log = answer("trace", str(made_up), "azure-conv")
    assert log == answer("trace", "azure-conv", "--requests", "500")
    kept = answer("trace", str(made_up), "--input", "30")
    assert kept == answer("trace", "--arrivals", "poisson:2", "--requests", "500", "--input", "30", "--output", "20")
    of_log = saved(tmp_path, "trace = 'azure-conv'\nfrom = '10m'\n")
    words = ("--arrivals", "poisson:2", "--requests", "500", "--input", "30", "--output", "20")
    assert answer("trace", str(of_log), *words) == answer("trace", *words)


def test_arrivals_that_are_typed_bring_their_own_rate(tmp_path: Path) -> None:
    shape = ("--input", "10", "--output", "20", "--requests", "500")
    for line in ("rate = 5", "tokens_per_month = '2B'"):
        file = str(saved(tmp_path, f"{line}\ninput = 10\noutput = 20\nrequests = 500\n"))
        typed = ("--arrivals", "gamma:7,cv=3")
        assert answer("trace", file, *typed) == answer("trace", *typed, *shape)
        assert answer("trace", file, *typed, "--rate", "3") == answer("trace", *typed, "--rate", "3", *shape)
    file = str(saved(tmp_path, "rate = 5\ninput = 10\noutput = 20\n"))
    assert answer("trace", file, "--arrivals", "gamma:7,cv=3")["rate"] == pytest.approx(7)


def test_two_files_are_too_many_and_a_flags_file_is_none(tmp_path: Path) -> None:
    file = str(saved(tmp_path, SMALL))
    assert "one scenario at a time" in refused("fit", file, file)
    assert "no file of that name" not in refused(
        "plan", "llama-3.1-8b", "--rate", "1", "--input", "9", "--offers", file
    )


def test_asking_in_this_process_answers_what_the_command_line_prints(tmp_path: Path) -> None:
    file = saved(tmp_path, SMALL + "[curve]\nchart = 'no/such/folder/a.svg'\nusd_per_hour = 2\n")
    asked = ask("curve", {key: value for key, value in read_values(file, "curve").items() if key != "chart"})
    assert asked.plain() == answer("predict", "--curve", "llama-3.1-8b", "--gpu", "H100", "--usd-per-hour", "2")


@pytest.mark.parametrize("verb", scenario_verbs())
def test_every_flag_of_every_verb_is_a_key(verb: str) -> None:
    assert ".toml" in run(verb, "--help").stdout
    made: Any = typer.main.get_command(app)
    flags = [flag for param in made.commands[verb].params for flag in param.opts if flag.startswith("--")]
    others = find_verb(verb).by_flag
    known = {*known_keys([verb, *(other.name for other in others)]), *(other.by for other in others), "help"}
    assert {flag.removeprefix("--").replace("-", "_") for flag in flags} <= known


@pytest.mark.parametrize(
    ("verb", "text", "says"),
    [
        ("simulate", SMALL + 'rate = "five"\ninput = 10\noutput = 10\n', "scenario.toml: rate: must be a number"),
        ("fit", SMALL + "weights = 8\n", "scenario.toml: weights: '8'"),
        ("fit", SMALL + "[fit]\ncontext = 0\n", "scenario.toml: [fit] context: must be between"),
        ("plan", "", "scenario.toml: says no model"),
        ("simulate", "", 'Write gpu = "H100" there, or type --gpu.'),
        ("cost", SMALL, "or type --tokens-per-second."),
        ("fit", "[simulate]\ndemand = '12x20'\n", "It is for [fleet]."),
        ("fit", "[slo]\nttft_p99 = 0.5\n", 'Write slo = "ttft_p99=0.5,tpot_p99=50ms".'),
        ("fit", "tp = 2\ntp = 3\n", "a key is given twice (at line 2"),
    ],
)
def test_a_mistake_in_a_file_is_said_of_the_file_and_its_key(tmp_path: Path, verb: str, text: str, says: str) -> None:
    assert says in refused(verb, str(saved(tmp_path, text)))


def test_a_mistake_that_is_typed_is_not_the_files(tmp_path: Path) -> None:
    message = refused("predict", "--fit", str(saved(tmp_path, SMALL + "context = 5\n")), "--context", "0")
    assert message.startswith("--context: must be between")


def test_a_home_is_found_without_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "log.csv").write_text("time,prompt,answer\n0,10,20\n1,10,20\n")
    columns = 'columns = "arrival=time,input=prompt,output=answer"\n'
    assert answer("trace", str(saved(tmp_path, f'trace = "~/log.csv"\n{columns}')))["requests"] == 2
    file = saved(tmp_path, 'input = "trace:~/log.csv"\n[trace]\nchart = "~/a.svg"\n')
    assert read_values(file, "trace") == {"input": f"trace:{tmp_path}/log.csv", "chart": f"{tmp_path}/a.svg"}


def test_a_file_that_is_not_there_says_where_it_was_looked_for(tmp_path: Path) -> None:
    message = refused("trace", str(saved(tmp_path, 'trace = "log.csv"\n')))
    assert "scenario.toml: trace: log.csv: No such file" in message
    assert f"Looked for in {tmp_path} and in {Path.cwd()}." in message


@pytest.mark.parametrize("name", ["my.tom", "."])
def test_a_name_that_is_no_scenario_is_said_before_traffic_is_missed(name: str) -> None:
    message = refused("plan", name)
    assert "traffic" not in message
    assert "A scenario's name ends in .toml" in message


def test_traffic_that_shares_nothing_says_how_to_share(tmp_path: Path) -> None:
    file = str(saved(tmp_path, SMALL + "rate = 5\ninput = 600\noutput = 20\nrequests = 50\n"))
    assert "--system-prompts 20,tokens=500" in refused("cache", file)
    assert answer("cache", file, "--system-prompts", "20,tokens=500")["prefix_cache"]
