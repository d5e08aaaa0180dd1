"""Meter what live servers' tokens cost, from the counters that they already expose."""
