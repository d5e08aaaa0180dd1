"""Close the loop on live servers: flags proven on an engine, twins that forecast, reports that are sent."""
