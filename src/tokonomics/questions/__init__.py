"""Define every question as a typed request and a function, with nothing about how the answer is shown."""
