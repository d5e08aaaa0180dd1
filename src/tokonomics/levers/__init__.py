"""What one change saves: a lever takes what it changes as arguments and returns the bill before and after."""
