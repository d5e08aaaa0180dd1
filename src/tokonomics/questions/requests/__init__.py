"""Define what each question takes, by the group of its verb; light to load, so that help is quick."""
