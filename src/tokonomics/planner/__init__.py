"""Decide which deployment on which offer serves the traffic at the lowest bill."""
