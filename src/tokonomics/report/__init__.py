"""Tables and charts: renders results, computes nothing."""
