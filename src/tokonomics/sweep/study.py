"""Run a sweep from the question to the results: find the points, skip those already done, answer the rest, save all.

Prices are judged on the day on which the sweep began, also when it is resumed tomorrow, so that all its points can be
compared.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.physics.calibration import VARIABLE as PROFILE
from tokonomics.physics.calibration import read_profile
from tokonomics.questions.scenario import swept_keys
from tokonomics.sweep.crew import (
    ONE_THREAD,
    ClusterCrew,
    Crew,
    answered,
    local_crew,
    memory_share,
    most_workers,
    outcomes,
    warm_up,
)
from tokonomics.sweep.outcome import Status, SweepRow, SweepSummary, as_numbers, as_plain, summary_of
from tokonomics.sweep.points import (
    DAY,
    Ground,
    SweepPoint,
    Tried,
    base_values,
    check_verb,
    combined,
    drawn,
    grid,
    ground,
    ground_id,
    points_of,
    read_over,
    verb_for,
    without_day,
)  # fmt: skip
from tokonomics.sweep.store import MANIFEST, Store, opened, read_manifest, write_manifest
from tokonomics.sweep.view import SweepClock, progress
from tokonomics.traffic.grammar import span_s
from tokonomics.types import today
from tokonomics.units import plural, seconds
from tokonomics.workers import polite_end

TODAY = "TOKONOMICS_TODAY"
_PASSED_ON = ("TOKONOMICS_CACHE", "TOKONOMICS_CATALOG", "XDG_CACHE_HOME", PROFILE)
"""Environment variables for the workers of a cluster: where prices, catalogue, compiled code and profile are."""


class Interrupted(Exception):
    """Raised by Ctrl+C, a closed terminal, or SIGTERM; says what is kept."""


@dataclass(frozen=True)
class Sweep:
    """The question of a sweep."""

    verb: str
    over: Mapping[str, Tried]
    points: Sequence[SweepPoint]
    folder: Path
    limit_s: float
    ground: Ground
    base: Mapping[str, Any]
    environment: Mapping[str, str]  # for every worker
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """The outcome of a sweep."""

    sweep: Sweep
    rows: tuple[SweepRow, ...]
    results: Path
    before: int  # points done by an earlier run
    wall_s: float
    worked_s: float  # seconds of all workers together, in this run
    where: str
    lost: int  # workers that died on the way

    def summary(self, by: str | None) -> SweepSummary:
        targets = any("slo" in point.values for point in self.sweep.points)
        return summary_of(self.sweep.verb, list(self.sweep.over), self.rows, by, targets)

    def about_results(self) -> list[str]:
        """Say where the results are and what they depend on; the same in every run."""
        there = Path(os.path.relpath(self.results))
        where = self.results if ".." in there.parts else there
        lines = [f"Results: {where}", f"Prices are judged on {self.sweep.ground[DAY]}."]
        failed = sum(row.outcome.status is Status.FAILED for row in self.rows)
        if failed:
            again, longer = option("retry_failed"), option("limit")
            lines.append(f"{plural(failed, 'point')} failed: {again} does them again, {longer} gives more time.")
        return lines

    def about_this_run(self) -> list[str]:
        """Say what this run alone did."""
        lines, new = [], len(self.rows) - self.before
        if self.before:
            lines.append(f"{plural(self.before, 'point')} had been done before ({option('fresh')} does them again)")
        if self.lost:
            lines.append(f"{plural(self.lost, 'worker')} died on the way; what they were asked was asked again")
        if new:
            at_a_time = f"{seconds(self.worked_s)} of work, {self.worked_s / self.wall_s:.2g} at a time"
            lines.append(f"{plural(new, 'point')} in {seconds(self.wall_s)} on {self.where}; {at_a_time}")
        return lines

    def plain(self, found: SweepSummary, top: int) -> dict[str, Any]:
        return as_plain(found, top) | {
            "results": str(self.results),
            "day": self.sweep.ground[DAY],
            "done_before": self.before,
            "workers": self.where,
            "workers_lost": self.lost,
            "wall_s": self.wall_s,
            "worked_s": self.worked_s,
        }


@contextmanager
def changed(environment: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for what is done or started inside the block."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def prepared(
    scenario: Path,
    texts: Sequence[str],
    verb: str | None,
    *,
    random: int | None,
    seed: int,
    into: Path | None,
    limit: str,
    profile: Path | None,
    fresh: bool,
) -> Sweep:
    """Return the sweep with its points; report any mistake in the question before any work."""
    chosen, limit_s = verb or verb_for(texts), span_s(limit)
    check_verb(chosen)
    if limit_s is None or limit_s <= 0:
        raise BadInput(f"'{shorten(limit)}' is not a time", where="--limit", fix="Write such as 300s, 10m or 2h.")
    over = read_over(texts, swept_keys(chosen))
    base, unused, own_profile = base_values(scenario, chosen)
    folder = (into or scenario.with_suffix(".sweep")).absolute()
    environment = {}
    if profile := profile or own_profile:
        read_profile(profile)
        environment = {PROFILE: str(profile.resolve())}
    with changed(environment):
        here = ground()
    last = None if fresh else _last_ground(folder)
    if last and TODAY not in os.environ and without_day(last) == without_day(here):
        here |= {DAY: last[DAY]}
    wanted = grid(over) if random is None else drawn(over, random, seed)
    points = points_of(wanted, partial(combined, chosen, base), ground_id(here, chosen))
    notes = [f"{scenario}: {chosen} does not use {', '.join(unused)}"] if unused else []
    if here[DAY] != today().isoformat():
        notes.append(f"goes on as if it were {here[DAY]}, when this sweep began (--fresh begins anew)")
    if random is not None and len(points) < random:
        notes.append(f"there are no more than {plural(len(points), 'different point')} to draw")
    return Sweep(chosen, over, points, folder, limit_s, here, base, {**environment, TODAY: here[DAY]}, tuple(notes))


def done_before(sweep: Sweep) -> int:
    """Return how many points are already in the folder."""
    if not sweep.folder.is_dir():
        return 0
    with opened(sweep.folder) as store:
        return sum(point.id in store.done for point in sweep.points)


def timed(sweep: Sweep) -> float:
    """Return the seconds of the first point, on this machine now, without the start of a worker."""
    with changed(sweep.environment):
        warm_up(sweep.verb)
        return answered(sweep.verb, sweep.points[0].values).seconds


def run_of(
    sweep: Sweep,
    store: Store,
    *,
    jobs: int | None,
    memory_gb: float | None,
    ray: str | None,
    fresh: bool = False,
    retry_failed: bool = False,
) -> Run:
    """Answer the points that are not done yet, and write the results of all."""
    if memory_gb is not None and not 0.1 <= memory_gb <= 1e5:
        raise BadInput(f"must be from 0.1 to 100,000 GB, got {memory_gb:g}", where="--memory")
    if fresh:
        store.clear()
    if retry_failed:
        store.forget_failed()
    said = {"verb": sweep.verb, "scenario": dict(sweep.base), "over": list(sweep.over), "points": len(sweep.points)}
    write_manifest(store.folder, {**said, "ground": sweep.ground})
    todo = [point for point in sweep.points if point.id not in store.done]
    done = before = len(sweep.points) - len(todo)
    lost = sum(store.done[point.id].outcome.status is not Status.OK for point in sweep.points if point.id in store.done)
    began, worked_s, where, died = time.monotonic(), 0.0, "no worker", 0
    if todo:
        clock = SweepClock()
        crew, where, workers = _crew(sweep, len(todo), jobs, memory_gb, ray)
        with closing(crew), polite_end():
            try:
                with progress(len(sweep.points), before, workers, clock) as advance:
                    for finished in outcomes(crew, todo, sweep.limit_s, clock.start):
                        store.add([(point.id, outcome) for point, outcome in finished])
                        done += len(finished)
                        lost += sum(outcome.status is not Status.OK for _, outcome in finished)
                        worked_s += sum(outcome.seconds for _, outcome in finished)
                        advance(done, lost)
            except KeyboardInterrupt:
                kept = f"{done:,} of {plural(len(sweep.points), 'point')} kept in {sweep.folder}"
                raise Interrupted(f"{kept}; the same command goes on from there") from None
        died = crew.lost
    wall_s = time.monotonic() - began
    rows = tuple(SweepRow(point, store.done[point.id].outcome) for point in sweep.points)
    results = store.results(sweep.points, _columns(list(sweep.over), rows))
    return Run(sweep, rows, results, before, wall_s, worked_s, where, died)


def _columns(keys: Sequence[str], rows: Sequence[SweepRow]) -> dict[str, Sequence[Any]]:
    """Return the columns of the results, except the whole answers."""
    figures = dict.fromkeys(name for row in rows for name in row.outcome.figures)
    return {
        **{f"over_{key}": as_numbers([row.point.over[key] for row in rows]) for key in keys},
        "status": [str(row.outcome.status) for row in rows],
        "error": [row.outcome.error for row in rows],
        **{name: [row.outcome.figures.get(name) for row in rows] for name in figures},
        "seconds": [row.outcome.seconds for row in rows],
    }


def _crew(sweep: Sweep, todo: int, jobs: int | None, memory_gb: float | None, ray: str | None) -> tuple[Crew, str, int]:
    memory = None if memory_gb is None else round(memory_gb * 1e9)
    environment = {**ONE_THREAD, **sweep.environment}
    if ray is not None:
        more = {name: value for name in _PASSED_ON if (value := os.environ.get(name))}
        cluster = ClusterCrew(
            ray, sweep.verb, sweep.ground, jobs=jobs, memory_bytes=memory, environment={**more, **environment}
        )
        workers = min(cluster.room(), todo)
        return cluster, f"{plural(workers, 'worker')} of {plural(cluster.nodes, 'Ray node')}", workers

    workers = min(jobs or most_workers(), todo)
    local = local_crew(sweep.verb, workers, memory or memory_share(workers), environment)
    return local, plural(workers, "worker"), workers


def _last_ground(folder: Path) -> Ground | None:
    """Return the ground of the folder's last sweep; None if there was none."""
    said = read_manifest(folder)
    if said is None:
        return None
    try:
        last: Ground = dict(said["ground"])
        date.fromisoformat(last[DAY])
    except (KeyError, TypeError, ValueError):
        raise BadInput(
            "does not say what the folder's points rest on",
            where=str(folder / MANIFEST),
            fix="--fresh begins anew, or name a new folder with --into.",
        ) from None
    return last
