"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs, sweeps of them, and the page."""

from typing import Any

from tokonomics.cli import main as command_line
from tokonomics.cli.main import Action
from tokonomics.questions.verbs import BUY, RUN

DOORS = {
    "sweep": Action(BUY, "Ask a verb at many points of a scenario; what is done is kept, and the same command goes on "
                    "from there.", "tokonomics.sweep.sweep:sweep"),
    "web": Action(RUN, "Open the page: the same answers as here, with sliders, charts and links; on this machine "
                  "alone.", "tokonomics.web.serve:web"),
}  # fmt: skip
"""The other doors, opened from the command line."""


def main() -> None:
    """Entry point of the ``tokonomics`` command."""
    command_line.main(DOORS)


def __getattr__(name: str) -> Any:
    if name == "app":
        return command_line.application(None, DOORS)
    raise AttributeError(name)


if __name__ == "__main__":
    main()
