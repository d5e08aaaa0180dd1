"""A value that a test knows to be there, where its type says that it may be None; and what a call is refused with."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from tokonomics.errors import BadInput

Value = TypeVar("Value")


def there(value: Value | None) -> Value:
    """Return the value; the test fails here where it is None."""
    assert value is not None
    return value


def refused(ask: Callable[..., object], *given: Any, **named: Any) -> BadInput:
    """Return what a call is refused with; the test fails here where it is answered."""
    with pytest.raises(BadInput) as refusal:
        ask(*given, **named)
    return refusal.value
