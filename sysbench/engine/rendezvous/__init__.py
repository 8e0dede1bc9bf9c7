"""Ranks started by torchrun or srun, on one node or several: rank 0 runs the engine, every other rank a worker."""
