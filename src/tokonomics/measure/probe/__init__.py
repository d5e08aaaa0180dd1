"""What this machine's GPU does: kernels timed with PyTorch, and curves fitted on them.

``timings`` and what it imports need torch and the standard library only, so that a bare machine can run them.
"""
