"""Read latency SLOs, such as "99 % of first tokens within half a second", and classes of service.

``ttft_p99=0.5,tpot_p99=0.05`` are SLOs. ``gold,tenants=acme/beta*,slo=ttft_p99=0.5+tpot_p99=40ms,priority=0`` is the
class ``gold``: the requests of the tenant acme and of those whose names begin with beta, under two latency targets,
served before classes of a larger priority.
"""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.grammar import Phrase, span_s, unnamed_phrase
from tokonomics.types import Noun

PERCENTILES = (50, 90, 95, 99)
STATISTICS = (*(f"p{percentile}" for percentile in PERCENTILES), "mean")

_LONGEST_S = {"ttft": 120.0, "tpot": 1.0}
"""Nobody waits two minutes for a first token, or a second for each further one: more was meant as milliseconds."""

Seconds = Annotated[float, Field(gt=0, le=1e6)]


class Latency(StrEnum):
    """The latencies that an SLO can be set on."""

    ttft = "ttft"  # the first token, from the request's arrival
    tpot = "tpot"  # each token after the first, in the mean over one answer
    e2e = "e2e"  # the last token, from the request's arrival
    job = "job"  # the last answer of a session, from when its first request is sent: with tools and pauses


class Slo(Noun):
    """One line of a service level objective."""

    latency: Latency
    statistic: str  # a percentile over requests (p50, p90, p95, p99) or their mean
    seconds: Seconds

    def __str__(self) -> str:
        return f"{self.latency}_{self.statistic}"

    @property
    def label(self) -> str:
        """Return the name to show: ``TTFT p99``."""
        name = self.latency.upper() if self.latency in (Latency.ttft, Latency.tpot) else self.latency.value
        return f"{name} {self.statistic}"


def parse_slos(text: str) -> tuple[Slo, ...]:
    """Read SLOs such as ``ttft_p99=0.5,tpot_p99=50ms``; a name without a statistic means p99."""
    slos: dict[str, Slo] = {}
    for part in text.split(","):
        name, _, value = (piece.strip().lower() for piece in part.partition("="))
        latency, _, statistic = name.partition("_")
        statistic = statistic or "p99"
        if latency not in set(Latency) or statistic not in STATISTICS:
            fix = "Write such as ttft_p99=0.5,tpot_p90=50ms: ttft, tpot, e2e or job; p50, p90, p95, p99 or mean."
            raise BadInput(f"'{shorten(part.strip())}' is not an SLO", field="slo", fix=fix)
        # 50m is 50ms misspelt, but of jobs, which take minutes.
        seconds = span_s(value) if latency == Latency.job or not value.endswith(("m", "min", "h", "d")) else None
        if seconds is None or not 0 < seconds <= 1e6:
            said = f"'{shorten(part.strip())}' has no time above 0"
            raise BadInput(said, field="slo", fix="Write such as 0.5 or 500ms.")
        if seconds > _LONGEST_S.get(latency, 1e6):
            said = f"'{shorten(part.strip())}' is {seconds:g} seconds"
            raise BadInput(said, field="slo", fix=f"Did you mean {seconds:g}ms?")
        slo = Slo(latency=Latency(latency), statistic=statistic, seconds=seconds)
        if slos.setdefault(str(slo), slo) is not slo:
            raise BadInput("names the same SLO twice", field="slo")
    return tuple(slos.values())


FIELDS = {
    "name": "What the class is called.",
    "tenants": "Whose requests it has: names, or patterns with * and ?. Without tenants and share: all the others.",
    "share": "Or the share of the requests that no tenants= names, drawn at random: 0.2 or 20%.",
    "slo": "Its own latency targets: ttft_p99=0.5,tpot_p99=40ms. Without: those that hold for all.",
    "priority": "Smaller is served first; without: 0.",
    "max_wait": "A request that has waited so long before any step worked on it is turned away: 2, 500ms.",
    "max_queue": "A request is turned away where so many, as urgent or more, wait for its replica.",
    "shed": "The share that may be turned away: 5%. Without: who is turned away counts as never answered.",
}
"""The keys of a ``[[class]]`` table."""
_EXAMPLES = "gold,tenants=acme/beta,slo=ttft_p99=0.5+tpot_p99=40ms,priority=0 or batch,max_wait=30,shed=5%,priority=1"
_MOST = 32  # each priority is a queue of its own on every replica
_URGENT = 2**31 - 1  # priorities are numbers of 32 bits, as a log's are


