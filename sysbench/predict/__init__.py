"""Prediction of step times on a GPU that is not present, from kernels and the rates of the GPU and the host."""
