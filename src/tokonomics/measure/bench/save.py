"""Writes a run as JSON that ``import`` reads back the same: whole or not at all."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun


def check_save_path(path: Path, flag: str = "--save") -> None:
    """Refuse a name or folder that cannot be written, before a server is loaded for nothing."""
    if path.suffix.lower() != ".json":
        raise BadInput(f"'{shorten(path.name)}' does not end with .json", where=flag)
    try:
        there, taken = path.parent.is_dir(), path.is_dir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be written: {reason}", where=f"{flag} {shorten(path.name)}") from None
    if not there:
        raise BadInput(f"the folder {shorten(str(path.parent), 200)} does not exist", where=flag)
    if taken:
        raise BadInput(f"{shorten(str(path), 200)} is a folder", where=flag)


def save_run(run: BenchmarkRun, path: Path) -> None:
    check_save_path(path)
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".bench") as unfinished:
            file = Path(unfinished) / "run.json"
            file.write_text(run.model_dump_json(exclude_defaults=False) + "\n", encoding="utf-8")
            file.replace(path)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=f"--save {shorten(path.name)}") from None
