"""How config.json files are read while one question is answered: as which family, and who hears what was left out."""

from collections.abc import Iterator
from contextlib import contextmanager

from tokonomics.questions.listener import Listener
from tokonomics.questions.request import Request


@contextmanager
def reading_models(request: Request, listener: Listener) -> Iterator[None]:
    """Within it, a path is read as the family that the request names; each note is heard once."""
    if "model" not in type(request).model_fields and "as_family" not in type(request).model_fields:
        yield
        return
    from tokonomics.catalog.load_models import READING, ConfigReading

    said: set[str] = set()

    def note(line: str) -> None:
        if line not in said:
            said.add(line)
            listener.note(line)

    before = READING.set(ConfigReading(getattr(request, "as_family", None), note, getattr(request, "hub", False)))
    try:
        yield
    finally:
        READING.reset(before)
