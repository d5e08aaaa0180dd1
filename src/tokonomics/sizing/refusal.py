"""Why something is not served: the kind, the case in words, and what to change; the same words in every verb."""

from dataclasses import dataclass
from enum import StrEnum

from tokonomics.errors import option


class Reason(StrEnum):
    """The kinds of reasons why something is not served."""

    no_price = "no price on these terms"
    too_expensive = "more expensive than the price limit"
    old_price = "price too old"
    too_long = "requests longer than the model's context"
    not_supported = "not run by the engine"
    does_not_fit = "does not fit"
    too_slow = "misses the SLO"
    instance_too_small = "needs more GPUs than the instance has"
    host_too_small = "host memory below the weights and a process for each GPU"
    no_zones = "sold without zones"
    no_network = "no fast network between machines is known"
    assumed_speed = "speed assumed: no kernels timed on such a GPU"
    too_many_gpus = "takes more GPUs than allowed"
    more_expensive = "more expensive than the pick"
    no_machine = "no machine is sold for it on these terms"
    not_simulated = "not simulated like that"
    nothing_to_change = "nothing to change"


@dataclass(frozen=True)
class NotServed:
    """Why a setup cannot meet its SLOs or be bought, or why a lever changes nothing."""

    kind: Reason
    reason: str  # the case in words
    fix: str | None = None  # what to change, where more is known than the kind tells

    @property
    def what_to_do(self) -> str | None:
        """Suggest what to change: the specific fix, or the usual one for this kind."""
        return self.fix or _FIXES.get(self.kind)


_FIXES = {
    Reason.too_long: "Take a model with a longer context, or shorter prompts and answers.",
    Reason.does_not_fit: f"Give more GPUs ({option('tp')}), larger ones ({option('gpu')}) or fewer bits "
    f"({option('weights')}).",
    Reason.too_slow: f"Loosen {option('slo')}, or name more or faster GPUs ({option('tp')}, {option('gpu')}).",
    Reason.not_supported: f"Name another engine ({option('engine')}) or precision ({option('weights')}).",
    Reason.instance_too_small: f"Split it over fewer GPUs ({option('tp')}).",
    Reason.no_machine: f"Give its price: {option('usd_per_hour')}, or {option('offers')} with your own list.",
}
