"""Serve the answers of the command line over HTTP, with one static page that asks for them."""
