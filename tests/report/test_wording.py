"""Notes of results name flags, since JSON holds them; each door spells them its own way."""

from tokonomics.errors import flag, in_python, spelled
from tokonomics.report.wording import with_inputs


def test_flags_in_a_note_are_spelled_as_each_door_does() -> None:
    note = "not tried: give yours (--acceptance), or --draft-share 0.1; 2 – 3 -- no flag"
    assert spelled(with_inputs(note), flag) == note
    assert spelled(with_inputs(note), in_python).startswith("not tried: give yours (acceptance), or draft_share 0.1;")
