"""What exists: models, GPUs, engines, offers and API prices; data files with source and date, and their readers."""
