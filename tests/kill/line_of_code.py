"""Something small for the simulator's compiler."""

from pathlib import Path

from tokonomics.machine_code import Unit

UNIT = Unit("doubled", [Path(__file__)], lambda: {"doubled": (1,)})


@UNIT.entry
def doubled(number: int) -> int:
    return 2 * number


def warm() -> None:
    """The compiler's own modules, loaded; nothing is kept."""
    UNIT.lowered()
