"""The tools of agents: the answers of the command line over the Model Context Protocol."""
