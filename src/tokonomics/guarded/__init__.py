"""Answer other people's questions in workers, without paths and within limits, for the page and MCP."""
