"""Every verb that can express a set-up gives it the same replicas, batch limit, router, bill, $/Mtok and $/job.

Random set-ups: dense models and experts, from a price list with one machine for each GPU; plain logs, sessions, shared
prompts, classes of service, spare machines, a profile, tenants; a quarter of most kinds with headroom. Their traffic is
a log that every verb reads; a demand is a rate with lengths, which ``fleet`` gets as the same in every hour. Prompts
apart from answers are planned on machines of one to eight GPUs, and asked of ``simulate``, and of ``levers`` where both
sides are alike.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.explore import some, times
from tests.there import there

from tokonomics.levers.lever_list import KNOBS
from tokonomics.physics.calibration import Correction, Profile, using
from tokonomics.planner.plan import study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.questions.fleet import fleet
from tokonomics.questions.levers import cache, levers
from tokonomics.questions.load import questions_of
from tokonomics.questions.plan import plan
from tokonomics.questions.predict import predict
from tokonomics.questions.requests.buy import FleetRequest, PlanRequest, PredictRequest
from tokonomics.questions.requests.traffic import (
    CacheRequest,
    CapacityRequest,
    LeversRequest,
    SimulateRequest,
    TenantsRequest,
)
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import SimulateResult, capacity, simulate
from tokonomics.questions.tenants import tenants
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.search import NeverHolds
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import Sessions, SystemPrompts, Tenants, generate
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.trace import Trace, save_trace
from tokonomics.units import HOURS_PER_MONTH

PARTS = 20
SETUPS = times(200)
CLOSE = 0.005
MODELS = ("llama-3.1-8b", "qwen3-8b", "deepseek-v2-lite", "qwen3-30b-a3b")
GPUS = {"L40S": 1.0, "A100-80GB": 1.5, "H100-SXM": 2.5, "H200": 3.5}
WITH_HEADROOM = ("plain", "sessions", "spare", "profile", "tenants", "demand", "apart")
KINDS = ("plain", "sessions", "shared", "spare", "classes", "profile", "tenants", "demand", "apart")
SLOS = ("ttft_p99={a}", "tpot_p99={b}", "ttft_p95={a},tpot_p99={b}", "e2e_p90={c}", "")


class World(NamedTuple):
    """What is asked of every verb."""

    kind: str
    model: str
    gpu: str
    slo: str | None
    traffic: Trace | dict[str, str]
    """A log; or a rate and lengths."""
    more: dict[str, Any]
    """Of plans alone: classes, spare machines."""
    headroom: str | None = None

    @property
    def profile(self) -> Profile | None:
        """A server a fifth slower than its kernels."""
        slow = Correction(gpu=self.gpu, engine="vllm", model=self.model, tp=1, decode=1.2, prefill=1.1, loads=4, rows=8)
        made = Profile(name="mine", made=date(2026, 11, 15), command="test", corrections=(slow,))
        return made if self.kind == "profile" else None


def world(number: int) -> World:
    rng = np.random.default_rng(number)
    kind, model, gpu = KINDS[number % len(KINDS)], str(rng.choice(MODELS)), str(rng.choice(list(GPUS)))
    if model == "qwen3-30b-a3b" and gpu == "L40S":
        gpu = "H200"  # 61 GB of weights
    inputs, outputs = int(rng.integers(100, 1500)), int(rng.integers(20, 150))
    limits = {"a": f"{rng.uniform(0.5, 3):.3g}", "b": f"{rng.uniform(25, 90):.3g}ms", "c": f"{rng.uniform(4, 15):.3g}"}
    slo = SLOS[int(rng.integers(len(SLOS)))].format(**limits) or None
    turns = 4 if kind == "sessions" else 1
    larger = (
        8 if kind == "apart" else 1
    )  # one replica is half of the smallest pair: a plan passes over what costs twice
    rate = rng.uniform(2, 25) / turns**2 * larger
    lengths = {
        "input": f"lognormal:mean={inputs},p99={inputs * 4}",
        "output": f"lognormal:mean={outputs},p99={outputs * 3}",
    }
    grows = kind in WITH_HEADROOM and number % 4 == 0
    headroom = ("10%", "20%", "60%")[number // 4 % 3] if grows else None
    if kind == "demand":
        return World(kind, model, gpu, slo, lengths | {"rate": f"{2 * rate:.4g}"}, {}, headroom)
    log = generate(
        parse_arrivals(f"poisson:{rate:.6g}"),
        parse_lengths(lengths["input"], "input"),
        parse_lengths(lengths["output"], "output"),
        requests=int(rng.integers(700, 1500)) * turns * larger,  # sessions start for long enough to have a steady state
        seed=number,
        sessions=Sessions(turns=turns, think_s=3.0) if turns > 1 else None,
        system=SystemPrompts(4, 800) if kind == "shared" else None,
        tenants=Tenants(count=2, skew=0.5) if kind == "tenants" else None,
    )
    more: dict[str, Any] = {"spare": f"{rng.integers(1, 3)}"} if kind == "spare" else {}
    if kind == "apart":
        more = {"disaggregate": True}
    if kind == "classes":
        gold = f"gold,share=30%,priority=0,slo=ttft_p99={limits['a']}"
        slo, more = None, {"classes": [gold, "free,priority=1,slo=ttft_p99=60"]}
    return World(kind, model, gpu, slo, log, more, headroom)


@pytest.fixture(scope="module")
def offers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One machine of one GPU, for each GPU: what is asked of a verb leaves it one layout."""
    return price_list(tmp_path_factory.mktemp("prices") / "offers.csv", 1)


