"""Every API of a comparison has a letter, a row and a column, however many there are."""

import string

from tokonomics.report.breakeven_view import _letters


def test_letters_go_on_after_z_and_never_come_twice() -> None:
    assert _letters(26) == list(string.ascii_uppercase)
    assert _letters(54)[25:28] == ["Z", "AA", "BB"]
    assert len(set(_letters(100))) == 100
