"""Check this installation: packages, the compiled simulator, prices and their age, the user's files, GPUs.

Each check looks at one thing on this machine and says what it found; what tokonomics needs and does not find is
``broken`` and has a fix. Nothing is asked of the network, and the home folder is written ``~``, so that the answer can
be pasted into a bug report.
"""

import importlib
import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from pydantic import Field

from tokonomics import __version__
from tokonomics.errors import BadInput, TokonomicsError, in_python, shorten
from tokonomics.memory_budget import VARIABLE, available_bytes, given_bytes, stated_bytes
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import DoctorRequest
from tokonomics.questions.result import Result
from tokonomics.types import Noun
from tokonomics.units import gigabytes, plural

State = Literal["ok", "note", "broken"]
Facts = dict[str, str | int | float | None]

OLDEST_PYTHON = (3, 11)
NEEDED = ("numpy", "numba", "polars", "scipy", "pydantic", "typer", "rich", "aiohttp", "fastapi", "uvicorn")
"""Packages to import as a test: compiled ones fail on a machine they were not built for."""
EXTRAS = {
    "live": ("gpuhunt", "GPU prices fetched from the providers (offers --refresh --source gpuhunt)"),
    "mcp": ("mcp", "tools for coding agents (tokonomics mcp)"),
    "semantic": ("model2vec", "similar prompts answered from a cache (cache --semantic)"),
    "ray": ("ray", "sweeps on a cluster (sweep --ray)"),
}
_COMPLETIONS = {
    "bash": ".bash_completions/tokonomics.sh",
    "zsh": ".zfunc/_tokonomics",
    "fish": ".config/fish/completions/tokonomics.fish",
}
"""Where ``--install-completion`` puts its scripts."""

_LITTLE_BYTES = 100_000_000  # about ten times what the compiled simulator and refreshed prices take


class Check(Noun):
    name: str
    state: State  # ``note``: worth knowing, but nothing is wrong
    seen: str
    fix: str | None = None
    facts: Facts = Field(default_factory=dict)


# Here and not beside the other results: it must load even if a package that those need is broken.
class DoctorResult(Result):
    """The result of every check."""

    ROWS = "checks"
    works: bool
    checks: tuple[Check, ...]

    @property
    def is_found(self) -> bool:
        return self.works

    def headline(self) -> str:
        broken = [check.name for check in self.checks if check.state == "broken"]
        return f"broken: {', '.join(broken)}" if broken else "all that is needed works"


def _check(state: State, name: str, seen: str, fix: str | None = None, **facts: str | float | None) -> Check:
    return Check(name=name, state=state, seen=seen, fix=fix, facts=facts)


_ok, _note, _broken = partial(_check, "ok"), partial(_check, "note"), partial(_check, "broken")


def doctor(request: DoctorRequest, listener: Listener = SILENT) -> DoctorResult:
    """Check what is installed, how old the prices are, and which files and GPUs are found.

    A check that fails in an unexpected way is broken and says how.
    """
    checks = tuple(_without_home(check) for look in _LOOKS for check in _guarded(look))
    return DoctorResult(works=all(check.state != "broken" for check in checks), checks=checks)


