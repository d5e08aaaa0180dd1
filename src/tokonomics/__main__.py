"""``python -m tokonomics``."""

from tokonomics.cli.main import run

run()
