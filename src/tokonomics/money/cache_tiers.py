"""Price slower memories for KV, give their speed, and decide when a block stored in one pays for its place.

Fetching a block instead of computing it frees the GPU for the time that the block would have taken. That time is worth
the price of the replica, as if every second were used; the place in the tier costs its price while the block is stored.
A block pays if it is read again sooner than the quotient of the two (the five-minute rule of Gray and Putzolu, 1987,
for KV).
"""

import math
from datetime import date

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.offers import is_stale
from tokonomics.errors import BadInput, did_you_mean, shorten
from tokonomics.money.cost import CostLine
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.tiers import Tier, break_even_position, compute_s, fetch_s, kv_bytes_per_token
from tokonomics.types import Badge, Noun, today
from tokonomics.units import BYTES_PER_GB, GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR

PCIE_SHARE = 36.6 / 64
"""Share of the link's nominal rate at which an engine brings KV from host memory to a GPU: vLLM 0.26's native offload
loaded at 33 to 43 GB/s, 36.6 in the median of ten loads, on an H200 with PCIe 5.0 x16, 2026-11-19
(benchmarks/data/vllm_h200_levers.json.gz); one copy of 4 GiB from pinned memory there reaches 55.5 GB/s."""
DRAM_USD_PER_GB_HOUR = (1.5392 - 1.3232) / (64 * GIB / BYTES_PER_GB)
"""AWS us-east-1, on demand, 2026-08-22 (offers.csv): gr6.4xlarge and g6.4xlarge differ only in 64 GiB of memory."""
DRAM_PRICE_DATE = date(2026, 8, 22)
SSD_USD_PER_GB_HOUR = 0.08 / (GIB / BYTES_PER_GB) / HOURS_PER_MONTH
"""Google Cloud, Local SSD in us-central1: $0.08 per GiB and month (list price, "Disk and image pricing"). Machines with
eight GPUs usually come with local disks that are paid for already: then it is 0 (ssd=1000@0)."""
SSD_PRICE_DATE: date | None = None
"""The page has no date and the day of reading was not recorded, so the price is marked as old."""
SSD_BYTES_PER_S = 6.9e9  # one PCIe 4.0 x4 drive for each GPU: Samsung PM9A3, sequential read (data sheet, 2021)
SSD_WRITE_BYTES_PER_S = 3.5e9  # the same drive, sequential write, U.2 (as announced, heise.de 2020-05)
REMOTE_BYTES_PER_S = 12.5e9
"""A port of 100 Gbit/s for each GPU, at its line rate; Mooncake reports 87 GB/s from 4 × 200 Gbit/s, 87 % of theirs."""


class TierPrice(Noun):
    """A tier with its price."""

    tier: Tier
    usd_per_gb_hour: NonNegativeFloat
    speed_from: str
    speed_badge: Badge
    price_from: str
    price_date: date | None  # when the price was quoted; None: unknown, or the user's own
    price_stale: bool  # too old to be shown without a mark, or of unknown date
    in_machine: bool = False  # what the machine of a replica has left comes first and costs nothing
    is_sized: bool = True  # otherwise the size is to be found

    def sized(self, gigabytes: float) -> "TierPrice":
        """Return the tier with this many gigabytes."""
        tier = self.tier.model_copy(update={"size_bytes": gigabytes * BYTES_PER_GB})
        return self.model_copy(update={"tier": tier, "is_sized": True})

    def at(self, reads_gb_s: float, writes_gb_s: float) -> "TierPrice":
        """Return the tier with speeds that the user knows."""
        speeds = {"bytes_per_s": reads_gb_s * BYTES_PER_GB}
        if self.tier.write_bytes_per_s is not None:
            speeds["write_bytes_per_s"] = writes_gb_s * BYTES_PER_GB
        told = {"speed_from": "as given", "speed_badge": Badge.assumed}
        return self.model_copy(update={"tier": self.tier.model_copy(update=speeds), **told})

    def line(self, replicas: float, machine_gb: float) -> CostLine:
        """Return what it costs for some replicas whose machines have this many GB left for each."""
        each = self.tier.size_bytes / BYTES_PER_GB
        if self.in_machine:
            each = max(0.0, each - machine_gb)
        gigabytes = each * (1 if self.tier.shared else replicas)
        return CostLine(name=self.tier.name, quantity=gigabytes, unit="GB-hour", usd_per_unit=self.usd_per_gb_hour)


class TierBreakEven(Noun):
    """A comparison of fetching a block and computing it."""

    tier: str
    block_tokens: int
    fetch_s: PositiveFloat
    compute_first_s: PositiveFloat  # at the start of a prompt
    compute_last_s: PositiveFloat  # at the end of the longest one
    position: int | None  # the token from which fetching is faster; None: nowhere in the model's context
    pays_within_s: NonNegativeFloat | None
    """A block at the start of a prompt pays for its place if it is read again within this time, if the GPU's time is
    worth the replica's price. 0: never, because computing is faster there; None: always, because the place costs
    nothing."""


