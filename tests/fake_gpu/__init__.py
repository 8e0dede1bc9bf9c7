"""A GPU that is not there, under the real CUDA build of PyTorch: what it shows and what it cannot, see README.md."""
