"""Many answers at once: the points of a sweep, the workers that answer them, and the folder that keeps them."""
