"""Meters and servers that the tests of measuring share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.measure.faulty import MetricsServer, metrics_server
from tests.measure.metered import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A meter that reads one process."""
    made = Bench(tmp_path / "meter.db")
    yield made
    made.book.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Bench]:
    """The same through a scraper."""
    made = Bench(tmp_path / "meter.db", scraped=True)
    yield made
    made.book.close()


@pytest.fixture(scope="module")
def metrics() -> Iterator[MetricsServer]:
    """The /metrics page of a made-up process, on loopback."""
    with metrics_server() as made:
        yield made
