"""Close the loop on a live engine: flags that are proven on it (``tune``)."""
