"""Simulation of a GPU that need not be present: its caching allocator, its tensors, its autocast rules."""
