"""tokonomics: what every million LLM tokens costs, before you buy, while you run, and what to change."""

__version__ = "0.1.0"
