"""Write a report of every week once it is over, and have a command send it.

Weeks go from Monday to Sunday, UTC, and the name of a report carries its Monday: ``report-2026-11-09.html``. Due are
the weeks after the newest report there is, otherwise only the last full one. A report that a command should send is
noted in ``report.unsent`` before it is written, and crossed out when the command has succeeded. So a report is sent at
least once, whatever ends in between: this program, the command or the machine.
"""

import shlex
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from tokonomics.errors import TokonomicsError, option, shorten
from tokonomics.files import write_text
from tokonomics.measure.meter.ledger import ROW_S
from tokonomics.measure.meter.readings import Clock
from tokonomics.operate.server import read_command
from tokonomics.types import Noun
from tokonomics.units import DAY_S, SECONDS_PER_HOUR

WEEK_S = 7 * DAY_S
_FIRST_MONDAY = 4 * DAY_S  # 1970-01-05
SETTLED_S = ROW_S  # after the end of a week its last row in the ledger is complete
LOOK_EVERY_S = SECONDS_PER_HOUR  # our choice: what failed is tried again, and a machine that slept has caught up
_SHOWN = 200  # characters of what a command said


class WeeklyReport(Noun):
    """What became of the report of a week."""

    week: date  # its Monday
    file: str
    written: bool  # now; otherwise it was there already
    sent: bool | None = None  # None if no command sends it


Send = Callable[[Path, date], str | None]  # sends a report; returns why it could not


@dataclass
class WeeklyReports:
    """The reports beside ``path``, and those that are not sent yet."""

    path: Path
    write: Callable[[float, float, Path], bool]  # from, to (Unix seconds), file; False if there is nothing to report
    say: Callable[[str], None]
    send: Send | None = None
    _empty: set[date] = field(default_factory=set)
    _looks: int = 0

    def look(self, now: float) -> list[WeeklyReport]:
        """Write what is due and send what is not sent; what fails is said and tried again at the next look.

        At the first look a report that cannot be written is an error: the command was wrong.
        """
        written: dict[date, WeeklyReport] = {}
        for week in self._due(now):
            file = self.file_of(week)
            try:
                if self.send:
                    self.keep_unsent([*self.unsent(), week])
                if self.write(_start(week), _start(week) + WEEK_S, file):
                    written[week] = WeeklyReport(week=week, file=str(file), written=True)
                else:
                    self._empty.add(week)
                    self.say(f"nothing was metered in the week of {week}: no report")
            except TokonomicsError as problem:
                if not self._looks:
                    raise
                self.say(f"the report of the week of {week} is not written, and is tried again: {problem}")
        self._looks += 1
        return [*(report for week, report in written.items() if week not in self.unsent()), *self._sent(written)]

    def _sent(self, written: dict[date, WeeklyReport]) -> list[WeeklyReport]:
        """Send what is not sent, oldest first."""
        tried = []
        for week in self.unsent() if self.send else ():
            file = self.file_of(week)
            if not file.exists():
                if week in self._empty:
                    self.keep_unsent([other for other in self.unsent() if other != week])
                continue
            assert self.send is not None
            problem = self.send(file, week)
            if problem is None:
                self.keep_unsent([other for other in self.unsent() if other != week])
                self.say(f"{file} sent")
            else:
                self.say(f"{file} is not sent, and is tried again within an hour: {problem}")
            tried.append(WeeklyReport(week=week, file=str(file), written=week in written, sent=problem is None))
        return tried

    def next_look(self, now: float) -> float:
        """Return the seconds until there may be something to do: the next week has settled, or an hour has passed."""
        settled = _start(_last_week(now)) + 2 * WEEK_S + SETTLED_S
        return min(LOOK_EVERY_S, settled - now)

    def file_of(self, week: date) -> Path:
        return self.path.with_name(f"{self.path.stem}-{week}{self.path.suffix}")

    def unsent(self) -> list[date]:
        """Return the weeks whose reports are to be sent, oldest first."""
        try:
            lines = self._unsent_file.read_text(encoding="utf-8").split()
        except FileNotFoundError:
            return []
        return sorted({week for line in lines if (week := _week(line)) is not None})

    def keep_unsent(self, weeks: Sequence[date]) -> None:
        """Note the weeks whose reports are to be sent."""
        if not weeks:
            self._unsent_file.unlink(missing_ok=True)
            return
        text = "".join(f"{week}\n" for week in sorted(set(weeks)))
        write_text(self._unsent_file, text, option("html", shorten(self.path.name)))

    @property
    def _unsent_file(self) -> Path:
        return self.path.with_suffix(".unsent")

    def _due(self, now: float) -> list[date]:
        last = _last_week(now)
        start, end = f"{self.path.stem}-", self.path.suffix
        there = [
            week
            for file in self.path.parent.glob(f"*{end}")
            if file.name.startswith(start) and (week := _week(file.name[len(start) : -len(end)])) and week <= last
        ]
        week, due = max(there) + timedelta(days=7) if there else last, list[date]()
        while week <= last:
            due.append(week)
            week += timedelta(days=7)
        return [week for week in due if week not in self._empty]


def keep_reporting(
    reports: WeeklyReports, clock: Clock, sleep: Callable[[float], None], show: Callable[[WeeklyReport], None]
) -> None:
    """Look at once and then whenever there may be something to do, until interrupted."""
    while True:
        for report in reports.look(clock.wall()):
            show(report)
        sleep(reports.next_look(clock.wall()))


def sender(command: str) -> Send:
    """Return what runs a command with the report as its input; ``{file}`` and ``{week}`` in its words are filled in.

    No shell reads the command; it may begin with assignments such as ``LANG=C``.
    """
    words, environment = read_command(command, "the command that sends", "mail -s 'LLM costs' finops@example.com")

    def send(file: Path, week: date) -> str | None:
        filled = [word.replace("{file}", str(file.resolve())).replace("{week}", str(week)) for word in words]
        try:
            with file.open("rb") as page:
                ended = subprocess.run(
                    filled, stdin=page, env=environment, capture_output=True, timeout=LOOK_EVERY_S, check=False
                )
        except subprocess.TimeoutExpired:
            return f"{shlex.quote(filled[0])} did not end within an hour"
        except OSError as error:
            return f"{shlex.quote(filled[0])} cannot be run: {error.strerror or error}"
        said = " ".join((ended.stderr or ended.stdout).decode(errors="replace").split())
        if ended.returncode:
            return (
                f"{shlex.quote(filled[0])} ended with {ended.returncode}{f': {shorten(said, _SHOWN)}' if said else ''}"
            )
        return None

    return send


def _last_week(now: float) -> date:
    """Return the Monday of the last week that is over and settled."""
    weeks = (now - SETTLED_S - _FIRST_MONDAY) // WEEK_S
    return datetime.fromtimestamp(_FIRST_MONDAY + (weeks - 1) * WEEK_S, UTC).date()


def _start(week: date) -> float:
    return datetime.combine(week, time(), UTC).timestamp()


def _week(text: str) -> date | None:
    """Return the Monday that is written; None if it is none."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day if day.weekday() == 0 else None
