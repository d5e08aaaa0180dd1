"""How fast: does it fit, and how long does one engine step take."""
