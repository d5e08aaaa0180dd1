"""What a program reads: the ``--json`` of many commands, kept in ``documents.json.gz`` beside this file.

The net under a change of form: no figure, word or exit code of these answers may move. After a change that is meant to
move some, write them anew (in one process, so without ``-n``) and read what differed before it is committed:

    python -m pytest tests/golden/test_documents.py; UPDATE_GOLDEN=1 python -m pytest tests/golden/test_documents.py

Only ``tokonomics.__main__.main`` is relied upon, as the installed command calls it. The day is 2026-11-15, commands run
in the repository's root, and ``TMP`` is a folder with nothing but ``FILES``. Floats are kept to nine digits, compared
to six. What a clock measured is left out, and so are verbs whose answers depend on the machine: ``doctor``, ``probe``,
``bench``, ``meter watch``, ``prices refresh``.
"""

import gc
import gzip
import json
import math
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.slow

Command = tuple[str, ...]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = HERE / "documents.json.gz"
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"
CLOCKS = {"wall_s", "simulated_requests_per_s", "solve_s", "embed_s", "lookup_s", "add_s", "worked_s"}
"""What no two runs have in common."""
POINT = re.compile(r'"id": "[0-9a-f]{32}"')
"""A sweep's: the hash of, among others, the program."""
SHOWN = 8
"""So many differences are told of a document; the rest is counted."""

OFFERS = "--offers=tests/golden/offers.csv"
SIZE = ("--input=1000", "--output=300")
ON_TIME = "--slo=ttft_p99=0.5,tpot_p99=50ms"
PLAN = ("plan", "llama-3.1-8b", *SIZE, OFFERS, "--rate=5", ON_TIME)
SMALL = (*PLAN, "--gpu=A100-80GB,GH200", "--kv=bf16", "--weights=fp8", "--top=2")
SERVED = ("--model=llama-3.1-8b", "--gpu=H100", "--usd-per-hour=3")
CONVERSATIONS = ("--arrivals=poisson:3", "--requests=400", "--input=400", "--output=150", "--sessions=5,think=5")
TALKING = ("simulate", *SERVED, *CONVERSATIONS)
LEVERS = ("--gpu=A100-80GB", "--rate=5", *SIZE, "--slo=ttft_p99=1,tpot_p99=60ms", OFFERS)
FLEET = ("fleet", "llama-3.1-8b", "--input=lognormal:mean=900,p99=3000", "--output=300", "--gap=0.02", OFFERS)
SLO_FLEET = (*FLEET, "--demand=8x30,16x4", "--hours=24", "--slo=ttft_p99=2,tpot_p99=80ms")
BREAKEVEN = ("breakeven", "--replica-tokens-per-second=2400", "--usd-per-hour=2.21", "--replica-gpus=4")
OWN = ("own-hardware", "--gpu=H100", "--gpus=8", "--purchase-usd=250k", "--years=4", "--usd-per-kwh=0.12",
       "--host-watts=4600")  # fmt: skip
COMPARE = ("compare", "llama-3.1-8b", "qwen2.5-32b", "--rate=20", *SIZE, OFFERS)
COST = ("cost", "--usd-per-hour=2.21", "--gpus=4", "--tokens-per-second=2400")
CHAT = "docs/examples/chat.toml"
RESULTS = "tests/measure/results"
DATA = "benchmarks/data"
REPORT = ("meter", "report", "--ledger=tests/measure/pages/week.db", "--since=2026-11-09", "--until=2026-11-14")
MESSY = "--columns=arrival=when,input=asked,output=said,tenant=who"

