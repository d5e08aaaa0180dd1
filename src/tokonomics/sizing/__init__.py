"""Find how many replicas a setup takes and what they cost: the only search for replicas, and the only bill."""
