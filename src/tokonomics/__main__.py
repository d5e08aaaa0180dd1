"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs, sweeps of them, and the page."""

from typing import Any


def main() -> None:
    """Entry point of the ``tokonomics`` command."""
    from tokonomics.cli.main import main as run

    run()


def __getattr__(name: str) -> Any:
    if name == "app":
        from tokonomics.cli.main import application

        return application()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
