"""PyTorch's own caching allocator, as compiled into libc10_cuda.so, run without a GPU: the reference for the model.

`driver.cpp` defines the functions of the CUDA runtime and driver that the allocator calls, over a device that has
memory only on paper, and then drives the allocator by commands from standard input.
"""
