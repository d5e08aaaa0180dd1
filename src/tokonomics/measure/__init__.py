"""What is true: measurements, and how far predictions are from them."""
