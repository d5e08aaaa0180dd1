"""List what exists: models, GPUs, engines, offers and API prices, in data files with source and date."""
