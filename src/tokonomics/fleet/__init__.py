"""Plan when machines run: a fleet bought hour by hour from reserved, on-demand and spot offers."""