def _guarded(look: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    name = look.__name__.strip("_").replace("_", " ")
    try:
        yield from look()
    except TokonomicsError as error:
        what, where, fix = error.spelled(in_python)
        yield _broken(name, what, fix, where=where)
    except Exception as error:  # the other checks are still useful
        yield _broken(name, shorten(f"{type(error).__name__}: {error}", 200))


def _without_home(check: Check) -> Check:
    def shown(text: str) -> str:
        home = os.path.expanduser("~")  # noqa: PTH111 - never raises
        return text.replace(home, "~") if len(home) > 1 else text

    facts: Facts = {name: shown(fact) if isinstance(fact, str) else fact for name, fact in check.facts.items()}
    fix = shown(check.fix) if check.fix else None
    return check.model_copy(update={"seen": shown(check.seen), "fix": fix, "facts": facts})


def _tokonomics() -> Iterator[Check]:
    yield _ok("tokonomics", f"{__version__} in {Path(__file__).parents[1]}", version=__version__)


def _python() -> Iterator[Check]:
    version = platform.python_version()
    seen = f"{version} ({platform.python_implementation()}) on {platform.system()} {platform.machine()}"
    if sys.version_info >= OLDEST_PYTHON:
        yield _ok("python", seen, version=version)
    else:
        yield _broken("python", seen, "Python 3.11 or newer is needed.", version=version)


def _packages() -> Iterator[Check]:
    versions = {}
    for name in NEEDED:
        try:
            importlib.import_module(name)
            versions[name] = metadata.version(name)
        except Exception as error:  # a package may be broken in any way
            fix = "Install tokonomics anew: pip install --force-reinstall tokonomics"
            yield _broken(name, shorten(f"cannot be imported: {error}", 200), fix)
    yield _ok("packages", ", ".join(f"{name} {version}" for name, version in versions.items()), **versions)


def _extras() -> Iterator[Check]:
    for extra, (package, purpose) in EXTRAS.items():
        name = f"extra {extra}"
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            fix = f"If you want it: pip install '.[{extra}]' (in a checkout)"
            yield _note(name, f"not installed: {purpose}", fix, **{package: None})
        else:
            yield _ok(name, f"{package} {version}: {purpose}", **{package: version})


def _simulator() -> Iterator[Check]:
    from tokonomics.serving.compiled import code_folder, must_compile, must_translate

    missing, folder = must_compile(), code_folder()
    seen = "compiled, and kept for the next run"
    if missing:
        takes = "half a minute" if must_translate() else "a few seconds"
        seen = f"not compiled yet: the first simulation takes {takes} more"
    others = [other for other in folder.parent.glob("compiled-*") if other != folder] if folder else []
    size = sum(file.stat().st_size for other in others for file in other.rglob("*") if file.is_file())
    fix = None
    if folder and others:
        seen += f"; beside it code of {plural(len(others), 'other version')}, {gigabytes(size)}"
        fix = f"It goes when unused for a month; to have the room now: rm -r {folder.parent / 'compiled-*'}"
    state: State = "note" if missing else "ok"
    yield _check(state, "simulator", seen, fix, other_versions=len(others), other_bytes=size)


def _gpu_prices() -> Iterator[Check]:
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, cache_file, load_offers
    from tokonomics.types import today

    offers = load_offers()
    source = f"refreshed, in {cache_file()}" if cache_file().is_file() else "as shipped"
    ages = [offer.age_days(today()) for offer in offers]
    old = sum(offer.is_stale(today()) for offer in offers)
    seen = f"{plural(len(offers), 'offer')} {source}, {min(ages):,} to {max(ages):,} days old"
    facts = {"offers": len(offers), "newest_days": min(ages), "oldest_days": max(ages), "stale": old}
    if not old:
        yield _ok("GPU prices", seen, None, **facts)
        return
    fix = "Fetch today's: tokonomics offers --refresh (asks the network)"
    yield _note("GPU prices", f"{seen}; {old:,} older than {STALE_AFTER_DAYS} days", fix, **facts)


def _coverage() -> Iterator[Check]:
    from tokonomics.catalog.offers import MAX_AGE_DAYS, load_offers
    from tokonomics.catalog.price_index import price_coverage
    from tokonomics.types import today

    known = price_coverage(load_offers())
    too_old = [one.provider for one in known if (today() - one.newest).days > MAX_AGE_DAYS]
    countries = {country for one in known for country in one.countries}
    seen = f"{plural(len(known), 'provider')} in {len(countries)} countries"
    facts: Facts = {}
    for one in known:
        where = f"{', '.join(one.countries)} ({', '.join(one.continents)})" if one.countries else "an unknown country"
        offers = f"{plural(one.machines, 'offer')} in {plural(one.regions, 'region')} of {where}"
        facts[one.provider] = f"{offers}, quoted from {one.oldest} to {one.newest}"
    if too_old:
        fix = "They are in no answer unless asked for (--max-age); the places and dates of all: --json"
        yield _note("coverage", f"{seen}; nothing of the last year from {', '.join(too_old)}", fix, **facts)
    else:
        yield _ok("coverage", f"{seen}; the places and dates of each: --json", None, **facts)


def _api_prices() -> Iterator[Check]:
    from tokonomics.catalog.api_hosts import list_apis
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, is_stale
    from tokonomics.types import today

    version, apis = metadata.version("genai-prices"), list_apis()
    newest = max((api.date for api in apis if api.date), default=None)
    facts: Facts = {"version": version, "models": len(apis), "newest": str(newest) if newest else None}
    seen = f"{len(apis):,} models, genai-prices {version}, last checked {newest or 'on an unknown day'}"
    if newest and is_stale(newest, today()):
        fix = "Newer ones come with it: pip install --upgrade genai-prices"
        yield _note("API prices", f"{seen}, more than {STALE_AFTER_DAYS} days ago", fix, **facts)
    else:
        yield _ok("API prices", seen, None, **facts)


def _catalogue() -> Iterator[Check]:
    from tokonomics.catalog.entries import SECTIONS, user_market, user_path, user_tables
    from tokonomics.catalog.gpus import find_gpus
    from tokonomics.catalog.load_models import find_models

    seen = f"{plural(len(find_models()), 'model')}, {plural(len(find_gpus()), 'GPU')}"
    own = {name: len(user_market() if name == "market" else user_tables(name)) for name in SECTIONS}
    if user_path().exists():
        counted = ", ".join(f"{number} {section}" for section, number in own.items() if number)
        seen += f"; of your own in {user_path()}: {counted or 'none'}"
    else:
        seen += f"; none of your own (they would be in {user_path()})"
    yield _ok("catalogue", seen, None, **own)


def _profile() -> Iterator[Check]:
    from tokonomics.catalog.entries import user_path
    from tokonomics.physics.calibration import VARIABLE, read_profile

    if given := os.environ.get(VARIABLE):
        yield _ok("profile", f"${VARIABLE} = {given}: {read_profile(Path(given).expanduser()).summary()}")
        return
    profiles, folder = {}, user_path().parent
    for path in sorted(folder.glob("*.json")):
        with suppress(TokonomicsError):  # another file of the user
            profiles[path] = f"{path.name} ({', '.join(read_profile(path).gpus)})"
    if profiles:
        seen = f"none in use; in {folder}: {', '.join(profiles.values())}"
        yield _note("profile", seen, f"Use one with --profile, or for good: export {VARIABLE}={next(iter(profiles))}")
    else:
        fix = "To predict with what your own machine does: tokonomics calibrate --probe, then tokonomics calibrate"
        yield _note("profile", "none: predictions use published measurements", fix)


def _gpus() -> Iterator[Check]:
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.measure.meter.readings import NoGpuSeen, read_nvml

    try:
        readings = read_nvml(at=0.0)
    except NoGpuSeen as none:
        yield _note("GPUs here", f"{none.what}; needed by probe and by meter's electricity only")
        return
    for reading in readings:
        try:
            yield _ok("GPU here", f"{reading.name}: {find_gpu(reading.name).key} of the catalogue")
        except TokonomicsError as unknown:
            yield _note("GPU here", f"{reading.name}: {unknown.what}", unknown.fix)


def _ledger() -> Iterator[Check]:
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.ledger_file import default_ledger

    path = default_ledger()
    if not path.is_file():
        yield _note("meter", f"no ledger yet (it would be {path})")
        return
    try:
        with Ledger(path, read_only=True) as book:
            marks = book.marks()
    except (sqlite3.DatabaseError, BadInput) as error:
        why = error.what if isinstance(error, BadInput) else error
        fix = "Move it away and the meter begins a new one; keep it, if what it counted matters."
        yield _broken("meter", f"{path} cannot be read: {why}", fix)
        return
    size = path.stat().st_size
    yield _ok("meter", f"{path}: {plural(len(marks), 'server')}, {gigabytes(size)}", servers=len(marks), bytes=size)


def _machine() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory, free = given_bytes(), available_bytes()
    facts = {"cores": cores, "memory_bytes": round(memory), "free_bytes": round(free)}
    seen = f"{plural(cores, 'core')}, {gigabytes(memory)} of memory, {gigabytes(free)} free"
    if stated := os.environ.get(VARIABLE):
        seen += f"; {VARIABLE} allows {gigabytes(stated_bytes(stated))}"
        facts["allowed_bytes"] = round(stated_bytes(stated))
    yield _ok("machine", seen, None, **facts)


def _folders() -> Iterator[Check]:
    from tokonomics.catalog.offers import cache_file
    from tokonomics.measure.meter.ledger_file import default_ledger

    for name, folder, kept in (
        ("cache folder", cache_file().parent, "refreshed prices, compiled code"),
        ("data folder", default_ledger().parent, "the meter's ledger"),
    ):
        there = next(parent for parent in (folder, *folder.parents) if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=there) as file:  # permissions alone do not tell whether it can be written
                file.write(b"tokonomics")
                file.flush()
            free = shutil.disk_usage(there).free
        except OSError as error:
            seen = f"{folder} cannot be written ({error.strerror or error}): not kept are {kept}"
            yield _note(name, seen, "Set XDG_CACHE_HOME and XDG_DATA_HOME to folders that can be.")
            continue
        seen = f"{folder} can be written, {gigabytes(free)} free: {kept}"
        if free < _LITTLE_BYTES:
            yield _note(name, seen, "Make room, or set XDG_CACHE_HOME and XDG_DATA_HOME to folders on another disk.")
        else:
            yield _ok(name, seen)


def _completion() -> Iterator[Check]:
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - never raises
    shells = [shell for shell, script in _COMPLETIONS.items() if (home / script).is_file()]
    if shells:
        yield _ok("completion", f"installed for {', '.join(shells)}")
    else:
        yield _note("completion", "not installed", "Names on Tab: tokonomics --install-completion")


_LOOKS = (
    _tokonomics, _python, _machine, _packages, _extras, _simulator, _gpu_prices, _coverage, _api_prices, _catalogue,
    _profile, _gpus, _ledger, _folders, _completion,
)  # fmt: skip
