"""Load-test any OpenAI-compatible server: one streamed request, loads made of them, and when to stop."""
