"""The time of a step on a GPU that need not be there: its kernels, how fast the GPU runs each, and the host."""
