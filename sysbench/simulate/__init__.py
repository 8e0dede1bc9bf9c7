"""What a GPU would do, computed without one: its caching allocator, its tensors, its autocast rules."""
