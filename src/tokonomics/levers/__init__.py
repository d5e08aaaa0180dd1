"""Compute what one change saves: a lever takes what it changes and returns the bill before and after."""
