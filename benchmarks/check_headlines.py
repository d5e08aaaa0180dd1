"""Whether the headlines of the README and of docs/questions rest on prices, places and networks a buyer can act on.

    python benchmarks/check_headlines.py [--only PART] [--list]

Every command shown there is asked for its ``--json``, at a clock of today and of 200 days later. Wherever the answer
names a machine (a pick, a fleet's purchases, a row of its table; not what is set aside with a catch), three things must
hold: no quote more than 90 days newer, of the same GPU on the same terms from the same kind of seller within the
command's filters, is over 25 % higher; in a region that was asked for, the machine is certain to stand there; a replica
that spans machines has a network that the seller states. ``--only`` takes the commands that contain these words, and
those that save what others read.
"""

import argparse
import datetime as dt
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokonomics.catalog.offer_choice import market_of, select_offers
from tokonomics.catalog.offers import STALE_AFTER_DAYS, Offer, Terms, load_offers

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs" / "questions").glob("*.md")))
SHOWN = re.compile(r"<!-- output: ([^|>]*?) (?:\| head -\d+ |> (\S+) )?-->")
LATER_DAYS = 200
CONTRADICTED = 0.25  # by more than this share (issue 39)
BELOW_THE_LINE = {"set_aside", "rejected", "left_out", "apis"}

_NAMES = ("provider", "region", "instance", "gpu")

Asked = dict[str, list[str]]


def commands() -> dict[str, str]:
    """Return what the pages show, once each, with the file that it is saved to, if any, for a later command."""
    found: dict[str, str] = {}
    for page in PAGES:
        for command, saved in SHOWN.findall(page.read_text(encoding="utf-8")):
            found[command] = found.get(command) or saved
    return found


def answer(command: str, day: dt.date, folder: Path, saved: str) -> Any:
    """Return the document that a command prints on that day; None if it has no such form, or fails."""
    surroundings = os.environ | {"NO_COLOR": "1", "TOKONOMICS_TODAY": day.isoformat()}
    asked = [sys.executable, "-m", "tokonomics", *shlex.split(command), "--json"]
    done = subprocess.run(asked, cwd=folder, env=surroundings, capture_output=True, text=True, check=False)
    try:
        document = json.loads(done.stdout)
        if saved:
            (folder / saved).write_text(done.stdout, encoding="utf-8")
        return document
    except json.JSONDecodeError:
        print(f"    no answer on {day}: {(done.stderr or done.stdout).strip()[:200]}")
        return None


def filters_of(command: str) -> Asked:
    """Return the providers and regions that a command asks for, in its options or its scenario."""
    words, found = shlex.split(command), dict[str, list[str]]()
    for word in words:
        if word.endswith(".toml"):
            scenario = tomllib.loads((ROOT / word).read_text(encoding="utf-8"))
            for name in ("provider", "region", "max_age"):
                if name in scenario:
                    value = scenario[name]
                    found[name] = [str(one) for one in value] if isinstance(value, list) else str(value).split(",")
    for option, value in pairwise(words):
        if option in ("--provider", "--region", "--max-age"):
            found[option.removeprefix("--").replace("-", "_")] = value.split(",")
    return found


QUOTED = re.compile(r"(?P<provider>\S+) (?P<instance>.+), (?P<region>[^,]+), quoted (?P<price_date>\d{4}-\d\d-\d\d)")


def machines(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every machine that a document names above the line, as a row or in the words of ``Offer.quoted``."""
    if isinstance(document, str) and (quoted := QUOTED.match(document)):
        yield quoted.groupdict()
    elif isinstance(document, dict):
        if {"provider", "region", "gpu", "price_date"} <= document.keys():
            yield document
        for name, value in document.items():
            if name not in BELOW_THE_LINE:
                yield from machines(value)
    elif isinstance(document, list):
        for value in document:
            yield from machines(value)


def wrong(machine: dict[str, Any], sold: Sequence[Offer], asked: Asked) -> Iterator[str]:
    """Yield what a buyer could hold against a machine in a headline."""
    same = [
        offer
        for offer in sold
        if all(machine.get(name, getattr(offer, name)) == getattr(offer, name) for name in _NAMES)
    ]
    if not same:
        return
    quoted = dt.date.fromisoformat(machine["price_date"])
    terms = [Terms(machine["terms"])] if "terms" in machine else [term for term in Terms if same[0].price(term)]
    if "max_age" not in asked and all(list(contradictions(same[0], quoted, sold, term)) for term in terms):
        yield f"contradicted by {next(contradictions(same[0], quoted, sold, terms[0]))}"
    if "region" in asked and "provider" not in asked and not same[0].is_place_certain:
        yield "not certain to be there"
    spans = machine.get("gpus_per_replica", 0) > same[0].gpus
    if spans and same[0].network_bytes_per_s is None:
        yield "over a network that is assumed"


def contradictions(old: Offer, quoted: dt.date, sold: Sequence[Offer], terms: Terms) -> Iterator[str]:
    """Yield the cheapest newer quote on an offer's market, if it is over a quarter higher."""
    newer = [
        (usd, offer)
        for offer in sold
        if market_of(offer) == market_of(old) and (usd := offer.usd_per_gpu_hour(terms)) is not None
        if (offer.date - quoted).days > STALE_AFTER_DAYS
    ]
    if newer:
        usd, offer = min(newer, key=lambda pair: pair[0])
        if usd > (old.usd_per_gpu_hour(terms) or 0.0) * (1 + CONTRADICTED):
            yield f"{offer.provider} {offer.instance} at ${usd:.2f} a GPU-hour, {offer.date}"


def check(command: str, day: dt.date, folder: Path, saved: str) -> tuple[int, list[str]]:
    """Return how many machines an answer names above the line, and what is wrong with them."""
    asked, document = filters_of(command), answer(command, day, folder, saved)
    if document is None:
        return 0, [f"no answer on {day}"]
    sold = select_offers(
        load_offers(), provider=asked.get("provider"), region=asked.get("region"), terms=None
    )  # as far as filters go
    named = list(machines(document))
    found = (
        f"{day}: {' '.join(machine[name] for name in _NAMES if name in machine)}: {why}"
        for machine in named
        for why in wrong(machine, sold, asked)
    )
    return len(named), list(dict.fromkeys(found))


def main() -> int:
    """Ask every command on both days and list what is wrong; the exit status says whether anything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="commands that contain this")
    parser.add_argument("--list", action="store_true", help="list the commands and ask nothing")
    options = parser.parse_args()
    chosen, bad = {command: saved for command, saved in commands().items() if saved or options.only in command}, 0
    if options.list:
        print(*chosen, sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs").symlink_to(ROOT / "docs")
        for command, saved in chosen.items():
            print(f"tokonomics {command}")
            for day in (dt.date.today(), dt.date.today() + dt.timedelta(days=LATER_DAYS)):
                named, found = check(command, day, Path(folder), saved)
                print(f"    {day}: {named} machines named, {len(found)} wrong", *found, sep="\n        ")
                bad += len(found)
    print(f"{len(chosen)} commands, {bad} things wrong")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
