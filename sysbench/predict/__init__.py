"""Prediction of the time of a step on a GPU that is not present: its kernels, the GPU's speed for each, and the
host."""
