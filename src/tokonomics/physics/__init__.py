"""Compute whether a deployment fits its GPUs and how long one engine step takes."""
