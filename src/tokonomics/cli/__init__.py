"""Offer the verbs on the command line."""
