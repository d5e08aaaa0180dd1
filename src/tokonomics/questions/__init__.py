"""What is asked: a typed request and a function for every question, and nothing about how it is shown."""
