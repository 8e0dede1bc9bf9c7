"""Simulation of a GPU that is not present: its caching allocator, tensors and autocast rules."""
