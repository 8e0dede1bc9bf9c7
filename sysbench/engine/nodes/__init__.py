"""Ranks that torchrun or srun has started, on one node or several: rank 0 runs the engine, the others its workers."""
