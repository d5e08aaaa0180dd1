"""How many replicas a set-up takes, and what they cost: the only search for replicas, and the only bill."""
