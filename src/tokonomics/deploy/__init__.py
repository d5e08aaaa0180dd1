"""The files that start what was planned: a readable manifest for each target as data, and one writer that fills it."""
