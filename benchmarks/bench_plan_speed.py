"""What a simulated plan takes of one processor, beside what it may take.

The demo of the README, a plan over the swing of a day and one for agents, whose simulations take longest; and the demo
over a price list of 10,000 offers: the shipped ones, and copies of them in other regions at prices a little higher.
Each is the whole command in a process of its own, after one that compiles; the least of a few runs, as other work on
the machine only adds. Python keeps its bytecode, as it does of what is installed, whatever the shell says. The first
run after an installation has a cache of its own each time, and its small simulation takes next to nothing.
python benchmarks/bench_plan_speed.py
"""

import os
import platform
import resource
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from tokonomics.catalog.offers import Offer, load_offers, write_offers

DEMO = "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms --top 5"
TRAFFIC = "--input 1000 --output 300 --slo ttft_p99=1,tpot_p99=50ms"
DAY = f"plan qwen3-32b --arrivals diurnal:3,peak=3 {TRAFFIC} --region EU --spare 1"
AGENTS = "plan llama-3.1-8b --rate 5 --sessions agent --slo ttft_p99=1,tpot_p99=50ms"
OFFERS, RUNS = 10_000, 3
FIRST = "simulate --model llama-2-7b --gpu A100-80GB --arrivals poisson:2 --requests 1000 --input 512 --output 512"
DEMO_MAY_TAKE_S, DAY_MAY_TAKE_S, AGENTS_MAY_TAKE_S, OFFERS_MAY_TAKE_S, FIRST_MAY_TAKE_S = 1.5, 5.0, 20.0, 4.0, 8.0
"""On an idle machine of 2 cores: our choice. What takes more prints a ratio above 1."""


def processor_s(*arguments: str, **environment: str) -> float:
    """Seconds of processor that the command takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tokonomics", *arguments]
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "bench_plan")}
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **bytecode, **environment})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def first_run_s() -> float:
    """The same of a simulation for which nothing has been compiled."""
    with tempfile.TemporaryDirectory() as empty:
        return processor_s(*FIRST.split(), XDG_CACHE_HOME=empty)


def price_list(count: int) -> list[Offer]:
    """So many offers: the shipped ones, then copies of them that cost 1 % more each time."""
    shipped = [offer for offer in load_offers() if offer.usd_per_hour is not None]

    def copied(place: int) -> Offer:
        offer, copy = shipped[place % len(shipped)], place // len(shipped)
        dearer = {"region": f"{offer.region}-{copy}", "usd_per_hour": (offer.usd_per_hour or 0.0) * (1 + copy / 100)}
        return offer.model_copy(update=dearer) if copy else offer

    return [copied(place) for place in range(count)]


def main() -> None:
    print(f"{date.today()}, {platform.system()} {platform.machine()}, Python {platform.python_version()}\n")
    processor_s(*DEMO.split())
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "offers.csv"
        write_offers(listed, price_list(OFFERS))
        cases = {
            "the demo": (DEMO.split(), DEMO_MAY_TAKE_S),
            "over a day's swing": (DAY.split(), DAY_MAY_TAKE_S),
            "for agents": (AGENTS.split(), AGENTS_MAY_TAKE_S),
            f"over {OFFERS:,} offers": ([*DEMO.split(), "--offers", str(listed)], OFFERS_MAY_TAKE_S),
        }
        print(f"{'processor seconds':28}{'takes':>8}{'may take':>10}{'ratio':>8}")
        for name, (arguments, may_take_s) in cases.items():
            takes_s = min(processor_s(*arguments) for _ in range(RUNS))
            say(name, takes_s, may_take_s)
    say("first run, compiling", min(first_run_s() for _ in range(RUNS)), FIRST_MAY_TAKE_S)


def say(name: str, takes_s: float, may_take_s: float) -> None:
    print(f"{name:28}{takes_s:8.2f}{may_take_s:10.2f}{takes_s / may_take_s:8.2f}")


if __name__ == "__main__":
    main()
