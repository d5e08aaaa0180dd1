"""Render results as tables and charts; compute nothing."""
