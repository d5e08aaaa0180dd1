"""The examples with which Levers and Fleet open on the page: src/tokonomics/web/page/examples/*.json.gz.

Each is the whole answer to what its view asks where nobody has changed anything, computed on the day of the docs
(``as-of.txt``) with the prices that ship, as a job of the page would compute it. Run it after a change of the
simulator, of the prices, of the texts of an answer, or of a view's defaults:

    python docs/page_examples.py
"""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE.parent / "src" / "tokonomics" / "web" / "page" / "examples"
_TRAFFIC = {"model": "llama-3.1-8b", "input": "1000", "output": "300", "slo": "ttft_p99=1000ms,tpot_p99=50ms"}
INPUTS: dict[str, dict[str, Any]] = {
    "levers": {**_TRAFFIC, "gpu": "H100-SXM", "tp": "1", "rate": "5"},
    "stack": {**_TRAFFIC, "gpu": "H100-SXM", "tp": "1", "rate": "5"},
    "fleet": {**_TRAFFIC, "demand": "12x20,12x2"},
}
"""By verb, as the page sends them: the fields of the view, each at its default."""
_CLOCK = "solve_s"
"""What no two runs have in common: left at zero, as are the seconds that the whole answer took."""
_SOLVED = re.compile(r"Solved in [\d.]+ s over")


def example(verb: str) -> dict[str, Any]:
    """The answer to a view's own defaults, as a worker of the page gives it, without what a clock says."""
    from tokonomics.guarded.inputs import checked_inputs
    from tokonomics.guarded.worker import WHOLE, answer
    from tokonomics.web.verbs import find_verb

    page_verb, given = find_verb(verb), INPUTS[verb]
    call = checked_inputs(page_verb.parameters, given, _no_upload)
    asked = {"verb": verb, "call": call, "inputs": given, "command": page_verb.command(given), "parts": WHOLE}
    made: dict[str, Any] = _without_clock(json.loads(json.dumps(answer(asked, lambda what: None))))
    return {**made, "seconds": 0, "prices": _price_dates(made["result"])}


def written(made: dict[str, Any]) -> bytes:
    """An example as its file has it: packed, and served so."""
    return gzip.compress(json.dumps(made, ensure_ascii=False, separators=(",", ":")).encode(), 9, mtime=0)


def shipped(verb: str) -> dict[str, Any]:
    """An example as it is in the package now."""
    found: dict[str, Any] = json.loads(gzip.decompress((FOLDER / f"{verb}.json.gz").read_bytes()))
    return found


def _no_upload(id: str) -> Any:
    raise ValueError(f"an example has no uploads: {id}")


def _without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: 0 if name == _CLOCK else _without_clock(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_clock(part) for part in value]
    return _SOLVED.sub("Solved over", value) if isinstance(value, str) else value


def _price_dates(value: Any) -> list[str]:
    """The first and the last day of the prices in it."""

    def dates(part: Any) -> Any:
        if isinstance(part, dict):
            yield from (date for name, date in part.items() if name == "price_date" and date)
            part = list(part.values())
        if isinstance(part, list):
            for inner in part:
                yield from dates(inner)

    found = sorted(dates(value))
    return [found[0], found[-1]]


def main() -> None:
    """Write every example."""
    os.environ["TOKONOMICS_TODAY"] = (HERE / "as-of.txt").read_text().strip()
    os.environ["COLUMNS"] = "140"
    FOLDER.mkdir(exist_ok=True)
    for verb in INPUTS:
        content = written(example(verb))
        (FOLDER / f"{verb}.json.gz").write_bytes(content)
        print(f"{verb}.json.gz: {len(content):,} bytes")


if __name__ == "__main__":
    main()