class ServiceClass(Noun):
    """Requests that are treated alike and judged by the same targets."""

    name: str
    tenants: tuple[str, ...] = ()  # names, or patterns with * and ?
    share: float | None = None
    """The share of the requests whose tenant no class names; None, if no tenants are named: all that are left."""
    slos: tuple[Slo, ...] = ()
    priority: int = 0  # smaller is more urgent, as in vLLM
    max_wait_s: float | None = None
    max_queue: int | None = None
    shed: float | None = None  # the share that may be turned away; None: a rejected request counts as never answered

    @property
    def takes_the_rest(self) -> bool:
        return not self.tenants and self.share is None


def parse_classes(texts: Sequence[str], slos: Sequence[Slo] = ()) -> tuple[ServiceClass, ...]:
    """Read the classes and check each and all together; ``slos`` apply to a class that names none."""
    found = [_parse(text, tuple(slos)) for text in texts]
    names = [one.name for one in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"'{shorten(twice[0])}' is given twice", field="classes")
    if len(found) > _MOST:
        raise BadInput(f"at most {_MOST} classes, got {len(found)}", field="classes")
    rest = [one.name for one in found if one.takes_the_rest]
    if len(rest) > 1:
        both = f"{shorten(rest[0])} and {shorten(rest[1])} have neither tenants= nor share="
        raise BadInput(f"{both}: only one class takes the rest", field="classes", fix=f"Such as: {_EXAMPLES}.")
    total = sum(one.share or 0.0 for one in found)
    if total > 1 + 1e-9:
        raise BadInput(f"shares sum to {total:.3g}, more than 1", field="classes")
    return tuple(found)


def _parse(text: str, slos: tuple[Slo, ...]) -> ServiceClass:
    phrase = unnamed_phrase(text, "classes", _EXAMPLES)
    for name, value in phrase.options.items():
        if name.partition("_")[0] in set(Latency):
            raise phrase.wrong(f"a target is written slo={shorten(f'{name}={value}', 30)}, several with + between")
    phrase.allow(*(name for name in FIELDS if name != "name"))
    if not phrase.value:
        raise phrase.wrong("the name of the class comes first")
    given = phrase.options
    tenants = tuple(part.strip() for part in given.get("tenants", "").split("/") if part.strip())
    if "tenants" in given and "share" in given:
        raise phrase.wrong("a class has tenants= or share=, not both")
    try:
        own = parse_slos(given["slo"].replace("+", ",")) if "slo" in given else slos
    except BadInput as error:
        error.what, error.field = f"'{shorten(text)}': {error.what}", "classes"
        raise
    limits = "max_wait" in given or "max_queue" in given
    if "shed" in given and not limits:
        raise phrase.wrong("shed= is for classes with max_wait= or max_queue=")
    return ServiceClass(
        name=phrase.value,
        tenants=tenants,
        share=_share(phrase, "share"),
        slos=own,
        priority=_whole(phrase, "priority", -_URGENT, _URGENT) or 0,
        max_wait_s=phrase.time_s("max_wait", 1e-6, 1e6) if "max_wait" in given else None,
        max_queue=_whole(phrase, "max_queue", 1, 10**6),
        shed=_share(phrase, "shed"),
    )


def _share(phrase: Phrase, name: str) -> float | None:
    """Read ``0.05`` or ``5%``."""
    given = phrase.options.get(name)
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(%?)", given)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 < value <= 1:
        raise phrase.wrong(f"{name}= is a share above 0 and at most 1, such as 0.05 or 5%")
    return value


def _whole(phrase: Phrase, name: str, low: int, high: int) -> int | None:
    given = phrase.options.get(name)
    if given is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,10}", given) or not low <= int(given) <= high:
        raise phrase.wrong(f"{name}= is a whole number from {low:,} to {high:,}")
    return int(given)
