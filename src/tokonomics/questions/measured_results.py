"""What the questions about measurements return: the nouns of ``measure``, each as ``--json`` prints it."""

import math
from typing import Any

from tokonomics.catalog.checkpoints import QuantisedPart
from tokonomics.catalog.layers import Precision
from tokonomics.measure.calibrate import Calibrated
from tokonomics.measure.importers.lm_eval import KeptQuality
from tokonomics.measure.meter.bill import MeteredEnergy, StatementSale
from tokonomics.measure.meter.price_factors import UnusualDay
from tokonomics.measure.meter.state import BudgetState, Statement
from tokonomics.measure.priced_run import PricedRun
from tokonomics.measure.replay import Replay
from tokonomics.measure.validate import Validation
from tokonomics.money.breakeven import Upkeep
from tokonomics.physics.calibration import Profile
from tokonomics.questions.result import Result, beside
from tokonomics.units import fine_percent, percent, plural, usd


class PricedRunResult(Result, PricedRun):
    """A measured run with what it costs and how far predictions were off."""

    ROWS = "run.points"

    def headline(self) -> str:
        what = f"{self.run.model or 'a server'}, measured by {self.run.tool}"
        best = self.verdict.best
        if best is None:
            return f"{what}: {plural(len(self.points), 'load')}"
        point, price = self.run.points[best], self.points[best].usd_per_mtok
        if price is None:
            return f"{what}: {point.output_tokens_per_s:,.0f} output tokens/s at {point.load}"
        return f"{what}: {usd(price.blended)} per Mtok at {point.load}"


class RecoveryResult(Result, KeptQuality):
    """What a quantised model keeps of the published one's scores."""

    ROWS = "tasks"

    model: str
    name: str
    """The model's, for people."""
    part: QuantisedPart
    precision: Precision
    published: Precision
    """What it is compared with."""
    kept: bool
    """In the user's catalogue, where plans find it."""

    def headline(self) -> str:
        what = self.precision.upper() if self.part == "weights" else f"{self.precision.upper()} KV cache"
        return f"{self.model} {what}: {fine_percent(self.recovery)} recovered over {plural(len(self.tasks), 'task')}"


class CalibrateResult(Result, Calibrated):
    """A profile, what was learned of each server, and its errors on held-out loads."""

    ROWS = "groups"

    saved_to: Any = beside()
    """The file that holds the profile; None where nothing was kept."""

    def headline(self) -> str:
        learned = plural(len(self.profile.corrections), "correction")
        return f"{self.profile.name}: {learned} from {plural(len(self.groups), 'server')}"


class ProbeResult(Result):
    """A profile from the kernels of one GPU; the file that it is saved to also holds the timings."""

    profile: Profile
    saved_to: Any = beside()

    def plain(self) -> Any:
        return self.profile.model_dump(mode="json")

    def headline(self) -> str:
        return f"{', '.join(self.profile.gpus)}: kernels timed on {self.profile.made}"


class ValidateResult(Result, Validation):
    """Errors of predictions, by group, and what could not be predicted."""

    predictions: Any = beside()

    def headline(self) -> str:
        if self.overall is None:
            return f"none of {plural(self.rows, 'row')} could be predicted"
        return (
            f"{self.predicted:,} of {plural(self.rows, 'row')} predicted: median error "
            f"{percent(math.expm1(self.overall.median_abs_log_error))}, "
            f"{percent(self.overall.inside_interval)} inside the interval"
        )


class ReplayResult(Result, Replay):
    """The runs of an engine's log, each served again in the simulator."""

    ROWS = "runs"

    def headline(self) -> str:
        return f"{self.model} on {self.gpu}: {plural(len(self.runs), 'run')} replayed"


class MeterReportResult(Result, Statement):
    """What metered tokens have cost."""

    ROWS = "lines"

    unusual: tuple[UnusualDay, ...] = ()
    """Days whose price leaves its band, and why."""
    sale: StatementSale | None = None
    """What was earned, where a price or a margin is given."""
    budgets: tuple[BudgetState, ...] = ()
    energy: MeteredEnergy | None = None
    """What the servers drew and emitted; None where the GPUs were neither read nor named."""
    upkeep: Upkeep | None = None
    """The same bill with people and overheads of this stretch, where any are given."""
    in_time: Any = beside()
    """The same by ``over`` alone, for the chart."""
    over: Any = beside()
    extent: Any = beside()
    """When the ledger begins and ends, in Unix seconds."""

    def headline(self) -> str:
        price = self.total.usd_per_mtok
        return f"{usd(self.total.usd)} in all" + ("" if price is None else f", {usd(price)} per Mtok")
