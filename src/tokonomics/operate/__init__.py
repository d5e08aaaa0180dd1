"""Close the loop on a live engine: flags proven on it (``tune``), builds compared before they serve (``guard``)."""
