"""Is this installation whole: packages, the compiled simulator, prices and their age, one's own files, GPUs.

Each check looks at one thing on this machine and says what it saw; what tokonomics cannot work without and is not
there is ``broken`` and has a fix. Nothing is asked of the network, and the home folder is written ``~``: the answer is
made to be pasted into a report of a fault.
"""

import importlib
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import Field

from tokonomics import __version__
from tokonomics.errors import BadInput, TokonomicsError, in_python, shorten
from tokonomics.memory_budget import VARIABLE, available_bytes, given_bytes, stated_bytes
from tokonomics.types import Noun
from tokonomics.units import gigabytes, plural

State = Literal["ok", "note", "broken"]
Facts = dict[str, str | int | float | None]

OLDEST_PYTHON = (3, 11)
NEEDED = ("numpy", "numba", "polars", "scipy", "pydantic", "typer", "rich", "aiohttp", "fastapi", "uvicorn")
"""Imported to see that they work: compiled ones fail on a machine they were not built for."""
EXTRAS = {
    "live": ("gpuhunt", "GPU prices fetched from the providers (prices refresh --source gpuhunt)"),
    "semantic": ("model2vec", "similar prompts answered from a cache (cache --semantic)"),
    "ray": ("ray", "sweeps on a cluster (sweep --ray)"),
}
_COMPLETIONS = {
    "bash": ".bash_completions/tokonomics.sh",
    "zsh": ".zfunc/_tokonomics",
    "fish": ".config/fish/completions/tokonomics.fish",
}
"""Where ``--install-completion`` puts its scripts."""

_LITTLE_BYTES = 100_000_000  # some ten times what the compiled simulator and refreshed prices take


class Check(Noun):
    """One thing that was looked at."""

    name: str
    state: State  # ``note``: worth knowing, nothing is wrong
    seen: str
    fix: str | None = None
    facts: Facts = Field(default_factory=dict)


class Installation(Noun):
    """Everything that was looked at, in the order in which it is read."""

    works: bool
    checks: tuple[Check, ...]


def examine() -> Installation:
    """Look at everything; a check that fails in a way nobody thought of is broken and says how."""
    checks = tuple(_homeless(check) for look in _LOOKS for check in _guarded(look))
    return Installation(works=all(check.state != "broken" for check in checks), checks=checks)


