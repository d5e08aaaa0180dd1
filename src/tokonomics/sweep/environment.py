"""The environment of a worker: set for what is started within, and put back."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def changed(environment: Mapping[str, str]) -> Iterator[None]:
    """The environment with these values, for what is done or started within it."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
