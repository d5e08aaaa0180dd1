"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs, sweeps of them, and the page."""

import sys
from typing import Any


def main() -> None:
    """Entry point of the ``tokonomics`` command: what needs no verb is answered without loading any."""
    from tokonomics.cli.quick import answered

    if not answered(sys.argv[1:]):
        from tokonomics.cli.main import main as run

        run()


def __getattr__(name: str) -> Any:
    if name == "app":
        from tokonomics.cli.main import application

        return application()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