def _guarded(look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    name = look.__name__.strip("_").replace("_", " ")
    try:
        yield from look()
    except TokonomicsError as error:
        what, where, fix = error.told(in_python)
        yield Check(name=name, state="broken", seen=what, fix=fix, facts={"where": where})
    except Exception as error:  # whatever it is, the other checks are still worth having
        yield Check(name=name, state="broken", seen=shorten(f"{type(error).__name__}: {error}", 200))


def _homeless(check: Check) -> Check:
    def shown(text: str) -> str:
        home = os.path.expanduser("~")  # noqa: PTH111 - never raises
        return text.replace(home, "~") if len(home) > 1 else text

    facts: Facts = {name: shown(fact) if isinstance(fact, str) else fact for name, fact in check.facts.items()}
    fix = shown(check.fix) if check.fix else None
    return check.model_copy(update={"seen": shown(check.seen), "fix": fix, "facts": facts})


def _tokonomics() -> Iterator[Check]:
    where = str(Path(__file__).parents[1])
    yield Check(name="tokonomics", state="ok", seen=f"{__version__} in {where}", facts={"version": __version__})


def _python() -> Iterator[Check]:
    version = platform.python_version()
    seen = f"{version} ({platform.python_implementation()}) on {platform.system()} {platform.machine()}"
    new_enough = sys.version_info >= OLDEST_PYTHON
    fix = None if new_enough else "Python 3.11 or newer is needed."
    yield Check(name="python", state="ok" if new_enough else "broken", seen=seen, fix=fix, facts={"version": version})


def _packages() -> Iterator[Check]:
    versions: Facts = {}
    for name in NEEDED:
        try:
            importlib.import_module(name)
            versions[name] = metadata.version(name)
        except Exception as error:  # a package that is broken in its own way
            yield Check(
                name=name,
                state="broken",
                seen=shorten(f"cannot be imported: {error}", 200),
                fix="Install tokonomics anew: pip install --force-reinstall tokonomics",
            )
    seen = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Check(name="packages", state="ok", seen=seen, facts=versions)


def _extras() -> Iterator[Check]:
    for extra, (package, purpose) in EXTRAS.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            seen, fix = f"not installed: {purpose}", f"If you want it: pip install '.[{extra}]' (in a checkout)"
            yield Check(name=f"extra {extra}", state="note", seen=seen, fix=fix, facts={package: None})
        else:
            seen = f"{package} {version}: {purpose}"
            yield Check(name=f"extra {extra}", state="ok", seen=seen, facts={package: version})


def _simulator() -> Iterator[Check]:
    from tokonomics.serving.compiled import code_folder, must_compile

    missing, folder = must_compile(), code_folder()
    seen = "not compiled yet: the first simulation takes half a minute"
    if not missing:
        seen = "compiled, and kept for the next run"
    others = [each for each in folder.parent.glob("compiled-*") if each != folder] if folder else []
    size = sum(file.stat().st_size for other in others for file in other.rglob("*") if file.is_file())
    fix = None
    if folder and others:
        seen += f"; beside it code of {plural(len(others), 'other version')}, {gigabytes(size)}"
        fix = f"It goes when unused for a month; to have the room now: rm -r {folder.parent / 'compiled-*'}"
    facts: Facts = {"other_versions": len(others), "other_bytes": size}
    yield Check(name="simulator", state="note" if missing else "ok", seen=seen, fix=fix, facts=facts)


def _gpu_prices() -> Iterator[Check]:
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, cache_file, load_offers
    from tokonomics.clock import today

    offers = load_offers()
    source = f"refreshed, in {cache_file()}" if cache_file().is_file() else "as shipped"
    ages = [offer.age_days(today()) for offer in offers]
    old = sum(offer.is_stale(today()) for offer in offers)
    seen = f"{plural(len(offers), 'offer')} {source}, {min(ages)} to {max(ages)} days old"
    facts: Facts = {"offers": len(offers), "newest_days": min(ages), "oldest_days": max(ages), "stale": old}
    if old:
        seen += f"; {old} older than {STALE_AFTER_DAYS} days"
    fix = "Fetch today's: tokonomics prices refresh (asks the network)" if old else None
    yield Check(name="GPU prices", state="note" if old else "ok", seen=seen, fix=fix, facts=facts)


def _api_prices() -> Iterator[Check]:
    from tokonomics.catalog.apis import list_apis
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, is_stale
    from tokonomics.clock import today

    version = metadata.version("genai-prices")
    apis = list_apis()
    newest = max((each.date for each in apis if each.date), default=None)
    facts: Facts = {"version": version, "models": len(apis), "newest": str(newest) if newest else None}
    seen = f"{len(apis):,} models, genai-prices {version}, last checked {newest or 'on an unknown day'}"
    if newest and is_stale(newest, today()):
        seen += f", more than {STALE_AFTER_DAYS} days ago"
        fix = "Newer ones come with it: pip install --upgrade genai-prices"
        yield Check(name="API prices", state="note", seen=seen, fix=fix, facts=facts)
    else:
        yield Check(name="API prices", state="ok", seen=seen, facts=facts)


def _catalogue() -> Iterator[Check]:
    from tokonomics.catalog.gpus import find_gpus
    from tokonomics.catalog.load_models import find_models
    from tokonomics.catalog.user_file import SECTIONS, user_path, user_tables

    seen = f"{plural(len(find_models()), 'model')}, {plural(len(find_gpus()), 'GPU')}"
    own: Facts = {section: len(user_tables(section)) for section in SECTIONS}
    if user_path().exists():
        counted = ", ".join(f"{number} {section}" for section, number in own.items() if number)
        seen += f"; of your own in {user_path()}: {counted or 'none'}"
    else:
        seen += f"; none of your own (they would be in {user_path()})"
    yield Check(name="catalogue", state="ok", seen=seen, facts=own)


def _profile() -> Iterator[Check]:
    from tokonomics.catalog.user_file import user_path
    from tokonomics.physics.calibration import VARIABLE, read_profile

    if given := os.environ.get(VARIABLE):
        profile = read_profile(Path(given).expanduser())
        yield Check(name="profile", state="ok", seen=f"${VARIABLE} = {given}: {profile.summary()}")
        return
    found = []
    for path in sorted(user_path().parent.glob("*.json")):
        try:
            found.append(f"{path.name} ({', '.join(read_profile(path).gpus)})")
        except TokonomicsError:  # some other file of the user's
            continue
    if found:
        seen = f"none in use; in {user_path().parent}: {', '.join(found)}"
        fix = f"Use one with --profile, or for good: export {VARIABLE}={user_path().parent / found[0].split(' (')[0]}"
        yield Check(name="profile", state="note", seen=seen, fix=fix)
    else:
        fix = "To predict with what your own machine does: tokonomics probe, then tokonomics calibrate"
        yield Check(name="profile", state="note", seen="none: predictions use published measurements", fix=fix)


def _gpus() -> Iterator[Check]:
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.measure.meter.gpu import NoGpuSeen, read_nvml

    try:
        readings = read_nvml(at=0.0)
    except NoGpuSeen as none:
        yield Check(
            name="GPUs here", state="note", seen=f"{none.what}; needed by probe and by meter's electricity only"
        )
        return
    for reading in readings:
        try:
            seen = f"{reading.name}: {find_gpu(reading.name).key} of the catalogue"
            yield Check(name="GPU here", state="ok", seen=seen)
        except TokonomicsError as unknown:
            yield Check(name="GPU here", state="note", seen=f"{reading.name}: {unknown.what}", fix=unknown.fix)


def _ledger() -> Iterator[Check]:
    from tokonomics.measure.meter.ledger import Ledger, default_ledger

    path = default_ledger()
    if not path.is_file():
        yield Check(name="meter", state="note", seen=f"no ledger yet (it would be {path})")
        return
    try:
        with closing(Ledger(path, read_only=True)) as book:
            marks = book.marks()
    except (sqlite3.DatabaseError, BadInput) as error:
        why = error.what if isinstance(error, BadInput) else error
        fix = "Move it away and the meter begins a new one; keep it, if what it counted matters."
        yield Check(name="meter", state="broken", seen=f"{path} cannot be read: {why}", fix=fix)
        return
    seen = f"{path}: {plural(len(marks), 'server')}, {gigabytes(path.stat().st_size)}"
    yield Check(name="meter", state="ok", seen=seen, facts={"servers": len(marks), "bytes": path.stat().st_size})


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory, free = given_bytes(), available_bytes()
    facts: Facts = {"cores": cores, "memory_bytes": round(memory), "free_bytes": round(free)}
    seen = f"{plural(cores, 'core')}, {gigabytes(memory)} of memory, {gigabytes(free)} free"
    if stated := os.environ.get(VARIABLE):
        seen += f"; {VARIABLE} allows {gigabytes(stated_bytes(stated))}"
        facts["allowed_bytes"] = round(stated_bytes(stated))
    yield Check(name="machine", state="ok", seen=seen, facts=facts)


def _folders() -> Iterator[Check]:
    from tokonomics.catalog.offers import cache_file
    from tokonomics.measure.meter.ledger import default_ledger

    for name, folder, kept in (
        ("cache folder", cache_file().parent, "refreshed prices, compiled code"),
        ("data folder", default_ledger().parent, "the meter's ledger"),
    ):
        there = next(each for each in (folder, *folder.parents) if each.exists())
        try:
            with tempfile.TemporaryFile(dir=there) as file:  # permissions alone do not tell what a folder holds
                file.write(b"tokonomics")
                file.flush()
            free = shutil.disk_usage(there).free
        except OSError as error:
            seen = f"{folder} cannot be written ({error.strerror or error}): not kept are {kept}"
            elsewhere = "Set XDG_CACHE_HOME and XDG_DATA_HOME to folders that can be."
            yield Check(name=name, state="note", seen=seen, fix=elsewhere)
            continue
        is_little = free < _LITTLE_BYTES
        fix = "Make room, or set XDG_CACHE_HOME and XDG_DATA_HOME to folders on another disk." if is_little else None
        seen = f"{folder} can be written, {gigabytes(free)} free: {kept}"
        yield Check(name=name, state="note" if is_little else "ok", seen=seen, fix=fix)


def _completion() -> Iterator[Check]:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    shells = [shell for shell, script in _COMPLETIONS.items() if (home / script).is_file()]
    if shells:
        yield Check(name="completion", state="ok", seen=f"installed for {', '.join(shells)}")
    else:
        yield Check(
            name="completion", state="note", seen="not installed", fix="Names on Tab: tokonomics --install-completion"
        )


_LOOKS = (
    _tokonomics, _python, _machine, _packages, _extras, _simulator, _gpu_prices, _api_prices, _catalogue, _profile,
    _gpus, _ledger, _folders, _completion,
)  # fmt: skip
