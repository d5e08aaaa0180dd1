"""What ``make test`` leaves to ``make explore``, which runs every week: chosen by place, never by what it finds.

``make test`` takes minutes, so of a long list of like cases it runs some that are spread evenly over the list, and of a
law that makes up its own cases a few; ``EXPLORE=20`` runs all of the list, and twenty times as many of the law.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest

EXPLORE = int(os.environ.get("EXPLORE", "0"))


def some(cases: Iterable[Any], keep: int = 12) -> list[Any]:
    """All cases for ``parametrize``, of which ``keep``, evenly spread, are no matter of exploring."""
    listed = list(cases)
    kept = {round(place * (len(listed) - 1) / max(1, keep - 1)) for place in range(keep)}
    return [case if place in kept else _left_out(case) for place, case in enumerate(listed)]


def _left_out(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.explore])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.explore)


def times(cases: int) -> int:
    """How many cases a law tries that does not leave their number to Hypothesis."""
    return cases * max(1, EXPLORE)
