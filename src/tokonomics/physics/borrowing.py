"""Whose kernel timings stand for a GPU: its own, else its family's, else another architecture's.

Curves hold shares of the datasheet, so that a relative's carries over with the GPU's own rates. From another
architecture, no share is taken above the best that is published for the borrower (``efficiency``).
"""

from collections.abc import Collection
from functools import cache
from typing import Literal, Protocol, Self, TypeVar

from tokonomics.catalog.gpus import Gpu, shipped_gpus
from tokonomics.physics.efficiency import efficiency

Basis = Literal["measured", "scaled", "assumed"]
"""Timed on this GPU; on another of its architecture, scaled by the datasheet; or on another architecture."""

LENDERS = ("A100-80GB", "L40S")
"""Whose curves any other architecture borrows; the L40S' Triton kernels where the A100 has none (latent attention)."""


class BorrowedShares(Protocol):
    """What every curve has that is a share of the datasheet."""

    @property
    def memory(self) -> float: ...
    @property
    def compute(self) -> float: ...
    def _replace(self, *, memory: float, compute: float) -> Self: ...


Curve = TypeVar("Curve", bound=BorrowedShares)


@cache
def timed_gpu(key: str) -> Gpu:
    """The GPU that was timed: as shipped, whatever the user's catalogue says of theirs."""
    return next(gpu for gpu in shipped_gpus() if gpu.key == key)


def donors(gpu: Gpu, timed: Collection[str]) -> list[str]:
    """Of the timed GPUs: this one, then its family in the table's order; without any, a lender.

    The order does not look at rates: a GPU with more bandwidth must not get another curve and become slower.
    """
    family = [key for key in timed if timed_gpu(key).architecture == gpu.architecture]
    return sorted(family, key=lambda key: key != gpu.key) or [next(key for key in LENDERS if key in timed)]


def basis(gpu: Gpu, donor: str) -> Basis:
    """How far a donor's timings speak for a GPU."""
    if timed_gpu(donor).architecture != gpu.architecture:
        return "assumed"
    return "measured" if donor == gpu.key else "scaled"


def carried_over(curve: Curve, donor: str, gpu: Gpu) -> Curve:
    """The donor's curve on a GPU.

    Published figures are of the best case (a stream through memory, the largest products): they bound the curve.
    """
    if basis(gpu, donor) != "assumed":
        return curve
    reached = efficiency(gpu)
    return curve._replace(memory=min(curve.memory, reached.memory), compute=min(curve.compute, reached.compute))
