"""Frontends pass requests on to engines, and both count the same tokens: where both are metered, the engines count.

A frontend is left out for the models that an engine reports, and for no others: an engine elsewhere in the fleet says
nothing of it. Case does not tell names apart: clients may write a model's name in any.
"""

from collections.abc import Iterable, Sequence

from tokonomics.measure.meter.engines import FRONTENDS
from tokonomics.measure.meter.readings import Reading


class Frontends:
    """What engines serve, and which frontends were left out or counted for it."""

    def __init__(self) -> None:
        self._served: set[str] = set()
        self._left_out: set[tuple[str, str]] = set()
        self._counted: set[tuple[str, str]] = set()

    def learn(self, readings: Iterable[Reading]) -> None:
        """Remember what engines serve: also while one is away, its frontend has counted the same tokens."""
        self._served |= {_key(reading) for reading in readings if reading.engine and not _is_frontend(reading)}

    def without(self, readings: Sequence[Reading], watched: Iterable[Reading] = ()) -> list[Reading]:
        """Readings but those of frontends for models that engines report, among them those ``watched`` before."""
        if not any(map(_is_frontend, readings)):
            return list(readings)
        served = self._served | {_key(reading) for reading in watched if reading.engine and not _is_frontend(reading)}
        twice = [_is_frontend(reading) and _key(reading) in served for reading in readings]
        for reading, again in zip(readings, twice, strict=True):
            if _is_frontend(reading):
                (self._left_out if again else self._counted).add((reading.target, reading.model))
        return [reading for reading, again in zip(readings, twice, strict=True) if not again]

    def forget_notes(self) -> None:
        """Begin a new round: what is said is of the last one."""
        self._left_out, self._counted = set(), set()

    @property
    def notes(self) -> list[str]:
        """Which frontends were left out for which models; and which count beside engines of other models."""
        notes = [
            f"{target}: left out for {model or 'its unnamed model'}, whose engines are metered and count the same"
            for target, model in sorted(self._left_out)
        ]
        if self._served:
            notes += [
                f"{target}: counted for {model or 'its unnamed model'}, of which no engine is metered here"
                for target, model in sorted(self._counted)
            ]
        return notes


def _is_frontend(reading: Reading) -> bool:
    return reading.engine in FRONTENDS


def _key(reading: Reading) -> str:
    return reading.model.casefold()
