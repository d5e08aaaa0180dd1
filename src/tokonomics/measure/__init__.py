"""Read measurements, and tell how far predictions are from them."""
