"""How config.json files are read while one question is answered: as which family, and what is noted of them."""

from collections.abc import Iterator
from contextlib import contextmanager

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.listener import Listener
from tokonomics.questions.request import Request


@contextmanager
def reading_models(request: Request, listener: Listener) -> Iterator[list[str]]:
    """Within it, a path is read as the family that the request names; gives the notes, each of which is heard once."""
    said: list[str] = []
    if "model" not in type(request).model_fields and "as_family" not in type(request).model_fields:
        yield said
        return
    from tokonomics.catalog.load_models import READING, ConfigReading

    def note(line: str) -> None:
        if line not in said:
            said.append(line)
            listener.note(f"note: {line}")

    family = getattr(request, "as_family", None)
    if family is not None:
        _require_config(request)
    before = READING.set(ConfigReading(family, note, getattr(request, "hub", False)))
    try:
        yield said
    finally:
        READING.reset(before)


def _require_config(request: Request) -> None:
    """Refuse a family for models that are named: the catalogue knows how to read those."""
    from tokonomics.catalog.load_models import is_path

    given = request.given().get("model") or request.given().get("match") or ()
    models = (given,) if isinstance(given, str) else tuple(given)
    if not any(is_path(model) for model in models):
        named = f"{shorten(models[0])} is" if models else "these are"
        fix = f"Leave out {option('as_family')}, or give the path of a config.json."
        raise BadInput(f"is for config.json files; {named} in the catalogue", field="as_family", fix=fix)
