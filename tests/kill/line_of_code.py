"""Something small for the simulator's compiler."""


def doubled(number: int) -> int:
    return 2 * number


def warm() -> None:
    """The compiler's own modules, loaded; nothing is kept."""
    import numba

    numba.njit(lambda number: number + 1)(1)