COMMANDS: dict[str, Command] = {
    "plan": (*PLAN, "--top=3"),
    "plan-why": (*SMALL, "--gpu=GH200,H100", "--top=1", "--why"),
    "plan-quick": (*PLAN, "--quick", "--engine=all", "--terms=all", "--top=3"),
    "plan-cases": (*SMALL, "--rate=2:5:20"),
    "plan-cases-quick": (*SMALL, "--gpu=L4,GH200", "--rate=10:20:40", "--quick", "--max-utilization=0.5"),
    "plan-models": ("plan", "llama-3.1-8b", "gpt-oss-20b", "qwen3-8b", *SMALL[2:], "--weights=fp8,mxfp4"),
    "plan-explain": (*PLAN[:2], "--trace=azure-conv", "--to=3m", OFFERS, "--gpu=GH200", "--kv=bf16", "--explain"),
    "plan-explain-quick": (*SMALL, "--quick", "--explain"),
    "plan-deploy": (*SMALL, "--gpu=GH200", "--deploy=vllm", "--deploy=skypilot,kubernetes"),
    "plan-deploy-to": (*SMALL, "--quick", "--engine=sglang", "--deploy=sglang,kubernetes", "--deploy-to=TMP/out"),
    "plan-offline": ("plan", "llama-3.1-8b", "--offline", "--tokens-per-month=2B", *SIZE, OFFERS, "--top=2"),
    "plan-log": (*PLAN[:2], "--trace=azure-conv", "--from=10m", "--to=20m", OFFERS, ON_TIME, "--gpu=GH200", "--top=2"),
    "plan-log-columns": (*PLAN[:2], "--trace=tests/golden/messy.csv", MESSY, OFFERS, "--gpu=L4", "--quick"),
    "plan-arrivals": (*SMALL, "--gpu=GH200", "--arrivals=gamma:5,cv=3", "--rate=8", "--seed=7",
                      "--slo=ttft_p95=1,e2e_p90=20"),
    "plan-sample": ("plan", "qwen3-8b", "--rate=4", "--input=sample:sharegpt", OFFERS, "--gpu=GH200", "--top=2"),
    "plan-spare": ("plan", "llama-3.3-70b", "--rate=8", *SIZE, "--slo=ttft_p99=1,tpot_p99=60ms", "--gpu=H100",
                   "--min-weights=fp8", "--spare=1", "--kv=fp8", "--top=2", OFFERS),
    "plan-discounts": (*SMALL, "--gpu=H100", "--provider=aws,runpod", "--terms=all", "--discount=aws=0.4"),
    "plan-region": (*SMALL, "--gpu=A100-80GB", "--region=us", "--terms=spot,reserved", "--router=round-robin"),
    "plan-gpus": (*PLAN, "--gpus=1", "--quick", "--top=3"),
    "plan-gpu-names": (*PLAN, "--gpus=L4,T4", "--quick", "--max-age=60", "--max-price=0.7"),
    "plan-too-few-gpus": (*SMALL, "--rate=300", "--gpus=2"),
    "plan-never": (*SMALL, "--slo=ttft_p99=1ms"),
    "plan-never-quick": (*SMALL, "--slo=tpot_mean=1ms", "--quick", "--why"),
    "plan-engines": (*SMALL, "--gpu=GH200", "--engine=all", "--rate=2", "--top=4"),
    "plan-shipped-prices": (*PLAN[:4], "--rate=3", "--quick", "--gpu=L40S", "--provider=aws", "--top=3"),
    "plan-scenario": ("plan", CHAT, "--gpu=H100", "--top=1", "--kv=fp8"),
    "plan-profile": (*SMALL, "--gpu=GH200", "--profile=TMP/gh200.json"),
    "diff": ("diff", "tests/golden/today.toml", "tests/golden/proposed.toml"),
    "fleet": (*SLO_FLEET, "--gpu=A100-80GB"),
    "fleet-availability": (*SLO_FLEET, "--gpu=GH200", "--availability=0.999999", "--no-replay"),
    "fleet-firm": (*SLO_FLEET, "--gpu=GH200,A100-80GB", "--no-spot", "--no-reserved", "--anywhere", "--startup=5m",
                   "--min-replicas=2", "--no-replay"),
    "fleet-spot": (*SLO_FLEET, "--gpu=L4", "--max-spot-share=0.5", "--interruptions=0.2", "--discount=aws=0.1",
                   "--no-replay"),
    "fleet-weekly": (*FLEET, "--demand=weekly:9,peak=2", "--gpu=GH200", "--no-replay"),
    "fleet-log": ("fleet", "llama-3.1-8b", "--trace=azure-conv", "--slo=tpot_p99=80ms", "--size-classes=4000",
                  "--gpu=GH200", "--no-replay", "--gap=0.02", OFFERS),
    "fit": ("fit", "llama-3.1-70b", "--gpu=H100", "--tp=4"),
    "fit-not": ("fit", "llama-3.1-70b", "--gpu=H100"),
    "fit-config": ("fit", "docs/examples/gpt-oss-120b/config.json", "--gpu=H200", "--kv=fp8", "--context=16384"),
    "fit-lora": ("fit", "llama-3.1-8b", "--gpu=L40S", "--weights=fp8", "--lora-rank=16", "--lora-adapters=20"),
    "fit-scenario": ("fit", CHAT, "--context=2048"),
    "predict": ("predict", "llama-3.1-8b", "--gpu=MI300X", "--batch=64", "--context=1024"),
    "predict-moe": ("predict", "deepseek-v3", "--gpu=H200", "--tp=8", "--batch=128", "--context=4096"),
    "predict-profile": ("predict", "llama-3.1-8b", "--gpu=H200", "--batch=16",
                        "--profile=benchmarks/results/h200-profile.json"),
    "predict-scenario": ("predict", CHAT, "--batch=16"),
    "curve": ("curve", "llama-3.1-8b", "--gpu=H100", "--context=1024", "--usd-per-hour=2.21"),
    "curve-offers": ("curve", "qwen3-30b-a3b", "--gpu=L4", "--tp=4", "--weights=fp8", "--discount=aws=0.2", OFFERS),
    "trace": ("trace", "azure-conv", "--machine-tokens-per-second=8000", "--machine-usd-per-hour=3"),
    "trace-window": ("trace", "azure-code", "--from=10m", "--to=30m", "--sample=0.5", "--speed=2", "--seed=3"),
    "trace-shared": ("trace", "mooncake-conversation", "--requests=1000"),
    "trace-columns": ("trace", "tests/golden/messy.csv", MESSY),
    "trace-made-up": ("trace", "--arrivals=gamma:2,cv=3", "--requests=800", "--input=lognormal:mean=800,p99=6000",
                      "--output=uniform:10-400", "--sessions=4,think=20", "--tenants=5,skew=1",
                      "--system-prompts=5,tokens=200,skew=1", "--save=TMP/made.parquet"),
    "trace-scenario": ("trace", CHAT, "--requests=500", "--rate=2"),
    "simulate": ("simulate", *SERVED, "--trace=azure-conv", "--requests=500", "--slo=ttft_p99=0.5,tpot_p99=50ms"),
    "simulate-outage": (*TALKING, "--replicas=3", "--router=prefix-aware", "--outage=replica=1,at=30,for=40"),
    "simulate-spot": (*TALKING, "--replicas=3", "--outage=replica=0,at=30,notice=20,spot=1", "--router=power-of-two"),
    "simulate-autoscale": (*TALKING, "--autoscale=max=6,target=8,cold=10,min=1"),
    "simulate-disaggregated": (*TALKING, "--replicas=2", "--prefill-replicas=1", "--link=25"),
    "simulate-timeout": ("simulate", *SERVED, "--trace=azure-code", "--requests=500", "--speed=40", "--timeout=2s",
                         "--slo=ttft_p99=0.5"),
    "simulate-priority": ("simulate", *SERVED, "--rate=20", "--requests=500", *SIZE, "--priority", "--max-sequences=16",
                          "--tenants=4,skew=1,priorities=0/1/0/2", "--max-batched-tokens=2048", "--no-prefix-cache"),
    "simulate-offer": ("simulate", "qwen3-8b", "--gpu=A100-80GB", "--arrivals=burst:40", *SIZE, OFFERS,
                       "--discount=gcp=0.1", "--engine=sglang", "--kv=fp8"),
    "simulate-scenario": ("simulate", CHAT, "--requests=300"),
    "capacity": ("capacity", *SERVED, *SIZE, "--requests=500", ON_TIME),
    "capacity-log": ("capacity", *SERVED, "--trace=azure-conv", "--requests=500", "--speed=9", "--slo=tpot_p99=20ms"),
    "capacity-bursts": ("capacity", *SERVED, "--arrivals=gamma:1,cv=3", "--requests=500", *SIZE, "--slo=ttft=1"),
    "cache": ("cache", *SERVED, "--trace=mooncake-conversation", "--requests=400", "--tiers=dram=200@0,ssd=2000"),
    "cache-conversations": ("cache", *SERVED, *CONVERSATIONS, "--replicas=2", "--tiers=remote=500", "--ttl=1m",
                            "--slo=ttft_p99=1"),
    "cache-prompts": ("cache", "--prompts=TMP/prompts.txt", "--semantic=hashed", "--pairs=TMP/pairs.csv",
                      "--threshold=0.9", "--embedding-usd-per-mtok=0.02"),
    "tenants": ("tenants", *SERVED, "--arrivals=gamma:12,cv=2", "--duration=1m", "--input=800", "--output=200",
                "--slo=ttft_p99=0.3,tpot_p99=30ms", "--tenants=3,skew=1", "--lora-rank=16", "--lora-adapters=50"),
    "tenants-logs": ("tenants", *SERVED, "--trace=azure-conv", "--trace=azure-code", "--requests=300"),
    "levers": ("levers", "llama-3.1-8b", *LEVERS, "--without=speculation", "--without=hardware"),
    "levers-draft": ("levers", "llama-3.1-8b", *LEVERS, "--without=hardware,spot,weights,kv", "--acceptance=0.8",
                     "--draft=llama-3.2-1b", "--draft-tokens=4", "--usd-per-hour=2"),
    "stack": ("stack", "llama-3.1-8b", *LEVERS, "--without=hardware", "--order=weights,batch"),
    "breakeven": (*BREAKEVEN, "--max-utilization=0.7", "--api=openai:gpt-4o,openai:gpt-4o-mini", *SIZE, "--engineers=1",
                  "--engineer-usd-per-month=16667", "--overhead=network=5%"),
    "breakeven-plan": ("breakeven", "llama-3.3-70b", "--api=openai:gpt-4o", *SIZE, OFFERS, "--quick", "--batch-api",
                       "--tokens-per-month=2B", "--cached-share=0.3"),
    "breakeven-hosts": ("breakeven", "llama-3.3-70b", *SIZE, OFFERS, "--quick"),
    "can-run": ("can-run", "llama-3.1-8b", "gpt-oss-120b", "--gpu=RTX3090", "--gpus=2", "--usd-per-kwh=0.3",
                "--host-watts=150", "--purchase-usd=2500", "--years=3"),
    "own-hardware": (*OWN, "--cost-of-capital=8%", "--residual=0.1", "--hosting-usd-per-month=600", OFFERS),
    "own-hardware-scenario": ("own-hardware", "TMP/server.toml", "--save=TMP/mine.csv", OFFERS),
    "compare": (*COMPARE, "--quality=llama-3.1-8b=0.66,qwen2.5-32b=0.8"),
    "compare-simulated": (*COMPARE, "--simulate", "--gpu=GH200,A100-80GB", "--slo=tpot_p99=60ms", "--weights=fp8"),
    "cost": (*COST, "--utilization=0.7"),
    "cost-machine": ("cost", "--gpu=H100", "--gpus=9", "--tokens-per-second=2400", OFFERS),
    "cost-load": (*COST, "--load=8x0.99,16x0", "--load=24x0.7"),
    "cost-target": (*COST, "--utilization=0.7", "--target=0.50", *SIZE),
    "import": ("import", f"{RESULTS}/inferencex.json", "--usd-per-hour=2.5", "--slo=ttft_p50=0.5"),
    "import-bench": ("import", f"{RESULTS}/bench.json", "--usd-per-hour=0.05"),
    "import-vllm": ("import", f"{RESULTS}/vllm.json", "--gpu=H100", "--gpus=2", "--usd-per-hour=2"),
    "import-guidellm": ("import", f"{RESULTS}/guidellm.json", "--gpu=L40S", "--model=llama-3.1-8b",
                        "--usd-per-hour=0.86"),
    "calibrate": ("calibrate", f"{DATA}/h200_transformers_third.json", "--gpu=H200", "--engine=vllm",
                  "--out=TMP/mine.json"),
    "calibrate-steps": ("calibrate", f"{DATA}/h200_steps.json", "--gpu=H200", "--hold-out=0.25"),
    "validate": ("validate", f"{DATA}/h200_held_out_steps.json"),
    "validate-table": ("validate", "TMP/table.csv", "--split=dev"),
    "validate-engine-log": ("validate", f"{DATA}/h200_engine.json", "--fit-on=closed-*,poisson-16"),
    "models": ("models", "llama-3"),
    "models-moe": ("models", "--moe", "--family=qwen"),
    "gpus": ("gpus", "--architecture=hopper"),
    "gpus-memory": ("gpus", "--min-memory=100"),
    "offers": ("offers", OFFERS),
    "offers-spot": ("offers", OFFERS, "--terms=spot", "--gpu=L4,T4", "--discount=aws=0.2", "--top=2"),
    "apis": ("apis", "gpt-4o", "--host=openai", "--top=3"),
    "init": ("init", "TMP/scenario.toml", "--verb=plan,simulate"),
    "init-schema": ("init", "TMP/scenario.schema.json", "--schema"),
    "meter-report": (*REPORT, "--by=team,day"),
    "meter-report-plan": (*REPORT, "--by=model", "--plan=TMP/first.json"),
    "meter-files": ("meter", "files", "TMP/monitoring"),
    "sweep": ("sweep", "TMP/sweep.toml", "--over=gpu=H100,L4,T4", "--over=rate=5,20", "--jobs=1"),
    "sweep-dry": ("sweep", "TMP/sweep.toml", "--over=gpu=H100,L4", "--over=rate=1..50:log", "--random=4", "--dry-run"),
}  # fmt: skip

