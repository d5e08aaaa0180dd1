"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs, sweeps of them, and the page."""

from typing import Any

from tokonomics.cli.main import application, main


def __getattr__(name: str) -> Any:
    if name == "app":
        return application()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
