"""Close the loop on live servers: flags proven, builds compared, twins that forecast, reports that are sent."""
