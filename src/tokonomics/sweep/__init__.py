"""Answer many points at once: list the points of a sweep, have workers answer them, and keep the answers."""
