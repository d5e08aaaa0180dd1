"""Bill the hosts that sell a model by the token for the requests of a plan, and set the cheapest beside the fleet.

An API answers the same requests: each is charged at the tier of its own length, and what the fleet's cache would find
is read from the host's cache if it sells that. A host counts only if its context holds the longest request. Under a
hard region it counts only if it is known to compute there: one that does not say where it computes is named below, and
one that computes elsewhere is left out. A host whose measured latency misses the SLO does not count either; one that
nobody measured does, and says so. So an API added to the list never makes the cheapest answer more expensive.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import NonNegativeFloat, PositiveInt

from tokonomics.catalog.api_hosts import hosts_of
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.places import lies_in
from tokonomics.errors import BadInput
from tokonomics.money.cost import saving
from tokonomics.money.trace_bills import HOST_TTL_S, ApiCost, host_bills
from tokonomics.sizing.bill import CENT
from tokonomics.sizing.load import Load
from tokonomics.traffic.prefix_reuse import found_share
from tokonomics.types import Noun

BATCH = " (batch)"


class ApiSlo(StrEnum):
    """What is known of an API's latencies under the SLO of a plan."""

    not_asked = "no SLO"
    not_measured = "not measured"
    met = "met"
    missed = "missed"


class ApiBeside(Noun):
    """The cheapest API for the requests of a plan, beside the cheapest fleet for them."""

    api: ApiCost
    usd_per_month: NonNegativeFloat
    hosts: PositiveInt  # number of hosts that could serve these requests there
    most_usd_per_month: NonNegativeFloat  # the most expensive of them
    slo: ApiSlo
    there: bool | None  # whether it computes in the region asked for; None: its host does not say where
    fleet_usd_per_month: float | None  # None: no fleet meets the constraints
    saved_usd_per_month: float | None  # against the fleet; negative if the API is more expensive
    saved_share: float | None
    cheaper: bool
    """It is the cheapest answer: it may count, and costs less than the fleet or there is none."""
    missed: tuple[str, ...] = ()  # APIs that are left out, as their measured latency misses the SLO
    perhaps: "ApiBeside | None" = None  # a cheaper one whose host does not say where it computes


def share_of_api(load: Load, asked: float | None) -> float:
    """Return the share of the prompts that an API reads from its cache: as given, or what the requests repeat in time.

    Of a log, ``load`` is the log at its own pace (``Hosting.recorded``): more volume means more people, not faster
    ones. Of conversations that were made up, it is what their turns repeat.
    """
    if load.trace.prefix is None or (asked is not None and not load.is_log):
        return asked or 0.0
    if asked is not None:
        fix = "Leave it out: both sides then get what the log repeats."
        raise BadInput("the log itself says which prompts begin alike", field="cached_share", fix=fix)
    return found_share(load.trace, ttl_s=HOST_TTL_S)[0]


def api_bills(
    model: ModelSpec,
    asked: str,
    load: Load,
    *,
    batch: bool = False,
    cached_share: float | None = None,
    without: Sequence[str] = (),
) -> tuple[ApiCost, ...]:
    """Return what each host of the model charges for these requests, cheapest first; nobody hosts an encoder.

    With ``batch`` a host's batch price counts as well: it answers within a day. ``without`` names APIs to leave out.
    """
    if model.is_encoder:
        return ()
    share = share_of_api(load, None) if cached_share is None else cached_share
    hosts = [api for api in hosts_of(model, asked) if api.key not in without]
    return host_bills(hosts, load.trace, share, batch, replayed=True)


def in_region(bills: Sequence[ApiCost], region: Sequence[str]) -> dict[bool | None, list[ApiCost]]:
    """Split the APIs, in their order: those that compute in a region, that do not say where (None), and elsewhere.

    Without a region all are there.
    """
    found: dict[bool | None, list[ApiCost]] = {True: [], None: [], False: []}
    for bill in bills:
        found[lies_in(region, bill.areas) if region else True].append(bill)
    return found


def cheapest_api(
    bills: Sequence[ApiCost],
    tokens_per_month: float,
    fleet_usd_per_month: float | None,
    *,
    region: Sequence[str] = (),
    has_slo: bool = False,
    measured: Mapping[str, bool | None] | None = None,
    missed: Sequence[str] = (),
) -> ApiBeside | None:
    """Return the cheapest API beside a fleet's bill; None if nobody sells the model for these requests there.

    ``measured`` says by name whether an API's measured latency meets every SLO; None: the measurement does not say.
    """
    placed = [
        (bill, there) for there, among in in_region(bills, region).items() if there is not False for bill in among
    ]
    known = measured or {}

    def slo(bill: ApiCost) -> ApiSlo:
        if not has_slo:
            return ApiSlo.not_asked
        met = known.get(bill.name.removesuffix(BATCH))
        return ApiSlo.not_measured if met is None else ApiSlo.met if met else ApiSlo.missed

    usable = [(bill, there) for bill, there in placed if slo(bill) is not ApiSlo.missed]
    if not usable:
        return None

    def beside(bill: ApiCost, there: bool | None, among: Sequence[ApiCost]) -> ApiBeside:
        usd = bill.usd_per_month(tokens_per_month)
        saved = None if fleet_usd_per_month is None else fleet_usd_per_month - usd
        return ApiBeside(
            api=bill,
            usd_per_month=usd,
            hosts=len(among),
            most_usd_per_month=max(other.usd_per_month(tokens_per_month) for other in among),
            slo=slo(bill),
            there=there,
            fleet_usd_per_month=fleet_usd_per_month,
            saved_usd_per_month=saved,
            saved_share=None if fleet_usd_per_month is None else saving(fleet_usd_per_month, usd),
            cheaper=bool(there) and (saved is None or saved > CENT),
            missed=tuple(missed),
        )

    certain = [bill for bill, there in usable if there]
    others = [bill for bill, there in usable if there is None]
    perhaps = beside(others[0], None, others) if others else None
    if not certain:
        return perhaps
    counts = beside(certain[0], True, certain)
    below = perhaps is not None and perhaps.usd_per_month < counts.usd_per_month
    return counts.model_copy(update={"perhaps": perhaps}) if below else counts
