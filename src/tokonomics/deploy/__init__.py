"""Write the files that start a plan: each target has a readable manifest as data, and one writer fills it."""
