"""Questions of others, answered in workers: no path gets in, and memory and time are limited; for the page and MCP."""
