"""What PyTorch does on CUDA GPUs and not on the meta device: its decompositions, dtypes, choices and scratch memory."""
