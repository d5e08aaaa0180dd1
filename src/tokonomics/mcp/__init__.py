"""Offer the answers of the command line as tools for agents, over the Model Context Protocol."""
