"""What the page is told of a job, as a browser's EventSource reads it."""

import json
from typing import Any

from starlette.testclient import TestClient


def events_of(page: TestClient, id: str) -> list[tuple[str, Any]]:
    """Names and data, in order and none missing; comments, which only keep a slow connection open, are passed over."""
    parts = page.get(f"/api/v1/jobs/{id}/events").text.strip().split("\n\n")
    lines = [part.split("\n") for part in parts if not part.startswith(":")]
    assert [line[0] for line in lines] == [f"id: {place}" for place in range(len(lines))]
    return [(line[1].removeprefix("event: "), json.loads(line[2].removeprefix("data: "))) for line in lines]
