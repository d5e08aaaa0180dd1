"""What arrives: the requests a fleet must serve."""