FIRST: dict[str, Command] = {
    "meter-report-plan": (*SMALL, "--quick"),
}
"""What a command needs to have run before it; the document of that lies in ``TMP/first.json``."""

PUBLISHED = gzip.decompress((ROOT / DATA / "published.csv.gz").read_bytes()).decode().splitlines(keepends=True)
CORRECTION = {"gpu": "GH200", "engine": "vllm", "loads": 8, "rows": 24, "decode": 1.3, "prefill": 1.1, "seen": {}}
PROFILE = {
    "kind": "tokonomics profile",
    "schema_version": 1,
    "name": "mine",
    "made": "2026-11-15",
    "command": "by hand",
    "corrections": [CORRECTION],
}
FILES = {
    "gh200.json": json.dumps(PROFILE),
    "table.csv": "".join([*PUBLISHED[:1], *PUBLISHED[1::30]]),
    "prompts.txt": "".join(f"what is the price of item {n % 5} in shop {n % 3}, please?\n" for n in range(60)),
    "pairs.csv": "text_a,text_b,label\nthe price of tea,what is the price of tea,1\nthe price of tea,price of ink,0\n",
    "server.toml": """[own-hardware]
gpu = "L40S"
purchase_usd = 15000
years = 5
usd_per_kwh = 0.2
host_watts = 300
""",
    "sweep.toml": """model = "llama-3.1-8b"
rate = 5
input = 1000
output = 300
slo = "tpot_p99=50ms"
quick = true
offers = "tests/golden/offers.csv"
""",
}


