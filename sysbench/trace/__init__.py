"""What a profiler recorded, packed into columns, and what its time was spent on."""
