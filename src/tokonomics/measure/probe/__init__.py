"""Time kernels of this machine's GPU with PyTorch, and fit curves on them.

``timings`` and what it imports need torch and the standard library only, so that a bare machine can run them.
"""
