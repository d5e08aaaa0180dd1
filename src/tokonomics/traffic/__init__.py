"""Read, describe and generate the requests that a fleet must serve."""
