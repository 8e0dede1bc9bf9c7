"""Kernels of a trace: what they are called and do, how long they take, how much work they need at least."""
