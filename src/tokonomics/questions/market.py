"""The user's own market: whom one buys from, where and at what discount, saved once in the catalogue."""

from tokonomics.catalog.entries import user_market, user_path
from tokonomics.questions.inputs import Market
from tokonomics.questions.listener import Listener
from tokonomics.questions.request import Request


def in_market(request: Request, listener: Listener) -> Request:
    """The request with the user's market (``[market]`` in the catalogue) where it says nothing itself."""
    if not isinstance(request, Market):
        return request
    asked = {name: value for name, value in user_market().items() if getattr(request, name) is None}
    if not asked:
        return request
    said = "; ".join(f"{name} {value if isinstance(value, str) else ', '.join(value)}" for name, value in asked.items())
    listener.note(f"your market ({user_path()}): {said}")
    return request.model_copy(update={name: _held(value) for name, value in asked.items()})


def _held(value: str | list[str]) -> str | tuple[str, ...]:
    return value if isinstance(value, str) else tuple(value)
