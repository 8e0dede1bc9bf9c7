"""Prediction of a step's time on a GPU that is not present, from its kernels and the rates of the GPU and the host."""
