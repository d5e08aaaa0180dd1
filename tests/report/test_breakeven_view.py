"""Every API of a comparison has a letter, a row and a column, however many there are."""

import string

from tokonomics.report.breakeven_view import letters_for


def testletters_for_go_on_after_z_and_never_come_twice() -> None:
    assert letters_for(26) == list(string.ascii_uppercase)
    assert letters_for(54)[25:28] == ["Z", "AA", "BB"]
    assert len(set(letters_for(100))) == 100
