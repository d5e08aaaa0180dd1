"""One short function per verb."""
