"""``python -m tokonomics``."""

from tokonomics.cli.main import main

main()
