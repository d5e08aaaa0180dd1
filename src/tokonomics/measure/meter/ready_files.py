"""Files for the tools that read our /metrics: a Grafana dashboard, Prometheus rules and alerts, and what to scrape."""

from importlib.resources import files
from pathlib import Path

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import make_folder, write_text

NAMES = ("tokonomics-dashboard.json", "tokonomics-rules.yml", "prometheus-scrape.yml")


def text_of(name: str) -> str:
    return files("tokonomics.measure.meter").joinpath("files", name).read_text(encoding="utf-8")


def write_files(directory: Path, overwrite: bool = False) -> list[Path]:
    """Write them all; a file of that name with other content, such as changed thresholds, is kept unless told."""
    kept = [name for name in NAMES if _differs(directory / name)]
    where = shorten(str(directory))
    if kept and not overwrite:
        fix = f"Give {option('overwrite')} to replace what you changed, or another directory."
        raise BadInput(f"{', '.join(kept)} there differs from what we ship", where=where, fix=fix)
    make_folder(directory, where)
    for name in NAMES:
        write_text(directory / name, text_of(name), where)
    return [directory / name for name in NAMES]


def _differs(path: Path) -> bool:
    try:
        return path.exists() and path.read_text(encoding="utf-8") != text_of(path.name)
    except (OSError, UnicodeDecodeError):
        return True
