"""Kernels of a trace: names, classes, times, and estimates of their minimum FLOPs and bytes."""
