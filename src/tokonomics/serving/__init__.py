"""Predict what happens to a deployment under load, in closed form and by simulation."""
