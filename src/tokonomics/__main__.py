"""Run the ``tokonomics`` command, also as ``python -m tokonomics``: the verbs, sweeps of them, and the web page."""

from typing import Any


def main() -> None:
    from tokonomics.cli.main import main as run

    run()


def __getattr__(name: str) -> Any:
    if name == "app":
        from tokonomics.cli.main import application

        return application()
    raise AttributeError(name)


if __name__ == "__main__":
    main()