def break_even(
    deployment: Deployment, price: TierPrice, usd_per_replica_hour: float, block_tokens: int = 16
) -> TierBreakEven:
    """Return where fetching wins, and how long a block may be stored; computing uses a full chunk of the engine."""
    places = (0, max(0, deployment.model.max_context - block_tokens))
    first, last = (float(compute_s(deployment, block_tokens, place)) for place in places)
    block_gb = block_tokens * kv_bytes_per_token(deployment) / BYTES_PER_GB
    held_usd_per_s = block_gb * price.usd_per_gb_hour / SECONDS_PER_HOUR
    worth_usd = first * usd_per_replica_hour / SECONDS_PER_HOUR
    takes_s = float(fetch_s(deployment, price.tier, block_tokens))
    pays_within_s = worth_usd / held_usd_per_s if held_usd_per_s > 0 else None
    return TierBreakEven(
        tier=price.tier.name,
        block_tokens=block_tokens,
        fetch_s=takes_s,
        compute_first_s=first,
        compute_last_s=last,
        position=break_even_position(deployment, price.tier, block_tokens),
        pays_within_s=pays_within_s if takes_s < first else 0.0,
    )


TIER_NAMES = ("dram", "ssd", "remote")
TIERS_HELP = (
    "Write such as dram=200,ssd=2000: GB for each replica (remote: for all); : sets GB/s into each GPU, / those of "
    "writing, @ $/GB-hour: ssd=2000:2.7/1.6@0."
)
AUTO = "auto"  # asks for the size that pays
AUTO_TIERS = f"dram={AUTO},ssd={AUTO}"


def parse_tiers(
    text: str, deployment: Deployment, ttl_s: float | None = None, on: date | None = None, *, auto: bool = False
) -> tuple[TierPrice, ...]:
    """Read ``dram=200,ssd=2000:2.7/1.6@0``: gigabytes and, if not ours, the speeds and the price per gigabyte-hour.

    Speeds are in GB/s, of reading and of writing; one alone is both. Host memory is only read from at its speed.
    Where ``auto`` sizes are allowed, such tiers are returned unsized (``TierPrice.is_sized``). Whether a price is old
    is judged on the given day, or today.
    """
    tiers: dict[str, TierPrice] = {}
    if auto and text.strip() == AUTO:
        text = AUTO_TIERS
    for part in text.split(","):
        name, _, size = (side.strip() for side in part.partition("="))
        if name not in TIER_NAMES:
            fix = f"{did_you_mean(name, TIER_NAMES, 1) or ''} {TIERS_HELP}".lstrip()
            raise BadInput(f"'{shorten(name)}' is no tier", field="tiers", fix=fix)
        amount, at, price = size.partition("@")
        gigabytes, told, speeds = amount.partition(":")
        reads, split, writes = speeds.partition("/")
        open_size = auto and name != "remote" and gigabytes.strip() == AUTO
        gb, usd = 1.0 if open_size else _number(gigabytes), _number(price) if at else None
        own = (_number(reads), _number(writes if split else reads)) if told else None
        wrong = None
        if not 0 < gb <= 1e9:
            wrong = "is no size above 0"
        elif not all(0 < speed <= 1e4 for speed in own or ()):
            wrong = "gives no speed in GB/s"
        elif split and name == "dram":
            wrong = "gives two speeds: host memory has one, of reading"
        elif usd is not None and not 0 <= usd <= 1e3:
            wrong = "gives no price in $/GB-hour"
        if wrong:
            raise BadInput(f"'{shorten(part.strip())}' {wrong}", field="tiers", fix=TIERS_HELP)
        if name in tiers:
            raise BadInput(f"{name} is given twice", field="tiers", fix=TIERS_HELP)
        memory = _tier(name, gb, usd, deployment, ttl_s, on or today())
        memory = memory.at(*own) if own else memory
        tiers[name] = memory.model_copy(update={"is_sized": not open_size})
    return tuple(tiers[name] for name in TIER_NAMES if name in tiers)


def _number(text: str) -> float:
    """Return the number that a text is; NaN, which is in no range, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _tier(name: str, gb: float, usd: float | None, deployment: Deployment, ttl_s: float | None, on: date) -> TierPrice:
    pcie = deployment.gpu.pcie_bytes_per_s * PCIE_SHARE
    ssd, remote, dram_usd = min(SSD_BYTES_PER_S, pcie), min(REMOTE_BYTES_PER_S, pcie), DRAM_USD_PER_GB_HOUR
    known: dict[str, tuple[float, float, Badge, str, str, date | None]] = {
        "dram": (pcie, dram_usd, Badge.measured, f"PCIe × {PCIE_SHARE:.2f}, measured on an H200", "AWS gr6 − g6",
                 DRAM_PRICE_DATE),
        "ssd": (ssd, SSD_USD_PER_GB_HOUR, Badge.quoted, "one PCIe 4.0 drive a GPU", "Google Cloud Local SSD",
                SSD_PRICE_DATE),
        "remote": (remote, dram_usd, Badge.assumed, "100 Gbit/s a GPU", "as DRAM", DRAM_PRICE_DATE),
    }  # fmt: skip
    writes = {"dram": None, "ssd": min(SSD_WRITE_BYTES_PER_S, pcie), "remote": remote}
    speed, usd_known, badge, speed_from, price_from, quoted = known[name]
    return TierPrice(
        tier=Tier(
            name=name,
            size_bytes=gb * BYTES_PER_GB,
            bytes_per_s=speed,
            write_bytes_per_s=writes[name],
            shared=name == "remote",
            ttl_s=ttl_s,
        ),
        usd_per_gb_hour=usd_known if usd is None else usd,
        speed_from=speed_from,
        speed_badge=badge,
        price_from=f"{price_from}, {quoted or 'no date'}" if usd is None else "as given",
        price_date=quoted if usd is None else None,
        price_stale=usd is None and (quoted is None or is_stale(quoted, on)),
        in_machine=usd is None and name == "dram",
    )