class Answer(NamedTuple):
    code: int
    document: Any


Documents = dict[str, Answer]


@pytest.fixture(scope="module")
def kept() -> Iterator[Documents]:
    """The documents by name; with UPDATE_GOLDEN=1 the file takes what a test puts in."""
    found = json.loads(gzip.decompress(KEPT.read_bytes())) if KEPT.is_file() else {}
    answers = {name: Answer(**answer) for name, answer in found.items()}
    yield answers
    if UPDATE:
        text = json.dumps({name: answers[name]._asdict() for name in COMMANDS if name in answers}, ensure_ascii=False)
        KEPT.write_bytes(gzip.compress(text.encode(), mtime=0))


class Shell:
    """Runs the command in this process, as a shell would: words in, exit code and standard output out."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._streams = tmp_path, monkeypatch, capsys
        monkeypatch.chdir(ROOT)

    def run(self, command: Command) -> tuple[int, str]:
        words = [word.replace("TMP", str(self.folder)) for word in (*command, "--json")]
        self._patch.setattr("sys.argv", ["tokonomics", *words])
        self._streams.readouterr()
        thresholds = gc.get_threshold()
        code: object = 0
        try:
            import_module("tokonomics.__main__").main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            gc.set_threshold(*thresholds)
        out, err = self._streams.readouterr()
        assert code in (0, 1), f"{' '.join(command)} exits with {code}:\n{err}"
        return int(code == 1), POINT.sub('"id": "…"', out.replace(str(self.folder), "TMP").replace(str(ROOT), "ROOT"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, monkeypatch, capsys)


def settled(value: Any) -> Any:
    """A document whose clocks say nothing, its floats to nine digits."""
    if isinstance(value, dict):
        return {key: None if key in CLOCKS else settled(each) for key, each in value.items()}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def differences(was: Any, now: Any, at: str = "$") -> Iterator[str]:
    """Every place where a document is not what it was."""
    if type(was) is not type(now):
        yield f"{at}: was {shown(was)}, is {shown(now)}"
    elif isinstance(was, dict):
        for key in was | now:
            place = f"{at}.{key}"
            if key not in now:
                yield f"{place}: is gone, was {shown(was[key])}"
            elif key not in was:
                yield f"{place}: is new, {shown(now[key])}"
            else:
                yield from differences(was[key], now[key], place)
    elif isinstance(was, list):
        if len(was) != len(now):
            yield f"{at}: had {len(was)} items, has {len(now)}"
        for index, pair in enumerate(zip(was, now, strict=False)):
            yield from differences(*pair, f"{at}[{index}]")
    elif was != now and not (isinstance(was, float) and math.isclose(was, now, rel_tol=1e-6, abs_tol=1e-12)):
        yield f"{at}: was {shown(was)}, is {shown(now)}"


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}…"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_document_is_as_it_was(shell: Shell, kept: Documents, name: str) -> None:
    if name == "cache-prompts":
        pytest.importorskip("usearch")
    for file, text in FILES.items():
        (shell.folder / file).write_text(text, encoding="utf-8")
    if name in FIRST:
        (shell.folder / "first.json").write_text(shell.run(FIRST[name])[1], encoding="utf-8")
    code, out = shell.run(COMMANDS[name])
    made = Answer(code, settled(json.loads(out)))
    if UPDATE:
        kept[name] = made
    assert name in kept, f"{KEPT.name} has no {name}: write it with UPDATE_GOLDEN=1"
    assert made.code == kept[name].code
    found = list(differences(kept[name].document, made.document))
    told = "\n  ".join(found[:SHOWN])
    more = f"\n  and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    assert not found, f"tokonomics {' '.join(COMMANDS[name])} --json differs:\n  {told}{more}"


def test_every_kept_document_is_compared(kept: Documents) -> None:
    assert kept.keys() == COMMANDS.keys()


def test_a_difference_is_found_wherever_it_is() -> None:
    was = {"a": [1, 2.0, "x"], "b": {"c": None}, "d": True, "e": 0.1}
    assert not list(differences(was, was | {"e": 0.1 * (1 + 1e-7)}))
    moved: dict[str, Any] = {"a": [1.0, 2.00001, "y", 4], "b": {}, "d": 1, "e": 0.1, "f": 0}
    places = {line.split(":")[0] for line in differences(was, moved)}
    assert places == {"$.a", "$.a[0]", "$.a[1]", "$.a[2]", "$.b.c", "$.d", "$.f"}
