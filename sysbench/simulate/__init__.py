"""Simulation of a GPU that is not present: its caching allocator, its tensors, its autocast rules."""
