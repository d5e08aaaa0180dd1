"""How fast a plan is, and how far simulated capacity goes beyond the closed form that prunes for it.

Planning times are for the whole shipped catalogue: the first plan of a process (closed form), the second, and one
sized by simulation. The ratios are of one replica: the highest rate it holds under a SLO by simulation over the
closed form's; the largest of them must stay below the leeway of ``sizing.screen``, or pruning could miss the pick.
"""

import platform
import time
from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import load_offers
from tokonomics.errors import TokonomicsError
from tokonomics.physics.deployment import deploy
from tokonomics.planner.plan import Question, study
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.screen import LEEWAY, curve_for, tpot_limit
from tokonomics.sizing.search import highest_rate
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.slo import parse_slos
from tokonomics.types import today

MODELS = (("llama-3.1-8b", 1), ("llama-3.3-70b", 4), ("qwen3-30b-a3b", 1))
GPUS = ("H100", "A100-80GB", "L40S", "H200", "MI300X", "RTX4090")
SLOS = (
    "",
    "tpot_p99=0.05",
    "ttft_p99=0.5,tpot_p99=0.05",
    "tpot_p50=0.03",
    "ttft_p50=0.2,tpot_mean=0.1",
    "e2e_p90=20",
)


def loads() -> dict[str, Load]:
    """Requests of one length, of many, of a log and of conversations with shared prompts."""
    return {
        "1000/300": load_of_shape(1, "1000", "300"),
        "200/800": load_of_shape(1, "200", "800"),
        "lognormal": load_of_shape(1, "lognormal:mean=800,p99=6000", "lognormal:mean=250,p99=1500"),
        "azure-conv": load_of_log(open_trace("azure-conv").read()),
        "azure-code": load_of_log(open_trace("azure-code").read()),
        "mooncake-conversation": load_of_log(open_trace("mooncake-conversation").read()),
    }


def ratios() -> list[tuple[float, str]]:
    """Simulated over closed-form capacity, with what it was."""
    found = []
    for (model, tp), gpu, (name, load), slo in product(MODELS, GPUS, loads().items(), SLOS):
        try:
            deployment = deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), tp=tp)
            slos = parse_slos(slo) if slo else ()
            capacity = curve_for(deployment, load).capacity(tpot_limit(slos))
            best = highest_rate(Setup(deployment, load, slos=slos), capacity.rate)
        except TokonomicsError:
            continue
        found.append((best.rate / capacity.rate, f"{deployment}, {name}, {slo or 'no slo'}"))
    return sorted(found)


def main() -> None:
    print(f"{date.today()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}\n")
    offers, engine = load_offers(), find_engine("vllm")
    slos = parse_slos("ttft_p99=0.5,tpot_p99=0.05")
    title = f"plan over {len(offers):,} offers"
    print(f"{title:34}{'first s':>9}{'again s':>9}{'simulated s':>13}{'runs':>6}")
    for name in ("llama-3.1-8b", "llama-3.3-70b", "qwen3-30b-a3b", "deepseek-v3"):
        load = load_of_shape(5, "1000", "300")
        question = Question(find_model(name), load, offers, [engine], today(), slos, simulate=False)
        times = []
        for quick in (True, True, False):
            began = time.perf_counter()
            made = study(replace(question, simulate=not quick))
            times.append(time.perf_counter() - began)
        print(f"{name:34}{times[0]:9.2f}{times[1]:9.2f}{times[2]:13.2f}{made.plan.simulations:6}")
    found = ratios()
    values = np.array([ratio for ratio, _ in found])
    print(f"\nsimulated ÷ closed-form capacity of a replica, {len(found)} cases (the search allows {LEEWAY:g})")
    print("  ".join(f"p{p} {np.percentile(values, p):.2f}" for p in (1, 10, 50, 90, 99)), f" max {values.max():.3f}")
    for ratio, what in found[-8:]:
        print(f"  {ratio:.3f}  {what}")


if __name__ == "__main__":
    main()
