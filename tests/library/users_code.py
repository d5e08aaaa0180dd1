"""What a user's own code may write and may not, never run: mypy reads it in ``make lint``.

A line with ``type: ignore`` is a mistake of a user's that must be one for mypy too: an ignore that is not needed is an
error. ``make explore`` reads such a file from outside of the project as well (test_api_surface.py).
"""

from typing import assert_type

import tokonomics as tk
from tokonomics.planner.plan_answer import Candidate


def notebook() -> None:
    assert_type(tk.plan("m", rate=5, slo={"ttft_p99": 0.5}).best, Candidate | None)
    assert_type(tk.simulate("m", gpu="H100", trace={"arrival_s": [0.0]}).ttft_s.p99, float | None)
    assert_type(tk.read_trace("azure-conv").rate, float)
    tk.fit("m", gpu="H100", tp="two")  # type: ignore[arg-type]
    tk.fit("m", gpus="H100")  # type: ignore[call-arg]
