"""A value that a test knows to be there, where its type says that it may be None."""

from typing import TypeVar

Value = TypeVar("Value")


def there(value: Value | None) -> Value:
    """Return the value; the test fails here where it is None."""
    assert value is not None
    return value