@pytest.fixture(scope="module")
def of_any_size(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machines of one to eight GPUs, each at the same price."""
    return price_list(tmp_path_factory.mktemp("prices") / "sizes.csv", 8)


def price_list(path: Path, most: int) -> Path:
    rows = [
        f"acme,here,{size}x{gpu},{gpu},{size},{16 * size},{256 * size},{price * size},2026-11-01,test"
        for gpu, price in GPUS.items()
        for size in range(1, most + 1)
    ]
    path.write_text("\n".join(["provider,region,instance,gpu,gpus,vcpus,memory_gb,usd_per_hour,date,source", *rows]))
    return path


def planned(asked: World, common: dict[str, Any]) -> Candidate | None:
    """The plan's pick, or what it found apart, without what a plan tells besides."""
    on = {"model": [asked.model], "gpu": [asked.gpu], "weights": ["bf16"]}
    (question,) = questions_of(PlanRequest.checked(common | asked.more | on), quick=False)
    made = study(replace(question, catches={}), pick_only=True)
    if asked.kind == "apart":
        return made.apart.row if made.apart else None
    return made.plan.best


def others(asked: World, common: dict[str, Any], best: Candidate) -> Iterator[tuple[str, dict[str, object]]]:
    """What every other verb says of the same set-up, by verb, in the plan's words."""
    on = {"model": asked.model, "gpu": asked.gpu, "weights": "bf16"}
    if best.prefill:
        yield from split(common | on, best)
        return
    if asked.kind != "classes":
        yield (
            "levers",
            billed(levers(LeversRequest.checked(common | asked.more | on | {"without": list(KNOBS)})).now),
        )
    if isinstance(asked.traffic, dict):
        hourly = common | {"rate": None, "demand": f"24x{asked.traffic['rate']}"}
        bought = fleet(FleetRequest.checked(hourly | on | {"gpu": [asked.gpu], "weights": ["bf16"]}))
        (kind,) = (bought.kind(purchase.offer) for purchase in bought.plan.purchases)
        yield (
            "fleet",
            {
                "replicas": max(bought.plan.machines()) * kind.replicas,
                "max_sequences": kind.max_sequences or best.max_sequences,
                "router": kind.router,
                "usd_per_month": bought.plan.usd_per_month,
            },
        )
    served = SimulateRequest.checked(
        {name: value for name, value in common.items() if name not in ("offers", "headroom")}
        | {name: value for name, value in asked.more.items() if name == "classes"}
        | on
        | {"replicas": best.replicas, "router": best.router, "max_sequences": best.max_sequences}
        | {"usd_per_hour": GPUS[asked.gpu]}
    )
    yield "simulate", costs(simulate(served))
    if asked.kind in ("plain", "sessions", "profile"):
        made = capacity(CapacityRequest.checked(common | on))
        needed = there(made.replicas_needed)
        yield (
            "capacity",
            {
                "replicas": needed.replicas,
                "max_sequences": needed.max_sequences or best.max_sequences,
                "router": needed.router,
                "usd_per_mtok": made.usd_per_mtok,
                "usd_per_job": made.usd_per_job,
            },
        )
    if asked.kind == "shared":
        lever = there(cache(CacheRequest.checked(common | on)).prefix_cache)
        cheapest = min((row for row in lever.rows[1:] if row.bill), key=lambda row: row.bill.usd if row.bill else 0.0)
        yield (
            "cache",
            {
                "replicas": cheapest.needs,
                "usd_per_month": there(cheapest.bill).usd * HOURS_PER_MONTH,
                "usd_per_mtok": cheapest.usd_per_mtok,
            },
        )
    if asked.kind == "tenants":
        priced: dict[str, Any] = {"trace": [common["trace"]], "slo": asked.slo, "usd_per_hour": GPUS[asked.gpu]}
        priced |= {"headroom": asked.headroom}
        pooled = tenants(TenantsRequest.checked(priced | on))
        loosest = min([pooled.together, *pooled.what_if], key=lambda row: row.replicas)
        yield "tenants", {"replicas": loosest.replicas, "usd_per_month": loosest.usd_per_hour * HOURS_PER_MONTH}


def split(asked: dict[str, Any], best: Candidate) -> Iterator[tuple[str, dict[str, object]]]:
    """What other verbs say of prompts and answers on replicas of their own."""
    first = there(best.prefill)
    answering, computing = ({name: getattr(side, name) for name in ("tp", "pp", "ep", "dp")} for side in (best, first))
    if computing == answering:
        without = [knob for knob in KNOBS if knob != "disaggregation"]
        (lever,) = levers(LeversRequest.checked(asked | answering | {"without": without})).levers
        assert lever.bill is not None, lever.reason
        yield "levers", billed(lever.bill) | {"prefill": lever.bill.prefill_replicas}
    elif first.tp < first.gpus_per_replica:
        return
    served = {name: value for name, value in asked.items() if name not in ("offers", "headroom")} | answering
    served |= {
        "replicas": best.replicas,
        "router": best.router,
        "max_sequences": best.max_sequences,
        "link": first.link,
    }
    served |= {"prefill_replicas": first.replicas, "prefill_tp": None if computing == answering else first.tp}
    made = simulate(SimulateRequest.checked(served | {"usd_per_hour": GPUS[best.gpu]}))
    yield "simulate", costs(made) | {"holds": all(slo.met for slo in made.slo)}


def billed(found: Bill) -> dict[str, object]:
    return {
        "replicas": found.all_replicas,
        "max_sequences": found.max_sequences,
        "router": found.router,
        "usd_per_month": found.usd_per_month,
        "usd_per_mtok": found.usd_per_mtok.blended,
        "usd_per_job": found.job.usd if found.job else None,
        "load_share": found.load_share,
    }


def costs(made: SimulateResult) -> dict[str, object]:
    return {"usd_per_mtok": made.usd_per_mtok, "usd_per_job": made.usd_per_job}


def said(best: Candidate) -> dict[str, object]:
    """What a plan says of its pick, spare replicas left out where other verbs have none."""
    return {
        "replicas": best.replicas + (best.prefill.replicas if best.prefill else 0),
        "prefill": best.prefill and best.prefill.replicas,
        "holds": True,
        "max_sequences": best.max_sequences,
        "router": best.router,
        "usd_per_month": best.usd_per_month,
        "usd_per_mtok": best.usd_per_mtok.blended,
        "usd_per_job": best.job.usd if best.job else None,
        "load_share": best.load_share,
    }


@pytest.mark.slow
@pytest.mark.law
@pytest.mark.parametrize("part", some(range(PARTS), 3))
def test_verbs_agree_about_the_same_set_up(part: int, tmp_path: Path, offers: Path, of_any_size: Path) -> None:
    agreed = 0
    for number in range(part, SETUPS, PARTS):
        asked, path = world(number), tmp_path / f"{number}.parquet"
        traffic = asked.traffic
        if isinstance(traffic, Trace):
            save_trace(traffic, path)
            traffic = {"trace": str(path)}
        prices = of_any_size if asked.kind == "apart" else offers
        common: dict[str, Any] = {**traffic, "slo": asked.slo, "offers": str(prices)}
        common |= {"headroom": asked.headroom} if asked.headroom else {}
        with using(asked.profile) if asked.profile else nullcontext():
            best = planned(asked, common)
            if best is None and asked.kind == "apart":
                continue  # every way apart costs twice the pick, or misses the SLO
            if best is None:
                with pytest.raises(NeverHolds):
                    levers(
                        LeversRequest.checked(common | {"model": asked.model, "gpu": asked.gpu, "without": list(KNOBS)})
                    )
                continue
            expected = said(best)
            for verb, told in others(asked, common, best):
                for name, value in told.items():
                    if value is None and expected[name] is None:
                        continue
                    if isinstance(value, float):
                        assert value == pytest.approx(expected[name], rel=CLOSE), (number, verb, name)
                    else:
                        assert value == expected[name], (number, verb, name)
        agreed += 1
    assert agreed >= 6


def test_a_first_token_has_the_same_latencies_and_the_same_width_in_every_verb(offers: Path) -> None:
    setup = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "weights": "bf16", "slo": "ttft_p99=1"}
    traffic = {"rate": "5", "input": "1000", "output": "300", "offers": str(offers)}
    planned = plan(PlanRequest.checked(setup | traffic))
    assert isinstance(planned, PlanResult)
    simulated = simulate(SimulateRequest.checked(setup | traffic))
    best = there(planned.best)
    assert (best.tp, best.replicas, best.ttft_s) == (1, 1, simulated.ttft_s)
    alone = there(predict(PredictRequest.checked({"model": setup["model"], "gpu": setup["gpu"]})).ttft_s)
    drawn = there(planned.frontier).points[0].ttft_range
    assert drawn.high / drawn.mid == pytest.approx(alone.high / alone.mid)
