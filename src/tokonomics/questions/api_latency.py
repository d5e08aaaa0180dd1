"""The runs that measured how fast APIs answer, by the name of each."""

from pathlib import Path

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.benchmark_run import ApiLatency, api_latency
from tokonomics.questions.inputs import MeasuredApis


def latencies_of(request: MeasuredApis) -> dict[str, ApiLatency]:
    """By ``host:model``; none unless files are given."""
    if not request.measured:
        return {}
    from tokonomics.measure.importers.recognise import read_runs  # Slow to load: only where it is used.

    found: dict[str, ApiLatency] = {}
    for name in request.measured:
        made = api_latency(read_runs([Path(name)]), shorten(Path(name).name))
        if made.api in found:
            raise BadInput(f"{made.api} is measured by two files", field="measured", fix="Give one of them.")
        found[made.api] = made
    return found
