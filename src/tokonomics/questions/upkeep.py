"""What people and overheads cost beside the machines, as it was asked."""

from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.breakeven import Extra, engineers
from tokonomics.planner.parsing import dollars
from tokonomics.questions.inputs import Staffed


def extras_of(request: Staffed) -> tuple[Extra, ...]:
    """Lines beside the machines: none unless asked for."""
    usd_per_month = dollars(request.engineer_usd_per_month, "engineer_usd_per_month")
    if (request.engineers is None) != (usd_per_month is None):
        missing = "engineer_usd_per_month" if request.engineers is not None else "engineers"
        fix = f"Such as {option('engineers', 0.5)} {option('engineer_usd_per_month', 15000)}."
        raise BadInput("is missing", field=missing, fix=fix)
    people: tuple[Extra, ...] = ()
    if request.engineers is not None and usd_per_month is not None:
        people = (engineers(request.engineers, usd_per_month),)
    return (*people, *(_overhead(text) for text in request.overhead or ()))


def _overhead(text: str) -> Extra:
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        amount = float(value.removesuffix("%").strip())
    except ValueError:
        amount = -1.0
    if not name or not 0 <= amount < 1e12:
        raise BadInput(
            f"'{shorten(text)}' is not understood",
            field="overhead",
            fix="Write monitoring=500 for dollars a month, or network=8% of what the machines cost.",
        )
    if value.endswith("%"):
        return Extra(name=name, share_of_machines=amount / 100)
    return Extra(name=name, usd_per_month=amount)
