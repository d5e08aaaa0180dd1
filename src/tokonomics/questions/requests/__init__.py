"""What each question takes, by the group of its verb: light, so that help is quick."""
