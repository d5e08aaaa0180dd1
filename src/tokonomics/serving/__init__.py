"""What happens to a deployment under load."""
